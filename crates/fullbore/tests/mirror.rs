//! `fullbore mirror` as people use it: what it fetches, keeps and says, and how it fails.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fullbore_testkit::archive::{ArchiveFile, FileKind};
use fullbore_testkit::digest::Digest;
use fullbore_testkit::faults;
use fullbore_testkit::server::{Fault, FaultRule, Life, OwnCertificate, PathMatch, Server, TestCa, TlsSpec};
use fullbore_testkit::verify;
use harness::{Mirror, common, lost, own_archive, stranger, verified};
use serde_json::{Value, json};

/// A server of state 0 of the common archive, and a mirror of it.
fn mirrored() -> (Mirror, Server) {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, common(), 0);
    server.take_log();
    (mirror, server)
}

#[test]
fn a_wrong_suite_name_is_told_with_a_hint() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common()).suite("trixi");
    mirror
        .run(&[&server])
        .exits(3)
        .says("trixi: no mirror has its Release")
        .says("404")
        .says("hint: check the address");
    assert!(mirror.tree().is_empty());
    let inrelease = std::fs::read(common().state(0).root.join("dists/trixie/InRelease")).unwrap();
    let (_directory, other) = own_archive(|builder| builder.states(1));
    let directory = other.state(0).root.join("dists/bookworm");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("InRelease"), inrelease).unwrap();
    let server = Server::start(&other.state(0).root).unwrap();
    let mirror = Mirror::new(common()).suite("bookworm");
    // Only a warning, as for apt; but its indexes are not there.
    mirror.run(&[&server]).exits(3).says("warning: bookworm: requested suite \"bookworm\"").says("hint: ");
    assert!(mirror.tree().is_empty());
}

#[test]
fn an_unknown_component_or_architecture_is_told_with_the_known_ones() {
    let (mirror, server) = mirrored();
    let before = mirror.tree();
    mirror.run_with(&[&server], &["--component", "mian"]).exits(1).says("mian").says("main");
    mirror.run_with(&[&server], &["--arch", "amd46"]).exits(1).says("amd46").says("amd64");
    assert_eq!(before, mirror.tree());
}

#[test]
fn the_key_of_somebody_else_is_refused() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let keyring = mirror.to.with_extension("gpg");
    std::fs::write(&keyring, stranger().public_key().unwrap()).unwrap();
    let mirror = mirror.keyring(keyring);
    mirror.run(&[&server]).exits(4).says("hint: pass the archive's keyring with --keyring");
    assert!(mirror.tree().is_empty());
    let mirror = mirror.keyring(PathBuf::from("/nonexistent/key.gpg"));
    mirror.run(&[&server]).exits(1).says("/nonexistent/key.gpg");
}

/// What is said of an origin that cannot be used: the lines below the first.
fn why_not(from: &str) -> Vec<String> {
    let mirror = Mirror::new(common());
    let mut command = mirror.command(&[], &["--from", from]);
    command.env("LC_ALL", "C");
    let ran = mirror.finish(command).exits(3).says("error: trixie: no mirror has its Release");
    let lines = ran.stderr.lines().skip_while(|line| !line.starts_with("error: ")).skip(1);
    lines.map(|line| line.trim().to_owned()).collect()
}

#[test]
fn hosts_that_cannot_be_used_are_told_with_reason_and_hint() {
    let reach =
        "hint: check the address and the network; a proxy is named by http_proxy and https_proxy in the environment";
    let refused = ["http://127.0.0.1:9/debian: cannot connect: Connection refused (os error 111)", reach];
    assert_eq!(why_not("http://127.0.0.1:9/debian/"), refused);
    let unknown = why_not("http://no-such-host.invalid/debian");
    assert!(unknown[0].starts_with("http://no-such-host.invalid/debian: name lookup: "), "{unknown:?}");
    assert_eq!((unknown[0].matches("no-such-host").count(), unknown[1].as_str()), (1, reach));

    // As a web server answers what is no request.
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", plain.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in plain.incoming() {
            let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let said = format!("{address}: TLS handshake: the answer is not TLS (is it an http:// address?)");
    assert_eq!(why_not(&address), [said.as_str(), reach]);

    let authority = TestCa::new().unwrap();
    let server =
        Server::builder(&common().state(0).root).tls(&authority, &TlsSpec::default()).unwrap().start().unwrap();
    let url = server.url();
    let url = url.trim_end_matches('/');
    let said = format!("{url}: certificate issued by an unknown authority");
    let hint =
        "hint: a certificate authority of your own, or the server's own certificate, is named with --cacert FILE";
    assert_eq!(why_not(url), [said.as_str(), hint]);
    let mirror = Mirror::new(common());
    let other = mirror.to.with_extension("pem");
    std::fs::write(&other, TestCa::new().unwrap().pem()).unwrap();
    let other = other.display().to_string();
    let ran = mirror.finish(mirror.command(&[], &["--from", url, "--cacert", &other])).exits(3);
    ran.says("hint: --cacert must name the authority that issued the server's certificate, or that certificate itself");

    std::fs::write(&other, "no certificate").unwrap();
    let ran = mirror.finish(mirror.command(&[], &["--from", url, "--cacert", &other])).exits(1);
    ran.says(&format!("error: {other}: no certificate in it"));

    for (spec, said) in [
        (TlsSpec { expired: true, ..TlsSpec::default() }, "certificate expired (Tue, 01 Jan 2002 00:00:00 GMT)"),
        (
            TlsSpec { names: vec!["b.example.org".to_owned()], ..TlsSpec::default() },
            "certificate is for b.example.org, not",
        ),
    ] {
        let server = Server::builder(&common().state(0).root).tls(&authority, &spec).unwrap().start().unwrap();
        std::fs::write(&other, authority.pem()).unwrap();
        let ran = mirror.finish(mirror.command(&[], &["--from", &server.url(), "--cacert", &other])).exits(3);
        ran.says(said).says("hint: the server needs another certificate, or the address another name");
    }
}

