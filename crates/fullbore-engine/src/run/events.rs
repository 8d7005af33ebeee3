//! Events of a command while it runs, as data.
//!
//! Commands emit [`Event`]s and print nothing; the program renders them as a bar, as log lines, or as lines of JSON.
//! The JSON form of this enum is the schema of `--json`: names are stable, new fields and events may be added.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::checked::CheckedFile;
use super::error::{CommandError, ErrorKind};
use super::listed::ListedEntry;
use super::queue_status::QueueStatus;
use super::report::{IndexPatches, Summary, began};
use super::stored::StoredFile;

/// One event of a run. In JSON, `event` is its name in snake case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A command began, on one mirror if it has several.
    Started {
        /// Name of the command: `mirror`, `check`, …
        command: String,
        /// Version of fullbore.
        version: String,
        /// Name of the section in the settings file, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Directory of the run, or the address of its store or grid.
        dir: String,
        /// Start of the run, Unix time in seconds.
        started_unix_s: i64,
    },
    /// The next phase began.
    Phase {
        /// The phase that began.
        phase: Phase,
    },
    /// The plan is complete: what to fetch and what to delete.
    Plan(Plan),
    /// The plan is in the store, for workers (`mirror --pin`).
    Pinned(Pinned),
    /// The run would delete this file (`--dry-run`).
    WouldDelete {
        /// Path below the mirror's directory.
        path: String,
        /// Size of the file, in bytes.
        bytes: u64,
    },
    /// Progress of the run, several times per second.
    Progress(Progress),
    /// A host failed a request; its files are fetched from other hosts.
    HostFault {
        /// Name and port of the host.
        host: String,
        /// The requested file, below the mirror's address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// Description of the fault.
        fault: String,
        /// Number of faults of this host so far. Several may have occurred since its last event.
        strikes: u64,
    },
    /// The state of a worker changed (`mirror --queue`).
    Worker {
        /// Name of the worker.
        worker: String,
        /// The change.
        change: WorkerChange,
    },
    /// A suite is visible now.
    Published {
        /// Name of the suite, as the user gave it.
        suite: String,
        /// Directory of the suite below `dists/`.
        codename: String,
        /// Date field of the Release file, Unix time in seconds.
        date_unix_s: i64,
    },
    /// A missing or wrong file was repaired (`check --repair`).
    Repaired {
        /// Path below the mirror's directory.
        path: String,
        /// Size of the file, in bytes.
        bytes: u64,
    },
    /// A file that no signed index names (`check`).
    Extra {
        /// Path below the checked directory.
        path: String,
        /// Size of the file, in bytes.
        bytes: u64,
    },
    /// The patches of an index are ready to be published (`pdiff publish`).
    Index(IndexPatches),
    /// A file was stored in the grid or the bucket (`put`). Contains its cap.
    Stored(StoredFile),
    /// One entry of a listed directory (`ls`).
    Listed(ListedEntry),
    /// Present state of a queue (`work --status`).
    Queue(QueueStatus),
    /// A file of a grid was checked (`check`).
    Checked(CheckedFile),
    /// A file was stored already (`put`). Contains its address.
    Present(StoredFile),
    /// The run would store this file (`put --dry-run`). Contains its future cap or address.
    WouldStore(StoredFile),
    /// The run is about to delete this object (`put --delete`).
    DeletingObject {
        /// Key of the object.
        key: String,
    },
    /// The run would delete this object (`put --delete --dry-run`).
    WouldDeleteObject {
        /// Key of the object.
        key: String,
    },
    /// One file has a problem or was left out on purpose; the run continues.
    Problem {
        /// Kind of the problem, such as `unreadable`.
        problem: String,
        /// Path from the root of the copy.
        path: String,
        /// The kind and the cause, in words.
        message: String,
        /// True if the problem does not make the run fail.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        harmless: bool,
    },
    /// The content of a file is copied; in a dry run, it would be (`copy`).
    Copy {
        /// Path from the root of the copy. If `change` is present, it is in the form of `rsync -i`: directories end
        /// with a slash, links show their target.
        path: String,
        /// The change, in the letters of `rsync -i` (`--itemize-changes`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        change: Option<String>,
    },
    /// A file was deleted at the destination; in a dry run, it would be (`copy`).
    Deleted {
        /// Path from the root of the copy.
        path: String,
    },
    /// A file was removed at the source, after the destination had it on its disk (`copy`).
    Removed {
        /// Path from the root of the copy.
        path: String,
    },
    /// The other machine, or the ssh process that connects to it, wrote a line to stderr (`copy`, `probe`).
    Said {
        /// Name of the other machine.
        host: String,
        /// Text of the line.
        message: String,
    },
    /// The next trial began (`probe`).
    Trial {
        /// Description of the trial.
        what: String,
    },
    /// Information about the run; nothing is wrong.
    Note {
        /// Text of the note, one line.
        message: String,
    },
    /// A problem that does not stop the run.
    Warning {
        /// Text of the warning, one line.
        message: String,
    },
    /// The run failed. `Summary` still follows if the run did any work.
    Error {
        /// Kind of the error, which decides the exit code.
        kind: ErrorKind,
        /// Exit code of the program.
        exit_code: u8,
        /// Text of the error, one line.
        message: String,
        /// Further lines of the error.
        context: Vec<String>,
        /// Suggestions for the user, as imperatives.
        hints: Vec<String>,
    },
    /// Totals and verdict; always the last event of a run.
    Summary(Box<Summary>),
}

