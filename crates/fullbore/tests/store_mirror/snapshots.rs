//! Snapshots in a bucket: suites below `dists/snapshots/NAME/`, whose packages stay in the pool.

use harness::own_archive;

use super::*;

const AT_ONCE: [&str; 4] = ["--keep-generations", "0", "--keep-hours", "0"];

fn snapshot(data: &Path, name: &str) -> BTreeMap<String, String> {
    let prefix = format!("dists/snapshots/{name}/trixie/");
    contents(data).into_iter().filter_map(|(path, hash)| Some((path.strip_prefix(&prefix)?.to_owned(), hash))).collect()
}

fn suite(state: usize) -> BTreeMap<String, String> {
    let of = reference(state).iter();
    of.filter_map(|(path, hash)| Some((path.strip_prefix("dists/trixie/")?.to_owned(), hash.clone()))).collect()
}

#[test]
fn a_snapshot_stays_with_all_its_packages_until_it_is_removed() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    let with = |name: &'static str| [&AT_ONCE[..], &["--snapshot", name]].concat();
    bucket.run(&served(0), &with("first")).exits(0);
    assert_eq!(snapshot(&data(&store), "first"), suite(0));
    bucket.run(&served(0), &with("first")).exits(1).says("already exists");
    // One of a run that finds nothing new, too.
    bucket.run(&served(0), &[&with("again")[..], &["--changed-exit"]].concat()).exits(10);
    assert_eq!(snapshot(&data(&store), "again"), suite(0));
    bucket.run(&served(1), &AT_ONCE).exits(0);
    let here = contents(&data(&store));
    for (path, hash) in reference(0).iter().filter(|(path, _)| path.starts_with("pool/")) {
        assert_eq!(here.get(path), Some(hash), "{path}, which a snapshot names");
    }
    assert_eq!(snapshot(&data(&store), "first"), suite(0));
    verified(&data(&store), common(), 1);
    bucket.check(&[]).exits(0);
    // A snapshot costs later runs nothing.
    bucket.run(&served(1), &[&AT_ONCE[..], &["--changed-exit"]].concat()).exits(10);
    // Without them, the next publication deletes what nobody names any more.
    fs::remove_dir_all(data(&store).join("dists/snapshots")).unwrap();
    let formats = ["--index-formats", "xz"];
    let cleaned = bucket.run(&served(1), &[&AT_ONCE[..], &formats].concat()).exits(0);
    assert!(cleaned.number("totals.deleted_files") > 0, "{cleaned:?}");
    let old = reference(0).keys().filter(|path| path.starts_with("pool/") && !reference(1).contains_key(*path));
    let here = contents(&data(&store));
    assert!(old.clone().count() > 0 && old.clone().all(|path| !here.contains_key(path)));
}

/// A snapshot that a killed run began is no snapshot, and is completed.
#[test]
fn an_unfinished_snapshot_is_completed() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let proxy = Proxy::start(&store.url, |_, line| {
        let is_last = line.starts_with("PUT ") && line.contains("dists/snapshots/s/trixie/InRelease");
        if is_last { Action::Answer(403) } else { Action::now() }
    });
    Bucket::at(&proxy.url).run(&served(0), &["--snapshot", "s"]).exits(1).says("403");
    assert!(!data(&store).join("dists/snapshots/s/trixie/InRelease").exists());
    Bucket::at(&store.url).run(&served(0), &["--snapshot", "s"]).exits(0);
    assert_eq!(snapshot(&data(&store), "s"), suite(0));
}

/// A complete snapshot stays one: its name is not free again, and what it names is kept.
#[test]
fn a_snapshot_is_complete_after_foreign_files_were_cleaned() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[&AT_ONCE[..], &["--snapshot", "s"]].concat()).exits(0);
    let client = servers::Client::new(&store.url);
    let put = client.run(["put", client.file("junk", b"x").to_str().unwrap(), &format!("{TO}/dists/snapshots/junk")]);
    assert_eq!(put.code, 0, "{}", put.stderr);
    bucket.run(&served(1), &[&AT_ONCE[..], &["--clean-foreign", "--force-delete"]].concat()).exits(0);
    assert!(!data(&store).join("dists/snapshots/junk").exists());
    assert!(data(&store).join("dists/snapshots/s/.fullbore-snapshot").exists());
    assert_eq!(snapshot(&data(&store), "s"), suite(0));
    bucket.run(&served(1), &["--snapshot", "s"]).exits(1).says("already exists");
}

