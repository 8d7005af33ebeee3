//! The address of an archive in a bucket, with everything needed to reach it.
//!
//! `s3://BUCKET/PREFIX?endpoint=URL&region=NAME&profile=NAME` contains all in one text, because one command may read
//! several buckets of several stores, beside the bucket that it writes. The parameters have the names of the flags. In
//! other addresses, a `?` does not start parameters: keys of objects may contain one, prefixes of archives do not.

use std::fmt;

use crate::address::{AddressError, Addressing, Location, SCHEME};
use crate::key::decode_listed;

/// Known parameters of an address.
const PARAMETERS: [&str; 5] = ["endpoint", "region", "profile", "addressing", "no-sign-request"];

/// Why a text is not the address of an archive in a bucket. No text contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceAddressError {
    /// Bucket or scheme are invalid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The address has credentials before the bucket.
    #[error("an address of a bucket holds no credentials; put them into a profile, and add ?profile=NAME")]
    Credentials,
    /// A parameter is unknown.
    #[error("{name:?} is not a parameter of a bucket's address; expected one of {}", PARAMETERS.join(", "))]
    Parameter {
        /// Name of the parameter.
        name: String,
    },
    /// A parameter has an invalid value.
    #[error("parameter {name} of a bucket's address: {reason}")]
    Value {
        /// Name of the parameter.
        name: String,
        /// What is wrong with the value.
        reason: &'static str,
    },
    /// The address contains `#` or a control character.
    #[error("an address of a bucket ends with the archive's directory: no `#` and no control characters")]
    Character,
}

/// The address of an archive in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceAddress {
    /// The bucket, and the prefix without slashes at its ends.
    pub location: Location,
    /// URL of the store; `None` for that of the AWS tools' settings.
    pub endpoint: Option<String>,
    /// Region of the bucket; `None` for that of the AWS tools' settings.
    pub region: Option<String>,
    /// Profile of the AWS tools, which may set all of these.
    pub profile: Option<String>,
    /// Where the bucket is placed in URLs.
    pub addressing: Addressing,
    /// Whether requests are signed; false for public buckets.
    pub signs: bool,
}

impl SourceAddress {
    /// Whether a text is such an address: it begins with `s3://`.
    pub fn is_one(text: &str) -> bool {
        text.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME))
    }

    /// Parses an address.
    ///
    /// ```
    /// use fullbore_s3::source::SourceAddress;
    ///
    /// let address = SourceAddress::parse("s3://films/debian/?profile=work&endpoint=http://127.0.0.1:7070")?;
    /// assert_eq!((&*address.location.bucket, &*address.location.key), ("films", "debian"));
    /// assert_eq!(address.profile.as_deref(), Some("work"));
    /// assert_eq!(address.to_string(), "s3://films/debian?endpoint=http://127.0.0.1:7070&profile=work");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SourceAddressError::Character`] for `#` or a control character; [`SourceAddressError::Credentials`] for
    /// credentials before the bucket; [`SourceAddressError::Address`] for an invalid bucket;
    /// [`SourceAddressError::Parameter`] and [`SourceAddressError::Value`] for an invalid parameter.
    pub fn parse(text: &str) -> Result<SourceAddress, SourceAddressError> {
        let text = text.trim();
        if text.contains('#') || text.chars().any(char::is_control) {
            return Err(SourceAddressError::Character);
        }
        let (place, parameters) = text.split_once('?').unwrap_or((text, ""));
        let place = match place.get(..SCHEME.len()) {
            Some(start) if start.eq_ignore_ascii_case(SCHEME) => format!("{SCHEME}{}", &place[SCHEME.len()..]),
            _ => place.to_owned(),
        };
        // Older transports of apt had the keys here.
        if place.trim_start_matches(SCHEME).split('/').next().is_some_and(|authority| authority.contains('@')) {
            return Err(SourceAddressError::Credentials);
        }
        let Location { bucket, key } = Location::parse(&place)?;
        let key = key.trim_matches('/').to_owned();
        let mut address = SourceAddress {
            location: Location { bucket, key },
            endpoint: None,
            region: None,
            profile: None,
            addressing: Addressing::Auto,
            signs: true,
        };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            address.set(parameter)?;
        }
        Ok(address)
    }

    fn set(&mut self, parameter: &str) -> Result<(), SourceAddressError> {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let wrong = |reason| SourceAddressError::Value { name: name.to_owned(), reason };
        // `+` is literal: names of profiles may contain it, and nobody writes a space that way here.
        let value = decode_listed(&value.replace('+', "%2B")).ok_or_else(|| wrong("not properly percent-encoded"))?;
        let text = || if value.is_empty() { Err(wrong("has no value")) } else { Ok(Some(value.clone())) };
        match name {
            "endpoint" => self.endpoint = text()?,
            "region" => self.region = text()?,
            "profile" => self.profile = text()?,
            "addressing" => {
                self.addressing = match value.as_str() {
                    "auto" => Addressing::Auto,
                    "path" => Addressing::Path,
                    "virtual" => Addressing::Virtual,
                    _ => return Err(wrong("is auto, path or virtual")),
                }
            }
            "no-sign-request" => {
                self.signs = match value.as_str() {
                    "" | "true" => false,
                    "false" => true,
                    _ => return Err(wrong("is true or false")),
                }
            }
            _ => return Err(SourceAddressError::Parameter { name: name.to_owned() }),
        }
        Ok(())
    }

    /// Whether the address itself names a store or a profile.
    pub fn names_a_store(&self) -> bool {
        self.endpoint.is_some() || self.region.is_some() || self.profile.is_some() || !self.signs
    }
}

