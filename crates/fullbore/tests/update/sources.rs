//! Odd sources, and what apt does with them: all compared with apt's own lists.

use super::harness::servers::nginx;
use super::*;

/// Archive, server, ours and apt's lists of it, with more lines in apt's configuration.
fn world(settings: &str) -> (TempDir, Archive, Server, Lists, Lists) {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let (ours, theirs) = (Lists::new(&server, &archive, settings), Lists::new(&server, &archive, settings));
    (directory, archive, server, ours, theirs)
}

fn replace_in_sources(lists: &Lists, from: &str, to: &str) {
    let text = std::fs::read_to_string(lists.at("a.sources")).unwrap();
    assert!(text.contains(from));
    std::fs::write(lists.at("a.sources"), text.replace(from, to)).unwrap();
}

/// Most archives list the plain form and serve others; some serve fewer than they list.
#[test]
fn forms_that_are_listed_and_not_served_are_done_without() {
    for absent in [&["Packages", "Sources"][..], &["Packages", "Packages.xz", "Sources", "Sources.gz"]] {
        let (_directory, _archive, server, ours, theirs) = world("");
        for name in absent {
            server.add_fault(FaultRule::always(PathMatch::Suffix(format!("/{name}")), Fault::Status(404)));
        }
        server.add_fault(FaultRule::always(PathMatch::Contains("by-hash".into()), Fault::Status(404)));
        ours.update(&[]).exits(0);
        theirs.update_by_apt();
        assert_eq!(ours.content(), theirs.content());
    }
}

#[test]
fn an_index_that_the_release_does_not_have_is_a_warning() {
    let (directory, archive, server, ours, theirs) = world("");
    drop((archive, server));
    // A flat repository without Sources.
    flat(directory.path(), &[("Packages", ONE_PACKAGE)], 0);
    let server = Server::start(directory.path()).unwrap();
    // With a signed Release apt says the same as we; without it asks for Sources all the same.
    for (lists, types) in [(&ours, "deb deb-src"), (&theirs, "deb")] {
        let sources = format!("Types: {types}\nURIs: {}\nSuites: flat/\nTrusted: yes\n", server.url());
        std::fs::write(lists.at("a.sources"), sources).unwrap();
    }
    let ran = ours.update(&[]).exits(0);
    assert!(ran.stderr.contains("Sources is left out"), "{}", ran.stderr);
    theirs.update_by_apt();
    assert_eq!(ours.content().keys().collect::<Vec<_>>(), theirs.content().keys().collect::<Vec<_>>());
}

/// A paragraph of a `Packages`.
const ONE_PACKAGE: &str = "Package: a\nVersion: 1\nArchitecture: amd64\nFilename: a.deb\nSize: 1\n\
     SHA256: 0000000000000000000000000000000000000000000000000000000000000000\n\n";

/// Makes a flat repository of these indexes, dated so many hours ago.
fn flat(directory: &Path, indexes: &[(&str, &str)], hours: i64) {
    let root = directory.join("flat");
    std::fs::create_dir_all(&root).unwrap();
    let date = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(hours);
    let mut release = format!("Origin: flat\nDate: {}\nSHA256:\n", date.strftime("%a, %d %b %Y %H:%M:%S UTC"));
    for (name, text) in indexes {
        std::fs::write(root.join(name), text).unwrap();
        let sum = Command::new("sha256sum").arg(root.join(name)).output().unwrap().stdout;
        release.push_str(&format!(" {} {} {name}\n", String::from_utf8_lossy(&sum[..64]), text.len()));
    }
    std::fs::write(root.join("Release"), release).unwrap();
    let file = std::fs::File::options().append(true).open(root.join("Release")).unwrap();
    file.set_modified(date.into()).unwrap();
}

