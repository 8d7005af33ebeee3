//! Hosts that want each request signed: buckets of object stores.
//!
//! What a signature is, the crate of the store knows; a connection only asks for one at the moment when it writes a
//! request, and shows what the host says to it. A signature belongs to the address that the user named. A request that
//! a redirect leads elsewhere is never signed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::http1::{RequestHead, ResponseHead};
use crate::tls::Tls;
use crate::url::Url;

/// Refusals of one request's signature after which it is not signed anew. Region, clock and credentials may be wrong at
/// the same time, and each is found out by a refusal of its own.
pub(crate) const REFUSALS_MAX: u8 = 5;

/// Bytes of a refusal that are read for its reason.
pub(crate) const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// What an answer that is no file says of the request's signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing: its status counts. Its reason, where it has one.
    Status(Option<Denial>),
    /// The same request may be answered well, signed anew. Why it was refused, in case it is not.
    Again(Denial),
    /// The same, at [`Signer::address`], which has changed.
    Moved(Denial),
    /// The host would say the same to every request.
    Denied(Denial),
}

/// Why a host answers nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// What the host says, or what is missing for a request. No secrets.
    pub why: String,
    /// What the user can do about it.
    pub hint: &'static str,
}

/// What a signer waits for.
pub type Preparing<'a> = Pin<Box<dyn Future<Output = Result<(), Denial>> + Send + 'a>>;

/// Signs the requests to one host.
pub trait Signer: Send + Sync + fmt::Debug {
    /// The present address of the files, under which requests are signed.
    fn address(&self) -> Url;

    /// What the user calls the host; no secrets.
    fn name(&self) -> String;

    /// The path of a file below the address, encoded as it is signed.
    fn encode(&self, path: &str) -> String;

    /// Whether a request can be signed at once.
    fn is_prepared(&self) -> bool;

    /// Whether it is time to fetch or renew what signatures need: always if no request can be signed.
    fn is_due(&self) -> bool;

    /// Fetches or renews what signatures need.
    fn prepare(&self) -> Preparing<'_>;

    /// Signs a request for the path of this address; returns what [`Signer::judge`] tells signatures apart by.
    fn sign(&self, head: &mut RequestHead, address: &Url) -> u64;

    /// Judges an answer with a status from 300 to 499 to a request with this signature.
    fn judge(&self, signature: u64, head: &ResponseHead, body: &[u8]) -> Judgement;
}

/// A mirror that wants its requests signed.
#[derive(Clone, Debug)]
pub struct SignedMirror {
    /// Signs them, and has the address of the mirror.
    pub signer: Arc<dyn Signer>,
    /// TLS of its own, wherever the store is or leads to; `None` for that of the run.
    pub tls: Option<Tls>,
}

/// Whether an answer of a host that wants signatures is to be judged by its body.
pub(crate) fn is_refusal(status: u16) -> bool {
    // 304 is an answer, and so is 416; 408 and 429 ask for patience; 407 is a proxy's.
    matches!(status, 300..=499) && !matches!(status, 304 | 407 | 408 | 416 | 429)
}

/// An answer that may be about the signature, as far as it has come.
#[derive(Debug)]
pub(crate) struct RefusalAnswer {
    pub head: ResponseHead,
    pub body: Vec<u8>,
}

impl RefusalAnswer {
    pub(crate) fn of(head: &ResponseHead) -> RefusalAnswer {
        RefusalAnswer { head: head.clone(), body: Vec::new() }
    }

    /// Adds to the body; false if that is longer than any reason.
    pub(crate) fn add(&mut self, data: &[u8]) -> bool {
        let fits = self.body.len() + data.len() <= REFUSAL_BYTES_MAX;
        if fits {
            self.body.extend_from_slice(data);
        }
        fits
    }
}

/// The signature of one request, and how often earlier ones were refused.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Signed {
    pub signature: u64,
    pub refused: u8,
}