/// As by curl and wget: instead of the system's authorities, not beside them.
#[test]
fn authorities_named_by_variables_of_openssl_were_ignored() {
    let authority = TestCa::new().unwrap();
    let server =
        Server::builder(&common().state(0).root).tls(&authority, &TlsSpec::default()).unwrap().start().unwrap();
    let mirror = Mirror::new(common());
    let directory = tempfile::tempdir().unwrap();
    let (own, other) = (directory.path().join("own"), directory.path().join("other.pem"));
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("a.pem"), authority.pem()).unwrap();
    std::fs::write(&other, TestCa::new().unwrap().pem()).unwrap();
    let run = |variables: &[(&str, &Path)]| {
        let mut command = mirror.command(&[], &["--from", &server.url()]);
        command.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR").envs(variables.iter().copied());
        mirror.finish(command)
    };
    run(&[("SSL_CERT_FILE", &other)]).exits(3).says("certificate issued by an unknown authority");
    run(&[("SSL_CERT_FILE", Path::new("/nonexistent"))]).exits(3).says("/nonexistent");
    run(&[("SSL_CERT_FILE", &own.join("a.pem"))]).exits(0);
    run(&[("SSL_CERT_FILE", &other), ("SSL_CERT_DIR", &own)]).exits(0);
    verified(&mirror.to, common(), 0);
}

#[test]
fn a_certificate_that_signed_itself_is_trusted_if_it_is_named() {
    for authority in [false, true] {
        let certificate = OwnCertificate::new(&TlsSpec::default(), authority).unwrap();
        let server = Server::builder(&common().state(0).root).own_certificate(&certificate).start().unwrap();
        let url = server.url();
        let said = why_not(&url);
        assert!(said[1].contains("or the server's own certificate, is named with --cacert FILE"), "{said:?}");
        let mirror = Mirror::new(common());
        let own = mirror.to.with_extension("pem");
        std::fs::write(&own, certificate.pem()).unwrap();
        let own = own.display().to_string();
        mirror.finish(mirror.command(&[], &["--from", &url, "--cacert", &own])).exits(0);
        verified(&mirror.to, common(), 0);
        // The same certificate under another name or out of date stays refused.
        let spec = TlsSpec { names: vec!["b.example.org".to_owned()], ..TlsSpec::default() };
        let out_of_date = TlsSpec { expired: true, ..TlsSpec::default() };
        for (spec, said) in [(spec, "certificate is for b.example.org"), (out_of_date, "certificate expired")] {
            let certificate = OwnCertificate::new(&spec, authority).unwrap();
            let server = Server::builder(&common().state(0).root).own_certificate(&certificate).start().unwrap();
            let mirror = Mirror::new(common());
            std::fs::write(&own, certificate.pem()).unwrap();
            mirror.finish(mirror.command(&[], &["--from", &server.url(), "--cacert", &own])).exits(3).says(said);
            assert!(mirror.tree().is_empty());
        }
    }
}

#[test]
fn credentials_are_neither_shown_nor_kept() {
    let said = why_not("http://us:sekret@127.0.0.1:9/debian");
    assert!(said[0].starts_with("http://127.0.0.1:9/debian: ") && !said.concat().contains("sekret"), "{said:?}");
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let from = server.url().replace("http://", "http://us:sekret@");
    let ran = mirror.finish(mirror.command(&[], &["--from", &from, "--json"])).exits(0);
    assert!(!ran.stdout.contains("sekret") && !ran.stderr.contains("sekret"), "{ran:?}");
    let state = std::fs::read_to_string(mirror.to.join(".fullbore/state")).unwrap();
    assert!(state.contains("127.0.0.1") && !state.contains("sekret"), "{state}");
    // The next run still asks for what has changed only.
    server.take_log();
    mirror.finish(mirror.command(&[], &["--from", &from])).exits(0);
    assert_eq!(server.take_log().iter().map(|entry| entry.status).collect::<Vec<_>>(), [304]);
}

#[test]
fn a_mirror_that_asks_for_credentials_gets_those_of_the_address() {
    let server = Server::builder(&common().state(0).root)
        .behaviour(|behaviour| behaviour.authorization = Some("Basic dXM6c2VrcmV0".to_owned()))
        .start()
        .unwrap();
    let mirror = Mirror::new(common());
    mirror.run(&[&server]).exits(3).says("401").says("auth.conf");
    let from = server.url().replace("http://", "http://us:sekret@");
    mirror.finish(mirror.command(&[], &["--from", &from])).exits(0);
}

#[test]
fn an_installer_image_without_a_size_in_the_head_is_mirrored() {
    let (_directory, archive) = own_archive(|builder| builder.installer(true).states(1));
    let chunked = |name: &str| FaultRule::always(PathMatch::Suffix(name.to_owned()), Fault::Chunked);
    let whole = |name: &str| FaultRule::always(PathMatch::Suffix(name.to_owned()), Fault::UntilClose);
    let server = Server::builder(&archive.state(0).root)
        .fault(chunked("/mini.iso"))
        .fault(whole("/vmlinuz"))
        .fault(FaultRule::always(PathMatch::Suffix("/netboot.tar.gz".to_owned()), Fault::Status(404)))
        .start()
        .unwrap();
    let mirror = Mirror::new(&archive);
    let ran = mirror.run(&[&server]).exits(0).says("warning: ").says("netboot.tar.gz: skipped");
    assert_eq!(ran.stderr.matches("skipped").count(), 1, "{}", ran.stderr);
    let images = archive.state(0).select(|file| file.suite == "trixie" && !file.path.ends_with("/netboot.tar.gz"));
    assert!(images.keys().any(|path| path.ends_with("/mini.iso")));
    harness::holds(&mirror.to, &images);
    mirror.check(&[]).exits(0);
}

/// Their sizes are in no index.
#[test]
fn installer_images_count_with_their_bytes() {
    let (_directory, archive) = own_archive(|builder| builder.installer(true));
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    let wanted = |state: usize| archive.state(state).select(|file| file.suite == "trixie");
    let count = |state: usize| (wanted(state).len() as u64, wanted(state).values().map(|file| file.size).sum::<u64>());
    let planned = |ran: &harness::Ran| (ran.number("plan.wanted_files"), ran.number("plan.wanted_bytes"));
    for state in [0, 1] {
        server.switch_root(&archive.state(state).root);
        let ran = mirror.run(&[&server]).exits(0);
        assert_eq!(planned(&ran), count(state));
    }
    std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    let ran = mirror.run(&[&server]).exits(0);
    assert_eq!(planned(&ran), count(1));
    assert_eq!((ran.number("totals.kept_files"), ran.number("totals.kept_bytes")), count(1));
}

#[test]
fn wrong_bytes_of_the_only_mirror_are_called_so() {
    let server = Server::builder(&common().state(0).root).fault(FaultRule::pool(1.0, Fault::Corrupt)).start().unwrap();
    let ran = Mirror::new(common()).run(&[&server]).exits(4).says("another SHA-256").says("hint: add another --from");
    assert!(!ran.stderr.contains("no mirror could be reached"), "{}", ran.stderr);
    assert!(ran.number("totals.wasted_bytes") > 0);
}

