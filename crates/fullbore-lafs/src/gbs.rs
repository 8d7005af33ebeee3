//! The storage protocol ("Great Black Swamp", version 1): requests, and parsers of their answers.
//!
//! This module does no I/O; [`link`] carries the requests. The requests of one connection are processed in order. So
//! the bytes of a share may follow the request that allocates it without waiting for the answer.

pub mod flow;
pub mod link;

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fullbore_wire::auth::Authorization;
use fullbore_wire::http1::{Method, RequestHead};
use fullbore_wire::range::ByteRange;
use minicbor::data::{Tag, Type};
use minicbor::{Decoder, Encoder};

use super::base32;
use super::cap::StorageIndex;
use super::geometry::SHARES_MAX;
use super::nurl::Nurl;
use super::secrets::Lease;

/// CBOR tag of a set.
const SET: u64 = 258;

/// Longest CBOR answer that is read, in bytes. The longest lists 256 shares, or the gaps of one share.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A secret made by the uploader of a share, needed for every write to it.
pub type UploadSecret = [u8; 20];

/// A request, with its body in pieces.
#[derive(Debug, Clone)]
pub struct Call {
    /// Method, path and fields of the request.
    pub head: RequestHead,
    /// Pieces of the request's body, in order.
    pub body: Vec<Bytes>,
    /// Longest answer that is read, in bytes; more is the server's fault.
    pub answer_bytes_max: usize,
}

impl Call {
    /// Length of the request's body in bytes.
    pub(crate) fn body_len(&self) -> u64 {
        self.body.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// The complete answer of a server to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status code of the answer.
    pub status: u16,
    /// Body of the answer: CBOR, or the requested bytes.
    pub body: Bytes,
}

/// An answer that is not the expected one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// An HTTP status other than success.
    #[error("HTTP status {status}{}", meaning(*status))]
    Status {
        /// The HTTP status code.
        status: u16,
    },
    /// The body is not the expected CBOR.
    #[error("cannot read the answer: {reason}")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
}

fn meaning(status: u16) -> &'static str {
    match status {
        401 => " (it does not accept our secret)",
        404 => " (not there)",
        409 => " (the share has other content already)",
        416 => " (range not acceptable)",
        500..=599 => " (the server failed)",
        _ => "",
    }
}

/// Makes the requests for one server.
#[derive(Debug, Clone)]
pub struct Requests {
    host: String,
    authorization: Authorization,
}

impl Requests {
    /// Requests for the server with this address.
    pub fn new(nurl: &Nurl) -> Requests {
        Requests { host: nurl.authority(), authorization: Authorization::new(nurl.authorization()) }
    }

    fn call(&self, method: Method, path: String) -> Call {
        let mut head = RequestHead::new(method, self.host.clone(), path);
        head.authorization = Some(self.authorization.clone());
        // Servers use CBOR by default: the header fields for it can be left out.
        head.is_terse = true;
        Call { head, body: Vec::new(), answer_bytes_max: ANSWER_BYTES_MAX }
    }

    /// Asks for the server's version and free space.
    pub fn version(&self) -> Call {
        self.call(Method::Get, "/storage/v1/version".into())
    }

    /// Asks which shares of an immutable file the server holds.
    pub fn shares(&self, index: &StorageIndex) -> Call {
        self.call(Method::Get, format!("/storage/v1/immutable/{}/shares", base32::encode(index)))
    }

    /// Asks which shares of a mutable file the server holds.
    pub fn mutable_shares(&self, index: &StorageIndex) -> Call {
        self.call(Method::Get, format!("/storage/v1/mutable/{}/shares", base32::encode(index)))
    }

    /// Reads `length` bytes of a share of a mutable file; fewer come at its end.
    pub fn read_mutable(&self, index: &StorageIndex, share: u16, offset: u64, length: u64) -> Call {
        self.range(format!("/storage/v1/mutable/{}/{share}", base32::encode(index)), offset, length)
    }

    /// Renews the lease of this secret on all shares of a file, or adds it.
    pub fn renew_lease(&self, index: &StorageIndex, lease: &Lease) -> Call {
        let mut call = self.call(Method::Put, format!("/storage/v1/lease/{}", base32::encode(index)));
        authorize(&mut call, "lease-renew-secret", &lease.renew);
        authorize(&mut call, "lease-cancel-secret", &lease.cancel);
        call
    }

