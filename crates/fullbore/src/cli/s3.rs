//! The flags of `put` and `get` that are about S3 stores.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::settings::values::Percent;

pub(super) const STORE: &str = "S3 store";
const OBJECTS: &str = "How objects are stored";
const WHICH: &str = "Which objects";

/// Where buckets stand in addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum AddressingChoice {
    /// In the path for an --endpoint, in the host name otherwise
    #[default]
    Auto,
    /// <https://host/bucket/key>
    Path,
    /// <https://bucket.host/key>
    Virtual,
}

/// What a mirror in a bucket has under the other names of its suites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aliases {
    /// Copies of the indexes
    Copy,
    /// No aliases
    None,
}

/// What keeps two runs over one bucket apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreLock {
    /// An object in the bucket
    Bucket,
    /// No lock; for stores without conditional writes
    None,
}

/// Which store has a bucket.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Use the S3-compatible store at this URL instead of Amazon's
    #[arg(long, value_name = "URL", help_heading = STORE)]
    pub endpoint: Option<String>,

    /// Region of the bucket (default: AWS_REGION, the profile's, or us-east-1)
    #[arg(long, value_name = "NAME", help_heading = STORE)]
    pub region: Option<String>,

    /// Take credentials and settings from this profile of ~/.aws/config and ~/.aws/credentials
    #[arg(long, value_name = "NAME", help_heading = STORE)]
    pub profile: Option<String>,
}

/// Which store, and how it is reached.
#[derive(Debug, Args)]
pub struct S3Args {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArgs,

    /// How URLs contain the bucket
    #[arg(long, value_enum, value_name = "STYLE", help_heading = STORE, default_value_t, hide_possible_values = false)]
    pub addressing: AddressingChoice,

    /// Do not sign requests; for public buckets
    #[arg(long, help_heading = STORE, conflicts_with = "profile")]
    pub no_sign_request: bool,

    /// Trust the certificates in this file in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = STORE)]
    pub cacert: Option<PathBuf>,

    /// Open at most NUMBER connections to the store [default: 64]
    #[arg(long, value_name = "NUMBER", help_heading = STORE, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub connections: Option<u16>,
}

impl S3Args {
    /// Whether any of them was given.
    pub fn any(&self) -> bool {
        self.store.endpoint.is_some()
            || self.store.region.is_some()
            || self.store.profile.is_some()
            || self.addressing != AddressingChoice::Auto
            || self.no_sign_request
            || self.cacert.is_some()
            || self.connections.is_some()
    }
}

/// Requirements on downloaded objects.
#[derive(Debug, Args)]
pub struct S3GetArgs {
    /// Fail with exit code 4 if no checksum of the store verifies the object; write nothing
    #[arg(long, help_heading = STORE)]
    pub require_checksum: bool,
}

/// How objects are uploaded.
#[derive(Debug, Args)]
pub struct S3PutArgs {
    /// Content-Type of all objects (default: by file name)
    #[arg(long, value_name = "TYPE", help_heading = OBJECTS)]
    pub content_type: Option<String>,

    /// Cache-Control of all objects, such as max-age=300
    #[arg(long, value_name = "VALUE", help_heading = OBJECTS)]
    pub cache_control: Option<String>,

    /// Metadata of all objects; repeat for more
    #[arg(long, value_name = "NAME=VALUE", help_heading = OBJECTS)]
    pub metadata: Vec<String>,

    /// Storage class, such as STANDARD_IA
    #[arg(long, value_name = "CLASS", help_heading = OBJECTS)]
    pub storage_class: Option<String>,

    /// Canned access control list, such as public-read
    #[arg(long, value_name = "ACL", help_heading = OBJECTS)]
    pub acl: Option<String>,

    /// Encryption by the store: AES256, aws:kms or aws:kms:KEY-ID
    #[arg(long, value_name = "HOW", help_heading = OBJECTS)]
    pub sse: Option<String>,

    /// Upload matching files after all others; each further --last comes after the one before
    ///
    /// Patterns are rsync's. They match the path below the uploaded directory: `dists/***`, `InRelease`.
    #[arg(long, value_name = "GLOB", help_heading = WHICH)]
    pub last: Vec<String>,

    /// Upload all files, even if the store has the same content
    #[arg(long, help_heading = WHICH, alias = "resend")]
    pub overwrite: bool,

    /// Read and compare all files, even those that have not changed since an earlier run
    #[arg(long, help_heading = WHICH)]
    pub checksum: bool,

    /// Once all files are uploaded, delete objects below the prefix that are not among them
    #[arg(long, help_heading = WHICH)]
    pub delete: bool,

    /// Delete nothing if more than this share of the objects would go [default: 40%]
    #[arg(long, value_name = "PERCENT", help_heading = WHICH, requires = "delete")]
    pub max_delete: Option<Percent>,

    /// Delete even if --max-delete is exceeded
    #[arg(long, help_heading = WHICH, requires = "delete")]
    pub force_delete: bool,
}

impl S3PutArgs {
    /// Whether any of them was given.
    pub fn any(&self) -> bool {
        let S3PutArgs { content_type, cache_control, storage_class, acl, sse, .. } = self;
        [content_type, cache_control, storage_class, acl, sse].iter().any(|value| value.is_some())
            || !(self.metadata.is_empty() && self.last.is_empty())
            || self.overwrite
            || self.checksum
            || self.delete
    }
}
