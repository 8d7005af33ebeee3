//! The header fields of uploaded objects, and their checks.

use std::path::Path;

use fullbore_engine::run::error::CommandError;

/// Type of a file whose name shows none.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// Attributes of uploaded objects, as given on the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSettings {
    /// `Content-Type` of all objects; `None`: derived from each file name.
    pub content_type: Option<String>,
    /// `Cache-Control` of all objects, such as `max-age=300`.
    pub cache_control: Option<String>,
    /// User metadata of all objects, each as `NAME=VALUE`.
    pub metadata: Vec<String>,
    /// Storage class of all objects, such as `STANDARD_IA`; `None`: the bucket's.
    pub storage_class: Option<String>,
    /// Canned access control list of all objects, such as `public-read`.
    pub acl: Option<String>,
    /// Encryption by the store: `AES256`, `aws:kms` or `aws:kms:KEY-ID`.
    pub sse: Option<String>,
}

/// The fields of all objects, except Content-Type.
pub(super) fn common(arguments: &FieldSettings) -> Result<Vec<(String, String)>, CommandError> {
    let mut fields = Vec::new();
    let mut add = |flag: &str, name: String, value: &str| {
        if value.is_empty() || !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) || value.trim() != value {
            return Err(CommandError::usage(format_args!("{flag}: a value of printable ASCII is needed")));
        }
        // Stores join two fields of one name, and the signature is wrong then.
        if fields.iter().any(|(other, _)| *other == name) {
            return Err(CommandError::usage(format_args!("{flag}: {name} twice")));
        }
        fields.push((name, value.to_owned()));
        Ok(())
    };
    if let Some(value) = &arguments.cache_control {
        add("--cache-control", "Cache-Control".into(), value)?;
    }
    if let Some(value) = &arguments.storage_class {
        add("--storage-class", "x-amz-storage-class".into(), value)?;
    }
    if let Some(value) = &arguments.acl {
        add("--acl", "x-amz-acl".into(), value)?;
    }
    match arguments.sse.as_deref() {
        None => {}
        Some("AES256" | "aws:kms" | "aws:kms:dsse") => {
            add("--sse", "x-amz-server-side-encryption".into(), arguments.sse.as_deref().unwrap_or_default())?;
        }
        Some(value) => match value.strip_prefix("aws:kms:") {
            Some(key) => {
                add("--sse", "x-amz-server-side-encryption".into(), "aws:kms")?;
                add("--sse", "x-amz-server-side-encryption-aws-kms-key-id".into(), key)?;
            }
            None => {
                return Err(CommandError::usage(format_args!("--sse {value}: AES256, aws:kms or aws:kms:KEY-ID")));
            }
        },
    }
    for pair in &arguments.metadata {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| CommandError::usage(format_args!("--metadata {pair}: NAME=VALUE is needed")))?;
        let name = name.to_ascii_lowercase();
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            return Err(CommandError::usage(format_args!("--metadata {pair}: letters, digits and -_. make a name")));
        }
        add("--metadata", format!("x-amz-meta-{name}"), value)?;
    }
    if let Some(value) = &arguments.content_type {
        // Checked here, and used for each object.
        add("--content-type", "Content-Type".into(), value)?;
        fields.pop();
    }
    Ok(fields)
}

/// Content type by the name of an object.
pub fn by_name(key: &str) -> String {
    content_type(None, key)
}

/// Content type of an object: the given one, otherwise by its name.
pub(super) fn content_type(given: Option<&str>, key: &str) -> String {
    let guessed = || mime_guess::from_path(Path::new(key)).first_raw().unwrap_or(UNKNOWN_TYPE);
    given.unwrap_or_else(guessed).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> FieldSettings {
        FieldSettings {
            content_type: None,
            cache_control: Some("max-age=300, public".into()),
            metadata: vec!["Origin=a=b c".into()],
            storage_class: None,
            acl: Some("public-read".into()),
            sse: Some("aws:kms:key/1".into()),
        }
    }

    #[test]
    fn flags_give_the_fields_and_names_the_type() {
        let fields = common(&arguments()).unwrap();
        let expected = [
            ("Cache-Control", "max-age=300, public"),
            ("x-amz-acl", "public-read"),
            ("x-amz-server-side-encryption", "aws:kms"),
            ("x-amz-server-side-encryption-aws-kms-key-id", "key/1"),
            ("x-amz-meta-origin", "a=b c"),
        ];
        assert_eq!(fields, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let types = [("a/b.html", "text/html"), ("x.tar.xz", "application/x-xz"), ("InRelease", UNKNOWN_TYPE)];
        for (key, expected) in types {
            assert_eq!(content_type(None, key), expected);
        }
        assert_eq!(content_type(Some("text/x"), "a.html"), "text/x");
    }

    #[test]
    fn what_would_break_a_request_is_refused() {
        let with = |change: fn(&mut FieldSettings)| {
            let mut arguments = arguments();
            change(&mut arguments);
            common(&arguments).is_err()
        };
        assert!(with(|arguments| arguments.cache_control = Some("a\r\nb: c".into())));
        assert!(with(|arguments| arguments.content_type = Some("ü".into())));
        assert!(with(|arguments| arguments.metadata = vec!["no-value".into()]));
        assert!(with(|arguments| arguments.metadata = vec!["a b=c".into()]));
        assert!(with(|arguments| arguments.metadata = vec!["a=b".into(), "A=c".into()]), "no store could check it");
        assert!(with(|arguments| arguments.sse = Some("rot13".into())));
    }
}