    /// Writes a share of a mutable file, unless the server has one of this number. `enabler` is the secret of those who
    /// may write.
    pub fn write_new_share(
        &self,
        index: &StorageIndex,
        share: u16,
        content: Vec<u8>,
        enabler: &[u8],
        lease: &Lease,
    ) -> Call {
        let path = format!("/storage/v1/mutable/{}/read-test-write", base32::encode(index));
        let mut call = self.call(Method::Post, path);
        authorize(&mut call, "write-enabler", enabler);
        authorize(&mut call, "lease-renew-secret", &lease.renew);
        authorize(&mut call, "lease-cancel-secret", &lease.cancel);
        call.body = vec![new_share(share, &content).into()];
        call
    }

    /// Allocates shares of `size` bytes each.
    pub fn allocate(
        &self,
        index: &StorageIndex,
        shares: &BTreeSet<u16>,
        size: u64,
        secret: &UploadSecret,
        lease: &Lease,
    ) -> Call {
        let mut call = self.call(Method::Post, format!("/storage/v1/immutable/{}", base32::encode(index)));
        authorize(&mut call, "lease-renew-secret", &lease.renew);
        authorize(&mut call, "lease-cancel-secret", &lease.cancel);
        authorize(&mut call, "upload-secret", secret);
        call.body = vec![allocation(shares, size).into()];
        call
    }

    /// Writes bytes of a share, at `offset`.
    ///
    /// # Panics
    /// If `body` has no bytes: no range describes that.
    pub fn write(
        &self,
        index: &StorageIndex,
        share: u16,
        offset: u64,
        body: Vec<Bytes>,
        secret: &UploadSecret,
    ) -> Call {
        let mut call = self.call(Method::Patch, share_path(index, share));
        authorize(&mut call, "upload-secret", secret);
        call.body = body;
        let last = offset + call.body_len().checked_sub(1).expect("a write has bytes");
        call.head.fields.push(("Content-Range".into(), format!("bytes {offset}-{last}/*")));
        call
    }

    /// Gives up a share that is not complete.
    pub fn abort(&self, index: &StorageIndex, share: u16, secret: &UploadSecret) -> Call {
        let mut call = self.call(Method::Put, format!("{}/abort", share_path(index, share)));
        authorize(&mut call, "upload-secret", secret);
        call
    }

    /// Reads `length` bytes of a share of an immutable file; fewer come at its end.
    pub fn read(&self, index: &StorageIndex, share: u16, offset: u64, length: u64) -> Call {
        self.range(share_path(index, share), offset, length)
    }

    fn range(&self, path: String, offset: u64, length: u64) -> Call {
        let mut call = self.call(Method::Get, path);
        call.head.range = ByteRange::new(offset, Some(offset + length.max(1) - 1));
        call.answer_bytes_max = length as usize;
        call
    }
}

fn share_path(index: &StorageIndex, share: u16) -> String {
    format!("/storage/v1/immutable/{}/{share}", base32::encode(index))
}

fn authorize(call: &mut Call, name: &str, secret: &[u8]) {
    call.head.fields.push(("X-Tahoe-Authorization".into(), format!("{name} {}", STANDARD.encode(secret))));
}

/// The body of a request to allocate shares.
fn allocation(shares: &BTreeSet<u16>, size: u64) -> Vec<u8> {
    let mut body = Vec::new();
    let mut encoder = Encoder::new(&mut body);
    let written = (|| {
        encoder.map(2)?.str("share-numbers")?.tag(Tag::new(SET))?.array(shares.len() as u64)?;
        for share in shares {
            encoder.u16(*share)?;
        }
        encoder.str("allocated-size")?.u64(size)?.ok()
    })();
    let written: Result<(), minicbor::encode::Error<core::convert::Infallible>> = written;
    written.expect("a vector takes everything");
    body
}

/// The body of a request to write a new share. It tests that the share has no first byte.
fn new_share(share: u16, content: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(content.len() + 128);
    let mut encoder = Encoder::new(&mut body);
    let written = (|| {
        encoder.map(2)?.str("test-write-vectors")?.map(1)?.u16(share)?.map(3)?;
        encoder.str("test")?.array(1)?.map(3)?;
        encoder.str("offset")?.u8(0)?.str("size")?.u8(1)?.str("specimen")?.bytes(b"")?;
        encoder.str("write")?.array(1)?.map(2)?.str("offset")?.u8(0)?.str("data")?.bytes(content)?;
        encoder.str("new-length")?.null()?.str("read-vector")?.array(0)?.ok()
    })();
    let written: Result<(), minicbor::encode::Error<core::convert::Infallible>> = written;
    written.expect("a vector takes everything");
    body
}

