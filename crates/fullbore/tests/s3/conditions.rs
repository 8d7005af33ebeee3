//! Objects that are put on the condition that they are new, at stores that keep to it and at others.

use std::time::Duration;

use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_s3::objects::Condition;
use fullbore_s3::{Feature, PutOutcome};

use super::faults::{put, uploader, well, with_files};
use super::servers::content;
use super::store::{Fault, Request, Store};

#[test]
fn few_objects_are_asked_for_and_put_if_they_are_new() {
    let (store, client, tree) = with_files(2, well());
    assert_eq!(put(&client, &tree, &[]).code, 0);
    let methods = |store: &Store| {
        let mut methods: Vec<_> = store.requests().into_iter().map(|request| request.method).collect();
        methods.sort();
        methods
    };
    assert_eq!(methods(&store), ["HEAD", "HEAD", "PUT", "PUT"]);
    let again = put(&client, &tree, &[]);
    assert_eq!(again.summary()["store"]["present"], 2, "{}", again.stdout);
    assert_eq!(methods(&store), ["HEAD", "HEAD"], "nothing is sent in vain");
    client.file("tree/1", &content(300, 77));
    let changed = put(&client, &tree, &[]);
    assert_eq!(
        (changed.summary()["store"]["files"].as_u64(), changed.summary()["store"]["present"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(store.object("t/1").unwrap().content, content(300, 77));
}

/// A store that may not be listed, and what else goes wrong.
fn unlisted(mut script: impl FnMut(&Request) -> Fault + Send + 'static) -> impl FnMut(&Request) -> Fault + Send {
    move |request| match request.query.contains("list-type") {
        true => Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>"),
        false => script(request),
    }
}

#[test]
fn conditions_are_relied_on_when_the_store_has_refused_by_one() {
    let one_at_a_time = ["--connections", "1"];
    let (store, client, tree) = with_files(200, unlisted(well()));
    let first = put(&client, &tree, &one_at_a_time);
    assert_eq!((first.code, first.summary()["store"]["files"].as_u64()), (0, Some(200)), "{}", first.stderr);
    let requests = store.requests();
    let conditional = requests.iter().filter(|request| request.field("if-none-match") == "*").count();
    let asked = requests.iter().filter(|request| request.method == "HEAD").count();
    // Files that were read before the refusal came are asked for.
    assert!(conditional > 1 && asked < 200, "{conditional} put on condition, {asked} asked for");
    // One that ignores them: nothing is put that is there, again and again.
    store.script(unlisted(|_| Fault::Unconditional));
    let again = put(&client, &tree, &one_at_a_time);
    assert_eq!(again.summary()["store"]["present"], 200, "{}", again.stdout);
    assert!(store.requests().iter().all(|request| !request.is_put()));
    client.file("tree/1", &content(300, 77));
    assert_eq!(put(&client, &tree, &one_at_a_time).summary()["store"]["files"], 1);
    let sent: Vec<_> = store.requests().into_iter().filter(Request::is_put).collect();
    let conditional = sent.iter().filter(|request| request.field("if-none-match") == "*").count();
    assert_eq!((sent.len(), conditional), (2, 1), "it is asked once whether it keeps to conditions");
    // One that does not know them.
    store.script(unlisted(|request| match request.field("if-none-match") {
        "" => Fault::None,
        _ => Fault::Answer(501, "", "<Error><Code>NotImplemented</Code></Error>"),
    }));
    client.file("tree/1", &content(300, 78));
    assert_eq!(put(&client, &tree, &one_at_a_time).code, 0);
    assert_eq!(store.object("t/1").unwrap().content, content(300, 78));
}

#[test]
fn conflicts_are_waited_for_and_other_refusals_keep_the_condition() {
    let refusals = [
        (409, "<Error><Code>ConditionalRequestConflict</Code></Error>"),
        (409, "<Error><Code>OperationAborted</Code></Error>"),
        (400, "<Error><Code>IncompleteBody</Code></Error>"),
    ];
    let mut refused = refusals.into_iter();
    let store = Store::start(move |_| match refused.next() {
        Some((status, body)) => Fault::Answer(status, "", body),
        None => Fault::None,
    });
    let (uploader, _stop) = uploader(&store, Duration::from_secs(300));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let put = || {
        let content = Bytes::from_static(b"x");
        runtime.block_on(uploader.put_whole("object", Vec::new(), content, Sha256::of(b"x"), &Condition::Absent))
    };
    // The refusal of another kind is an error, or the request is sent again; it is never sent without its condition.
    let _ = put();
    let _ = put();
    assert!(store.requests().iter().all(|request| request.field("if-none-match") == "*"));
    assert_eq!(store.object("object").unwrap().content, b"x");
}

#[test]
fn what_was_put_on_condition_and_not_answered_is_stored() {
    // The answer to the object's first copy is lost; the second one is refused, because the first is there.
    let mut lost = false;
    let store =
        Store::start(move |request| match request.is_put() && !std::mem::replace(&mut lost, request.is_put()) {
            true => Fault::ResetAfter,
            false => Fault::None,
        });
    let (uploader, _stop) = uploader(&store, Duration::from_secs(300));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let put = |condition| {
        let content = Bytes::from_static(b"x");
        runtime.block_on(uploader.put_whole("object", Vec::new(), content, Sha256::of(b"x"), &condition)).unwrap()
    };
    assert_eq!(put(Condition::Absent), PutOutcome::Exists { resent: true });
    assert!(uploader.client.dialect().honours(Feature::PutIfAbsent));
    assert_eq!(put(Condition::Absent), PutOutcome::Exists { resent: false });
    assert!(matches!(put(Condition::None), PutOutcome::Stored(_)));
    // The program tells of it as stored: it is what was sent.
    let mut puts = 0;
    let (store, client, tree) = with_files(
        200,
        unlisted(move |request| {
            puts += usize::from(request.field("if-none-match") == "*");
            match request.field("if-none-match") == "*" && puts % 16 == 2 {
                true => Fault::ResetAfter,
                false => Fault::None,
            }
        }),
    );
    let done = self::put(&client, &tree, &["--connections", "1"]);
    assert_eq!((done.code, done.summary()["store"]["files"].as_u64()), (0, Some(200)), "{}", done.stderr);
    assert_eq!(store.keys().len(), 200);
}
