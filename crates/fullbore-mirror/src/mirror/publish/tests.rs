//! Publishing, stopped or failing at every step, as a client sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_engine::durability::Durability;
use fullbore_engine::target::faults::{Fault, FaultyTarget};
use fullbore_engine::target::{LocalTarget, Target as _};

use super::*;
use crate::mirror::filter::Candidate;
use crate::mirror::plan::PlanBuilder;
use crate::mirror::state::tests::suite;
use crate::mirror::store;
use crate::settings::Filters;

/// One state of a small archive with two suites: index path → content; the `InRelease`
/// of a suite lists hash, size and path of its indexes, one in a line, as Release does.
struct Archive {
    number: u32,
}

impl Archive {
    fn package(&self, suite: &str) -> String {
        format!("pool/{suite}_{}.deb", self.number)
    }

    fn indexes(&self, suite: &str) -> BTreeMap<String, String> {
        let mut indexes: BTreeMap<String, String> = ["gz", "xz"]
            .map(|form| {
                let content = format!("{form} of {suite} {}\n{}\n", self.number, self.package(suite));
                (format!("main/binary-amd64/Packages.{form}"), content)
            })
            .into();
        // One index that is the same in all states.
        indexes.insert("main/i18n/Translation-en.xz".to_owned(), "always the same".to_owned());
        indexes
    }

    fn inrelease(&self, suite: &str) -> String {
        let lines: Vec<String> = self
            .indexes(suite)
            .iter()
            .map(|(path, content)| format!("{} {} {path}", Sha256::of(content.as_bytes()), content.len()))
            .collect();
        format!("state {}\n{}\n", self.number, lines.join("\n"))
    }

    /// Puts all content where it waits: pool files under their names, the rest in the store.
    fn land(&self, root: &Root) -> Vec<Publication> {
        ["a", "b"].into_iter().enumerate().map(|(id, suite)| self.land_suite(root, id as SuiteId, suite)).collect()
    }

    fn land_suite(&self, root: &Root, id: SuiteId, suite: &str) -> Publication {
        root.write_part(&self.package(suite), b"package").unwrap().finish().unwrap();
        let stored = |path: &str, content: &str| StoredFile {
            path: path.to_owned(),
            size: content.len() as u64,
            sha256: store::put(root, content.as_bytes(), None).unwrap(),
            sha512: None,
        };
        let inrelease = self.inrelease(suite);
        Publication {
            id,
            layout: Layout {
                directory: format!("dists/{suite}"),
                links: vec![(format!("dists/{suite}-link"), suite.to_owned())],
            },
            by_hash: true,
            indexes: self.indexes(suite).iter().map(|(path, content)| stored(path, content)).collect(),
            left_out: Vec::new(),
            release_gpg: Some(stored("Release.gpg", &format!("signature {}", self.number))),
            release: Some(stored("Release", &inrelease)),
            inrelease: Some(stored("InRelease", &format!("signed {inrelease}"))),
        }
    }
}

/// What a client does: `InRelease`, each index by hash or by name, each package. Gives
/// back the number of the state it met.
fn client(root: &Root, suite: &str, inrelease: Option<&str>) -> Result<u32, String> {
    let read = |path: &str| {
        let content = root.read(path, 10_000).map_err(|error| error.to_string())?;
        Ok::<_, String>(content.map(|content| String::from_utf8(content).unwrap()))
    };
    let now = read(&format!("dists/{suite}/InRelease"))?.ok_or("no InRelease")?;
    let inrelease = inrelease.unwrap_or(&now);
    let mut lines = inrelease.lines();
    let state =
        lines.next().and_then(|line| line.rsplit(' ').next()).and_then(|word| word.parse().ok()).ok_or("no state")?;
    for line in lines {
        let [hash, _, path] = line.split(' ').collect::<Vec<_>>()[..] else { return Err(line.to_owned()) };
        let directory = path.rsplit_once('/').unwrap().0;
        let by_hash = read(&format!("dists/{suite}/{directory}/by-hash/SHA256/{hash}"))?;
        let content = match by_hash {
            Some(content) => content,
            None => read(&format!("dists/{suite}/{path}"))?.ok_or_else(|| format!("{path} is missing"))?,
        };
        if Sha256::of(content.as_bytes()).to_string() != hash {
            return Err(format!("{path}: hash mismatch"));
        }
        for package in content.lines().filter(|line| line.starts_with("pool/")) {
            read(package)?.ok_or_else(|| format!("{package} is missing"))?;
        }
    }
    Ok(state)
}

