//! Measures each part of a copy before the copy: source, processors, network and destination, first alone, then
//! together.
//!
//! Two `End`s carry out requests; `conduct` runs on one of them and returns `Figures`. `predict` computes how long the
//! copy will take, `find` names the part that limits it. Content takes the same queues, connections, hashes
//! and acknowledgements as in a copy. Files that the probe writes have no names.

mod compute;
mod conduct;
pub(crate) mod disks;
mod end;
mod extent;
mod finding;
mod flow;
mod kernel;
mod prediction;
mod read;
mod report;
mod run;
mod tree;
mod words;
mod write;

pub(crate) use conduct::conduct;
pub(crate) use conduct::{Connections, Figures, Joint, Trial, TrialSettings};
pub(crate) use disks::{DiskFacts, Disks, Trouble};
pub(crate) use end::{End, Means};
pub(crate) use extent::Basis;
pub(crate) use finding::Finding;
pub(crate) use finding::find;
pub(crate) use flow::Flow;
pub(crate) use prediction::predict;
pub(crate) use prediction::{Part, Prediction};
pub(crate) use read::{Class, Rate};
pub(crate) use run::serve;
pub use run::{ProbeSettings, run};
pub use words::{Request, Word};
