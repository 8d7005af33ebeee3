//! Stores that honour less than Amazon's: each test is a kind that was reported in public, and says where.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::faults::{put, well, with_files};
use super::servers::{Client, content};
use super::store::{Fault, Request, Store};

/// Whether a request has a field or parameter of checksums.
fn speaks_of_checksums(request: &Request) -> bool {
    request.fields.keys().any(|name| name.starts_with("x-amz-checksum") || name.starts_with("x-amz-sdk-checksum"))
}

/// A client with a tree of `count` small files and one that goes in parts.
fn with_large(count: u64, script: impl FnMut(&Request) -> Fault + Send + 'static) -> (Store, Client, String) {
    let (store, client, tree) = with_files(count, script);
    client.file("tree/large", &content(20 << 20, 99));
    (store, client, tree)
}

/// All files of [`with_large`] come back.
fn come_back(client: &Client, count: u64) {
    for number in 0..count {
        assert_eq!(client.get(&format!("s3://bucket/t/{number}")), content(300, number));
    }
    assert!(client.get("s3://bucket/t/large") == content(20 << 20, 99));
}

/// B2 (cyberduck#16107, zipline#746), R2 (cloudflare-docs#4508), GCS (milvus-storage#480), proxies that drop fields and
/// spoil the signature, and stores that say nothing.
#[test]
fn checksums_were_refused_with_400_or_501() {
    const REFUSALS: [(u16, &str); 6] = [
        (
            400,
            "<Error><Code>InvalidArgument</Code><Message>Unsupported header 'x-amz-checksum-sha256'</Message></Error>",
        ),
        (501, "<Error><Code>NotImplemented</Code><Message>Header 'x-amz-checksum-algorithm'</Message></Error>"),
        (400, "<Error><Code>ExcessHeaderValues</Code></Error>"),
        (403, "<Error><Code>SignatureDoesNotMatch</Code></Error>"),
        (400, ""),
        (501, ""),
    ];
    for (status, body) in REFUSALS {
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        let (store, client, tree) = with_large(8, move |request| {
            // Of a wrong signature in the very first answer nobody could tell what it is for.
            let is_refused = speaks_of_checksums(request) && (status != 403 || request.method != "HEAD");
            count.fetch_add(usize::from(is_refused), Ordering::SeqCst);
            if is_refused { Fault::Answer(status, "", body) } else { Fault::None }
        });
        store.has_only_md5();
        let first = put(&client, &tree, &["--connections", "2"]);
        assert_eq!((first.code, first.summary()["store"]["files"].as_u64()), (0, Some(9)), "{body}: {}", first.stderr);
        assert_eq!(first.summary()["store"]["unconfirmed"], 9, "{body}");
        let refused = refused.load(Ordering::SeqCst);
        // HEAD and its explanation, a few requests that were under way, and one kind after the other.
        assert!((1..=14).contains(&refused), "{body}: {refused} were refused: it is not remembered");
        (0..8).for_each(|number| assert_eq!(client.get(&format!("s3://bucket/t/{number}")), content(300, number)));
        // In parts and without a checksum, it cannot be verified.
        let path = client.home.path().join("got");
        let got = client.run(["get", "-o", path.to_str().unwrap(), "s3://bucket/t/large"]);
        assert!(got.code == 0 && std::fs::read(&path).unwrap() == content(20 << 20, 99), "{}", got.stderr);
        let again = put(&client, &tree, &[]);
        assert_eq!(again.summary()["store"]["present"], 8, "{body}: by their ETags; {}", again.stdout);
    }
}

/// Some take them with objects and not with parts (R2, for years), some when an upload begins and not later.
#[test]
fn checksums_of_parts_alone_were_refused() {
    let refuses_parts = |request: &Request| request.query.contains("partNumber") && speaks_of_checksums(request);
    let refuses_beginning = |request: &Request| request.query == "uploads=" && speaks_of_checksums(request);
    for refuses in [refuses_parts, refuses_beginning] {
        let (store, client, tree) = with_large(3, move |request| match refuses(request) {
            true => Fault::Answer(501, "", "<Error><Code>NotImplemented</Code></Error>"),
            false => Fault::None,
        });
        let done = put(&client, &tree, &[]);
        assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(4)), "{}", done.stderr);
        assert!(store.requests().iter().any(|request| request.is_put() && speaks_of_checksums(request)));
        assert_eq!(store.open_uploads(), 0);
        come_back(&client, 3);
    }
}

