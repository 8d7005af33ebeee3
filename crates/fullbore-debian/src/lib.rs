//! Formats of a Debian archive: paths, control files, `Release`, signatures, indexes, patches of indexes, sources lists,
//! versions and binary packages.
//!
//! The crate has no sockets and no archive on disk. Parsers take bytes or a reader and return checked values; they treat
//! all input as hostile, and every size has a limit. Only [`signature`] starts another program, `gpgv` or `sqv`.
//!
//! Trust goes in this order: a [`Verifier`](signature::Verifier) makes a [`SignedText`](signature::SignedText),
//! [`Release::parse`](release::Release::parse) accepts nothing else, and the `Release` has size and SHA-256 of each index.
//!
//! ```no_run
//! use std::fs::File;
//! use std::io::BufReader;
//!
//! use fullbore_debian::compression::{Checked, Form, Reader};
//! use fullbore_debian::index::{self, IndexError};
//! use fullbore_debian::keys::KeySource;
//! use fullbore_debian::release::Release;
//! use fullbore_debian::signature::Verifier;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let keyring = KeySource::File("/usr/share/keyrings/debian-archive-keyring.gpg".into());
//! let verifier = Verifier::new("/var/tmp/scratch", vec![keyring]);
//! let release = Release::parse(&verifier.verify_inrelease(&std::fs::read("InRelease")?)?)?;
//! let entry = release.find("main/binary-amd64/Packages").ok_or("no such index")?;
//! let file = BufReader::new(File::open("Packages.xz")?);
//! let plain = Reader::open(Form::Xz, file, entry.size)?;
//! index::packages(Checked::new(plain, entry.size, entry.sha256), |package| {
//!     println!("{} {} ({} bytes)", package.package, package.version, package.size);
//!     Ok::<_, IndexError>(())
//! })?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod ar;
pub mod classify;
mod clearsign;
pub mod compression;
pub mod date;
pub mod deb;
pub mod deb822;
pub mod diff_index;
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