#[test]
fn the_file_that_a_host_had_wrong_is_named() {
    let files = common().state(0).select(|file| file.path.ends_with(".deb"));
    let path = *files.keys().next().unwrap();
    for json in [true, false] {
        let rule = FaultRule::once(PathMatch::Exact(format!("/{path}")), Fault::Corrupt);
        let server = Server::builder(&common().state(0).root).fault(rule).start().unwrap();
        let more: &[&str] = if json { &["--json"] } else { &[] };
        let ran = Mirror::new(common()).run_with(&[&server], more).exits(0);
        assert_eq!(ran.report["summary"]["hosts"][0]["faults"][0]["path"], path);
        if json {
            let mut events = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let fault = events.find(|event| event["event"] == "host_fault").unwrap();
            assert_eq!(fault["path"], path, "{fault}");
        } else {
            ran.says(&format!("warning: {}: {path}: ", server.address()));
        }
    }
}

/// What a run received is needed, or wasted.
#[test]
fn what_was_refused_counts_as_wasted() {
    let good = Server::start(&common().state(0).root).unwrap();
    let bad = Server::builder(&common().state(0).root).fault(FaultRule::pool(1.0, Fault::Corrupt)).start().unwrap();
    let mirror = Mirror::new(common());
    let ran = mirror.run(&[&good, &bad]).exits(0);
    let total = |name: &str| ran.number(&format!("totals.{name}"));
    assert_eq!(total("received_bytes"), total("needed_bytes") + total("wasted_bytes"), "{}", ran.report["summary"]);
}

#[test]
fn trace_files_are_of_complete_runs_and_marks_of_runs_at_work() {
    let (mirror, server) = mirrored();
    let traces = || everything(&mirror.to.join("project"));
    let marks = || {
        let names = std::fs::read_dir(&mirror.to).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("Archive-Update")).count()
    };
    let before = traces();
    server.switch_root(&common().state(1).root);
    server.add_fault(FaultRule::pool(1.0, Fault::Status(404)));
    mirror.run(&[&server]).exits(2);
    assert_eq!((traces(), marks()), (before, 0), "a run that published nothing");
    server.change(|behaviour| behaviour.faults.clear());
    server.add_fault(FaultRule::always(PathMatch::Contains("/binary-amd64/".into()), Fault::Status(404)));
    mirror.run(&[&server]).exits(3);
    assert_eq!(marks(), 0, "a run that failed");
    server.change(|behaviour| behaviour.faults.clear());
    let named = ["--trace-host", "ftp.example.org", "--trace-info", "Maintainer: A B <a@example.org>"];
    mirror.run_with(&[&server], &named).exits(0);
    let own = std::fs::read_to_string(mirror.to.join("project/trace/ftp.example.org")).unwrap();
    assert!(own.contains("\nRunning on host: ftp.example.org\nMaintainer: A B <a@example.org>\n"), "{own}");
    mirror.run_with(&[&server], &["--trace-host", "../x"]).exits(1);
    mirror.run_with(&[&server], &["--trace-info", "no field"]).exits(1);
}

#[test]
fn dead_mirrors_are_named_and_the_tree_stays() {
    let (mirror, server) = mirrored();
    let before = mirror.tree();
    let other = Server::start(&common().state(0).root).unwrap();
    server.live(Life::Refusing);
    other.live(Life::Refusing);
    mirror.run(&[&server, &other]).exits(3).says(&server.url()).says(&other.url()).says("hint:");
    assert_eq!(before, mirror.tree());
}

#[test]
fn a_mirror_that_dies_in_mid_run_costs_no_file() {
    let good = Server::start(&common().state(0).root).unwrap();
    let dying =
        Server::builder(&common().state(0).root).behaviour(|b| b.die_after_bytes = Some(20_000)).start().unwrap();
    let mirror = Mirror::new(common());
    mirror.run(&[&good, &dying]).exits(0);
    verified(&mirror.to, common(), 0);
    // The origin itself: its InRelease came, the rest is with the other.
    let dying =
        Server::builder(&common().state(0).root).behaviour(|b| b.die_after_bytes = Some(20_000)).start().unwrap();
    let mirror = Mirror::new(common());
    let ran = mirror.run(&[&dying, &good]).exits(0);
    assert!(ran.number("totals.files") > 10);
}

#[test]
fn a_read_only_destination_is_told_before_any_request() {
    assert!(
        faults::can_mount(),
        "a read-only destination is a mount: run as root (script/test does), or allow user namespaces"
    );
    let server = Server::start(&common().state(0).root).unwrap();
    let disk = faults::SmallDisk::new(8 << 20, 0).unwrap();
    // `bind`: only this mount, which needs no root.
    let remounted = disk.command("mount").args(["-o", "remount,bind,ro"]).arg(disk.inner_path()).status().unwrap();
    assert!(remounted.success());
    let mirror = Mirror::new(common());
    let mut command = disk.command(env!("CARGO_BIN_EXE_fullbore"));
    let to = mirror.to.display().to_string();
    let inner = disk.inner_path().join("m").display().to_string();
    command
        .args(mirror.arguments(&[&server], &[]).into_iter().map(|text| if text == to { inner.clone() } else { text }));
    mirror.finish(command).exits(7).says(&inner).says("ead-only").says("hint: mount the file system for writing");
    assert_eq!(server.counters().requests, 0, "nothing is asked for when nothing can be written");
}

#[test]
fn a_directory_of_somebody_else_is_told_with_a_hint() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let above = mirror.to.parent().unwrap();
    let key = above.join("key.gpg");
    std::fs::copy(common().key(), &key).unwrap();
    std::fs::set_permissions(above, std::fs::Permissions::from_mode(0o555)).unwrap();
    let mut command = harness::as_another();
    command.args(["mirror", "--suite", "trixie", "--from", &server.url()]);
    command.arg("--keyring").arg(&key).arg("--to").arg(&mirror.to);
    let ran = mirror.finish(command);
    std::fs::set_permissions(above, std::fs::Permissions::from_mode(0o755)).unwrap();
    ran.exits(7).says("Permission denied").says("hint: run as a user who has access to it");
    assert_eq!(server.counters().requests, 0);
    // A file where the directory should be.
    std::fs::write(&mirror.to, "").unwrap();
    mirror.run(&[&server]).exits(7).says("hint: a file is in the way of a directory");
}