/// As in many a suite of updates, for which nothing has come yet.
#[test]
fn empty_indexes_are_not_fetched_and_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let (_archives, archive, server, ours, theirs) = world("");
    drop(server);
    let server = Server::start(directory.path()).unwrap();
    for lists in [&ours, &theirs] {
        let sources = format!("Types: deb deb-src\nURIs: {}\nSuites: flat/\nTrusted: yes\n", server.url());
        std::fs::write(lists.at("a.sources"), sources).unwrap();
    }
    drop(archive);
    for (packages, hours) in [("", 3), (ONE_PACKAGE, 2), ("", 1)] {
        flat(directory.path(), &[("Packages", packages), ("Sources", "")], hours);
        server.take_log();
        ours.update(&["--no-clean"]).exits(0);
        let asked = server.take_log().into_iter().filter(|entry| entry.path.contains("Packages")).count();
        assert_eq!(asked > 0, !packages.is_empty());
        theirs.update_by_apt();
        assert_eq!(ours.content(), theirs.content());
        assert_eq!(ours.update(&[]).exits(0).number("totals.deleted_files"), 0);
    }
}

#[test]
fn what_a_repository_may_change_of_itself_is_as_with_apt() {
    for (field, value, setting) in [
        ("Suite", "oldstable", ""),
        ("Suite", "oldstable", "AllowReleaseInfoChange::Suite \"no\""),
        ("Version", "99", ""),
        ("Codename", "forky", ""),
        ("Codename", "forky", "AllowReleaseInfoChange \"yes\""),
        ("Origin", "Somebody", ""),
        ("Label", "Another", "AllowReleaseInfoChange::Label \"yes\""),
        ("NotAutomatic", "yes", ""),
        ("NotAutomatic", "yes", "AllowReleaseInfoChange::DefaultPin \"yes\""),
        ("ButAutomaticUpgrades", "yes", ""),
    ] {
        let setting = if setting.is_empty() { String::new() } else { format!("Acquire::{setting};") };
        let (_directory, archive, server, ours, theirs) = world(&setting);
        ours.update(&[]).exits(0);
        theirs.update_by_apt();
        archive.forge(1, "trixie").set_field(field, value).unwrap();
        server.switch_root(&archive.state(1).root);
        let ran = ours.update(&[]);
        let by_apt = theirs.apt("apt-get", &["update"]);
        assert_eq!(ran.code == Some(0), by_apt.status.success(), "{field} {value} {setting}: {ran:?}");
        assert_eq!(ours.content(), theirs.content(), "{field} {value} {setting}");
    }
}

#[test]
fn credentials_are_not_shown() {
    let (_directory, _archive, server, ours, _theirs) = world("");
    let (plain, with) = (server.url(), server.url().replace("://", "://somebody:secret@"));
    replace_in_sources(&ours, &plain, &with);
    let shown = |ran: &Ran| assert!(!format!("{ran:?}").contains("secret"), "{ran:?}");
    shown(&ours.update(&["--json"]).exits(0));
    let traced =
        ours.command(env!("CARGO_BIN_EXE_fullbore"), &["update"]).env("FULLBORE_LOG", "trace").output().unwrap();
    let log = String::from_utf8_lossy(&traced.stderr);
    assert!(log.contains("connected to 127.0.0.1:"), "{log}");
    // "somebody:secret", as a header has it.
    assert!(!log.contains("secret") && !log.contains("c29tZWJvZHk6c2VjcmV0"), "{log}");
    replace_in_sources(&ours, "Suites: trixie", "Suites: trixie none\nAllow-Weak: yes");
    shown(&ours.update(&["--json"]).exits(2).says("none: InRelease: 404").says("without effect"));
    replace_in_sources(&ours, "http://", "other://");
    shown(&ours.update(&[]).exits(2).says("are left to apt"));
}

