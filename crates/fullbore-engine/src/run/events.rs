//! What a command tells while it runs, as data.
//!
//! Commands emit [`Event`]s and print nothing; the program renders them as a bar,
//! as log lines, or as lines of JSON. The JSON form of this enum is the schema of
//! `--json`: names are kept, new fields and events may come.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::checked::CheckedFile;
use super::error::{CommandError, ErrorKind};
use super::listed::ListedEntry;
use super::queue_status::QueueStatus;
use super::report::{IndexPatches, Summary, began};
use super::stored::StoredFile;

/// One thing that happened. In JSON, `event` has the name in snake case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A command began on one mirror.
    Started {
        /// `mirror`, `check`, …
        command: String,
        /// fullbore's version.
        version: String,
        /// The name of the section in the settings, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The directory worked on.
        dir: String,
        /// Unix time in seconds.
        started_unix_s: i64,
    },
    /// The next part of the work began.
    Phase {
        /// Which one.
        phase: Phase,
    },
    /// What is to be done is known now.
    Plan(Plan),
    /// The plan is in the store, for workers (`mirror --pin`).
    Pinned(Pinned),
    /// A file that the run would delete (`--dry-run`).
    WouldDelete {
        /// Path below the mirror's directory.
        path: String,
        /// Its size.
        bytes: u64,
    },
    /// Where the run stands; several times per second.
    Progress(Progress),
    /// A host did something wrong; its files went to others.
    HostFault {
        /// Name and port of the host.
        host: String,
        /// The file it was about, below the mirror's address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// What it did.
        fault: String,
        /// Faults of this host so far; several may have come since it was last told of.
        strikes: u64,
    },
    /// Something happened to a worker (`mirror --queue`).
    Worker {
        /// Its name.
        worker: String,
        /// What happened.
        change: WorkerChange,
    },
    /// A suite is visible now.
    Published {
        /// The suite as asked for.
        suite: String,
        /// Its directory below dists/.
        codename: String,
        /// The Release's Date, Unix time in seconds.
        date_unix_s: i64,
    },
    /// A file that was missing or wrong is right again (`check --repair`).
    Repaired {
        /// Path below the mirror's directory.
        path: String,
        /// Its size.
        bytes: u64,
    },
    /// A file that no signed index names (`check`).
    Extra {
        /// Path below the directory.
        path: String,
        /// Its size.
        bytes: u64,
    },
    /// The patches of an index are as they are to be published (`pdiff publish`).
    Index(IndexPatches),
    /// A file is in the grid or the bucket now (`put`). Has its cap.
    Stored(StoredFile),
    /// An entry of a directory (`ls`).
    Listed(ListedEntry),
    /// What a queue has at the moment (`work --status`).
    Queue(QueueStatus),
    /// A file of a grid was checked (`check`).
    Checked(CheckedFile),
    /// A file was there already (`put`). Has its address.
    Present(StoredFile),
    /// A file that the run would put (`--dry-run`). Has the cap or address that it would have.
    WouldStore(StoredFile),
    /// An object that is deleted now (`put --delete`).
    DeletingObject {
        /// Its key.
        key: String,
    },
    /// An object that the run would delete (`put --delete --dry-run`).
    WouldDeleteObject {
        /// Its key.
        key: String,
    },
    /// Something is wrong with one file, or was left out on purpose; the run goes on.
    Problem {
        /// Its kind, such as `unreadable`.
        problem: String,
        /// The path, from the root of the copy.
        path: String,
        /// The kind and the cause, in words.
        message: String,
        /// Only told: the run ends well all the same.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        harmless: bool,
    },
    /// The content of a file is copied; in a dry run, it would be (`copy`).
    Copy {
        /// The path, from the root of the copy. With `change`, as `rsync -i` shows it: directories with a slash behind,
        /// links with what they lead to.
        path: String,
        /// What changes, in the letters of `rsync -i` (`--itemize-changes`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        change: Option<String>,
    },
    /// A file was deleted at the destination; in a dry run, it would be (`copy`).
    Deleted {
        /// The path, from the root of the copy.
        path: String,
    },
    /// A file was removed at the source, as the destination has it on its disk (`copy`).
    Removed {
        /// The path, from the root of the copy.
        path: String,
    },
    /// The other machine, or the ssh that leads there, wrote a line to stderr (`copy`, `probe`).
    Said {
        /// The other machine.
        host: String,
        /// The line.
        message: String,
    },
    /// The next trial began (`probe`).
    Trial {
        /// What is tried.
        what: String,
    },
    /// Something worth knowing about the run; nothing is wrong.
    Note {
        /// One line.
        message: String,
    },
    /// Something the reader should know, though the run goes on.
    Warning {
        /// One line.
        message: String,
    },
    /// The run failed; `Summary` still follows when something was done.
    Error {
        /// The kind, which gives the exit code.
        kind: ErrorKind,
        /// The exit code.
        exit_code: u8,
        /// One line.
        message: String,
        /// More on it.
        context: Vec<String>,
        /// What to do.
        hints: Vec<String>,
    },
    /// The totals and the verdict; always the last of a mirror.
    Summary(Box<Summary>),
}

impl Event {
    /// The beginning, now, of a run of `command` on `dir`: a directory, or the address of a store or a grid.
    pub fn started(command: &str, dir: impl Into<String>) -> Event {
        Event::Started {
            command: command.to_owned(),
            version: crate::VERSION.to_owned(),
            name: None,
            dir: dir.into(),
            started_unix_s: began(Duration::ZERO),
        }
    }
}