#[test]
fn an_unchanged_archive_costs_one_connection_and_no_change() {
    let (mirror, server) = mirrored();
    let (before, connections) = (mirror.tree(), server.counters().connections);
    mirror.run(&[&server]).exits(0);
    let log = server.take_log();
    assert!(log.len() <= 2, "{log:#?}");
    // nginx would ask of a time that it be the very one it tells.
    assert!(log[0].header("if-none-match").is_some() && log[0].header("if-modified-since").is_none(), "{log:#?}");
    assert_eq!(log[0].status, 304);
    assert!(server.counters().connections - connections <= 1);
    assert_eq!(before, mirror.tree());
    mirror.run_with(&[&server], &["--changed-exit"]).exits(10);
}

#[test]
fn trace_files_tell_serial_and_hierarchy_of_the_origin() {
    let (_directory, archive) = own_archive(|builder| builder);
    for state in &archive.states {
        let directory = state.root.join("project/trace");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("master"), "Sat Nov 21 01:00:00 UTC 2026\nArchive serial: 2026112101\n").unwrap();
        std::fs::write(directory.join("_hierarchy"), "above.example.org above.example.org master.example.org\n")
            .unwrap();
    }
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    let host = host_name();
    let read = |name: &str| std::fs::read_to_string(mirror.to.join("project/trace").join(name)).unwrap();
    let own = read(&host);
    assert!(own.contains("\nArchive serial: 2026112101\n"), "{own}");
    let address = server.url();
    let upstream = address.trim_start_matches("http://").trim_end_matches('/');
    let expected = format!("above.example.org above.example.org master.example.org\n{host} {host} {upstream}\n");
    assert_eq!(read("_hierarchy"), expected);
    let mut names = [host.as_str(), "master"];
    names.sort_unstable();
    assert_eq!(read("_traces"), names.map(|name| format!("{name}\n")).concat());
    assert!(read("master").contains("2026112101"));
    // They are asked for when something is new, and only then.
    server.take_log();
    mirror.run(&[&server]).exits(0);
    let log = server.take_log();
    assert!(log.len() == 1 && log[0].path.ends_with("/InRelease"), "{log:#?}");
    server.switch_root(&archive.state(1).root);
    // A web page is no trace file.
    std::fs::write(archive.state(1).root.join("project/trace/master"), "<html>\nArchive serial: 1\n").unwrap();
    mirror.run(&[&server]).exits(0);
    let asked = server.take_log().iter().filter(|entry| entry.path.contains("/project/trace/")).count();
    assert!(asked <= 3, "{asked}");
    assert!(!read(&host).contains("Archive serial") && read("master").contains("2026112101"));
    assert_eq!(read("_hierarchy"), expected);
}

#[test]
fn sources_of_apt_are_reached_through_its_proxies() {
    harness::need("apt-config", "apt");
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common()).suite("");
    let sources = mirror.to.with_extension("sources");
    let entry = format!("Types: deb\nURIs: {}\nSuites: trixie\nComponents: main\n", server.url());
    std::fs::write(&sources, entry).unwrap();
    let run = |lines: &str| {
        let mut command = mirror.command(&[], &["--sources", sources.to_str().unwrap()]);
        command.env("APT_CONFIG", mirror.apt_config(lines));
        mirror.finish(command)
    };
    // Nobody listens at port 9 of this machine.
    let proxy = "Acquire::http::Proxy \"http://127.0.0.1:9\";\n";
    run(proxy).exits(3).says("127.0.0.1:9");
    assert_eq!(server.counters().requests, 0);
    run(&format!("{proxy}Acquire::http::Proxy::127.0.0.1 \"DIRECT\";\n")).exits(0);
    verified_binaries(&mirror);
    // Flags name hosts of the user's own, and apt's configuration is not asked.
    let mirror = Mirror::new(common());
    let mut command = mirror.command(&[&server], &[]);
    command.env("APT_CONFIG", mirror.apt_config(proxy));
    mirror.finish(command).exits(0);
}

/// `Signed-By` of apt's sources: an inline key, and keys by their fingerprint.
#[test]
fn sources_tell_who_must_have_signed() {
    let server = Server::start(&common().state(0).root).unwrap();
    let run = |signed_by: &str| {
        let mirror = Mirror::new(common()).suite("").no_keyring();
        let sources = mirror.to.with_extension("sources");
        let entry =
            format!("Types: deb\nURIs: {}\nSuites: trixie\nComponents: main\nSigned-By: {signed_by}\n", server.url());
        std::fs::write(&sources, entry).unwrap();
        let ran = mirror.run_with(&[], &["--sources", sources.to_str().unwrap()]);
        (mirror, ran)
    };
    let inline = |key: Vec<u8>| {
        let lines = |line: &str| if line.is_empty() { "\n .".to_owned() } else { format!("\n {line}") };
        String::from_utf8(key).unwrap().lines().map(lines).collect::<String>()
    };
    let (key, ours) = (common().key().display().to_string(), harness::signer());
    for signed_by in [inline(ours.public_key_armored().unwrap()), format!("{key} {}", ours.fingerprint())] {
        let (mirror, ran) = run(&signed_by);
        ran.exits(0);
        verified_binaries(&mirror);
    }
    for signed_by in [inline(stranger().public_key_armored().unwrap()), format!("{key} {}", stranger().fingerprint())] {
        let (mirror, ran) = run(&signed_by);
        ran.exits(4).says("nothing was published");
        assert!(mirror.tree().is_empty());
    }
}

#[test]
fn languages_of_sources_count() {
    let (_directory, archive) = own_archive(|builder| builder.extras(true).states(1));
    let server = Server::start(&archive.state(0).root).unwrap();
    let translations = |languages: &str, more: &[&str]| {
        let mirror = Mirror::new(&archive).suite("");
        let sources = mirror.to.with_extension("sources");
        let uri = server.url();
        let entry = format!("Types: deb\nURIs: {uri}\nSuites: trixie\nComponents: main\n{languages}");
        std::fs::write(&sources, entry).unwrap();
        mirror.run_with(&[], &[&["--sources", sources.to_str().unwrap()], more].concat()).exits(0);
        mirror.tree().keys().filter(|path| path.contains("/Translation-en")).count()
    };
    assert!(translations("", &[]) > 0 && translations("Languages: de en\n", &[]) > 0);
    assert_eq!([translations("Languages: none\n", &[]), translations("Languages: de\n", &[])], [0, 0]);
    assert!(translations("Languages: none\n", &["--languages", "en"]) > 0, "flags come first");
}

