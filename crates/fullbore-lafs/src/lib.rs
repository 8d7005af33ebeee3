//! Files in Tahoe-LAFS grids, encoded exactly as the stock client does it.
//!
//! From the bottom up: [`base32`], [`hash`] and [`merkle`] are what everything is named and checked by;
//! [`geometry`] says how a file is cut; [`code`] makes n blocks of k by a Reed-Solomon code over
//! [`field`]; [`extension`] and [`layout`] are what a share holds; [`encode`] joins them. [`cap`] is what a
//! person keeps. All of this does no I/O.
//!
//! The formats are those of the project's "file encoding" and "URI" specifications, and where these are
//! silent, what version 1.20 of its own client writes.
//!
//! [`put`] and [`get`] are the walks of the commands: trees of files into a [`grid`], files out of it.
//!
//! Nothing here prints, reads the environment or ends the process.

#![deny(unsafe_code)]

pub mod base32;
pub mod cap;
pub mod code;
pub mod directory;
pub mod download;
pub mod encode;
pub mod extension;
pub mod field;
pub mod gbs;
pub mod geometry;
pub mod get;
pub mod grid;
pub mod hash;
pub mod layout;
pub mod merkle;
pub mod node;
pub mod nurl;
pub mod placement;
pub mod put;
pub mod secrets;
pub mod servers;
pub mod upload;
pub mod verdict;
pub mod yaml;
