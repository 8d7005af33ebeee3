//! Plans of a few files, and what is refused.

use super::super::filter::PackageFacts;
use super::*;

fn file(path: &str) -> Candidate<'_> {
    Candidate { path, size: path.len() as u64, sha256: Sha256::of(path.as_bytes()), package: None }
}

fn paths(plan: &Plan) -> Vec<&str> {
    plan.files().map(|file| file.path).collect()
}

#[test]
fn a_plan_is_parted_into_ranges_of_like_size() {
    let mut builder = PlanBuilder::new(Filters::default());
    let index = builder.index("dists/x/Packages", 0).unwrap();
    for number in (0..8000).rev() {
        builder.add(index, &file(&format!("pool/{number:04}"))).unwrap();
    }
    assert_eq!(builder.finish().unwrap().parted(), ["pool/2000", "pool/4000", "pool/6000"]);
}

#[test]
fn a_slot_is_48_bytes() {
    assert_eq!(size_of::<Slot>(), 48);
}

#[test]
fn each_path_is_planned_once_in_order_with_all_its_suites() {
    let mut plan = PlanBuilder::new(Filters::default());
    let first = plan.index("dists/a/main/binary-amd64/Packages", 0).unwrap();
    let second = plan.index("dists/b/main/binary-amd64/Packages", 4).unwrap();
    for path in ["pool/z", "pool/a", "pool/m", "pool/a"] {
        plan.add(first, &file(path)).unwrap();
    }
    for path in ["pool/m", "pool/b"] {
        plan.add(second, &file(path)).unwrap();
    }
    let plan = plan.finish().unwrap();
    assert_eq!(paths(&plan), ["pool/a", "pool/b", "pool/m", "pool/z"]);
    assert_eq!(plan.find("pool/m").unwrap().suites, [0, 4]);
    assert_eq!(plan.find("pool/b").unwrap().suites, [4]);
    assert_eq!(plan.find("pool/z").unwrap().id, 3);
    assert_eq!(plan.find("pool/none"), None);
}

#[test]
fn many_files_are_found_again() {
    let mut plan = PlanBuilder::new(Filters::default());
    let index = plan.index("x", 0).unwrap();
    let names: Vec<String> = (0..5000).map(|i| format!("pool/{:04}", i * 7919 % 5000)).collect();
    for name in &names {
        plan.add(index, &file(name)).unwrap();
    }
    let plan = plan.finish().unwrap();
    assert_eq!(plan.len(), 5000);
    for (at, found) in plan.files().enumerate() {
        assert_eq!(found.path, format!("pool/{at:04}"));
        assert_eq!(plan.find(found.path), Some(found));
    }
}

#[test]
fn a_size_that_one_index_does_not_tell_comes_from_another() {
    let mut plan = PlanBuilder::new(Filters::default());
    let index = plan.index("dists/a/SHA256SUMS", 0).unwrap();
    for path in ["dists/a/linux", "dists/a/initrd"] {
        plan.add(index, &Candidate { size: SIZE_UNKNOWN, ..file(path) }).unwrap();
    }
    plan.add(index, &file("dists/a/linux")).unwrap();
    plan.add(index, &Candidate { size: SIZE_UNKNOWN, ..file("dists/a/linux") }).unwrap();
    let plan = plan.finish().unwrap();
    assert_eq!(plan.find("dists/a/linux").unwrap().known_size(), Some(13));
    assert_eq!(plan.find("dists/a/initrd").unwrap().known_size(), None);
}

#[test]
fn of_several_contents_of_a_path_one_is_chosen() {
    let mut plan = PlanBuilder::new(Filters::default());
    let first = plan.index("dists/a/Packages", 0).unwrap();
    let second = plan.index("dists/b/Packages", 1).unwrap();
    plan.add(first, &file("pool/a")).unwrap();
    plan.add(second, &Candidate { size: 1, ..file("pool/a") }).unwrap();
    plan.add(second, &Candidate { size: 1, ..file("pool/a") }).unwrap();
    plan.add(second, &file("pool/b")).unwrap();
    let (path, contents) = plan.alternatives().first_key_value().unwrap();
    assert_eq!((path.as_str(), plan.alternatives().len()), ("pool/a", 1));
    let shown: Vec<_> = contents.iter().map(|content| (content.size, content.index.as_str())).collect();
    assert_eq!(shown, [(6, "dists/a/Packages"), (1, "dists/b/Packages")]);
    let chosen = contents[1].clone();
    plan.choose("pool/a", &chosen);
    let plan = plan.finish().unwrap();
    let chosen = plan.find("pool/a").unwrap();
    assert_eq!((chosen.size, chosen.suites), (1, &[0, 1][..]), "both suites name the path");
    assert_eq!(plan.index_of(chosen.id), "dists/b/Packages");
}

