//! Redirects of single requests: to another server of the store, or to a signed URL of the object.
//!
//! A temporary redirect (302, 307) applies to one request ("Request redirection", Amazon S3 user guide): the next one
//! goes to the store's own address again. A store that only redirects to one server is a mere signpost, and each body
//! would be sent twice. Then fullbore goes to that server directly, as after a permanent redirect (301, 308).

use std::fmt;
use std::sync::Arc;

use fullbore_wire::connect::Endpoint;
use fullbore_wire::http1::Method;
use fullbore_wire::redirect::{RedirectError, resolve};
use fullbore_wire::url::Url;

use super::Call;
use crate::address::Bucket;
use crate::key::decode_listed;

/// Maximum number of redirects of one request, as for one file of an archive.
pub(super) const REDIRECTS_MAX: u32 = 5;

/// Number of consecutive temporary redirects to the same server, without any other answer, after which requests go
/// there directly. A guess at more than chance.
pub(super) const SIGNPOST_REDIRECTS: u32 = 3;

/// Maximum number of servers to which requests are redirected. A store with more nodes than connections is not served
/// well anyway.
pub(super) const SERVERS_MAX: usize = 64;

/// Query parameters of signed URLs: Amazon's present and older ones, Google's, Azure's.
const SIGNATURES: [&str; 4] = ["x-amz-signature", "signature", "x-goog-signature", "sig"];

/// Target of a redirect.
#[derive(Debug)]
pub(super) struct Redirect {
    /// The bucket at the other server.
    pub bucket: Bucket,
    /// Path and query to request there, if they differ from the original request.
    pub target: Option<Arc<Target>>,
}

/// Path and query given by a redirect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Encoded path.
    pub path: String,
    /// Encoded query; empty if there is none.
    pub query: String,
    /// Decoded names and values of the query.
    pub parameters: Vec<(String, String)>,
}

impl Target {
    fn of(url: &Url) -> Target {
        let (path, query) = url.target().split_once('?').unwrap_or((url.target(), ""));
        let decoded = |text: &str| decode_listed(text).unwrap_or_else(|| text.to_owned());
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let parameters = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        });
        Target { path: path.to_owned(), query: query.to_owned(), parameters: parameters.collect() }
    }

    /// Whether the URL contains a signature; then no other signature may be added.
    pub(super) fn is_signed(&self) -> bool {
        self.parameters.iter().any(|(name, _)| SIGNATURES.contains(&name.to_ascii_lowercase().as_str()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.query.is_empty() { "" } else { "?" };
        write!(f, "{}{mark}{}", self.path, self.query)
    }
}

/// Whether a status redirects a request with this method. 303 turns any method into GET.
pub(super) fn redirects(status: u16, method: Method) -> bool {
    match status {
        301 | 302 | 307 | 308 => true,
        303 => matches!(method, Method::Get | Method::Head),
        _ => false,
    }
}

/// Whether a status redirects all requests.
pub(super) fn is_permanent(status: u16) -> bool {
    matches!(status, 301 | 308)
}

/// Resolves a Location that answered a request for `sent` (encoded path and query).
///
/// # Errors
/// A [`RedirectError`] if the Location is not a URL, or leads from https to http.
pub(super) fn follow(location: &str, asked: &Bucket, sent: &str) -> Result<Redirect, RedirectError> {
    let Endpoint { scheme, .. } = asked.endpoint;
    let base = format!("{}://{}{sent}", scheme.as_str(), asked.host);
    let base = Url::parse(&base).map_err(|error| RedirectError::Url { from: asked.host.clone(), error })?;
    let url = resolve(&base, location)?;
    let endpoint = Endpoint {
        scheme: url.scheme(),
        host: url.host().to_string(),
        port: url.port(),
        proxy: asked.endpoint.proxy.clone(),
    };
    let bucket = Bucket { endpoint, host: url.host_field(), ..asked.clone() };
    let target = (url.target() != base.target()).then(|| Arc::new(Target::of(&url)));
    Ok(Redirect { bucket, target })
}

/// Path and query of a call without a redirect.
pub(super) fn sent(call: &Call, query: &[(&str, &str)], bucket: &Bucket) -> String {
    let mut target = bucket.path(call.key.as_deref());
    if !query.is_empty() {
        target.push('?');
        target.push_str(&crate::sign::query_string(query));
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Addressing;

    fn followed(location: &str) -> Result<Redirect, RedirectError> {
        let bucket = Bucket::new("films", Some("https://store.example:9000"), "us-east-1", Addressing::Path).unwrap();
        follow(location, &bucket, "/films/a%20b?partNumber=1&uploadId=x%2By")
    }

    #[test]
    fn another_server_of_the_store_gets_the_same_request() {
        for location in [
            "https://node7.store.example/films/a%20b?partNumber=1&uploadId=x%2By",
            "//node7.store.example/films/a%20b?partNumber=1&uploadId=x%2By",
        ] {
            let Redirect { bucket, target } = followed(location).unwrap();
            assert_eq!((bucket.host.as_str(), bucket.endpoint.port), ("node7.store.example", 443));
            assert_eq!((target, bucket.base.as_str()), (None, "/films"));
        }
    }

    #[test]
    fn another_target_is_requested_as_it_stands() {
        let target = followed("/v2/films/a%20b?node=3").unwrap();
        assert_eq!(target.bucket.host, "store.example:9000");
        let target = target.target.unwrap();
        assert_eq!((target.path.as_str(), target.query.as_str()), ("/v2/films/a%20b", "node=3"));
        assert_eq!(target.parameters, [("node".to_owned(), "3".to_owned())]);
        assert!(!target.is_signed());
        let signed = followed("https://cdn.example/o?X-Amz-Signature=ab&X-Amz-Expires=60").unwrap().target.unwrap();
        assert!(signed.is_signed());
    }

    #[test]
    fn a_redirect_never_leaves_https() {
        assert!(matches!(followed("http://store.example/films/a"), Err(RedirectError::Downgrade { .. })));
        assert!(followed("ftp://store.example/films/a").is_err());
        assert!(redirects(307, Method::Put) && redirects(303, Method::Get) && !redirects(303, Method::Put));
        assert!(!redirects(304, Method::Get) && is_permanent(308) && !is_permanent(307));
    }
}
