//! Whether local content and an object are the same, by checksums.
//!
//! The strongest checksum of the store counts ([`super::checksum`]): of the whole object, or of its parts. Without one,
//! an ETag counts if it is an MD5 sum. That is the case for objects put in one piece, unless they are encrypted with a
//! customer's key. Time and size alone are never enough.
//!
//! Content that fails a checksum counts as wrong only if it is certain what the checksum covers. If part sizes were
//! guessed, or only an ETag is available, it counts as unverified.

use std::fs::File;
use std::io::{self, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fullbore_engine::digest::READ_BYTES;
use fullbore_engine::files::tree::Mtime;
use fullbore_wire::http1::Method;
use md5::{Digest, Md5};

use super::checksum::{Algorithm, Checksum, Form, Hasher};
use super::client::{Answer, Call, CallError, Client, etag};
use super::dialect::Feature;
use super::layout::{self, Layout};
use super::mtime;
use super::parts::{Composite, Cut};
use super::sign::hex;

/// An existing object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Present {
    /// Size of the object, in bytes.
    pub size: u64,
    /// ETag without quotes.
    pub etag: Option<String>,
    /// Checksums, the strongest first.
    pub checksums: Vec<Checksum>,
    /// Whether it is encrypted so that its ETag does not depend on its content alone.
    pub opaque_etag: bool,
    /// Modification time of its source file, otherwise the time of its upload.
    pub modified: Option<Mtime>,
}

/// One way to verify the content of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Test {
    /// A checksum of the full object.
    Whole(Algorithm, Vec<u8>),
    /// A checksum of the checksums of parts, with these part sizes.
    Parts(Algorithm, Vec<u8>, Cut),
    /// MD5 in hex.
    Md5(String),
}

/// Why content that fails all tests may still be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The store has no checksum.
    NoChecksum,
    /// The store has a checksum of parts whose sizes it does not give.
    UnknownParts,
    /// The store has only an ETag, which need not depend on the content.
    EtagOnly,
}

/// Tests of an object's content; one passed test is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    /// The tests, if there are any.
    pub tests: Vec<Test>,
    /// Reason why content that fails is only unverified; `None` if it is wrong.
    pub doubt: Option<Doubt>,
}

/// Result of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The content equals the object's.
    Right,
    /// The content differs from the object's.
    Wrong,
    /// The content could not be verified.
    Unverified(Doubt),
}

impl Present {
    /// Parses the answer to HEAD.
    pub(crate) fn of(answer: &Answer) -> Present {
        let head = &answer.head;
        let encryption = head.store_field("x-amz-server-side-encryption").unwrap_or_default();
        let etag = etag(&answer.head);
        Present {
            size: head.content_length.unwrap_or(0),
            checksums: Checksum::all(head, etag.as_deref()),
            etag,
            opaque_etag: encryption.starts_with("aws:kms")
                || head.store_field("x-amz-server-side-encryption-customer-algorithm").is_some(),
            modified: mtime::of_object(head),
        }
    }

    /// SHA-256 in base64, without a number of parts.
    pub(crate) fn sha256(&self) -> Option<String> {
        let found = self.checksums.iter().find(|checksum| checksum.algorithm == Algorithm::Sha256);
        found.map(|checksum| STANDARD.encode(&checksum.sum))
    }

    /// Number of parts whose sizes are needed for the strongest checksum.
    fn parts(&self) -> Option<u64> {
        match self.checksums.first()?.form {
            Form::Parts(parts) => parts,
            Form::Either(parts) => Some(parts),
            Form::Whole | Form::Untold => None,
        }
    }

    /// The test by an ETag that may be an MD5 sum.
    fn md5(&self) -> Option<Test> {
        let etag = self.etag.as_ref().filter(|etag| !self.opaque_etag && is_md5(etag));
        etag.map(|etag| Test::Md5(etag.to_ascii_lowercase()))
    }

    /// The tests of the content, given what is known of its parts.
    pub(crate) fn proof(&self, layout: &Layout) -> Proof {
        let tests = self.checksums.iter().map(|checksum| self.tests(checksum, layout));
        let (certain, guessed): (Vec<_>, Vec<_>) = tests.partition(|(_, is_certain)| *is_certain);
        if let Some((tests, _)) = certain.into_iter().next() {
            return Proof { tests, doubt: None };
        }
        if !guessed.is_empty() {
            let tests = guessed.into_iter().flat_map(|(tests, _)| tests).collect();
            return Proof { tests, doubt: Some(Doubt::UnknownParts) };
        }
        match self.md5() {
            Some(md5) => Proof { tests: vec![md5], doubt: Some(Doubt::EtagOnly) },
            None => Proof { tests: Vec::new(), doubt: Some(Doubt::NoChecksum) },
        }
    }