#[test]
fn what_a_source_asks_for_and_does_not_get_is_named() {
    let (_directory, _archive, _server, ours, theirs) = world("");
    let quiet = ours.update(&[]).exits(0);
    assert!(!quiet.stderr.contains("without effect"), "{}", quiet.stderr);
    for lists in [&ours, &theirs] {
        let path = lists.at("a.sources");
        let sources = std::fs::read_to_string(&path).unwrap();
        // The first two are apt's own defaults; Targets is heeded by both.
        let more = "Check-Date: yes\nAllow-Weak: no\nTargets: Packages\nInclude: hello\nAllow-Insecure: yes\n";
        std::fs::write(&path, sources.trim_end().to_owned() + "\n" + more).unwrap();
    }
    let ran = ours.update(&[]).exits(0);
    let said = "without effect here, unlike with apt-get update: Include, Allow-Insecure";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    theirs.update_by_apt();
    assert_eq!(ours.content(), theirs.content());
    assert!(ours.content().keys().any(|name| name.contains("Packages")));
    assert!(!ours.content().keys().any(|name| name.contains("Translation")), "{:?}", ours.content().keys());
}

#[test]
fn a_mirror_that_is_down_or_behind_does_not_decide() {
    let (directory, archive, server, ours, theirs) = world("");
    let list = directory.path().join("mirrors");
    let behind = Server::start(&archive.state(0).root).unwrap();
    server.switch_root(&archive.state(2).root);
    theirs.update_by_apt();
    let address = format!("mirror+file:{}", list.display());
    replace_in_sources(&ours, &server.url(), &address);
    // Port 9 of this machine has nobody.
    for mirrors in [
        vec!["http://127.0.0.1:9/debian".to_owned(), server.url()],
        vec!["http://127.0.0.1:9/a".to_owned(), "http://127.0.0.1:9/b".to_owned(), server.url()],
        vec![behind.url(), server.url()],
        vec![server.url(), behind.url()],
    ] {
        let _ = std::fs::remove_dir_all(ours.at("lists"));
        std::fs::write(&list, mirrors.join("\n") + "\n").unwrap();
        ours.update(&[]).exits(0);
        let ours: Vec<Vec<u8>> = ours.content().into_values().collect();
        let theirs: Vec<Vec<u8>> = theirs.content().into_values().collect();
        assert!(ours == theirs, "{mirrors:?}");
    }
}

#[test]
fn sources_left_to_apt_are_named_and_their_lists_stay() {
    let (directory, archive, _server, ours, _theirs) = world("");
    let local = format!(
        "Types: deb\nURIs: file:{}\nSuites: trixie\nComponents: main\nSigned-By: {}\n",
        archive.state(0).root.display(),
        archive.key().display()
    );
    let text = std::fs::read_to_string(ours.at("a.sources")).unwrap();
    std::fs::write(ours.at("a.sources"), format!("{text}\n{local}")).unwrap();
    ours.update_by_apt();
    let before = ours.content();
    let stray = ours.at("lists/old.example.org_debian_dists_sid_InRelease");
    std::fs::write(&stray, "").unwrap();
    let ran = ours.update(&[]).exits(0);
    assert!(ran.stderr.contains("left to apt"), "{}", ran.stderr);
    assert!(!stray.exists());
    assert_eq!(ours.content(), before);
    std::fs::write(ours.at("a.sources"), local).unwrap();
    ours.update(&[]).exits(2).says("use apt-get update");
    drop(directory);
}

