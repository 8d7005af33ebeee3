//! Reports the results of uploads in the order of the arguments, and the progress.

use std::collections::BTreeMap;
use std::time::Instant;

use fullbore_engine::run::list::List;
use fullbore_engine::run::stored::NotStored;
use fullbore_engine::run::{Counts, ErrorKind, Event, Events, Pace, StoredFile};

use super::send::{Done, Heard, Outcome, Sending};
use super::{Run, facts};
use crate::address::SCHEME;
use crate::verdict::judge;

/// Totals of a run.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Number of uploaded objects.
    pub stored: u64,
    /// Number of objects that existed already.
    pub present: u64,
    /// Number of objects that would be uploaded.
    pub wanted: u64,
    /// Total size of all these objects, in bytes.
    pub bytes: u64,
    /// Total size of uploaded objects, in bytes.
    pub sent_bytes: u64,
    /// Number of objects for which the store returned no checksum.
    pub unconfirmed: u64,
    /// Files and bytes that other machines uploaded for this run.
    pub elsewhere: (u64, u64),
}

/// Reports results and progress.
pub(super) struct Account<'a> {
    run: &'a Run<'a>,
    sending: &'a Sending,
    list: &'a mut List,
    events: &'a mut dyn Events,
    waiting: BTreeMap<usize, Done>,
    told: usize,
    next: usize,
    totals: Totals,
    failed: NotStored,
    pace: Pace,
    /// Files and bytes that other machines report as uploaded.
    elsewhere: (u64, u64),
}

impl<'a> Account<'a> {
    pub(super) fn new(
        run: &'a Run<'a>,
        sending: &'a Sending,
        list: &'a mut List,
        events: &'a mut dyn Events,
    ) -> Account<'a> {
        // While stdin is silent, no request is waiting for the store.
        let has_stdin = run.settings.sources.iter().any(|source| source.as_os_str() == "-");
        let pace = if has_stdin { Pace::new(run.begun) } else { Pace::with_peers(run.begun) };
        Account {
            run,
            sending,
            list,
            events,
            waiting: BTreeMap::new(),
            told: 0,
            next: 0,
            totals: Totals::default(),
            failed: Vec::new(),
            pace,
            elsewhere: (0, 0),
        }
    }

    /// Processes an event, and shows the progress.
    pub(super) fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Done(done) => {
                self.waiting.insert(done.number, done);
                while let Some(done) = self.waiting.remove(&self.next) {
                    self.next += 1;
                    self.tell(done);
                }
            }
            // Workers may report more than there is.
            Heard::Elsewhere(files, bytes) => {
                let plan = &self.run.plan;
                self.elsewhere = (files.min(plan.objects.len() as u64), bytes.min(plan.bytes.unwrap_or(0)));
            }
            Heard::Warning(line) => self.events.warn(line),
            Heard::Nothing => {}
        }
        if self.pace.is_due(Instant::now()) {
            self.show_progress();
        }
    }

    fn show_progress(&mut self) {
        let Totals { stored, present, wanted, bytes, sent_bytes, elsewhere, .. } = self.totals;
        let acknowledged = self.sending.client.reading().sent_bytes;
        // Files uploaded by others are reported after the bucket was listed.
        let untold = (self.elsewhere.0.saturating_sub(elsewhere.0), self.elsewhere.1.saturating_sub(elsewhere.1));
        let counts = Counts {
            files: stored + present + wanted + untold.0,
            // Complete files, and the acknowledged bytes of those in flight.
            bytes: bytes - sent_bytes + untold.1.max(acknowledged.max(sent_bytes)),
            total_files: self.run.plan.objects.len() as u64,
            total_bytes: self.run.plan.bytes.unwrap_or(0),
        };
        let verdict = judge(&facts(self.run, self.sending, acknowledged));
        let limit = verdict.confident.then_some(verdict.limit);
        let progress = self.pace.progress(counts, limit, Instant::now());
        self.events.emit(Event::Progress(progress));
    }

    /// Reports also results that followed a missing one. Returns the totals, the failures, and the number of reported
    /// objects.
    pub(super) fn end(mut self) -> (Totals, NotStored, usize) {
        for (_, done) in std::mem::take(&mut self.waiting) {
            self.tell(done);
        }
        self.show_progress();
        (self.totals, self.failed, self.told)
    }

    fn tell(&mut self, done: Done) {
        let object = &self.run.plan.objects[done.number];
        self.told += 1;
        let outcome = match done.result {
            Ok(outcome) => outcome,
            Err(error) if error.kind == ErrorKind::Interrupted => {
                self.told -= 1;
                return;
            }
            Err(error) => return self.failed.push((object.path.clone(), error)),
        };
        self.totals.bytes += done.size;
        let address = format!("{SCHEME}{}/{}", self.run.settings.bucket.location.bucket, object.key);
        // A dry run lists what it would upload.
        let is_shown = !(self.run.settings.dry_run && matches!(outcome, Outcome::Present { .. }));
        let mut file = StoredFile { is_shown, ..StoredFile::new(&object.path, done.size, &address) };
        self.list.add(&file);
        self.events.emit(match outcome {
            Outcome::Stored(stored) => {
                self.totals.stored += 1;
                self.totals.sent_bytes += stored.size;
                self.totals.unconfirmed += u64::from(!stored.confirmed);
                file.checksum_sha256 = Some(stored.checksum);
                Event::Stored(file)
            }
            Outcome::Present { .. } => {
                self.totals.present += 1;
                Event::Present(file)
            }
            Outcome::Elsewhere(stored) => {
                self.totals.stored += 1;
                self.totals.unconfirmed += u64::from(!stored.confirmed);
                file.checksum_sha256 = Some(stored.checksum).filter(|checksum| !checksum.is_empty());
                self.totals.elsewhere.0 += 1;
                self.totals.elsewhere.1 += done.size;
                Event::Stored(file)
            }
            Outcome::Wanted => {
                self.totals.wanted += 1;
                Event::WouldStore(file)
            }
        });
    }
}
