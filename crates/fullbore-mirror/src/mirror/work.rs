//! Workers: machines that fetch files of a mirror in a bucket for a planner on another machine.
//!
//! A worker stores verified files of the pool, and nothing else: it has no lock, writes no state, and publishes no
//! name. [`shard::run`] is a worker of a pinned plan ([`pinned`]), which needs no broker. Only the store tells which
//! files are done.

pub mod feed;
mod landing;
pub mod pinned;
pub(crate) mod pins;
pub mod session;
pub mod shard;
pub(crate) mod stored;

pub use fullbore_fleet::message::Item;
pub use fullbore_fleet::names::RunId;
pub use fullbore_fleet::shards::Shard;
