//! Extracts the public key and the dates from a certificate of any version (X.509, RFC 5280, section 4.1; DER, X.690,
//! section 8.1).
//!
//! With pinned keys only the key counts, and the usual parser refuses certificates of version 1, which Tahoe-LAFS nodes
//! have. The dates are for certificates that are trusted themselves, which the usual verifier refuses before it checks
//! them. The common name is for error messages only: it identifies no server.

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
/// Tag of the explicit version, which version 1 omits.
const VERSION: u8 = 0xa0;

const SET: u8 = 0x31;
/// The attribute type commonName (2.5.4.3) with its header.
const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
/// Maximum number of bytes of a common name in messages: its bound in RFC 5280, appendix A.
const COMMON_NAME_BYTES_MAX: usize = 64;

/// Tags of times with a two-digit year, and with a four-digit year.
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The SubjectPublicKeyInfo of a certificate in DER, with its own header. `None` if the input is not a certificate.
pub(super) fn subject_public_key_info(certificate: &[u8]) -> Option<&[u8]> {
    // After validity: subject.
    let rest = element(validity_and_rest(certificate)?.1, SEQUENCE)?.1;
    Some(element(rest, SEQUENCE)?.0.whole)
}

/// The last common name of a certificate's subject, as text; `None` if it has none.
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    let (subject, _) = element(validity_and_rest(certificate)?.1, SEQUENCE)?;
    let mut rest = subject.content;
    let mut found = None;
    while let Some((set, behind)) = element(rest, SET) {
        let (attribute, _) = element(set.content, SEQUENCE)?;
        if let Some(value) = attribute.content.strip_prefix(&COMMON_NAME) {
            // Whatever its string type: those in use are ASCII or UTF-8.
            let (value, _) = element(value, *value.first()?)?;
            let shown = &value.content[..value.content.len().min(COMMON_NAME_BYTES_MAX)];
            found = Some(String::from_utf8_lossy(shown).into_owned());
        }
        rest = behind;
    }
    found
}

/// First and last second of a certificate's validity, counted from 1970. `None` if the input is not a certificate.
pub(super) fn validity(certificate: &[u8]) -> Option<(i64, i64)> {
    let (not_before, rest) = time(validity_and_rest(certificate)?.0)?;
    Some((not_before, time(rest)?.0))
}

/// The content of a certificate's validity, and the bytes behind it.
fn validity_and_rest(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (to_be_signed, _) = element(certificate.content, SEQUENCE)?;
    let mut rest = to_be_signed.content;
    if rest.first() == Some(&VERSION) {
        rest = element(rest, VERSION)?.1;
    }
    rest = element(rest, INTEGER)?.1;
    // Signature algorithm, issuer.
    for _ in 0..2 {
        rest = element(rest, SEQUENCE)?.1;
    }
    let (validity, rest) = element(rest, SEQUENCE)?;
    Some((validity.content, rest))
}

/// Parses a time in the two forms of certificates (RFC 5280, section 4.1.2.5): YYMMDDhhmmssZ until 2049, and
/// YYYYMMDDhhmmssZ from then on. Returns the rest as well.
fn time(der: &[u8]) -> Option<(i64, &[u8])> {
    let (mut digits, century, rest) = match element(der, UTC_TIME) {
        Some((short, rest)) => (short.content, None, rest),
        None => {
            let (long, rest) = element(der, GENERALIZED_TIME)?;
            let (century, digits) = long.content.split_first_chunk::<2>()?;
            (digits, Some(*century), rest)
        }
    };
    let number = |digits: [u8; 2]| {
        let value = |digit: u8| digit.is_ascii_digit().then(|| i64::from(digit - b'0'));
        Some(value(digits[0])? * 10 + value(digits[1])?)
    };
    let mut next = || {
        let (pair, rest) = digits.split_first_chunk::<2>()?;
        digits = rest;
        number(*pair)
    };
    let [year, month, day, hour, minute, second] = [next()?, next()?, next()?, next()?, next()?, next()?];
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 60;
    if !in_range || digits != b"Z" {
        return None;
    }
    let year = match century {
        Some(century) => number(century)? * 100 + year,
        None if year >= 50 => 1900 + year,
        None => 2000 + year,
    };
    Some((((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second, rest))
}

/// Days from the start of 1970 to a day of the Gregorian calendar. Years start in March here, so that the leap day is
/// the last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - DAYS_TO_1970
}

/// Days from March of the year 0 to 1970.
const DAYS_TO_1970: i64 = 719_468;

struct Element<'a> {
    whole: &'a [u8],
    content: &'a [u8],
}

