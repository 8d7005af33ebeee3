//! Parses the XML of servers' answers within limits.
//!
//! The parser is roxmltree: it builds a whole tree of an answer whose size the client has bounded already, without DTDs
//! and so without custom entities. Unknown elements are skipped and namespaces are ignored, because stores differ. The
//! caller judges what is missing.

use roxmltree::{Document, Node, ParsingOptions};

use super::key::decode_listed;

/// Maximum size of an answer in bytes: a listing of a thousand keys of 1024 bytes, three bytes each when encoded, with
/// owners.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Maximum number of nodes in an answer: a thousand entries of at most fifty nodes.
const NODES_MAX: u32 = 100_000;

/// Maximum number of entries in an answer: more than servers send.
const ENTRIES_MAX: usize = 10_000;

/// Maximum length of an ETag in a listing, in bytes; a longer one is ignored. MD5 with a number of parts has 38; a
/// guess for others.
const ETAG_BYTES_MAX: usize = 1024;

/// Why an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XmlError {
    /// The answer is too long, or not UTF-8.
    #[error("the server's answer is {0}")]
    Form(&'static str),
    /// The parser's error.
    #[error("cannot read the XML of the server: {0}")]
    Syntax(String),
    /// A required element is missing.
    #[error("the server's answer has no {0}")]
    Missing(&'static str),
    /// A listed key does not begin with the requested prefix.
    #[error(
        "asked for keys below {prefix:?}, store {store} lists {key:?}; check the endpoint, and any proxy in front of it"
    )]
    Stray {
        /// The requested prefix.
        prefix: String,
        /// Name of the store.
        store: String,
        /// The first such key.
        key: String,
    },
}

/// An error reported by a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceError {
    /// Code of the error, such as `SlowDown` or `NoSuchBucket`. Empty if the server gave none.
    pub code: String,
    /// The explanation that the store gives, in words.
    pub message: String,
    /// The region of the bucket, if the request went to another one.
    pub region: Option<String>,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// Key of the object.
    pub key: String,
    /// Size of the object, in bytes.
    pub size: u64,
    /// ETag without quotes.
    pub etag: String,
    /// Time of the upload, Unix time in seconds, if the store gives it.
    pub modified_unix_s: Option<i64>,
}

/// A page of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects on this page of the listing.
    pub objects: Vec<ListedObject>,
    /// Common beginnings of keys up to the delimiter, if the listing was requested with one.
    pub prefixes: Vec<String>,
    /// Continuation of the listing; `None` on the last page.
    pub next: Option<Next>,
}

/// How to request the next page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// With the token from the server (ListObjectsV2).
    Token(String),
    /// With the key after which it begins: the server answers as to ListObjects, whatever was requested.
    Marker(String),
}

/// A multipart upload that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// Key that the upload will complete.
    pub key: String,
    /// Name of the upload, given by the store.
    pub upload_id: String,
    /// Start of the upload by the server's clock, in Unix seconds, if the server gives it.
    pub initiated_s: Option<i64>,
}

/// A page of a listing of multipart uploads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UploadsPage {
    /// The uploads on this page of the listing.
    pub uploads: Vec<Begun>,
    /// Key and upload after which the next page begins; `None` on the last page.
    pub next: Option<(String, String)>,
}

/// A stored part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPart {
    /// Number of the part, from 1.
    pub number: u64,
    /// Size of the part, in bytes.
    pub size: u64,
    /// ETag without quotes.
    pub etag: String,
    /// Whether the store lists the ETag without quotes, and may expect it so.
    pub has_bare_etag: bool,
    /// SHA-256 in base64, if the store gives it.
    pub checksum_sha256: Option<String>,
}

/// A page of a listing of parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartsPage {
    /// The parts on this page of the listing.
    pub parts: Vec<ListedPart>,
    /// Number of the part after which the next page begins; `None` on the last page.
    pub next: Option<u64>,
}

/// Result of completing a multipart upload, or of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Completed {
    /// ETag of the object, without quotes.
    pub etag: String,
    /// Checksum of the object, as the server has it.
    pub checksum_sha256: Option<String>,
}

