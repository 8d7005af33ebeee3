//! dpkg's database: what is installed, who owns which file, what is diverted, who waits for which trigger.
//!
//! Read once, changed in memory, written as dpkg writes it. The status file is replaced last and
//! by one rename: whatever a kill leaves behind besides belongs to packages that it does not know.

mod accounts;
mod diversions;
mod lists;
mod lock;
pub mod relation;
mod stanza;
mod triggers;
mod write;

use std::collections::BTreeMap;

use crate::root::{Root, RootError};

pub use accounts::Accounts;
pub(crate) use diversions::{Diversions, Overrides, Permissions};
pub use lists::FileOwners;
pub(crate) use lock::{LOCKS, open_lock};
pub use lock::{Lock, LockError};
pub use stanza::Stanza;
pub(crate) use triggers::Directive;
pub use triggers::Interests;
pub(crate) use write::{Change, NewPackage};

/// Where it is, seen from the root.
pub const DIRECTORY: &str = "var/lib/dpkg";

/// Why the database could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// A file of it.
    #[error(transparent)]
    Root(#[from] RootError),
    /// It is not as dpkg leaves it.
    #[error("/var/lib/dpkg/{file}: {what}")]
    Content {
        /// Which file.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// dpkg was stopped in the middle of its work; `dpkg --configure -a` sets that right.
    #[error("dpkg was interrupted in this root; `dpkg --configure -a` has to run first")]
    Interrupted,
}

/// A package's state (the third word of its `Status`), in dpkg's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Known by name only.
    NotInstalled,
    /// Removed, not purged.
    ConfigFiles,
    /// Begun.
    HalfInstalled,
    /// Its files are there.
    Unpacked,
    /// Its configuration was begun.
    HalfConfigured,
    /// Another package's trigger has to run.
    TriggersAwaited,
    /// Its own trigger has to run.
    TriggersPending,
    /// All is done.
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

/// One stanza of the status file.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its fields.
    pub stanza: Stanza,
    /// Its state.
    pub state: State,
    /// As it stands in the file; `None` once it was changed.
    text: Option<String>,
}

impl Record {
    pub(crate) fn new(stanza: Stanza, state: State) -> Record {
        Record { stanza, state, text: None }
    }

    /// The package's name.
    pub fn name(&self) -> &str {
        self.stanza.get("Package").unwrap_or_default()
    }

    /// Its version; empty where dpkg keeps none.
    pub fn version(&self) -> &str {
        self.stanza.get("Version").unwrap_or_default()
    }

    /// Its architecture.
    pub fn architecture(&self) -> &str {
        self.stanza.get("Architecture").unwrap_or_default()
    }

    /// How dpkg calls its files in `info` and writes it in trigger files: with the architecture
    /// only for `Multi-Arch: same`.
    pub fn label(&self) -> String {
        label(&self.stanza)
    }

    /// Whether its files are there, as far as relations are concerned.
    pub fn is_present(&self) -> bool {
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

/// How dpkg calls a package's files in `info`.
pub(crate) fn label(stanza: &Stanza) -> String {
    let name = stanza.get("Package").unwrap_or_default();
    match (stanza.get("Multi-Arch"), stanza.get("Architecture")) {
        (Some("same"), Some(architecture)) => format!("{name}:{architecture}"),
        _ => name.to_owned(),
    }
}

/// The database of one root.
#[derive(Debug)]
pub struct Database {
    /// By name and architecture, the order in which dpkg writes them.
    pub(crate) records: BTreeMap<(String, String), Record>,
    pub(crate) diversions: Diversions,
    pub(crate) overrides: Overrides,
    pub(crate) interests: Interests,
    pub(crate) accounts: Accounts,
    architectures: Vec<String>,
}

impl Database {
    /// Reads the database of a root; one without any is empty.
    ///
    /// # Errors
    /// Files that cannot be read or are not as dpkg leaves them; an interrupted dpkg.
    pub fn read(root: &Root) -> Result<Database, DatabaseError> {
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

    /// All stanzas, by name.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// The stanzas of a name; more than one with several architectures.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Record> + use<'_> {
        let first = (name.to_owned(), String::new());
        let name = name.to_owned();
        self.records.range(first..).take_while(move |((other, _), _)| *other == name).map(|(_, record)| record)
    }

    /// The root's own architecture, if it can be told: dpkg's own package has it.
    pub fn native_architecture(&self) -> Option<&str> {
        self.named("dpkg").find(|record| record.is_present()).map(Record::architecture)
    }

    /// Architectures that `dpkg --add-architecture` added (and the native one, if dpkg wrote it there).
    pub fn foreign_architectures(&self) -> &[String] {
        &self.architectures
    }

    /// The stanza of a package by its label.
    pub(crate) fn labelled(&self, label: &str) -> Option<&Record> {
        match label.split_once(':') {
            Some((name, architecture)) => self.records.get(&(name.to_owned(), architecture.to_owned())),
            None => self.named(label).next(),
        }
    }

    /// Adds a package whose files are in their places, for those that come after it.
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
