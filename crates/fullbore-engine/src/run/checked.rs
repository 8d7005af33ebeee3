//! Result of checking one file of a grid, in the form of `--json`. It omits the file's cap, which grants the right to
//! read it.

use serde::{Deserialize, Serialize};

/// Result of checking one file of a grid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckedFile {
    /// Path below a directory, name in the list, or the kind of cap.
    pub path: String,
    /// Storage index of the shares, in base32; absent if the content is in the cap itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_index: Option<String>,
    /// Number of shares that a reader needs.
    pub needed: u64,
    /// Number of shares that should exist.
    pub total: u64,
    /// Number of different good shares found.
    pub shares: u64,
    /// Number of servers that hold a share.
    pub servers: u64,
    /// Servers of happiness: how many servers hold different shares.
    pub happiness: u64,
    /// Whether all shares exist, on as many servers as the node requires.
    pub healthy: bool,
    /// Whether enough shares exist to read the file.
    pub recoverable: bool,
    /// Damaged shares, one line each.
    pub damaged: Vec<String>,
    /// Number of servers that renewed the leases on the file's shares (`--renew`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<u64>,
    /// Number of shares that were rebuilt and uploaded (`--repair`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_shares: Option<u64>,
    /// The result as a sentence.
    pub message: String,
    /// Whether the program prints the file even if it is healthy, because it is an argument.
    #[serde(skip)]
    pub is_shown: bool,
}