/// Parses the answer to [`Requests::write_new_share`]: true if the share was written, false if there was one already.
///
/// # Errors
/// [`AnswerError::Status`] if the server refuses the request, [`AnswerError::Malformed`] if the body is not the
/// expected CBOR.
pub fn is_written(answer: &Answer) -> Result<bool, AnswerError> {
    let mut is_written = false;
    for_each_entry(&mut body(answer, &[200])?, |key, decoder| {
        match key {
            b"success" => is_written = decoder.bool()?,
            _ => decoder.skip()?,
        }
        Ok(())
    })?;
    Ok(is_written)
}

/// The answer to [`Requests::allocate`]. A share in neither set got no room: the server is full or read-only, or
/// another upload of it is in progress.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllocateAnswer {
    /// Shares that the server has already, complete.
    pub already_have: BTreeSet<u16>,
    /// Shares that this client may now write.
    pub allocated: BTreeSet<u16>,
}

impl AllocateAnswer {
    /// Parses the answer.
    ///
    /// # Errors
    /// [`AnswerError::Status`] if the server refuses the request, [`AnswerError::Malformed`] if the body is not the
    /// expected CBOR.
    pub fn read(answer: &Answer) -> Result<AllocateAnswer, AnswerError> {
        let mut decoder = body(answer, &[200])?;
        let mut result = AllocateAnswer::default();
        for_each_entry(&mut decoder, |key, decoder| {
            match key {
                b"already-have" => result.already_have = set(decoder)?,
                b"allocated" => result.allocated = set(decoder)?,
                _ => decoder.skip()?,
            }
            Ok(())
        })?;
        Ok(result)
    }
}

/// Parses the answer to [`Requests::shares`].
///
/// # Errors
/// [`AnswerError::Status`] if the server refuses the request, [`AnswerError::Malformed`] if the body is not the
/// expected CBOR.
pub fn held_shares(answer: &Answer) -> Result<BTreeSet<u16>, AnswerError> {
    set(&mut body(answer, &[200])?)
}

/// Parses the answer to [`Requests::renew_lease`]: true if the server holds shares of the file, and has a lease now.
///
/// # Errors
/// [`AnswerError::Status`] for any status but success or 404.
pub fn has_lease(answer: &Answer) -> Result<bool, AnswerError> {
    match answer.status {
        200..=299 => Ok(true),
        404 => Ok(false),
        status => Err(AnswerError::Status { status }),
    }
}

/// The answer to [`Requests::write`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteAnswer {
    /// Whether all bytes of the share are there; it is visible then.
    pub complete: bool,
    /// Missing ranges: begin and exclusive end.
    pub required: Vec<(u64, u64)>,
}

impl WriteAnswer {
    /// Parses the answer.
    ///
    /// # Errors
    /// [`AnswerError::Status`] if the server refuses the request, [`AnswerError::Malformed`] if the body is not the
    /// expected CBOR.
    pub fn read(answer: &Answer) -> Result<WriteAnswer, AnswerError> {
        let mut decoder = body(answer, &[200, 201])?;
        let mut required = Vec::new();
        for_each_entry(&mut decoder, |key, decoder| {
            if key != b"required" {
                return Ok(decoder.skip()?);
            }
            for_each_item(decoder, |decoder| {
                let (mut begin, mut end) = (0, 0);
                for_each_entry(decoder, |key, decoder| {
                    match key {
                        b"begin" => begin = decoder.u64()?,
                        b"end" => end = decoder.u64()?,
                        _ => decoder.skip()?,
                    }
                    Ok(())
                })?;
                required.push((begin, end));
                Ok(())
            })
        })?;
        Ok(WriteAnswer { complete: answer.status == 201, required })
    }
}

/// Space on a server, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AvailableSpace {
    /// Largest share that the server accepts, in bytes.
    pub share_max: u64,
    /// Free space; `None` if the server does not say.
    pub available: Option<u64>,
}

