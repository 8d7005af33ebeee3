//! Archives and mirrors that do harm: to themselves, if to anybody, and never to the other sources.

use std::time::Duration;

use fullbore_engine::digest::Sha256;

use super::*;

/// A file of an archive made by hand: its path below the suite, and its content.
type Made = (String, Vec<u8>);

const PACKAGES: &str = "main/binary-amd64/Packages";

/// Two states of an index and the patch between them.
fn states() -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let stanza = |number: u64| {
        let digest = Sha256::of(&number.to_le_bytes());
        format!(
            "Package: p{number}\nVersion: 1\nArchitecture: amd64\nFilename: pool/{number}.deb\nSize: 1\nSHA256: {digest}\n\n"
        )
    };
    let old: String = (0..400).map(stanza).collect();
    let new = old.replacen("Version: 1", "Version: 2", 1);
    (old.into_bytes(), new.into_bytes(), b"2c\nVersion: 2\n.\n".to_vec())
}

/// A suite `s` of these files, `hours` old.
fn publish(root: &Path, files: &[Made], hours: i64) {
    let mut release = String::new();
    for (path, content) in files {
        let at = root.join("dists/s").join(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, content).unwrap();
        release.push_str(&format!(" {} {} {path}\n", Sha256::of(content), content.len()));
    }
    let date = jiff::Timestamp::now() - jiff::Span::new().hours(hours);
    let date = date.strftime("%a, %d %b %Y %H:%M:%S UTC");
    let head =
        format!("Origin: x\nSuite: s\nCodename: s\nDate: {date}\nArchitectures: amd64\nComponents: main\nSHA256:\n");
    std::fs::write(root.join("dists/s/InRelease"), head + &release).unwrap();
}

fn index(content: &[u8]) -> Vec<Made> {
    let packed = Form::Xz.compress(content).unwrap();
    vec![(PACKAGES.to_owned(), content.to_vec()), (format!("{PACKAGES}.xz"), packed)]
}

/// An ordinary source and a hostile one, which says nothing yet.
struct World {
    _directory: TempDir,
    archive: Archive,
    good: Server,
    root: PathBuf,
    hostile: Server,
    lists: Lists,
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        let archive = archive(&directory.path().join("archive"), false);
        let good = Server::start(&archive.state(0).root).unwrap();
        let root = directory.path().join("hostile");
        std::fs::create_dir(&root).unwrap();
        let hostile = Server::start(&root).unwrap();
        let lists = Lists::new(&good, &archive, "");
        let sources = std::fs::read_to_string(lists.at("a.sources")).unwrap();
        let more = format!("Types: deb\nURIs: {}\nSuites: s\nComponents: main\nTrusted: yes\n", hostile.url());
        std::fs::write(lists.at("a.sources"), format!("{sources}\n{more}")).unwrap();
        World { _directory: directory, archive, good, root, hostile, lists }
    }

    /// The file of the hostile source's index.
    fn kept(&self) -> Option<Vec<u8>> {
        let content = self.lists.content();
        content
            .into_iter()
            .find(|(name, _)| name.contains("_dists_s_") && name.ends_with("_Packages"))
            .map(|(_, kept)| kept)
    }
}

/// A patch's name that is listed twice, or too long for a file, ends nobody's update.
#[test]
fn patches_whose_names_cannot_be_files_are_not_used() {
    let long = format!("T-{}", "a".repeat(240));
    for (name, listed) in [("P1", 2), (long.as_str(), 1)] {
        let world = World::new();
        let (old, new, script) = states();
        publish(&world.root, &index(&old), 2);
        world.lists.update(&[]).exits(0);
        assert_eq!(world.kept(), Some(old.clone()));
        let packed = Form::Gz.compress(&script).unwrap();
        let line = |content: &[u8], name: &str| format!(" {} {} {name}\n", Sha256::of(content), content.len());
        let diff_index = format!(
            "SHA256-Current: {} {}\nSHA256-History:\n{}SHA256-Patches:\n{}SHA256-Download:\n{}",
            Sha256::of(&new),
            new.len(),
            line(&old, name) + &line(b"x", name).repeat(listed - 1),
            line(&script, name),
            line(&packed, &format!("{name}.gz")),
        );
        let mut files = index(&new);
        files.push((format!("{PACKAGES}.diff/Index"), diff_index.into_bytes()));
        publish(&world.root, &files, 1);
        std::fs::write(world.root.join(format!("dists/s/{PACKAGES}.diff/{name}.gz")), packed).unwrap();
        world.good.switch_root(&world.archive.state(1).root);
        let ran = world.lists.update(&[]).exits(0);
        assert!(ran.number("indexes.patched") > 0, "the other source's");
        assert_eq!(world.kept(), Some(new));
    }
}

