//! What one request is for, and what has come of it.

use std::sync::Arc;

use bytes::Bytes;
use fullbore_engine::landing::Chunk;
use fullbore_engine::window::{Permit, Place, Work};
use tokio::sync::oneshot;

use super::{follow, request};
use crate::answer::range_of;
use crate::fetch::{Base, Get, GetError, Got, PendingGet, Shared};
use crate::hosts::{Fault, HostId};
use crate::http1::{Method, RequestHead, ResponseHead};
use crate::queue::Segment;
use crate::url::Plus;

/// The answer to one request, as far as it has come.
#[derive(Debug)]
// Small files are few: a box for them would cost more words than it saves.
#[allow(clippy::large_enum_variant)]
pub(super) enum Part {
    /// A part of a file, on its way to the landing.
    File(FilePart),
    /// A small file, gathered in memory.
    Small(SmallPart),
}

/// A part of a file.
#[derive(Debug)]
pub(super) struct FilePart {
    pub segment: Segment,
    pub path: String,
    /// How `+` was written when it was asked for.
    pub asked_as: Plus,
    /// It was not there under its name with `+`, and is asked for with `%2B`.
    pub other_form: bool,
    /// Offset in the file of the next byte.
    pub at: u64,
    /// The answer is not the file: its body is read and thrown away.
    pub fault: Option<Fault>,
}

impl FilePart {
    pub fn new(segment: Segment, path: String) -> Self {
        FilePart { at: segment.start, segment, path, asked_as: Plus::Raw, other_form: false, fault: None }
    }

    /// How `+` is written in the request.
    pub fn plus(&self, base: &Base) -> Plus {
        if self.other_form { Plus::Encoded } else { base.plus.form() }
    }

    /// The answer is "not there". Whether to ask once more, with `+` written in the other form.
    pub fn try_other_form(&mut self, base: &Base) -> bool {
        let again = matches!(self.fault, Some(Fault::Missing(_)))
            && self.asked_as == Plus::Raw
            && base.plus.is_worth_a_try(&self.path);
        if again {
            self.other_form = true;
            self.fault = None;
        }
        again
    }

    /// The answer is the file, or it is not there.
    pub fn note_form(&self, base: &Base, found: bool) {
        if self.other_form {
            base.plus.tried(found);
        }
    }

    /// The request for it.
    pub fn request(&mut self, base: &Base, absolute: bool) -> Result<RequestHead, String> {
        self.asked_as = self.plus(base);
        let mut head = request(base, &self.path, self.asked_as, absolute).map_err(|error| error.to_string())?;
        head.range = range_of(&self.segment);
        Ok(head)
    }

    /// Why the answer, being over, is not what was asked for.
    pub fn shortfall(&self) -> Option<Fault> {
        (self.at < self.segment.end)
            .then(|| Fault::WrongAnswer(format!("answer ends {} bytes early", self.segment.end - self.at)))
    }
}

/// A small file.
#[derive(Debug)]
pub(super) struct SmallPart {
    pub get: Get,
    reply: oneshot::Sender<Result<Got, GetError>>,
    head: Option<ResponseHead>,
    body: Vec<u8>,
}

impl SmallPart {
    pub fn new(pending: PendingGet) -> Self {
        SmallPart { get: pending.get, reply: pending.reply, head: None, body: Vec::new() }
    }

    /// The request for it.
    pub fn request(&self, base: &Base, absolute: bool) -> Result<RequestHead, String> {
        let mut head = request(base, &self.get.path, base.plus.form(), absolute).map_err(|error| error.to_string())?;
        if self.get.head_only {
            head.method = Method::Head;
        }
        head.if_none_match = self.get.if_none_match.clone();
        head.if_modified_since = self.get.if_modified_since;
        Ok(head)
    }

    /// Whether the answer says that the whole mirror is elsewhere, and it can be followed there.
    pub fn follow(&self, shared: &Shared, host: HostId, base: &Base, head: &ResponseHead) -> bool {
        let moved = matches!(head.status, 301 | 302 | 303 | 307 | 308);
        let location = head.location.as_deref().filter(|_| moved);
        location.is_some_and(|to| follow(shared, host, base, &self.get.path, base.plus.form(), to).is_none())
    }

    pub fn head(&mut self, head: ResponseHead) {
        self.head = Some(head);
    }

    /// Adds to the body; false when it is larger than it may be.
    pub fn body(&mut self, data: &[u8]) -> bool {
        let fits = self.body.len() as u64 + data.len() as u64 <= self.get.limit_bytes;
        if fits {
            self.body.extend_from_slice(data);
        }
        fits
    }

    /// Answers whoever asked. A caller that no longer waits is no error.
    pub fn done(self) {
        let _ = match self.head {
            Some(head) => self.reply.send(Ok(Got { head, body: self.body })),
            None => return,
        };
    }

    /// To be asked again on another connection.
    pub fn again(self) -> PendingGet {
        PendingGet { get: self.get, reply: self.reply }
    }

    pub fn fail(self, error: GetError) {
        let _ = self.reply.send(Err(error));
    }
}

/// Hands bytes of a file on. Waits while the landing is behind.
pub(super) async fn land(shared: &Arc<Shared>, host: HostId, item: u32, offset: u64, data: Bytes, mut permit: Permit) {
    permit.at(Place::Before(Work::Hash));
    shared.landing.chunk(Chunk { item, offset, data, permit, source: host }).await;
}