#[test]
fn checksums_are_sent_and_asked_for_as_the_settings_of_the_aws_tools_say() {
    let (store, mut client, tree) = with_large(3, well());
    client.variables.push(("AWS_REQUEST_CHECKSUM_CALCULATION".into(), "WHEN_REQUIRED".into()));
    client.variables.push(("AWS_RESPONSE_CHECKSUM_VALIDATION".into(), "when_required".into()));
    assert_eq!(put(&client, &tree, &[]).code, 0);
    assert!(!store.requests().iter().any(speaks_of_checksums));
    let get = |more: &[&str]| {
        let path = client.home.path().join("got");
        let mut arguments = vec!["get", "-o", path.to_str().unwrap(), "s3://bucket/t/1"];
        arguments.extend(more);
        client.run(arguments).code
    };
    assert_eq!(get(&[]), 0);
    assert!(!store.requests().iter().any(speaks_of_checksums));
    assert_eq!(get(&["--require-checksum"]), 0, "then one is required");
    assert!(store.requests().iter().any(speaks_of_checksums));
    client.variables.push(("AWS_REQUEST_CHECKSUM_CALCULATION".into(), "sometimes".into()));
    let wrong = put(&client, &tree, &[]);
    assert!(wrong.code == 1 && wrong.stderr.contains("AWS_REQUEST_CHECKSUM_CALCULATION=sometimes"), "{}", wrong.stderr);
}

/// GCS (mc#4778, s3cmd#1222), others that say so, OneFS (barman#1146), one that answers with a page, and ones that answer
/// that all is well and delete nothing.
#[test]
fn many_objects_could_not_be_deleted_by_one_request() {
    const ANSWERS: [(u16, &str); 7] = [
        (400, "<Error><Code>InvalidArgument</Code><Details>Cannot create buckets using a POST.</Details></Error>"),
        (501, "<Error><Code>NotImplemented</Code></Error>"),
        (405, "<Error><Code>MethodNotAllowed</Code></Error>"),
        (400, "<Error><Code>MissingContentMD5</Code></Error>"),
        (200, "<html><body>welcome</body></html>"),
        (200, ""),
        (200, "<DeleteResult/>"),
    ];
    for (status, body) in ANSWERS {
        let (store, client, tree) = with_files(3, move |request| match request.query.starts_with("delete") {
            true => Fault::Answer(status, "", body),
            false => Fault::None,
        });
        (0..2500).for_each(|number| store.put(&format!("t/old/{number}"), b"x"));
        store.requests();
        let done = put(&client, &tree, &["--delete", "--force-delete"]);
        assert_eq!(
            (done.code, done.summary()["store"]["deleted"].as_u64()),
            (0, Some(2500)),
            "{body}: {}",
            done.stderr
        );
        assert_eq!(store.keys(), ["t/0", "t/1", "t/2"], "{body}");
        let asked = store.requests().iter().filter(|request| request.query.starts_with("delete")).count();
        // Three are on their way at once.
        assert!(asked <= 3, "{asked}");
    }
    // Who may not delete is told so, without a request for each.
    let (store, client, tree) = with_files(3, |request| match request.method.as_str() {
        "DELETE" => Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>"),
        "POST" => Fault::Answer(403, "", "<Error><Code>AccessDenied</Code><Message>no deleting</Message></Error>"),
        _ => Fault::None,
    });
    (0..50).for_each(|number| store.put(&format!("t/old/{number}"), b"x"));
    let done = put(&client, &tree, &["--delete", "--force-delete"]);
    assert!(done.code == 1 && done.stderr.contains("no deleting"), "{} {}", done.code, done.stderr);
    assert!(store.requests().iter().filter(|request| request.method == "DELETE").count() <= 1);
}

