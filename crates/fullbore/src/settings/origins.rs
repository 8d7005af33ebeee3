//! Addresses of the mirrors that archives are fetched from: URLs, and buckets.

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::scheme;
use fullbore_s3::source::{BucketSources, SourceAddress};
use fullbore_wire::run::address;

use super::addresses;

/// What the flags say of the stores of buckets that do not say it themselves.
#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    pub endpoint: Option<String>,
    pub region: Option<String>,
    pub profile: Option<String>,
    pub no_sign_request: bool,
}

/// The variables of the AWS tools.
pub(super) fn sources() -> BucketSources {
    BucketSources::new(
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    )
}

/// The address of a mirror in one spelling. That of a bucket holds all that flags say of its store, so that it can be
/// recorded, and be used without them.
pub(super) fn origin(text: &str, store: &Store) -> Result<String, CommandError> {
    let text = text.trim();
    if !SourceAddress::is_one(text) {
        // Without a scheme: `s3:/BUCKET` and the like.
        let may_be_a_store = scheme(text.as_ref()).is_none_or(|(scheme, _)| addresses::is_of_a_store(&scheme));
        return match addresses::not_of_an_archive(text.as_ref()).filter(|_| may_be_a_store) {
            Some(error) => Err(error),
            None => address(text),
        };
    }
    let mut source = SourceAddress::parse(text).map_err(CommandError::usage)?;
    // Parameters name another store than the flags: of both together a third one might come.
    if !source.names_a_store() {
        source.endpoint.clone_from(&store.endpoint);
        source.region.clone_from(&store.region);
        source.profile.clone_from(&store.profile);
        source.signs = !store.no_sign_request;
    }
    let text = source.to_string();
    sources().find(&text)?;
    Ok(text)
}

/// Whether a mirror is a bucket.
pub(super) fn is_bucket(origin: &str) -> bool {
    SourceAddress::is_one(origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_for_buckets_that_name_no_store() {
        let flags = Store { endpoint: Some("http://127.0.0.1:1".into()), ..Store::default() };
        let with = |text: &str| origin(text, &flags).unwrap();
        assert_eq!(with("s3://films/debian/"), "s3://films/debian?endpoint=http://127.0.0.1:1");
        assert_eq!(with("s3://films/debian?region=eu-1"), "s3://films/debian?region=eu-1");
        assert_eq!(with("https://a/debian/"), "https://a/debian");
    }

    #[test]
    fn addresses_of_other_stores_are_explained() {
        let error = origin("gs://films/debian", &Store::default()).unwrap_err();
        assert!(error.hints[0].contains("s3://films/debian") && error.hints[0].contains("storage.googleapis.com"));
        for text in ["s3:/films/debian", "s3:films/debian"] {
            let error = origin(text, &Store::default()).unwrap_err();
            assert_eq!(error.hints, ["use s3://films/debian"], "{text}");
        }
        let error = origin("s3://films/debian?endpoint=ftp://x", &Store::default()).unwrap_err();
        assert_eq!(error.exit_code(), 1);
    }
}
