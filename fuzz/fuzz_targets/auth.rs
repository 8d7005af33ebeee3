//! auth.conf files and small header fields: no panic, no entry for a host that the file
//! does not name, no password in `Debug`.

#![no_main]

use fullbore_wire::auth::AuthConf;
use fullbore_wire::conditional::{EntityTag, parse_http_date};
use fullbore_wire::range::ContentRange;
use fullbore_wire::retry_after::RetryAfter;
use fullbore_wire::url::Url;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut conf = AuthConf::new();
    if conf.add_file(text).is_ok() {
        let url = Url::parse("https://unnamed.example/debian/x").expect("a valid URL");
        let named = text.to_ascii_lowercase().contains("unnamed.example");
        assert!(named || conf.lookup(&url).is_none());
        if let Some(found) = conf.lookup(&url) {
            assert!(format!("{found:?}").ends_with("password hidden)"));
        }
    }
    if let Some(tag) = EntityTag::parse(text) {
        assert_eq!(EntityTag::parse(&tag.to_string()), Some(tag));
    }
    let _ = parse_http_date(text);
    let _ = ContentRange::parse(text);
    if let Some(delay) = RetryAfter::parse(text) {
        let _ = delay.delay_s(None, 0);
    }
});
