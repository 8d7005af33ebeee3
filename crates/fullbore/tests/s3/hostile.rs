//! Stores that say what is not so, or in another form than others: each run ends, and nothing is taken away that should stay.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_s3::objects::Condition;

use super::faults::{put, uploader, well, with_files};
use super::servers::{Client, Output, content, finish};
use super::store::{Fault, Request, SLOW, Store};

/// A page of a listing, with the token of the next one.
fn page(keys: &[&str], next: Option<&str>) -> Fault {
    let mut body = format!("<ListBucketResult><IsTruncated>{}</IsTruncated>", next.is_some());
    for key in keys {
        body.push_str(&format!("<Contents><Key>{key}</Key><Size>300</Size></Contents>"));
    }
    if let Some(next) = next {
        body.push_str(&format!("<NextContinuationToken>{next}</NextContinuationToken>"));
    }
    body.push_str("</ListBucketResult>");
    Fault::Answer(200, "", body.leak())
}

/// Answers questions for page number 0, 1, 2, …
fn listed(pages: impl Fn(usize) -> Fault + Send + 'static) -> impl FnMut(&Request) -> Fault + Send + 'static {
    let mut asked = 0;
    move |request| match request.query.contains("list-type") {
        true => {
            asked += 1;
            pages(asked - 1)
        }
        false => Fault::None,
    }
}

fn deletes(requests: &[Request]) -> usize {
    requests.iter().filter(|request| request.query.starts_with("delete") || request.method == "DELETE").count()
}

#[test]
fn a_listing_without_an_end_is_an_error_that_names_the_store() {
    type Pages = fn(usize) -> Fault;
    let circles: [(&str, Pages); 3] = [
        ("already listed", |number| page(&[], Some(["a", "b", "c"][number % 3]))),
        ("already listed", |_| page(&[], Some("a"))),
        ("a second time", |number| page(&["t/x", "t/y"], Some(&number.to_string()))),
    ];
    // That many pages are asked for only where objects are to be deleted.
    let empty: (&str, Pages) = ("without any object", |number| page(&[], Some(&number.to_string())));
    let fails = |done: &Output, did: &str| {
        assert_eq!(done.code, 3, "{}", done.stderr);
        for part in ["127.0.0.1", did, "would never end"] {
            assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
        }
    };
    for (did, pages) in circles {
        let (store, client, tree) = with_files(12, listed(pages));
        let done = put(&client, &tree, &[]);
        fails(&done, did);
        assert!(done.stderr.contains("--overwrite"), "{}", done.stderr);
        assert!(store.requests().iter().all(|request| !request.is_put()), "what is there is not known");
    }
    for (did, pages) in circles.into_iter().chain([empty]) {
        let (store, client, tree) = with_files(12, listed(pages));
        store.put("t/old", b"old");
        let done = put(&client, &tree, &["--overwrite", "--delete", "--force-delete"]);
        fails(&done, did);
        assert_eq!((store.keys().len(), deletes(&store.requests())), (13, 0), "all is put, and nothing deleted");
    }
}

#[test]
fn a_listing_without_an_order_says_nothing_of_what_it_did_not_come_to() {
    let (store, client, tree) = with_files(12, well());
    assert_eq!(put(&client, &tree, &[]).code, 0);
    store.requests();
    // It is not gone through to its end: there is too much of it.
    store.script(listed(|number| page(&[&format!("t/z{}", 1000 - number)], Some(&number.to_string()))));
    assert_eq!(put(&client, &tree, &[]).summary()["store"]["present"], 12);
    assert!(store.requests().iter().all(|request| !request.is_put()), "they are asked for");
    // The last page that is read has nothing on it, and is not the end.
    store.script(listed(|number| match number {
        0 => page(&["t/0"], Some("0")),
        number => page(&[], Some(&number.to_string())),
    }));
    assert_eq!(put(&client, &tree, &[]).summary()["store"]["present"], 12);
    assert!(store.requests().iter().all(|request| !request.is_put()));
}

#[test]
fn a_refused_listing_is_done_without_and_an_unreadable_one_fails() {
    let (store, client, tree) = with_files(12, listed(|_| Fault::Answer(501, "", "")));
    for (stored, present) in [(12, 0), (0, 12)] {
        let summary = put(&client, &tree, &[]).summary();
        assert_eq!(
            (summary["store"]["files"].as_u64(), summary["store"]["present"].as_u64()),
            (Some(stored), Some(present))
        );
    }
    // Who answers so may be no store at all.
    store.script(listed(|_| Fault::Answer(200, "", "<html>log in</html>")));
    let done = put(&client, &tree, &[]);
    assert_eq!(done.code, 3, "{}", done.stderr);
    assert!(done.stderr.contains("ListBucketResult") && done.stderr.contains("--overwrite"), "{}", done.stderr);
}

#[test]
fn what_is_not_beneath_the_prefix_is_not_deleted() {
    let (store, client, tree) = with_files(5, listed(|_| page(&["other/a", "t/0"], None)));
    store.put("other/a", b"of others");
    let done = put(&client, &tree, &["--delete", "--force-delete"]);
    assert_eq!(done.code, 3, "{}", done.stderr);
    assert!(done.stderr.contains("other/a") && done.stderr.contains("127.0.0.1"), "{}", done.stderr);
    assert_eq!((store.object("other/a").is_some(), deletes(&store.requests())), (true, 0));
}

#[test]
fn files_that_the_store_lists_under_other_names_were_deleted() {
    // As a file system does that keeps `ä` in two characters, or all names in lower case.
    for (ours, theirs) in [("\u{e4}", "a\u{308}"), ("A", "a"), ("a\u{1}", "a\u{fffd}")] {
        let listed_name = format!("t/{theirs}");
        let pages = move |_| page(&["t/0", "t/1", "t/2", &listed_name], None);
        let (store, client, tree) = with_files(3, listed(pages));
        client.file(&format!("tree/{ours}"), b"content");
        let done = put(&client, &tree, &["--delete", "--force-delete"]);
        assert_eq!((done.code, store.keys().len(), deletes(&store.requests())), (2, 4, 0), "{}", done.stderr);
        assert!(done.stderr.contains("does not list") && done.stderr.contains("127.0.0.1"), "{}", done.stderr);
    }
}

#[test]
fn a_link_swapped_in_after_the_walk_was_followed() {
    for flags in [&[][..], &["--copy-links"]] {
        let store = Store::start(well());
        let client = Client::new(&store.url);
        client.file("out/file", b"secret");
        for name in ["a/file", "b/file", "c/file", "d/file", "e/file"] {
            client.file(&format!("tree/{name}"), b"public");
        }
        let at = |name: &str| client.home.path().join(name);
        symlink("../d", at("tree/a/link")).unwrap();
        symlink("../e/file", at("tree/b/file2")).unwrap();
        let gate = at("gate");
        let make_pipe =
            |path: &Path| assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        make_pipe(&gate);
        let (tree, pipe) = (at("tree"), gate.to_str().unwrap().to_owned());
        let mut command = client.command(["put", &pipe, tree.to_str().unwrap(), "s3://bucket/p/", "--last", "file*"]);
        let child = command.args(flags).spawn().unwrap();
        // Whoever reads from it is done with the walk, and all others have a later turn.
        let mut writer = File::options().write(true).open(&gate).unwrap();
        for name in ["a/file", "d/file"] {
            fs::remove_file(tree.join(name)).unwrap();
            symlink("../../out/file", tree.join(name)).unwrap();
        }
        fs::rename(tree.join("b"), at("b")).unwrap();
        symlink("../out", tree.join("b")).unwrap();
        fs::remove_file(tree.join("c/file")).unwrap();
        make_pipe(&tree.join("c/file"));
        writer.write_all(b"go").unwrap();
        drop(writer);
        let done = finish(child);
        assert_eq!(done.code, 2, "{}", done.stderr);
        for name in ["a/file", "b/file", "c/file"] {
            assert!(done.stderr.contains(name), "{name}: {}", done.stderr);
        }
        let contents = store.keys().into_iter().map(|key| (store.object(&key).unwrap().content, key));
        for (content, key) in contents {
            assert!(key == "p/gate" || content == b"public", "{key}: {content:?}");
        }
    }
}

#[test]
fn objects_that_are_not_deleted_are_not_told_as_deleted() {
    let answers = [
        (200, "<Error><Code>InternalError</Code><Message>m</Message></Error>"),
        (404, ""),
        (404, "<Error><Code>NoSuchKey</Code></Error>"),
    ];
    for (status, body) in answers {
        let (store, client, tree) = with_files(5, move |request| match request.query.starts_with("delete") {
            true => Fault::Answer(status, "", body),
            false => Fault::None,
        });
        store.put("t/old", b"old");
        let done = put(&client, &tree, &["--delete"]);
        assert_eq!(
            (done.code, done.summary()["store"]["deleted"].as_u64()),
            (0, Some(1)),
            "{status} {body}: {}",
            done.stderr
        );
        assert!(store.object("t/old").is_none(), "{status} {body}: deleted by a request of its own");
        // Nor can it be deleted so.
        store.script(move |request| match request.method.as_str() {
            "POST" => Fault::Answer(status, "", body),
            "DELETE" => Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>"),
            _ => Fault::None,
        });
        store.put("t/old", b"old");
        let done = put(&client, &tree, &["--delete"]);
        assert_ne!(done.code, 0, "{status} {body}: {}", done.stdout);
        assert_eq!(done.summary()["store"]["deleted"], 0, "{status} {body}");
    }
}

#[test]
fn a_question_that_is_refused_and_then_is_not_is_asked_again() {
    // As when another answer has put the clock or the region right between the two.
    let mut once = true;
    let (store, client, tree) =
        with_files(1, move |request| match request.method == "HEAD" && std::mem::take(&mut once) {
            true => Fault::Answer(403, "", ""),
            false => Fault::None,
        });
    let done = put(&client, &tree, &[]);
    assert_eq!((done.code, store.keys().len()), (0, 1), "{}", done.stderr);
    store.script(|request| match request.method.as_str() {
        "HEAD" => Fault::Answer(403, "", ""),
        _ => Fault::None,
    });
    store.requests();
    // Then nothing is known of the object, and it is put.
    assert_eq!(put(&client, &tree, &[]).code, 0);
    let methods: Vec<_> = store.requests().into_iter().map(|request| request.method).collect();
    assert_eq!(methods, ["HEAD", "GET", "HEAD", "PUT"], "once");
}

#[test]
fn etags_without_quotes_are_etags() {
    let large = content(40 << 20, 3);
    let (store, client, tree) = with_files(2, |_| Fault::BareEtags);
    store.has_only_md5();
    let file = client.file("large", &large).to_str().unwrap().to_owned();
    let done = client.run(["put", &file, "s3://bucket/large"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(store.object("large").unwrap().content == large);
    for present in [0, 2] {
        assert_eq!(put(&client, &tree, &[]).summary()["store"]["present"], present);
    }
    assert_eq!(client.get("s3://bucket/t/1"), content(300, 1));
}

#[test]
fn a_length_that_is_left_out_is_taken_from_the_first_range() {
    let store = Store::start(|request| match request.method.as_str() {
        "HEAD" => Fault::Answer(200, "ETag: \"x\"\r\nX-No-Content-Length: 1\r\n", ""),
        _ => Fault::Answer(206, "ETag: \"x\"\r\nContent-Range: bytes 0-2/3\r\n", "abc"),
    });
    let client = Client::new(&store.url);
    let target = client.home.path().join("target");
    let got = client.run(["get", "-o", target.to_str().unwrap(), "s3://bucket/k"]);
    assert_eq!(got.code, 0, "{}", got.stderr);
    assert_eq!(std::fs::read(target).unwrap(), b"abc");
}

#[test]
fn an_answer_that_comes_byte_by_byte_is_a_stall() {
    let mut met: HashMap<String, usize> = HashMap::new();
    let (store, client, tree) = with_files(3, move |request| {
        let count = met.entry(request.path.clone()).or_default();
        *count += usize::from(request.is_put());
        if request.is_put() && *count == 1 { Fault::Drip } else { Fault::None }
    });
    let done = put(&client, &tree, &["--timeout", "2", "--overwrite"]);
    assert_eq!((done.code, store.keys().len()), (0, 3), "{}", done.stderr);
}

#[test]
fn an_error_says_what_the_store_said_last() {
    let elsewhere = "Location: https://elsewhere.example/bucket\r\n";
    let (_, client, tree) = with_files(1, move |_| Fault::Answer(301, elsewhere, ""));
    let moved = put(&client, &tree, &[]);
    assert_eq!(moved.code, 3, "{}", moved.stderr);
    for part in ["301", "https://elsewhere.example/bucket", "--endpoint"] {
        assert!(moved.stderr.contains(part), "{part}: {}", moved.stderr);
    }
    // A region that would be part of every signature from then on.
    let region = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>a b</Region></Error>";
    let (store, client, tree) = with_files(1, move |_| Fault::Answer(400, "", region));
    assert_eq!(put(&client, &tree, &["--overwrite"]).code, 1);
    assert_eq!(store.requests().len(), 1, "not asked again");
    let store = Store::start(|_| Fault::Answer(503, "Retry-After: 1\r\n", SLOW));
    let (uploader, _stop) = uploader(&store, Duration::from_secs(2));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let put = uploader.put_whole("object", Vec::new(), Bytes::from_static(b"x"), Sha256::of(b"x"), &Condition::None);
    let error = runtime.block_on(put).unwrap_err().to_string();
    assert!(error.contains("503 SlowDown: Please") && error.contains("not done within 2 s"), "{error}");
}

#[test]
fn pipes_that_give_nothing_do_not_keep_the_rest_from_its_turn() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let fifos: Vec<_> = (0..12).map(|number| client.home.path().join(format!("fifo{number}"))).collect();
    assert!(std::process::Command::new("mkfifo").args(&fifos).status().unwrap().success());
    for number in 0..20 {
        client.file(&format!("tree/{number}"), &content(300, number));
    }
    // In parts, and as large as files in one piece are.
    client.file("tree/large", &content(40 << 20, 1));
    client.file("tree/whole", &content(16 << 20, 2));
    let tree = client.home.path().join("tree").to_str().unwrap().to_owned();
    let mut arguments = vec!["put"];
    arguments.extend(fifos.iter().map(|path| path.to_str().unwrap()));
    arguments.extend([tree.as_str(), "s3://bucket/p/"]);
    let child = client.command(arguments).spawn().unwrap();
    // Half of them have given something, and more does not come.
    let mut writers: Vec<File> = fifos.iter().map(|path| File::options().write(true).open(path).unwrap()).collect();
    let begins = content(1 << 20, 3);
    writers.iter_mut().step_by(2).for_each(|writer| writer.write_all(&begins).unwrap());
    let begun = Instant::now();
    while store.keys().len() < 22 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", store.keys());
        std::thread::sleep(Duration::from_millis(10));
    }
    let rest = content(19 << 20, 4);
    for mut writer in writers {
        writer.write_all(&rest).unwrap();
    }
    let done = finish(child);
    assert_eq!((done.code, store.keys().len()), (0, 34), "{}", done.stderr);
    for (number, path) in fifos.iter().enumerate() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = if number % 2 == 0 { [&begins[..], &rest].concat() } else { rest.clone() };
        assert!(store.object(&format!("p/{name}")).unwrap().content == expected, "{name}");
    }
}

#[test]
fn an_error_that_all_would_have_is_told_without_waiting_for_pipes() {
    let none = "<Error><Code>NoSuchBucket</Code><Message>m</Message></Error>";
    let store = Store::start(move |_| Fault::Answer(404, "", none));
    let client = Client::new(&store.url);
    let fifo = client.home.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let file = client.file("file", b"x");
    let done = client.run(["put", fifo.to_str().unwrap(), file.to_str().unwrap(), "s3://bucket/p/"]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(done.stderr.contains("NoSuchBucket") && done.stderr.contains("1 more were not tried"), "{}", done.stderr);
}
