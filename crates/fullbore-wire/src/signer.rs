//! Hosts that want each request signed: buckets of object stores.
//!
//! The store's crate knows how to sign. A connection asks for a signature only when it writes a request, and shows the
//! host's answer to the signer. A signature is valid for the address that the user named. A request that a redirect
//! leads elsewhere is never signed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::http1::{RequestHead, ResponseHead};
use crate::tls::Tls;
use crate::url::Url;

/// Maximum number of times that a request is signed anew after a refusal. Region, clock and credentials may all be
/// wrong, and each takes a refusal to find out.
pub(crate) const REFUSALS_MAX: u8 = 5;

/// Maximum number of bytes of a refusal that are read for its reason.
pub(crate) const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// What an answer that is not the file says about the request's signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing: its status counts, with its reason, if there is one.
    Status(Option<Denial>),
    /// The same request may succeed when signed anew. The reason is for the case that it does not.
    Again(Denial),
    /// The request may succeed at the new [`Signer::address`].
    Moved(Denial),
    /// The host would refuse every request.
    Denied(Denial),
}

/// Why a host refuses every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The host's reason, or what a request lacks. No secrets.
    pub why: String,
    /// Suggestion for the user.
    pub hint: &'static str,
}

/// Future of a signer's preparation.
pub type Preparing<'a> = Pin<Box<dyn Future<Output = Result<(), Denial>> + Send + 'a>>;

/// Signs the requests to one host.
pub trait Signer: Send + Sync + fmt::Debug {
    /// Present base address of the files, for which requests are signed.
    fn address(&self) -> Url;

    /// Name of the host as the user knows it; no secrets.
    fn name(&self) -> String;

    /// Encodes the path of a file below the address, as it is signed.
    fn encode(&self, path: &str) -> String;

    /// Whether a request can be signed at once.
    fn is_prepared(&self) -> bool;

    /// Whether it is time to fetch or renew credentials. Always true if no request can be signed.
    fn is_due(&self) -> bool;

    /// Fetches or renews credentials.
    fn prepare(&self) -> Preparing<'_>;

    /// Signs a request for the path of this address. Returns a number that identifies the signature in
    /// [`Signer::judge`].
    fn sign(&self, head: &mut RequestHead, address: &Url) -> u64;

    /// Judges an answer with a status from 300 to 499 to a request with this signature.
    fn judge(&self, signature: u64, head: &ResponseHead, body: &[u8]) -> Judgement;
}

/// A mirror that wants signed requests.
#[derive(Clone, Debug)]
pub struct SignedMirror {
    /// Signs the requests, and knows the address of the mirror.
    pub signer: Arc<dyn Signer>,
    /// TLS settings for the store and its redirect targets; `None` for those of the run.
    pub tls: Option<Tls>,
}

/// Whether an answer of a host with signatures must be judged by its body.
pub(crate) fn is_refusal(status: u16) -> bool {
    // 304 is an answer, and so is 416; 408 and 429 ask for patience; 407 is a proxy's.
    matches!(status, 300..=499) && !matches!(status, 304 | 407 | 408 | 416 | 429)
}

/// The received part of an answer that may be about the signature.
#[derive(Debug)]
pub(crate) struct RefusalAnswer {
    pub head: ResponseHead,
    pub body: Vec<u8>,
}

impl RefusalAnswer {
    pub(crate) fn of(head: &ResponseHead) -> RefusalAnswer {
        RefusalAnswer { head: head.clone(), body: Vec::new() }
    }

    /// Appends to the body; false if it becomes longer than any reason.
    pub(crate) fn add(&mut self, data: &[u8]) -> bool {
        let fits = self.body.len() + data.len() <= REFUSAL_BYTES_MAX;
        if fits {
            self.body.extend_from_slice(data);
        }
        fits
    }
}

/// The signature of one request, and the number of earlier ones that were refused.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Signed {
    pub signature: u64,
    pub refused: u8,
}
