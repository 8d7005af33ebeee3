//! What publishing patches did.

use serde::{Deserialize, Serialize};

/// What became of the patches of one index (`pdiff publish`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IndexPatches {
    /// Path of the index below the directory.
    pub index: String,
    /// What the run did with the patches of the index.
    #[serde(rename = "outcome")]
    pub what: PatchesChange,
    /// States from which a chain of patches leads to the present one.
    pub patches: u64,
    /// States from which one patch does.
    pub merged: u64,
    /// File name of the patch that was added, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<String>,
    /// Size of the added patch as plain text, in bytes.
    pub patch_bytes: u64,
    /// Its size as it is served.
    pub download_bytes: u64,
}

impl IndexPatches {
    /// Makes a row for an index, without figures yet.
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

/// What became of an index, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PatchesChange {
    /// Seen for the first time.
    First,
    /// As it was.
    Unchanged,
    /// As it was, but its patches are offered in another way.
    Relisted,
    /// One more patch.
    Extended,
    /// One patch; those before do not lead to it.
    Restarted,
    /// No patch leads to it.
    Whole,
}
