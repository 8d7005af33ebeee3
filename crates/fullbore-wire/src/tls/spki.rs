//! The public key out of a certificate of any version.
//!
//! Where keys are pinned nothing else of a certificate counts. The usual parser refuses certificates of
//! version 1, which Tahoe-LAFS nodes have (X.509, RFC 5280, section 4.1; DER, X.690, section 8.1).

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
/// The explicit version, which version 1 leaves out.
const VERSION: u8 = 0xa0;

/// The SubjectPublicKeyInfo of a certificate in DER, its own header included. `None`: not a certificate.
pub(super) fn subject_public_key_info(certificate: &[u8]) -> Option<&[u8]> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (to_be_signed, _) = element(certificate.content, SEQUENCE)?;
    let mut rest = to_be_signed.content;
    if rest.first() == Some(&VERSION) {
        rest = element(rest, VERSION)?.1;
    }
    rest = element(rest, INTEGER)?.1;
    // Signature algorithm, issuer, validity, subject.
    for _ in 0..4 {
        rest = element(rest, SEQUENCE)?.1;
    }
    Some(element(rest, SEQUENCE)?.0.whole)
}

struct Element<'a> {
    whole: &'a [u8],
    content: &'a [u8],
}

/// Takes one element with this tag off the front: it, and what is behind it.
fn element(der: &[u8], tag: u8) -> Option<(Element<'_>, &[u8])> {
    let (&[found, first], behind) = der.split_first_chunk::<2>()?;
    if found != tag {
        return None;
    }
    let (length, header) = match first {
        0..=0x7f => (usize::from(first), 2),
        // The length's own length; four bytes say more than any certificate has.
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
        fn nothing_makes_it_panic(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let mut certificate = certificate().to_vec();
            let at = at.index(certificate.len().min(200));
            certificate[at] = byte;
            let _ = subject_public_key_info(&certificate);
            certificate.truncate(cut.index(certificate.len()));
            let _ = subject_public_key_info(&certificate);
        }
    }
}
