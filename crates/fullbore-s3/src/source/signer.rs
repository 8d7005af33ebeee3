//! Signs the requests to a bucket, and learns from refusals what was wrong with a signature.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullbore_engine::digest::Sha256;
use fullbore_wire::auth::Authorization;
use fullbore_wire::http1::{RequestHead, ResponseHead};
use fullbore_wire::signer::{Denial, Judgement, Preparing, Signer};
use fullbore_wire::url::{Url, UrlError};

use crate::address::{Bucket, SCHEME};
use crate::bucket::is_fatal;
use crate::client::{CallError, is_plea_for_virtual_host};
use crate::credentials::{CredentialCache, CredentialsError, RENEW_BEFORE_S, unix_now};
use crate::key::encode_path;
use crate::sign::{self, Identity, Signable, amz_date};
use crate::xml::{self, ServiceError};

/// Maximum number of moves of a bucket: to another region, or to virtual-hosted style.
const MOVES_MAX: u32 = 4;

/// Maximum number of changes of credentials and clock within this time. After them the store is not believed any more:
/// it would have the same requests sent for ever. A guess far above one for each.
const CHANGES_MAX: u32 = 8;
const CHANGES_WITHIN_S: i64 = 60;

/// Seconds until a failed renewal of credentials is tried again.
const RENEW_AGAIN_S: i64 = 30;

/// Codes for keys unknown to the store: Amazon's, versitygw's.
const UNKNOWN_KEYS: [&str; 2] = ["InvalidAccessKeyId", "XAdminUserNotFound"];

const HINT_KEYS: &str = "check the credentials: AWS_ACCESS_KEY_ID, or the profile; another one is named as in \
                         s3://BUCKET/PREFIX?profile=NAME";
const HINT_SECRET: &str = "check the secret key and the region";
const HINT_BUCKET: &str = "check the name of the bucket, and the endpoint: a store other than Amazon's is named as in \
                           s3://BUCKET/PREFIX?endpoint=URL";
const HINT_RIGHTS: &str = "check the address, and that these credentials may read objects (s3:GetObject); without \
                           s3:ListBucket, a store says 403 of a missing object";
const HINT_ANONYMOUS: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile as in \
                              s3://BUCKET/PREFIX?profile=NAME";
const HINT_EXPIRED: &str = "get new credentials";
const HINT_CLOCK: &str = "set this machine's clock right";
const HINT_REGION: &str = "name the region as in s3://BUCKET/PREFIX?region=NAME";

/// Credentials that requests are signed with.
enum Known {
    /// Unknown yet, or invalid: the identity that the store has refused, with its reason.
    Nothing(Option<(Arc<Identity>, Denial)>),
    /// None: requests are not signed. With the reason, if credentials were looked for.
    Anonymous(Option<String>),
    Identity(Arc<Identity>),
}

struct State {
    bucket: Arc<Bucket>,
    known: Known,
    /// Time of the next renewal, in Unix seconds.
    renew_at: Option<i64>,
    /// The store's clock minus ours, in seconds.
    clock_offset_s: i64,
    /// Counts changes of everything that a signature depends on.
    version: u64,
    moves: u32,
    /// Number of changes that the store has caused since this time, in Unix seconds.
    changes: (i64, u32),
}

/// Signs requests to one bucket.
pub struct BucketSigner {
    prefix: String,
    credentials: CredentialCache,
    signer: sign::Signer,
    state: Mutex<State>,
    /// Held by the task that fetches credentials, for which others wait.
    preparing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for BucketSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BucketSigner({})", self.name())
    }
}