fn empty_plan() -> Plan {
    PlanBuilder::new(Filters::default()).finish().unwrap()
}

struct Tree {
    _directory: tempfile::TempDir,
    root: Arc<Root>,
}

/// A directory in which the first state is published.
fn tree() -> Tree {
    let directory = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::open(directory.path()).unwrap());
    let publications = Archive { number: 1 }.land(&root);
    let target = LocalTarget::new(root.clone(), Durability::None);
    target.publish(&names(&*root, &publications, &[], &empty_plan(), []).unwrap()).unwrap();
    Tree { _directory: directory, root }
}

#[test]
fn names_come_in_the_right_order() {
    let tree = tree();
    assert_eq!((client(&tree.root, "a", None), client(&tree.root, "a-link", None).is_err()), (Ok(1), true));
    assert_eq!(tree.root.read_link("dists/a-link").unwrap().as_deref(), Some("a"));
    let publications = Archive { number: 2 }.land(&tree.root);
    let list: Vec<String> = names(&*tree.root, &publications, &[], &empty_plan(), [])
        .unwrap()
        .into_iter()
        .map(|name| match name {
            Name::Link { to, .. } if to.contains("by-hash") => "by-hash".to_owned(),
            Name::Link { to, .. } => to,
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        list,
        [
            "by-hash",
            "by-hash",
            "by-hash",
            "by-hash",
            "dists/a/main/binary-amd64/Packages.gz",
            "dists/a/main/binary-amd64/Packages.xz",
            "dists/b/main/binary-amd64/Packages.gz",
            "dists/b/main/binary-amd64/Packages.xz",
            "dists/a/Release.gpg",
            "dists/a/Release",
            "dists/a/InRelease",
            "dists/b/Release.gpg",
            "dists/b/Release",
            "dists/b/InRelease",
        ],
        "and what is the same is left alone"
    );
}

#[test]
fn killed_at_any_step_the_old_or_the_new_state_is_served() {
    for step in 1.. {
        let tree = tree();
        let old = std::fs::read_to_string(tree.root.path().join("dists/a/InRelease")).unwrap();
        let publications = Archive { number: 2 }.land(&tree.root);
        let list = names(&*tree.root, &publications, &[], &empty_plan(), []).unwrap();
        let target =
            FaultyTarget::new(LocalTarget::new(tree.root.clone(), Durability::None), Fault::StopAt { n: step });
        let finished = target.publish(&list).is_ok() && !target.is_stopped();
        for suite in ["a", "b"] {
            let state = client(&tree.root, suite, None);
            assert!(matches!(state, Ok(1 | 2)), "step {step}, suite {suite}: {state:?}");
        }
        assert_eq!(client(&tree.root, "a", Some(&old)), Ok(1), "step {step}: a client in the midst of an update");
        // The next run goes on from there.
        let publications = Archive { number: 2 }.land(&tree.root);
        let list = names(&*tree.root, &publications, &[], &empty_plan(), []).unwrap();
        LocalTarget::new(tree.root.clone(), Durability::None).publish(&list).unwrap();
        assert_eq!((client(&tree.root, "a", None), client(&tree.root, "b", None)), (Ok(2), Ok(2)));
        if finished {
            assert!(step > 10, "the fault was never met");
            break;
        }
    }
}

#[test]
fn a_full_or_failing_disk_leaves_a_state_that_clients_can_use() {
    for errno in [rustix::io::Errno::NOSPC, rustix::io::Errno::IO, rustix::io::Errno::DQUOT] {
        for step in 1..=20 {
            let tree = tree();
            let publications = Archive { number: 2 }.land(&tree.root);
            let list = names(&*tree.root, &publications, &[], &empty_plan(), []).unwrap();
            let fault = Fault::ErrorFrom { n: step, errno: errno.raw_os_error() };
            let target = FaultyTarget::new(LocalTarget::new(tree.root.clone(), Durability::None), fault);
            let failed = target.publish(&list).is_err();
            for suite in ["a", "b"] {
                let state = client(&tree.root, suite, None);
                assert!(matches!(state, Ok(1 | 2)), "{errno} at step {step}, suite {suite}: {state:?}");
                assert!(failed || state == Ok(2));
            }
        }
    }
}

#[test]
fn content_that_is_not_all_there_publishes_nothing() {
    let tree = tree();
    let publications = Archive { number: 2 }.land(&tree.root);
    let list = names(&*tree.root, &publications, &[], &empty_plan(), []).unwrap();
    tree.root.unlink(&index_path(publications[1].indexes[0].sha256)).unwrap();
    assert!(LocalTarget::new(tree.root.clone(), Durability::None).publish(&list).is_err());
    assert_eq!((client(&tree.root, "a", None), client(&tree.root, "b", None)), (Ok(1), Ok(1)));
}

#[test]
fn old_names_that_would_contradict_the_release_go() {
    let tree = tree();
    let mut publications = Archive { number: 2 }.land(&tree.root);
    let publication = &mut publications[0];
    let left_out = publication.indexes.remove(1);
    assert_eq!(left_out.path, "main/binary-amd64/Packages.xz");
    publication.left_out.push(left_out);
    (publication.release_gpg, publication.release) = (None, None);
    let list = names(&*tree.root, &publications, &[], &empty_plan(), []).unwrap();
    let removed: Vec<_> = list
        .iter()
        .filter_map(|name| if let Name::Remove { path } = name { Some(path.as_str()) } else { None })
        .collect();
    assert_eq!(removed, ["dists/a/main/binary-amd64/Packages.xz", "dists/a/Release.gpg", "dists/a/Release"]);
}

#[test]
fn a_wrong_file_of_the_right_size_gives_up_its_by_hash_name() {
    let tree = tree();
    let publications = Archive { number: 1 }.land(&tree.root);
    let publish = |publications: &[Publication]| names(&*tree.root, publications, &[], &empty_plan(), []).unwrap();
    assert_eq!(publish(&publications), []);
    let index = &publications[0].indexes[0];
    let path = publications[0].by_hash_paths(index).remove(0);
    tree.root.write_part(&path, &vec![b'x'; index.size as usize]).unwrap().finish().unwrap();
    assert_eq!(publish(&publications), [Name::Link { from: index_path(index.sha256), to: path }]);
}

#[test]
fn a_link_that_a_suite_has_no_more_goes_on_release_day() {
    let tree = tree();
    let mut publications = Archive { number: 2 }.land(&tree.root);
    let record = |publication: &Publication| SuiteRecord {
        directory: publication.layout.directory.clone(),
        links: publication.layout.links.iter().map(|(link, _)| link.clone()).collect(),
        ..suite()
    };
    let mut before: Vec<SuiteRecord> = publications.iter().map(record).collect();
    let links = |publications: &[Publication], before: &[SuiteRecord]| -> Vec<Name> {
        let names = names(&*tree.root, publications, before, &empty_plan(), []).unwrap();
        let of_links = |name: &Name| match name {
            Name::Symlink { .. } => true,
            Name::Remove { path } => path.ends_with("-link"),
            Name::Link { .. } => false,
        };
        names.into_iter().filter(of_links).collect()
    };
    assert_eq!(links(&publications, &before), []);
    publications[0].layout.links.clear();
    let gone = [Name::Remove { path: "dists/a-link".to_owned() }];
    assert_eq!(links(&publications, &before), gone);
    // One that had it long ago, and is not published now, has lost it already.
    before.push(SuiteRecord { directory: "dists/c".to_owned(), links: vec!["dists/a-link".to_owned()], ..suite() });
    assert_eq!(links(&publications, &before), gone);
    // The next suite takes the name over in the same run.
    publications[1].layout.links.push(("dists/a-link".to_owned(), "b".to_owned()));
    let taken = Name::Symlink { target: "b".to_owned(), link: "dists/a-link".to_owned() };
    assert_eq!(links(&publications, &before), [taken]);
    // What leads elsewhere by now is somebody else's.
    publications[1].layout.links.pop();
    tree.root.symlink("c", "dists/a-link").unwrap();
    assert_eq!(links(&publications, &before), []);
}

#[test]
fn a_suite_takes_the_place_of_a_link() {
    let tree = tree();
    let publications = Archive { number: 2 }.land(&tree.root);
    let at = |name: &str| tree._directory.path().join("dists").join(name);
    std::fs::rename(at("a"), at("b-too")).unwrap();
    tree.root.symlink("b", "dists/a").unwrap();
    let before = [SuiteRecord { directory: "dists/b".to_owned(), links: vec!["dists/a".to_owned()], ..suite() }];
    let names = names(&*tree.root, &publications, &before, &empty_plan(), []).unwrap();
    let removed = |name: &&Name| matches!(name, Name::Remove { .. });
    assert_eq!(names.iter().filter(removed).collect::<Vec<_>>(), [&Name::Remove { path: "dists/a".to_owned() }]);
    LocalTarget::new(tree.root.clone(), Durability::None).publish(&names).unwrap();
    assert!(at("a").symlink_metadata().unwrap().is_dir());
    assert_eq!(client(&tree.root, "a", None), Ok(2));
}

#[test]
fn a_package_in_the_place_of_an_index_is_refused() {
    let tree = tree();
    let publications = Archive { number: 2 }.land(&tree.root);
    let mut plan = PlanBuilder::new(Filters::default());
    let index = plan.index("dists/b/main/binary-amd64/Packages.gz", 1).unwrap();
    let path = "dists/a/main/binary-amd64/Packages.gz";
    plan.add(index, &Candidate { path, size: 1, sha256: Sha256::EMPTY, package: None }).unwrap();
    let plan = plan.finish().unwrap();
    assert_eq!(check(&publications, &empty_plan()), Ok(()));
    assert_eq!(
        check(&publications, &plan).unwrap_err().to_string(),
        "dists/a/main/binary-amd64/Packages.gz: named by dists/b/main/binary-amd64/Packages.gz with other content than in the Release"
    );
}

#[test]
fn a_replaced_file_gets_its_name_before_the_index_that_tells_of_it() {
    let tree = tree();
    let image = "dists/a/main/installer-amd64/current/images/linux";
    tree.root.write_part(image, b"old").unwrap().finish().unwrap();
    let sha256 = store::put(&tree.root, b"new", None).unwrap();
    let publications = Archive { number: 2 }.land(&tree.root);
    let mut plan = PlanBuilder::new(Filters::default());
    let index = plan.index("SHA256SUMS", 0).unwrap();
    plan.add(index, &Candidate { path: image, size: 3, sha256, package: None }).unwrap();
    let plan = plan.finish().unwrap();
    let list = names(&*tree.root, &publications, &[], &plan, [0]).unwrap();
    let position = list.iter().position(|name| matches!(name, Name::Link { to, .. } if to == image)).unwrap();
    assert_eq!(position, 4, "behind by-hash, before all else");
    LocalTarget::new(tree.root.clone(), Durability::None).publish(&list).unwrap();
    assert_eq!(tree.root.read(image, 10).unwrap().unwrap(), b"new");
}
