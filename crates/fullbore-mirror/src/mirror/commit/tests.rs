//! Whole runs on a real directory, without the network: plan, subtract, "fetch", commit.

use std::cell::Cell;
use std::collections::BTreeMap;

use fullbore_debian::release_date::DateCheck;

use super::*;
use crate::mirror::filter::Candidate;
use crate::mirror::plan::PlanBuilder;
use crate::mirror::state::{INDEX_DIRECTORY, OfferedRelease, ReleaseChange};
use crate::mirror::subtract::{Comparison, Subtraction};
use crate::settings::Filters;

const HOUR_S: i64 = 3600;

struct Mirror {
    directory: tempfile::TempDir,
    root: Root,
    now: i64,
    /// Whether the suites of other tools can be read.
    knows_others: bool,
    /// Counts what upstream published.
    releases: Cell<u32>,
}

/// An archive: suite → its files with their content.
type Archive<'a> = BTreeMap<&'a str, Vec<(&'a str, &'a str)>>;

struct Run {
    subtraction: Subtraction,
    plan: Plan,
}

impl Mirror {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        Mirror { directory, root, now: 1_000_000_000, knows_others: true, releases: Cell::new(0) }
    }

    fn state(&self) -> State {
        State::open(&self.root, "boot").unwrap()
    }

    fn updates(&self, archive: &Archive<'_>, signed: bool) -> Vec<SuiteUpdate> {
        let state = self.state();
        let directories: Vec<String> = archive.keys().map(|suite| format!("dists/{suite}")).collect();
        let ids = state.number_suites(&directories.iter().map(String::as_str).collect::<Vec<_>>());
        let update = |((suite, directory), id): ((&&str, &String), SuiteId)| {
            let record = SuiteRecord {
                directory: directory.clone(),
                requested: (*suite).to_owned(),
                origins: Vec::new(),
                links: Vec::new(),
                inrelease: Sha256::of(format!("{suite} {}", self.releases.get()).as_bytes()),
                tag: None,
                date: self.now,
                signed,
                fingerprint: Sha256::EMPTY,
                trust: None,
                selection: String::new(),
                filtered: false,
                lacking: false,
                files_unknown: false,
                generation: 0,
                adopted: None,
                published_at: 0,
                mend_until: None,
                retired: false,
            };
            SuiteUpdate { id, record, published: true }
        };
        archive.keys().zip(&directories).zip(ids).map(update).collect()
    }

    fn plan(&self, archive: &Archive<'_>, updates: &[SuiteUpdate], filters: Filters) -> Plan {
        let mut plan = PlanBuilder::new(filters);
        for (files, update) in archive.values().zip(updates) {
            let index = plan.index(&format!("{}/Packages", update.record.directory), update.id).unwrap();
            for (path, content) in files {
                let sha256 = Sha256::of(content.as_bytes());
                plan.add(index, &Candidate { path, size: content.len() as u64, sha256, package: None }).unwrap();
            }
        }
        plan.finish().unwrap()
    }

    fn subtract(
        &self,
        plan: &Plan,
        updates: &[SuiteUpdate],
        log: Vec<(LoggedFile, bool)>,
    ) -> Result<Subtraction, StateError> {
        let suites: Vec<_> = updates.iter().map(|update| (update.id, update.record.signed)).collect();
        let state = self.state();
        let mut comparison = Comparison::new(plan, &state, &suites);
        for (logged, durable) in log {
            comparison.logged(logged, durable);
        }
        comparison.finish(&state, &self.root, &self.root)
    }

    fn write(&self, path: &str, content: &str) {
        self.root.write_part(path, content.as_bytes()).unwrap().finish().unwrap();
    }

    /// A run from plan to state, of a new Release. What is to be adopted is read from disk.
    fn run(&self, archive: &Archive<'_>, signed: bool) -> Run {
        self.releases.set(self.releases.get() + 1);
        self.run_again(archive, signed)
    }

    /// As `run`, of the same Release.
    fn run_again(&self, archive: &Archive<'_>, signed: bool) -> Run {
        let updates = self.updates(archive, signed);
        let plan = self.plan(archive, &updates, Filters::default());
        let mut subtraction = self.subtract(&plan, &updates, Vec::new()).unwrap();
        let content: BTreeMap<&str, &str> = archive.values().flatten().copied().collect();
        for id in subtraction.adopt.clone() {
            let file = plan.file(id);
            let on_disk = self.root.read(file.path, file.size).unwrap().unwrap();
            subtraction.adopted(id, (Sha256::of(&on_disk) == file.sha256).then_some(on_disk.len() as u64));
        }
        for &id in &subtraction.fetch.clone() {
            let file = plan.file(id);
            self.write(&subtraction.landing_path(&plan, id), content[file.path]);
            if subtraction.replace.contains(id) {
                self.root.hard_link(&subtraction.landing_path(&plan, id), file.path).unwrap();
            }
            subtraction.done.insert(id);
        }
        for update in &updates {
            self.write(&format!("{}/InRelease", update.record.directory), "signed");
        }
        let pending = self.commit(&plan, &subtraction.done, updates);
        pending.publish(&self.root, || Ok::<_, StateError>(())).unwrap();
        Run { subtraction, plan }
    }

    fn commit(&self, plan: &Plan, done: &FileSet, suites: Vec<SuiteUpdate>) -> PendingState {
        let state = self.state();
        write(Commit {
            own: &self.root,
            tree: &self.root,
            state: &state,
            plan,
            done,
            published: Vec::new(),
            suites,
            orphans: Vec::new(),
            named_elsewhere: &|_| !self.knows_others,
            knows_others: self.knows_others,
            mend_until: None,
            opened_at: self.now,
            retention: Retention { generations: 2, hours: 24 },
            now: self.now,
            boot_id: "boot".into(),
            synced: true,
            note_paths: false,
        })
        .unwrap()
    }

    /// Path → membership, of everything in the state.
    fn files(&self) -> BTreeMap<String, Membership> {
        let state = self.state();
        let mut files = BTreeMap::new();
        let mut records = state.records(&self.root).unwrap().unwrap();
        while let Some(record) = records.next().unwrap() {
            files.insert(record.path.to_owned(), state.header.memberships[record.membership as usize].clone());
        }
        files
    }
}

