//! Formats of a Debian archive: paths, control files, `Release`, signatures,
//! indexes, compression, sources lists, versions and binary packages.
//!
//! No sockets and no archive on disk here. Parsers take bytes or a reader and
//! give back checked values; all input is hostile until then. The one thing that
//! runs another program is `signature`, which asks `gpgv`.

#![forbid(unsafe_code)]

pub mod ar;
pub mod classify;
mod clearsign;
pub mod compression;
pub mod date;
pub mod deb;
pub mod deb822;
pub mod diff_index;
mod gpgv_status;
pub mod index;
pub mod keys;
pub mod path;
pub mod pdiff;
pub mod release;
pub mod release_date;
pub mod signature;
pub mod sources_list;
pub mod tar;
pub mod version;