/// A snapshot was selected and believed as the mirror was when it was made.
#[test]
fn a_snapshot_of_chosen_packages_is_checked_by_what_was_chosen() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    let chosen = ["--exclude", "^pool/main/[a-k]", "--snapshot", "s"];
    bucket.run(&served(0), &chosen).exits(0);
    bucket.check(&[]).exits(0).prints("all as signed.");
    let mut own = Mirror::new(common());
    own.run_with(&[&served(0)], &chosen).exits(0);
    own.to = own.to.join("snapshots/s");
    own.check(&[]).exits(0).prints("all as signed.");
    // What was chosen is missed: by then the mirror names it no more.
    bucket.run(&served(1), &[&AT_ONCE[..], &chosen[..2], &["--force-delete"]].concat()).exits(0);
    let only_here: Vec<String> = contents(&data(&store))
        .into_keys()
        .filter(|path| path.starts_with("pool/") && !reference(1).contains_key(path))
        .collect();
    for path in [only_here[0].clone(), "dists/snapshots/s/trixie/main/binary-amd64/Packages.xz".to_owned()] {
        let file = data(&store).join(&path);
        let content = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        bucket.check(&[]).exits(4).says(&path);
        // The origin has an older index no more by its name, but by its hash.
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let client = servers::Client::new(&store.url);
        let put = client.run(["put", client.file("it", &content).to_str().unwrap(), &format!("{TO}/{path}")]);
        assert_eq!(put.code, 0, "{}", put.stderr);
        bucket.check(&[]).exits(0);
    }
}

#[test]
fn a_snapshot_that_was_believed_without_a_signature_is_checked_without() {
    let store = versitygw();
    let keyring = common().key();
    let (_directory, unsigned) = own_archive(|builder| builder);
    for name in ["InRelease", "Release.gpg"] {
        fs::remove_file(unsigned.state(0).root.join("dists/trixie").join(name)).unwrap();
    }
    let server = Server::start(&unsigned.state(0).root).unwrap();
    let sources = unsigned.state(0).root.join("trusted.sources");
    let text = format!("Types: deb\nURIs: {}\nSuites: trixie\nComponents: main\nTrusted: yes\n", server.url());
    fs::write(&sources, text).unwrap();
    let flags = ["--sources", sources.to_str().unwrap(), "--snapshot", "s"];
    let keyring = ["--keyring", keyring.to_str().unwrap()];
    let mut bucket = Bucket::at(&store.url);
    bucket.mirror = Mirror::new(common()).no_keyring().suite("");
    bucket.mirror.to = PathBuf::from(TO);
    let mut command = bucket.mirror.command(&[], &flags);
    command.args(["--endpoint", &bucket.endpoint]).envs(bucket.keys.iter().copied());
    bucket.mirror.finish(command).exits(0);
    bucket.check(&keyring).exits(0).says("snapshots/s/trixie").says("mirrored without a signature");
    // The same of a directory.
    let mut own = Mirror::new(common()).no_keyring().suite("");
    own.run_with(&[], &flags).exits(0);
    own.to = own.to.join("snapshots/s");
    own.check(&keyring).exits(0).says("mirrored without a signature");
}

