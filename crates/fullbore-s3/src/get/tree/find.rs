//! Finds the objects to download: below prefixes, listed page by page, and single ones by their keys.
//!
//! A file system can have only one of an object `a` and objects below `a/`: the directory, which holds more. In the
//! order of keys, all keys that begin with `a` follow `a`, so only few objects must wait until this is known
//! ([`Order`]).

use std::collections::HashSet;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_engine::filter::{Missing, Only, Selection};
use fullbore_engine::run::{CommandError, ErrorKind};
use tokio::runtime::Handle;

use super::{Done, Seen};
use crate::address::{Location, SCHEME};
use crate::bucket::{explain, is_fatal};
use crate::client::Client;
use crate::key;
use crate::listing::{self, More};

/// Longest line of stdin, in bytes: a key is not percent-encoded, and has at most 1024 bytes.
const LINE_BYTES_MAX: usize = 4096;

/// Objects named by an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// All objects below a prefix, which is empty or ends with a slash.
    Below(String),
    /// One object. Its file gets the last component of the key as its name.
    Object(String),
    /// Addresses in the lines of stdin, all of the same bucket.
    Stdin,
}

impl Names {
    /// Determines what an address names.
    pub fn of(location: &Location) -> Names {
        match location.key.as_str() {
            "" => Names::Below(String::new()),
            key if key.ends_with('/') => Names::Below(key.to_owned()),
            key => Names::Object(key.to_owned()),
        }
    }
}

/// An object to download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Key of the object.
    pub key: String,
    /// Path below the directory; with a final slash it is a directory.
    pub path: String,
    /// Size and ETag, if the object was listed.
    pub listed: Option<(u64, String)>,
}

/// Finds objects and sends them on.
pub(super) struct Find {
    pub client: Client,
    pub handle: Handle,
    pub names: Vec<Names>,
    pub selection: Selection,
    pub seen: Arc<Seen>,
    pub found: SyncSender<Found>,
    pub done: Sender<Done>,
    pub over: Arc<AtomicBool>,
    /// Paths sent so far, if several arguments could name one twice.
    pub taken: Option<Mutex<HashSet<String>>>,
}

impl Find {
    /// Finds all objects. Errors are reported as failed objects.
    pub(super) fn run(self) {
        for names in &self.names {
            match names {
                Names::Stdin => self.lines(),
                names => self.one(names),
            }
        }
        self.seen.is_complete.store(true, Ordering::Relaxed);
    }

    fn one(&self, names: &Names) {
        match names {
            Names::Below(prefix) => self.below(prefix),
            Names::Object(key) => {
                let path = key.rsplit('/').next().unwrap_or(key).to_owned();
                self.give(Found { key: key.clone(), path, listed: None });
            }
            Names::Stdin => {}
        }
    }

    fn lines(&self) {
        let mut lines = std::io::stdin().lock();
        loop {
            let mut line = Vec::new();
            match std::io::Read::take(&mut lines, LINE_BYTES_MAX as u64).read_until(b'\n', &mut line) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return self.fail("stdin", CommandError::new(ErrorKind::Disk, error), true),
            }
            let is_whole = line.ends_with(b"\n") || line.len() < LINE_BYTES_MAX;
            let text = String::from_utf8_lossy(&line).into_owned();
            // A key may end with a space.
            let text = text.trim_end_matches(['\n', '\r']).trim_ascii_start();
            if text.trim_ascii().is_empty() {
                continue;
            }
            let named = match std::str::from_utf8(&line) {
                _ if !is_whole => Err("the line is too long for an address".to_owned()),
                Err(_) => Err("the line is not UTF-8".to_owned()),
                Ok(_) if !text.starts_with(SCHEME) => Err("the line is not an s3:// address".to_owned()),
                Ok(_) => Location::parse(text).map_err(|error| error.to_string()).and_then(|location| {
                    match location.bucket == self.client.bucket().name {
                        true => Ok(Names::of(&location)),
                        false => Err("the address names another bucket than the first one".to_owned()),
                    }
                }),
            };
            match named {
                Ok(names) => self.one(&names),
                Err(reason) => self.fail(text, CommandError::new(ErrorKind::Partial, reason), !is_whole),
            }
            if self.over.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn below(&self, prefix: &str) {
        if let Some(paths) = self.selection.only.as_ref().and_then(Only::files) {
            return self.listed_paths(prefix, paths);
        }
        let (mut order, mut missing) = (Order::default(), Missing::of(&self.selection));
        let listing = listing::list(&self.client, prefix, |page| {
            for object in page {
                let Some(relative) = object.key.strip_prefix(prefix) else { continue };
                missing.found(relative.trim_end_matches('/').as_bytes());
                // An object with the name of the prefix itself, which some tools create, is the directory.
                if relative.is_empty() || !self.selection.takes_beneath(relative.trim_end_matches('/').as_bytes()) {
                    continue;
                }
                let path = relative.to_owned();
                let found = Found { key: object.key, path, listed: Some((object.size, object.etag)) };
                match key::check(&found.key) {
                    Ok(()) => order.next(found, &mut |ordered| self.ordered(ordered)),
                    // Report it at once: an endless chain of keys, each the beginning of the next, must not be kept.
                    Err(_) => self.give(found),
                }
            }
            if self.over.load(Ordering::Relaxed) { More::No } else { More::Yes }
        });
        let listed = self.handle.block_on(listing);
        order.end(&mut |ordered| self.ordered(ordered));
        match listed {
            Ok(()) => missing.paths().iter().for_each(|path| {
                let error = CommandError::new(ErrorKind::Partial, "no such object, and no objects below this prefix");
                self.fail(&String::from_utf8_lossy(path), error, false);
            }),
            Err(error) => self.fail(prefix, explain(&error), is_fatal(&error)),
        }
    }

    /// Requests the objects of a list of paths, without a listing.
    fn listed_paths<'p>(&self, prefix: &str, paths: impl Iterator<Item = &'p [u8]>) {
        for path in paths {
            match std::str::from_utf8(path) {
                Ok(path) if !self.selection.takes_beneath(path.as_bytes()) => {}
                Ok(path) => self.give(Found { key: format!("{prefix}{path}"), path: path.to_owned(), listed: None }),
                Err(_) => {
                    let error = CommandError::new(ErrorKind::Partial, "the name is not UTF-8, as keys require");
                    self.fail(&String::from_utf8_lossy(path), error, false);
                }
            }
        }
    }

