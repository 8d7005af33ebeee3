//! The engine under every command of fullbore: it moves bulk data and says
//! what limits it.
//!
//! A bounded [`window`] of permits keeps memory bounded; [`stage`] clocks say
//! where time goes; [`pipeline`] joins stages by timed channels; [`verdict`]
//! names the limit from the clocks and the kernel's counters. Files and
//! durability are here as well: one module creates files, one syncs.
//!
//! The engine never prints, never reads the environment, never exits.

/// The version of fullbore.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub mod buffers;
pub mod clock;
pub mod durability;
pub mod escape;
pub mod files;
pub mod filter;
pub mod journal;
pub mod landing;
pub mod machine;
pub mod memory;
pub mod memory_pool;
pub mod output;
pub mod pipeline;
pub mod random;
pub mod ranges;
pub mod run;
pub mod stage;
pub mod sys;
pub mod target;
pub mod temporary;
pub mod trace;
pub mod tree;
pub mod units;
pub mod verdict;
pub mod window;

// A crate of its own, so that the formats need no engine.
pub use fullbore_digest as digest;
