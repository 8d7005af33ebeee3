//! Aliases of suites in a bucket: `dists/stable` has copies of what `dists/trixie` has.

use std::fs;

use super::*;

/// Paths below a directory → hashes.
fn below(data: &Path, directory: &str) -> BTreeMap<String, String> {
    let prefix = format!("{directory}/");
    let of = contents(data).into_iter();
    of.filter_map(|(path, hash)| Some((path.strip_prefix(&prefix)?.to_owned(), hash))).collect()
}

#[test]
fn an_alias_has_what_its_suite_has_after_each_run() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    for state in [0, 1] {
        bucket.run(&served(state), &["--keep-generations", "0", "--keep-hours", "0"]).exits(0);
        let (alias, suite) = (below(&data(&store), "dists/stable"), below(&data(&store), "dists/trixie"));
        assert!(suite.len() > 5 && alias == suite, "{state}: {alias:?} and {suite:?}");
    }
    bucket.run(&served(1), &["--changed-exit"]).exits(10);
    // By either name it is the same mirror.
    let mut other = Bucket::at(&store.url);
    other.mirror = Mirror::new(common()).suite("stable");
    other.mirror.to = PathBuf::from(TO);
    other.run(&served(1), &["--changed-exit"]).exits(10);
}

#[test]
fn a_changed_alias_is_noticed_and_restored() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    fs::remove_file(data(&store).join("dists/stable/InRelease")).unwrap();
    bucket.check(&[]).exits(4).says("dists/stable: no symbolic link to trixie");
    let run = bucket.run(&served(0), &[]).exits(0);
    assert!(run.stderr.contains("the published dists/stable was changed; it is restored"), "{}", run.stderr);
    assert_eq!(contents(&data(&store)), *reference(0));
    // Another file than the signed ones is missed by those who look at all names.
    let index = data(&store).join("dists/stable/main/binary-amd64/Packages.xz");
    fs::remove_file(&index).unwrap();
    bucket.check(&["--repair"]).exits(0);
    assert!(index.exists());
    bucket.check(&[]).exits(0);
}

#[test]
fn without_aliases_there_are_none_and_old_ones_go() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &["--aliases", "none"]).exits(0);
    assert!(below(&data(&store), "dists/stable").is_empty() && !below(&data(&store), "dists/trixie").is_empty());
    bucket.check(&[]).exits(0);
    bucket.run(&served(1), &[]).exits(0);
    assert!(!below(&data(&store), "dists/stable").is_empty());
    let other = Bucket::at(&store.url);
    fs::remove_dir_all(data(&store)).unwrap();
    other.run(&served(0), &[]).exits(0);
    other.run(&served(1), &["--aliases", "none"]).exits(0);
    assert!(!data(&store).join("dists/stable/InRelease").exists());
    verified(&data(&store), common(), 1);
}

/// The state is what says that a directory is an alias; without it, its marker does.
#[test]
fn an_alias_is_known_without_the_state() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    fs::remove_dir_all(data(&store).join(".fullbore")).unwrap();
    bucket.check(&[]).exits(0);
    bucket.run(&served(0), &[]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    bucket.run(&served(1), &[]).exits(0);
    assert_eq!(below(&data(&store), "dists/stable"), below(&data(&store), "dists/trixie"));
}
