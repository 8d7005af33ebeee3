//! A run that lost its lock: nothing that it still sends undoes what another run has published since.

use fullbore_testkit::archive::ArchiveBuilder;
use harness::signer;

use super::*;

/// Puts content at a path of the mirror, as another program would.
fn put(store: &servers::Server, path: &str, content: &[u8]) {
    let client = servers::Client::new(&store.url);
    let put = client.run(["put", client.file("it", content).to_str().unwrap(), &format!("{TO}/{path}")]);
    assert_eq!(put.code, 0, "{}", put.stderr);
}

/// By the store's clock the lock is over.
fn end_the_lock(store: &servers::Server) {
    let lock = data(store).join(".fullbore/lock");
    let done = Command::new("touch").args(["-d", "10 minutes ago"]).arg(&lock).status().unwrap();
    assert!(done.success());
}

/// Files of the pool that only state 1 has.
fn new_in_1() -> Vec<&'static String> {
    reference(1).keys().filter(|path| path.starts_with("pool/") && !reference(0).contains_key(*path)).collect()
}

#[test]
fn a_late_upload_replaces_no_file_of_the_pool() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let late = new_in_1()[0].clone();
    let (reached, is_reached) = std::sync::mpsc::channel();
    let line = format!("PUT /bucket/debian/{} ", late.replace('+', "%2B").replace('~', "%7E"));
    let mut once = Some(reached);
    let proxy = Proxy::start(&store.url, move |_, request| {
        if request.starts_with(&line)
            && let Some(reached) = once.take()
        {
            reached.send(()).unwrap();
            return Action::Pass(Duration::from_secs(5));
        }
        Action::now()
    });
    let frozen = Bucket::at(&proxy.url);
    let server = served(1);
    let mut child = frozen.command(&server, &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    is_reached.recv_timeout(Duration::from_secs(60)).unwrap();
    // A later state of the archive, which another run has published meanwhile, has other content under this path.
    put(&store, &late, b"of a later state");
    assert_eq!(child.wait().unwrap().code(), Some(6));
    assert_eq!(fs::read(data(&store).join(&late)).unwrap(), b"of a later state");
    assert_eq!(visible(&data(&store)), Some(0));
    // This time the object is known, and the right content replaces it when the indexes do.
    Bucket::at(&store.url).run(&served(1), &[]).exits(0);
    verified(&data(&store), common(), 1);
}

/// A connection breaks, and the store still has the first copy of the request in hand: no other run is there.
#[test]
fn a_conflict_with_nobody_was_another_run() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let late = new_in_1()[0].clone();
    let line = format!("PUT /bucket/debian/{} ", late.replace('+', "%2B").replace('~', "%7E"));
    let mut refused = 0;
    let proxy = Proxy::start(&store.url, move |_, request| {
        refused += usize::from(request.starts_with(&line));
        // Six times: longer than one landing waits, so that it looks for the object, too.
        match request.starts_with(&line) && refused <= 6 {
            true => Action::Refuse(409, "ConditionalRequestConflict"),
            false => Action::now(),
        }
    });
    Bucket::at(&proxy.url).run(&served(1), &[]).exits(0);
    verified(&data(&store), common(), 1);
}

/// Two runs that fetch the same file disagree about nothing.
#[test]
fn a_file_that_another_run_has_put_meanwhile_is_taken_over() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let directory = Mirror::new(common());
    directory.run(&[&served(1)]).exits(0);
    let (url, from) = (store.url.clone(), directory.to.clone());
    let mut others = Some(new_in_1());
    let proxy = Proxy::start(&store.url, move |_, request| {
        if request.starts_with("PUT /bucket/debian/pool/")
            && let Some(others) = others.take()
        {
            let client = servers::Client::new(&url);
            for path in others {
                let put = client.run(["put", from.join(path).to_str().unwrap(), &format!("{TO}/{path}")]);
                assert_eq!(put.code, 0, "{}", put.stderr);
            }
        }
        Action::now()
    });
    Bucket::at(&proxy.url).run(&served(1), &[]).exits(0);
    verified(&data(&store), common(), 1);
}

