//! Uploads in parts of runs that were killed while they began them: given up by the next run, and no others.

use std::fs;
use std::time::{Duration, Instant};

use super::faults::well;
use super::servers::{Client, content};
use super::store::{Fault, Request, Store};

fn begins(request: &Request) -> bool {
    request.method == "POST" && request.query.starts_with("uploads")
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// A store that holds back what `fault` says when an upload begins, and a client with a large file.
fn holding(fault: Fault) -> (Store, Client, String) {
    let store = Store::start(move |request| if begins(request) { fault.clone() } else { Fault::None });
    let client = Client::new(&store.url);
    let file = client.file("large", &content(17 << 20, 1)).to_str().unwrap().to_owned();
    (store, client, file)
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What the journals say.
fn journals(client: &Client) -> String {
    let directory = client.home.path().join(".local/state/fullbore/put");
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.map(|file| fs::read_to_string(file.path()).unwrap_or_default()).collect()
}

/// Puts the file and kills the run when it has said that it will begin an upload, and `is_so`.
fn kill_when(client: &Client, file: &str, what: &str, mut is_so: impl FnMut() -> bool) {
    let mut child = client.command(["put", "--overwrite", file, "s3://bucket/large"]).spawn().unwrap();
    wait_for(what, || journals(client).contains("will_begin") && is_so());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Puts something else; gives what is said.
fn next_run(client: &Client) -> String {
    let small = client.file("small", b"x");
    let next = client.run(["put", small.to_str().unwrap(), "s3://bucket/small"]);
    assert_eq!(next.code, 0, "{}", next.stderr);
    next.stderr
}

#[test]
fn an_upload_begun_and_not_answered_is_given_up_by_the_next_run() {
    let (store, client, file) = holding(Fault::DoneAndStall(Duration::from_secs(120)));
    let day = 24 * 3600;
    store.begin_upload("large", "older", now() - 3600);
    store.begin_upload("large", "later", now() + day);
    store.begin_upload("large2", "another-key", now());
    kill_when(&client, &file, "an upload begins", || store.open_uploads() == 4);
    store.script(well());
    let said = next_run(&client);
    assert_eq!(store.upload_ids(), ["another-key", "later", "older"], "{said}");
    assert!(said.contains("large: gave up the upload in parts"), "{said}");
    let named = said.lines().filter(|line| line.contains("older") && line.contains("later"));
    assert_eq!((named.count(), said.contains("another-key")), (1, false), "{said}");
}

#[test]
fn an_upload_that_the_store_begins_after_the_next_run_is_found_later() {
    let (store, client, file) = holding(Fault::Stall(Duration::from_secs(3)));
    kill_when(&client, &file, "the store is asked", || {
        store.most_at_once.load(std::sync::atomic::Ordering::SeqCst) > 0
    });
    store.script(well());
    next_run(&client);
    wait_for("the store begins it nevertheless", || store.open_uploads() == 1);
    let said = next_run(&client);
    assert!(store.open_uploads() == 0 && said.contains("large: gave up"), "{said}");
}

#[test]
fn an_upload_whose_answer_was_lost_is_given_up_by_the_next_run() {
    let mut lost = false;
    let store = Store::start(move |request| match begins(request) && !std::mem::replace(&mut lost, begins(request)) {
        true => Fault::ResetAfter,
        false => Fault::None,
    });
    let client = Client::new(&store.url);
    let file = client.file("large", &content(17 << 20, 1)).to_str().unwrap().to_owned();
    let done = client.run(["put", &file, "s3://bucket/large"]);
    assert_eq!((done.code, store.open_uploads(), store.keys().len()), (0, 1, 1), "{}", done.stderr);
    let said = next_run(&client);
    assert!(store.open_uploads() == 0 && said.contains("large: gave up"), "{said}");
    assert_eq!(store.object("large").unwrap().content.len(), 17 << 20);
}

#[test]
fn an_upload_of_a_run_that_lives_is_left_alone() {
    let (store, client, file) = holding(Fault::DoneAndStall(Duration::from_secs(4)));
    kill_when(&client, &file, "an upload begins", || store.open_uploads() == 1);
    // It gives up that of the killed one first.
    let living = client.command(["put", "--overwrite", &file, "s3://bucket/large"]).spawn().unwrap();
    wait_for("another upload begins", || store.uploads_begun() == 2);
    next_run(&client);
    assert_eq!(store.open_uploads(), 1, "of the run that lives");
    assert_eq!(super::servers::finish(living).code, 0);
    assert_eq!((store.open_uploads(), store.object("large").is_some()), (0, true));
}

#[test]
fn a_store_that_cannot_list_uploads_is_no_error() {
    let refusals = [
        (501, "<Error><Code>NotImplemented</Code></Error>"),
        (405, "<Error><Code>MethodNotAllowed</Code></Error>"),
        (400, "<Error><Code>InvalidRequest</Code></Error>"),
        (403, "<Error><Code>AccessDenied</Code></Error>"),
        (404, ""),
        (200, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"),
        (200, "not XML"),
    ];
    for (status, body) in refusals {
        let (store, client, file) = holding(Fault::DoneAndStall(Duration::from_secs(120)));
        kill_when(&client, &file, "an upload begins", || store.open_uploads() == 1);
        store.script(move |request| match request.method == "GET" && request.query.contains("uploads=") {
            true => Fault::Answer(status, "", body),
            false => Fault::None,
        });
        let said = next_run(&client);
        let warnings = said.lines().filter(|line| line.contains(" warning: ") && line.contains("large"));
        assert_eq!(warnings.count(), 1, "{status} {body}: {said}");
        assert!(!next_run(&client).contains("warning: "), "{status} {body}: it is said once");
        assert_eq!((store.open_uploads(), journals(&client).as_str()), (1, ""), "{status} {body}");
    }
}

/// Each upload writes several lines to it.
#[test]
fn a_journal_that_cannot_be_written_is_told_once() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let state = client.home.path().join(".local/state/fullbore");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("put"), "no directory").unwrap();
    let tree = client.file("tree/one", &content(17 << 20, 1));
    client.file("tree/two", &content(17 << 20, 2));
    let done = client.run(["put", tree.parent().unwrap().to_str().unwrap(), "s3://bucket/large/"]);
    assert_eq!((done.code, store.uploads_begun()), (0, 2), "{}", done.stderr);
    assert_eq!(done.stderr.matches("no journal").count(), 1, "{}", done.stderr);
}
