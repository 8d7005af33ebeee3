//! One HTTP/1.1 connection: requests ahead, answers in order.
//!
//! The loop requests as much as the dispatcher allows, writes, reads the available bytes, and hands body bytes on
//! before it reads again. Bytes are read only under a permit of the window. So a slow disk fills the window, then the
//! socket's buffer, and then the sender waits.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use fullbore_engine::window::{Permit, Position};

use super::io::{Turn, read_now, turn};
use super::part::{FilePart, Part, SmallPart, judge_refusal, land};
use super::{Busy, Followed, RedirectedRequest, is_left, move_signed};
use crate::answer::{Answer, judge};
use crate::connect::Connected;
use crate::dispatcher::{ConnectionId, Ended, Keep, Next};
use crate::fetch::{Base, GetError, Shared, WireHead, lock};
use crate::hosts::{Fault, HostId};
use crate::http1::{BodyLength, Event, Http1, Http1Error, Limits, RequestHead, ResponseHead, Version};
use crate::range::ContentRange;
use crate::signer::{Denial, Judgement, Preparing, RefusalAnswer};
use crate::stream::Stream;
use crate::url::Url;

/// How often a connection checks whether it is overdue.
const OVERDUE_EVERY: Duration = Duration::from_millis(250);

/// A connection that was idle for this long may be closed by the server at any moment. A close that crosses our next
/// requests then means nothing. Servers wait 5 s (Apache) or more, but a load balancer or a restart does not.
const IDLE: Duration = Duration::from_secs(1);

/// Maximum number of unwanted body bytes to read: more is dearer than a new connection.
const DISCARD_BYTES: u64 = 64 << 10;

/// Source of a connection's requests.
pub(super) enum RequestSource {
    /// The queue: a connection to the host itself.
    Queue,
    /// Requests that the host has redirected to this address, and the first of them. See [`super::redirected`].
    Detours(Option<RedirectedRequest>),
}

/// Serves one connection until it ends.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    host: HostId,
    id: ConnectionId,
    base: &Base,
    connected: Connected,
    source: RequestSource,
) -> Ended {
    let mut http = Http1::new(Limits::default());
    if shared.options.head_log.is_some() {
        http.keep_heads();
    }
    let mut serving = Serving {
        shared,
        source,
        host,
        id,
        base,
        absolute: connected.absolute_form,
        http,
        asked_for: VecDeque::new(),
        parts: VecDeque::new(),
        gets: 0,
        skipped_bytes: 0,
        moved: false,
        busy: Busy::new(&shared.host_clocks[host as usize]),
        idle_since: Instant::now(),
        after_idle: false,
        served: 0,
        refused: VecDeque::new(),
    };
    let mut stream = connected.stream;
    let mut inbox = shared.buffers.take();
    let how = serving.run(&mut stream, &mut inbox).await;
    shared.buffers.put_back(inbox);
    serving.give_up(&how);
    how
}

struct Serving<'a> {
    shared: &'a Arc<Shared>,
    source: RequestSource,
    host: HostId,
    id: ConnectionId,
    base: &'a Base,
    absolute: bool,
    http: Http1,
    /// Addresses of the requests in flight, for the log of heads; empty without one.
    asked_for: VecDeque<Url>,
    /// One entry per request in flight, in order: tag and purpose.
    parts: VecDeque<(u64, Part)>,
    /// Number of small files. Their tags count down from the top, those of the dispatcher up from 0.
    gets: u64,
    /// Bytes skipped of an unwanted answer.
    skipped_bytes: u64,
    /// The host has moved: this connection ends when it is idle.
    moved: bool,
    busy: Busy<'a>,
    idle_since: Instant,
    /// The requests in flight followed a long silence, and none has been answered since.
    after_idle: bool,
    /// Number of answers that were as requested.
    served: u64,
    /// Parts of files whose signatures were refused, to be requested again with new ones.
    refused: VecDeque<(u64, FilePart)>,
}

