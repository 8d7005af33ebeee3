//! One end of a probe: carries out requests and returns the results.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::stage::{Kind, Ledger};

use super::compute;
use super::disks::Disks;
use super::flow;
use super::read::{self, Files};
use super::tree::{self, Sample};
use super::words::{Answer, Request, Word};
use super::write::{self, Target};
use crate::error::CopyError;
use crate::session::{CancelToken, Link};
use crate::transport::Transport;
use crate::wire::Message;

/// Share of the scan time for listing the tree; the rest is for opening the sample's files.
const LISTING: f64 = 0.8;

/// The resources of an end.
#[derive(Debug)]
pub(crate) struct Means {
    /// The link to the other end.
    pub link: Link,
    /// Ends the session early from another thread.
    pub cancel: CancelToken,
    /// Stage clocks of this process.
    pub ledger: Ledger,
    /// Carries messages to another machine; `None` within one process.
    pub transport: Option<Arc<Transport>>,
    /// The path to read or write at this end.
    pub path: PathBuf,
    /// The path whose disk the verdict watches. `None` if the other end runs in the same process and watches.
    pub watched: Option<PathBuf>,
    /// The disks under `path`.
    pub(crate) disks: Disks,
    /// Whether those disks are rotational.
    pub(crate) rotational: bool,
}

impl Means {
    /// Finds the disks of `path`, and takes over the rest.
    pub(crate) fn new(
        link: Link,
        cancel: CancelToken,
        ledger: Ledger,
        transport: Option<Arc<Transport>>,
        path: PathBuf,
    ) -> Means {
        let existing = path.ancestors().find(|path| path.exists()).unwrap_or(&path).to_owned();
        let directory = rustix::fs::open(
            if existing.is_dir() { &*existing } else { existing.parent().unwrap_or(&existing) },
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        let rotational =
            directory.is_ok_and(|directory| crate::device::is_rotational(std::os::fd::AsFd::as_fd(&directory)));
        let disks = Disks::under(&existing);
        let watched = Some(path.clone());
        Means { link, cancel, ledger, transport, path, watched, disks, rotational }
    }

    /// Sends a message to the other end.
    pub(super) fn say(&self, word: &Word) -> Result<(), CopyError> {
        let clock = self.ledger.stage("control", Kind::Thread);
        self.link.control_out.push(word.message(), &clock).map_err(|_| self.gone())
    }

    /// Waits for the other end's next message; `None` when its session has ended.
    pub(super) fn hear(&self) -> Result<Option<Word>, CopyError> {
        let clock = self.ledger.stage("control", Kind::Thread);
        match self.link.control_in.pop(&clock) {
            Some(Message::Counters(json)) => {
                Word::parse(&json).map(Some).ok_or(CopyError::Meaning("a malformed message of a probe"))
            }
            Some(message) => Err(self.unexpected(message)),
            None => Ok(None),
        }
    }

    /// The error for a silent other end.
    pub(super) fn gone(&self) -> CopyError {
        match self.cancel.reason().as_deref() {
            Some(CopyError::Interrupted) => CopyError::Interrupted,
            Some(reason) => CopyError::Network(reason.to_string()),
            None => CopyError::Network("the other end has gone".to_owned()),
        }
    }

    /// The error for a message that is not allowed here.
    pub(super) fn unexpected(&self, message: Message) -> CopyError {
        match message {
            Message::Abort { exit_code, text } => CopyError::told(exit_code, text),
            Message::Counters(json) => match Word::parse(&json) {
                Some(Word::Answer(Answer::Failed { exit_code, text })) => CopyError::Remote { exit_code, text },
                _ => CopyError::Meaning("a message out of turn"),
            },
            _ => CopyError::Meaning("a message that is not part of a probe"),
        }
    }
}

/// The source's or the destination's end of a probe.
#[derive(Debug)]
pub(crate) struct End {
    pub(super) means: Means,
    sources: Vec<PathBuf>,
    sample: Sample,
    files: Files,
    target: Option<Target>,
}

impl End {
    /// Makes the source's end.
    ///
    /// # Errors
    /// [`CopyError::Usage`] with the path and the reason if a source does not exist or cannot be opened.
    pub(crate) fn source(means: Means, sources: Vec<PathBuf>) -> Result<End, CopyError> {
        for path in &sources {
            path.symlink_metadata().map_err(|error| CopyError::Usage(format!("{}: {error}", path.display())))?;
        }
        Ok(End { means, sources, sample: Sample::default(), files: Files::default(), target: None })
    }

    /// Makes the destination's end.
    ///
    /// # Errors
    /// [`CopyError::Usage`] or [`CopyError::Disk`] if files cannot be written at the path, with the path and reason.
    pub(crate) fn target(means: Means) -> Result<End, CopyError> {
        let target = Some(Target::open(&means.path)?);
        Ok(End { means, sources: Vec::new(), sample: Sample::default(), files: Files::default(), target })
    }

    /// Carries out the other end's requests until its session ends.
    ///
    /// # Errors
    /// [`CopyError::Network`] if the connection breaks, [`CopyError::Meaning`] for a message out of turn. Any error of
    /// a request, after the other end has been told.
    pub(crate) fn serve(mut self) -> Result<(), CopyError> {
        while let Some(word) = self.means.hear()? {
            let Word::Request(order) = word else { return Err(CopyError::Meaning("a message out of turn")) };
            match self.perform(order) {
                Ok(answer) => self.means.say(&Word::Answer(answer))?,
                Err(error) => {
                    let failed = Answer::Failed { exit_code: error.exit_code(), text: error.to_string() };
                    let _ = self.means.say(&Word::Answer(failed));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Carries out one request.
    pub(super) fn perform(&mut self, order: Request) -> Result<Answer, CopyError> {
        match order {
            Request::Scan { seconds, one_file_system } => {
                let (now, time) = (Instant::now(), Duration::from_secs_f64(seconds));
                let threads = read::readers(self.means.rotational);
                let (tree, sample) = tree::scan(&self.sources, now + time.mul_f64(LISTING), one_file_system, threads)?;
                self.files = Files::examine(&sample, now + time);
                self.sample = sample;
                Ok(Answer::Scanned(tree))
            }
            Request::Compute => Ok(Answer::Computed(compute::measure(&self.sample))),
            Request::Read { seconds } => {
                let time = Duration::from_secs_f64(seconds);
                let figures = read::measure(&self.files, &self.means.disks, self.means.rotational, time);
                Ok(Answer::Read(Box::new(figures)))
            }
            Request::Write { seconds, small_bytes, big } => {
                let target = self.target.as_ref().ok_or(CopyError::Meaning("nothing can be written here"))?;
                let small_bytes = small_bytes.min(crate::wire::SMALL_BYTES as u32);
                let figures = write::measure(target, Duration::from_secs_f64(seconds), small_bytes, big);
                let figures =
                    figures.map_err(|error| CopyError::Disk(format!("{}: {error}", self.means.path.display())))?;
                Ok(Answer::Written(Box::new(figures)))
            }
            Request::Send { source_mode, seconds, bytes, allowance } => {
                let time = Duration::from_secs_f64(seconds);
                let flow = flow::send(&self.means, &self.files, source_mode, time, bytes, allowance)?;
                Ok(Answer::Sent(Box::new(flow)))
            }
            Request::Receive { sink } => {
                Ok(Answer::Received(Box::new(flow::receive(&self.means, sink, self.target.as_ref())?)))
            }
        }
    }

    /// Whether this is the source's end.
    pub(super) fn is_source(&self) -> bool {
        self.target.is_none()
    }
}
