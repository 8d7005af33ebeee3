//! Which parts of the S3 protocol a store supports, learned during a run from its answers.
//!
//! Every store lacks something: it refuses or ignores a header field that Amazon's stores support, or answers as if it
//! had honoured it. Settings per product would be wrong with its next version. So fullbore sends the requests that
//! Amazon's stores support, and learns from refusals. [`Client::call`](super::Client::call) omits a suspected part of a
//! request and sends it again; its success shows which part the store does not support ([`Feature`]).
//!
//! Nothing is kept for later runs, when another store or version may answer at the address.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::parts::PARTS_MAX;

/// A part of the protocol that not every store supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// SHA-256 checksums (`x-amz-checksum-sha256`) of objects put in one piece.
    ObjectChecksums,
    /// SHA-256 checksums of parts, and `x-amz-checksum-algorithm` at the start of a multipart upload.
    PartChecksums,
    /// `x-amz-checksum-mode: ENABLED` in HEAD: the answer includes the checksums of the object.
    ToldChecksums,
    /// A signature that does not cover the content (`UNSIGNED-PAYLOAD`), for content with its own checksum.
    UnsignedPayload,
    /// `If-None-Match: *` in PUT: an object is put only if none exists.
    PutIfAbsent,
    /// `If-Match` in GET: all ranges come from the same object.
    GetIfMatch,
    /// `Range` in GET: parts of an object can be downloaded.
    Ranges,
    /// `POST ?delete`: one request deletes many objects.
    BulkDelete,
    /// `list-type=2`: a listing continues by a token, not by the last key.
    ListingTokens,
    /// `encoding-type=url`: a listing can contain keys that XML cannot express.
    EncodedListing,
    /// The ETag of an object in one piece is the MD5 of its content.
    Md5Etags,
}

impl Feature {
    /// All features.
    pub const ALL: [Feature; 11] = [
        Feature::ObjectChecksums,
        Feature::PartChecksums,
        Feature::ToldChecksums,
        Feature::UnsignedPayload,
        Feature::PutIfAbsent,
        Feature::GetIfMatch,
        Feature::Ranges,
        Feature::BulkDelete,
        Feature::ListingTokens,
        Feature::EncodedListing,
        Feature::Md5Etags,
    ];

    /// Name of the feature, for a log line.
    pub fn name(self) -> &'static str {
        match self {
            Feature::ObjectChecksums => "checksums of objects (x-amz-checksum-sha256)",
            Feature::PartChecksums => "checksums of parts (x-amz-checksum-sha256)",
            Feature::ToldChecksums => "x-amz-checksum-mode",
            Feature::UnsignedPayload => "UNSIGNED-PAYLOAD",
            Feature::PutIfAbsent => "If-None-Match in PUT",
            Feature::GetIfMatch => "If-Match in GET",
            Feature::Ranges => "Range in GET",
            Feature::BulkDelete => "deletion of many objects by one request",
            Feature::ListingTokens => "ListObjectsV2",
            Feature::EncodedListing => "encoding-type=url",
            Feature::Md5Etags => "ETags that are MD5 sums",
        }
    }
}

/// Whether a store honours a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// No answer has shown it yet.
    Unknown,
    /// An answer has shown that the store supports it.
    Honoured,
    /// The store has refused or ignored it, or the user has switched it off.
    Lacking,
}

/// What is known of one store. All requests of a run share it.
#[derive(Debug)]
pub struct Dialect {
    support: [AtomicU8; Feature::ALL.len()],
    /// A request is finding out whether the store honours conditions.
    condition_is_asked: AtomicBool,
    /// The store requires `Content-MD5` with content: a bucket with object locks does.
    wants_md5: AtomicBool,
    /// Maximum number of parts of an object.
    parts_max: AtomicU64,
}

/// The state for an unknown store.
impl Default for Dialect {
    fn default() -> Dialect {
        Dialect {
            support: Default::default(),
            condition_is_asked: AtomicBool::new(false),
            wants_md5: AtomicBool::new(false),
            parts_max: AtomicU64::new(PARTS_MAX),
        }
    }
}

