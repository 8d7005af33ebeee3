//! A Release that is dated in the future, or that names itself.

use super::*;

const FAR: &str = "Fri, 01 Jan 2100 00:00:00 UTC";

fn of_the_future() -> (TempDir, Archive, Server) {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    archive.forge(0, "trixie").set_field("Date", FAR).unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    (directory, archive, server)
}

fn with_source(lists: &Lists, more: &str) {
    let text = std::fs::read_to_string(lists.at("a.sources")).unwrap();
    std::fs::write(lists.at("a.sources"), text + more).unwrap();
}

#[test]
fn a_release_of_the_future_is_refused_unless_it_is_allowed() {
    let (_directory, archive, server) = of_the_future();
    for (settings, more, code) in [
        ("", "", 5),
        ("Acquire::Max-FutureTime \"9999999999\";", "", 0),
        ("Acquire::Check-Date \"false\";", "", 0),
        ("", "Date-Max-Future: 9999999999\n", 0),
        ("", "Check-Date: no\n", 0),
        ("Acquire::Check-Date \"false\";", "Check-Date: yes\n", 5),
        ("Acquire::Max-FutureTime \"9999999999\";", "Date-Max-Future: 60\n", 5),
    ] {
        let lists = Lists::new(&server, &archive, settings);
        with_source(&lists, more);
        let ran = lists.update(&[]);
        assert_eq!(ran.code, Some(code), "{settings} {more} {}", ran.stderr);
        if code == 5 {
            ran.says(FAR).says("this machine's clock says ").says("its indexes stay as they were");
        }
    }
}

#[test]
fn lists_of_the_future_are_replaced_by_a_signed_release_alone() {
    let (_directory, archive, server) = of_the_future();
    let lists = Lists::new(&server, &archive, "");
    with_source(&lists, "Check-Date: no\n");
    lists.update(&[]).exits(0);
    let before = lists.content();
    let sources = std::fs::read_to_string(lists.at("a.sources")).unwrap().replace("Check-Date: no\n", "");
    let trusted: String =
        sources.lines().filter(|line| !line.starts_with("Signed-By")).map(|line| format!("{line}\n")).collect();
    server.switch_root(&archive.state(1).root);
    std::fs::write(lists.at("a.sources"), trusted + "Trusted: yes\n").unwrap();
    lists.update(&[]).exits(5).says("older than the local");
    assert!(lists.content() == before);
    std::fs::write(lists.at("a.sources"), sources).unwrap();
    lists.update(&[]).exits(0).says("replaces the local one").says(FAR);
    let theirs = Lists::new(&server, &archive, "");
    theirs.update_by_apt();
    // Besides the files, the list of patches that were used.
    let now = lists.content();
    for (name, content) in theirs.content() {
        assert!(now.get(&name) == Some(&content), "{name}");
    }
}

#[test]
fn a_mirror_of_the_future_does_not_win_over_a_right_one() {
    let (directory, archive, server) = of_the_future();
    let good = Server::start(&archive.state(1).root).unwrap();
    for order in [[&server, &good], [&good, &server]] {
        let list = directory.path().join("mirrors");
        std::fs::write(&list, order.map(|server| format!("{}\n", server.url())).concat()).unwrap();
        let lists = Lists::at_url(&format!("mirror+file:{}", list.display()), &archive, "");
        lists.update(&[]).exits(0);
    }
}

#[test]
fn a_release_that_lists_signed_files_is_updated_as_apt_does() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let forge = archive.forge(0, "trixie");
    let line = |name: &str| format!(" {} 38 {name}\n", "0".repeat(64));
    let text = forge.release().unwrap() + &["Release", "./InRelease", "Release.gpg"].map(line).concat();
    forge.set_release(&text).unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    let (ours, theirs) = (Lists::new(&server, &archive, ""), Lists::new(&server, &archive, ""));
    ours.update(&[]).exits(0);
    theirs.update_by_apt();
    assert!(ours.content() == theirs.content());
    let before = ours.content();
    ours.update(&[]).exits(0);
    assert!(ours.content() == before);
}

