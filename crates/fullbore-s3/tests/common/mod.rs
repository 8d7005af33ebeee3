//! What several test binaries of this crate need.

use std::collections::BTreeMap;
use std::time::Duration;

use fullbore_s3::bucket::{self, BucketSettings};
use fullbore_s3::credentials::Aws;
use fullbore_s3::{Addressing, Location};

/// A bucket of the store at this URL.
pub fn bucket_at(url: &str, place: &str) -> BucketSettings {
    let variables = BTreeMap::from([
        ("AWS_ACCESS_KEY_ID", "fullbore"),
        ("AWS_SECRET_ACCESS_KEY", "only-for-tests"),
        ("AWS_ENDPOINT_URL", url),
        ("HOME", "/nonexistent"),
    ]);
    BucketSettings {
        location: Location::parse(place).unwrap(),
        endpoint: None,
        region: None,
        addressing: Addressing::Path,
        signs: true,
        authorities: None,
        connections: bucket::CONNECTIONS,
        patience: Duration::from_secs(30),
        proxy: fullbore_wire::run::ProxyAddresses::default(),
        aws: Aws::find(&|name| variables.get(name).map(|value| (*value).to_owned()), None).unwrap(),
    }
}
