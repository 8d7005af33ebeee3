//! Measures the parts of a copy before it: source, processors, network, destination; alone, then together.
//!
//! Two [`End`]s do what they are ordered; one of them is conducted by [`conduct`], which gives [`Figures`].
//! [`predict`] says what the copy will take, [`find`] which part holds it up. Content goes by the queues,
//! connections, hashes and acknowledgements of a copy; nothing that is written has a name.

mod compute;
mod conduct;
mod disks;
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
