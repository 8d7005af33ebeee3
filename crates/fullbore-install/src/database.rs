//! dpkg's database: packages, owners of files, diversions, triggers.
//!
//! It is read once, changed in memory, and written in dpkg's format. The status file is replaced last, by one rename:
//! other files that a kill leaves behind belong to packages that the status file does not name.

mod accounts;
mod diversions;
mod lists;
mod lock;
pub(crate) mod relation;
mod stanza;
mod triggers;
mod write;

use std::collections::BTreeMap;

use crate::root::{Root, RootError};

pub(crate) use accounts::Accounts;
pub(crate) use diversions::{Diversions, Overrides, Permissions};
pub(crate) use lists::FileOwners;
pub(crate) use lock::{LOCKS, open_lock};
pub use lock::{Lock, LockError};
pub use stanza::Stanza;
pub(crate) use triggers::Directive;
pub(crate) use triggers::Interests;
pub(crate) use write::{Change, NewPackage};

/// Directory of the database, relative to the root.
pub(crate) const DIRECTORY: &str = "var/lib/dpkg";

/// Error in reading or writing the database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A file is not in the format that dpkg writes.
    #[error("/var/lib/dpkg/{file}: {what}")]
    Content {
        /// Name of the file, relative to the directory of the database.
        file: String,
        /// The fault.
        what: String,
    },
    /// dpkg was interrupted; `dpkg --configure -a` repairs that.
    #[error("dpkg was interrupted in this root; run `dpkg --configure -a` first")]
    Interrupted,
}

/// State of a package (the third word of its `Status`), in dpkg's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Known by its name only.
    NotInstalled,
    /// Removed, not purged.
    ConfigFiles,
    /// Unpacking started.
    HalfInstalled,
    /// The files are in place.
    Unpacked,
    /// Configuration started.
    HalfConfigured,
    /// Waits for the trigger of another package.
    TriggersAwaited,
    /// Has a trigger to process.
    TriggersPending,
    /// Configured.
    Installed,
}

impl State {
    fn by_name(name: &str) -> Option<State> {
        Some(match name {
            "not-installed" => State::NotInstalled,
            "config-files" => State::ConfigFiles,
            "half-installed" => State::HalfInstalled,
            "unpacked" => State::Unpacked,
            "half-configured" => State::HalfConfigured,
            "triggers-awaited" => State::TriggersAwaited,
            "triggers-pending" => State::TriggersPending,
            "installed" => State::Installed,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            State::NotInstalled => "not-installed",
            State::ConfigFiles => "config-files",
            State::HalfInstalled => "half-installed",
            State::Unpacked => "unpacked",
            State::HalfConfigured => "half-configured",
            State::TriggersAwaited => "triggers-awaited",
            State::TriggersPending => "triggers-pending",
            State::Installed => "installed",
        }
    }
}

/// A stanza of the status file.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// Fields of the stanza, in dpkg's order.
    pub stanza: Stanza,
    /// State of the package, from its `Status` field.
    pub state: State,
    /// Text in the file; `None` once a field changed.
    text: Option<String>,
}

impl Record {
    pub(crate) fn new(stanza: Stanza, state: State) -> Record {
        Record { stanza, state, text: None }
    }

    /// Name of the package, from the field `Package`.
    pub(crate) fn name(&self) -> &str {
        self.stanza.get("Package").unwrap_or_default()
    }

    /// Version of the package; empty if dpkg keeps none.
    pub(crate) fn version(&self) -> &str {
        self.stanza.get("Version").unwrap_or_default()
    }

    /// Architecture of the package; `all` if it fits any.
    pub(crate) fn architecture(&self) -> &str {
        self.stanza.get("Architecture").unwrap_or_default()
    }

    /// Name that dpkg uses for files in `info` and in trigger files. It has the architecture only for `Multi-Arch:
    /// same`.
    pub(crate) fn label(&self) -> String {
        label(&self.stanza)
    }

    /// Whether the files are in place, as far as relations are concerned.
    pub(crate) fn is_present(&self) -> bool {
        self.state > State::ConfigFiles
    }

    fn set_state(&mut self, state: State) {
        if self.state == state {
            return;
        }
        self.state = state;
        let status = self.stanza.get("Status").unwrap_or("install ok installed");
        let words: Vec<&str> = status.split(' ').collect();
        let status = format!("{} {} {}", words[0], words.get(1).unwrap_or(&"ok"), state.name());
        self.stanza.set("Status", Some(status));
        self.text = None;
    }
}