/// pghoard#365, Huawei (minio-go#1703), and stores that refuse the parameter; versitygw#179 began with the marker itself.
#[test]
fn listings_were_answered_as_version_1() {
    for (next_marker, repeats, refuses) in
        [(true, false, false), (false, false, false), (false, true, false), (true, false, true)]
    {
        let (store, client, tree) =
            with_files(40, move |request| match request.query.contains("list-type") && refuses {
                true => Fault::Answer(501, "", "<Error><Code>NotImplemented</Code></Error>"),
                false => Fault::ListingOne { page: 7, next_marker, repeats },
            });
        let first = put(&client, &tree, &[]);
        assert_eq!((first.code, first.summary()["store"]["files"].as_u64()), (0, Some(40)), "{}", first.stderr);
        store.put("t/old", b"x");
        let again = put(&client, &tree, &["--delete"]);
        assert_eq!(again.summary()["store"]["present"], 40, "{}", again.stderr);
        assert_eq!(again.summary()["store"]["deleted"], 1, "{}", again.stderr);
        let listings: Vec<_> =
            store.requests().into_iter().filter(|request| request.query.contains("prefix=")).collect();
        assert!(listings.iter().any(|request| request.query.contains("marker=")));
        assert!(listings.iter().all(|request| !request.query.contains("continuation-token")));
    }
    // One that does not know how keys are encoded.
    let (_store, client, tree) = with_files(40, |request| match request.query.contains("encoding-type") {
        true => Fault::Answer(400, "", "<Error><Code>InvalidArgument</Code></Error>"),
        false => Fault::None,
    });
    assert_eq!(put(&client, &tree, &[]).code, 0);
    assert_eq!(put(&client, &tree, &[]).summary()["store"]["present"], 40);
}

/// s3ql#297 (objects that a backup service restored), s3cmd#928, chimera#469.
#[test]
fn etags_of_32_digits_were_no_md5() {
    let (store, client, tree) = with_large(20, |_| Fault::OddEtags);
    store.has_only_md5();
    let first = put(&client, &tree, &[]);
    assert_eq!((first.code, first.summary()["store"]["files"].as_u64()), (0, Some(21)), "{}", first.stderr);
    let path = client.home.path().join("got");
    let got = client.run(["get", "--json", "-o", path.to_str().unwrap(), "s3://bucket/t/1"]);
    assert_eq!((got.code, got.summary()["store"]["verified"].as_bool()), (0, Some(false)), "{}", got.stderr);
    assert_eq!(std::fs::read(&path).unwrap(), content(300, 1));
    // Such an ETag says nothing: neither that a file is there, nor that it is not.
    client.file("tree/1", &content(300, 77));
    assert_eq!(put(&client, &tree, &[]).code, 0);
    assert_eq!(store.object("t/1").unwrap().content, content(300, 77));
    // Where the store has a checksum, that counts.
    let (_store, client, tree) = with_files(20, |_| Fault::OddEtags);
    assert_eq!(put(&client, &tree, &[]).code, 0);
    assert_eq!(put(&client, &tree, &[]).summary()["store"]["present"], 20);
    assert_eq!(client.get("s3://bucket/t/1"), content(300, 1));
}

/// Proxies weaken ETags of what they compress, or leave them out of ranges.
#[test]
fn etags_of_ranges_had_another_form() {
    for fault in [Fault::WeakEtagsOfRanges, Fault::NoEtagsOfRanges] {
        let store = Store::start(well());
        let client = Client::new(&store.url);
        store.put("large", &content(20 << 20, 5));
        store.script(move |request| if request.method == "GET" { fault.clone() } else { Fault::None });
        assert!(client.get("s3://bucket/large") == content(20 << 20, 5));
    }
}

/// Refused with 400 (B2, once) or 501 (Alibaba: walgit#67), answered as a GET is, or with 409.
#[test]
fn conditions_of_put_were_refused() {
    for (status, body) in [(400, "<Error><Code>InvalidArgument</Code></Error>"), (501, ""), (405, "")] {
        let mut unlisted = true;
        let (store, client, tree) = with_files(60, move |request| match request.field("if-none-match") {
            "" if request.query.contains("list-type") && std::mem::take(&mut unlisted) => {
                Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>")
            }
            "" => Fault::None,
            _ => Fault::Answer(status, "", body),
        });
        let done = put(&client, &tree, &["--connections", "1"]);
        assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(60)), "{status} {}", done.stderr);
        let conditional = store.requests().iter().filter(|request| request.field("if-none-match") == "*").count();
        assert!((1..=2).contains(&conditional), "{conditional}: it is remembered");
    }
}