    /// The tests by one checksum, and whether content that fails all of them is certainly wrong.
    fn tests(&self, checksum: &Checksum, layout: &Layout) -> (Vec<Test>, bool) {
        let Checksum { algorithm, sum, form } = checksum;
        let whole = || Test::Whole(*algorithm, sum.clone());
        let of_parts = |cut| Test::Parts(*algorithm, sum.clone(), cut);
        let (parts, mut tests) = match form {
            Form::Whole => return (vec![whole()], true),
            Form::Untold => return (std::iter::once(whole()).chain(self.md5()).collect(), true),
            Form::Parts(parts) => (*parts, Vec::new()),
            Form::Either(parts) => (Some(*parts), vec![whole()]),
        };
        match (layout, parts) {
            (Layout::Known(cut), Some(parts)) if cut.count(self.size) == parts => {
                tests.push(of_parts(cut.clone()));
                (tests, true)
            }
            (Layout::Unknown(first), Some(parts)) => {
                tests.extend(Cut::guess(self.size, parts, *first).map(of_parts));
                (tests, false)
            }
            _ => (tests, false),
        }
    }
}

/// Removes the number of parts from a checksum.
pub(crate) fn sum_of(checksum: &str) -> &str {
    checksum.split_once('-').map_or(checksum, |(sum, _)| sum)
}

/// Whether an ETag may be an MD5 sum.
pub(crate) fn is_md5(etag: &str) -> bool {
    etag.len() == 32 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// MD5 of content in hex, as in ETags.
pub fn md5_hex(content: &[u8]) -> String {
    hex(Md5::digest(content).as_slice())
}

/// The usual ETag of an object in parts: the MD5 of its parts' ETags, and their number. `None` if the parts' ETags are
/// not MD5 sums.
pub(crate) fn composite_etag<'a>(parts: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    let count = parts.len();
    let mut md5 = Md5::new();
    for etag in parts.map(str::as_bytes) {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        if etag.len() != 32 {
            return None;
        }
        for pair in etag.chunks(2) {
            md5.update([u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?]);
        }
    }
    Some(format!("{}-{count}", hex(md5.finalize().as_slice())))
}

/// MD5 of content in base64, as in `Content-MD5`.
pub(crate) fn md5_base64(content: &[u8]) -> String {
    md5_of(&[content])
}

/// MD5 in base64 of content in pieces.
pub(crate) fn md5_of<D: AsRef<[u8]>>(pieces: &[D]) -> String {
    let mut md5 = Md5::new();
    pieces.iter().for_each(|piece| md5.update(piece.as_ref()));
    STANDARD.encode(md5.finalize())
}

/// A test in progress, with its expected result.
enum Running {
    Whole(Hasher, Vec<u8>),
    Parts(Box<Composite>, Vec<u8>),
    Md5(Box<Md5>, String),
}

/// Computes all hashes that a proof needs.
pub(crate) struct Checker {
    running: Vec<Running>,
    doubt: Option<Doubt>,
}

impl Checker {
    /// Creates a checker for this proof.
    pub(crate) fn new(proof: Proof) -> Checker {
        let running = proof.tests.into_iter().map(|test| match test {
            Test::Whole(algorithm, sum) => Running::Whole(Hasher::new(algorithm), sum),
            Test::Parts(algorithm, sum, cut) => Running::Parts(Box::new(Composite::new(algorithm, cut)), sum),
            Test::Md5(sum) => Running::Md5(Box::default(), sum),
        });
        Checker { running: running.collect(), doubt: proof.doubt }
    }

    /// Whether there are any tests.
    pub(crate) fn has_tests(&self) -> bool {
        !self.running.is_empty()
    }

    /// Adds the next bytes, in pieces.
    pub(crate) fn update<D: AsRef<[u8]>>(&mut self, pieces: &[D]) {
        let bytes = || pieces.iter().map(AsRef::as_ref);
        for running in &mut self.running {
            match running {
                Running::Whole(hasher, _) => bytes().for_each(|piece| hasher.update(piece)),
                Running::Parts(composite, _) => composite.update(pieces),
                Running::Md5(md5, _) => bytes().for_each(|piece| md5.update(piece)),
            }
        }
    }

    /// Returns the result of the tests.
    pub(crate) fn finish(self) -> Finding {
        let mut passed = self.running.into_iter().map(|running| match running {
            Running::Whole(hasher, sum) => hasher.finish() == sum,
            Running::Parts(composite, sum) => composite.finish() == sum,
            Running::Md5(md5, sum) => hex(md5.finalize().as_slice()) == sum,
        });
        match self.doubt {
            _ if passed.any(|passed| passed) => Finding::Right,
            Some(doubt) => Finding::Unverified(doubt),
            None => Finding::Wrong,
        }
    }
}

