//! The section of a probe: what a copy would be limited by, and how long it would take.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{PartRow, Summary};

/// What a probe found: limit, prediction, all figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProbeReport {
    /// The source, as the user named it.
    pub source: String,
    /// The destination, as the user named it.
    pub destination: String,
    /// What was looked at, in one line.
    pub probed: String,
    /// The connections used, in words; empty on one machine.
    pub way: String,
    /// The parts of the copy, in the order in which a byte meets them.
    pub parts: Vec<PartRow>,
    /// The part that would limit, by its name in `figures`; none if two signals do not agree on one.
    pub bottleneck: Option<String>,
    /// The limit in words: `bottleneck: …`.
    pub found: String,
    /// How long the copy would take, in words.
    pub takes: String,
    /// Seconds that the copy would take.
    pub predicted_s: f64,
    /// Seconds that the copy would take less without its limit.
    pub saves_s: Option<f64>,
    /// What would help, and what it would save; one line each.
    pub advice: Vec<String>,
    /// All figures that the probe measured.
    pub figures: serde_json::Value,
    /// How the probe found the limit.
    pub finding: serde_json::Value,
    /// How the probe calculated the predicted time.
    pub prediction: serde_json::Value,
}

impl ProbeReport {
    pub(super) fn sentence(&self, _: &Summary, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.probed)
    }
}
