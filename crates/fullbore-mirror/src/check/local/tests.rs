//! A signed archive, checked whole and with faults put into it.

use std::fs;
use std::path::Path;

use fullbore_debian::keys::KeySource;
use fullbore_engine::stage::{Kind as StageKind, Ledger};
use fullbore_testkit::archive::{Archive, ArchiveBuilder};

use super::*;

struct Setup {
    directory: tempfile::TempDir,
    archive: Archive,
}

fn setup() -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let archive = ArchiveBuilder::tiny(directory.path().join("archive")).states(1).build().unwrap();
    Setup { directory, archive }
}

impl Setup {
    fn top(&self) -> &Path {
        &self.archive.state(0).root
    }

    fn check(&self, read_share: f64) -> Findings {
        let keys = vec![KeySource::File(self.archive.key())];
        let verifier = Verifier::new(self.directory.path(), keys);
        let root = Root::open(self.top()).unwrap();
        let options = Options {
            verifier: Some(&verifier),
            read_share,
            checksums: false,
            seed: 7,
            threads: 2,
            clock: &Ledger::off().stage("local scan", StageKind::Thread),
            stop: &AtomicBool::new(false),
            progress: &|_| {},
        };
        check(&root, &root, &State::default(), &options).unwrap()
    }

    fn flip(&self, path: &str) {
        let path = self.top().join(path);
        let mut content = fs::read(&path).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        fs::write(path, content).unwrap();
    }
}

/// All signatures are valid and all files as signed.
fn is_good(findings: &Findings) -> bool {
    findings.problems.is_empty() && findings.suites.iter().all(|suite| suite.release.is_ok())
}

#[test]
fn a_good_archive_is_good_and_each_fault_is_found() {
    let setup = setup();
    let findings = setup.check(1.0);
    assert!(is_good(&findings), "{:?} {:?}", findings.problems.first(), findings.suites);
    let pool: Vec<&str> = setup.archive.state(0).select(|_| true).into_keys().collect();
    assert!(findings.read.files as usize > pool.len());
    assert_eq!(findings.read.files, findings.wanted.files);

    let pool: Vec<&str> = pool.into_iter().filter(|path| path.starts_with("pool/")).collect();
    fs::remove_file(setup.top().join(pool[0])).unwrap();
    setup.flip(pool[1]);
    fs::write(setup.top().join(pool[2]), "short").unwrap();
    fs::write(setup.top().join("pool/extra"), "x").unwrap();
    let findings = setup.check(1.0);
    let faults: BTreeMap<&str, &Fault> =
        findings.problems.iter().map(|problem| (problem.path.as_str(), &problem.fault)).collect();
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert_eq!(faults[pool[0]], &Fault::Missing);
    assert!(matches!(faults[pool[1]], Fault::Content(_)));
    assert_eq!(faults[pool[2]], &Fault::Size(5));
    assert_eq!(findings.extra, [("pool/extra".to_owned(), 1)]);
}

#[test]
fn a_share_reads_less_and_still_looks_at_all_sizes() {
    let setup = setup();
    let pool: Vec<&str> = setup.archive.state(0).select(|_| true).into_keys().collect();
    let all = setup.check(1.0).read.files;
    let some = setup.check(0.3);
    assert!(is_good(&some) && some.read.files < all, "{} of {all}", some.read.files);
    for path in &pool {
        fs::write(setup.top().join(path), "short").unwrap();
    }
    assert_eq!(setup.check(0.0).problems.len(), pool.len());
}

#[test]
fn a_changed_inrelease_is_not_believed() {
    let setup = setup();
    let directory = setup.check(0.0).suites[0].directory.clone();
    setup.flip(&format!("{directory}/InRelease"));
    let findings = setup.check(0.0);
    assert!(!is_good(&findings));
    assert!(findings.suites.iter().any(|suite| suite.directory == directory && suite.release.is_err()));
}

#[test]
fn an_index_that_was_changed_is_found() {
    let setup = setup();
    let index = setup
        .archive
        .state(0)
        .indexes
        .iter()
        .find(|index| index.present && index.path.ends_with("Packages.xz"))
        .unwrap();
    let path = format!("dists/{}/{}", index.suite, index.path);
    setup.flip(&path);
    let findings = setup.check(0.0);
    assert!(findings.problems.iter().any(|problem| problem.path == path), "{:?}", findings.problems);
}

#[test]
fn a_share_is_a_share_of_the_files() {
    let chosen = (0..10_000).filter(|number| is_chosen(&format!("pool/{number}"), 1, 0.05)).count();
    assert!((400..600).contains(&chosen), "{chosen}");
    assert!(is_chosen("x", 1, 1.0) && !is_chosen("x", 1, 0.0));
}