impl BucketSigner {
    /// Creates a signer for objects below a prefix.
    ///
    /// # Errors
    /// [`UrlError`] if the bucket's host or the prefix cannot be part of a URL.
    pub fn new(bucket: Bucket, prefix: &str, credentials: CredentialCache) -> Result<BucketSigner, UrlError> {
        let prefix = prefix.trim_matches('/').to_owned();
        address(&bucket, &prefix)?;
        let state = State {
            bucket: Arc::new(bucket),
            known: Known::Nothing(None),
            renew_at: None,
            clock_offset_s: 0,
            version: 0,
            moves: 0,
            changes: (0, 0),
        };
        Ok(BucketSigner {
            prefix,
            credentials,
            signer: sign::Signer::new("s3"),
            state: Mutex::new(state),
            preparing: tokio::sync::Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn renew(&self) -> Result<(), Denial> {
        let _one_at_a_time = self.preparing.lock().await;
        if !self.is_due() {
            return Ok(());
        }
        let (refused, had_identity) = match &self.state().known {
            Known::Nothing(refused) => (refused.clone(), refused.is_some()),
            Known::Identity(_) => (None, true),
            Known::Anonymous(_) => (None, false),
        };
        let found = self.credentials.identity(refused.as_ref().map(|(identity, _)| &**identity)).await;
        let known = match (found, refused) {
            // There are no other credentials.
            (Ok(Some(identity)), Some((refused, denial))) if refused == identity => return Err(denial),
            (Ok(Some(identity)), _) => Known::Identity(identity),
            // Credentials have vanished during the run: the store would refuse unsigned requests for another reason.
            (Ok(None) | Err(CredentialsError::None { .. }), Some((_, denial))) => return Err(denial),
            (Err(error @ CredentialsError::None { .. }), None) if had_identity => {
                return Err(Denial { why: error.to_string(), hint: HINT_KEYS });
            }
            (Ok(None), _) => Known::Anonymous(None),
            (Err(error @ CredentialsError::None { .. }), _) => {
                tracing::info!("{}: {error}: requests are not signed", self.name());
                Known::Anonymous(Some(error.to_string()))
            }
            (Err(error), _) => return Err(Denial { why: error.to_string(), hint: HINT_KEYS }),
        };
        let mut state = self.state();
        let expires = match &known {
            Known::Identity(identity) => identity.expires,
            _ => None,
        };
        // Credentials that end soon could not be renewed just now.
        state.renew_at = expires.map(|expires| (expires - RENEW_BEFORE_S).max(unix_now() + RENEW_AGAIN_S));
        state.known = known;
        state.version += 1;
        Ok(())
    }
}

impl State {
    /// Whether the store may cause a further change.
    fn may_change(&mut self) -> bool {
        let now = unix_now();
        let (since, count) = self.changes;
        self.changes = if now - since > CHANGES_WITHIN_S { (now, 1) } else { (since, count + 1) };
        self.changes.1 <= CHANGES_MAX
    }

    /// Handles a refusal of the present credentials as expired.
    fn expire(&mut self, denial: Denial) {
        if let Known::Identity(identity) = &self.known {
            self.known = Known::Nothing(Some((Arc::clone(identity), denial)));
        }
        self.version += 1;
    }

    /// Moves to another bucket address; false after too many moves.
    fn go_to(&mut self, bucket: Bucket) -> bool {
        self.moves += 1;
        self.version += 1;
        self.bucket = Arc::new(bucket);
        self.moves <= MOVES_MAX
    }

    /// The reason of a refusal that does not concern the signature alone.
    fn denial(&self, status: u16, error: &ServiceError) -> Denial {
        let refused = CallError::Refused { what: self.bucket.name.clone(), status, error: error.clone() };
        let why = refused.reason();
        let hint = match error.code.as_str() {
            code if UNKNOWN_KEYS.contains(&code) => HINT_KEYS,
            "SignatureDoesNotMatch" => HINT_SECRET,
            "NoSuchBucket" | "InvalidBucketName" => HINT_BUCKET,
            "AuthorizationHeaderMalformed" => HINT_REGION,
            "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException" | "InvalidToken" => HINT_EXPIRED,
            "RequestTimeTooSkewed" | "RequestExpired" => HINT_CLOCK,
            _ => match &self.known {
                Known::Anonymous(_) if matches!(status, 401 | 403) => HINT_ANONYMOUS,
                _ => HINT_RIGHTS,
            },
        };
        match &self.known {
            Known::Anonymous(Some(reason)) => Denial { why: format!("{why}; not signed, {reason}"), hint },
            _ => Denial { why, hint },
        }
    }
}

/// URL of the objects below a prefix.
fn address(bucket: &Bucket, prefix: &str) -> Result<Url, UrlError> {
    let path = bucket.path(Some(prefix).filter(|prefix| !prefix.is_empty()));
    Url::parse(&format!("{}://{}{path}", bucket.endpoint.scheme.as_str(), bucket.host))
}

impl Signer for BucketSigner {
    fn address(&self) -> Url {
        address(&self.state().bucket, &self.prefix).expect("the first was a URL, and others differ in their host alone")
    }

    fn name(&self) -> String {
        let state = self.state();
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        format!("{SCHEME}{}{slash}{}", state.bucket.name, self.prefix)
    }

    fn encode(&self, path: &str) -> String {
        let mut encoded = String::new();
        encode_path(path, &mut encoded);
        encoded
    }

    fn is_prepared(&self) -> bool {
        // An identity that has expired by our clock is tried as well: the clock may be ahead. If it is right, the store
        // answers ExpiredToken.
        !matches!(self.state().known, Known::Nothing(_))
    }

    fn is_due(&self) -> bool {
        let state = self.state();
        matches!(state.known, Known::Nothing(_)) || state.renew_at.is_some_and(|at| unix_now() >= at)
    }

    fn prepare(&self) -> Preparing<'_> {
        Box::pin(self.renew())
    }

    fn sign(&self, head: &mut RequestHead, url: &Url) -> u64 {
        let (identity, region, offset, version) = {
            let state = self.state();
            let identity = match &state.known {
                // A new identity is being fetched: the old one will be refused once more, and the request is sent
                // again.
                Known::Identity(identity) | Known::Nothing(Some((identity, _))) => Arc::clone(identity),
                Known::Nothing(None) | Known::Anonymous(_) => return state.version,
            };
            (identity, state.bucket.region.clone(), state.clock_offset_s, state.version)
        };
        let now = unix_now() + offset;
        let payload = Sha256::EMPTY.to_hex();
        // Range and conditions are not signed: a proxy may change them.
        let mut fields = vec![
            ("x-amz-content-sha256".to_owned(), payload.as_str().to_owned()),
            ("x-amz-date".to_owned(), amz_date(now)),
        ];
        fields.extend(identity.session_token.iter().map(|token| ("x-amz-security-token".to_owned(), token.clone())));
        let request = Signable {
            method: head.method.as_str(),
            path: url.path(),
            query: &[],
            host: &head.host,
            fields: &fields,
            payload: payload.as_str(),
        };
        head.authorization = Some(Authorization::new(self.signer.authorization(&request, &identity, &region, now)));
        head.fields.extend(fields);
        version
    }

    fn judge(&self, signature: u64, head: &ResponseHead, body: &[u8]) -> Judgement {
        let status = head.status;
        let mut error = xml::service_error(body).unwrap_or_default();
        error.message = error.message.chars().take(300).collect();
        let region = head.store_field("x-amz-bucket-region").map(str::to_owned).or(error.region.clone());
        let mut state = self.state();
        let is_of_signature = matches!(status, 301 | 307 | 308 | 400 | 403) && error.code != "AccessDenied";
        if signature != state.version && is_of_signature && status != 404 {
            // Another request has found the cause meanwhile.
            return Judgement::Again(state.denial(status, &error));
        }
        match error.code.as_str() {
            "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException" | "InvalidToken"
                if state.may_change() =>
            {
                let denial = state.denial(status, &error);
                state.expire(denial.clone());
                return Judgement::Again(denial);
            }
            "RequestTimeTooSkewed" | "RequestExpired" if head.date.is_some() && state.may_change() => {
                state.clock_offset_s = head.date.unwrap_or_default() - unix_now();
                state.version += 1;
                return Judgement::Again(state.denial(status, &error));
            }
            "RequestTimeTooSkewed" | "RequestExpired" => {
                return Judgement::Denied(state.denial(status, &error));
            }
            _ => {}
        }
        let moved = match region.filter(|region| is_of_signature && *region != state.bucket.region) {
            Some(region) => state.bucket.in_region(&region),
            None if is_plea_for_virtual_host(&error.code) => state.bucket.as_virtual_host(),
            None => None,
        };
        if let Some(bucket) = moved {
            let is_same_host = bucket.host == state.bucket.host && bucket.endpoint == state.bucket.endpoint;
            tracing::info!("{}{}: in region {}, at {}", SCHEME, bucket.name, bucket.region, bucket.host);
            let denial = state.denial(status, &error);
            return match (state.go_to(bucket), is_same_host) {
                (false, _) => Judgement::Denied(denial),
                (true, true) => Judgement::Again(denial),
                (true, false) => Judgement::Moved(denial),
            };
        }
        let refused = CallError::Refused { what: String::new(), status, error: error.clone() };
        match (status, error.code.as_str()) {
            (_, code) if is_fatal(&refused) || UNKNOWN_KEYS.contains(&code) => {
                Judgement::Denied(state.denial(status, &error))
            }
            (404 | 410, "" | "NoSuchKey" | "NoSuchVersion") | (300..=399, _) => Judgement::Status(None),
            _ => Judgement::Status(Some(state.denial(status, &error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Addressing;
    use crate::credentials::Provider;
    use fullbore_wire::connect::ConnectOptions;
    use fullbore_wire::http1::{BodyLength, Event, Http1, Limits};

    /// A signer for a store of one's own, or Amazon's, with keys that do not end.
    fn signer(endpoint: Option<&str>) -> BucketSigner {
        let bucket = Bucket::new("films", endpoint, "us-east-1", Addressing::Auto).unwrap();
        let identity = Identity {
            access_key_id: "key".into(),
            secret_access_key: "sEcrEt".into(),
            session_token: Some("tOkEn".into()),
            expires: None,
        };
        let credentials = CredentialCache::new(vec![Provider::Fixed(identity)], ConnectOptions::default());
        BucketSigner::new(bucket, "/debian/", credentials).unwrap()
    }

    fn prepared(endpoint: Option<&str>) -> BucketSigner {
        let signer = signer(endpoint);
        prepare(&signer).unwrap();
        signer
    }

    fn prepare(signer: &BucketSigner) -> Result<(), Denial> {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(signer.prepare())
    }

    fn head(fields: &str) -> ResponseHead {
        let mut http = Http1::new(Limits::default());
        http.request(&RequestHead::get("h", "/"), 1, BodyLength::None).unwrap();
        let mut bytes = bytes::BytesMut::from(fields);
        match http.receive(&mut bytes).unwrap() {
            Some(Event::Head { head, .. }) => *head,
            other => panic!("{other:?}"),
        }
    }

    fn refused(signer: &BucketSigner, signature: u64, status: u16, code: &str, fields: &str) -> Judgement {
        let head = head(&format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n{fields}\r\n"));
        let body = format!("<Error><Code>{code}</Code><Message>m</Message></Error>");
        signer.judge(signature, &head, body.as_bytes())
    }

    fn is_again(judgement: &Judgement) -> bool {
        matches!(judgement, Judgement::Again(_))
    }

    fn signed(signer: &BucketSigner) -> (u64, RequestHead) {
        let url = signer.address();
        let mut head = RequestHead::get(url.host_field(), url.target());
        (signer.sign(&mut head, &url), head)
    }

    const STORE: Option<&str> = Some("http://127.0.0.1:9000/s3");

    #[test]
    fn files_are_below_the_prefix_and_encoded_as_they_are_signed() {
        let signer = signer(STORE);
        assert_eq!(signer.address().to_string(), "http://127.0.0.1:9000/s3/films/debian");
        assert_eq!(signer.encode("pool/g/g++_1:2~x y.deb"), "pool/g/g%2B%2B_1%3A2~x%20y.deb");
        assert_eq!(signer.name(), "s3://films/debian");
        assert!(!signer.is_prepared());
    }

    #[test]
    fn nothing_shows_a_secret() {
        let signer = prepared(STORE);
        let (_, head) = signed(&signer);
        let authorization = head.authorization.as_ref().unwrap().header_value();
        assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=key/"), "{authorization}");
        assert!(authorization.contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,"));
        let shown = format!("{signer:?} {:?}", head.authorization);
        assert!(!shown.contains("sEcrEt") && !shown.contains("tOkEn"), "{shown}");
    }

    #[test]
    fn the_clock_of_the_store_counts() {
        let signer = prepared(STORE);
        let (signature, _) = signed(&signer);
        let date = "Date: Fri, 24 May 2013 00:00:00 GMT\r\n";
        assert!(is_again(&refused(&signer, signature, 403, "RequestTimeTooSkewed", date)));
        let (_, head) = signed(&signer);
        let field = head.fields.iter().find(|(name, _)| name == "x-amz-date").unwrap();
        assert!(field.1.starts_with("20130524T0000"), "{field:?}");
        // What was sent before is signed anew, whatever the store says to it.
        assert!(is_again(&refused(&signer, signature, 403, "SignatureDoesNotMatch", "")));
    }

    #[test]
    fn the_region_is_found_by_the_answer() {
        let amazon = prepared(None);
        assert_eq!(amazon.address().to_string(), "https://films.s3.us-east-1.amazonaws.com/debian");
        let (signature, _) = signed(&amazon);
        let fields = "x-amz-bucket-region: eu-north-1\r\n";
        assert!(matches!(refused(&amazon, signature, 301, "PermanentRedirect", fields), Judgement::Moved(_)));
        assert_eq!(amazon.address().to_string(), "https://films.s3.eu-north-1.amazonaws.com/debian");
        let own = prepared(STORE);
        let (signature, _) = signed(&own);
        assert!(is_again(&refused(&own, signature, 400, "AuthorizationHeaderMalformed", fields)));
        let (_, head) = signed(&own);
        assert!(head.authorization.unwrap().header_value().contains("/eu-north-1/s3/aws4_request"));
    }

    #[test]
    fn a_store_that_sends_us_from_region_to_region_is_left() {
        let signer = prepared(STORE);
        let judged: Vec<Judgement> = (0..10)
            .map(|number| {
                let (signature, _) = signed(&signer);
                let fields = format!("x-amz-bucket-region: r-{number}\r\n");
                refused(&signer, signature, 400, "AuthorizationHeaderMalformed", &fields)
            })
            .collect();
        assert!(judged[..3].iter().all(is_again));
        assert!(judged.iter().any(|judgement| matches!(judgement, Judgement::Denied(_))), "{judged:?}");
    }

    #[test]
    fn credentials_that_ended_are_fetched_anew_and_only_if_there_are_others() {
        let signer = prepared(STORE);
        let (signature, _) = signed(&signer);
        assert!(is_again(&refused(&signer, signature, 400, "ExpiredToken", "")));
        assert!(!signer.is_prepared());
        // Fixed ones are the same again.
        assert!(prepare(&signer).unwrap_err().why.contains("ExpiredToken"));
    }

    #[test]
    fn credentials_that_are_gone_in_the_middle_of_a_run_made_it_anonymous() {
        let signer = prepared(STORE);
        let gone = BucketSigner { credentials: CredentialCache::new(Vec::new(), ConnectOptions::default()), ..signer };
        let (signature, _) = signed(&gone);
        assert!(is_again(&refused(&gone, signature, 400, "ExpiredToken", "")));
        assert!(prepare(&gone).unwrap_err().why.contains("ExpiredToken"));
        assert!(!gone.is_prepared());
        // As when the time of renewal has come, without a word of the store.
        let signer = prepared(STORE);
        let gone = BucketSigner { credentials: CredentialCache::new(Vec::new(), ConnectOptions::default()), ..signer };
        gone.state().renew_at = Some(0);
        assert!(prepare(&gone).is_err());
    }

    #[test]
    fn credentials_sign_until_the_store_says_that_they_have_ended() {
        let signer = prepared(STORE);
        assert!(signer.is_prepared() && !signer.is_due());
        signer.state().renew_at = Some(0);
        assert!(signer.is_prepared() && signer.is_due());
        let Known::Identity(identity) = std::mem::replace(&mut signer.state().known, Known::Nothing(None)) else {
            panic!()
        };
        signer.state().known = Known::Identity(Arc::new(Identity { expires: Some(1), ..Identity::clone(&identity) }));
        assert!(signer.is_prepared() && signer.is_due(), "our clock may be ahead");
        let (signature, head) = signed(&signer);
        assert!(head.authorization.is_some());
        assert!(is_again(&refused(&signer, signature, 400, "ExpiredToken", "")));
        assert!(!signer.is_prepared() && signer.is_due());
    }

    #[test]
    fn what_concerns_all_requests_is_told_from_what_concerns_one() {
        let signer = prepared(STORE);
        let (signature, _) = signed(&signer);
        let judge = |status, code| refused(&signer, signature, status, code, "");
        for (status, code) in [(404, "NoSuchBucket"), (403, "InvalidAccessKeyId"), (404, "XAdminUserNotFound")] {
            let Judgement::Denied(denial) = judge(status, code) else { panic!("{code}") };
            assert!(denial.why.contains(code) && !denial.hint.is_empty(), "{denial:?}");
        }
        assert_eq!(judge(404, "NoSuchKey"), Judgement::Status(None));
        let Judgement::Status(Some(denial)) = judge(403, "AccessDenied") else { panic!("a file may be missing") };
        assert!(denial.hint.contains("ListBucket"), "{denial:?}");
    }

    #[test]
    fn without_credentials_nothing_is_signed_and_a_refusal_says_so() {
        let bucket = Bucket::new("films", STORE, "us-east-1", Addressing::Auto).unwrap();
        let credentials = CredentialCache::new(Vec::new(), ConnectOptions::default());
        let signer = BucketSigner::new(bucket, "", credentials).unwrap();
        prepare(&signer).unwrap();
        let (signature, head) = signed(&signer);
        assert!(head.authorization.is_none() && head.fields.is_empty());
        let Judgement::Status(Some(denial)) = refused(&signer, signature, 403, "AccessDenied", "") else { panic!() };
        assert!(denial.why.contains("no credentials") && denial.hint.contains("AWS_ACCESS_KEY_ID"), "{denial:?}");
    }
}