/// Name that dpkg uses for the files of a package in `info`.
pub(crate) fn label(stanza: &Stanza) -> String {
    let name = stanza.get("Package").unwrap_or_default();
    match (stanza.get("Multi-Arch"), stanza.get("Architecture")) {
        (Some("same"), Some(architecture)) => format!("{name}:{architecture}"),
        _ => name.to_owned(),
    }
}

/// dpkg's database in a root, read into memory.
#[derive(Debug)]
pub(crate) struct Database {
    /// Records by name and architecture, which is the order in the status file.
    pub(crate) records: BTreeMap<(String, String), Record>,
    pub(crate) diversions: Diversions,
    pub(crate) overrides: Overrides,
    pub(crate) interests: Interests,
    pub(crate) accounts: Accounts,
    architectures: Vec<String>,
}

impl Database {
    /// Reads the database of a root; a root without one has an empty database.
    ///
    /// # Errors
    /// [`DatabaseError::Interrupted`] if `updates` has a journal of an interrupted dpkg. [`DatabaseError::Content`] if
    /// a file is not in dpkg's format, or `info/format` is unknown. [`DatabaseError::Root`] if a file cannot be read.
    pub(crate) fn read(root: &Root) -> Result<Database, DatabaseError> {
        let updates = root.names(&format!("{DIRECTORY}/updates"))?;
        if updates.iter().any(|name| name.iter().all(u8::is_ascii_digit)) {
            return Err(DatabaseError::Interrupted);
        }
        let format = text(root, "info/format")?;
        if !matches!(format.trim(), "" | "0" | "1") {
            return Err(content("info/format", format!("format {} is unknown", format.trim())));
        }
        let architectures = text(root, "arch")?.lines().map(str::to_owned).collect();
        let accounts = Accounts::read(root)?;
        Ok(Database {
            records: read_status(&text(root, "status")?)?,
            diversions: Diversions::parse(&text(root, "diversions")?)?,
            overrides: Overrides::parse(&text(root, "statoverride")?, &accounts)?,
            interests: Interests::read(root)?,
            accounts,
            architectures,
        })
    }

    /// All records, sorted by name.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// Records of a name, one per architecture.
    pub(crate) fn named(&self, name: &str) -> impl Iterator<Item = &Record> + use<'_> {
        let first = (name.to_owned(), String::new());
        let name = name.to_owned();
        self.records.range(first..).take_while(move |((other, _), _)| *other == name).map(|(_, record)| record)
    }

    /// Native architecture of the root: that of its package dpkg, if installed.
    pub(crate) fn native_architecture(&self) -> Option<&str> {
        self.named("dpkg").find(|record| record.is_present()).map(Record::architecture)
    }

    /// Architectures added with `dpkg --add-architecture`, perhaps with the native one.
    pub(crate) fn foreign_architectures(&self) -> &[String] {
        &self.architectures
    }

    /// Record of a package by its label.
    pub(crate) fn labelled(&self, label: &str) -> Option<&Record> {
        match label.split_once(':') {
            Some((name, architecture)) => self.records.get(&(name.to_owned(), architecture.to_owned())),
            // dpkg may keep a mere selection for another architecture, which has no files.
            None => self.named(label).max_by_key(|record| record.state),
        }
    }

    /// Adds an unpacked package, which later packages of the batch then find.
    pub(crate) fn add_unpacked(&mut self, stanza: Stanza) {
        let record = Record::new(stanza, State::Unpacked);
        self.records.insert((record.name().to_owned(), record.architecture().to_owned()), record);
    }
}

fn read_status(status: &str) -> Result<BTreeMap<(String, String), Record>, DatabaseError> {
    let mut records = BTreeMap::new();
    for text in status.split("\n\n").map(|text| text.trim_matches('\n')).filter(|text| !text.is_empty()) {
        let stanza = Stanza::parse(text).map_err(|what| content("status", what))?;
        let name = stanza.get("Package").ok_or_else(|| content("status", "a stanza without Package".to_owned()))?;
        let status = stanza.get("Status").unwrap_or("unknown ok not-installed");
        let state = status.split(' ').nth(2).and_then(State::by_name);
        let state = state.ok_or_else(|| content("status", format!("{name}: state `{status}` is unknown")))?;
        let key = (name.to_owned(), stanza.get("Architecture").unwrap_or_default().to_owned());
        records.insert(key, Record { stanza, state, text: Some(format!("{text}\n")) });
    }
    Ok(records)
}

fn text(root: &Root, file: &str) -> Result<String, DatabaseError> {
    let bytes = root.read(&format!("{DIRECTORY}/{file}"))?.unwrap_or_default();
    String::from_utf8(bytes).map_err(|_| content(file, "not UTF-8".to_owned()))
}

fn content(file: &str, what: String) -> DatabaseError {
    DatabaseError::Content { file: file.to_owned(), what }
}