fn archive<'a>(suites: &[(&'a str, &[(&'a str, &'a str)])]) -> Archive<'a> {
    suites.iter().map(|(suite, files)| (*suite, files.to_vec())).collect()
}

#[test]
fn the_second_run_fetches_only_what_is_new() {
    let mirror = Mirror::new();
    let first = mirror.run(&archive(&[("a", &[("pool/1", "one"), ("pool/2", "two")])]), true);
    assert_eq!(first.subtraction.fetch.len(), 2);
    let second = mirror.run(&archive(&[("a", &[("pool/1", "one"), ("pool/3", "three")])]), true);
    assert_eq!(second.subtraction.fetch, [1]);
    assert_eq!(second.plan.file(1).path, "pool/3");
    assert_eq!(second.subtraction.present, Tally { files: 1, bytes: 3 });
    let files = mirror.files();
    assert_eq!(files["pool/1"], Membership::member(0, false));
    assert_eq!(files["pool/2"].left, [Departure { suite: 0, generation: 2, at: mirror.now }]);
    let suite = mirror.state().header.suites[0].clone();
    assert_eq!(suite.generation, 2);
    let offer = OfferedRelease {
        directory: "dists/a",
        inrelease: suite.inrelease,
        date: suite.date,
        signed: true,
        fingerprint: suite.fingerprint,
        here: None,
        successor: None,
        check: DateCheck::new(i64::MAX, true, 10),
    };
    assert_eq!(mirror.state().judge(&offer).unwrap(), ReleaseChange::Unchanged);
}

