//! A pinned plan: the files that a store lacks, in one object that all workers of a run read.
//!
//! The object has a line of JSON and a list of files (see `records`), each compressed by zstd. The name of a run is the
//! beginning of the plan's SHA-256, so a changed plan is noticed by whoever knows the name. Paths, sizes and numbers
//! are checked again nevertheless.

use std::io::Read as _;

use fullbore_engine::digest::Sha256;
use fullbore_fleet::message::{Item, MessageError};
use fullbore_fleet::names::{NameError, RunId};
use fullbore_wire::run::address;
use serde::{Deserialize, Serialize};

use crate::mirror::records::{Record, RecordReader, RecordWriter};

/// Version of the format.
const VERSION: u32 = 1;

/// Number of hexadecimal digits in a run's name: 128 bits, so that nobody can find another plan with the same name.
const NAME_DIGITS: usize = 32;

/// Maximum size of the first line, in bytes. A list of mirrors and the names of suites take some kB.
const HEADER_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of files in a plan. Debian with all its architectures and a year's versions has about two million.
const FILES_MAX: u64 = 1 << 24;

/// Maximum number of mirrors in a plan, as in a run of a queue.
const HOSTS_MAX: usize = 256;

/// Maximum number of connections to one mirror, as in `--connections`.
const CONNECTIONS_MAX: u32 = 16;

/// Directory of plans, relative to the mirror's prefix.
pub const RUNS_DIRECTORY: &str = ".fullbore/runs";

/// Values in the field for memberships.
const MISSING: u32 = 0;
const PRESENT: u32 = 1;

/// Path of a run's plan.
pub fn plan_path(run: &RunId) -> String {
    format!("{RUNS_DIRECTORY}/{run}/plan.zst")
}

