//! Workers: machines that fetch files of a mirror in a bucket for a planner elsewhere.
//!
//! A worker stores verified files of the pool, and nothing else: it has no lock, writes no state, and publishes no name.

pub mod feed;
mod landing;
pub mod session;
