//! `--itemize-changes`: compares each entry once more and reports its changes. Costs nothing if it is off.

use rustix::fs::Stat;

use super::tree::Folder;
use super::write::Writers;
use crate::entry::{Entry, Kind};
use crate::item::{Changes, Update, letters};
use crate::session::Event;
use crate::wire::Message;

impl Writers<'_> {
    /// Reports the changes of an entry against the existing one, `there`.
    pub(super) fn itemize(&self, update: Update, path: &[u8], entry: &Entry, there: Option<(&Folder, &Stat)>) {
        self.itemize_content(update, path, entry, there, false);
    }

    /// Like [`Writers::itemize`], if content or link target are known to differ.
    pub(super) fn itemize_content(
        &self,
        update: Update,
        path: &[u8],
        entry: &Entry,
        there: Option<(&Folder, &Stat)>,
        content: bool,
    ) {
        let itemize = self.context.options.itemize;
        if !itemize.is_on() {
            return;
        }
        let name = if entry.name.is_empty() { &b"."[..] } else { &entry.name };
        let changes =
            there.map(|(folder, status)| Changes { content, ..self.attributes.changes(folder, name, status, entry) });
        let is_told =
            update != Update::Attributes || itemize.level > 1 || changes.is_none_or(|changes| changes.is_any());
        if is_told {
            self.item(update, path, entry, changes.as_ref());
        }
    }

    /// Like [`Writers::itemize`], if the existing entry has another name.
    pub(super) fn itemize_in(
        &self,
        update: Update,
        path: &[u8],
        entry: &Entry,
        there: Option<(&Folder, &Stat)>,
        name: &[u8],
    ) {
        let changes = there.map(|(folder, status)| self.attributes.changes(folder, name, status, entry));
        self.item(update, path, entry, changes.as_ref());
    }

    /// Reports the letters of an entry.
    pub(super) fn item(&self, update: Update, path: &[u8], entry: &Entry, changes: Option<&Changes>) {
        let behind = match entry.kind {
            Kind::Directory if path.is_empty() => b"./".to_vec(),
            Kind::Directory => b"/".to_vec(),
            Kind::Symlink => [b" -> ", &entry.target[..]].concat(),
            _ => Vec::new(),
        };
        self.tell_item(update, entry.kind, changes, [path, &behind[..]].concat());
    }

    /// Reports a name that becomes a hard link to another one.
    pub(super) fn item_of_link(&self, path: &[u8], entry: &Entry, first: &[u8], there: Option<(&Folder, &Stat)>) {
        if self.context.options.itemize.is_on() {
            let changes = there.map(|(folder, status)| self.attributes.changes(folder, &entry.name, status, entry));
            self.tell_item(Update::Link, entry.kind, changes.as_ref(), [path, b" => ", first].concat());
        }
    }

    fn tell_item(&self, update: Update, kind: Kind, changes: Option<&Changes>, path: Vec<u8>) {
        let options = self.context.options;
        if !options.itemize.is_on() {
            return;
        }
        let letters = letters(update, kind, changes, options.itemize.pushes).into_bytes();
        self.context.tell.tell(Event::Item { letters: letters.clone(), path: path.clone() });
        // A closed queue belongs to a run that ends; the cancel token has the reason.
        let _ = self.context.link.control_out.push(Message::Item { letters, path }, &self.clock);
    }
}