#[test]
fn if_match_of_ranges_was_refused_though_the_object_is_the_same() {
    for (status, body) in [(501, "<Error><Code>NotImplemented</Code></Error>"), (412, ""), (400, "")] {
        let store = Store::start(well());
        let client = Client::new(&store.url);
        store.put("large", &content(60 << 20, 5));
        store.script(move |request| match request.field("if-match") {
            "" => Fault::None,
            _ => Fault::Answer(status, "", body),
        });
        assert!(client.get("s3://bucket/large") == content(60 << 20, 5), "{status}");
    }
}

/// Their own hash of the words for an unsigned payload, or a refusal (vikunja#2181 the other way round).
#[test]
fn content_had_to_be_signed_though_it_had_a_checksum() {
    for (status, body) in [
        (400, "<Error><Code>XAmzContentSHA256Mismatch</Code></Error>"),
        (501, "<Error><Code>NotImplemented</Code></Error>"),
        (403, "<Error><Code>SignatureDoesNotMatch</Code></Error>"),
    ] {
        let (store, client, tree) = with_large(400, move |request| match request.field("x-amz-content-sha256") {
            "UNSIGNED-PAYLOAD" => Fault::Answer(status, "", body),
            _ => Fault::None,
        });
        let done = put(&client, &tree, &["--connections", "4"]);
        assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(401)), "{body}: {}", done.stderr);
        let unsigned = store
            .requests()
            .iter()
            .filter(|request| request.field("x-amz-content-sha256") == "UNSIGNED-PAYLOAD")
            .count();
        // At most those that are in the queue when the first is sent again: 80, and some parts.
        assert!((1..=100).contains(&unsigned), "{body} {unsigned}: it is not remembered");
    }
}

/// Buckets with object locks (Amazon's among them, where no other checksum comes) and stores of the old school.
#[test]
fn content_had_to_have_an_md5() {
    let (store, mut client, tree) =
        with_large(20, |request| match request.is_put() && request.field("content-md5").is_empty() {
            true => Fault::Answer(
                400,
                "",
                "<Error><Code>InvalidRequest</Code><Message>Content-MD5 HTTP header is required</Message></Error>",
            ),
            false => Fault::None,
        });
    client.variables.push(("AWS_REQUEST_CHECKSUM_CALCULATION".into(), "when_required".into()));
    let done = put(&client, &tree, &["--connections", "2"]);
    assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(21)), "{}", done.stderr);
    let puts: Vec<_> = store.requests().into_iter().filter(Request::is_put).collect();
    let without = puts.iter().filter(|request| request.field("content-md5").is_empty()).count();
    assert!(without <= 6, "{without} of {}: it is remembered", puts.len());
}

/// Credentials that may put and nothing else: Amazon's answers HEAD with 403 then, also of objects that are not there.
#[test]
fn who_may_put_and_not_ask_could_put_nothing() {
    let (store, client, tree) = with_large(3, |request| match request.method.as_str() {
        "HEAD" | "GET" => Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>"),
        _ => Fault::None,
    });
    let done = put(&client, &tree, &[]);
    assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(4)), "{}", done.stderr);
    assert_eq!(store.keys().len(), 4);
}