impl Dialect {
    /// The state before the first request. Amazon's stores honour `If-None-Match` by their documentation ("Conditional
    /// writes", since August 2024). Any other store may answer 200 and replace the object.
    pub fn of(is_amazon: bool) -> Dialect {
        let dialect = Dialect::default();
        if is_amazon {
            dialect.learn(Feature::PutIfAbsent, Support::Honoured);
        }
        dialect
    }

    /// What is known of a feature.
    pub fn support(&self, feature: Feature) -> Support {
        match self.support[feature as usize].load(Ordering::Relaxed) {
            1 => Support::Honoured,
            2 => Support::Lacking,
            _ => Support::Unknown,
        }
    }

    /// Whether an answer has shown that the store supports a feature.
    pub fn honours(&self, feature: Feature) -> bool {
        self.support(feature) == Support::Honoured
    }

    /// Whether an answer has shown that the store lacks a feature.
    pub fn lacks(&self, feature: Feature) -> bool {
        self.support(feature) == Support::Lacking
    }

    /// Records what an answer has shown. A feature that was once lacking is not relied on again: several servers may be
    /// behind one address.
    pub fn learn(&self, feature: Feature, support: Support) {
        let code = match support {
            Support::Unknown => return,
            Support::Honoured => 1,
            Support::Lacking => 2,
        };
        let known = &self.support[feature as usize];
        let before = known.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known| (known < code).then_some(code));
        if before.is_ok() && support == Support::Lacking {
            tracing::info!(feature = feature.name(), "not used with this store");
        }
    }

    /// Whether the caller should test [`Feature::PutIfAbsent`]; true for one caller only.
    pub(crate) fn asks_for_condition(&self) -> bool {
        self.support(Feature::PutIfAbsent) == Support::Unknown && !self.condition_is_asked.swap(true, Ordering::Relaxed)
    }

    /// Whether content needs `Content-MD5`.
    pub(crate) fn wants_md5(&self) -> bool {
        self.wants_md5.load(Ordering::Relaxed)
    }

    /// Maximum number of parts of an object.
    pub(crate) fn parts_max(&self) -> u64 {
        self.parts_max.load(Ordering::Relaxed)
    }

    /// Records that the store has refused a part with a higher number.
    pub(crate) fn learn_parts_max(&self, most: u64) {
        self.parts_max.fetch_min(most, Ordering::Relaxed);
    }

    /// Records that the store requires `Content-MD5`.
    pub(crate) fn learn_to_send_md5(&self) {
        self.wants_md5.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_was_lacking_once_is_not_relied_on() {
        let dialect = Dialect::of(false);
        for feature in Feature::ALL {
            assert_eq!(dialect.support(feature), Support::Unknown);
            dialect.learn(feature, Support::Honoured);
            assert!(dialect.honours(feature), "{feature:?}");
            dialect.learn(feature, Support::Lacking);
            dialect.learn(feature, Support::Honoured);
            assert!(dialect.lacks(feature), "{feature:?}");
        }
        assert!(Dialect::of(true).honours(Feature::PutIfAbsent), "Amazon's, by its documentation");
    }

    #[test]
    fn one_request_finds_out_about_conditions() {
        let dialect = Dialect::of(false);
        assert!(dialect.asks_for_condition() && !dialect.asks_for_condition());
        assert!(!Dialect::of(true).asks_for_condition(), "it is known");
        let dialect = Dialect::default();
        assert!(!dialect.wants_md5());
        dialect.learn_to_send_md5();
        assert!(dialect.wants_md5());
        assert_eq!(dialect.parts_max(), PARTS_MAX);
        [1000, 2000].into_iter().for_each(|most| dialect.learn_parts_max(most));
        assert_eq!(dialect.parts_max(), 1000);
    }

    #[test]
    fn each_feature_has_a_place_and_a_name_of_its_own() {
        for (place, feature) in Feature::ALL.into_iter().enumerate() {
            assert_eq!(feature as usize, place);
            assert_eq!(Feature::ALL.iter().filter(|other| other.name() == feature.name()).count(), 1);
        }
    }
}