/// A full snapshot is a mirror: it needs nothing of the pool.
#[test]
fn a_full_snapshot_is_a_mirror_of_its_own() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[&AT_ONCE[..], &["--snapshot", "s", "--snapshot-full"]].concat()).exits(0);
    let of_snapshot = data(&store).join("snapshots/s");
    assert_eq!(contents(&of_snapshot), published(0));
    bucket.run(&served(0), &["--snapshot", "s", "--snapshot-full"]).exits(1).says("already exists");
    bucket.run(&served(1), &[&AT_ONCE[..], &["--force-delete"]].concat()).exits(0);
    verified(&data(&store), common(), 1);
    assert!(reference(0).keys().any(|path| path.starts_with("pool/") && !data(&store).join(path).exists()));
    assert_eq!(contents(&of_snapshot), published(0));
    let mut own = Bucket::at(&store.url);
    own.mirror.to = PathBuf::from(format!("{TO}/snapshots/s"));
    own.check(&["--checksums"]).exits(0).prints("all as signed.");
    fs::remove_file(of_snapshot.join("dists/trixie/main/binary-amd64/Packages.xz")).unwrap();
    own.check(&[]).exits(4).says("dists/trixie/main/binary-amd64/Packages.xz");
    own.check(&["--repair"]).exits(0);
    assert_eq!(contents(&of_snapshot), published(0));
    Mirror::new(common())
        .run_with(&[&served(0)], &["--snapshot", "s", "--snapshot-full"])
        .exits(1)
        .says("--snapshot-full");
}

/// What a mirror in a directory has of a state, without the trace files.
fn published(state: usize) -> BTreeMap<String, String> {
    let of = reference(state).iter().filter(|(path, _)| path.starts_with("pool/") || path.starts_with("dists/"));
    of.map(|(path, hash)| (path.clone(), hash.clone())).collect()
}

/// A killed run leaves no snapshot, and the next one completes it.
#[test]
fn an_unfinished_full_snapshot_is_completed() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let flags = ["--snapshot", "s", "--snapshot-full"];
    for last in ["snapshots/s/dists/trixie/InRelease", "snapshots/s/.fullbore/state"] {
        let proxy = Proxy::start(&store.url, move |_, line| {
            if line.starts_with("PUT ") && line.contains(last) { Action::Answer(403) } else { Action::now() }
        });
        Bucket::at(&proxy.url).run(&served(0), &flags).exits(1).says("403");
    }
    Bucket::at(&store.url).run(&served(0), &flags).exits(0);
    assert_eq!(contents(&data(&store).join("snapshots/s")), published(0));
}

#[test]
fn flat_repositories_are_in_snapshots() {
    let store = versitygw();
    let (_directory, archive) = own_archive(|builder| builder.states(2).flat(true));
    let server = Server::start(archive.state(0).root.join("flat")).unwrap();
    let mut bucket = Bucket::at(&store.url);
    bucket.mirror = Mirror::new(&archive).suite("./");
    bucket.mirror.to = PathBuf::from(TO);
    bucket.run(&server, &[&AT_ONCE[..], &["--snapshot", "s"]].concat()).exits(0);
    bucket.run(&server, &[&AT_ONCE[..], &["--snapshot", "f", "--snapshot-full"]].concat()).exits(0);
    let of = |directory: &str| names_below(&data(&store).join(directory));
    let names = of("dists/snapshots/s/flat");
    assert!(names.contains("InRelease") && names.contains("Packages.xz"), "{names:?}");
    assert!(names.iter().all(|name| !name.ends_with(".deb")), "{names:?}");
    let debs = |state: usize| -> Vec<String> {
        let files = archive.state(state).select(|file| file.suite == "flat");
        files.keys().map(|path| path.trim_start_matches("flat/").to_owned()).collect()
    };
    assert!(debs(0).iter().all(|name| of("snapshots/f").contains(name)));
    // What the snapshot names stays.
    server.switch_root(archive.state(1).root.join("flat"));
    bucket.run(&server, &[&AT_ONCE[..], &["--force-delete"]].concat()).exits(0);
    let here = of("");
    let gone: Vec<String> = debs(0).into_iter().filter(|name| !here.contains(name)).collect();
    assert!(gone.is_empty() && debs(0) != debs(1), "{gone:?}");
    bucket.check(&[]).exits(0).prints("all as signed.");
}

/// The names of all files below a directory.
fn names_below(directory: &Path) -> std::collections::BTreeSet<String> {
    let mut names = std::collections::BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => left.push(path),
                false => drop(names.insert(path.strip_prefix(directory).unwrap().display().to_string())),
            }
        }
    }
    names
}