/// Run of a plan's path; `None` for another path.
pub fn run_of(path: &str) -> Option<RunId> {
    let (run, name) = path.strip_prefix(RUNS_DIRECTORY)?.strip_prefix('/')?.split_once('/')?;
    if name == "plan.zst" { RunId::parse(run).ok() } else { None }
}

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinnedError {
    /// The content does not match the name of the run.
    #[error("its content belongs to the run {actual}: it was changed, or is damaged")]
    Changed {
        /// Name of the run that this content belongs to.
        actual: RunId,
    },
    /// A later version wrote the plan.
    #[error("it has version {found}, this fullbore knows up to {VERSION}")]
    Newer {
        /// Version of the plan.
        found: u32,
    },
    /// The plan belongs to another mirror.
    #[error("it is for the mirror {mirror}, not for {here}")]
    OtherMirror {
        /// Address of the plan's mirror.
        mirror: String,
        /// Address of this run's mirror.
        here: String,
    },
    /// A number exceeds its limit.
    #[error("{field} is {value}, which is more than {most}")]
    Bound {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// Maximum value of the field.
        most: u64,
    },
    /// The address of a mirror cannot be used.
    #[error("a mirror of it cannot be used: {0}")]
    Host(String),
    /// A file that no worker may store.
    #[error(transparent)]
    File(#[from] MessageError),
    /// The plan cannot be decompressed or read.
    #[error("it is damaged: {0}")]
    Damaged(#[from] std::io::Error),
    /// The first line is not JSON of this format.
    #[error("it is damaged: {0}")]
    Header(#[from] serde_json::Error),
    /// A name that is not valid for a run.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// Facts about a run that workers need, besides its files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub(super) v: u32,
    /// Address of the mirror: `s3://BUCKET/PREFIX`.
    pub mirror: String,
    /// Addresses of the archive, without credentials.
    pub hosts: Vec<String>,
    /// Maximum number of connections to each mirror, for all workers together.
    pub connections: u32,
    /// Rate limit for all workers together, in bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_s: Option<u64>,
    /// `Cache-Control` of names that change (RFC 9111); `None` for the default of a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<String>,
    /// Time at which the plan was made, Unix seconds by the planner's clock. For information only.
    #[serde(default)]
    pub made_at: i64,
    /// Host name of the planner, for information only.
    #[serde(default)]
    pub planner: String,
    /// Number of files in the list.
    pub(super) files: u64,
}

/// A plan, as parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Facts about the run.
    pub header: Header,
    /// Files that the store lacks, in order of path.
    pub missing: Vec<Item>,
    /// Files that the store has although no published suite names them. They must not be deleted during the run.
    pub present: Vec<Item>,
}

impl Pinned {
    /// Makes the object of a plan, and the name of its run. The files must be in order of path, and must have passed
    /// [`Item::check`].
    ///
    /// # Errors
    /// [`PinnedError`] for too many files, or files out of order.
    pub fn to_bytes(&self) -> Result<(RunId, Vec<u8>), PinnedError> {
        let files = (self.missing.len() + self.present.len()) as u64;
        bounded("the number of files", files, FILES_MAX)?;
        let header = Header { v: VERSION, files, ..self.header.clone() };
        let mut line = serde_json::to_vec(&header)?;
        line.push(b'\n');
        let mut writer = RecordWriter::new(zstd::encode_all(line.as_slice(), 0)?)?;
        let (mut missing, mut present) = (self.missing.iter().peekable(), self.present.iter().peekable());
        loop {
            let is_missing = match (missing.peek(), present.peek()) {
                (Some(missing), Some(present)) => missing.path < present.path,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => break,
            };
            let next = if is_missing { missing.next() } else { present.next() };
            let Some(Item { path, size, sha256 }) = next else { break };
            let membership = if is_missing { MISSING } else { PRESENT };
            writer.write(Record { path, size: *size, sha256: *sha256, membership })?;
        }
        let (_, bytes) = writer.finish()?;
        Ok((name_of(&bytes)?, bytes))
    }

    /// Reads the plan of a run for the mirror `here`.
    ///
    /// # Errors
    /// [`PinnedError::Changed`] if the content does not match the run. Other variants of [`PinnedError`] for another
    /// mirror, a later version, or a damaged plan.
    pub fn read(bytes: &[u8], run: &RunId, here: &str) -> Result<Pinned, PinnedError> {
        let actual = name_of(bytes)?;
        if actual != *run {
            return Err(PinnedError::Changed { actual });
        }
        let mut first = zstd::Decoder::with_buffer(bytes)?.single_frame();
        let mut line = Vec::new();
        first.by_ref().take(HEADER_BYTES_MAX + 1).read_to_end(&mut line)?;
        bounded("the length of the first line", line.len() as u64, HEADER_BYTES_MAX)?;
        let list = first.finish();
        // In a plan of another version, only this field is known.
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let Version { v } = serde_json::from_slice(&line)?;
        if v > VERSION {
            return Err(PinnedError::Newer { found: v });
        }
        let header: Header = serde_json::from_slice(&line)?;
        if header.mirror != here {
            return Err(PinnedError::OtherMirror { mirror: header.mirror, here: here.to_owned() });
        }
        bounded("the number of files", header.files, FILES_MAX)?;
        bounded("the number of mirrors", header.hosts.len() as u64, HOSTS_MAX as u64)?;
        bounded("the number of connections", header.connections.into(), CONNECTIONS_MAX.into())?;
        for host in &header.hosts {
            let checked = address(host).map_err(|error| PinnedError::Host(error.to_string()))?;
            if checked != *host {
                return Err(PinnedError::Host(format!("{host:?} should be {checked:?}")));
            }
        }
        let mut records = RecordReader::new(list, header.files, PRESENT + 1)?;
        let (mut missing, mut present) = (Vec::new(), Vec::new());
        while let Some(record) = records.next()? {
            let file = Item { path: record.path.to_owned(), size: record.size, sha256: record.sha256 };
            file.check()?;
            if record.membership == MISSING { missing.push(file) } else { present.push(file) }
        }
        Ok(Pinned { header, missing, present })
    }
}

fn name_of(bytes: &[u8]) -> Result<RunId, NameError> {
    let mut name = Sha256::of(bytes).to_string();
    name.truncate(NAME_DIGITS);
    RunId::parse(&name)
}

fn bounded(field: &'static str, value: u64, most: u64) -> Result<(), PinnedError> {
    if value > most { Err(PinnedError::Bound { field, value, most }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HERE: &str = "s3://bucket/debian";

    fn file(path: &str, size: u64) -> Item {
        Item { path: path.to_owned(), size, sha256: Sha256::of(path.as_bytes()) }
    }

    fn pinned() -> Pinned {
        let hosts = vec!["https://a.example/debian".to_owned()];
        Pinned {
            header: Header { mirror: HERE.to_owned(), hosts, connections: 4, ..Header::default() },
            missing: vec![file("pool/a", 1), file("pool/c", 0)],
            present: vec![file("pool/b", 1 << 30)],
        }
    }

    /// Some plan's object under the name that it has.
    fn reads(bytes: &[u8]) -> Result<Pinned, PinnedError> {
        Pinned::read(bytes, &name_of(bytes).unwrap(), HERE)
    }

    /// An object with this first line and these records.
    fn object(line: &str, files: &[(&str, u64, u32)]) -> Vec<u8> {
        let mut writer = RecordWriter::new(zstd::encode_all(line.as_bytes(), 0).unwrap()).unwrap();
        for (path, size, membership) in files {
            let sha256 = Sha256::of(path.as_bytes());
            writer.write(Record { path, size: *size, sha256, membership: *membership }).unwrap();
        }
        writer.finish().unwrap().1
    }

    fn line(change: (&str, &str)) -> String {
        let line = format!(
            "{{\"v\":1,\"mirror\":\"{HERE}\",\"hosts\":[\"https://a/debian\"],\"connections\":4,\"files\":1}}\n"
        );
        assert!(change.0.is_empty() || line.contains(change.0), "{change:?}");
        line.replace(change.0, change.1)
    }

    #[test]
    fn what_is_pinned_is_read() {
        let (run, bytes) = pinned().to_bytes().unwrap();
        let read = Pinned::read(&bytes, &run, HERE).unwrap();
        assert_eq!((read.missing, read.present), (pinned().missing, pinned().present));
        assert_eq!(read.header.hosts, pinned().header.hosts);
        assert_eq!(run_of(&plan_path(&run)), Some(run));
        for other in
            [".fullbore/runs/a/b/plan.zst", ".fullbore/runs/a/plan", ".fullbore/state", ".fullbore/runs/A/plan.zst"]
        {
            assert_eq!(run_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_plan_that_was_changed_is_noticed() {
        let (run, bytes) = pinned().to_bytes().unwrap();
        let other = Pinned { missing: vec![file("pool/evil", 1)], ..pinned() }.to_bytes().unwrap().1;
        assert!(matches!(Pinned::read(&other, &run, HERE), Err(PinnedError::Changed { .. })));
        let error = Pinned::read(&bytes[..bytes.len() - 1], &run, HERE).unwrap_err();
        assert!(error.to_string().contains("changed"), "{error}");
    }

    #[test]
    fn a_plan_of_another_mirror_or_version_is_refused_in_words() {
        let refused = |change| reads(&object(&line(change), &[("pool/a", 1, 0)])).unwrap_err().to_string();
        assert!(reads(&object(&line(("", "")), &[("pool/a", 1, 0)])).is_ok());
        let error = refused(("bucket/debian", "bucket/ubuntu"));
        assert_eq!(error, "it is for the mirror s3://bucket/ubuntu, not for s3://bucket/debian");
        assert_eq!(refused(("\"v\":1", "\"v\":2")), "it has version 2, this fullbore knows up to 1");
        assert_eq!(reads(&object("{\"v\":3}", &[])).unwrap_err().to_string(), refused(("\"v\":1", "\"v\":3")));
    }

    /// F18
    #[test]
    fn a_hostile_plan_is_refused() {
        for change in [
            ("https://a/debian", "file:///etc"),
            ("https://a/debian", "https://a/debian/"),
            ("\"connections\":4", "\"connections\":1000"),
            ("\"files\":1", "\"files\":99999999999"),
            ("\"files\":1", "\"files\":2"),
            ("\"files\":1", "\"files\":0"),
            ("\"files\":1", "\"files\":-1"),
        ] {
            assert!(reads(&object(&line(change), &[("pool/a", 1, 0)])).is_err(), "{change:?}");
        }
        for path in
            ["../x", "/etc/passwd", "pool/../x", ".fullbore/state", "dists/sid/InRelease", "InRelease", "pool/.x"]
        {
            assert!(matches!(reads(&object(&line(("", "")), &[(path, 1, 0)])), Err(PinnedError::File(_))), "{path}");
        }
        assert!(reads(&object(&line(("", "")), &[("pool/a", u64::MAX >> 1, 0)])).is_err());
        assert!(reads(&object(&line(("", "")), &[("pool/a", 1, 2)])).is_err());
        // A first line that grows while it is decompressed.
        let long = format!("{}{}", line(("", "")).trim_end(), " ".repeat(2 << 20));
        assert!(matches!(reads(&object(&long, &[("pool/a", 1, 0)])), Err(PinnedError::Bound { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = reads(&bytes);
            let mut framed = zstd::encode_all(line(("", "")).as_bytes(), 0).unwrap();
            framed.extend(zstd::encode_all(bytes.as_slice(), 0).unwrap());
            let _ = reads(&framed);
        }
    }
}
