//! The purpose of a request, and the state of its answer.

use std::sync::Arc;

use bytes::Bytes;
use fullbore_engine::landing::Chunk;
use fullbore_engine::window::{Operation, Permit, Position};

use super::{Followed, RedirectedRequest, follow, request};
use crate::answer::range_of;
use crate::fetch::{Base, Get, GetError, Got, PendingGet, Piece, Reply, Shared};
use crate::hosts::{Fault, HostId};
use crate::http1::{Method, RequestHead, ResponseHead};
use crate::queue::Segment;
use crate::redirect::{Redirects, is_redirect};
use crate::signer::{Denial, Judgement, REFUSALS_MAX, RefusalAnswer, Signed, is_refusal};
use crate::url::{Plus, Url, UrlError};

/// An answer being received.
#[derive(Debug)]
// Small files are few: a box for them would cost more words than it saves.
#[allow(clippy::large_enum_variant)]
pub(super) enum Part {
    /// A part of a file, passed on to the landing.
    File(FilePart),
    /// A small file, collected in memory.
    Small(SmallPart),
    /// Requested elsewhere: the rest of this answer is read and dropped.
    Over,
    /// Refused by its head: the rest of this answer is read and dropped.
    Refused,
}

impl Part {
    /// Whether the answer may be about the signature. It is judged when its body is complete.
    pub(super) fn begin_refusal(&mut self, base: &Base, head: &ResponseHead) -> bool {
        let (to, refusal) = match self {
            Part::File(FilePart { to, refusal, .. }) | Part::Small(SmallPart { to, refusal, .. }) => (to, refusal),
            Part::Over | Part::Refused => return false,
        };
        if base.signer.is_none() || to.is_some() || !is_refusal(head.status) {
            return false;
        }
        *refusal = Some(Box::new(RefusalAnswer::of(head)));
        true
    }
}

/// A requested part of a file.
#[derive(Debug)]
pub(crate) struct FilePart {
    pub segment: Segment,
    pub path: String,
    /// Further header fields of the request.
    pub fields: Vec<(String, String)>,
    /// Form of `+` in the request that was sent.
    pub asked_as: Plus,
    /// The file was not found under its name with `+`, and is requested with `%2B`.
    pub other_form: bool,
    /// Chain of redirects; `None` for the host's own address.
    pub to: Option<Box<Redirects>>,
    /// The last redirect led to another address of the same server: it is requested again on this connection.
    pub again: bool,
    /// Offset of the next byte in the file.
    pub at: u64,
    /// The answer is not the file: its body is read and dropped.
    pub fault: Option<Fault>,
    /// The answer may be about the signature: its body is read.
    pub refusal: Option<Box<RefusalAnswer>>,
    pub signed: Signed,
}

impl FilePart {
    pub(crate) fn new(segment: Segment, (path, fields): (String, Vec<(String, String)>)) -> Self {
        FilePart {
            at: segment.start,
            segment,
            path,
            fields,
            asked_as: Plus::Raw,
            other_form: false,
            to: None,
            again: false,
            fault: None,
            refusal: None,
            signed: Signed::default(),
        }
    }

    /// Form of `+` in the request.
    pub(crate) fn plus(&self, base: &Base) -> Plus {
        if self.other_form || base.signer.is_some() { Plus::Encoded } else { base.plus.form() }
    }

    /// After "not found": whether to request once more, with `+` in the other form.
    pub(crate) fn try_other_form(&mut self, base: &Base) -> bool {
        let again = matches!(self.fault, Some(Fault::Missing(_)))
            && !base.paths_are_encoded
            && self.to.is_none()
            && self.asked_as == Plus::Raw
            && base.plus.is_worth_a_try(&self.path);
        if again {
            self.other_form = true;
            self.fault = None;
        }
        again
    }

    /// Records for the host's form of `+` whether the file was found.
    pub(crate) fn note_form(&self, base: &Base, found: bool) {
        if self.other_form {
            base.plus.tried(found);
        }
    }

    /// Builds the request for the part.
    pub(crate) fn request(&mut self, base: &Base, absolute: bool) -> Result<RequestHead, String> {
        self.asked_as = self.plus(base);
        self.again = false;
        let url = self.url(base).map_err(|error| error.to_string())?;
        let mut head = request(base, &url, absolute);
        head.range = range_of(&self.segment);
        head.fields.clone_from(&self.fields);
        if self.to.is_none() {
            sign(base, &url, &mut head, &mut self.signed);
        }
        Ok(head)
    }