/// Temporary credentials of the security token service.
#[derive(Clone, PartialEq, Eq)]
pub struct Temporary {
    /// The public half of the key pair.
    pub access_key_id: String,
    /// The secret half of the key pair.
    pub secret_access_key: String,
    /// Token that goes with each request signed by the pair.
    pub session_token: String,
    /// Expiry of the credentials (ISO 8601).
    pub expiration: String,
}

/// Parses the document, and passes its root to `take`.
fn read<T>(bytes: &[u8], take: impl FnOnce(Node<'_, '_>) -> Result<T, XmlError>) -> Result<T, XmlError> {
    if bytes.len() > ANSWER_BYTES_MAX {
        return Err(XmlError::Form("too long"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| XmlError::Form("not UTF-8"))?;
    // Servers send spaces while they join parts, so that the connection does not seem dead.
    let text = text.trim_ascii_start();
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| XmlError::Syntax(error.to_string()))?;
    take(document.root_element())
}

/// The text of the child with this name.
fn child<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let child = node.children().find(|child| child.tag_name().name() == name)?;
    Some(child.text().unwrap_or_default())
}

/// Whether the list continues after this page. Some stores write `True` or `1`.
fn is_truncated(root: Node<'_, '_>) -> bool {
    let text = child(root, "IsTruncated").unwrap_or_default().trim();
    text == "1" || text.eq_ignore_ascii_case("true")
}

fn needed(node: Node<'_, '_>, name: &'static str) -> Result<String, XmlError> {
    child(node, name).filter(|text| !text.is_empty()).map(str::to_owned).ok_or(XmlError::Missing(name))
}

/// Parses a time in the form of stores (ISO 8601) into Unix seconds.
fn unix_s(text: &str) -> Option<i64> {
    text.trim().parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
}

/// The children with this name.
fn all<'a, 'i: 'a>(node: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(move |child| child.tag_name().name() == name).take(ENTRIES_MAX)
}

fn unquoted(text: &str) -> String {
    text.trim().trim_matches('"').to_owned()
}

/// Parses an error document; `None` if the answer is not one.
pub fn service_error(bytes: &[u8]) -> Option<ServiceError> {
    read(bytes, |root| {
        // The token service has its error one level deeper.
        let error = match root.tag_name().name() {
            "Error" => Some(root),
            _ => root.children().find(|node| node.tag_name().name() == "Error"),
        };
        let error = error.filter(|error| child(*error, "Code").is_some()).ok_or(XmlError::Missing("Error"))?;
        let text = |name| child(error, name).unwrap_or_default().trim().to_owned();
        let region = Some(text("Region")).filter(|region| !region.is_empty());
        Ok(ServiceError { code: text("Code"), message: text("Message"), region })
    })
    .ok()
}

/// Parses `InitiateMultipartUploadResult`: the id of the upload.
///
/// # Errors
/// [`XmlError`] if `bytes` are not well-formed XML within the limits, or have no `UploadId`.
pub fn upload_id(bytes: &[u8]) -> Result<String, XmlError> {
    read(bytes, |root| needed(root, "UploadId"))
}

/// Parses `CompleteMultipartUploadResult`.
///
/// # Errors
/// [`XmlError`] if `bytes` are not well-formed XML within the limits, or not the result of a completed upload.
pub fn completed(bytes: &[u8]) -> Result<Completed, XmlError> {
    read(bytes, |root| {
        let etag = unquoted(&needed(root, "ETag")?);
        let checksum_sha256 = child(root, "ChecksumSHA256").map(str::to_owned).filter(|text| !text.is_empty());
        Ok(Completed { etag, checksum_sha256 })
    })
}

