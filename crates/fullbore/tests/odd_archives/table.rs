//! How far APT, `mirror` and `update` get with each odd archive.

/// How far a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// All packages, and exit code 0.
    Whole,
    /// Some packages, or another exit code.
    Part,
    /// No package.
    Refused,
}

/// A line of the table.
pub struct Line {
    pub name: &'static str,
    pub apt: Is,
    pub mirror: Is,
    pub update: Is,
    /// Why ours differ from APT; empty where they do not.
    pub why: &'static str,
}

pub const TABLE: &[Line] = &[];
