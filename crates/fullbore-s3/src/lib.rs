//! Objects in S3 and the stores that speak like it: a client, uploads and downloads.
//!
//! [`client`] carries requests: signed by [`sign`] with what [`credentials`] finds, over warm connections of our
//! wire, repeated where that is safe. [`upload`] puts objects, whole or in parts; [`download`] gets them by
//! ranges; [`listing`] says what is there. [`xml`] reads what servers answer, within bounds.
//!
//! [`put`] and [`get`] are the walks of the commands: trees of files into a [`bucket`], an object out of it.
//!
//! Nothing here prints, reads the environment or ends the process.

#![forbid(unsafe_code)]

pub mod address;
pub mod bucket;
pub mod checksum;
pub mod client;
pub mod compare;
pub mod conditions;
pub mod credentials;
pub mod download;
pub mod gather;
pub mod get;
pub mod journal;
pub mod key;
pub mod layout;
pub mod listing;
pub mod open_uploads;
pub mod parts;
pub mod put;
pub mod remove;
pub mod sign;
pub mod spool;
pub mod upload;
pub mod verdict;
pub mod work;
pub mod xml;