/// Parses `ListBucketResult` of ListObjectsV2, requested with `encoding-type=url`.
///
/// # Errors
/// [`XmlError`] if `bytes` are not well-formed XML within the limits, or not a page of a listing.
pub fn page(bytes: &[u8]) -> Result<Page, XmlError> {
    read(bytes, |root| {
        if root.tag_name().name() != "ListBucketResult" {
            return Err(XmlError::Missing("ListBucketResult"));
        }
        let encoded = child(root, "EncodingType") == Some("url");
        let mut objects = Vec::new();
        for entry in all(root, "Contents") {
            objects.push(ListedObject {
                key: listed_key(entry, encoded)?,
                size: needed(entry, "Size")?.parse().map_err(|_| XmlError::Missing("Size in numbers"))?,
                etag: child(entry, "ETag")
                    .map(unquoted)
                    .filter(|etag| etag.len() <= ETAG_BYTES_MAX)
                    .unwrap_or_default(),
                modified_unix_s: child(entry, "LastModified").and_then(unix_s),
            });
        }
        let prefix = |entry| decoded(&needed(entry, "Prefix")?, encoded);
        let prefixes = all(root, "CommonPrefixes").map(prefix).collect::<Result<Vec<_>, _>>()?;
        // Skipped entries would count as objects that do not exist.
        if objects.len().max(prefixes.len()) >= ENTRIES_MAX {
            return Err(XmlError::Form("a page of more entries than a listing has"));
        }
        let next = if is_truncated(root) { Some(next_page(root, &objects, &prefixes, encoded)?) } else { None };
        Ok(Page { objects, prefixes, next })
    })
}

/// Without a token, the next page begins after `NextMarker`; without that, after the last key. Amazon's ListObjects
/// omits `NextMarker` if no delimiter was requested.
fn next_page(
    root: Node<'_, '_>,
    objects: &[ListedObject],
    prefixes: &[String],
    encoded: bool,
) -> Result<Next, XmlError> {
    if let Ok(token) = needed(root, "NextContinuationToken") {
        return Ok(Next::Token(token));
    }
    if let Ok(marker) = needed(root, "NextMarker") {
        return Ok(Next::Marker(decoded(&marker, encoded)?));
    }
    let last = objects.iter().map(|object| &object.key).chain(prefixes).max_by_key(|key| key.as_bytes());
    last.map(|key| Next::Marker(key.clone())).ok_or(XmlError::Missing("NextContinuationToken"))
}

fn listed_key(entry: Node<'_, '_>, encoded: bool) -> Result<String, XmlError> {
    decoded(&needed(entry, "Key")?, encoded)
}

fn decoded(key: &str, encoded: bool) -> Result<String, XmlError> {
    if encoded { decode_listed(key).ok_or(XmlError::Missing("key that can be decoded")) } else { Ok(key.to_owned()) }
}

/// Parses `ListMultipartUploadsResult`, requested with `encoding-type=url`.
///
/// # Errors
/// [`XmlError`] if `bytes` are not well-formed XML within the limits, or not a page of open uploads.
pub fn uploads(bytes: &[u8]) -> Result<UploadsPage, XmlError> {
    read(bytes, |root| {
        if root.tag_name().name() != "ListMultipartUploadsResult" {
            return Err(XmlError::Missing("ListMultipartUploadsResult"));
        }
        let encoded = child(root, "EncodingType") == Some("url");
        let entry = |entry| {
            Ok(Begun {
                key: listed_key(entry, encoded)?,
                upload_id: needed(entry, "UploadId")?,
                initiated_s: child(entry, "Initiated").and_then(unix_s),
            })
        };
        let uploads = all(root, "Upload").map(entry).collect::<Result<Vec<_>, _>>()?;
        let next = if is_truncated(root) {
            let upload_id = child(root, "NextUploadIdMarker").unwrap_or_default().to_owned();
            Some((decoded(&needed(root, "NextKeyMarker")?, encoded)?, upload_id))
        } else {
            None
        };
        Ok(UploadsPage { uploads, next })
    })
}

/// Parses `ListPartsResult`.
///
/// # Errors
/// [`XmlError`] if `bytes` are not well-formed XML within the limits, or not a page of parts.
pub fn parts(bytes: &[u8]) -> Result<PartsPage, XmlError> {
    read(bytes, |root| {
        if root.tag_name().name() != "ListPartsResult" {
            return Err(XmlError::Missing("ListPartsResult"));
        }
        let number = |node, name| needed(node, name)?.parse().map_err(|_| XmlError::Missing(name));
        let entry = |entry| {
            let etag = needed(entry, "ETag")?;
            Ok(ListedPart {
                number: number(entry, "PartNumber")?,
                size: number(entry, "Size")?,
                has_bare_etag: !etag.trim().starts_with('"'),
                etag: unquoted(&etag),
                checksum_sha256: child(entry, "ChecksumSHA256").map(str::to_owned).filter(|text| !text.is_empty()),
            })
        };
        let parts = all(root, "Part").map(entry).collect::<Result<Vec<_>, _>>()?;
        let next = if is_truncated(root) { Some(number(root, "NextPartNumberMarker")?) } else { None };
        Ok(PartsPage { parts, next })
    })
}

