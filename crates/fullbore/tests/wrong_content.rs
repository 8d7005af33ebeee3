//! Files that every mirror has wrong: what is said of them, and the exit code, which is that of verification.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use harness::{Mirror, common, need, own_archive};

fn faulty(server: &Server, part: &str, fault: Fault) {
    server.add_fault(FaultRule::always(PathMatch::Contains(part.into()), fault));
}

/// Makes a server answer for all indexes of packages with this, under every name.
fn wrong_indexes(server: &Server, fault: Fault) {
    for part in ["by-hash", "/Packages", "/Sources"] {
        faulty(server, part, fault.clone());
    }
}

#[test]
fn an_index_that_all_mirrors_have_wrong_is_no_missing_one() {
    let archive = common();
    for fault in [Fault::Corrupt, Fault::ShortLength, Fault::LongLength, Fault::Portal] {
        let servers = [0, 1].map(|_| Server::start(&archive.state(0).root).unwrap());
        servers.iter().for_each(|server| wrong_indexes(server, fault.clone()));
        let ran = Mirror::new(archive).run(&[&servers[0], &servers[1]]).exits(4);
        let ran = ran.says("no mirror has the content that the signed Release names").says("nothing was published");
        for server in &servers {
            let host = server.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
            assert!(ran.stderr.contains(&host), "{fault:?}: {host}\n{}", ran.stderr);
        }
    }
}

/// By hash it comes wrong and under its own name it is not there, or the other way round.
#[test]
fn the_reason_is_not_lost_with_the_other_name() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    for (by_hash, plain) in [(Fault::Corrupt, Fault::Status(404)), (Fault::Status(404), Fault::Corrupt)] {
        let server = Server::start(&archive.state(0).root).unwrap();
        faulty(&server, "by-hash", by_hash);
        faulty(&server, "/Packages", plain.clone());
        faulty(&server, "/Sources", plain);
        Mirror::new(&archive).run(&[&server]).exits(4).says("another SHA-256");
    }
}

#[test]
fn one_wrong_and_one_missing_are_wrong() {
    let archive = common();
    let servers = [0, 1].map(|_| Server::start(&archive.state(0).root).unwrap());
    wrong_indexes(&servers[0], Fault::Status(404));
    wrong_indexes(&servers[1], Fault::Corrupt);
    Mirror::new(archive).run(&[&servers[0], &servers[1]]).exits(4).says("another SHA-256").says("not there (404)");
    Mirror::new(archive).run(&[&servers[1], &servers[0]]).exits(4);
}

#[test]
fn missing_and_broken_indexes_stay_a_matter_of_the_network() {
    let archive = common();
    for fault in [Fault::Status(404), Fault::Status(500), Fault::Truncate] {
        let server = Server::start(&archive.state(0).root).unwrap();
        wrong_indexes(&server, fault.clone());
        let ran = Mirror::new(archive).run(&[&server]);
        assert_eq!(ran.code, Some(3), "{fault:?}\n{}", ran.stderr);
    }
}

#[test]
fn a_pool_file_that_all_mirrors_have_wrong_is_exit_4() {
    let archive = common();
    let files = archive.state(0).select(|file| file.suite == "trixie");
    let path = files.keys().next().unwrap();
    for (fault, code) in [(Fault::Corrupt, 4), (Fault::ShortLength, 4), (Fault::Portal, 4), (Fault::Status(404), 2)] {
        let servers = [0, 1].map(|_| Server::start(&archive.state(0).root).unwrap());
        servers.iter().for_each(|server| faulty(server, path, fault.clone()));
        let ran = Mirror::new(archive).run(&[&servers[0], &servers[1]]).exits(code).says(path);
        let why = if code == 4 { "the received content is not what the archive signed" } else { "half-way" };
        assert!(ran.stderr.contains(why), "{fault:?}: {}", ran.stderr);
    }
}

/// An index from which nothing is read is not fetched before the plan.
#[test]
fn contents_that_all_mirrors_have_wrong_are_exit_4() {
    let (_directory, archive) = own_archive(|builder| builder.states(1).contents(true));
    let server = Server::start(&archive.state(0).root).unwrap();
    for index in archive.state(0).indexes.iter().filter(|index| index.path.contains("Contents-")) {
        faulty(&server, &index.sha256.to_string(), Fault::Corrupt);
    }
    faulty(&server, "/Contents-", Fault::Corrupt);
    Mirror::new(&archive).run(&[&server]).exits(4).says("/Contents-").says("another SHA-256");
}

/// The other form is enough for the run, but a client may ask for the one that is missing.
#[test]
fn a_form_that_all_mirrors_have_wrong_is_told() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    let server = Server::start(&archive.state(0).root).unwrap();
    let forms = archive.state(0).indexes.iter().filter(|index| index.path.ends_with("main/binary-amd64/Packages.gz"));
    let [form] = forms.collect::<Vec<_>>()[..] else { panic!("the test needs this form of an index") };
    faulty(&server, &form.sha256.to_string(), Fault::Corrupt);
    faulty(&server, "main/binary-amd64/Packages.gz", Fault::Corrupt);
    let mirror = Mirror::new(&archive);
    let ran = mirror.run(&[&server]).exits(0);
    let ran = ran.says("main/binary-amd64/Packages.gz: no mirror has the content that the signed Release names");
    assert!(ran.stderr.contains("published without it"), "{}", ran.stderr);
    mirror.check(&[]).exits(0);
}

/// Ends before any package is unpacked: the archive need not be one that a root can be made of.
#[test]
fn a_bootstrap_from_a_mirror_with_wrong_files_is_exit_4() {
    need("apt-get", "apt");
    let archive = common();
    let package = &archive.state(0).select(|file| file.suite == "trixie" && file.path.ends_with("_all.deb"));
    let path = *package.keys().next().expect("a package that any root may have");
    let (name, _) = path.rsplit_once('/').unwrap().1.split_once('_').unwrap();
    for (part, fault, said) in [
        ("Packages", Fault::Corrupt, "Packages"),
        ("by-hash", Fault::Corrupt, "another SHA-256"),
        ("/pool/", Fault::Corrupt, "cannot fetch"),
        ("/pool/", Fault::LongLength, "cannot fetch"),
    ] {
        let server = Server::start(&archive.state(0).root).unwrap();
        faulty(&server, part, fault.clone());
        match part {
            "by-hash" => faulty(&server, "/Packages", Fault::Status(404)),
            "Packages" => faulty(&server, "by-hash", fault.clone()),
            _ => {}
        }
        let place = tempfile::tempdir().unwrap();
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["bootstrap", "--variant", "custom", "--include", name, "--keyring"]).arg(archive.key());
        command.arg("trixie").arg(place.path().join("root.tar")).arg(server.url());
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{part} {fault:?}: {stderr}");
        assert!(stderr.contains(said), "{part} {fault:?}: {stderr}");
        assert!(!place.path().join("root.tar").exists());
    }
}