/// A component whose index would have a name that is none.
#[test]
fn an_index_whose_name_cannot_be_a_file_fails_its_source_alone() {
    let world = World::new();
    let long = "c".repeat(220);
    let files: Vec<Made> =
        index(&states().0).into_iter().map(|(path, content)| (path.replace("main", &long), content)).collect();
    publish(&world.root, &files, 1);
    let release = world.root.join("dists/s/InRelease");
    let text = std::fs::read_to_string(&release).unwrap().replace("Components: main", &format!("Components: {long}"));
    std::fs::write(release, text).unwrap();
    let sources = std::fs::read_to_string(world.lists.at("a.sources")).unwrap();
    let (first, second) = sources.split_once("\n\n").unwrap();
    let second = second.replace("Components: main", &format!("Components: {long}"));
    std::fs::write(world.lists.at("a.sources"), format!("{first}\n\n{second}")).unwrap();
    let ran = world.lists.update(&[]).exits(2).says("too long for the name of a file");
    assert!(ran.number("indexes.whole") > 0, "the other source's");
}

#[test]
fn a_list_of_mirrors_that_is_missing_fails_its_source_alone() {
    let world = World::new();
    let (old, new, _) = states();
    publish(&world.root, &index(&old), 2);
    let list = world.lists.at("mirrors");
    std::fs::write(&list, format!("{}\n", world.hostile.url())).unwrap();
    let sources = std::fs::read_to_string(world.lists.at("a.sources")).unwrap();
    let sources = sources.replace(&world.hostile.url(), &format!("mirror+file:{}", list.display()));
    std::fs::write(world.lists.at("a.sources"), sources).unwrap();
    world.lists.update(&[]).exits(0);
    assert_eq!(world.kept(), Some(old.clone()));
    std::fs::remove_file(&list).unwrap();
    publish(&world.root, &index(&new), 1);
    world.good.switch_root(&world.archive.state(1).root);
    let ran = world.lists.update(&[]).exits(2).says("mirrors");
    assert!(ran.number("indexes.patched") > 0, "the other source's");
    assert_eq!(world.kept(), Some(old), "its own stays");
}

#[test]
fn mirrors_that_answer_with_login_pages_do_not_end_the_search() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let servers = [0, 1, 2].map(|_| Server::start(&archive.state(0).root).unwrap());
    for server in &servers[..2] {
        server.add_fault(FaultRule::always(PathMatch::Suffix("Release".into()), Fault::Portal));
    }
    let list = directory.path().join("mirrors");
    std::fs::write(&list, servers.iter().map(|server| server.url() + "\n").collect::<String>()).unwrap();
    let lists = Lists::at_url(&format!("mirror+file:{}", list.display()), &archive, "");
    let ran = lists.update(&[]).exits(0);
    assert!(ran.number("indexes.whole") > 0);
}

/// "Not changed since the day after tomorrow" would be said of every new state.
#[test]
fn a_copy_of_a_later_time_than_its_date_hides_no_news() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let lists = Lists::new(&server, &archive, "");
    lists.update(&[]).exits(0);
    let name = lists.content().into_keys().find(|name| name.ends_with("_InRelease")).unwrap();
    let kept = std::fs::File::options().write(true).open(lists.at("lists").join(name)).unwrap();
    let later = std::time::SystemTime::now() + Duration::from_secs(2 * 86_400);
    kept.set_modified(later).unwrap();
    server.take_log();
    lists.update(&[]).exits(0);
    let log = server.take_log();
    let since = log[0].header("if-modified-since").expect("a condition");
    let since = httpdate::parse_http_date(since).unwrap();
    assert!(since + Duration::from_secs(86_400) < later, "{since:?}");
}

/// `partial/` is apt's own user's: what `gpgv` reads is not there.
#[test]
fn signatures_are_checked_where_apts_user_cannot_write() {
    let (directory, lists) = (tempfile::tempdir().unwrap(), "lists");
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let own = Lists::new(&server, &archive, "");
    // What a killed run has left shows where the next looks.
    for part in [lists, "lists/partial"] {
        std::fs::create_dir(own.at(part).join("verify-1-0")).unwrap();
    }
    own.update(&[]).exits(0);
    assert!(!own.at("lists/verify-1-0").exists() && own.at("lists/partial/verify-1-0").exists());
}

