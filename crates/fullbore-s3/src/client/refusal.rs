//! Determines which part of a refused request the store may not support.
//!
//! Stores name the cause in many ways: `InvalidArgument` (B2), `NotImplemented` (R2), `ExcessHeaderValues` (GCS), or
//! not at all in answers to HEAD. Some proxies drop unknown fields, so that the signature is wrong. So fullbore tries:
//! it sends the request again without the suspected part, and believes the result.

use std::sync::atomic::Ordering;

use fullbore_wire::exchange;

use super::store::Store;
use super::{Call, Optional};
use crate::dialect::Feature;

/// Codes of refusals by 400 or 501 whose reason is not a part of the protocol.
const OTHER_REASONS: [&str; 22] = [
    "AccessDenied",
    "AuthorizationHeaderMalformed",
    "EntityTooLarge",
    "EntityTooSmall",
    "ExpiredToken",
    "IllegalLocationConstraintException",
    "IncompleteBody",
    "InvalidAccessKeyId",
    "InvalidBucketName",
    "InvalidObjectState",
    "InvalidPart",
    "InvalidPartOrder",
    "InvalidRegion",
    "InvalidStorageClass",
    "InvalidToken",
    "KeyTooLongError",
    "MalformedXML",
    "MetadataTooLarge",
    "NoSuchBucket",
    "NoSuchUpload",
    "QuotaExceeded",
    "TooManyParts",
];

/// The feature to omit from the next try; `None` if the refusal is about something else. `without` was omitted already.
pub(super) fn suspect(
    exchange: &exchange::Client<Store>,
    call: &Call,
    (status, code): (u16, &str),
    without: &[Feature],
) -> Option<Feature> {
    let may_be = match status {
        400 | 405 | 501 => !OTHER_REASONS.contains(&code),
        // With wrong keys there would have been no good answer before.
        403 => code == "SignatureDoesNotMatch" && exchange.last_success().is_some(),
        _ => false,
    };
    let optional = call.optional.iter().map(|(feature, _)| *feature);
    let was_unsigned = call.checksum.is_some() && exchange.checks.load(Ordering::Relaxed);
    let unsigned = was_unsigned.then_some(Feature::UnsignedPayload);
    let mut used = call.checksum.into_iter().chain(unsigned).chain(optional);
    // Other requests may have found out what the store lacks since this one was sent.
    let is_suspected = |feature: &Feature| !without.contains(feature) && !exchange.dialect.honours(*feature);
    if may_be { used.find(is_suspected) } else { None }
}

impl Call {
    /// The query parameters without those of omitted features.
    pub(super) fn query_for(&self, is_sent: impl Fn(Feature) -> bool) -> Vec<(&str, &str)> {
        let optional = self.optional.iter().filter_map(|(feature, part)| match part {
            Optional::Query(name, value) if is_sent(*feature) => Some((*name, value.as_str())),
            _ => None,
        });
        self.query.iter().map(|(name, value)| (*name, value.as_str())).chain(optional).collect()
    }

    /// The header fields without those of omitted features.
    pub(super) fn fields_for(&self, is_sent: impl Fn(Feature) -> bool) -> Vec<(String, String)> {
        let optional = self.optional.iter().filter_map(|(feature, part)| match part {
            Optional::Field(name, value) if is_sent(*feature) => Some(((*name).to_owned(), value.clone())),
            _ => None,
        });
        self.fields.iter().cloned().chain(optional).collect()
    }
}
