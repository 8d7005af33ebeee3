//! The verdict: what limited a run.
pub(crate) mod cpu;
