//! What later runs make of an archive that becomes odd: nothing is lost, and nobody else is stopped.

use fullbore_testkit::archive::Archive;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};

use crate::harness::{Mirror, own_archive, published};

const INDEX: &str = "main/binary-amd64/Packages";

/// As little is kept as can be.
const SOON: [&str; 5] = ["--keep-generations", "0", "--keep-hours", "0", "--force-delete"];

/// An archive with so many packages that one odd entry is less than a tenth of an index.
fn archive() -> (tempfile::TempDir, Archive) {
    own_archive(|builder| builder.sources(24))
}

/// Takes the SHA-256 from the first entries of state 1 whose files are in state 0, too; returns their paths.
fn without_hashes(archive: &Archive, count: usize) -> Vec<String> {
    let forge = archive.forge(1, "trixie");
    let before = archive.state(0).select(|_| true);
    let mut paths = Vec::new();
    let stanzas: Vec<String> = forge
        .index(INDEX)
        .unwrap()
        .split_terminator("\n\n")
        .map(|stanza| {
            let path = stanza.lines().find_map(|line| line.strip_prefix("Filename: ")).unwrap();
            if paths.len() == count || !before.contains_key(path) {
                return stanza.to_owned();
            }
            paths.push(path.to_owned());
            stanza.lines().filter(|line| !line.starts_with("SHA256:")).collect::<Vec<_>>().join("\n")
        })
        .collect();
    assert_eq!(paths.len(), count);
    forge.set_index(INDEX, &(stanzas.join("\n\n") + "\n")).unwrap();
    paths
}

#[test]
fn a_file_whose_entry_becomes_odd_stays() {
    let (_directory, archive) = archive();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    let [path] = &without_hashes(&archive, 1)[..] else { unreachable!("one was asked for") };
    let content = std::fs::read(mirror.to.join(path)).unwrap();
    server.switch_root(&archive.state(1).root);
    let ran = mirror.run_with(&[&server], &SOON).exits(2).says("1 entry of the archive left out").says("no SHA-256");
    assert!(ran.number("totals.deleted_files") > 0, "the test needs files that are deleted");
    assert_eq!(published(&mirror.to, &archive), Some(1));
    assert_eq!(std::fs::read(mirror.to.join(path)).unwrap(), content);
    // Nor does it count as nobody's.
    mirror.run_with(&[&server], &[&SOON[..], &["--clean-foreign"]].concat()).exits(2);
    assert_eq!(std::fs::read(mirror.to.join(path)).unwrap(), content);
    // Nobody judges what nobody wants.
    let only = format!("^{}$", path.replace('.', "\\.").replace('+', "\\+"));
    mirror.run_with(&[&server], &["--exclude", &only]).exits(0);
}

#[test]
fn an_index_of_which_a_tenth_is_odd_is_not_published() {
    let (_directory, archive) = archive();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    let entries = archive.forge(1, "trixie").index(INDEX).unwrap().matches("\nFilename: ").count();
    without_hashes(&archive, entries / 10 + 1);
    server.switch_root(&archive.state(1).root);
    mirror.run_with(&[&server], &SOON).exits(4).says("too many for a usable mirror").says("nothing was published");
    assert_eq!(published(&mirror.to, &archive), Some(0));
    mirror.check(&[]).exits(0);
}

#[test]
fn a_suite_that_is_gone_or_broken_stops_no_other() {
    let (_directory, archive) = archive();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive).suite("trixie,gone");
    mirror.run(&[&server]).exits(3).says("gone: no mirror has its Release").says("published trixie");
    assert_eq!(published(&mirror.to, &archive), Some(0));
    mirror.check(&[]).exits(0);
    // A part that one suite lacks is named.
    let mirror = Mirror::new(&archive);
    mirror.run_with(&[&server], &["--component", "main,zoom"]).exits(2).says("has no component \"zoom\"");
    assert_eq!(published(&mirror.to, &archive), Some(0));
}

#[test]
fn what_the_archive_lost_is_ignored_on_request() {
    let (_directory, archive) = archive();
    let state = archive.state(0);
    let lost = state.files.iter().find(|file| file.path.ends_with("_amd64.deb")).unwrap().path.clone();
    let server = Server::start(&state.root).unwrap();
    server.add_fault(FaultRule::always(PathMatch::Exact(format!("/{lost}")), Fault::Status(404)));
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(2).says(&lost).says("--ignore-missing");
    assert_eq!(published(&mirror.to, &archive), None);
    mirror.run_with(&[&server], &["--ignore-missing"]).exits(2).says(&lost).says("the rest is published");
    assert_eq!(published(&mirror.to, &archive), Some(0));
    mirror.check(&[]).exits(0);
}

#[test]
fn an_undated_release_and_one_of_another_suite_replace_none_that_is_right() {
    for (field, value, code, why) in
        [("Date", "soon", 5, "without a usable date"), ("Suite", "other", 1, "requested suite \"trixie\"")]
    {
        let (_directory, archive) = archive();
        let server = Server::start(&archive.state(0).root).unwrap();
        let mirror = Mirror::new(&archive);
        mirror.run(&[&server]).exits(0);
        let forge = archive.forge(1, "trixie");
        forge.set_field(field, value).unwrap();
        if field == "Suite" {
            forge.set_field("Codename", value).unwrap();
        }
        server.switch_root(&archive.state(1).root);
        mirror.run(&[&server]).exits(code).says(why).says("nothing was published");
        assert_eq!(published(&mirror.to, &archive), Some(0), "{field}");
        // Where nothing is, it is taken with a warning.
        Mirror::new(&archive).run(&[&server]).exits(0).says("warning: trixie: ");
    }
}