/// Two lines of sources for one suite that want different parts of it.
fn one_suite_in_two_sources(lines: [&str; 2], half: impl Fn(&ArchiveFile) -> bool) {
    let (_directory, archive) = own_archive(|builder| {
        builder.components(&["main", "contrib"]).architectures(&["amd64", "arm64"]).sources(16).churn(1.0)
    });
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive).suite("");
    let sources = mirror.to.with_extension("list");
    std::fs::write(&sources, lines.map(|line| line.replace("URI", &server.url()) + "\n").concat()).unwrap();
    let run = |more: &[&str]| mirror.run_with(&[], &[&["--sources", sources.to_str().unwrap()], more].concat());
    let complete = |state: usize| {
        let state = archive.state(state);
        let wanted = state.select(|file| file.kind == FileKind::Deb);
        assert!(wanted.values().any(|file| half(file)) && wanted.values().any(|file| !half(file)));
        harness::holds(&mirror.to, &wanted);
        let problems = verify::suite(&mirror.to, state, "trixie");
        assert!(problems.is_empty(), "{problems:#?}");
        mirror.check(&[]).exits(0).prints("all as signed.");
    };
    run(&[]).exits(0);
    complete(0);
    server.switch_root(&archive.state(1).root);
    run(&[]).exits(0);
    complete(1);
    let before = mirror.tree();
    server.take_log();
    run(&["--changed-exit"]).exits(10);
    // By two names it is asked for twice.
    let names = if lines.iter().all(|line| line.contains(" trixie ")) { 1 } else { 2 };
    assert_eq!((server.take_log().len(), &mirror.tree()), (names, &before));
}

#[test]
fn sources_of_different_components_are_joined_in_one_suite() {
    let lines = ["deb [arch=amd64,arm64] URI trixie main", "deb [arch=amd64,arm64] URI trixie contrib"];
    one_suite_in_two_sources(lines, |file| file.component == "main");
}

#[test]
fn sources_of_different_architectures_are_joined_in_one_suite() {
    let lines = ["deb [arch=amd64] URI trixie main contrib", "deb [arch=arm64] URI stable main contrib"];
    one_suite_in_two_sources(lines, |file| file.architecture == "arm64");
}

fn verified_binaries(mirror: &Mirror) {
    let state = common().state(0);
    let debs = state.select(|file| {
        file.suite == "trixie"
            && file.kind == FileKind::Deb
            && file.component == "main"
            && matches!(file.architecture.as_str(), "amd64" | "all")
    });
    assert!(!debs.is_empty());
    harness::holds(&mirror.to, &debs);
}

#[test]
fn dry_run_changes_nothing() {
    let (mirror, server) = mirrored();
    let before = mirror.tree();
    server.switch_root(&common().state(1).root);
    let ran = mirror.run_with(&[&server], &["--dry-run"]).exits(0);
    assert_eq!(before, mirror.tree());
    assert!(server.take_log().iter().all(|entry| !entry.path.starts_with("/pool/") || entry.method == "HEAD"));
    let planned = ran.number("plan.fetch_files");
    assert!(planned > 0);
    let ran = mirror.run(&[&server]).exits(0);
    assert_eq!(planned, ran.number("plan.fetch_files"), "the dry run planned what the run did");
    verified(&mirror.to, common(), 1);
}

