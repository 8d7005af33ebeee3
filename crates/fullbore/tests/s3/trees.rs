//! Several objects of a bucket as a tree, and listings of buckets.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::faults::well;
use super::servers::{Client, Output, content, finish, moto, versitygw};
use super::store::{Fault, Object, Request, Store};

/// All files below a directory, links not followed: path and content.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                directories.push(path);
            } else if entry.file_type().unwrap().is_file() {
                let relative = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(relative, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn names(root: &Path) -> Vec<String> {
    files(root).into_keys().collect()
}

struct Got {
    output: Output,
    to: PathBuf,
}

/// `get` of these addresses into a directory.
fn get(client: &Client, addresses: &[&str], more: &[&str]) -> Got {
    let to = client.home.path().join("out");
    let mut arguments = vec!["get", "--json", "-o", to.to_str().unwrap()];
    arguments.extend(addresses);
    arguments.extend(more);
    Got { output: client.run(arguments), to }
}

impl Got {
    fn count(&self, what: &str) -> u64 {
        self.output.summary()["store"][what].as_u64().unwrap_or_default()
    }

    /// What is said of a path: problems of it.
    fn problems(&self) -> BTreeMap<String, Vec<String>> {
        let mut problems: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in self.output.events().iter().filter(|event| event["event"] == "problem") {
            let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            problems.entry(text("path")).or_default().push(text("message"));
        }
        problems
    }
}

fn gets(requests: &[Request]) -> Vec<&Request> {
    requests.iter().filter(|request| request.method == "GET" && request.query.is_empty()).collect()
}

#[test]
fn what_was_put_as_a_tree_comes_back_with_times() {
    for server in [versitygw(), moto()] {
        let client = Client::new(&server.url);
        let tree = super::tree(&client);
        client.file("tree/large", &content(20 << 20, 99));
        client.file("tree/deep/er/empty", b"");
        let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        for (number, name) in names(&tree).iter().enumerate() {
            let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + number as u64, 123_456_789);
            fs::File::options().write(true).open(tree.join(name)).unwrap().set_modified(then).unwrap();
        }
        assert_eq!(client.run(["put", tree.to_str().unwrap(), "s3://bucket/p"]).code, 0);
        let first = get(&client, &["s3://bucket/p/"], &[]);
        assert_eq!(first.output.code, 0, "{}", first.output.stderr);
        assert!(files(&first.to) == files(&tree), "{:?}", names(&first.to));
        for name in names(&tree) {
            assert_eq!(time(&first.to.join(&name)), time(&tree.join(&name)), "{name}");
        }
        let count = names(&tree).len() as u64;
        assert_eq!((first.count("files"), first.count("present")), (count, 0));
        let again = get(&client, &["s3://bucket/p/"], &[]);
        assert_eq!((again.output.code, again.count("files"), again.count("present")), (0, 0, count));
        // One that was changed under the same size is got again; its permissions stay, and what is not in the store.
        fs::write(first.to.join("plain"), content(0, 0)).unwrap();
        fs::write(first.to.join("large"), content(20 << 20, 98)).unwrap();
        fs::set_permissions(first.to.join("large"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(first.to.join("mine"), "mine").unwrap();
        let repaired = get(&client, &["s3://bucket/p/"], &[]);
        assert_eq!((repaired.output.code, repaired.count("files")), (0, 1), "{}", repaired.output.stderr);
        assert!(fs::read(first.to.join("large")).unwrap() == content(20 << 20, 99));
        assert_eq!(fs::metadata(first.to.join("large")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(first.to.join("mine")).unwrap(), "mine");
    }
}

#[test]
fn one_object_gets_its_time_too() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let file = client.file("file", b"content");
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    fs::File::options().write(true).open(&file).unwrap().set_modified(then).unwrap();
    assert_eq!(client.run(["put", file.to_str().unwrap(), "s3://bucket/file"]).code, 0);
    assert_eq!(store.object("file").unwrap().fields["x-amz-meta-mtime"], "1000000000.000000005");
    assert_eq!(client.get("s3://bucket/file"), b"content");
    assert_eq!(fs::metadata(client.home.path().join("got")).unwrap().modified().unwrap(), then);
    // Of what others have put, when it was put.
    store.put("other", b"x");
    client.get("s3://bucket/other");
    assert_eq!(fs::metadata(client.home.path().join("got")).unwrap().mtime(), 1_706_933_106);
}

#[test]
fn hostile_keys_reach_nothing_outside() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let long = "x".repeat(300);
    let left_out = [
        "../evil",
        "a/../../evil",
        "/etc/evil",
        "./dot",
        "d//e",
        "nul\0byte",
        "both",
        "full/",
        ".fullbore/state",
        "a/.fullbore/state",
        ".x.part",
        "link/evil",
        "link",
        "is-a-directory",
        "a-file/below",
        long.as_str(),
    ];
    for key in left_out {
        store.put(&format!("p/{key}"), b"hostile");
    }
    let fine = ["both/a", "both-b", "new\nline\u{1b}[2J", "-rf", "..a", "back\\slash", "~", "A", "a.x"];
    for key in fine {
        store.put(&format!("p/{key}"), b"fine");
    }
    store.put("p/", b"");
    store.put("p/empty/", b"");
    let home = client.home.path();
    fs::create_dir_all(home.join("outside")).unwrap();
    fs::create_dir_all(home.join("out/is-a-directory")).unwrap();
    fs::write(home.join("out/a-file"), "mine").unwrap();
    fs::write(home.join("outside/precious"), "precious").unwrap();
    symlink("../outside", home.join("out/link")).unwrap();
    let got = get(&client, &["s3://bucket/p/"], &[]);
    assert_eq!(got.output.code, 2, "{}", got.output.stderr);
    let problems = got.problems();
    for key in left_out {
        let shown: String = key.chars().take(200).collect();
        let told: Vec<_> = problems.iter().filter(|(path, _)| path.starts_with(&shown)).collect();
        assert!(told.iter().any(|(_, messages)| messages.len() == 1), "{key:?}: {problems:?}");
    }
    assert_eq!(problems.len(), left_out.len(), "{problems:?}");
    assert_eq!((got.count("files"), got.count("failed")), (fine.len() as u64, left_out.len() as u64));
    for key in fine {
        assert_eq!(fs::read_to_string(got.to.join(key)).unwrap(), "fine", "{key:?}");
    }
    assert!(got.to.join("empty").is_dir());
    assert_eq!(names(&home.join("outside")), ["precious"]);
    assert!(!home.join("evil").exists() && !Path::new("/etc/evil").exists() && !got.to.join(".fullbore").exists());
    assert_eq!(fs::read_to_string(got.to.join("a-file")).unwrap(), "mine");
    // On a screen each has one line, and nothing of it is a command to the terminal.
    let to = got.to.to_str().unwrap();
    let shown = client.run(["get", "-o", to, "s3://bucket/p/"]);
    assert!(shown.code == 2 && !shown.stderr.contains('\u{1b}'), "{}", shown.stderr);
    assert_eq!(
        shown.stderr.lines().filter(|line| line.contains("left out")).count(),
        left_out.len(),
        "{}",
        shown.stderr
    );
}

#[test]
fn a_store_that_lists_in_no_order_or_twice_loses_nothing() {
    const PAGE: &str = "<ListBucketResult><IsTruncated>false</IsTruncated>\
        <Contents><Key>p/a</Key><Size>1</Size></Contents>\
        <Contents><Key>p/z</Key><Size>1</Size></Contents><Contents><Key>p/a/b</Key><Size>1</Size></Contents>\
        <Contents><Key>p/z</Key><Size>1</Size></Contents></ListBucketResult>";
    let store = Store::start(|request| match request.query.contains("list-type") {
        true => Fault::Answer(200, "", PAGE),
        false => Fault::None,
    });
    for key in ["p/a", "p/a/b", "p/z"] {
        store.put(key, b"x");
    }
    let client = Client::new(&store.url);
    let got = get(&client, &["s3://bucket/p/"], &[]);
    assert_eq!(got.output.code, 2, "{}", got.output.stderr);
    let names = names(&got.to);
    assert!(names.contains(&"z".to_owned()), "{names:?}");
    // Either the file or the directory, and the other one is named.
    assert!(names.contains(&"a".to_owned()) ^ names.contains(&"a/b".to_owned()), "{names:?}");
    assert!(got.problems().keys().any(|path| path.starts_with('a')), "{}", got.output.stdout);
}

#[test]
fn several_addresses_are_got_also_from_stdin() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    for key in ["x/a", "x/b", "y/a", "y/c/d", "z"] {
        store.put(key, key.as_bytes());
    }
    let several = get(&client, &["s3://bucket/x/b", "s3://bucket/z", "s3://bucket/y/"], &[]);
    assert_eq!((several.output.code, names(&several.to)), (0, ["a", "b", "c/d", "z"].map(str::to_owned).to_vec()));
    assert_eq!(fs::read(several.to.join("a")).unwrap(), b"y/a");
    fs::remove_dir_all(&several.to).unwrap();
    // Two of one name: the first is written, the other one named.
    let twice = get(&client, &["s3://bucket/x/a", "s3://bucket/y/a", "s3://bucket/missing"], &[]);
    assert_eq!((twice.output.code, names(&twice.to)), (2, vec!["a".to_owned()]), "{}", twice.output.stderr);
    assert_eq!(fs::read(twice.to.join("a")).unwrap(), b"x/a");
    assert_eq!(twice.problems().keys().collect::<Vec<_>>(), ["a", "missing"]);
    fs::remove_dir_all(&twice.to).unwrap();
    let to = twice.to.to_str().unwrap().to_owned();
    let lines = "s3://bucket/x/b\n\n  s3://bucket/y/c/\r\ns3://other/q\nnonsense\ns3://bucket/gone\n";
    let read = client.run_with(["get", "--json", "-o", &to, "-"], lines.as_bytes());
    assert_eq!((read.code, names(&twice.to)), (2, vec!["b".to_owned(), "d".to_owned()]), "{}", read.stdout);
    let problems = read.events().iter().filter(|event| event["event"] == "problem").count();
    assert_eq!(problems, 3, "{}", read.stdout);
    for (arguments, said) in [
        (vec!["get", "s3://bucket/x/"], "-o DIR"),
        (vec!["get", "-o", &to, "s3://bucket/none/"], "no such object"),
        (vec!["get", "-o", &to, "s3://bucket/x"], "s3://bucket/x/"),
        (vec!["get", "-o", &to, "s3://bucket/x/*.gz"], "--include '*.gz'"),
        (vec!["get", "-o", &to, "s3://bucket/x/", "s3://elsewhere/y"], "one bucket at a time"),
        (vec!["get", "-o", "/dev/null", "s3://bucket/x/"], "is not a directory"),
    ] {
        let refused = client.run(arguments.iter().copied());
        assert!(
            refused.code == 1 && refused.stderr.contains(said),
            "{arguments:?}: {} {}",
            refused.code,
            refused.stderr
        );
    }
    // As `aws s3 cp --recursive`: a prefix that is a key as well is taken for the prefix.
    store.put("y", b"the key");
    fs::remove_dir_all(&twice.to).unwrap();
    let recursive = get(&client, &["s3://bucket/y"], &["--recursive"]);
    assert_eq!(names(&recursive.to), ["a", "c/d"], "{}", recursive.output.stderr);
    assert_eq!(client.get("s3://bucket/y"), b"the key");
}

#[test]
fn a_fatal_error_ends_a_get_whose_stdin_stays_open() {
    let store = Store::start(|_| Fault::Answer(403, "", "<Error><Code>InvalidAccessKeyId</Code></Error>"));
    let client = Client::new(&store.url);
    store.put("a", b"a");
    let to = client.home.path().join("out");
    let mut command = client.command(["get", "-o", to.to_str().unwrap(), "-"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"s3://bucket/a\n").unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("it waits for stdin: {}", finish(child).stderr);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(stdin);
    let output = finish(child);
    assert!(output.code == 1 && output.stderr.contains("InvalidAccessKeyId"), "{} {}", output.code, output.stderr);
}

#[test]
fn filters_are_those_of_copy() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let all = ["a.log", "a.txt", "cache/x", "cache/deep/y", "sub/b.log", "sub/c.txt"];
    all.iter().for_each(|name| drop(client.file(&format!("tree/{name}"), name.as_bytes())));
    let tree = client.home.path().join("tree").to_str().unwrap().to_owned();
    let list = client.file("list", b"sub/c.txt\ncache/\nnone\n").to_str().unwrap().to_owned();
    let put = |flags: &[&str]| {
        store.keys().iter().for_each(|key| store.remove(key));
        let mut arguments = vec!["put", &tree, "s3://bucket/p"];
        arguments.extend(flags);
        let done = client.run(arguments);
        let keys: Vec<String> = store.keys().iter().map(|key| key[2..].to_owned()).collect();
        (done.code, keys)
    };
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let cases: [(&[&str], i32, &[&str]); 5] = [
        (&["--exclude", "*.log"], 0, &["a.txt", "cache/deep/y", "cache/x", "sub/c.txt"]),
        (&["--exclude", "/cache/"], 0, &["a.log", "a.txt", "sub/b.log", "sub/c.txt"]),
        (&["--include", "*/", "--include", "*.txt", "--exclude", "*"], 0, &["a.txt", "sub/c.txt"]),
        (&["--files-from", &list], 2, &["cache/deep/y", "cache/x", "sub/c.txt"]),
        (&["--files-from", &list, "--exclude", "deep/"], 2, &["cache/x", "sub/c.txt"]),
    ];
    for (flags, code, expected) in cases {
        assert_eq!(put(flags), (code, owned(expected)), "put {flags:?}");
        store.keys().iter().for_each(|key| store.remove(key));
        all.iter().for_each(|name| store.put(&format!("p/{name}"), name.as_bytes()));
        let got = get(&client, &["s3://bucket/p/"], flags);
        assert_eq!((got.output.code, names(&got.to)), (code, owned(expected)), "get {flags:?}: {}", got.output.stderr);
        fs::remove_dir_all(&got.to).unwrap();
    }
    // Objects that the rules leave out are not deleted.
    all.iter().for_each(|name| store.put(&format!("p/{name}"), name.as_bytes()));
    store.put("p/old.txt", b"x");
    store.put("p/old.log", b"x");
    let done = client.run(["put", &tree, "s3://bucket/p", "--delete", "--exclude", "*.log", "--exclude", "cache/"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(store.keys().len(), all.len() + 1, "{:?}", store.keys());
    assert!(store.object("p/old.log").is_some() && store.object("p/old.txt").is_none());
}

/// Kills a get when a file of this size is being written, and gives the answers free again.
fn kill_get(client: &Client, store: &Store, arguments: &[&str], bytes: u64) {
    store.script(|request| {
        let from = request.field("range").strip_prefix("bytes=").and_then(|range| range.split('-').next());
        match from.and_then(|from| from.parse::<u64>().ok()).is_some_and(|from| from >= 12 << 20) {
            true => Fault::Stall(Duration::from_secs(3)),
            false => Fault::None,
        }
    });
    let mut child = client.command(arguments.iter().copied()).spawn().unwrap();
    let begun = Instant::now();
    let written = || {
        let all = fs::read_dir(client.home.path().join("out")).into_iter().flatten().flatten();
        all.filter_map(|entry| entry.metadata().ok()).map(|about| about.len()).max().unwrap_or(0)
    };
    while written() < bytes {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} bytes", written());
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    finish(child);
    store.script(well());
    store.requests();
}

#[test]
fn what_a_killed_get_left_is_taken_up() {
    let size = 24 << 20;
    for address in ["s3://bucket/p/", "s3://bucket/p/large"] {
        let store = Store::start(well());
        let client = Client::new(&store.url);
        fs::create_dir(client.home.path().join("out")).unwrap();
        let to = client.home.path().join("out/").to_str().unwrap().to_owned();
        let arguments = ["get", "-o", &to, address];
        let large = client.home.path().join("out/large");
        store.put("p/large", &content(size, 1));
        kill_get(&client, &store, &arguments, 8 << 20);
        assert!(!large.exists());
        let again = client.run(arguments);
        assert_eq!(again.code, 0, "{}", again.stderr);
        assert!(fs::read(&large).unwrap() == content(size, 1));
        let requests = store.requests();
        let begins = gets(&requests);
        assert!(begins.iter().all(|request| !request.field("range").starts_with("bytes=0-")), "{address}: {begins:?}");
        assert!(begins.iter().all(|request| !request.field("if-match").is_empty()));
        assert_eq!(fs::read_dir(large.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
        // One that was replaced meanwhile by another of this size.
        fs::remove_file(&large).unwrap();
        kill_get(&client, &store, &arguments, 8 << 20);
        store.put("p/large", &content(size, 2));
        assert_eq!(client.run(arguments).code, 0);
        assert!(fs::read(&large).unwrap() == content(size, 2));
        // And one without any checksum.
        let object = |seed| Object {
            content: content(size, seed),
            etag: Some(format!("version-{seed}")),
            checksum_fields: Some(String::new()),
            ..Object::default()
        };
        for replaced in [false, true] {
            fs::remove_file(&large).unwrap();
            store.put_object("p/large", object(3));
            kill_get(&client, &store, &arguments, 8 << 20);
            let last = if replaced { 4 } else { 3 };
            store.put_object("p/large", object(last));
            let again = client.run(arguments);
            assert!(again.code == 0 && again.stderr.contains("only its length"), "{}", again.stderr);
            assert!(fs::read(&large).unwrap() == content(size, last), "{address} {replaced}");
        }
        assert_eq!(fs::read_dir(large.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }
}

#[test]
fn an_interrupted_get_is_resumed() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    store.put("large", &content(24 << 20, 1));
    let tried = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&tried);
    store.script(move |request| match request.field("range").starts_with("bytes=0-") || request.method == "HEAD" {
        true => Fault::None,
        false => {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>")
        }
    });
    let path = client.home.path().join("file");
    let failed = client.run(["get", "-o", path.to_str().unwrap(), "s3://bucket/large"]);
    assert!(failed.code == 1 && failed.stderr.contains("to resume"), "{} {}", failed.code, failed.stderr);
    // A run that fails before it gets anything leaves what is there.
    store.script(|_| Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>"));
    let failed = client.run(["get", "-o", path.to_str().unwrap(), "s3://bucket/large"]);
    assert!(failed.code == 1 && failed.stderr.contains("to resume"), "{} {}", failed.code, failed.stderr);
    store.script(well());
    store.requests();
    assert_eq!(client.run(["get", "-o", path.to_str().unwrap(), "s3://bucket/large"]).code, 0);
    assert!(fs::read(&path).unwrap() == content(24 << 20, 1));
    let requests = store.requests();
    assert!(gets(&requests).iter().all(|request| !request.field("range").starts_with("bytes=0-")));
    let left = fs::read_dir(client.home.path()).unwrap().flatten();
    assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().ends_with(".part")));
}

#[test]
fn a_store_that_ignores_ranges_could_give_out_no_large_object() {
    let size = 30 << 20;
    for reset in [false, true] {
        let mut resets = 0;
        let store = Store::start(move |request| match request.method.as_str() {
            "GET" if reset && request.field("range").is_empty() && resets < 2 && request.query.is_empty() => {
                resets += 1;
                Fault::ResetBehind(resets * (9 << 20))
            }
            "GET" => Fault::NoRanges,
            _ => Fault::None,
        });
        let client = Client::new(&store.url);
        store.put("p/large", &content(size, 7));
        store.put("p/small", b"small");
        assert!(client.get("s3://bucket/p/large") == content(size, 7));
        let wholes = store.requests().iter().filter(|request| request.field("range").is_empty()).count();
        assert!(wholes < 10, "{wholes}");
        let got = get(&client, &["s3://bucket/p/"], &[]);
        assert_eq!((got.output.code, got.count("files")), (0, 2), "{}", got.output.stderr);
        assert!(fs::read(got.to.join("large")).unwrap() == content(size, 7));
        let piped = client.run(["get", "s3://bucket/p/small"]);
        assert_eq!(piped.stdout, "small");
    }
    // One that gives out something else than it says is found out.
    let store = Store::start(|request| if request.method == "GET" { Fault::NoRanges } else { Fault::None });
    let client = Client::new(&store.url);
    let wrong = Object { content: content(size, 1), checksum: super::store::checksum(b"other"), ..Object::default() };
    store.put_object("wrong", wrong);
    let path = client.home.path().join("file");
    let refused = client.run(["get", "-o", path.to_str().unwrap(), "s3://bucket/wrong"]);
    assert!(refused.code == 4 && !path.exists(), "{} {}", refused.code, refused.stderr);
}

#[test]
fn downloads_keep_to_a_rate() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    for number in 0..10 {
        store.put(&format!("p/{number}"), &content(300_000, number));
    }
    store.put("large", &content(3_000_000, 1));
    for address in ["s3://bucket/p/", "s3://bucket/large"] {
        let begun = Instant::now();
        let got = get(&client, &[address], &["--limit-rate", "1500K"]);
        assert_eq!(got.output.code, 0, "{}", got.output.stderr);
        let took = begun.elapsed().as_secs_f64();
        assert!((1.6..8.0).contains(&took), "{address}: {took} s for 3 MB at 1.5 MB/s");
        fs::remove_dir_all(&got.to).or_else(|_| fs::remove_file(&got.to)).unwrap();
    }
}

/// The entries that `ls` tells.
fn listed(client: &Client, arguments: &[&str]) -> Vec<String> {
    let mut all = vec!["ls", "--json"];
    all.extend(arguments);
    let output = client.run(all);
    assert_eq!(output.code, 0, "{arguments:?}: {}", output.stderr);
    let events = output.events();
    let entries = events.iter().filter(|event| event["event"] == "listed");
    let shown = |event: &serde_json::Value| {
        let slash = if event["kind"] == "directory" { "/" } else { "" };
        format!("{}{slash}", event["name"].as_str().unwrap())
    };
    entries.map(shown).collect()
}

#[test]
fn ls_lists_one_level_or_all() {
    for server in [Some(versitygw()), Some(moto()), None] {
        let store = Store::start(well());
        let client = Client::new(server.as_ref().map_or(&store.url, |server| &server.url));
        for name in ["a b/c", "a b/d/e", "dir/x", "dirt", "ü"] {
            client.file(&format!("tree/{name}"), b"12345");
        }
        let tree = client.home.path().join("tree").to_str().unwrap().to_owned();
        assert_eq!(client.run(["put", &tree, "s3://bucket/p"]).code, 0);
        assert_eq!(listed(&client, &["s3://bucket"]), ["p/"]);
        assert_eq!(listed(&client, &["s3://bucket/p/"]), ["a b/", "dir/", "dirt", "ü"]);
        assert_eq!(listed(&client, &["s3://bucket/p"]), ["a b/", "dir/", "dirt", "ü"], "there is no object p");
        assert_eq!(listed(&client, &["s3://bucket/p/dirt"]), ["dirt"]);
        assert_eq!(listed(&client, &["s3://bucket/p/dir"]), ["x"]);
        assert_eq!(listed(&client, &["--recursive", "s3://bucket/p"]), ["a b/c", "a b/d/e", "dir/x", "dirt", "ü"]);
        let sums = client.run(["ls", "--json", "--recursive", "s3://bucket/p"]).summary();
        assert_eq!((&sums["store"]["files"], &sums["store"]["bytes"]), (&5.into(), &25.into()), "{sums}");
        let lines = client.run(["ls", "s3://bucket/p/"]).stdout;
        assert!(lines.lines().count() == 4 && lines.lines().any(|line| line.contains('5') && line.ends_with("dirt")));
        let none = client.run(["ls", "s3://bucket/p/dire"]);
        assert!(none.code == 1 && none.stderr.contains("no such object"), "{} {}", none.code, none.stderr);
        let none = client.run(["ls", "s3://no-such-bucket/"]);
        assert!(none.code == 1 && none.stdout.is_empty() || server.is_none(), "{} {}", none.code, none.stderr);
    }
    // What a file system cannot have: an object beside others below its name.
    let store = Store::start(well());
    let client = Client::new(&store.url);
    for key in ["a", "a/b", "a/", "c/", "new\nline", "d//e"] {
        store.put(key, b"x");
    }
    assert_eq!(listed(&client, &["s3://bucket/a"]), ["a", "a/"]);
    assert_eq!(listed(&client, &["s3://bucket/a/"]), ["b"]);
    assert_eq!(listed(&client, &["s3://bucket"]), ["a", "a/", "c/", "d/", "new\nline"]);
    let mut child = client.command(["ls", "s3://bucket"]).spawn().unwrap();
    drop(child.stdout.take());
    let unread = finish(child);
    assert_eq!((unread.code, unread.stderr.as_str()), (0, ""));
    let shown = client.run(["ls", "s3://bucket"]).stdout;
    assert_eq!(shown.lines().count(), 5, "{shown:?}");
}

#[test]
fn content_without_a_length_that_was_cut_replaces_no_file() {
    // The whole of an object, or the beginning. The ETag is in the listing, or HEAD alone tells the length; it is no MD5.
    for (has_etag, bytes) in [(true, 1234), (false, 1234), (true, 0), (true, 5000), (false, 5000)] {
        let store = Store::start(move |request| match request.method.as_str() {
            "GET" if request.query.is_empty() => Fault::CutWithoutLength(bytes),
            _ => Fault::None,
        });
        store.has_only_md5();
        if has_etag {
            store.has_one_etag();
        }
        store.put("p/object", &content(5000, 1));
        let client = Client::new(&store.url);
        let old = client.home.path().join("out/object");
        fs::create_dir_all(old.parent().unwrap()).unwrap();
        fs::write(&old, b"old").unwrap();
        let got = get(&client, &["s3://bucket/p/"], &[]);
        let is_whole = bytes == 5000;
        assert_eq!(got.output.code, if is_whole { 0 } else { 3 }, "{has_etag}, {bytes}: {}", got.output.stderr);
        let expected = if is_whole { content(5000, 1) } else { b"old".to_vec() };
        assert_eq!(fs::read(&old).unwrap(), expected, "{has_etag}, {bytes}");
        if !is_whole {
            assert!(got.problems()["object"][0].contains("of an object of 5000 bytes"), "{:?}", got.problems());
        }
    }
}
