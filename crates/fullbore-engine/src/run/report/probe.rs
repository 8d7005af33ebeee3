//! The report section of a probe: the predicted limit and duration of a copy.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{PartRow, Summary};

/// Result of a probe: limit, prediction and measured figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProbeReport {
    /// The source, as the user named it.
    pub source: String,
    /// The destination, as the user named it.
    pub destination: String,
    /// Summary of the probed files and paths, in one line.
    pub probed: String,
    /// Description of the connections; empty on one machine.
    pub way: String,
    /// Parts of the copy, in the order of the data path.
    pub parts: Vec<PartRow>,
    /// Part that would limit the copy, by its name in `figures`; absent if two signals do not agree on one.
    pub bottleneck: Option<String>,
    /// The limit in words: `bottleneck: …`.
    pub found: String,
    /// Predicted duration of the copy, in words.
    pub takes: String,
    /// Predicted duration of the copy, in seconds.
    pub predicted_s: f64,
    /// Seconds that the copy would save without its limit.
    pub saves_s: Option<f64>,
    /// Suggestions with the time that each would save, one line each.
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