/// S9: a run is frozen while it gives names, another publishes a later state, the first goes on.
#[test]
fn names_that_a_frozen_run_gave_late_are_mended() {
    let made = tempfile::tempdir().unwrap();
    let builder = ArchiveBuilder::tiny(made.path().join("archive")).signer(signer()).states(3).churn(0.3);
    let archive = builder.build().unwrap();
    let served = |state: usize| Server::start(&archive.state(state).root).unwrap();
    let at = |url: &str| {
        let mut bucket = Bucket::at(url);
        bucket.mirror = Mirror::new(&archive);
        bucket.mirror.to = PathBuf::from(TO);
        bucket
    };
    let store = versitygw();
    at(&store.url).run(&served(0), &[]).exits(0);
    let index = "dists/trixie/main/binary-amd64/Packages.xz";
    let old = fs::read(data(&store).join(index)).unwrap();
    let (reached, is_reached) = std::sync::mpsc::channel();
    let mut once = Some(reached);
    let proxy = Proxy::start(&store.url, move |_, line| {
        if line.starts_with("PUT ")
            && line.contains(index)
            && let Some(reached) = once.take()
        {
            reached.send(()).unwrap();
            return Action::Pass(Duration::from_secs(20));
        }
        Action::now()
    });
    let first = at(&proxy.url);
    let server = served(1);
    let mut child = first.command(&server, &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    is_reached.recv_timeout(Duration::from_secs(60)).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    end_the_lock(&store);
    at(&store.url).run(&served(2), &[]).exits(0);
    let published = contents(&data(&store));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6));
    assert_eq!(contents(&data(&store)), published, "InRelease and names of the second stay");
    // What cannot have a condition may come late all the same, and is put right by the next run.
    for suite in ["trixie", "stable"] {
        put(&store, &format!("dists/{suite}/main/binary-amd64/Packages.xz"), &old);
    }
    assert_ne!(contents(&data(&store)), published);
    let state = || fs::read_to_string(data(&store).join(".fullbore/state")).unwrap();
    assert!(state().contains("mend_until"));
    at(&store.url).run(&served(2), &[]).exits(0);
    assert_eq!(contents(&data(&store)), published);
    verified(&data(&store), &archive, 2);
    // Once more, after the time in which that may happen: this run is the last to look.
    put(&store, index, &old);
    put(&store, ".fullbore/state", &with_past_time(&state()));
    at(&store.url).run(&served(2), &[]).exits(0);
    assert_eq!(contents(&data(&store)), published);
    assert!(!state().contains("mend_until"));
    at(&store.url).run(&served(2), &["--changed-exit"]).exits(10);
}

/// A killed run leaves names that the state does not have; of equal length, they look like those of the state.
#[test]
fn names_of_a_killed_run_are_compared_by_content() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let index = "dists/trixie/main/binary-amd64/Packages.xz";
    let length = fs::metadata(data(&store).join(index)).unwrap().len() as usize;
    put(&store, index, &vec![b'x'; length]);
    put(&store, ".fullbore/unfinished", b"");
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
}

/// The state with the end of the time in which names are mended long past.
fn with_past_time(state: &str) -> Vec<u8> {
    let mut header: serde_json::Value = serde_json::from_str(state.split_once('\n').unwrap().1).unwrap();
    for suite in header["suites"].as_array_mut().unwrap() {
        assert!(suite["mend_until"].as_i64().unwrap() > 1_700_000_000, "{suite}");
        suite["mend_until"] = 1_700_000_000.into();
    }
    let header = header.to_string();
    let digest = fullbore_testkit::digest::Digest::of(header.as_bytes());
    format!("fullbore-state 1 {digest}\n{header}").into_bytes()
}
