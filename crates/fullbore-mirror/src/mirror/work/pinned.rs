//! A pinned plan: the files that a store lacks, in one object that every worker of a run reads.
//!
//! The object is a line of JSON and a list of files ([`records`](crate::mirror::records)), each compressed by zstd. The
//! name of a run is the beginning of the plan's SHA-256, so whoever knows the name notices a changed plan. Everything
//! in it is checked again all the same: paths, sizes, numbers.

use std::io::Read as _;

use fullbore_engine::digest::Sha256;
use fullbore_fleet::message::{Item, MessageError};
use fullbore_fleet::names::{NameError, RunId};
use fullbore_wire::run::address;
use serde::{Deserialize, Serialize};

use crate::mirror::records::{Record, RecordReader, RecordWriter};

/// Version of the format.
const VERSION: u32 = 1;

/// Hexadecimal digits of a run's name: 128 bits, so that nobody finds another plan of this name.
const NAME_DIGITS: usize = 32;

/// Largest first line. A list of mirrors and the names of suites have some kB.
const HEADER_BYTES_MAX: u64 = 1 << 20;

/// Most files of a plan: Debian with all its architectures and versions of a year has some two million.
const FILES_MAX: u64 = 1 << 24;

/// Most mirrors of a plan, as of a run of a queue.
const HOSTS_MAX: usize = 256;

/// Most connections to one mirror, as `--connections` has it.
const CONNECTIONS_MAX: u32 = 16;

/// Directory of the plans below the mirror's prefix.
pub const RUNS_DIRECTORY: &str = ".fullbore/runs";

/// Numbers in the place of memberships.
const MISSING: u32 = 0;
const PRESENT: u32 = 1;

/// The path of a run's plan.
pub fn plan_path(run: &RunId) -> String {
    format!("{RUNS_DIRECTORY}/{run}/plan.zst")
}

/// The run of such a path.
pub fn run_of(path: &str) -> Option<RunId> {
    let (run, name) = path.strip_prefix(RUNS_DIRECTORY)?.strip_prefix('/')?.split_once('/')?;
    if name == "plan.zst" { RunId::parse(run).ok() } else { None }
}

/// A plan that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinnedError {
    /// Its content is not what its name says.
    #[error("its content is that of the run {actual}: it was changed, or is damaged")]
    Changed {
        /// The name that this content has.
        actual: RunId,
    },
    /// Written by a later version.
    #[error("it has version {found}, this fullbore knows up to {VERSION}")]
    Newer {
        /// Its version.
        found: u32,
    },
    /// Of another mirror.
    #[error("it is for the mirror {mirror}, not for {here}")]
    OtherMirror {
        /// The mirror of the plan.
        mirror: String,
        /// The mirror of this run.
        here: String,
    },
    /// Numbers out of their bounds.
    #[error("{field} is {value}, which is more than {most}")]
    Bound {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The bound.
        most: u64,
    },
    /// A mirror whose address cannot be used.
    #[error("a mirror of it cannot be used: {0}")]
    Host(String),
    /// A file that no worker stores.
    #[error(transparent)]
    File(#[from] MessageError),
    /// It cannot be read.
    #[error("it is damaged: {0}")]
    Damaged(#[from] std::io::Error),
    /// Its first line is no JSON of this format.
    #[error("it is damaged: {0}")]
    Header(#[from] serde_json::Error),
    /// A name of another form.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// What workers need to know of a run beside its files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub(super) v: u32,
    /// The mirror: `s3://BUCKET/PREFIX`.
    pub mirror: String,
    /// Addresses of the archive, without credentials.
    pub hosts: Vec<String>,
    /// Connections of all workers together to each mirror.
    pub connections: u32,
    /// Bytes per second of all workers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_s: Option<u64>,
    /// `Cache-Control` of names that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<String>,
    /// When it was made, Unix seconds, by the planner's clock; for people.
    #[serde(default)]
    pub made_at: i64,
    /// The planner's machine, for people.
    #[serde(default)]
    pub planner: String,
    /// Number of files in the list.
    pub(super) files: u64,
}

/// A plan as it is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The rest.
    pub header: Header,
    /// Files that the store lacked, in order of path.
    pub missing: Vec<Item>,
    /// Files that the store had although no published suite names them: nobody may delete them meanwhile.
    pub present: Vec<Item>,
}

impl Pinned {
    /// The object of a plan, and the name of its run. The files are in order of path, and have passed [`Item::check`].
    ///
    /// # Errors
    /// More files than a plan has, or files out of order.
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
    /// Content that is not that of the run, of another mirror or a later version; see [`PinnedError`].
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
        // Of another version, nothing but this is known.
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