/// Parses `DeleteResult`: the keys that were not deleted, with the reasons.
///
/// # Errors
/// [`XmlError`] if `bytes` are not well-formed XML within the limits, or not the result of a deletion.
pub fn not_deleted(bytes: &[u8]) -> Result<Vec<(String, ServiceError)>, XmlError> {
    read(bytes, |root| {
        if root.tag_name().name() != "DeleteResult" {
            return Err(XmlError::Missing("DeleteResult"));
        }
        let failed = all(root, "Error").map(|entry| {
            let text = |name| child(entry, name).unwrap_or_default().to_owned();
            (text("Key"), ServiceError { code: text("Code"), message: text("Message"), region: None })
        });
        Ok(failed.collect())
    })
}

/// Parses `AssumeRole…Response` of the token service.
///
/// # Errors
/// [`XmlError`] if `bytes` are not well-formed XML within the limits, or have no temporary credentials.
pub fn temporary(bytes: &[u8]) -> Result<Temporary, XmlError> {
    read(bytes, |root| {
        let credentials = root
            .descendants()
            .find(|node| node.tag_name().name() == "Credentials")
            .ok_or(XmlError::Missing("Credentials"))?;
        Ok(Temporary {
            access_key_id: needed(credentials, "AccessKeyId")?,
            secret_access_key: needed(credentials, "SecretAccessKey")?,
            session_token: needed(credentials, "SessionToken")?,
            expiration: needed(credentials, "Expiration")?,
        })
    })
}

