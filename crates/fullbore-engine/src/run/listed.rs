//! One entry of a listed directory, in the form of `--json`.

use serde::{Deserialize, Serialize};

/// Kind of a listed entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ListedKind {
    /// A file.
    #[default]
    File,
    /// A directory.
    Directory,
    /// An entry of a kind that this version does not know.
    Unknown,
}

/// One entry of a listed directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedEntry {
    /// Name of the entry in its directory.
    pub name: String,
    /// Kind of the entry.
    pub kind: ListedKind,
    /// Size in bytes, if it is known without reading the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Modification time, Unix time in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_unix_s: Option<i64>,
    /// Whether the entry can be changed by its owner.
    pub mutable: bool,
}