/// Parses one element with this tag. Returns it, and the bytes behind it.
fn element(der: &[u8], tag: u8) -> Option<(Element<'_>, &[u8])> {
    let (&[found, first], behind) = der.split_first_chunk::<2>()?;
    if found != tag {
        return None;
    }
    let (length, header) = match first {
        0..=0x7f => (usize::from(first), 2),
        // Length of the length field; four bytes exceed any certificate.
        0x81..=0x84 => {
            let count = usize::from(first & 0x7f);
            let length = behind.get(..count)?.iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
            (usize::try_from(length).ok()?, 2 + count)
        }
        _ => return None,
    };
    let end = header.checked_add(length)?;
    let whole = der.get(..end)?;
    Some((Element { whole, content: &whole[header..] }, &der[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::pki_types::CertificateDer;
    use rustls::server::ParsedCertificate;

    fn certificate() -> CertificateDer<'static> {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::new(vec!["h".to_owned()]).unwrap().self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn the_key_is_the_one_that_rustls_finds() {
        let certificate = certificate();
        let expected = ParsedCertificate::try_from(&certificate).unwrap().subject_public_key_info();
        assert_eq!(subject_public_key_info(&certificate).unwrap(), expected.as_ref());
    }

    #[test]
    fn the_common_name_is_found_among_others() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        assert_eq!(common_name(params.clone().self_signed(&key).unwrap().der()), None);
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "Testcases");
        params.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
        params.distinguished_name.push(rcgen::DnType::CountryName, "DE");
        assert_eq!(common_name(params.self_signed(&key).unwrap().der()).as_deref(), Some("localhost"));
    }

    #[test]
    fn dates_are_those_of_the_certificate() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["h".to_owned()]).unwrap();
        for (year, month, day, seconds) in [
            (1950, 1, 1, -631_152_000),
            (1970, 1, 1, 0),
            (2000, 2, 29, 951_782_400),
            (2049, 12, 31, 2_524_521_600),
            (2050, 1, 1, 2_524_608_000),
            (2100, 3, 1, 4_107_542_400),
            (9999, 12, 31, 253_402_214_400),
        ] {
            (params.not_before, params.not_after) =
                (rcgen::date_time_ymd(year, month, day), rcgen::date_time_ymd(9999, 1, 1));
            let certificate = params.clone().self_signed(&key).unwrap();
            assert_eq!(validity(certificate.der()), Some((seconds, 253_370_764_800)), "{year}");
        }
        for wrong in ["20000101000000", "20001301000000Z", "2000010100000aZ", "20000101000000Z0", "200001010000Z", ""] {
            let der = [&[GENERALIZED_TIME, wrong.len() as u8][..], wrong.as_bytes()].concat();
            assert_eq!(time(&der), None, "{wrong}");
        }
    }

    #[test]
    fn version_1_has_a_key_as_well() {
        // Version left out, short lengths: SEQ { SEQ { INT 1, SEQ{}, SEQ{}, SEQ{}, SEQ{}, SEQ { 0 } } }.
        let key = [0x30, 0x02, 0x03, 0x00];
        let mut body = vec![0x02, 0x01, 0x01, 0x30, 0, 0x30, 0, 0x30, 0, 0x30, 0];
        body.extend_from_slice(&key);
        let inner = [&[0x30, body.len() as u8][..], &body].concat();
        let outer = [&[0x30, inner.len() as u8][..], &inner].concat();
        assert_eq!(subject_public_key_info(&outer), Some(&key[..]));
        for length in 0..outer.len() {
            assert_eq!(subject_public_key_info(&outer[..length]), None);
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let mut certificate = certificate().to_vec();
            let at = at.index(certificate.len().min(200));
            certificate[at] = byte;
            let _ = (subject_public_key_info(&certificate), validity(&certificate), common_name(&certificate));
            certificate.truncate(cut.index(certificate.len()));
            let _ = (subject_public_key_info(&certificate), validity(&certificate), common_name(&certificate));
        }
    }
}
