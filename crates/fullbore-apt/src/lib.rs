//! APT's files and protocols: updating its lists directory, publishing index patches, and acquire methods that APT
//! starts instead of its own.
//!
//! | module | for |
//! |---|---|
//! | [`update`] | the lists directory, as `apt-get update` keeps it; patches where they are faster |
//! | [`pdiff`] | patches of indexes: generated, merged, published beside an archive's indexes |
//! | [`acquire`] | the protocol between APT and its methods, and APT's configuration |
//! | [`http`], [`rred`] | two acquire methods: files from several mirrors at once, and patched indexes |
//! | [`rewrite`], [`frames`] | one pass over an index, which copies unchanged compressed frames |
//! | [`signed_release`] | the signed Release of a suite: fetched and verified |
//! | [`lists`], [`system`] | names and targets of indexes; configuration, sources and keyrings of this machine |
//!
//! The crate prints nothing and reads no environment variable. Methods use the reader and the writer that they are
//! given.
//!
//! ```
//! use fullbore_apt::acquire::Configuration;
//!
//! let dump = "APT::Architecture \"amd64\";\nAcquire::Languages:: \"de\";\nAcquire::Languages:: \"en\";\n";
//! let configuration = Configuration::from_dump(dump)?;
//! assert_eq!(configuration.get("apt::architecture"), Some("amd64"));
//! assert_eq!(configuration.list("Acquire::Languages"), ["de", "en"]);
//! # Ok::<(), fullbore_apt::acquire::ConfigurationError>(())
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod accepted_keys;
pub mod acquire;
mod dates;
pub mod frames;
pub mod http;
pub mod lists;
pub mod pdiff;
pub mod rewrite;
pub mod rred;
pub mod signed_release;
pub mod system;
pub mod update;