/// All names below a directory, but not what is in `partial/`.
fn names_outside_partial(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "partial").collect();
    names.sort();
    names
}

#[test]
fn a_kill_during_a_signature_check_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let own = Lists::new(&server, &archive, "");
    own.update(&[]).exits(0);
    let before = names_outside_partial(&own.at("lists"));
    server.switch_root(&archive.state(1).root);
    // A gpgv that says when it was called, and takes its time.
    let (programs, started) = (directory.path().join("programs"), directory.path().join("started"));
    std::fs::create_dir(&programs).unwrap();
    let script = format!("#!/bin/sh\necho $$ > {0}.new; mv {0}.new {0}; exec sleep 60\n", started.display());
    std::fs::write(programs.join("gpgv"), script).unwrap();
    std::fs::set_permissions(programs.join("gpgv"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut command = own.command(env!("CARGO_BIN_EXE_fullbore"), &["update", "--quiet"]);
    let mut run = command.env("PATH", path).spawn().unwrap();
    while !started.exists() {
        assert_eq!(run.try_wait().unwrap(), None, "it ended before its check");
        std::thread::sleep(Duration::from_millis(20));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let sleeper = std::fs::read_to_string(&started).unwrap();
    Command::new("kill").arg(sleeper.trim()).status().unwrap();
    assert_eq!(names_outside_partial(&own.at("lists")), before);
    let mut left = std::fs::read_dir(own.at("lists/partial")).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(left.find(|path| path.is_dir()), None);
    own.update(&[]).exits(0);
}

#[test]
fn a_signal_ends_apts_commands_too() {
    let world = World::new();
    publish(&world.root, &index(&states().0), 1);
    let started = world.lists.at("started");
    let configuration = world.lists.at("apt.conf");
    let hook = format!("APT::Update::Post-Invoke:: \"touch {}; exec sleep 20\";\n", started.display());
    std::fs::write(&configuration, std::fs::read_to_string(&configuration).unwrap() + &hook).unwrap();
    for signal in ["-INT", "-HUP"] {
        let mut run = world.lists.command(env!("CARGO_BIN_EXE_fullbore"), &["update", "--quiet"]).spawn().unwrap();
        while !started.exists() {
            assert_eq!(run.try_wait().unwrap(), None, "it ended before its command");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(Command::new("kill").args([signal, &run.id().to_string()]).status().unwrap().success());
        let signalled = std::time::Instant::now();
        assert_eq!(run.wait().unwrap().code(), Some(130), "{signal}, {:?} ago", signalled.elapsed());
        std::fs::remove_file(&started).unwrap();
    }
}

/// The good mirror is not fast enough to be awaited after the bad answer, so it must be asked again.
#[test]
fn a_bad_first_answer_does_not_discard_a_slower_good_mirror() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let stranger = stranger();
    let forge = archive.forge(3, "trixie").signed_by(&stranger);
    forge.set_release(&forge.release().unwrap()).unwrap();
    archive.forge(2, "trixie").valid_until(jiff::Timestamp::now().as_second() - 60).unwrap();
    let good = Server::start(&archive.state(1).root).unwrap();
    good.change(|own| own.delay = Duration::from_millis(800));
    for (what, state, fault) in [
        ("signed by a stranger", 3, None),
        ("expired", 2, None),
        ("a login page", 1, Some(Fault::Portal)),
        ("not modified, unasked", 1, Some(Fault::NotModified)),
    ] {
        let bad = Server::start(&archive.state(state).root).unwrap();
        if let Some(fault) = fault {
            bad.add_fault(FaultRule::always(PathMatch::Suffix("Release".into()), fault));
        }
        for order in [[&good, &bad], [&bad, &good]] {
            let list = directory.path().join("mirrors");
            std::fs::write(&list, order.map(|server| server.url() + "\n").concat()).unwrap();
            let lists = Lists::at_url(&format!("mirror+file:{}", list.display()), &archive, "");
            let ran = lists.update(&[]);
            assert_eq!(ran.code, Some(0), "{what}: {ran:?}");
            let right = std::fs::read(archive.state(1).root.join("dists/trixie/InRelease")).unwrap();
            assert!(lists.content().values().any(|content| *content == right), "{what}");
        }
    }
}