/// Formats the address in one spelling, by which runs recognize a mirror.
impl fmt::Display for SourceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Location { bucket, key } = &self.location;
        write!(f, "{SCHEME}{bucket}{}{key}", if key.is_empty() { "" } else { "/" })?;
        let addressing = match self.addressing {
            Addressing::Auto => None,
            Addressing::Path => Some("path".to_owned()),
            Addressing::Virtual => Some("virtual".to_owned()),
        };
        let parameters = [
            ("endpoint", self.endpoint.clone()),
            ("region", self.region.clone()),
            ("profile", self.profile.clone()),
            ("addressing", addressing),
            ("no-sign-request", (!self.signs).then(|| "true".to_owned())),
        ];
        let mut mark = '?';
        for (name, value) in parameters {
            let Some(value) = value else { continue };
            write!(f, "{mark}{name}=")?;
            mark = '&';
            for c in value.chars() {
                match c {
                    '%' | '&' | '#' | '?' | ' ' | '+' => write!(f, "%{:02X}", u32::from(c))?,
                    c => write!(f, "{c}")?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_says_which_store_and_as_whom() {
        let address = SourceAddress::parse(
            " S3://bucket//deb/archive/?endpoint=https://h:9000/x&region=eu-1&profile=a%26b&addressing=path&no-sign-request ",
        )
        .unwrap();
        assert_eq!((&*address.location.bucket, &*address.location.key), ("bucket", "deb/archive"));
        assert_eq!(address.endpoint.as_deref(), Some("https://h:9000/x"));
        assert_eq!((address.region.as_deref(), address.profile.as_deref()), (Some("eu-1"), Some("a&b")));
        assert!(address.addressing == Addressing::Path && !address.signs && address.names_a_store());
        assert!(!SourceAddress::parse("s3://bucket").unwrap().names_a_store());
    }

    #[test]
    fn what_is_wrong_with_an_address_is_named() {
        let error = |text: &str| SourceAddress::parse(text).unwrap_err().to_string();
        assert!(error("s3://bucket/x?profil=y").contains("expected one of endpoint, region, profile"));
        assert!(error("s3://bucket/x?region=").contains("region"));
        assert!(error("s3://bucket/x?addressing=dns").contains("auto, path or virtual"));
        assert!(error("s3://bucket/x#y").contains("no `#`"));
        assert!(error("s3://b/x").contains("bucket"));
        let secret = error("s3://AKIA1:sEcrEt@s3.amazonaws.com/bucket");
        assert!(!secret.contains("sEcrEt") && secret.contains("profile"), "{secret}");
    }

    proptest! {
        #[test]
        fn an_address_is_read_as_it_is_shown(
            key in "[a-z]{0,3}(/[a-z+~ ]{1,3}){0,2}",
            profile in proptest::option::of("[a-z+&?#% =]{1,8}"),
            endpoint in proptest::option::of("http://[a-z]{1,5}:[0-9]{1,4}/[a-z&+]{0,3}"),
        ) {
            prop_assume!(!key.ends_with(' '));
            let address = SourceAddress {
                location: Location { bucket: "bucket".into(), key: key.trim_matches('/').to_owned() },
                endpoint, region: None, profile, addressing: Addressing::Auto, signs: true,
            };
            prop_assert_eq!(SourceAddress::parse(&address.to_string()), Ok(address));
        }

        #[test]
        fn parsing_takes_anything(text in "(s3://)?\\PC{0,40}") {
            let _ = SourceAddress::parse(&text);
        }
    }
}