    fn url(&self, base: &Base) -> Result<Url, UrlError> {
        match &self.to {
            Some(to) => Ok(to.current().clone()),
            None => base.url_of(&self.path, self.asked_as),
        }
    }

    /// Follows the redirect that answered the request.
    pub(crate) fn follow(&self, shared: &Shared, host: HostId, base: &Base, location: &str) -> Followed {
        match self.url(base) {
            Ok(url) => follow(shared, host, base, chain(&self.to, url), location),
            Err(error) => Followed::Refused(Fault::WrongAnswer(error.to_string())),
        }
    }

    /// The fault of a complete answer that is not as requested.
    pub(crate) fn shortfall(&self) -> Option<Fault> {
        (self.at < self.segment.end)
            .then(|| Fault::WrongSize(format!("answer ends {} B early", self.segment.end - self.at)))
    }
}

/// Signs a request if the host wants signatures.
fn sign(base: &Base, url: &Url, head: &mut RequestHead, signed: &mut Signed) {
    if let Some(signer) = &base.signer {
        signed.signature = signer.sign(head, url);
    }
}

/// Judges an answer to a signed request.
pub(crate) fn judge_refusal(base: &Base, signed: &mut Signed, answer: &RefusalAnswer) -> Judgement {
    let Some(signer) = &base.signer else { return Judgement::Status(None) };
    match signer.judge(signed.signature, &answer.head, &answer.body) {
        Judgement::Again(denial) | Judgement::Moved(denial) if signed.refused >= REFUSALS_MAX => {
            Judgement::Denied(denial)
        }
        judgement => {
            signed.refused += 1;
            judgement
        }
    }
}

/// The redirects of a request so far, beginning at this address.
fn chain(so_far: &Option<Box<Redirects>>, url: Url) -> Redirects {
    so_far.as_deref().cloned().unwrap_or_else(|| Redirects::from(url))
}

/// A file that is received in one piece.
#[derive(Debug)]
pub(crate) struct SmallPart {
    pub get: Get,
    /// Chain of redirects; `None` for the host's own address.
    pub to: Option<Box<Redirects>>,
    reply: Reply,
    head: Option<ResponseHead>,
    body: Vec<u8>,
    received: u64,
    /// The answer may be about the signature.
    pub refusal: Option<Box<RefusalAnswer>>,
    pub signed: Signed,
    denial: Option<Denial>,
}

/// Why the rest of a body is not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwanted {
    /// The body is larger than allowed.
    TooLarge,
    /// The caller has given up.
    NobodyWaits,
}

impl SmallPart {
    pub(crate) fn new(pending: PendingGet) -> Self {
        SmallPart {
            get: pending.get,
            to: None,
            reply: pending.reply,
            head: None,
            body: Vec::new(),
            received: 0,
            refusal: None,
            signed: pending.signed,
            denial: None,
        }
    }

    /// Builds the request for the file.
    pub(crate) fn request(&mut self, base: &Base, absolute: bool) -> Result<RequestHead, String> {
        let url = self.url(base).map_err(|error| error.to_string())?;
        let mut head = request(base, &url, absolute);
        if self.get.head_only {
            head.method = Method::Head;
        }
        head.if_none_match = self.get.if_none_match.clone();
        head.if_modified_since = self.get.if_modified_since;
        head.fields.clone_from(&self.get.fields);
        if self.to.is_none() {
            sign(base, &url, &mut head, &mut self.signed);
        }
        Ok(head)
    }

    fn url(&self, base: &Base) -> Result<Url, UrlError> {
        match &self.to {
            Some(to) => Ok(to.current().clone()),
            None => base.url_of(&self.get.path, base.plus.form()),
        }
    }

    /// Target of a redirect that can be followed; `None` otherwise.
    pub(crate) fn follow(&self, shared: &Shared, host: HostId, base: &Base, head: &ResponseHead) -> Option<Followed> {
        let location = head.location.as_deref().filter(|_| is_redirect(head.status))?;
        let followed = follow(shared, host, base, chain(&self.to, self.url(base).ok()?), location);
        (!matches!(followed, Followed::Refused(_))).then_some(followed)
    }

