//! A client for S3 and for stores that speak its protocol: puts and gets of objects, whole or in parts.
//!
//! [`Client`] sends signed requests over warm, pipelined connections, and repeats them where that is safe. [`Uploader`]
//! puts bytes, files and pipes; [`download()`] gets an object by ranges, in order and verified by the store's checksum.
//! [`put`], [`get`] and [`ls`] are the commands of fullbore: trees of files into a bucket, objects out of it.
//! [`source`] signs the requests of fullbore-wire's fetcher for archives in buckets.
//!
//! The crate is not a general SDK: it creates no buckets, sets no policies and reads no settings files by itself. The
//! caller passes credentials, addresses and bounds. Nothing here prints, reads the environment or ends the process.
//!
//! ```no_run
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use fullbore_engine::digest::Sha256;
//! use fullbore_engine::window::Window;
//! use fullbore_s3::objects::Condition;
//! use fullbore_s3::{Addressing, Bucket, Client, CredentialCache, Options, Uploader};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let bucket = Bucket::new("films", Some("http://127.0.0.1:9000"), "us-east-1", Addressing::Path)?;
//! let (_stop, stopped) = tokio::sync::watch::channel(false);
//! let client = Client::new(bucket, CredentialCache::anonymous(), Options::new(Duration::from_secs(30)), stopped);
//! // 64 MiB of content and 100 objects in flight.
//! let uploader = Uploader::new(client, Window::new(64 << 20, 100), Path::new("/var/tmp"));
//! let content = bytes::Bytes::from_static(b"content");
//! let hash = Sha256::of(&content);
//! uploader.put_whole("a/key", Vec::new(), content, hash, &Condition::None).await?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod address;
pub mod bucket;
mod checksum;
mod client;
mod compare;
pub mod credentials;
mod dialect;
mod download;
mod gather;
pub mod get;
mod journal;
mod key;
mod layout;
mod listing;
pub mod lock;
pub mod ls;
mod mtime;
pub mod objects;
mod open_uploads;
mod parts;
pub mod put;
mod remove;
mod sign;
pub mod source;
mod spool;
pub mod target;
mod upload;
pub mod verdict;
mod work;
mod xml;

pub use address::{Addressing, Bucket, Location, SCHEME};
pub use checksum::{Algorithm, Hasher};
pub use client::{Answer, Body, Call, CallError, Client, Options};
pub use compare::md5_hex;
pub use credentials::CredentialCache;
pub use dialect::{Dialect, Feature, Support};
pub use download::{DownloadError, Downloaded, get as download};
pub use parts::{Growth, WHOLE_BYTES_MAX};
pub use put::content_type;
pub use upload::{PutOutcome, Stored, UploadError, Uploader};

/// Parsers of outside input, for fuzz targets.
#[doc(hidden)]
pub mod parsers {
    pub use crate::credentials::config::{Kind, Sections};
    pub use crate::journal::Leftovers;
    pub use crate::key::{decode_listed, encode_path};
    pub use crate::put::unchanged::Table;
    pub mod xml {
        pub use crate::xml::*;
    }
}
