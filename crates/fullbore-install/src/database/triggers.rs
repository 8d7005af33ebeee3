//! Triggers (deb-triggers(5), dpkg's triggers.txt): interests of packages, and activation by unpacked packages.

use std::collections::{BTreeMap, HashMap};

use super::{DIRECTORY, Database, DatabaseError, State, content, text};
use crate::root::Root;

/// Files of dpkg's directory `triggers` that are not named after triggers.
const OTHERS: [&str; 4] = ["File", "Unincorp", "Lock", "Unincorp.new"];

/// An interested package: its label, and whether activating packages wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Interested {
    label: String,
    awaited: bool,
}

impl Interested {
    fn parse(text: &str) -> Interested {
        match text.strip_suffix("/noawait") {
            Some(label) => Interested { label: label.to_owned(), awaited: false },
            None => Interested { label: text.to_owned(), awaited: true },
        }
    }

    fn text(&self) -> String {
        format!("{}{}", self.label, if self.awaited { "" } else { "/noawait" })
    }
}

/// Trigger interests of all packages in a root.
#[derive(Debug, Default)]
pub(crate) struct Interests {
    /// Lines of `triggers/File`, in their order: path and interested package.
    files: Vec<(String, Interested)>,
    by_path: HashMap<String, Vec<usize>>,
    /// Interested packages by trigger name; each trigger has a file of its name.
    named: BTreeMap<String, Vec<Interested>>,
    files_changed: bool,
    named_changed: Vec<String>,
}

/// A directive of a package's `triggers` file (deb-triggers(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directive {
    /// Whether the directive is `interest`; otherwise `activate`.
    pub interest: bool,
    /// Whether activating packages wait until the trigger was processed.
    pub awaited: bool,
    /// Name of the trigger: an absolute path, or a plain name.
    pub trigger: String,
}

impl Directive {
    /// Parses a package's `triggers` file.
    ///
    /// # Errors
    ///
    /// The reason why fullbore leaves the package to dpkg, as a clause: the text is not UTF-8, or a line is not a valid
    /// directive.
    pub(crate) fn parse(text: &[u8]) -> Result<Vec<Directive>, String> {
        let text = std::str::from_utf8(text).map_err(|_| "its triggers are not UTF-8".to_owned())?;
        let mut directives = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let wrong = || format!("its triggers: `{line}`");
            let (word, trigger) = line.split_once(char::is_whitespace).ok_or_else(wrong)?;
            let trigger = trigger.trim_start();
            let (interest, awaited) = match word {
                "interest" | "interest-await" => (true, true),
                "interest-noawait" => (true, false),
                "activate" | "activate-await" => (false, true),
                "activate-noawait" => (false, false),
                _ => return Err(wrong()),
            };
            let is_path = trigger.starts_with('/') && !trigger.ends_with('/') && !trigger.contains("//");
            let is_name = super::relation::is_package_name(trigger) && !OTHERS.contains(&trigger);
            let printable = trigger.bytes().all(|byte| (0x21..0x7f).contains(&byte));
            if !printable || !(is_path || is_name) {
                return Err(wrong());
            }
            directives.push(Directive { interest, awaited, trigger: trigger.to_owned() });
        }
        Ok(directives)
    }
}

impl Interests {
    pub(super) fn read(root: &Root) -> Result<Interests, DatabaseError> {
        let mut interests = Interests::default();
        for line in text(root, "triggers/File")?.lines() {
            let (path, package) = line.split_once(' ').ok_or_else(|| content("triggers/File", format!("`{line}`")))?;
            interests.push_file(path.to_owned(), Interested::parse(package));
        }
        for name in root.names(&format!("{DIRECTORY}/triggers"))? {
            let Ok(name) = String::from_utf8(name) else { continue };
            if OTHERS.contains(&&name[..]) || !super::relation::is_package_name(&name) || name.ends_with(".new") {
                continue;
            }
            let lines = text(root, &format!("triggers/{name}"))?;
            interests.named.insert(name, lines.lines().map(Interested::parse).collect());
        }
        Ok(interests)
    }

