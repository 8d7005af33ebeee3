//! What limited a run to a grid or to a store, and why that is thought.

/// A part is named when it was at work for so much of the time.
pub const NAMED: f64 = 0.6;

/// Processors are full.
pub const PROCESSOR_FULL: f64 = 0.9;

/// No single part.
pub const MIXED: &str = "mixed";
/// A run that did nothing.
pub const NOTHING: &str = "nothing in particular";

/// Whether this names a single part.
pub fn is_confident(limit: &str) -> bool {
    limit != MIXED && limit != NOTHING
}

/// A part, as people say it.
pub fn percent(part: f64) -> f64 {
    (part * 100.0).round().clamp(0.0, 100.0)
}

/// What limited a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The part: "server s3 (turn-around)".
    pub limit: String,
    /// Why it is thought to be that: "busy 91 % of the time".
    pub reason: String,
    /// A single part could be named.
    pub confident: bool,
    /// All parts, and the share of the time that each was at work; the largest first.
    pub shares: Vec<(String, f64)>,
    /// Measured facts, one line each.
    pub evidence: Vec<String>,
    /// What would help; may be empty.
    pub advice: String,
}