/// Escapes text for the content of an element. `None` if XML 1.0 cannot express it (section 2.2).
pub fn escape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // As references; otherwise parsers would convert them to spaces.
            '\t' | '\n' | '\r' => {
                out.push_str("&#");
                out.push_str(&(character as u32).to_string());
                out.push(';');
            }
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => return None,
            _ => out.push(character),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_of_services_are_read() {
        let slow = br#"<?xml version="1.0" encoding="UTF-8"?>
            <Error><Code>SlowDown</Code><Message>Please &amp; thanks</Message><RequestId>x</RequestId></Error>"#;
        let error = service_error(slow).unwrap();
        assert_eq!((error.code.as_str(), error.message.as_str()), ("SlowDown", "Please & thanks"));
        let token = br#"<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
            <Code>ExpiredTokenException</Code><Message>m</Message></Error></ErrorResponse>"#;
        assert_eq!(service_error(token).unwrap().code, "ExpiredTokenException");
        let elsewhere = b"<Error><Code>PermanentRedirect</Code><Message/><Region>eu-west-1</Region></Error>";
        assert_eq!(service_error(elsewhere).unwrap().region.as_deref(), Some("eu-west-1"));
        for none in [&b"<html><body>502</body></html>"[..], b"", b"<Error/>", b"\xff"] {
            assert_eq!(service_error(none), None);
        }
    }

    #[test]
    fn listings_are_read_and_bounded() {
        let text = br#"<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>
            <EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
            <Contents><Key>a%2Fg%2B%2B+x</Key><Size>5</Size><ETag>"900150983cd24fb0d6963f7d28e17f72"</ETag>
            <Owner><ID>1</ID></Owner></Contents><NextContinuationToken>t=</NextContinuationToken></ListBucketResult>"#;
        let page = page(text).unwrap();
        assert_eq!(page.next, Some(Next::Token("t=".into())));
        let object = &page.objects[0];
        assert_eq!((object.key.as_str(), object.size), ("a/g++ x", 5));
        assert_eq!(object.etag, "900150983cd24fb0d6963f7d28e17f72");
        assert!(super::page(b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>").is_err());
        assert!(super::page(b"<Error><Code>x</Code></Error>").is_err());
        let etag = "e".repeat(ETAG_BYTES_MAX + 1);
        let text = format!(
            "<ListBucketResult><Contents><Key>a</Key><Size>1</Size><ETag>{etag}</ETag></Contents></ListBucketResult>"
        );
        assert!(super::page(text.as_bytes()).is_ok_and(|page| page.objects[0].etag.is_empty()));
        let many = "<Contents><Key>a</Key><Size>1</Size></Contents>".repeat(ENTRIES_MAX + 1);
        let many = super::page(format!("<ListBucketResult>{many}</ListBucketResult>").as_bytes());
        assert!(matches!(many, Err(XmlError::Form(_))), "what is left out would count as not there");
    }

    #[test]
    fn listings_without_a_token_go_on_by_a_key() {
        let next = |inside: &str| {
            let text = format!("<ListBucketResult><IsTruncated>true</IsTruncated>{inside}</ListBucketResult>");
            page(text.as_bytes()).map(|page| page.next)
        };
        let keys = "<Contents><Key>a%20b</Key><Size>1</Size></Contents><Contents><Key>a</Key><Size>1</Size></Contents>";
        let marker = |key: &str| Ok(Some(Next::Marker(key.into())));
        assert_eq!(next(&format!("<NextMarker>m%20n</NextMarker>{keys}")), marker("m%20n"));
        let encoded = "<EncodingType>url</EncodingType>";
        assert_eq!(next(&format!("{encoded}<NextMarker>m%20n</NextMarker>{keys}")), marker("m n"));
        assert_eq!(next(&format!("{encoded}<NextContinuationToken/>{keys}")), marker("a b"), "the last key in order");
        assert!(next("").is_err(), "a page without a key that would have another one");
    }

    #[test]
    fn answers_about_uploads_are_read() {
        assert_eq!(upload_id(b"<I><UploadId>u</UploadId></I>"), Ok("u".into()));
        assert_eq!(upload_id(b"<I><UploadId/></I>"), Err(XmlError::Missing("UploadId")));
        let done = completed(b"<C><ETag>&quot;e-2&quot;</ETag><ChecksumSHA256>s-2</ChecksumSHA256></C>").unwrap();
        assert_eq!(done, Completed { etag: "e-2".into(), checksum_sha256: Some("s-2".into()) });
        let page = |inside: &str| {
            uploads(format!("<ListMultipartUploadsResult>{inside}</ListMultipartUploadsResult>").as_bytes())
        };
        let entry = "<EncodingType>url</EncodingType><Upload><Key>a%20k</Key><UploadId>1</UploadId>";
        for (time, initiated_s) in [
            ("<Initiated>1970-01-01T00:01:01.500Z</Initiated>", Some(61)),
            ("<Initiated>1970-01-01T00:01:01Z</Initiated>", Some(61)),
            ("<Initiated>yesterday</Initiated>", None),
            ("", None),
        ] {
            let begun = Begun { key: "a k".into(), upload_id: "1".into(), initiated_s };
            let expected = UploadsPage { uploads: vec![begun], next: None };
            assert_eq!(page(&format!("{entry}{time}</Upload>")), Ok(expected), "{time}");
        }
        let markers = "<IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>";
        let next = |text: &str| page(text).unwrap().next;
        assert_eq!(next(markers), Some(("k".into(), String::new())));
        let both = format!("{markers}<NextUploadIdMarker>u</NextUploadIdMarker>");
        assert_eq!(next(&both), Some(("k".into(), "u".into())));
        assert!(page("<IsTruncated>true</IsTruncated>").is_err());
        assert!(page("<Upload><Key>k</Key></Upload>").is_err());
        assert!(uploads(b"<ListBucketResult/>").is_err(), "a store that does not know the question");
        let left =
            not_deleted(b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b</Key><Code>AccessDenied</Code></Error></DeleteResult>");
        assert_eq!(left.unwrap()[0].0, "b");
        let none = not_deleted(b"<Error><Code>InternalError</Code></Error>");
        assert_eq!(none, Err(XmlError::Missing("DeleteResult")), "not that all are deleted");
        let waited = b"  \n <?xml version=\"1.0\"?><Error><Code>InternalError</Code></Error>";
        assert_eq!(service_error(waited).unwrap().code, "InternalError");
    }

    #[test]
    fn parts_of_an_upload_are_read() {
        let page = |inside: &str| parts(format!("<ListPartsResult>{inside}</ListPartsResult>").as_bytes());
        let first = "<Part><PartNumber>1</PartNumber><ETag>&quot;e&quot;</ETag><Size>5</Size>\
                     <ChecksumSHA256>s=</ChecksumSHA256></Part>";
        let second = "<Part><PartNumber>2</PartNumber><ETag>f</ETag><Size>6</Size><ChecksumSHA256/></Part>";
        let both = page(&format!("{first}{second}<IsTruncated>false</IsTruncated>")).unwrap();
        let (etag, checksum_sha256) = ("e".to_owned(), Some("s=".to_owned()));
        let one = ListedPart { number: 1, size: 5, etag, has_bare_etag: false, checksum_sha256 };
        let other = ListedPart { number: 2, size: 6, etag: "f".into(), has_bare_etag: true, checksum_sha256: None };
        assert_eq!(both, PartsPage { parts: vec![one, other], next: None });
        let more = "<IsTruncated>true</IsTruncated><NextPartNumberMarker>2</NextPartNumberMarker>";
        assert_eq!(page(more).unwrap().next, Some(2));
        for wrong in ["<IsTruncated>true</IsTruncated>", "<Part><PartNumber>1</PartNumber><Size>5</Size></Part>"] {
            assert!(page(wrong).is_err(), "{wrong}");
        }
        assert!(page("<Part><PartNumber>-1</PartNumber><ETag>e</ETag><Size>5</Size></Part>").is_err());
        assert!(parts(b"<ListBucketResult/>").is_err(), "a store that does not know the question");
    }

    #[test]
    fn a_list_goes_on_however_its_store_writes_true() {
        let pages = |text: &str| {
            let inside = format!(
                "<IsTruncated>{text}</IsTruncated><NextContinuationToken>t</NextContinuationToken>\
                 <NextKeyMarker>k</NextKeyMarker><NextPartNumberMarker>2</NextPartNumberMarker>"
            );
            let list = |name: &str| format!("<{name}>{inside}</{name}>").into_bytes();
            [
                page(&list("ListBucketResult")).unwrap().next.is_some(),
                uploads(&list("ListMultipartUploadsResult")).unwrap().next.is_some(),
                parts(&list("ListPartsResult")).unwrap().next.is_some(),
            ]
        };
        for text in ["true", "True", "TRUE", " true\n", "1"] {
            assert_eq!(pages(text), [true; 3], "{text:?}");
        }
        for text in ["false", "False", "0", ""] {
            assert_eq!(pages(text), [false; 3], "{text:?}");
        }
    }

    #[test]
    fn what_could_grow_is_refused() {
        let bomb = br#"<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><x>&b;</x>"#;
        assert!(matches!(upload_id(bomb), Err(XmlError::Syntax(_))));
        let many = format!("<x>{}</x>", "<y/>".repeat(NODES_MAX as usize + 1));
        assert!(matches!(upload_id(many.as_bytes()), Err(XmlError::Syntax(_))));
        let deep = "<y>".repeat(90_000);
        assert!(upload_id(deep.as_bytes()).is_err());
        assert_eq!(upload_id(&vec![b' '; ANSWER_BYTES_MAX + 1]), Err(XmlError::Form("too long")));
    }

    proptest! {
        #[test]
        fn what_is_escaped_is_read_as_it_was(text in "\\PC{0,40}", white in "[\\t\\n\\r ]{0,3}") {
            let text = format!("x{text}{white}");
            let document = format!("<I><UploadId>{}</UploadId></I>", escape(&text).unwrap());
            prop_assert_eq!(upload_id(document.as_bytes()), Ok(text));
        }

        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (service_error(&bytes), page(&bytes), uploads(&bytes), not_deleted(&bytes));
            let _ = (completed(&bytes), upload_id(&bytes), parts(&bytes));
        }
    }
}