/// The end of an upload in parts, as stores differ about it: whether checksums stand in the list, and what the answer is.
#[test]
fn the_end_of_an_upload_in_parts_differed() {
    let is_end = |request: &Request| request.method == "POST" && request.query.starts_with("uploadId");
    for wanted in [false, true] {
        let (store, client, tree) = with_large(0, move |request| {
            let has_checksums = String::from_utf8_lossy(&request.body).contains("ChecksumSHA256");
            match is_end(request) && has_checksums != wanted {
                true if wanted => Fault::Answer(400, "", "<Error><Code>InvalidRequest</Code></Error>"),
                true => Fault::Answer(400, "", "<Error><Code>MalformedXML</Code></Error>"),
                false => Fault::None,
            }
        });
        if wanted {
            store.has_only_md5();
        }
        let done = put(&client, &tree, &[]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert!(store.object("t/large").unwrap().content == content(20 << 20, 99));
        assert_eq!(store.open_uploads(), 0);
    }
    let (store, client, tree) = with_large(0, move |request| match is_end(request) {
        true => Fault::EmptyAnswer,
        false => Fault::None,
    });
    let done = put(&client, &tree, &[]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(store.object("t/large").unwrap().content == content(20 << 20, 99));
}

/// Scaleway takes a thousand.
#[test]
fn a_store_took_fewer_parts() {
    const REFUSAL: &str = "<Error><Code>InvalidArgument</Code><Message>Part number must be an integer between 1 and 3, \
                           inclusive</Message></Error>";
    let (store, client, tree) = with_files(0, |request| {
        let number = request.query.split('&').find_map(|pair| pair.strip_prefix("partNumber="));
        match number.is_some_and(|number| number.parse::<u64>().unwrap() > 3) {
            true => Fault::Answer(400, "", REFUSAL),
            false => Fault::None,
        }
    });
    (0..2).for_each(|number| drop(client.file(&format!("tree/{number}"), &content(60 << 20, number))));
    let done = put(&client, &tree, &[]);
    assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(2)), "{}", done.stderr);
    assert_eq!(store.open_uploads(), 0);
    for number in 0..2 {
        assert!(client.get(&format!("s3://bucket/t/{number}")) == content(60 << 20, number));
    }
    let piped = client.run_with(["put", "-", "s3://bucket/pipe"], std::io::repeat(7).take(60 << 20));
    assert!(piped.code != 0 && piped.stderr.contains("only 3 parts"), "{}", piped.stderr);
}

/// One that names a place for its archived objects.
#[test]
fn an_archived_object_was_called_a_matter_of_permissions() {
    let store = Store::start(|request| match request.method.as_str() {
        "GET" => Fault::Answer(
            403,
            "",
            "<Error><Code>InvalidObjectState</Code><Message>The operation is not valid for the object's storage class\
             </Message></Error>",
        ),
        _ => Fault::None,
    });
    store.put("cold", b"x");
    let client = Client::new(&store.url);
    let path = client.home.path().join("got");
    let got = client.run(["get", "-o", path.to_str().unwrap(), "s3://bucket/cold"]);
    assert!(got.code == 1 && got.stderr.contains("restore it first"), "{} {}", got.code, got.stderr);
    assert!(!got.stderr.contains("permissions"), "{}", got.stderr);
    assert!(!path.exists());
}

#[test]
fn one_bad_argument_or_name_kept_the_others_from_being_put() {
    use std::os::unix::ffi::OsStrExt as _;

    let (store, client, tree) = with_files(3, well());
    std::fs::write(std::path::Path::new(&tree).join(std::ffi::OsStr::from_bytes(b"odd\xff")), "x").unwrap();
    let missing = client.home.path().join("missing");
    let done = client.run(["put", missing.to_str().unwrap(), &tree, "s3://bucket/t"]);
    assert_eq!((done.code, store.keys().len()), (2, 3), "{}", done.stderr);
    let lines = |name: &str| done.stderr.lines().filter(|line| line.contains(name)).count();
    assert_eq!((lines("missing"), lines("odd")), (1, 1), "one line for each: {}", done.stderr);
    let alone = client.run(["put", missing.to_str().unwrap(), "s3://bucket/t"]);
    assert_eq!(alone.code, 1, "{}", alone.stderr);
    // What the missing one had there, if it was a directory, is kept.
    store.put("t/old", b"x");
    let deleting = client.run(["put", "--delete", missing.to_str().unwrap(), &tree, "s3://bucket/t"]);
    assert!(deleting.code == 2 && store.object("t/old").is_some(), "{}", deleting.stderr);
}

/// A store, and another one in front of it that redirects by `to`.
fn redirecting(status: u16, store: &Store, is_redirected: impl Fn(&Request) -> bool + Send + 'static) -> Store {
    let url = store.url.clone();
    Store::start(move |request| match is_redirected(request) {
        true => {
            let query = if request.query.is_empty() { String::new() } else { format!("?{}", request.query) };
            // A leak of a few bytes in a test, for an answer that is made at once.
            let location = format!("Location: {url}{}{query}\r\n", request.path).leak();
            Fault::Answer(status, location, "<Error><Code>TemporaryRedirect</Code></Error>")
        }
        false => Fault::None,
    })
}

