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

pub use compute::{Compress, Compute};
pub(crate) use conduct::conduct;
pub use conduct::{Connections, Figures, Joint, Trial, TrialSettings};
pub use disks::{DiskFacts, Disks, Reading, Trouble, Used};
pub use end::{End, Means};
pub use extent::Basis;
pub use finding::Finding;
pub(crate) use finding::find;
pub use flow::{Flow, Landed, PathFacts};
pub(crate) use prediction::predict;
pub use prediction::{Part, Prediction};
pub use read::{Class, Rate, ReadFigures};
pub(crate) use run::serve;
pub use run::{ProbeSettings, run};
pub use tree::Tree;
pub use words::{Answer, Request, SinkMode, SourceMode, Word};
pub use write::WriteFigures;
