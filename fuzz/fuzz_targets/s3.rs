//! What comes from a store, from the files of the AWS tools or from a person: XML answers, profiles, addresses, keys;
//! the journals of runs that were killed, and what they noted of files.
#![no_main]

use fullbore_engine::digest::Sha256;
use fullbore_s3::parsers::{Kind, Leftovers, Sections, Table, decode_listed, encode_path, xml};
use fullbore_s3::{Addressing, Bucket, Location};

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(data);
    match kind % 8 {
        0 => {
            let _ = xml::service_error(data);
            let _ = xml::completed(data);
            let _ = xml::upload_id(data);
        }
        1 => {
            let _ = xml::page(data);
            let _ = xml::uploads(data);
            let _ = xml::parts(data);
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
        6 => {
            let destination = Sha256::of(b"destination");
            // The checksum at its end, and the head, would stop nearly all inputs.
            if let Ok(table) = Table::parse(&Table::sealed(data, &destination), &destination) {
                let mut written = Vec::new();
                table.write(&mut written, &destination).expect("memory takes all");
                assert_eq!(written, Table::sealed(data, &destination), "what is read is written again");
            }
            let _ = Table::parse(data, &destination);
        }
        _ => {
            if let Ok(location) = Location::parse(&text) {
                let _ = Bucket::new(&location.bucket, Some(&location.key), "us-east-1", Addressing::Auto);
            }
        }
    }
});