    /// Whether a package is interested in this path.
    pub(crate) fn has_path(&self, path: &[u8]) -> bool {
        std::str::from_utf8(path).is_ok_and(|path| self.by_path.contains_key(path))
    }

    /// Adds an interest of a package. If the package already has it, the line keeps its place.
    pub(super) fn add(&mut self, label: &str, directive: &Directive) {
        let interested = Interested { label: label.to_owned(), awaited: directive.awaited };
        let trigger = &directive.trigger;
        if !trigger.starts_with('/') {
            let list = self.named.entry(trigger.clone()).or_default();
            list.retain(|known| known.label != label);
            list.push(interested);
            if !self.named_changed.contains(trigger) {
                self.named_changed.push(trigger.clone());
            }
            return;
        }
        let known = self.by_path.get(trigger).into_iter().flatten().copied();
        match known.into_iter().find(|at| self.files[*at].1.label == label) {
            Some(at) if self.files[at].1 == interested => return,
            Some(at) => self.files[at].1 = interested,
            None => self.push_file(trigger.clone(), interested),
        }
        self.files_changed = true;
    }

    /// Changed files of the directory: name and new content.
    pub(super) fn changed_files(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        if self.files_changed {
            let lines = self.files.iter().map(|(path, interested)| format!("{path} {}\n", interested.text()));
            files.push(("File".to_owned(), lines.collect()));
        }
        for name in &self.named_changed {
            let lines = self.named[name].iter().map(|interested| interested.text() + "\n");
            files.push((name.clone(), lines.collect()));
        }
        files
    }

    fn push_file(&mut self, path: String, interested: Interested) {
        self.by_path.entry(path.clone()).or_default().push(self.files.len());
        self.files.push((path, interested));
    }

    fn of(&self, trigger: &str) -> Vec<Interested> {
        if trigger.starts_with('/') {
            // The latest interest first, as in dpkg.
            let places = self.by_path.get(trigger).into_iter().flatten().rev();
            places.map(|at| self.files[*at].1.clone()).collect()
        } else {
            self.named.get(trigger).cloned().unwrap_or_default()
        }
    }
}

impl Database {
    /// Activates a trigger, as dpkg does while it unpacks: records it as pending for the interested packages that are
    /// configured. Returns the labels of the packages that the activating package must await.
    pub(super) fn activate(&mut self, trigger: &str, awaited: bool) -> Vec<String> {
        let mut wait_for = Vec::new();
        for interested in self.interests.of(trigger) {
            let (name, architecture) = match interested.label.split_once(':') {
                Some((name, architecture)) => (name, Some(architecture)),
                None => (&interested.label[..], None),
            };
            let key = self
                .named(name)
                .find(|record| architecture.is_none_or(|wanted| record.architecture() == wanted))
                .map(|record| (record.name().to_owned(), record.architecture().to_owned()));
            let Some(record) = key.and_then(|key| self.records.get_mut(&key)) else { continue };
            // An unconfigured package processes the trigger when it is configured.
            if record.state < State::TriggersAwaited {
                continue;
            }
            let pending = record.stanza.get("Triggers-Pending").unwrap_or_default();
            if !pending.split(' ').any(|known| known == trigger) {
                let pending = format!("{trigger} {pending}").trim_end().to_owned();
                record.stanza.set("Triggers-Pending", Some(pending));
                record.text = None;
                let waits = record.stanza.get("Triggers-Awaited").is_some();
                record.set_state(if waits { State::TriggersAwaited } else { State::TriggersPending });
            }
            if awaited && interested.awaited {
                wait_for.push(interested.label);
            }
        }
        wait_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_read_and_malformed_ones_refused() {
        let text = b"# comment\ninterest /usr/share/man\n interest-noawait\tname\nactivate-noawait ldconfig\n\n";
        let directives = Directive::parse(text).expect("sound");
        let shown: Vec<_> = directives.iter().map(|d| (d.interest, d.awaited, &d.trigger[..])).collect();
        assert_eq!(shown, [(true, true, "/usr/share/man"), (true, false, "name"), (false, false, "ldconfig")]);
        for bad in ["interest", "watch x", "interest /a/", "interest /a//b", "interest File", "interest a_b"] {
            assert!(Directive::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