#[test]
fn apts_commands_are_run_as_apt_runs_them() {
    let (directory, archive, server, ours, _theirs) = world("");
    let said = directory.path().join("said");
    let run = |lists: &Lists| {
        let _ = std::fs::remove_file(&said);
        let ran = lists.update(&[]);
        (ran.code, std::fs::read_to_string(&said).unwrap_or_default().replace('\n', " "))
    };
    let hook = |when: &str, command: &str| {
        format!("APT::Update::{when}:: \"echo {when} >> {}; {command}\";\n", said.display())
    };
    let with = |pre: &str| {
        let settings = [hook("Pre-Invoke", pre), hook("Post-Invoke", "true"), hook("Post-Invoke-Success", "true")];
        Lists::new(&server, &archive, &settings.concat())
    };
    let lists = with("true");
    assert_eq!(run(&lists), (Some(0), "Pre-Invoke Post-Invoke-Success Post-Invoke ".to_owned()));
    let failing = with("exit 3");
    assert_eq!(run(&failing), (Some(2), "Pre-Invoke Post-Invoke-Success Post-Invoke ".to_owned()));
    assert!(failing.content().len() > 1, "it goes on as apt does");
    // One of two sources, then all of them.
    let text = std::fs::read_to_string(lists.at("a.sources")).unwrap();
    let absent = text.replace("Suites: trixie", "Suites: absent");
    std::fs::write(lists.at("a.sources"), format!("{text}\n{absent}")).unwrap();
    assert_eq!(run(&lists), (Some(2), "Pre-Invoke Post-Invoke-Success Post-Invoke ".to_owned()));
    std::fs::write(lists.at("a.sources"), absent).unwrap();
    assert_eq!(run(&lists).1, "Pre-Invoke Post-Invoke ");
    drop(ours);
}

/// A real server, and three programs that go from state to state: ours, apt's own, apt's with our method.
#[test]
fn over_nginx_all_come_to_the_same() {
    need("nginx", "nginx-light");
    for merged in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let archive = archive(&directory.path().join("archive"), merged);
        let current = directory.path().join("current");
        let (_nginx, url) = nginx(directory.path(), &current);
        let method = format!("Dir::Bin::Methods::rred \"{}\";", env!("CARGO_BIN_EXE_fullbore"));
        let lists = || [kept_as("plain"), kept_as("plain"), format!("{}{method}\n", kept_as("plain"))];
        let all = lists().map(|settings| Lists::at_url(&url, &archive, &settings));
        let [ours, theirs, drop_in] = &all;
        for state in [0, 1, 3] {
            let _ = std::fs::remove_file(&current);
            std::os::unix::fs::symlink(&archive.state(state).root, &current).unwrap();
            let ran = ours.update(&[]).exits(0);
            assert_eq!(ran.number("indexes.patched") > 0, state > 0, "{ran:?}");
            theirs.update_by_apt();
            drop_in.update_by_apt();
            assert!(ours.content() == theirs.content(), "merged {merged}, state {state}: ours");
            assert!(drop_in.content() == theirs.content(), "merged {merged}, state {state}: apt with our method");
        }
    }
}

#[test]
fn credentials_are_read_where_apts_configuration_says() {
    let (directory, _archive, server, ours, theirs) = world("");
    server.change(|own| own.authorization = Some("Basic dXNlcjp3b3Jk".into()));
    let root = directory.path().join("root");
    std::fs::create_dir_all(root.join("etc/apt/auth.conf.d")).unwrap();
    let auth = format!("machine {}/ login user password word\n", server.url());
    std::fs::write(directory.path().join("netrc"), &auth).unwrap();
    std::fs::write(root.join("etc/apt/auth.conf.d/a.conf"), &auth).unwrap();
    let configuration = std::fs::read_to_string(ours.at("apt.conf")).unwrap();
    let netrc = format!("Dir::Etc::netrc \"{}\";", directory.path().join("netrc").display());
    let parts = format!("Dir::Etc::netrcparts \"{}/etc/apt/auth.conf.d\";", root.display());
    for (settings, code) in [("", 2), (&netrc, 0), (&parts, 0)] {
        for lists in [&ours, &theirs] {
            std::fs::write(
                lists.at("apt.conf"),
                configuration.replace(&ours.at("").display().to_string(), &lists.at("").display().to_string())
                    + settings,
            )
            .unwrap();
        }
        let ran = ours.update(&[]);
        assert_eq!(ran.code == Some(0), code == 0, "{settings} {ran:?}");
        assert_eq!(theirs.apt("apt-get", &["update"]).status.success(), code == 0, "{settings}");
    }
}