/// Everything in a directory: names, inodes, contents, times.
fn everything(directory: &Path) -> String {
    let output = std::process::Command::new("find")
        .arg(directory)
        .args(["-printf", "%P %i %y %m %s %T@ %C@ %l\\n"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A dry run with temporary files in a place of its own, which must be empty afterwards.
fn dry(mirror: &Mirror, from: &[&Server], more: &[&str]) -> (harness::Ran, Vec<(String, u64)>) {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = mirror.command(from, &[&["--dry-run", "--json"], more].concat());
    command.env("TMPDIR", temporary.path());
    let ran = mirror.finish(command).exits(0);
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "temporary files are left");
    let events = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let doomed = events.filter(|event| event["event"] == "would_delete");
    let doomed = doomed.map(|event| (event["path"].as_str().unwrap().to_owned(), event["bytes"].as_u64().unwrap()));
    let doomed: Vec<_> = doomed.collect();
    assert_eq!(ran.number("plan.delete_files"), doomed.len() as u64);
    assert_eq!(ran.number("plan.delete_bytes"), doomed.iter().map(|(_, bytes)| bytes).sum::<u64>());
    (ran, doomed)
}

#[test]
fn dry_run_leaves_nothing_behind() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let (ran, _) = dry(&mirror, &[&server], &[]);
    assert!(!mirror.to.exists());
    let planned = ran.number("plan.fetch_bytes");
    let ran = mirror.run(&[&server]).exits(0);
    assert_eq!(planned, ran.number("plan.fetch_bytes"));
    // A wish for another run is not taken either.
    let host = host_name();
    std::fs::write(mirror.to.join(format!("Archive-Update-Required-{host}")), "").unwrap();
    let before = everything(&mirror.to);
    server.switch_root(&common().state(1).root);
    dry(&mirror, &[&server], &[]);
    dry(&mirror, &[&server], &["--section", "nothing", "--clean-foreign"]);
    assert_eq!(before, everything(&mirror.to));
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn a_dry_run_works_where_nothing_may_be_written() {
    assert!(
        faults::can_mount(),
        "a read-only tree is a mount: run as root (script/test does), or allow user namespaces"
    );
    let server = Server::start(&common().state(0).root).unwrap();
    let disk = faults::SmallDisk::new(64 << 20, 0).unwrap();
    let mirror = Mirror::new(common());
    let inner = disk.inner_path().join("m").display().to_string();
    let to = mirror.to.display().to_string();
    let run = |more: &[&str]| {
        let mut command = disk.command(env!("CARGO_BIN_EXE_fullbore"));
        let arguments = mirror.arguments(&[&server], more);
        command.args(arguments.into_iter().map(|text| if text == to { inner.clone() } else { text }));
        mirror.finish(command)
    };
    run(&[]).exits(0);
    let remounted = disk.command("mount").args(["-o", "remount,bind,ro"]).arg(disk.inner_path()).status().unwrap();
    assert!(remounted.success());
    server.switch_root(&common().state(1).root);
    let ran = run(&["--dry-run"]).exits(0);
    assert!(ran.number("plan.fetch_files") > 0 && ran.stdout.contains("would fetch"));
    run(&[]).exits(7);
}

#[test]
fn dry_run_foretells_deletions() {
    let (_directory, archive) = own_archive(|builder| builder.sources(20).churn(0.2));
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    std::fs::write(mirror.to.join("pool/stranger"), "12345").unwrap();
    server.switch_root(&archive.state(1).root);
    let kept = ["--keep-generations", "3"];
    assert_eq!(dry(&mirror, &[&server], &kept).1, [], "what is kept for clients is not deleted");
    let soon = ["--keep-generations", "0", "--keep-hours", "0", "--clean-foreign"];
    // What the guard would refuse is said and not counted.
    let (ran, doomed) = dry(&mirror, &[&server], &[&soon[..], &["--max-delete", "0%"]].concat());
    assert!(ran.stderr.contains("the run would end with exit code 2: refused to delete") && doomed.is_empty());
    let forced = [&soon[..], &["--force-delete"]].concat();
    let (_, doomed) = dry(&mirror, &[&server], &forced);
    assert!(doomed.contains(&("pool/stranger".to_owned(), 5)) && doomed.len() > 5, "{doomed:#?}");
    let before = mirror.tree();
    let ran = mirror.run_with(&[&server], &forced).exits(0);
    let after = mirror.tree();
    let gone: Vec<&String> = before.keys().filter(|path| !after.contains_key(*path)).collect();
    assert_eq!(gone, doomed.iter().map(|(path, _)| path).collect::<Vec<_>>());
    assert_eq!(ran.number("totals.deleted_files"), doomed.len() as u64);
    assert_eq!(ran.number("totals.deleted_bytes"), doomed.iter().map(|(_, bytes)| bytes).sum::<u64>());
}

#[test]
fn the_guard_counts_foreign_files() {
    let (mirror, server) = mirrored();
    let files = common().state(0).select(|file| file.suite == "trixie").len();
    for number in 0..3 * files {
        std::fs::write(mirror.to.join(format!("pool/stranger{number}")), "").unwrap();
    }
    let before = mirror.tree();
    let ran =
        mirror.run_with(&[&server], &["--clean-foreign"]).exits(2).says("refused to delete").says("--force-delete");
    assert_eq!(ran.number("totals.deleted_files"), 0);
    assert_eq!(before, mirror.tree());
    let ran = mirror.run_with(&[&server], &["--clean-foreign", "--max-delete", "90%"]).exits(0);
    assert_eq!(ran.number("totals.deleted_files"), 3 * files as u64);
    verified(&mirror.to, common(), 0);
}

#[test]
fn a_snapshot_stays() {
    let (mirror, server) = mirrored();
    mirror.run_with(&[&server], &["--snapshot", "first"]).exits(0);
    let refused = mirror.run_with(&[&server], &["--snapshot", "first"]).exits(1).says("first");
    assert!(!refused.stderr.contains("warning"), "{}", refused.stderr);
    server.switch_root(&common().state(1).root);
    mirror.run_with(&[&server], &["--keep-generations", "0", "--keep-hours", "0", "--force-delete"]).exits(0);
    verified(&mirror.to, common(), 1);
    let snapshot = mirror.to.join("snapshots/first");
    verified(&snapshot, common(), 0);
    let state = common().state(0);
    let (path, _) = state.select(|file| file.kind == FileKind::Deb).into_iter().next().unwrap();
    assert!(snapshot.join(path).exists());
}

/// Mostly nothing has changed, and then this is all there is to do.
#[test]
fn signatures_that_lie_here_are_checked_while_the_answer_is_on_its_way() {
    let (mirror, server) = mirrored();
    server.add_fault(FaultRule::always(PathMatch::Suffix("/InRelease".into()), Fault::Hang));
    let programs = tempfile::tempdir().unwrap();
    let (gpgv, log) = (programs.path().join("gpgv"), programs.path().join("log"));
    let path = std::env::var("PATH").unwrap();
    let script = format!("#!/bin/sh\necho run >> {}\nPATH='{path}' exec gpgv \"$@\"\n", log.display());
    fullbore_testkit::process::write_program(&gpgv, &script);
    let mut command = mirror.command(&[&server], &[]);
    command.env("PATH", format!("{}:{path}", programs.path().display()));
    let runs = || std::fs::read_to_string(&log).map_or(0, |log| log.lines().count());
    // One for the `InRelease`, one for the `Release.gpg`.
    let killed = faults::kill_when(&mut command, || runs() == 2).unwrap();
    assert!(killed.finished.is_none(), "{}", killed.said);
}

#[test]
fn a_snapshot_is_of_a_complete_run() {
    let (mirror, server) = mirrored();
    server.switch_root(&common().state(1).root);
    server.add_fault(FaultRule::pool(1.0, Fault::Status(404)));
    let snapshot = mirror.to.join("snapshots/s");
    mirror.run_with(&[&server], &["--snapshot", "s"]).exits(2).says("warning: snapshot s was not made");
    assert!(!snapshot.exists());
    server.change(|behaviour| behaviour.faults.clear());
    mirror.run_with(&[&server], &["--snapshot", "s"]).exits(0);
    verified(&snapshot, common(), 1);
}

#[test]
fn a_run_that_goes_round_twice_makes_its_snapshot_at_the_end() {
    let (mirror, server) = mirrored();
    server.switch_root(&common().state(1).root);
    let wish = mirror.to.join("Archive-Update-Required-h.example");
    std::fs::write(&wish, "").unwrap();
    server.take_log();
    mirror.run_with(&[&server], &["--snapshot", "s", "--trace-host", "h.example"]).exits(0);
    let asked = server.take_log().iter().filter(|entry| entry.path.ends_with("/InRelease")).count();
    assert!(asked == 2 && !wish.exists(), "{asked} rounds");
    verified(&mirror.to.join("snapshots/s"), common(), 1);
}

#[test]
fn a_wish_for_another_run_that_comes_during_one_is_fulfilled() {
    let server = Server::start(&common().state(0).root).unwrap();
    // Slow until the wish is there, so that it comes in the midst of the first round.
    server.change(|behaviour| behaviour.connection_rate_bytes_per_s = Some(20_000));
    let mirror = Mirror::new(common());
    let wish = mirror.to.join("Archive-Update-Required-h.example");
    let ran = std::thread::scope(|scope| {
        let run = scope.spawn(|| mirror.run_with(&[&server], &["--trace-host", "h.example"]));
        while !server.log().iter().any(|entry| entry.path.starts_with("/pool/")) {
            assert!(!run.is_finished(), "{:?}", run.join());
            std::thread::sleep(Duration::from_millis(2));
        }
        std::fs::write(&wish, "").unwrap();
        server.switch_root(&common().state(1).root);
        server.change(|behaviour| behaviour.connection_rate_bytes_per_s = None);
        run.join().unwrap()
    });
    ran.exits(0);
    assert!(!wish.exists());
    verified(&mirror.to, common(), 1);
}

#[test]
fn a_tree_of_another_program_is_adopted() {
    let (mirror, server) = mirrored();
    std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    mirror.run(&[&server]).exits(0);
    let signed = |path: &str| ["/InRelease", "/Release", "/Release.gpg"].iter().any(|name| path.ends_with(name));
    let asked = server.take_log().into_iter().map(|entry| entry.path);
    let fetched: Vec<_> = asked.filter(|path| !signed(path) && !path.contains("/project/trace/")).collect();
    assert!(fetched.is_empty(), "neither indexes nor packages: {fetched:#?}");
    verified(&mirror.to, common(), 0);
    // One file of it is wrong: that one is fetched.
    std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    let state = common().state(0);
    let (path, _) = state.select(|file| file.kind == FileKind::Deb).into_iter().next().unwrap();
    faults::flip_bit(&mirror.to.join(path), 10).unwrap();
    mirror.run(&[&server]).exits(0);
    let fetched = server.take_log().into_iter().filter(|entry| entry.path.starts_with("/pool/")).count();
    assert_eq!(fetched, 1);
    verified(&mirror.to, common(), 0);
}

#[test]
fn what_clients_of_a_tree_from_before_ask_for_is_no_stranger_yet() {
    let (mirror, server) = mirrored();
    server.switch_root(&common().state(1).root);
    mirror.run(&[&server]).exits(0);
    std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    let clean = |more: &[&str]| mirror.run_with(&[&server], &[&["--clean-foreign", "--force-delete"], more].concat());
    let older = common().state(0).select(|file| file.suite == "trixie");
    clean(&[]).exits(0).says("dists/trixie was here before this mirror, and clients may still use its earlier files");
    harness::holds(&mirror.to, &older);
    // Nothing new came meanwhile, however often it is asked for.
    (0..4).for_each(|_| drop(clean(&["--keep-hours", "0"]).exits(0)));
    harness::holds(&mirror.to, &older);
    let ran = clean(&["--keep-generations", "0", "--keep-hours", "0"]).exits(0);
    assert!(ran.number("totals.deleted_files") > 0);
    verified(&mirror.to, common(), 1);
    assert!(!verify::files(&mirror.to, &older).is_empty(), "those of before are gone");
}

#[test]
fn a_killed_run_goes_on_where_it_was() {
    const CONNECTIONS: u64 = 4;
    let (_directory, archive) =
        own_archive(|builder| builder.states(1).pool_bytes(24_000_000).largest_file_bytes(12_000_000));
    let server =
        Server::builder(&archive.state(0).root).behaviour(|b| b.rate_bytes_per_s = Some(8_000_000)).start().unwrap();
    let mirror = Mirror::new(&archive);
    let half = || server.counters().body_bytes > 12_000_000;
    let killed = faults::kill_when(&mut mirror.command(&[&server], &[]), half).unwrap();
    assert!(killed.finished.is_none(), "{}", killed.said);
    let ran = mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 0);
    assert!(ran.number("totals.resumed_bytes") > 0 || ran.number("totals.kept_bytes") > 0);
    let pool: u64 = archive.state(0).select(|_| true).values().map(|file| file.size).sum();
    let kept = ran.number("totals.resumed_bytes") + ran.number("totals.kept_bytes");
    let fetched = ran.number("totals.received_bytes");
    // What the server handed to the kernel before the kill need not have reached the program.
    let again = (fetched + 12_000_000).saturating_sub(pool);
    assert!(again <= (CONNECTIONS + 1) << 20, "{again} bytes came twice; {kept} of {pool} kept, {fetched} fetched");
}

#[test]
fn a_flat_repository_is_mirrored_with_its_own_paths() {
    let (_directory, archive) = own_archive(|builder| builder.states(1).flat(true));
    // As apt's `deb URL/flat ./`: file names are relative to the address, not to the suite.
    let server = Server::start(archive.state(0).root.join("flat")).unwrap();
    let mirror = Mirror::new(&archive).suite("./");
    mirror.run(&[&server]).exits(0);
    let expected = archive.state(0).select(|file| file.suite == "flat");
    assert!(!expected.is_empty());
    for (path, file) in expected {
        let here = mirror.to.join(path.trim_start_matches("flat/"));
        assert_eq!(Digest::of_file(&here).unwrap(), (file.sha256, file.size), "{path}");
    }
    assert!(mirror.to.join("InRelease").exists());
    mirror.run_with(&[&server], &["--changed-exit"]).exits(10);
}

#[test]
fn filters_that_leave_nothing_are_told_of() {
    let server = Server::start(&common().state(0).root).unwrap();
    let ran = Mirror::new(common()).run_with(&[&server], &["--include", "no-such-file"]).exits(0);
    ran.says("warning: the filters exclude every file");
}

#[test]
fn a_redirect_that_is_not_followed_is_told_as_such() {
    let rule = FaultRule::always(PathMatch::Any, Fault::RedirectInjection);
    let server = Server::builder(&common().state(0).root).fault(rule).start().unwrap();
    let ran = Mirror::new(common()).run(&[&server]);
    ran.says("InRelease: 302 to ").says(", not followed").says("hint: a redirect is not followed");
}

#[test]
fn a_repository_without_by_hash_or_inrelease_is_mirrored() {
    let (_directory, archive) = own_archive(|builder| builder.by_hash(false));
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 0);
    archive.forge(1, "trixie").remove_in_release().unwrap();
    server.switch_root(&archive.state(1).root);
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 1);
    let stale = mirror.to.join("dists/trixie/InRelease");
    assert!(!stale.exists(), "the InRelease of the state before contradicts the new indexes");
}