#[test]
fn an_index_that_all_mirrors_have_wrong_is_exit_4() {
    for fault in [Fault::Corrupt, Fault::Portal] {
        let (ran, changed) = with_fault(|server| {
            for part in ["Packages", "Sources", "by-hash"] {
                server.add_fault(FaultRule::always(PathMatch::Contains(part.into()), fault.clone()));
            }
        });
        ran.exits(4).says("cannot fetch").says("its indexes stay as they were");
        assert!(!changed);
    }
}

/// Limits of validity come from the source, from the label or from apt's configuration.
#[test]
fn a_release_is_expired_when_apt_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let forge = archive.forge(0, "trixie");
    forge.set_field("Label", "SomeLabel").unwrap();
    let now = jiff::Timestamp::now().as_second();
    let label = "Acquire::Max-ValidTime::SomeLabel";
    for (until, settings, more, code) in [
        (now + 86_400, "".to_owned(), "", 0),
        (now + 86_400, format!("{label} \"1\";"), "", 5),
        (now + 86_400, format!("Acquire::Max-ValidTime \"1\"; {label} \"0\";"), "", 0),
        (now - 60, "Acquire::Check-Valid-Until \"false\";".to_owned(), "", 0),
        (now - 60, "Acquire::Check-Valid-Until \"false\";".to_owned(), "Check-Valid-Until: yes\n", 5),
        (now + 86_400, "".to_owned(), "Valid-Until-Min: 999999999\nValid-Until-Max: 1\n", 5),
        (now - 60, "".to_owned(), "Valid-Until-Min: 999999999\n", 0),
        (now + 86_400, "".to_owned(), "Valid-Until-Max: 0\n", 0),
    ] {
        forge.valid_until(until).unwrap();
        let server = Server::start(&archive.state(0).root).unwrap();
        let (ours, theirs) = (Lists::new(&server, &archive, &settings), Lists::new(&server, &archive, &settings));
        for lists in [&ours, &theirs] {
            with_source(lists, more);
        }
        let ran = ours.update(&[]);
        assert_eq!(ran.code, Some(code), "{settings} {more} {ran:?}");
        let by_apt = theirs.apt("apt-get", &["update"]);
        assert_eq!(by_apt.status.success(), code == 0, "{settings} {more} {by_apt:?}");
    }
}

#[test]
fn entries_that_apt_calls_conflicting_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    for (first, second, is_refused) in [
        ("check-valid-until=no", "check-valid-until=yes", true),
        ("check-valid-until=no", "", true),
        ("check-date=no", "", true),
        ("valid-until-max=999999999", "valid-until-max=999999998", true),
        ("valid-until-max=999999999", "", true),
        ("", "valid-until-max=999999999", false),
        ("trusted=no", "", true),
        ("allow-insecure=yes", "", true),
        ("check-date=no", "check-date=no", false),
    ] {
        let (ours, theirs) = (Lists::new(&server, &archive, ""), Lists::new(&server, &archive, ""));
        for lists in [&ours, &theirs] {
            let entry = |kind: &str, more: &str| {
                let key = archive.key().display().to_string();
                format!("{kind} [signed-by={key} {more}] {} trixie main\n", server.url())
            };
            std::fs::write(lists.at("a.list"), entry("deb", first) + &entry("deb-src", second)).unwrap();
            let settings = std::fs::read_to_string(lists.at("apt.conf")).unwrap();
            std::fs::write(lists.at("apt.conf"), settings.replace("a.sources", "a.list")).unwrap();
        }
        let ran = ours.update(&[]);
        let by_apt = theirs.apt("apt-get", &["update"]);
        assert_eq!(by_apt.status.success(), !is_refused, "{first} {second} {by_apt:?}");
        assert_eq!(ran.code, Some(i32::from(is_refused)), "{first} {second} {ran:?}");
    }
}