impl Serving<'_> {
    async fn run(&mut self, stream: &mut Stream, inbox: &mut BytesMut) -> Ended {
        let shared = self.shared;
        let mut overdue = tokio::time::interval(OVERDUE_EVERY);
        let mut preparing = None;
        loop {
            let woken = shared.wake.notified();
            let mut woken = pin!(woken);
            woken.as_mut().enable();
            // A credential service may be slow: answers are read meanwhile.
            let signer = self.base.signer.as_deref();
            if preparing.is_none() {
                preparing = signer.filter(|signer| signer.is_due()).map(|signer| signer.prepare());
            }
            if signer.is_none_or(|signer| signer.is_prepared())
                && let Some(how) = self.ask()
            {
                return how;
            }
            self.busy.set(!self.parts.is_empty());
            let idle = self.parts.is_empty();
            let looks = idle && shared.dispatcher().is_at_the_end();
            tokio::select! {
                biased;
                moved = self.turn(stream, idle) => match moved {
                    Ok(Turn::Readable) => {}
                    Ok(Turn::Written) => continue,
                    Err(error) => return broken(&error),
                },
                prepared = prepared(&mut preparing) => match prepared {
                    Ok(()) => continue,
                    Err(denial) => return Ended::Fault(Fault::Denied(denial)),
                },
                () = woken => continue,
                () = shared.look_again(), if looks => continue,
                _ = overdue.tick() => {
                    // A host whose answers were all refusals owes nothing.
                    let fault = match idle {
                        true => None,
                        false => shared.dispatcher().overdue(self.id, Instant::now()),
                    };
                    if let Some(fault) = fault {
                        return Ended::Fault(fault);
                    }
                    if self.is_left() {
                        return Ended::Ours;
                    }
                    continue;
                }
            }
            if let Some(how) = self.read(stream, inbox).await {
                return how;
            }
        }
    }

    /// Waits for data or for room to write. The wait counts only if a request is in flight.
    async fn turn(&mut self, stream: &mut Stream, idle: bool) -> io::Result<Turn> {
        let (network, tls) = (&self.shared.network, &self.shared.tls);
        if idle {
            turn(stream, &mut self.http, tls).await
        } else {
            network.socket_read(turn(stream, &mut self.http, tls)).await
        }
    }

    /// Queues all requests that may be sent now. `Some` ends the connection.
    fn ask(&mut self) -> Option<Ended> {
        if let RequestSource::Detours(first) = &mut self.source {
            let first = first.take();
            return self.ask_detour(first);
        }
        if self.shared.dispatcher().host_mut(self.host).depth() <= 1 {
            // This host may answer in another order, so small files are not pipelined with parts of files either.
            self.http.set_depth(1);
        }
        while !self.moved && self.http.free_slots() > 0 && !self.http.is_closing() {
            let Some((tag, part)) = self.refused.pop_front() else { break };
            if self.parts.is_empty() {
                self.shared.dispatcher().waits_for_us(self.id, Instant::now());
            }
            if let Some(how) = self.ask_file(tag, part) {
                return Some(how);
            }
        }
        while self.http.free_slots() > 0 && !self.http.is_closing() {
            let Some(pending) = lock(&self.shared.gets)[self.host as usize].pop_front() else { break };
            self.ask_small(SmallPart::new(pending));
        }
        if self.moved {
            return self.parts.is_empty().then_some(Ended::Ours);
        }
        while self.http.free_slots() > 0 && !self.http.is_closing() {
            match self.shared.next(self.id) {
                Next::Ask { tag, segment } => {
                    let path = self.shared.begin(segment.item);
                    if let Some(how) = self.ask_file(tag, FilePart::new(segment, path)) {
                        return Some(how);
                    }
                }
                Next::Wait => break,
                Next::Close => return self.no_gets().then_some(Ended::Ours),
            }
        }
        let is_in_the_way = self.parts.is_empty() && self.shared.addresses.is_wanted(&self.base.url);
        is_in_the_way.then_some(Ended::Ours)
    }

    /// Requests redirected files from this address, one at a time. `Some` ends the connection.
    fn ask_detour(&mut self, mut first: Option<RedirectedRequest>) -> Option<Ended> {
        while self.parts.is_empty() && !self.http.is_closing() {
            match first.take().or_else(|| self.shared.next_detour(self.host, &self.base.url)) {
                Some(RedirectedRequest::Small(small, _)) if small.is_waited_for() => self.ask_small(*small),
                Some(RedirectedRequest::Small(..)) => {}
                Some(RedirectedRequest::File(ticket, part, _)) => {
                    let tag = self.shared.dispatcher().take_detour(ticket, self.id, Instant::now());
                    if let Some(how) = tag.and_then(|tag| self.ask_file(tag, *part)) {
                        return Some(how);
                    }
                }
                None => {
                    let is_over = self.idle_since.elapsed() > IDLE;
                    let is_over = is_over || self.shared.is_detour_in_the_way(self.host, &self.base.url);
                    return is_over.then_some(Ended::Ours);
                }
            }
        }
        None
    }

    fn ask_small(&mut self, mut small: SmallPart) {
        self.gets += 1;
        let tag = u64::MAX - self.gets;
        match small.request(self.base, self.absolute).and_then(|head| self.queue_request(&head, tag)) {
            Ok(()) => {
                self.shared.dispatcher().host_mut(self.host).totals.requests += 1;
                self.parts.push_back((tag, Part::Small(small)));
            }
            Err(reason) => small.fail(GetError::Unreachable { host: self.base.url.host_and_port(), reason }),
        }
    }

    /// Requests a part of a file. `Some` ends the connection.
    fn ask_file(&mut self, tag: u64, mut part: FilePart) -> Option<Ended> {
        match part.request(self.base, self.absolute).and_then(|head| self.queue_request(&head, tag)) {
            Ok(()) => {
                self.parts.push_back((tag, Part::File(part)));
                None
            }
            Err(reason) => Some(Ended::Fault(Fault::WrongAnswer(reason))),
        }
    }

    /// Whether this is a connection to the target of a redirect. Such a connection is closed after an incomplete
    /// answer: no further request would reveal that the rest does not come.
    fn is_detour(&self) -> bool {
        matches!(self.source, RequestSource::Detours(_))
    }

    /// Whether nobody waits any more for the small file that is being received here.
    fn is_left(&self) -> bool {
        let small = |part: &Part| matches!(part, Part::Small(small) if !small.is_waited_for());
        self.is_detour() && self.parts.front().is_some_and(|(_, part)| small(part))
    }

    fn queue_request(&mut self, head: &RequestHead, tag: u64) -> Result<(), String> {
        if self.parts.is_empty() {
            self.after_idle = self.http.answered() > 0 && self.idle_since.elapsed() > IDLE;
        }
        self.http.request(head, tag, BodyLength::None).map_err(|error| error.to_string())?;
        if let Some(log) = &self.shared.options.head_log {
            log.tell(WireHead::Request(&head.shown()));
            let at =
                if self.absolute { Url::parse(&head.target) } else { self.base.url.with_target(head.target.clone()) };
            self.asked_for.push_back(at.unwrap_or_else(|_| self.base.url.clone()));
        }
        Ok(())
    }

    fn no_gets(&self) -> bool {
        !self.parts.iter().any(|(_, part)| matches!(part, Part::Small(_)))
    }

    /// Reads the available bytes and passes them on. `Some` ends the connection.
    async fn read(&mut self, stream: &mut Stream, inbox: &mut BytesMut) -> Option<Ended> {
        let shared = self.shared;
        shared.buffers.refill(inbox);
        let room = inbox.capacity() - inbox.len();
        let mut permit = shared.network.blocked(shared.window.acquire_bytes(room as u64)).await;
        permit.at(Position::OnTheWire);
        let (bytes, end) = match read_now(stream, inbox, &shared.tls).await {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => return Some(broken(&error)),
        };
        permit.shrink(bytes as u64);
        shared.network.add_items(0, bytes as u64);
        shared.host_clocks[self.host as usize].received(bytes as u64);
        // Wait before passing the bytes on: a run must not end before its last bytes are paid for.
        shared.throttle(bytes as u64).await;
        loop {
            match self.http.receive(inbox) {
                Ok(Some(event)) => {
                    if let Some(how) = self.event(event, &mut permit).await {
                        return Some(how);
                    }
                }
                Ok(None) => break,
                Err(error) => return Some(self.protocol_error(&error)),
            }
        }
        if end {
            return Some(self.end_of_stream(&mut permit).await);
        }
        None
    }

    async fn end_of_stream(&mut self, permit: &mut Permit) -> Ended {
        loop {
            match self.http.end_of_stream() {
                Ok(Some(event)) => {
                    if let Some(how) = self.event(event, permit).await {
                        return how;
                    }
                }
                // The connection is idle, or was idle until a moment ago: neither a fault nor a count to learn from.
                Ok(None) if self.parts.is_empty() || self.after_idle => return Ended::Ours,
                Ok(None) if self.served > 0 => return Ended::Clean,
                Ok(None) if self.http.answered() > 0 => return Ended::Ours,
                Ok(None) => return Ended::Fault(Fault::Broken("closed without an answer".into())),
                Err(error) => return self.protocol_error(&error),
            }
        }
    }

    fn protocol_error(&self, error: &Http1Error) -> Ended {
        let fault = match error {
            Http1Error::TruncatedBody { .. } | Http1Error::TruncatedHead { .. } => Fault::Broken(error.to_string()),
            _ => Fault::WrongAnswer(error.to_string()),
        };
        Ended::Fault(fault)
    }

    async fn event(&mut self, event: Event, permit: &mut Permit) -> Option<Ended> {
        match event {
            Event::Head { head, .. } => {
                self.log_answer();
                self.head(*head)
            }
            Event::Body { data, .. } => self.body(data, permit).await,
            Event::End { keep_alive, .. } => self.end(keep_alive).await,
        }
    }

    fn log_answer(&mut self) {
        let Some(log) = &self.shared.options.head_log else { return };
        if let (Some(head), Some(url)) = (self.http.take_head(), self.asked_for.pop_front()) {
            log.tell(WireHead::Answer(&String::from_utf8_lossy(&head), &url));
        }
    }

    fn head(&mut self, head: ResponseHead) -> Option<Ended> {
        if head.version == Version::Http10 {
            self.http.set_depth(1);
            self.cannot_pipeline();
        }
        if let Some(phrase) = &head.reason {
            self.shared.dispatcher().host_mut(self.host).said(head.status, phrase);
        }
        let mixed = self.is_of_another(&head);
        self.after_idle = false;
        self.skipped_bytes = 0;
        let is_long = head.content_length.is_some_and(|length| length > DISCARD_BYTES);
        let (tag, part) = self.parts.front_mut()?;
        if part.begin_refusal(self.base, &head) {
            return None;
        }
        let part = match part {
            Part::Small(small) => {
                match small.follow(self.shared, self.host, self.base, &head) {
                    // `give_up` requests it again there.
                    Some(Followed::Moved) => return Some(Ended::Ours),
                    Some(Followed::Elsewhere(to)) => {
                        if let Part::Small(small) = std::mem::replace(part, Part::Over) {
                            self.shared.detour(self.host, small.elsewhere(to));
                        }
                        return (is_long || self.is_detour()).then(|| self.refuse_front());
                    }
                    _ => small.head(head),
                }
                return None;
            }
            Part::File(part) => part,
            Part::Over | Part::Refused => return None,
        };
        match judge(&head, &part.path, &part.segment, unix_now_s()) {
            Answer::Body => {
                part.note_form(self.base, true);
                if self.shared.dispatcher().shows_files(self.host) {
                    self.shared.wake.notify_waiters();
                }
                if let Some(modified) = head.last_modified {
                    self.shared.landing.set_mtime(part.segment.item, modified);
                }
                return None;
            }
            Answer::Redirect(location) => match part.follow(self.shared, self.host, self.base, &location) {
                Followed::Moved => {
                    // Request it again at the new address; the host answers other requests in flight alike.
                    self.moved = true;
                    return Some(Ended::Ours);
                }
                Followed::Elsewhere(to) => {
                    part.again = to.current().same_origin(&self.base.url);
                    part.to = Some(to);
                    let stays = part.again;
                    if !stays {
                        let tag = *tag;
                        self.detour_front(tag);
                    }
                    return (is_long || !stays && self.is_detour()).then(|| self.refuse_front());
                }
                Followed::Refused(fault) => part.fault = Some(fault),
            },
            Answer::Fault(fault) => part.fault = Some(fault),
        }
        // This host mixes up pipelined answers.
        if mixed {
            return Some(Ended::Fault(Fault::CannotPipeline));
        }
        if (is_long || head.content_length.is_none()) && !matches!(head.status, 304 | 204) {
            return Some(self.refuse_front());
        }
        self.refuse_wrong_content();
        None
    }

    /// Reports an answer whose head shows another file. At once, because the rest of the answer may never come.
    fn refuse_wrong_content(&mut self) {
        let Some((tag, Part::File(part))) = self.parts.front_mut() else { return };
        let Some(fault) = part.fault.take_if(|fault| fault.is_wrong_content()) else { return };
        let tag = *tag;
        self.parts[0].1 = Part::Refused;
        self.tell_refused(tag, fault);
    }

    fn tell_refused(&self, tag: u64, fault: Fault) {
        self.shared.dispatcher().refused(self.id, tag, fault, Instant::now());
        self.shared.attention.notify_one();
        self.shared.wake.notify_waiters();
    }

    /// The part being answered is at another address, where another connection will request it.
    fn detour_front(&mut self, tag: u64) {
        let Some((_, front)) = self.parts.front_mut() else { return };
        if let Part::File(part) = std::mem::replace(front, Part::Over) {
            self.detour(tag, part);
        }
    }

    fn detour(&mut self, tag: u64, mut part: FilePart) {
        part.again = false;
        let ticket = self.shared.dispatcher().detour(self.id, tag, Instant::now());
        if let Some((ticket, to)) = ticket.zip(part.to.as_ref().map(|to| to.current().clone())) {
            self.shared.detour(self.host, RedirectedRequest::File(ticket, Box::new(part), to));
        }
    }

    /// Whether the answer has the position and length of another request in flight, and not those of its own.
    fn is_of_another(&self, head: &ResponseHead) -> bool {
        let first = match (head.status, &head.content_range) {
            (200, _) => 0,
            (206, Some(ContentRange::Bytes { first, .. })) => *first,
            _ => return false,
        };
        let fits = |part: &Part| match part {
            Part::File(part) => part.segment.start == first && head.content_length == Some(part.segment.len()),
            Part::Small(_) | Part::Over | Part::Refused => false,
        };
        let own = self.parts.front().is_some_and(|(_, part)| fits(part));
        !own && self.parts.iter().skip(1).any(|(_, part)| fits(part))
    }

    /// Ends the connection, because the first answer is useless and too long to be read to its end.
    fn refuse_front(&mut self) -> Ended {
        match self.parts.pop_front() {
            Some((tag, Part::File(part))) if part.again => self.detour(tag, part),
            Some((tag, Part::File(FilePart { fault: Some(fault), .. }))) => {
                self.shared.dispatcher().refused(self.id, tag, fault, Instant::now());
                self.shared.attention.notify_one();
            }
            _ => {}
        }
        Ended::Ours
    }

    async fn body(&mut self, data: Bytes, permit: &mut Permit) -> Option<Ended> {
        let (tag, part) = self.parts.front_mut()?;
        let part = match part {
            Part::Small(SmallPart { refusal: Some(refusal), .. })
            | Part::File(FilePart { refusal: Some(refusal), .. }) => {
                // No reason is so long: use the bytes read so far.
                let is_short = refusal.add(&data);
                return if is_short { None } else { self.end(false).await };
            }
            Part::Small(small) => {
                let why = small.body(data).await?;
                if let Some((_, Part::Small(small))) = self.parts.pop_front() {
                    small.refuse(why, self.base.url.host_and_port());
                }
                return Some(Ended::Ours);
            }
            Part::File(part) if part.fault.is_none() && !part.again => part,
            Part::File(_) | Part::Over | Part::Refused => {
                self.skipped_bytes += data.len() as u64;
                return (self.skipped_bytes > DISCARD_BYTES).then(|| self.refuse_front());
            }
        };
        if data.len() as u64 > part.segment.end - part.at {
            part.fault = Some(Fault::WrongSize("answer is longer than the file".into()));
            return Some(self.refuse_front());
        }
        let keep = self.shared.dispatcher().received(self.id, *tag, data.len() as u64, Instant::now());
        let Keep::First { wanted } = keep else { return Some(Ended::Ours) };
        let offset = part.at;
        part.at += data.len() as u64;
        if wanted > 0 {
            let item = part.segment.item;
            let held = permit.split(data.len() as u64);
            land(self.shared, self.host, item, offset, data.slice(..wanted as usize), held).await;
        }
        None
    }

    async fn end(&mut self, keep_alive: bool) -> Option<Ended> {
        let (tag, part) = self.parts.pop_front()?;
        self.idle_since = Instant::now();
        let mut good = true;
        match part {
            Part::Small(mut small) => match small.refusal.take() {
                None => small.done().await,
                Some(refusal) => {
                    if let Some(how) = self.small_refused(small, *refusal, keep_alive).await {
                        return Some(how);
                    }
                }
            },
            Part::Over => {}
            Part::Refused => good = false,
            Part::File(mut part) if part.refusal.is_some() => {
                if let Some(refusal) = part.refusal.take() {
                    return self.file_refused(tag, part, *refusal, keep_alive).await;
                }
            }
            Part::File(part) if part.again && !keep_alive => self.detour(tag, part),
            Part::File(mut part) => {
                if part.again || keep_alive && part.try_other_form(self.base) {
                    return self.ask_file(tag, part);
                }
                if matches!(part.fault, Some(Fault::Missing(_))) {
                    part.note_form(self.base, false);
                }
                let fault = part.fault.take().or_else(|| part.shortfall());
                good = fault.is_none();
                match fault {
                    None => self.shared.dispatcher().answered(self.id, tag),
                    Some(fault) => self.tell_refused(tag, fault),
                }
            }
        }
        self.served += u64::from(good);
        // A close after an error is about the error, not about the number of requests.
        (!keep_alive).then_some(if good { Ended::Clean } else { Ended::Ours })
    }

    /// Handles the complete refusal of a signed request for a part of a file. `Some` ends the connection.
    async fn file_refused(
        &mut self,
        tag: u64,
        mut part: FilePart,
        refusal: RefusalAnswer,
        keep_alive: bool,
    ) -> Option<Ended> {
        let close = (!keep_alive).then_some(Ended::Ours);
        if is_left(self.shared, self.host, self.base) {
            self.moved = true;
            return Some(Ended::Ours);
        }
        match judge_refusal(self.base, &mut part.signed, &refusal) {
            Judgement::Again(_) if keep_alive => {
                self.refused.push_back((tag, part));
                return None;
            }
            // When this connection ends, its requests go back to the queue.
            Judgement::Again(_) => return Some(Ended::Ours),
            Judgement::Moved(_) if move_signed(self.shared, self.host, self.base) => {
                self.moved = true;
                return Some(Ended::Ours);
            }
            Judgement::Moved(denial) | Judgement::Denied(denial) => return Some(Ended::Fault(Fault::Denied(denial))),
            Judgement::Status(_) => match judge(&refusal.head, &part.path, &part.segment, unix_now_s()) {
                Answer::Body => {}
                Answer::Fault(fault) => self.tell_refused(tag, fault),
                Answer::Redirect(location) => match part.follow(self.shared, self.host, self.base, &location) {
                    Followed::Moved => return Some(Ended::Ours),
                    Followed::Elsewhere(to) => {
                        let stays = to.current().same_origin(&self.base.url);
                        part.to = Some(to);
                        if stays && keep_alive {
                            return self.ask_file(tag, part);
                        }
                        self.detour(tag, part);
                    }
                    Followed::Refused(fault) => self.tell_refused(tag, fault),
                },
            },
        }
        close
    }

    /// The same for a small file.
    async fn small_refused(&mut self, mut small: SmallPart, refusal: RefusalAnswer, keep_alive: bool) -> Option<Ended> {
        if is_left(self.shared, self.host, self.base) {
            self.moved = true;
            self.ask_again_later(small);
            return Some(Ended::Ours);
        }
        match judge_refusal(self.base, &mut small.signed, &refusal) {
            Judgement::Again(_) => {
                self.ask_again_later(small);
                return (!keep_alive).then_some(Ended::Ours);
            }
            Judgement::Moved(_) if move_signed(self.shared, self.host, self.base) => {
                self.moved = true;
                self.ask_again_later(small);
                return Some(Ended::Ours);
            }
            Judgement::Moved(denial) | Judgement::Denied(denial) => {
                let host = self.shared.dispatcher().host_mut(self.host).name.clone();
                small.fail(GetError::Denied { host, denial: denial.clone() });
                return Some(Ended::Fault(Fault::Denied(denial)));
            }
            Judgement::Status(denial) => match small.follow(self.shared, self.host, self.base, &refusal.head) {
                Some(Followed::Elsewhere(to)) => self.shared.detour(self.host, small.elsewhere(to)),
                _ => small.done_refused(refusal, denial).await,
            },
        }
        None
    }

    /// Puts the file first in the queue, to be signed anew.
    fn ask_again_later(&self, small: SmallPart) {
        if let Some(pending) = small.again() {
            lock(&self.shared.gets)[self.host as usize].push_front(pending);
        }
    }

    fn cannot_pipeline(&self) {
        if self.is_detour() {
            return;
        }
        let mut dispatcher = self.shared.dispatcher();
        let host = dispatcher.host_mut(self.host);
        if host.depth() > 1 {
            host.fault(&Fault::CannotPipeline, Instant::now());
        }
    }

    /// Handles the unanswered small files at the end of a connection. If it ended well, they are requested again on the
    /// next one; otherwise they fail.
    fn give_up(&mut self, how: &Ended) {
        for (_, part) in self.parts.drain(..) {
            let Part::Small(small) = part else { continue };
            match how {
                Ended::Fault(Fault::Denied(denial)) => {
                    let host = self.base.url.host_and_port();
                    small.fail(GetError::Denied { host, denial: denial.clone() });
                }
                Ended::Fault(fault) => {
                    let host = self.base.url.host_and_port();
                    small.fail(GetError::Unreachable { host, reason: fault.to_string() });
                }
                // A stream without its end has failed.
                _ => lock(&self.shared.gets)[self.host as usize].extend(small.again()),
            }
        }
    }
}

/// Waits until the signer is ready; for ever if nothing is being prepared.
async fn prepared(preparing: &mut Option<Preparing<'_>>) -> Result<(), Denial> {
    let Some(future) = preparing else { return std::future::pending().await };
    let result = future.await;
    *preparing = None;
    result
}

fn broken(error: &io::Error) -> Ended {
    Ended::Fault(Fault::Broken(error.to_string()))
}

pub(super) fn unix_now_s() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