#[test]
fn a_form_that_no_mirror_has_is_told_with_a_hint() {
    let server = Server::start(&common().state(0).root).unwrap();
    let ran = Mirror::new(common()).run_with(&[&server], &["--index-formats", "plain"]).exits(3);
    ran.says("hint: remove --index-formats");
}

#[test]
fn index_formats_keep_only_the_wanted_forms() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    mirror.run_with(&[&server], &["--index-formats", "xz"]).exits(0);
    verified(&mirror.to, common(), 0);
    let tree = mirror.tree();
    assert!(tree.keys().any(|path| path.ends_with("Packages.xz")));
    assert!(!tree.keys().any(|path| path.ends_with(".gz")), "{tree:#?}");
}

#[test]
fn filters_select_files_of_the_pool() {
    let server = Server::start(&common().state(0).root).unwrap();
    let state = common().state(0);
    let pool = |mirror: &Mirror| -> Vec<String> {
        mirror.tree().into_keys().filter(|path| path.starts_with("pool/")).collect()
    };
    let mirrored = |flags: &[&str]| {
        let mirror = Mirror::new(common());
        mirror.run_with(&[&server], flags).exits(0);
        let all = state.select(|file| file.suite == "trixie");
        let names = pool(&mirror);
        harness::holds(
            &mirror.to,
            &all.into_iter().filter(|(path, _)| names.iter().any(|name| name == path)).collect(),
        );
        names
    };
    let expected = |wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
        state.select(|file| file.suite == "trixie" && wanted(&file.path)).into_keys().map(str::to_owned).collect()
    };
    let is_deb = |path: &str| path.ends_with(".deb");
    assert_eq!(mirrored(&["--include", r"\.deb$"]), expected(&is_deb));
    assert_eq!(mirrored(&["--exclude", r"\.deb$"]), expected(&|path| !is_deb(path)));
    assert_eq!(mirrored(&["--arch", "source"]), expected(&|path| !is_deb(path)));
    assert!(mirrored(&["--section", "no-such-section"]).is_empty());
    let newest = mirrored(&["--newest", "1"]);
    assert!(!newest.is_empty() && newest.len() <= expected(&|_| true).len());
}

