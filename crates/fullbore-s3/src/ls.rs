//! `ls` of a bucket: the objects and directories of one level below a prefix, or all objects below it.
//!
//! Keys with a slash behind the prefix are directories, as other tools show them. An address without a slash at its end
//! names an object; if there is no such object but others below it, those are listed.

use std::time::Instant;

use fullbore_engine::run::listed::{ListedEntry, ListedKind};
use fullbore_engine::run::report::{self, Report, StoreKind, StoreReport, Summary};
use fullbore_engine::run::{CommandError, Event, Events, Stop};
use fullbore_engine::stage::Ledger;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::sending_runtime;
use tokio::runtime::Runtime;

use crate::address::SCHEME;
use crate::bucket::{self, BucketSettings, explain};
use crate::client::Client;
use crate::get::facts;
use crate::listing::Pages;
use crate::put::report::of_store;
use crate::xml::{ListedObject, Page};

/// Settings of one `fullbore ls` of a bucket.
#[derive(Debug, Clone)]
pub struct ListSettings {
    /// The bucket, and a key or prefix in it.
    pub bucket: BucketSettings,
    /// List all objects below the prefix, not one level.
    pub recursive: bool,
}

/// Lists objects: each entry is an event, in the order of their keys.
///
/// # Errors
/// A [`CommandError`] of kind usage if nothing has the key or prefix; of kind network if the store refuses or does not
/// answer; of kind interrupted after a signal.
pub fn run(settings: &ListSettings, events: &mut dyn Events, stop: &Stop) -> Result<Report, CommandError> {
    let begun = Instant::now();
    let location = &settings.bucket.location;
    let runtime = sending_runtime(&Ledger::off())?;
    let client = bucket::open(&settings.bucket, RateLimits::default(), stop.watch(), &Ledger::off())?;
    let mut listing = Listing { client: &client, runtime: &runtime, stop, events, store: StoreReport::default() };
    let key = location.key.as_str();
    if key.is_empty() || key.ends_with('/') {
        listing.below(key, settings.recursive)?;
    } else {
        listing.named(key, settings.recursive)?;
    }
    let store = StoreReport { kind: StoreKind::Bucket, ..listing.store };
    if store.files + store.directories == 0 && !key.is_empty() {
        return Err(CommandError::usage(format_args!(
            "{SCHEME}{}/{key}: no such object, and no objects below this prefix",
            location.bucket
        )));
    }
    let facts = facts(&client, None, begun, std::time::Duration::ZERO, 0);
    let summary = of_store(&facts, report::Totals::default(), store);
    let summary = Summary { dir: format!("{SCHEME}{}", location.bucket), ..summary };
    Ok(Report { summary, ..Report::default() })
}

struct Listing<'a> {
    client: &'a Client,
    runtime: &'a Runtime,
    stop: &'a Stop,
    events: &'a mut dyn Events,
    store: StoreReport,
}

impl Listing<'_> {
    fn next(&self, pages: &mut Pages<'_>) -> Result<Option<Page>, CommandError> {
        self.runtime.block_on(self.stop.or(pages.next()))?.map_err(|error| explain(&error))
    }

    /// Lists what is below a prefix.
    fn below(&mut self, prefix: &str, recursive: bool) -> Result<(), CommandError> {
        let mut pages = Pages::new(self.client, prefix, !recursive);
        while let Some(page) = self.next(&mut pages)? {
            for entry in in_order(page) {
                // An object with the name of the prefix itself, which some tools create, is the listed directory.
                if let Some(name) = entry.key.strip_prefix(prefix).filter(|name| !name.is_empty()) {
                    self.tell(name.to_owned(), &entry)?;
                }
            }
        }
        Ok(())
    }

    /// Lists an object, and the directory of the same name if both exist; the directory's entries if only it exists.
    fn named(&mut self, key: &str, recursive: bool) -> Result<(), CommandError> {
        let (mut pages, directory) = (Pages::new(self.client, key, true), format!("{key}/"));
        let (mut object, mut beneath) = (None, None);
        'pages: while let Some(page) = self.next(&mut pages)? {
            for entry in in_order(page) {
                match entry.key.as_str() {
                    found if found == key => object = Some(entry),
                    // A store without delimiters lists the objects below it.
                    found if found.starts_with(&directory) => beneath = Some(Entry::directory(directory.clone())),
                    found if found < directory.as_str() => continue,
                    _ => break 'pages,
                }
                if beneath.is_some() {
                    break 'pages;
                }
            }
        }
        if object.is_none() && beneath.is_some() {
            return self.below(&directory, recursive);
        }
        let above = key.rfind('/').map_or(0, |at| at + 1);
        for entry in object.into_iter().chain(beneath) {
            self.tell(entry.key[above..].to_owned(), &entry)?;
        }
        Ok(())
    }

    fn tell(&mut self, name: String, entry: &Entry) -> Result<(), CommandError> {
        let (name, kind) = match name.strip_suffix('/') {
            Some(directory) => (directory.to_owned(), ListedKind::Directory),
            None => (name, ListedKind::File),
        };
        match kind {
            ListedKind::Directory => self.store.directories += 1,
            _ => self.store.files += 1,
        }
        let size = entry.size.filter(|_| kind == ListedKind::File);
        self.store.bytes = self.store.bytes.saturating_add(size.unwrap_or_default());
        let entry = ListedEntry { name, kind, size, modified_unix_s: entry.modified_unix_s, mutable: false };
        self.events.tell(Event::Listed(entry))
    }
}

/// An object, or the common beginning of several keys.
struct Entry {
    key: String,
    size: Option<u64>,
    modified_unix_s: Option<i64>,
}

impl Entry {
    fn directory(key: String) -> Entry {
        Entry { key, size: None, modified_unix_s: None }
    }
}

impl From<ListedObject> for Entry {
    fn from(object: ListedObject) -> Entry {
        let ListedObject { key, size, modified_unix_s, .. } = object;
        Entry { key, size: Some(size), modified_unix_s }
    }
}

/// All entries of a page, in the order of keys.
fn in_order(page: Page) -> Vec<Entry> {
    let directories = page.prefixes.into_iter().map(Entry::directory);
    let mut entries: Vec<Entry> = page.objects.into_iter().map(Entry::from).chain(directories).collect();
    entries.sort_by(|one, other| one.key.cmp(&other.key));
    entries
}