#[test]
fn files_of_suites_mirrored_in_other_runs_stay() {
    let mut mirror = Mirror::new();
    mirror.run(&archive(&[("a", &[("pool/1", "one"), ("pool/both", "both")])]), true);
    mirror.run(&archive(&[("b", &[("pool/2", "two"), ("pool/both", "both")])]), true);
    for _ in 0..5 {
        mirror.now += 48 * HOUR_S;
        mirror.run(&archive(&[("b", &[("pool/3", "three")])]), true);
    }
    let files = mirror.files();
    assert_eq!(files["pool/1"], Membership::member(0, false));
    assert_eq!(files["pool/both"], Membership::member(0, false));
    assert!(files["pool/2"].expired);
    // When the other suite's directory is taken away, its files go, after the hours.
    std::fs::remove_dir_all(mirror.directory.path().join("dists/a")).unwrap();
    mirror.run(&archive(&[("b", &[("pool/3", "three")])]), true);
    assert!(!mirror.files()["pool/1"].expired);
    mirror.now += 25 * HOUR_S;
    mirror.run(&archive(&[("b", &[("pool/3", "three")])]), true);
    assert!(mirror.files()["pool/1"].expired);
}

#[test]
fn a_link_is_of_the_suite_that_had_it_last() {
    let mirror = Mirror::new();
    let published = |suite: &str, links: &[&str]| {
        let archive = archive(&[(suite, &[])]);
        let mut updates = mirror.updates(&archive, true);
        updates[0].record.links = links.iter().map(|&link| link.to_owned()).collect();
        mirror.write(&format!("dists/{suite}/InRelease"), suite);
        let plan = mirror.plan(&archive, &updates, Filters::default());
        mirror
            .commit(&plan, &FileSet::new(plan.len()), updates)
            .publish(&mirror.root, || Ok::<_, StateError>(()))
            .unwrap();
        let suites = mirror.state().header.suites;
        suites.into_iter().map(|suite| suite.links.join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(published("a", &["dists/stable", "dists/b"]), ["dists/stable dists/b"]);
    assert_eq!(published("b", &["dists/stable"]), ["", "dists/stable"], "and b is a directory");
    assert_eq!(published("b", &["dists/old"]), ["", "dists/old"]);
}

#[test]
fn a_file_gone_from_the_index_stays_for_generations_and_hours() {
    let mut mirror = Mirror::new();
    let (old, new) = (archive(&[("a", &[("pool/1", "one")])]), archive(&[("a", &[("pool/2", "two")])]));
    mirror.run(&old, true);
    mirror.run(&new, true);
    let left_at = mirror.now;
    assert!(!mirror.files()["pool/1"].expired);
    assert_eq!(mirror.state().header.clean_due, None, "generations are to come");
    mirror.now += HOUR_S;
    (0..3).for_each(|_| drop(mirror.run_again(&new, true)));
    assert_eq!(mirror.state().header.clean_due, None, "a Release that is published again is no other to its clients");
    mirror.run(&new, true);
    mirror.run(&new, true);
    assert!(!mirror.files()["pool/1"].expired, "generations are over, hours are not");
    assert_eq!(mirror.state().header.clean_due, Some(left_at + 24 * HOUR_S));
    mirror.now = left_at + 24 * HOUR_S;
    mirror.run(&new, true);
    assert!(mirror.files()["pool/1"].expired);
    // Back again before it was deleted: present, not fetched.
    let back = mirror.run(&old, true);
    assert_eq!(back.subtraction.fetch.len(), 0);
}

/// The archive may never change again.
#[test]
fn what_could_not_be_decided_is_due_in_every_run() {
    let mut mirror = Mirror::new();
    let (old, new) = (archive(&[("a", &[("pool/1", "one")])]), archive(&[("a", &[("pool/2", "two")])]));
    mirror.run(&old, true);
    (0..3).for_each(|_| drop(mirror.run(&new, true)));
    mirror.now += 24 * HOUR_S;
    mirror.knows_others = false;
    mirror.run_again(&new, true);
    assert!(!mirror.files()["pool/1"].expired, "a suite that cannot be read may name it");
    assert_eq!(mirror.state().header.clean_due, Some(0));
    mirror.knows_others = true;
    mirror.run_again(&new, true);
    assert!(mirror.files()["pool/1"].expired);
}

#[test]
fn what_a_run_may_not_delete_is_due_in_every_later_run() {
    let mut mirror = Mirror::new();
    let (old, new) = (archive(&[("a", &[("pool/1", "one")])]), archive(&[("a", &[("pool/2", "two")])]));
    mirror.run(&old, true);
    (0..3).for_each(|_| drop(mirror.run(&new, true)));
    mirror.now += 24 * HOUR_S;
    let updates = mirror.updates(&new, true);
    let plan = mirror.plan(&new, &updates, Filters::default());
    let subtraction = mirror.subtract(&plan, &updates, Vec::new()).unwrap();
    let mut pending = mirror.commit(&plan, &subtraction.done, updates);
    pending.put_off_removal();
    pending.publish(&mirror.root, || Ok::<_, StateError>(())).unwrap();
    assert!(mirror.files()["pool/1"].expired);
    assert_eq!(mirror.state().header.clean_due, Some(0));
}

#[test]
fn filtered_files_are_named_all_the_same() {
    let mirror = Mirror::new();
    let full = archive(&[("a", &[("pool/1", "one"), ("pool/doc", "doc")])]);
    mirror.run(&full, true);
    let updates = mirror.updates(&full, true);
    let filters = Filters { exclude: vec!["doc".parse().unwrap()], ..Filters::default() };
    let plan = mirror.plan(&full, &updates, filters);
    let subtraction = mirror.subtract(&plan, &updates, Vec::new()).unwrap();
    let pending = mirror.commit(&plan, &subtraction.done, updates);
    pending.publish(&mirror.root, || Ok::<_, StateError>(())).unwrap();
    assert_eq!(mirror.files()["pool/doc"].members.len(), 1);
}

#[test]
fn nothing_accepted_unsigned_is_reused_unread() {
    let mirror = Mirror::new();
    let files = archive(&[("a", &[("pool/1", "one"), ("pool/2", "two")])]);
    mirror.run(&files, false);
    assert!(mirror.files()["pool/1"].unsigned);
    // Someone changed one file behind the unsigned mirror's back.
    std::fs::write(mirror.directory.path().join("pool/1"), "bad").unwrap();
    let updates = mirror.updates(&files, true);
    let plan = mirror.plan(&files, &updates, Filters::default());
    let subtraction = mirror.subtract(&plan, &updates, Vec::new()).unwrap();
    assert_eq!((subtraction.present.files, subtraction.adopt.as_slice()), (0, [0, 1].as_slice()));
    let run = mirror.run(&files, true);
    assert_eq!(run.subtraction.fetch, [0]);
    assert_eq!(std::fs::read(mirror.directory.path().join("pool/1")).unwrap(), b"one");
    assert!(!mirror.files()["pool/1"].unsigned && !mirror.files()["pool/2"].unsigned);
    // Unsigned once more: what a signature vouched for stays believed.
    let again = mirror.run(&files, false);
    assert_eq!(again.subtraction.present.files, 2);
    assert!(!mirror.files()["pool/1"].unsigned);
}

#[test]
fn a_lost_state_costs_reading_not_fetching() {
    let mirror = Mirror::new();
    let files = archive(&[("a", &[("pool/1", "one"), ("pool/2", "two"), ("pool/3", "three")])]);
    mirror.run(&files, true);
    for damage in 0..3 {
        let list = mirror.directory.path().join(mirror.state().list_path());
        match damage {
            0 => std::fs::remove_file(mirror.directory.path().join(".fullbore/state")).unwrap(),
            1 => std::fs::remove_file(list).unwrap(),
            _ => std::fs::write(list, "no zstd").unwrap(),
        }
        let run = mirror.run(&files, true);
        assert_eq!((run.subtraction.fetch.len(), run.subtraction.adopt.len()), (0, 3), "damage {damage}");
        assert_eq!(mirror.files().len(), 3);
        assert_eq!(mirror.run(&files, true).subtraction.present.files, 3);
    }
}

#[test]
fn a_foreign_tree_is_adopted_and_a_wrong_file_replaced_at_publishing() {
    let mirror = Mirror::new();
    mirror.write("pool/1", "one");
    mirror.write("pool/2", "TWO");
    mirror.write("pool/3", "of another size");
    let files = archive(&[("a", &[("pool/1", "one"), ("pool/2", "two"), ("pool/3", "three"), ("pool/4", "four")])]);
    let run = mirror.run(&files, true);
    assert_eq!(run.subtraction.adopt, [0, 1]);
    assert_eq!(run.subtraction.fetch, [2, 3, 1]);
    assert!(run.subtraction.landing_path(&run.plan, 1).starts_with(INDEX_DIRECTORY));
    assert_eq!(run.subtraction.landing_path(&run.plan, 3), "pool/4");
}

#[test]
fn the_log_of_a_killed_run_counts() {
    let mirror = Mirror::new();
    let files = archive(&[("a", &[("pool/1", "one"), ("pool/2", "two"), ("pool/3", "three")])]);
    mirror.write("pool/1", "one");
    mirror.write("pool/2", "two");
    let logged = |path: &str, content: &str, durable| {
        let (size, sha256) = (content.len() as u64, Sha256::of(content.as_bytes()));
        (LoggedFile { path: path.into(), size, sha256 }, durable)
    };
    let log = vec![
        logged("pool/1", "one", true),
        logged("pool/2", "two", false),
        logged("pool/old", "old", true),
        logged(".fullbore/index/x", "x", true),
    ];
    let updates = mirror.updates(&files, true);
    let plan = mirror.plan(&files, &updates, Filters::default());
    let subtraction = mirror.subtract(&plan, &updates, log).unwrap();
    assert!(subtraction.done.contains(0));
    assert_eq!(subtraction.adopt, [1], "perhaps not on disk when the power went");
    assert_eq!(subtraction.fetch, [2]);
    assert_eq!(subtraction.orphans.len(), 1);
    let mut commit = Commit {
        own: &mirror.root,
        tree: &mirror.root,
        state: &mirror.state(),
        plan: &plan,
        done: &subtraction.done,
        published: vec![PublishedFile { path: "dists/a/Packages".into(), size: 9, sha256: Sha256::EMPTY, suite: 0 }],
        suites: updates,
        orphans: subtraction.orphans,
        named_elsewhere: &|_| false,
        knows_others: true,
        mend_until: None,
        opened_at: mirror.now,
        retention: Retention::default(),
        now: mirror.now,
        boot_id: "boot".into(),
        synced: true,
        note_paths: false,
    };
    commit.orphans.push(commit.orphans[0].clone());
    let pending = write(commit).unwrap();
    assert_eq!(pending.counts.all.files, 3);
    pending.publish(&mirror.root, || Ok::<_, StateError>(())).unwrap();
    let files = mirror.files();
    assert_eq!(files.keys().collect::<Vec<_>>(), ["dists/a/Packages", "pool/1", "pool/old"]);
    assert!(files["pool/old"].members.is_empty() && !files["pool/old"].expired);
}

#[test]
fn different_contents_for_a_path_in_two_runs_are_refused() {
    let mirror = Mirror::new();
    mirror.run(&archive(&[("a", &[("pool/1", "one")])]), true);
    let other = archive(&[("b", &[("pool/1", "eins")])]);
    let updates = mirror.updates(&other, true);
    let plan = mirror.plan(&other, &updates, Filters::default());
    let error = mirror.subtract(&plan, &updates, Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("pool/1: dists/b/Packages says SHA-256"), "{error}");
    assert!(error.contains("but dists/a, mirrored before, says"), "{error}");
}

#[test]
fn a_suite_that_could_not_be_published_keeps_its_old_record() {
    let mirror = Mirror::new();
    let old = archive(&[("a", &[("pool/1", "one")]), ("b", &[("pool/2", "two")])]);
    mirror.run(&old, true);
    let new = archive(&[("a", &[("pool/3", "three")]), ("b", &[("pool/4", "four")])]);
    mirror.releases.set(2);
    let mut updates = mirror.updates(&new, true);
    updates[1].published = false;
    let plan = mirror.plan(&new, &updates, Filters::default());
    let mut done = FileSet::new(plan.len());
    done.insert(0);
    done.insert(1);
    mirror.commit(&plan, &done, updates).publish(&mirror.root, || Ok::<_, StateError>(())).unwrap();
    let (state, files) = (mirror.state(), mirror.files());
    assert_eq!((state.header.suites[0].generation, state.header.suites[1].generation), (2, 1));
    assert!(files["pool/1"].members.is_empty());
    assert_eq!(files["pool/2"].members, [1], "still named by the published index");
    assert_eq!(files["pool/4"].members, [1], "fetched already, wanted at the next run");
}

#[test]
fn killed_while_the_state_is_written_the_old_one_counts() {
    let mirror = Mirror::new();
    let files = archive(&[("a", &[("pool/1", "one")])]);
    mirror.run(&files, true);
    let old = mirror.state().header;
    for step in 0..2 {
        let updates = mirror.updates(&files, true);
        let plan = mirror.plan(&files, &updates, Filters::default());
        let mut done = FileSet::new(1);
        done.insert(0);
        let pending = mirror.commit(&plan, &done, updates);
        let calls = std::cell::Cell::new(0);
        let killed = pending.publish(&mirror.root, || {
            calls.set(calls.get() + 1);
            let killed = StateError::Newer { found: 99 };
            if calls.get() > step { Err(killed) } else { Ok(()) }
        });
        assert!(killed.is_err());
        // Between the list and the header: the old. Behind the header: the new, and its list.
        assert_eq!(mirror.state().header.number, old.number + step);
        assert_eq!(mirror.files().len(), 1);
    }
    mirror.run(&files, true);
    let lists = mirror.root.list(OWN_DIRECTORY).unwrap();
    assert_eq!(lists.iter().filter(|(name, _)| name.to_string_lossy().starts_with("files-")).count(), 1);
}

#[test]
fn a_refused_deletion_leaves_a_usable_state() {
    let mut mirror = Mirror::new();
    let names: Vec<String> = (0..100).map(|number| format!("pool/{number}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "content")).collect();
    mirror.run(&archive(&[("a", &files)]), true);
    let empty = archive(&[("a", &[])]);
    for _ in 0..3 {
        mirror.run(&empty, true);
        mirror.now += 48 * HOUR_S;
    }
    let updates = mirror.updates(&empty, true);
    let plan = mirror.plan(&empty, &updates, Filters::default());
    let mut pending = mirror.commit(&plan, &FileSet::new(0), updates);
    assert_eq!(pending.counts.expired.files, 100);
    let error = pending.allow_removal(&DeleteGuard::default(), Tally::default()).unwrap_err();
    assert!(error.to_string().starts_with("refused to delete 100 of 100 files"), "{error}");
    pending.publish(&mirror.root, || Ok::<_, StateError>(())).unwrap();
    // Upstream is back: nothing is fetched.
    assert_eq!(mirror.run(&archive(&[("a", &files)]), true).subtraction.fetch.len(), 0);
}

#[test]
fn what_was_deleted_is_fetched_again_when_it_comes_back() {
    let mut mirror = Mirror::new();
    let keep: Vec<String> = (0..30).map(|number| format!("pool/keep/{number}")).collect();
    let mut old: Vec<(&str, &str)> = keep.iter().map(|path| (path.as_str(), "kept")).collect();
    let new = archive(&[("a", &old)]);
    old.push(("pool/gone/1", "one"));
    let old = archive(&[("a", &old)]);
    mirror.run(&old, true);
    for _ in 0..3 {
        mirror.run(&new, true);
        mirror.now += 24 * HOUR_S;
    }
    let updates = mirror.updates(&new, true);
    let plan = mirror.plan(&new, &updates, Filters::default());
    let subtraction = mirror.subtract(&plan, &updates, Vec::new()).unwrap();
    let mut pending = mirror.commit(&plan, &subtraction.done, updates);
    pending.allow_removal(&DeleteGuard::default(), Tally::default()).unwrap();
    let mut state = pending.publish(&mirror.root, || Ok::<_, StateError>(())).unwrap();
    // Killed here, the next run would find the deletion begun and would not believe in the file.
    assert!(mirror.state().unfinished);
    let removed =
        crate::mirror::clean::remove_expired(&mirror.root, &mirror.root, &mut state, || Ok::<_, StateError>(()))
            .unwrap();
    assert_eq!(removed, Tally { files: 1, bytes: 3 });
    assert!(!mirror.directory.path().join("pool/gone").exists());
    let back = mirror.run(&old, true);
    assert_eq!((back.subtraction.fetch.len(), back.subtraction.present.files), (1, 30));
}

#[test]
fn a_snapshot_holds_what_the_suites_name_and_stays() {
    use std::os::unix::fs::MetadataExt as _;

    use crate::mirror::snapshot;

    let mirror = Mirror::new();
    mirror.run(&archive(&[("a", &[("pool/1", "one"), ("pool/2", "two")])]), true);
    mirror.run(&archive(&[("a", &[("pool/1", "one"), ("pool/3", "three")])]), true);
    assert_eq!(snapshot::make(&mirror.root, &mirror.state(), "first").unwrap().files, 2);
    let at = |path: &str| mirror.directory.path().join(path);
    let inode = |path: &str| std::fs::metadata(at(path)).unwrap().ino();
    assert_eq!(inode("snapshots/first/pool/1"), inode("pool/1"));
    assert!(at("snapshots/first/pool/3").exists() && !at("snapshots/first/pool/2").exists());
    // A file that gets other content later keeps the old one in the snapshot.
    mirror.run(&archive(&[("a", &[("pool/1", "eins")])]), true);
    assert_eq!(std::fs::read(at("pool/1")).unwrap(), b"eins");
    assert_eq!(std::fs::read(at("snapshots/first/pool/1")).unwrap(), b"one");
    assert!(snapshot::make(&mirror.root, &mirror.state(), "first").is_err());
    assert!(!at(".fullbore/snapshot-first").exists());
}

/// Resident memory of this process at its highest, in MB.
fn peak_rss_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1000
}

/// Not a test but a measurement: what planning costs without any network. Run alone with
/// `FILES=1000000 cargo test --release -p fullbore-mirror --lib at_scale -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn planning_at_scale_is_measured() {
    let files: u32 = std::env::var("FILES").map_or(100_000, |text| text.parse().unwrap());
    let mirror = Mirror::new();
    let updates = mirror.updates(&archive(&[("a", &[])]), true);
    let path = |number: u32, version: u32| {
        // Three indexes, each in order of package, so that paths come in runs.
        let third = files.div_ceil(3);
        let (index, package) = (number / third, number % third);
        let letter = char::from(b'a' + (u64::from(package) * 26 / u64::from(third)) as u8);
        format!(
            "pool/main/{letter}/package-{package:06}-with-name/package-{package:06}-part{index}_{version}.2.3-{}+deb13u1_amd64.deb",
            package % 7
        )
    };
    let plan = |changed: u32| {
        let mut plan = PlanBuilder::new(Filters::default());
        let index = plan.index("dists/a/Packages", 0).unwrap();
        for number in 0..files {
            let path = path(number, if number % 1000 < changed { 2 } else { 1 });
            plan.add(index, &Candidate { path: &path, size: 1000, sha256: Sha256::of(path.as_bytes()), package: None })
                .unwrap();
        }
        plan
    };
    let time = std::time::Instant::now();
    let lap = |what: &str| {
        println!("{what:>30}: {:6.3} s since start, peak {} MB", time.elapsed().as_secs_f64(), peak_rss_mb())
    };
    let builder = plan(0);
    lap("added");
    let first = builder.finish().unwrap();
    lap("sorted");
    let subtraction = mirror.subtract(&first, &updates, Vec::new()).unwrap();
    assert_eq!(subtraction.fetch.len(), files as usize);
    lap("compared with nothing");
    let mut done = FileSet::new(first.len());
    for id in 0..files {
        done.insert(id);
    }
    mirror.commit(&first, &done, updates.clone()).publish(&mirror.root, || Ok::<_, StateError>(())).unwrap();
    lap("state written");
    let bytes = std::fs::metadata(mirror.directory.path().join(mirror.state().list_path())).unwrap().len();
    println!("{:>30}: {bytes} bytes", "list");
    drop((first, done, subtraction));
    let second = plan(3).finish().unwrap();
    lap("second plan");
    let mut subtraction = mirror.subtract(&second, &updates, Vec::new()).unwrap();
    lap("compared with the state");
    println!("{:>30}: {} of {files}", "to fetch", subtraction.fetch.len());
    for id in subtraction.fetch.clone() {
        subtraction.done.insert(id);
    }
    mirror.commit(&second, &subtraction.done, updates).publish(&mirror.root, || Ok::<_, StateError>(())).unwrap();
    lap("second state written");
    let before = std::time::Instant::now();
    let state = mirror.state();
    println!("{:>30}: {:.6} s", "no-op: header read", before.elapsed().as_secs_f64());
    assert_eq!(state.header.suites[0].generation, 2);
}