/// A plan in a store, for workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pinned {
    /// The name of the run, for `work --run` and `mirror --finish`.
    pub run: String,
    /// Files that workers are to store.
    pub files: u64,
    /// Sum of their sizes.
    pub bytes: u64,
}

/// The parts of a run, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// InRelease is fetched and verified.
    Release,
    /// Indexes are fetched.
    Indexes,
    /// Wanted is compared with present.
    Plan,
    /// Files are fetched.
    Fetch,
    /// Files are put into a grid or a bucket.
    Put,
    /// Files are read again (`check`).
    Read,
    /// Waiting for the disk.
    Sync,
    /// Indexes get their names.
    Publish,
    /// What no index names is deleted.
    Clean,
    /// apt finds out what is needed.
    Resolve,
    /// Packages are unpacked.
    Unpack,
    /// Packages are configured.
    Configure,
    /// A root becomes one file.
    Pack,
}

impl Phase {
    /// The word for the phase that progress lines show.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Release => "release",
            Phase::Indexes => "indexes",
            Phase::Plan => "plan",
            Phase::Fetch => "fetch",
            Phase::Put => "put",
            Phase::Read => "read",
            Phase::Sync => "sync",
            Phase::Publish => "publish",
            Phase::Clean => "clean",
            Phase::Resolve => "resolve",
            Phase::Unpack => "unpack",
            Phase::Configure => "configure",
            Phase::Pack => "pack",
        }
    }
}

/// Planned work, in files and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Plan {
    /// Files named by the signed indexes.
    pub wanted_files: u64,
    /// Size of the wanted files, in bytes.
    pub wanted_bytes: u64,
    /// Of these, files to fetch, indexes included.
    pub fetch_files: u64,
    /// Number of bytes to fetch from the network.
    pub fetch_bytes: u64,
    /// Number of files to delete after publishing.
    pub delete_files: u64,
    /// Size of the files to delete, in bytes.
    pub delete_bytes: u64,
    /// Free bytes of the destination's file system.
    pub free_bytes: u64,
    /// Free inodes of the destination's file system.
    pub free_inodes: u64,
}

/// Where the run stands. All figures count from the run's start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Progress {
    /// Number of files verified and written so far.
    pub files: u64,
    /// Bytes verified and written; bytes in buffers do not count.
    pub bytes: u64,
    /// Number of files of the whole run.
    pub total_files: u64,
    /// Bytes of the whole run; 0 as long as nobody knows.
    pub total_bytes: u64,
    /// Present rate of verified bytes per second.
    pub rate_bytes_per_s: u64,
    /// Seconds to go at that rate; where the run has phases that are no transfer, of all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<u64>,
    /// What limits the run at the moment, such as `mirror ftp.example.org`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Seconds in which nothing was heard of the other end, if they are many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_s: Option<u64>,
    /// How much of the whole run is done, where bytes are not all that it does (`bootstrap`, `install`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u64>,
    /// Packages that are configured (`bootstrap`, `install`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<u64>,
    /// Packages that are to be configured in all (`bootstrap`, `install`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_packages: Option<u64>,
    /// Entries listed so far, where the run lists while it works (`copy`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Whether the totals are final, where the run lists while it works (`copy`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
    /// The workers that store the files (`mirror --queue`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetProgress>,
}

/// The workers of a run while it goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FleetProgress {
    /// Number of workers that were heard of in the last half minute.
    pub workers: u64,
    /// Connections to mirrors that workers have leased.
    pub slots: u64,
    /// Connections that the budgets of all mirrors allow.
    pub slots_total: u64,
    /// Tasks that failed, and were given to a worker again.
    pub redelivered: u64,
    /// Workers that have been silent for ten seconds or more, and for how many.
    pub silent: Vec<(String, u64)>,
}

/// What happened to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkerChange {
    /// It was heard of for the first time, or again.
    Joined,
    /// It has not been heard of for half a minute; others do its work.
    Left,
    /// It could not fetch or store a file.
    Fault {
        /// The file, below the mirror's address.
        path: String,
        /// The mirror, if one is to blame, and the reason.
        fault: String,
    },
}

/// Where events go. A closure is one, too.
pub trait Events: Send {
    /// Takes one event; must not block for long.
    fn emit(&mut self, event: Event);

    /// Takes an event that somebody has to read: a cap that stands nowhere else.
    ///
    /// # Errors
    /// Nobody can be told.
    fn tell(&mut self, event: Event) -> Result<(), CommandError> {
        self.emit(event);
        Ok(())
    }

    /// A program of the user gets the terminal, until it is given back: nothing may be drawn meanwhile.
    fn lend_terminal(&mut self, _is_lent: bool) {}

    /// A note in one line.
    fn note(&mut self, message: String) {
        self.emit(Event::Note { message });
    }

    /// A warning in one line.
    fn warn(&mut self, message: String) {
        self.emit(Event::Warning { message });
    }
}

impl<F: FnMut(Event) + Send> Events for F {
    fn emit(&mut self, event: Event) {
        self(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_with_its_name() {
        let event = Event::Phase { phase: Phase::Fetch };
        assert_eq!(serde_json::to_string(&event).unwrap(), r#"{"event":"phase","phase":"fetch"}"#);
        let event = Event::Plan(Plan { fetch_files: 3, ..Plan::default() });
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.starts_with(r#"{"event":"plan","wanted_files":0"#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
