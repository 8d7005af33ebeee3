//! Report of publishing patches.

use serde::{Deserialize, Serialize};

/// Patches of one index (`pdiff publish`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IndexPatches {
    /// Path of the index below the directory.
    pub index: String,
    /// What the run did with the patches.
    #[serde(rename = "outcome")]
    pub what: PatchesChange,
    /// Number of old states from which a chain of patches leads to the present one.
    pub patches: u64,
    /// Number of old states from which a single patch leads to the present one.
    pub merged: u64,
    /// File name of the added patch, if one was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<String>,
    /// Size of the added patch as plain text, in bytes.
    pub patch_bytes: u64,
    /// Size of the added patch as served (compressed), in bytes.
    pub download_bytes: u64,
}

impl IndexPatches {
    /// Creates a row without figures.
    pub fn new(index: &str) -> IndexPatches {
        let what = PatchesChange::Unchanged;
        IndexPatches {
            index: index.to_owned(),
            what,
            patches: 0,
            merged: 0,
            added: None,
            patch_bytes: 0,
            download_bytes: 0,
        }
    }
}

/// What a run did with an index, as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PatchesChange {
    /// The index was seen for the first time.
    First,
    /// The index did not change.
    Unchanged,
    /// The index did not change, but its patches are listed in another form.
    Relisted,
    /// One patch was added.
    Extended,
    /// One new patch; older patches do not lead to the present state.
    Restarted,
    /// No patch leads to the present state.
    Whole,
}
