//! The frame of a run, shared by all commands: progress events, errors, and the report at the end.
//!
//! A command takes its settings and an [`Events`] receiver for its progress, and returns a [`Report`] or a
//! [`CommandError`]. It prints nothing: its caller renders all three.

pub mod checked;
pub mod costs;
pub mod error;
pub mod events;
pub mod heard;
pub mod list;
pub mod listed;
pub mod named_files;
pub mod pace;
pub mod queue_status;
pub mod report;
pub mod signals;
pub mod sink;
pub mod stop;
pub mod store_failure;
pub mod stored;

pub use error::{CommandError, ErrorKind};
pub use events::{Event, Events, Phase, Plan, Progress};
pub use pace::{Counts, Pace};
pub use report::{Report, Summary, Timeline};
pub use stop::{Stop, interruption, stopped};
pub use store_failure::StoreFailure;
pub use stored::StoredFile;

pub use crate::units;