#[test]
fn a_client_with_the_previous_inrelease_finds_everything() {
    let (mirror, server) = mirrored();
    let before = mirror.tree();
    server.switch_root(&common().state(1).root);
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, common(), 1);
    let old = common().state(0);
    harness::holds(&mirror.to, &old.select(|file| file.suite == "trixie"));
    for index in old.indexes.iter().filter(|index| index.present) {
        let directory = mirror.to.join("dists/trixie").join(&index.path).parent().unwrap().join("by-hash/SHA256");
        assert!(directory.join(index.sha256.to_string()).exists(), "{} by its old hash", index.path);
    }
    let lost = lost(&before, &mirror.tree());
    assert!(lost.iter().all(|path| path.starts_with("dists/") && !path.contains("by-hash")), "{lost:#?}");
    let gone = old.select(|file| !common().state(1).files.iter().any(|new| new.path == file.path));
    assert!(!gone.is_empty(), "the test needs a file that only the old state names");
    // With retention over, they go; what the present state names stays.
    mirror
        .run_with(&[&server], &["--keep-generations", "0", "--keep-hours", "0", "--clean-foreign", "--force-delete"])
        .exits(0)
        .prints(" deleted, ");
    assert!(verify::files(&mirror.to, &common().state(1).select(|_| true)).is_empty());
}

#[test]
fn json_lines_end_with_the_totals() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let ran = mirror.run_with(&[&server], &["--json"]).exits(0);
    let events: Vec<serde_json::Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.first().unwrap()["event"], "started");
    let last = events.last().unwrap();
    assert_eq!(last["event"], "summary");
    assert_eq!(last["exit_code"], 0);
    assert_eq!(last["totals"]["written_bytes"], ran.number("totals.written_bytes"));
    assert!(last["verdict"]["limit"].is_string() || last["verdict"].is_object(), "{last:#}");
    assert_eq!(events.iter().filter(|event| event["event"] == "summary").count(), 1);
    // A failure too is one event, and the totals follow.
    server.live(Life::Refusing);
    let ran = mirror.run_with(&[&server], &["--json"]).exits(3);
    let events: Vec<serde_json::Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let error = events.iter().find(|event| event["event"] == "error").unwrap();
    assert_eq!(error["exit_code"], 3);
}

#[test]
fn the_report_page_needs_nothing_else() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let page = mirror.to.with_extension("html");
    let mut arguments = mirror.arguments(&[&server], &[]);
    let place = arguments.iter().position(|text| text == "--report").unwrap() + 1;
    arguments[place] = page.display().to_string();
    let mut command = fullbore_testkit::process::clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(arguments);
    mirror.finish(command).exits(0);
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.to_lowercase().starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
    for outside in ["src=\"", "href=\"http", "url(http", "@import", "<link", "<script src", "<iframe"] {
        assert!(!text.contains(outside), "{outside}");
    }
    assert!(text.contains("<svg"));
}

#[test]
fn rate_limit_holds() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let start = std::time::Instant::now();
    let ran = mirror.run_with(&[&server], &["--limit-rate", "200k"]).exits(0);
    let seconds = start.elapsed().as_secs_f64();
    let rate = ran.number("totals.received_bytes") as f64 / seconds;
    // The first burst may be a fifth of a second's worth.
    assert!(rate < 260_000.0, "{rate} bytes/s");
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn the_report_has_the_hosts_as_they_were() {
    let archive = common();
    let (good, dead) = (Server::start(&archive.state(0).root).unwrap(), Server::start(&archive.state(0).root).unwrap());
    let lacking = Server::builder(&archive.state(0).root)
        .fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::Status(404)))
        .start()
        .unwrap();
    dead.live(Life::Refusing);
    let mirror = Mirror::new(archive);
    let ran = mirror.run(&[&good, &dead, &lacking]).exits(0);
    let hosts = ran.report["summary"]["hosts"].as_array().unwrap();
    let host = |place: usize| &hosts[place];
    assert_eq!(host(0)["protocol"], "HTTP/1.1");
    assert_eq!(host(0)["origin"], true);
    assert!(host(0)["files"].as_u64().unwrap() > 0 && host(0)["best_rate_bytes_per_s"].as_u64().unwrap() > 0);
    assert!(host(0)["rtt_ms"].as_f64().unwrap() < 40.0, "{}", host(0));
    let files: u64 = hosts.iter().map(|host| host["files"].as_u64().unwrap()).sum();
    assert!(files <= ran.number("totals.files") && files > 0);
    assert_eq!((&host(1)["protocol"], &host(1)["rtt_ms"]), (&json!(""), &Value::Null), "{}", host(1));
    assert!(host(1)["state"].as_str().unwrap().contains("refused"), "{}", host(1));
    let first = &host(1)["faults"][0];
    assert!(first["at_ms"].as_u64().unwrap() <= ran.number("duration_ms"), "{first}");
    assert!(first["fault"].as_str().unwrap().contains("refused"), "{first}");
    // A run that finds nothing new asks the origin alone.
    let ran = mirror.run(&[&good, &lacking]).exits(0);
    let other = &ran.report["summary"]["hosts"][1];
    assert_eq!((&other["state"], &other["rtt_ms"]), (&json!("not asked"), &Value::Null), "{other}");
}