impl Event {
    /// Creates the event for a run of `command` that starts now on `dir`: a directory, or the address of a store or a
    /// grid.
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

/// A plan that is kept in a store, for workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pinned {
    /// Name of the run, for `work --run` and `mirror --finish`.
    pub run: String,
    /// Number of files that workers must store.
    pub files: u64,
    /// Sum of the files' sizes, in bytes.
    pub bytes: u64,
}

/// Phases of a run, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The InRelease file is fetched and verified.
    Release,
    /// Indexes are fetched.
    Indexes,
    /// The wanted files are compared with the present ones.
    Plan,
    /// Files are fetched.
    Fetch,
    /// Files are put into a grid or a bucket.
    Put,
    /// Files are read again (`check`).
    Read,
    /// Waiting for the disk.
    Sync,
    /// The indexes get their final names.
    Publish,
    /// Files that no index names are deleted.
    Clean,
    /// apt resolves the dependencies.
    Resolve,
    /// Packages are unpacked.
    Unpack,
    /// Packages are configured.
    Configure,
    /// The root is packed into one file.
    Pack,
}

impl Phase {
    /// Name of the phase in progress lines.
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

/// Planned work of a run, in files and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Plan {
    /// Files named by the signed indexes.
    pub wanted_files: u64,
    /// Size of the wanted files, in bytes.
    pub wanted_bytes: u64,
    /// Number of files to fetch, indexes included.
    pub fetch_files: u64,
    /// Sum of the sizes of the files to fetch, in bytes.
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

/// Progress of a run. All figures count from its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Progress {
    /// Number of files verified and written so far.
    pub files: u64,
    /// Bytes verified and written, without bytes in buffers.
    pub bytes: u64,
    /// Number of files of the whole run.
    pub total_files: u64,
    /// Bytes of the whole run; 0 until they are known.
    pub total_bytes: u64,
    /// Present rate of verified data, in bytes per second.
    pub rate_bytes_per_s: u64,
    /// Estimated remaining time in seconds: at the present rate, or over all phases where some phases transfer nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<u64>,
    /// Part that limits the run at the moment, such as `mirror ftp.example.org`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Seconds since the last data from the other end; absent for short silences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_s: Option<u64>,
    /// Finished share of the whole run in per cent, for commands whose work is not only bytes (`bootstrap`, `install`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u64>,
    /// Number of configured packages (`bootstrap`, `install`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<u64>,
    /// Number of packages to configure (`bootstrap`, `install`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_packages: Option<u64>,
    /// Number of entries listed so far, for a command that lists while it works (`copy`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Whether the totals are final, for a command that lists while it works (`copy`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
    /// The workers that store the files (`mirror --queue`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetProgress>,
}

/// State of a run's workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FleetProgress {
    /// Number of workers that reported within the last half minute.
    pub workers: u64,
    /// Number of connections to mirrors that workers have leased.
    pub slots: u64,
    /// Number of connections that the budgets of all mirrors allow.
    pub slots_total: u64,
    /// Number of tasks that failed and were assigned again.
    pub redelivered: u64,
    /// Workers that have been silent for ten seconds or more, with the silence in seconds.
    pub silent: Vec<(String, u64)>,
}

/// Change of a worker's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkerChange {
    /// It reported for the first time, or again.
    Joined,
    /// It has not reported for half a minute; others do its work.
    Left,
    /// It could not fetch or store a file.
    Fault {
        /// The file, below the mirror's address.
        path: String,
        /// The reason, with the mirror if one is to blame.
        fault: String,
    },
}

/// Receiver of events. A closure implements it.
pub trait Events: Send {
    /// Takes one event; must not block for long.
    fn emit(&mut self, event: Event);

    /// Takes an event that must reach somebody, such as a cap that is stored nowhere else.
    ///
    /// # Errors
    /// A [`CommandError`] if the event cannot be delivered, such as when stdout is closed. The default implementation
    /// never fails.
    fn tell(&mut self, event: Event) -> Result<(), CommandError> {
        self.emit(event);
        Ok(())
    }

    /// Lends the terminal to a program of the user, or takes it back. Nothing may be drawn while it is lent.
    fn lend_terminal(&mut self, _is_lent: bool) {}

    /// Emits [`Event::Note`] with this one line.
    fn note(&mut self, message: String) {
        self.emit(Event::Note { message });
    }

    /// Emits [`Event::Warning`] with this one line.
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
