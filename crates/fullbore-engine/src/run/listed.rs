//! An entry of a directory that is listed, as `--json` has it.

use serde::{Deserialize, Serialize};

/// What an entry is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ListedKind {
    /// A file.
    #[default]
    File,
    /// A directory.
    Directory,
    /// Something that this version does not understand.
    Unknown,
}

/// One entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedEntry {
    /// Its name in the directory.
    pub name: String,
    /// What it is.
    pub kind: ListedKind,
    /// Its size in bytes, where it is known without reading it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// When it was last modified, Unix time in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_unix_s: Option<i64>,
    /// Whether its owner can change it.
    pub mutable: bool,
}
