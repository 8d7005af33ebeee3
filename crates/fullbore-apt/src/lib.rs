//! What APT expects of files and programs: the forms in which it keeps indexes, its
//! acquire methods, and its lists directory with all that brings it up to date.
//!
//! Nothing here prints or reads the environment; the methods speak over the reader and
//! writer that they are given.

#![forbid(unsafe_code)]

pub mod acquire;
pub mod http;
pub mod kept;
pub mod lists;
pub mod parts;
pub mod pdiff;
pub mod rewrite;
pub mod rred;
pub mod signed_release;
pub mod system;
pub mod update;
