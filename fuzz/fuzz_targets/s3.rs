//! What comes from a store, from the files of the AWS tools or from a person: XML answers, profiles, addresses, keys;
//! and the journals of runs that were killed.
#![no_main]

use fullbore_s3::parsers::{Kind, Leftovers, Sections, decode_listed, encode_path, xml};
use fullbore_s3::{Addressing, Bucket, Location};

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(data);
    match kind % 7 {
        0 => {
            let _ = xml::service_error(data);
            let _ = xml::completed(data);
            let _ = xml::upload_id(data);
        }
        1 => {
            let _ = xml::page(data);
            let _ = xml::uploads(data);
            let _ = xml::not_deleted(data);
        }
        2 => {
            let _ = xml::temporary(data);
            if let Some(escaped) = xml::escape(&text) {
                let document = format!("<I><UploadId>x{escaped}</UploadId></I>");
                assert_eq!(
                    xml::upload_id(document.as_bytes()),
                    Ok(format!("x{text}")),
                    "what is escaped is read again"
                );
            }
        }
        3 => {
            let _ = Sections::parse(&text, Kind::Config);
            let _ = Sections::parse(&text, Kind::Credentials);
        }
        4 => {
            let mut encoded = String::new();
            encode_path(&text, &mut encoded);
            assert_eq!(decode_listed(&encoded).as_deref(), Some(&*text), "one key for each name");
            let _ = decode_listed(&text);
        }
        5 => {
            let left = Leftovers::parse(data);
            let lines = data.split(|&byte| byte == b'\n').count();
            assert!(left.open.len() + left.intents.len() <= lines, "no more than lines");
        }
        _ => {
            if let Ok(location) = Location::parse(&text) {
                let _ = Bucket::new(&location.bucket, Some(&location.key), "us-east-1", Addressing::Auto);
            }
        }
    }
});
