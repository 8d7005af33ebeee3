//! Immutable files in Tahoe-LAFS grids, encoded exactly as the stock client does it.
//!
//! [`put`], [`get`], [`ls`] and [`check`] are the commands of fullbore: they upload files and directories to a grid,
//! download, list and verify them. Below them, [`upload::Uploader`] and [`Downloader`] move one file, and [`mutable`]
//! reads a mutable one; [`gbs`] is the storage protocol (Great Black Swamp).
//!
//! The format modules do no I/O. [`Cap`] is the secret that the owner of a file keeps. [`Geometry`] says how a file is
//! divided; [`Encoder`] makes shares of it by a Reed-Solomon [`Code`]. [`Layout`] and [`Extension`] describe a share,
//! and [`directory`] the content of a directory. The formats follow Tahoe-LAFS's specifications "File Encoding" and
//! "URI"; where these are silent, its client 1.20. Mutable files are read, checked and repaired; their content is never
//! changed. The older Foolscap protocol is not supported.
//!
//! Nothing here prints, reads the environment or ends the process.
//!
//! ```
//! use std::sync::Arc;
//!
//! use fullbore_lafs::{Cap, Code, Encoding, Geometry, convergent_key, encode_whole};
//!
//! // Any 3 of 10 shares make the file; 7 of them must be on different servers.
//! let content = vec![7; 300_000];
//! let geometry = Geometry::new(Encoding::new(3, 7, 10)?, content.len() as u64, 128 << 10)?;
//! let key = convergent_key(&geometry, b"the secret of its users", &content);
//! let (chk, shares) = encode_whole(geometry, key, Arc::new(Code::new(3, 10)), &content)?;
//! assert_eq!(shares.len(), 10);
//! assert!(Cap::Chk(chk).to_text().starts_with("URI:CHK:"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod base32;
mod cap;
pub mod check;
mod cipher;
mod code;
mod contents;
pub mod directory;
mod download;
mod encode;
mod extension;
mod fault;
mod field;
pub mod gbs;
mod geometry;
pub mod get;
pub mod grid;
mod hash;
mod layout;
pub mod ls;
mod merkle;
pub mod mutable;
mod node;
mod nurl;
mod placement;
pub mod put;
mod secrets;
pub mod servers;
pub mod upload;
pub mod verdict;
mod yaml;

pub use cap::{Cap, CapError, Chk, Mutable, Verifier, storage_index};
pub use code::{Code, DecodeError};
pub use download::{Downloaded, Downloader, GetError};
pub use encode::{EncodeError, Encoder, Input, Original, convergent_key, encode_whole};
pub use extension::Extension;
pub use fault::TooFewShares;
pub use field::Kernel;
pub use geometry::{DEFAULT_SEGMENT_BYTES, Encoding, Geometry, GeometryError};
pub use layout::Layout;
pub use merkle::{Tree, proof_nodes};
pub use nurl::{Nurl, NurlError};
pub use secrets::LeaseSecrets;
