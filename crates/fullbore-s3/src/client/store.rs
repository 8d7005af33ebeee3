//! A store as a service of the exchange client: builds and signs request heads.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use fullbore_wire::auth::Authorization;
use fullbore_wire::connect::{Endpoint, Scheme};
use fullbore_wire::exchange::{Body, Measurement, Service};
use fullbore_wire::http1::RequestHead;

use super::measure::Meter;
use super::{CHECKSUM_FIELD, Call, redirect};
use crate::address::Bucket;
use crate::compare::md5_of;
use crate::credentials::unix_now;
use crate::dialect::{Dialect, Feature};
use crate::parts::base64;
use crate::sign::{Identity, Signable, Signer, UNSIGNED_PAYLOAD, amz_date};

/// One server of a store.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) bucket: RwLock<Arc<Bucket>>,
    pub(super) common: Arc<Common>,
}

/// State shared by all servers of a store.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) signer: Signer,
    pub(super) meter: Meter,
    /// The server's clock minus ours, in seconds.
    pub(super) clock_offset_s: AtomicI64,
    /// Whether the server has returned the checksum of our content. Then it checks the content, and the signature need
    /// not cover it.
    pub(super) checks: AtomicBool,
    pub(super) dialect: Dialect,
    /// Target and number of consecutive temporary redirects to one server.
    pub(super) signpost: Mutex<Option<(Endpoint, u32)>>,
}

/// A request with its signer, and its differences from the caller's request.
pub(super) struct Job {
    pub(super) call: Arc<Call>,
    pub(super) identity: Option<Arc<Identity>>,
    /// Features that this try omits.
    pub(super) without: Vec<Feature>,
    pub(super) target: Option<Arc<redirect::Target>>,
    /// Our time in the signature, if it is not the present. A fence uses an earlier time, so that the store itself
    /// refuses requests that a frozen run sends much later.
    pub(super) signed_at: Option<i64>,
}

impl Deref for Store {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Common {
    /// Whether the signature need not cover content that has a checksum.
    pub(super) fn trusts_checksums(&self) -> bool {
        self.checks.load(Ordering::Relaxed) && !self.dialect.lacks(Feature::UnsignedPayload)
    }
}

impl Store {
    pub(super) fn bucket(&self) -> Arc<Bucket> {
        Arc::clone(&self.bucket.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds header fields that depend on the content.
    fn content_fields(&self, call: &Call, has_checksum: bool, fields: &mut Vec<(String, String)>) {
        if has_checksum {
            fields.push((CHECKSUM_FIELD.into(), base64(&call.hash)));
            // Some stores use the checksum only if this field names it, as the AWS tools do.
            fields.push(("x-amz-sdk-checksum-algorithm".into(), "SHA256".into()));
        }
        // Content from a file would have to be read a second time.
        if call.checksum.is_some()
            && self.dialect.wants_md5()
            && let Body::Memory(pieces) = &call.body
        {
            fields.push(("Content-MD5".into(), md5_of(pieces)));
        }
    }
}

impl Service for Store {
    type Job = Job;
    type Server = Bucket;

    fn server(&self) -> Arc<Bucket> {
        self.bucket()
    }

    fn endpoint(bucket: &Bucket) -> &Endpoint {
        &bucket.endpoint
    }

    fn name(&self, bucket: &Bucket) -> String {
        bucket.host.clone()
    }

    /// Builds the head of a request, signed now.
    fn head(&self, job: &Job, bucket: &Bucket, absolute_form: bool) -> RequestHead {
        let Job { call, identity, without, target, signed_at } = job;
        let is_sent = |feature| !without.contains(&feature) && !self.dialect.lacks(feature);
        let host = bucket.host.as_str();
        let mut query = call.query_for(is_sent);
        let mut path = bucket.path(call.key.as_deref());
        let mut request_target = redirect::sent(call, &query, bucket);
        if let Some(target) = target {
            path.clone_from(&target.path);
            query = target.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            request_target = target.to_string();
        }
        let is_signed_url = target.as_ref().is_some_and(|target| target.is_signed());
        let mut head = RequestHead::new(call.method, host, request_target);
        head.fields = call.fields_for(is_sent);
        let has_checksum = call.checksum.is_some_and(is_sent);
        self.content_fields(call, has_checksum, &mut head.fields);
        if is_signed_url {
            // The signature in the URL covers none of our fields, and a store refuses unsigned ones.
            head.fields.retain(|(name, _)| !name.starts_with("x-amz-"));
        } else if let Some(identity) = identity {
            let now = signed_at.unwrap_or_else(unix_now) + self.clock_offset_s.load(Ordering::Relaxed);
            let hex = call.hash.to_hex();
            let is_trusted = has_checksum && self.trusts_checksums() && is_sent(Feature::UnsignedPayload);
            let payload = if is_trusted { UNSIGNED_PAYLOAD } else { hex.as_str() };
            head.fields.push(("x-amz-content-sha256".into(), payload.into()));
            head.fields.push(("x-amz-date".into(), amz_date(now)));
            head.fields
                .extend(identity.session_token.iter().map(|token| ("x-amz-security-token".into(), token.clone())));
            let request = Signable {
                method: call.method.as_str(),
                path: &path,
                query: &query,
                host,
                fields: &head.fields,
                payload,
            };
            let value = self.signer.authorization(&request, identity, &bucket.region, now);
            head.authorization = Some(Authorization::new(value));
        }
        // Not covered by the signature: a proxy may change ranges.
        head.range = call.range;
        if absolute_form {
            head.target = format!("{}://{host}{}", Scheme::Http.as_str(), head.target);
            let proxy = bucket.endpoint.proxy.as_ref();
            head.proxy_authorization = proxy.and_then(|proxy| proxy.authorization.as_ref()).map(Authorization::new);
        }
        head
    }

    fn record(&self, measurement: Measurement<'_>) {
        self.meter.record(measurement);
    }
}