impl AvailableSpace {
    /// Parses the answer to [`Requests::version`].
    ///
    /// # Errors
    /// [`AnswerError::Status`] if the server refuses the request, [`AnswerError::Malformed`] if the body is not the
    /// expected CBOR.
    pub fn read(answer: &Answer) -> Result<AvailableSpace, AnswerError> {
        let mut space = AvailableSpace { share_max: u64::MAX, available: None };
        for_each_entry(&mut body(answer, &[200])?, |key, decoder| {
            if key != b"http://allmydata.org/tahoe/protocols/storage/v1" {
                return Ok(decoder.skip()?);
            }
            for_each_entry(decoder, |key, decoder| {
                match key {
                    b"maximum-immutable-share-size" => space.share_max = decoder.u64()?,
                    b"available-space" => space.available = Some(decoder.u64()?),
                    _ => decoder.skip()?,
                }
                Ok(())
            })
        })?;
        Ok(space)
    }
}

/// The bytes of an answer to [`Requests::read`]; empty beyond the end of a share.
///
/// # Errors
/// [`AnswerError::Status`] for any status but 200, 204 or 206.
pub fn range_bytes(answer: &Answer) -> Result<Bytes, AnswerError> {
    match answer.status {
        200 | 206 => Ok(answer.body.clone()),
        204 => Ok(Bytes::new()),
        status => Err(AnswerError::Status { status }),
    }
}

impl From<minicbor::decode::Error> for AnswerError {
    fn from(error: minicbor::decode::Error) -> AnswerError {
        AnswerError::Malformed { reason: error.to_string() }
    }
}

fn body<'a>(answer: &'a Answer, good: &[u16]) -> Result<Decoder<'a>, AnswerError> {
    if !good.contains(&answer.status) {
        return Err(AnswerError::Status { status: answer.status });
    }
    Ok(Decoder::new(&answer.body))
}

/// Parses the items of a list of definite or indefinite length.
fn for_each_item<'b>(
    decoder: &mut Decoder<'b>,
    mut each: impl FnMut(&mut Decoder<'b>) -> Result<(), AnswerError>,
) -> Result<(), AnswerError> {
    let mut left = decoder.array()?;
    while more(decoder, &mut left)? {
        each(decoder)?;
    }
    Ok(())
}

/// Parses the entries of a map; keys may be texts or bytes.
fn for_each_entry<'b>(
    decoder: &mut Decoder<'b>,
    mut each: impl FnMut(&[u8], &mut Decoder<'b>) -> Result<(), AnswerError>,
) -> Result<(), AnswerError> {
    let mut left = decoder.map()?;
    while more(decoder, &mut left)? {
        let key = match decoder.datatype()? {
            Type::Bytes => decoder.bytes()?,
            _ => decoder.str()?.as_bytes(),
        };
        each(key, decoder)?;
    }
    Ok(())
}

/// Whether another item follows. A stated length is not trusted: parsing ends where the bytes do.
fn more(decoder: &mut Decoder<'_>, left: &mut Option<u64>) -> Result<bool, AnswerError> {
    match left {
        Some(0) => Ok(false),
        Some(count) => {
            *count -= 1;
            Ok(true)
        }
        None if decoder.datatype()? == Type::Break => {
            decoder.set_position(decoder.position() + 1);
            Ok(false)
        }
        None => Ok(true),
    }
}

