//! Debian archives as trees of files: cloned and updated from many mirrors at once, verified from the signed index,
//! published at once, and checked.
//!
//! [`mirror::run`] and [`check::run`] take settings and an `Events` to tell of their progress, and give back a report.

#![forbid(unsafe_code)]

pub mod check;
pub mod mirror;
pub mod settings;
