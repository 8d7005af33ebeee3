//! A file of a grid that was checked, as `--json` has it. Its cap is not in it: that is the right to read it.

use serde::{Deserialize, Serialize};

/// Where the shares of one file are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckedFile {
    /// What the file is called: its path below a directory, its name in the list, or which cap it was.
    pub path: String,
    /// What servers know its shares by, in base32; none if its content is in its cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_index: Option<String>,
    /// Shares that a reader needs.
    pub needed: u64,
    /// Shares that there should be.
    pub total: u64,
    /// Different good shares that there are.
    pub shares: u64,
    /// Servers that hold some of them.
    pub servers: u64,
    /// Servers that hold different shares: how many a reader may lose one after the other.
    pub happiness: u64,
    /// Whether all shares are there, and on as many servers as the node wants.
    pub healthy: bool,
    /// Whether the file can be read.
    pub recoverable: bool,
    /// Damaged shares, one line each.
    pub damaged: Vec<String>,
    /// Servers that renewed the leases on its shares (`--renew`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<u64>,
    /// Shares that were made again (`--repair`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_shares: Option<u64>,
    /// The same in words.
    pub message: String,
    /// Whether people read of it even if it is healthy: it is one of the arguments.
    #[serde(skip)]
    pub is_shown: bool,
}