/// Parses a set of share numbers, tagged or as a plain list.
fn set(decoder: &mut Decoder<'_>) -> Result<BTreeSet<u16>, AnswerError> {
    if decoder.datatype()? == Type::Tag {
        let tag = decoder.tag()?;
        if tag != Tag::new(SET) {
            return Err(AnswerError::Malformed { reason: "a set is tagged as something else".into() });
        }
    }
    let mut set = BTreeSet::new();
    for_each_item(decoder, |decoder| {
        let share = decoder.u64()?;
        // A number beyond every code is ignored.
        if share < u64::from(SHARES_MAX) {
            set.insert(share as u16);
        }
        Ok(())
    })?;
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::http1::{BodyLength, Http1, Limits};
    use proptest::prelude::*;

    fn answer(status: u16, body: &[u8]) -> Answer {
        Answer { status, body: Bytes::copy_from_slice(body) }
    }

    fn cbor(build: impl FnOnce(&mut Encoder<&mut Vec<u8>>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        build(&mut Encoder::new(&mut bytes));
        bytes
    }

    fn requests() -> Requests {
        let pin = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
        Requests::new(&Nurl::parse(&format!("pb://{pin}@h:1/swiss#v=1")).unwrap())
    }

    #[test]
    fn a_write_says_which_bytes_it_brings() {
        let body = vec![Bytes::from_static(b"abc"), Bytes::from_static(b"de")];
        let call = requests().write(&[0; 16], 7, 100, body, &[9; 20]);
        assert_eq!(call.head.target, format!("/storage/v1/immutable/{}/7", "a".repeat(26)));
        assert!(call.head.fields.contains(&("Content-Range".into(), "bytes 100-104/*".into())));
        let secret = format!("upload-secret {}", STANDARD.encode([9; 20]));
        assert!(call.head.fields.contains(&("X-Tahoe-Authorization".into(), secret)));
    }

    #[test]
    fn ten_small_files_fit_into_a_first_flight() {
        // Ten TCP segments (RFC 6928) on Ethernet with timestamps, less two parts of the first: the end of the TLS
        // handshake (`ConnectOptions::writes_at_once`), and the head of a record.
        const FLIGHT: usize = 10 * 1448 - 80 - 22;
        let pin = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
        let swissnum = "a".repeat(32);
        let requests = Requests::new(&Nurl::parse(&format!("pb://{pin}@10.77.0.11:40001/{swissnum}#v=1")).unwrap());
        let lease = Lease { renew: [1; 32], cancel: [2; 32] };
        // A share of a 3-of-10 file of 200 bytes.
        let share = Bytes::from(vec![0; 685]);
        let calls = [
            requests.allocate(&[0; 16], &[3].into(), 685, &[9; 20], &lease),
            requests.write(&[0; 16], 3, 0, vec![share], &[9; 20]),
        ];
        let mut bytes = 0;
        for call in calls {
            let mut http = Http1::new(Limits::with_depth(1));
            http.request(&call.head, 1, BodyLength::Known(call.body_len())).unwrap();
            bytes += http.outgoing().len() + call.body_len() as usize;
        }
        assert!(10 * bytes <= FLIGHT, "{bytes}");
    }

    #[test]
    fn room_is_asked_for_with_a_set() {
        let body = allocation(&[1, 2, 200].into(), 1 << 40);
        let mut decoder = Decoder::new(&body);
        assert_eq!((decoder.map().unwrap(), decoder.str().unwrap()), (Some(2), "share-numbers"));
        assert_eq!(set(&mut decoder).unwrap(), [1, 2, 200].into());
        assert_eq!((decoder.str().unwrap(), decoder.u64().unwrap()), ("allocated-size", 1 << 40));
        // Servers accept the largest possible request.
        assert!(allocation(&(0..256).collect(), u64::MAX).len() < 8192);
    }

    #[test]
    fn answers_are_read() {
        let text = cbor(|e| {
            e.map(3).unwrap().str("already-have").unwrap().tag(Tag::new(SET)).unwrap().array(1).unwrap().u8(4).unwrap();
            e.str("allocated")
                .unwrap()
                .tag(Tag::new(SET))
                .unwrap()
                .begin_array()
                .unwrap()
                .u8(5)
                .unwrap()
                .u16(999)
                .unwrap()
                .end()
                .unwrap();
            e.str("other").unwrap().null().unwrap();
        });
        let read = AllocateAnswer::read(&answer(200, &text)).unwrap();
        assert_eq!(read, AllocateAnswer { already_have: [4].into(), allocated: [5].into() });
        assert_eq!(AllocateAnswer::read(&answer(401, &text)), Err(AnswerError::Status { status: 401 }));

        let text = cbor(|e| {
            e.map(1).unwrap().str("required").unwrap().array(1).unwrap();
            e.map(2).unwrap().str("begin").unwrap().u8(3).unwrap().str("end").unwrap().u64(1 << 33).unwrap();
        });
        let read = WriteAnswer::read(&answer(200, &text)).unwrap();
        assert_eq!(read, WriteAnswer { complete: false, required: vec![(3, 1 << 33)] });

        let text = cbor(|e| {
            e.map(2).unwrap().bytes(b"application-version").unwrap().bytes(b"x").unwrap();
            e.bytes(b"http://allmydata.org/tahoe/protocols/storage/v1").unwrap().map(1).unwrap();
            e.bytes(b"available-space").unwrap().u64(77).unwrap();
        });
        assert_eq!(AvailableSpace::read(&answer(200, &text)).unwrap().available, Some(77));
        assert_eq!(range_bytes(&answer(204, b"")).unwrap().len(), 0);
        assert!(range_bytes(&answer(404, b"")).is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(body in proptest::collection::vec(any::<u8>(), 0..60)) {
            let answer = answer(200, &body);
            let _ = (AllocateAnswer::read(&answer), WriteAnswer::read(&answer), AvailableSpace::read(&answer), held_shares(&answer));
        }
    }
}