    /// Ends with a refusal: the caller gets the answer and the reason.
    pub(crate) async fn done_refused(mut self, answer: RefusalAnswer, denial: Option<Denial>) {
        self.denial = denial;
        self.head(answer.head);
        // A body that is too large, or has no taker, does not change the meaning of the status.
        let _ = self.body(answer.body.into()).await;
        self.done().await;
    }

    /// Makes a request to be sent to the target of a redirect.
    pub(crate) fn elsewhere(mut self, to: Box<Redirects>) -> RedirectedRequest {
        let target = to.current().clone();
        self.to = Some(to);
        RedirectedRequest::Small(Box::new(self), target)
    }

    pub(crate) fn head(&mut self, head: ResponseHead) {
        if let Some(seen) = &self.get.head_seen {
            seen.note(&head);
        }
        match &mut self.reply {
            Reply::Whole(_) => self.head = Some(head),
            Reply::Stream(waiting, _) => {
                // If the caller has given up, the first piece of the body will show it.
                if let Some(waiting) = waiting.take() {
                    drop(waiting.send(Ok(head)));
                }
            }
        }
    }

    /// Appends to the body; `Some` gives the reason if the body is not wanted.
    pub(crate) async fn body(&mut self, data: Bytes) -> Option<Unwanted> {
        self.received += data.len() as u64;
        if self.received > self.get.limit_bytes {
            return Some(Unwanted::TooLarge);
        }
        match &mut self.reply {
            Reply::Whole(reply) if reply.is_closed() => Some(Unwanted::NobodyWaits),
            Reply::Whole(_) => {
                self.body.extend_from_slice(&data);
                None
            }
            Reply::Stream(_, pieces) => {
                let sent = pieces.send(Ok(Piece::Data(data))).await;
                sent.err().map(|_| Unwanted::NobodyWaits)
            }
        }
    }

    /// Passes the complete answer to the caller. A caller that has given up is no error.
    pub(crate) async fn done(self) {
        match (self.reply, self.head) {
            (Reply::Whole(reply), Some(head)) => {
                drop(reply.send(Ok(Got { head, body: self.body, denial: self.denial })))
            }
            (Reply::Whole(_), None) => {}
            (Reply::Stream(_, pieces), _) => drop(pieces.send(Ok(Piece::End)).await),
        }
    }

    /// Makes a request to be sent on another connection; `None` if that is not possible. A stream that has begun cannot
    /// begin again, so it fails. A file without a caller is not requested again.
    pub(crate) fn again(self) -> Option<PendingGet> {
        let is_untouched = !matches!(self.reply, Reply::Stream(None, _));
        (is_untouched && self.is_waited_for()).then_some(PendingGet {
            get: self.get,
            reply: self.reply,
            signed: self.signed,
        })
    }

    /// Whether the caller still waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        match &self.reply {
            Reply::Whole(reply) => !reply.is_closed(),
            Reply::Stream(Some(head), _) => !head.is_closed(),
            Reply::Stream(None, pieces) => !pieces.is_closed(),
        }
    }

    /// Fails the file, because its body is not as it should be.
    pub(crate) fn refuse(self, why: Unwanted, host: String) {
        let (path, limit_bytes) = (self.get.path.clone(), self.get.limit_bytes);
        if why == Unwanted::TooLarge {
            self.fail(GetError::TooLarge { host, path, limit_bytes });
        }
    }

    pub(crate) fn fail(self, error: GetError) {
        match self.reply {
            Reply::Whole(reply) => drop(reply.send(Err(error))),
            Reply::Stream(Some(head), _) => drop(head.send(Err(error))),
            // Without room for the error, the missing end means the same.
            Reply::Stream(None, pieces) => drop(pieces.try_send(Err(error))),
        }
    }
}

/// Hands bytes of a file to the landing. Waits while the landing is behind.
pub(super) async fn land(shared: &Arc<Shared>, host: HostId, item: u32, offset: u64, data: Bytes, mut permit: Permit) {
    permit.at(Position::Before(Operation::Hash));
    shared.landing.chunk(Chunk { item, offset, data, permit, source: host }).await;
}