    fn ordered(&self, ordered: Ordered) {
        match ordered {
            Ordered::Alone(found) => self.give(found),
            Ordered::BesideDirectory(found) => {
                self.seen.objects.fetch_add(1, Ordering::Relaxed);
                let reason = "left out: other objects have its name as their directory";
                self.fail(&found.path, CommandError::new(ErrorKind::Partial, reason), false);
            }
        }
    }

    fn give(&self, found: Found) {
        self.seen.objects.fetch_add(1, Ordering::Relaxed);
        if let Some((bytes, _)) = found.listed {
            self.seen.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        // The rule for requests, reported with the name of this object.
        if let Err(error) = key::check(&found.key) {
            let reason = format!("left out: {error}");
            return self.fail(&found.path, CommandError::new(ErrorKind::Partial, reason), false);
        }
        if let Some(taken) = &self.taken
            && !taken.lock().unwrap_or_else(PoisonError::into_inner).insert(found.path.clone())
        {
            let reason = format!("left out: {} would replace another object of this run", found.key);
            return self.fail(&found.path, CommandError::new(ErrorKind::Partial, reason), false);
        }
        // There is no receiver after the end of the run.
        let _ = self.found.send(found);
    }

    fn fail(&self, path: &str, error: CommandError, fatal: bool) {
        let _ = self.done.send(Done::Failed { path: path.to_owned(), error, fatal });
    }
}

/// What the order of keys shows about an object.
#[derive(Debug, PartialEq, Eq)]
enum Ordered {
    /// No other object needs its name as a directory.
    Alone(Found),
    /// Other objects are below its name.
    BesideDirectory(Found),
}

/// Objects whose paths are beginnings of the last path: they wait for the next keys. Each path is longer than the one
/// before, and a key that [`key::check`] accepts is short, so they are few.
#[derive(Debug, Default)]
struct Order {
    waiting: Vec<(Found, bool)>,
}

impl Order {
    /// Adds the next object.
    fn next(&mut self, found: Found, give: &mut dyn FnMut(Ordered)) {
        let begins = |above: &str| found.path.len() > above.len() && found.path.starts_with(above);
        while self.waiting.last().is_some_and(|(above, _)| !begins(&above.path)) {
            self.release(give);
        }
        for (above, is_directory) in &mut self.waiting {
            *is_directory |= found.path.as_bytes().get(above.path.len()) == Some(&b'/');
        }
        self.waiting.push((found, false));
    }

    /// Passes on the waiting objects.
    fn end(&mut self, give: &mut dyn FnMut(Ordered)) {
        while !self.waiting.is_empty() {
            self.release(give);
        }
    }

    fn release(&mut self, give: &mut dyn FnMut(Ordered)) {
        if let Some((found, is_directory)) = self.waiting.pop() {
            give(if is_directory { Ordered::BesideDirectory(found) } else { Ordered::Alone(found) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beside_a_directory_of_its_name_is_found_in_the_order_of_keys() {
        let keys = ["a", "a!", "a-b", "a-b/x", "a/b", "a/b/c", "ab", "b", "b/", "c"];
        let (mut order, mut alone, mut beside) = (Order::default(), Vec::new(), Vec::new());
        let mut give = |ordered| match ordered {
            Ordered::Alone(found) => alone.push(found.path),
            Ordered::BesideDirectory(found) => beside.push(found.path),
        };
        for key in keys {
            order.next(Found { key: key.into(), path: key.into(), listed: None }, &mut give);
        }
        order.end(&mut give);
        alone.sort();
        beside.sort();
        assert_eq!(alone, ["a!", "a-b/x", "a/b/c", "ab", "b/", "c"]);
        assert_eq!(beside, ["a", "a-b", "a/b", "b"]);
    }

    #[test]
    fn a_key_that_is_listed_again_and_again_does_not_wait() {
        let (mut order, mut given) = (Order::default(), 0);
        for _ in 0..1000 {
            let found = Found { key: "a".into(), path: "a".into(), listed: None };
            order.next(found, &mut |_| given += 1);
            assert_eq!(order.waiting.len(), 1);
        }
        assert_eq!(given, 999);
    }

    #[test]
    fn addresses_name_prefixes_and_objects() {
        let of = |address| Names::of(&Location::parse(address).unwrap());
        assert_eq!(of("s3://bucket"), Names::Below(String::new()));
        assert_eq!(of("s3://bucket/a/"), Names::Below("a/".into()));
        assert_eq!(of("s3://bucket/a/b"), Names::Object("a/b".into()));
    }
}