#[test]
fn odd_entries_are_left_out_and_their_files_stay() {
    let mut plan = PlanBuilder::new(Filters { exclude: vec!["/unwanted/".parse().unwrap()], ..Filters::default() });
    let index = plan.index("dists/a/Packages", 0).unwrap();
    let (mut odd, text) =
        (Vec::new(), "Package: a\nFilename: pool/a.deb\n\nPackage: b\nFilename: pool/unwanted/b.deb\n");
    let read = fullbore_debian::index::packages_and_odd(text.as_bytes(), |entry| {
        odd.extend(entry.err());
        Ok::<_, fullbore_debian::index::IndexError>(())
    });
    assert_eq!(read.unwrap(), 2);
    assert!(plan.leave_out_odd(index, &odd[0]));
    assert!(!plan.leave_out_odd(index, &odd[1]), "the filters do not take it");
    let plan = plan.finish().unwrap();
    assert!(plan.is_empty() && plan.leaves_out("pool/a.deb") && plan.leaves_out("pool/unwanted/b.deb"));
}

#[test]
fn paths_outside_or_of_our_own_are_refused() {
    let mut plan = PlanBuilder::new(Filters::default());
    let index = plan.index("dists/a/Packages", 0).unwrap();
    for path in ["../x", "/etc/passwd", "pool/../../x", ".fullbore/state", "pool/.x.part", "pool/%2e%2e/x", ""] {
        assert!(matches!(plan.add(index, &file(path)), Err(PlanError::Path { .. })), "{path}");
    }
    for path in ["dists/a/InRelease", "project/trace/x", "snapshots/x/y", "Archive-Update-Required-x", "Release"] {
        assert!(matches!(plan.add(index, &file(path)), Err(PlanError::Reserved { .. })), "{path}");
    }
    assert!(plan.finish().unwrap().is_empty());
}

#[test]
fn an_index_of_all_architectures_gives_those_asked_for() {
    let mut plan = PlanBuilder::new(Filters::default());
    let (some, whole) = (plan.index("Packages", 0).unwrap(), plan.index("other/Packages", 0).unwrap());
    plan.only(some, &["amd64".to_owned()]);
    for (index, directory) in [(some, "a"), (whole, "b")] {
        for architecture in ["amd64", "arm64", "all", "source"] {
            let path = format!("{directory}/{architecture}");
            let package =
                PackageFacts { name: "hello", architecture, version: "1", source: "hello", section: "", priority: "" };
            plan.add(index, &Candidate { package: Some(package), ..file(&path) }).unwrap();
        }
    }
    let plan = plan.finish().unwrap();
    assert_eq!(paths(&plan), ["a/all", "a/amd64", "a/source", "b/all", "b/amd64", "b/arm64", "b/source"]);
}

#[test]
fn newest_counts_versions_by_debian_order_within_an_index() {
    let mut plan = PlanBuilder::new(Filters { newest: Some(2), ..Filters::default() });
    let index = plan.index("x", 0).unwrap();
    for version in ["1.10", "1.9", "1.10~rc1", "1.2"] {
        for name in ["hello", "hello-doc"] {
            let path = format!("pool/{name}_{version}.deb");
            let package =
                Some(PackageFacts { name, architecture: "amd64", version, source: "hello", section: "", priority: "" });
            plan.add(index, &Candidate { package, ..file(&path) }).unwrap();
        }
    }
    plan.end_index(index).unwrap();
    let plan = plan.finish().unwrap();
    assert_eq!(
        paths(&plan),
        ["pool/hello-doc_1.10.deb", "pool/hello-doc_1.10~rc1.deb", "pool/hello_1.10.deb", "pool/hello_1.10~rc1.deb"]
    );
    assert!(plan.leaves_out("pool/hello_1.2.deb"));
    assert!(!plan.leaves_out("pool/hello_1.10.deb"));
}
