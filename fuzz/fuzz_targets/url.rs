//! URLs, Locations, proxy settings and archive paths: no panic; what is accepted is one
//! visible ASCII word that parses to itself; no redirect leaves https.

#![no_main]

use fullbore_wire::proxy::ProxySettings;
use fullbore_wire::redirect::resolve;
use fullbore_wire::url::{Plus, Scheme, Url};
use libfuzzer_sys::fuzz_target;

fn check(url: &Url) {
    let text = url.to_string();
    assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
    assert_eq!(Url::parse(&text).as_ref(), Ok(url));
}

fuzz_target!(|text: &str| {
    if let Ok((url, _)) = Url::parse_with_userinfo(text) {
        check(&url);
    }
    let base = Url::parse("https://mirror.example/debian/pool/x").expect("a valid URL");
    if let Ok(next) = resolve(&base, text) {
        check(&next);
        assert_eq!(next.scheme(), Scheme::Https);
    }
    for plus in [Plus::Raw, Plus::Encoded] {
        if let Ok(file) = base.join(text, plus) {
            check(&file);
            assert!(file.same_origin(&base));
            assert!(file.target().starts_with("/debian/pool/x/"));
        }
    }
    let mut settings = ProxySettings::new();
    let _ = settings.set_all(text);
    let _ = settings.set_no_proxy(text);
    let _ = settings.route(&base);
});