/// bsdec2-image-upload#11, aws-sdk-ruby#133, and gateways that name the node to go to.
#[test]
fn redirects_with_a_location_were_not_followed() {
    for status in [301, 302, 307, 308] {
        let store = Store::start(well());
        let front = redirecting(status, &store, |_| true);
        let client = Client::new(&front.url);
        (0..60).for_each(|number| drop(client.file(&format!("tree/{number}"), &content(300, number))));
        client.file("tree/large", &content(20 << 20, 99));
        let tree = client.home.path().join("tree").to_str().unwrap().to_owned();
        let done = put(&client, &tree, &["--connections", "2"]);
        assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(61)), "{status} {}", done.stderr);
        assert_eq!((front.keys().len(), store.keys().len()), (0, 61));
        let redirected = front.requests().len();
        assert!((1..=8).contains(&redirected), "{status}: {redirected} of 61: it is remembered");
        come_back(&client, 3);
    }
}

/// A store that knows which node has what: each request goes where it is sent, and no other.
#[test]
fn redirects_of_some_objects_were_not_followed() {
    let node = Store::start(well());
    let front = redirecting(307, &node, |request| request.path.ends_with(['1', '3', '5']));
    let client = Client::new(&front.url);
    (0..20).for_each(|number| drop(client.file(&format!("tree/{number}"), &content(300, number))));
    let tree = client.home.path().join("tree").to_str().unwrap().to_owned();
    let done = put(&client, &tree, &[]);
    assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(20)), "{}", done.stderr);
    assert_eq!((front.keys().len(), node.keys().len()), (14, 6));
    for number in 0..20 {
        assert_eq!(client.get(&format!("s3://bucket/t/{number}")), content(300, number));
    }
}

/// A signed URL of the object is requested as it stands: another signature beside it is refused.
#[test]
fn redirects_to_signed_urls_were_not_followed() {
    let place = Store::start(|request| match request.fields.contains_key("authorization") {
        true => Fault::Answer(400, "", "<Error><Code>InvalidArgument</Code></Error>"),
        false => Fault::None,
    });
    place.put("there/object", &content(10 << 20, 3));
    let url = place.url.clone();
    let location = format!("Location: {url}/else/there/object?X-Amz-Signature=abc&X-Amz-Expires=60\r\n").leak();
    let location: &'static str = location;
    let front = Store::start(move |request| match request.method.as_str() {
        "GET" | "HEAD" => Fault::Answer(302, location, ""),
        _ => Fault::None,
    });
    let client = Client::new(&front.url);
    assert!(client.get("s3://bucket/object") == content(10 << 20, 3));
}

/// The node that was named is down, and the store names another one.
#[test]
fn a_redirect_to_a_server_that_is_down_ended_the_run() {
    let nobody = "127.0.0.1:1";
    let mut met: HashMap<String, usize> = HashMap::new();
    let (store, client, tree) = with_files(20, move |request| {
        let count = met.entry(request.path.clone()).or_default();
        *count += usize::from(request.is_put());
        match request.is_put() && request.path.ends_with('1') && *count == 1 {
            true => Fault::Answer(307, format!("Location: http://{nobody}{}\r\n", request.path).leak(), ""),
            false => Fault::None,
        }
    });
    let done = put(&client, &tree, &[]);
    assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(20)), "{}", done.stderr);
    assert_eq!(store.keys().len(), 20);
}

#[test]
fn redirects_that_never_end_are_an_error() {
    let own = Arc::new(std::sync::Mutex::new(HashMap::<&str, &'static str>::new()));
    let known = Arc::clone(&own);
    let store = Store::start(move |_| match known.lock().unwrap().get("location").copied() {
        Some(location) => Fault::Answer(307, location, ""),
        None => Fault::None,
    });
    let location: &'static str = format!("Location: {}/bucket/round/and/round\r\n", store.url).leak();
    own.lock().unwrap().insert("location", location);
    let client = Client::new(&store.url);
    let file = client.file("f", b"x");
    let done = client.run(["put", "--overwrite", file.to_str().unwrap(), "s3://bucket/f"]);
    assert!(done.code == 3 || done.code == 1, "{}", done.code);
    assert!(done.stderr.contains("redirects to"), "{}", done.stderr);
    assert!(store.requests().len() <= 10);
}