/// Whether a file, from its current position on, has the content of this proof.
///
/// # Errors
/// The error of read(2) or lseek(2), unchanged.
pub(crate) fn file_matches(mut file: &File, proof: Proof) -> io::Result<bool> {
    let mut checker = Checker::new(proof);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(checker.finish() == Finding::Right),
            Ok(count) => checker.update(&[&buffer[..count]]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Requests the head of an object; `None` if it does not exist.
///
/// # Errors
/// A [`CallError`] if the request fails after all retries, or the store refuses it. A missing object is not an error.
pub(crate) async fn head(client: &Client, key: &str) -> Result<Option<Present>, CallError> {
    let call = Call::new(Method::Head, Some(key));
    let call = call.optional_field(Feature::ToldChecksums, "x-amz-checksum-mode", "ENABLED");
    let answer = client.call(call).await?;
    Ok((answer.head.status != 404).then(|| Present::of(&answer)))
}

/// The tests of an object's content. If they need the sizes of its parts, the store is asked for them.
///
/// # Errors
/// A [`CallError`] if the request fails after all retries, or the store refuses it.
pub(crate) async fn proof(client: &Client, key: &str, present: &Present) -> Result<Proof, CallError> {
    let layout = match present.parts() {
        Some(count) => {
            let whole = layout::Object { size: present.size, etag: present.etag.as_deref(), count };
            layout::learn(client, key, whole).await?
        }
        None => Layout::Unknown(None),
    };
    let mut proof = present.proof(&layout);
    if client.dialect().lacks(Feature::Md5Etags) {
        // The content would be read and hashed in vain.
        proof.tests.retain(|test| !matches!(test, Test::Md5(_)));
    }
    Ok(proof)
}

#[cfg(test)]
mod tests {
    use super::super::checksum::tests::hash;
    use super::*;
    use std::io::Write;

    const MD5: &str = "900150983cd24fb0d6963f7d28e17f72";

    fn present(size: u64, etag: &str, checksums: &[(Algorithm, Form)]) -> Present {
        let checksum = |&(algorithm, form)| Checksum { algorithm, sum: vec![7; 4], form };
        let checksums = checksums.iter().map(checksum).collect();
        Present { size, etag: Some(etag.into()), checksums, opaque_etag: false, modified: None }
    }

    #[test]
    fn what_is_believed_and_in_which_order() {
        let unknown = Layout::Unknown(None);
        let sha = Algorithm::Sha256;
        let whole = |algorithm| Test::Whole(algorithm, vec![7; 4]);
        let of_parts = |cut| Test::Parts(sha, vec![7; 4], cut);
        let proof = |present: &Present, layout: &Layout| {
            let Proof { tests, doubt } = present.proof(layout);
            (tests, doubt)
        };
        let two = present(3, MD5, &[(sha, Form::Whole), (Algorithm::Crc32, Form::Whole)]);
        assert_eq!(proof(&two, &unknown), (vec![whole(sha)], None), "the strongest one");
        assert_eq!(proof(&present(3, MD5, &[]), &unknown), (vec![Test::Md5(MD5.into())], Some(Doubt::EtagOnly)));
        let nothing = (vec![], Some(Doubt::NoChecksum));
        assert_eq!(proof(&present(3, &format!("{MD5}-1"), &[]), &unknown), nothing);
        assert_eq!(proof(&Present { opaque_etag: true, ..present(3, MD5, &[]) }, &unknown), nothing);
        let size = 20 << 20;
        let three = present(size, "e-3", &[(sha, Form::Parts(Some(3)))]);
        let guess = of_parts(Cut::Even(8 << 20));
        assert_eq!(proof(&three, &unknown), (vec![guess.clone()], Some(Doubt::UnknownParts)));
        let listed = Cut::Sizes([10 << 20, 5 << 20, 5 << 20].into());
        assert_eq!(proof(&three, &Layout::Known(listed.clone())), (vec![of_parts(listed)], None));
        let other = Layout::Known(Cut::Sizes([10 << 20, 10 << 20].into()));
        assert_eq!(proof(&three, &other), (vec![], Some(Doubt::UnknownParts)), "of another number of parts");
        let two = present(size, "e-2", &[(sha, Form::Parts(Some(2)))]);
        assert_eq!(proof(&two, &unknown), (vec![], Some(Doubt::UnknownParts)));
        let first = Layout::Unknown(Some(10 << 20));
        assert_eq!(proof(&two, &first), (vec![of_parts(Cut::Even(10 << 20))], Some(Doubt::UnknownParts)));
        let no_number = present(size, "e", &[(sha, Form::Parts(None))]);
        assert_eq!(proof(&no_number, &unknown), (vec![], Some(Doubt::UnknownParts)));
        let either = present(size, "e-3", &[(sha, Form::Either(3))]);
        assert_eq!(proof(&either, &unknown), (vec![whole(sha), guess], Some(Doubt::UnknownParts)));
        // A copy of an object in parts may have kept their checksum, and then its ETag shows the content.
        let untold = present(3, MD5, &[(sha, Form::Untold)]);
        assert_eq!(proof(&untold, &unknown), (vec![whole(sha), Test::Md5(MD5.into())], None));
        let opaque = Present { opaque_etag: true, ..untold };
        assert_eq!(proof(&opaque, &unknown), (vec![whole(sha)], None));
        // A weaker one that is certain is better than a guess.
        let mixed = present(size, "e-3", &[(sha, Form::Parts(Some(3))), (Algorithm::Crc64Nvme, Form::Whole)]);
        assert_eq!(proof(&mixed, &unknown), (vec![whole(Algorithm::Crc64Nvme)], None));
    }

    #[test]
    fn content_that_fails_is_wrong_only_where_that_is_certain() {
        let finding = |tests: &[Test], doubt, content: &[u8]| {
            let mut checker = Checker::new(Proof { tests: tests.to_vec(), doubt });
            checker.update(&[content]);
            checker.finish()
        };
        for algorithm in Algorithm::ALL {
            let test = [Test::Whole(algorithm, hash(algorithm, b"abc"))];
            assert_eq!(finding(&test, None, b"abc"), Finding::Right);
            assert_eq!(finding(&test, None, b"abd"), Finding::Wrong);
            assert_eq!(finding(&test, Some(Doubt::UnknownParts), b"abc"), Finding::Right);
            let unverified = Finding::Unverified(Doubt::UnknownParts);
            assert_eq!(finding(&test, Some(Doubt::UnknownParts), b"abd"), unverified);
            let other = Test::Whole(algorithm, hash(algorithm, b"x"));
            assert_eq!(finding(&[other, test[0].clone()], None, b"abc"), Finding::Right, "one is enough");
        }
        let md5 = [Test::Md5(md5_hex(b"abc"))];
        assert_eq!(finding(&md5, Some(Doubt::EtagOnly), b"abc"), Finding::Right);
        assert_eq!(finding(&md5, Some(Doubt::EtagOnly), b"abd"), Finding::Unverified(Doubt::EtagOnly));
        assert_eq!(finding(&[], Some(Doubt::NoChecksum), b""), Finding::Unverified(Doubt::NoChecksum));
    }

    #[test]
    fn the_etag_of_parts_is_made_from_theirs() {
        let part = md5_hex(b"abc");
        // `(printf abc | openssl md5 -binary; printf abc | openssl md5 -binary) | openssl md5`
        let whole = composite_etag([part.as_str(), &part.to_uppercase()].into_iter());
        assert_eq!(whole.as_deref(), Some("043a916d6cfeecedf5e04f0312ba762d-2"));
        assert_eq!(composite_etag(["part1"].into_iter()), None);
        assert_eq!(composite_etag(["x".repeat(32).as_str()].into_iter()), None);
    }

    #[test]
    fn files_are_compared_by_each_proof() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let content = b"abc".repeat(1000);
        File::create(&path).unwrap().write_all(&content).unwrap();
        let matches = |test| {
            let proof = Proof { tests: Vec::from_iter(test), doubt: None };
            file_matches(&File::open(&path).unwrap(), proof).unwrap()
        };
        for algorithm in Algorithm::ALL {
            assert!(matches(Some(Test::Whole(algorithm, hash(algorithm, &content)))));
            let cut = Cut::Sizes([1000, 500, 1500].into());
            let mut composite = Composite::new(algorithm, cut.clone());
            composite.update(&[&content]);
            assert!(matches(Some(Test::Parts(algorithm, composite.finish(), cut))));
            assert!(!matches(Some(Test::Whole(algorithm, hash(algorithm, b"x")))));
        }
        assert!(matches(Some(Test::Md5(md5_hex(&content)))));
        assert_eq!(md5_hex(b"abc"), MD5);
        assert_eq!(md5_base64(b""), "1B2M2Y8AsgTpgAmY7PhCfg==");
        for wrong in [None, Some(Test::Md5(md5_hex(b"x")))] {
            assert!(!matches(wrong));
        }
    }
}
