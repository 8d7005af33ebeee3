//! `fullbore update` beside the real `apt-get update`: the same files with the same content, by the same
//! sources and settings, and apt uses ours as its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

#[path = "update/dates.rs"]
mod dates;
#[path = "update/hostile.rs"]
mod hostile;
#[path = "update/keys.rs"]
mod keys;
#[path = "update/sources.rs"]
mod sources;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fullbore_testkit::archive::{Archive, ArchiveBuilder};
use fullbore_testkit::compression::Form;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use harness::{Ran, need, signer, stranger};
use tempfile::TempDir;

/// A lists directory with an APT configuration of its own: nothing of this machine's sources, lists, settings.
struct Lists {
    directory: TempDir,
}

impl Lists {
    fn new(server: &Server, archive: &Archive, settings: &str) -> Lists {
        Lists::at_url(&server.url(), archive, settings)
    }

    fn at_url(url: &str, archive: &Archive, settings: &str) -> Lists {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part).display().to_string();
        for part in ["lists/partial", "archives/partial", "etc/preferences.d", "nothing"] {
            std::fs::create_dir_all(at(part)).unwrap();
        }
        std::fs::write(at("status"), "").unwrap();
        let sources = format!(
            "Types: deb deb-src\nURIs: {}\nSuites: trixie\nComponents: main\nSigned-By: {}\n",
            url,
            archive.key().display()
        );
        std::fs::write(at("a.sources"), sources).unwrap();
        let configuration = format!(
            "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"{}\";\nDir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"-\";\n\
             Dir::Etc::preferencesparts \"{}\";\nDir::State::lists \"{}\";\nDir::State::status \"{}\";\n\
             Dir::State::extended_states \"{}\";\nDir::Cache::archives \"{}\";\nDir::Cache::pkgcache \"\";\n\
             Dir::Cache::srcpkgcache \"\";\nAPT::Architecture \"amd64\";\nAPT::Architectures \"amd64\";\n\
             APT::Sandbox::User \"root\";\nAcquire::http::Proxy \"false\";\nAcquire::Retries \"0\";\n\
             APT::Update::Error-Mode \"any\";\n{settings}\n",
            at("nothing"),
            at("a.sources"),
            at("etc/preferences.d"),
            at("lists"),
            at("status"),
            at("extended"),
            at("archives")
        );
        std::fs::write(at("apt.conf"), configuration).unwrap();
        Lists { directory }
    }

    fn at(&self, part: &str) -> PathBuf {
        self.directory.path().join(part)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = clean_command(program);
        command.args(arguments).env("APT_CONFIG", self.at("apt.conf")).env("LC_ALL", "C.UTF-8");
        command
    }

    fn apt(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program, arguments).output().unwrap()
    }

    /// apt's own update, which must be content.
    fn update_by_apt(&self) {
        let output = self.apt("apt-get", &["update"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn update(&self, more: &[&str]) -> Ran {
        let report = self.at("report.json");
        let _ = std::fs::remove_file(&report);
        let mut command = self.command(env!("CARGO_BIN_EXE_fullbore"), &["update", "--report"]);
        let output = command.arg(&report).args(more).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
            report: std::fs::read(&report)
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .unwrap_or_default(),
        }
    }

    /// Names in the lists directory, with content as plain text.
    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let mut content = BTreeMap::new();
        for entry in std::fs::read_dir(self.at("lists")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_file() && name != "lock" {
                content.insert(name, plain(&path));
            }
        }
        content
    }

    fn partial(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.at("lists/partial")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// What apt makes of the lists, without asking anybody.
    fn seen_by_apt(&self) -> String {
        let mut seen = String::new();
        for (program, arguments) in [
            ("apt-get", &["--no-download", "update"][..]),
            ("apt-cache", &["policy"]),
            ("apt-cache", &["dumpavail"]),
            ("apt-cache", &["showsrc", "--only-source", "."]),
            ("apt-get", &["indextargets"]),
        ] {
            let output = self.apt(program, arguments);
            seen.push_str(&String::from_utf8_lossy(&output.stdout));
        }
        seen.replace(&self.directory.path().display().to_string(), "")
    }
}

/// The plain text of a kept file, by the tools that everybody has.
fn plain(path: &Path) -> Vec<u8> {
    let tool = match path.extension().and_then(|ending| ending.to_str()) {
        Some("gz") => "gzip",
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("lz4") => "lz4",
        _ => return std::fs::read(path).unwrap(),
    };
    need(tool, tool);
    let output = clean_command(tool).arg("-dc").arg(path).output().unwrap();
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Four states with patches between them.
fn archive(directory: &Path, merged: bool) -> Archive {
    ArchiveBuilder::tiny(directory)
        .signer(signer())
        .states(4)
        .churn(0.3)
        .sources(30)
        .contents(true)
        .extras(true)
        .forms(&[Form::Gz, Form::Xz])
        .pdiffs(true)
        .merged_pdiffs(merged)
        .build()
        .unwrap()
}

/// Contents as apt-file has it configured.
const CONTENTS: &str = r#"Acquire::IndexTargets::deb::Contents-deb { MetaKey "$(COMPONENT)/Contents-$(ARCHITECTURE)";
  ShortDescription "Contents-$(ARCHITECTURE)"; Description "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Contents";
  PDiffs "true"; KeepCompressed "true"; };
"#;

fn kept_as(form: &str) -> String {
    match form {
        "plain" => CONTENTS.to_owned(),
        form => {
            let order = ["lz4", "zst", "gz", "xz"].iter().enumerate();
            let cost = |(place, name): (usize, &&str)| {
                let compressor = match *name {
                    "zst" => "zstd",
                    "gz" => "gzip",
                    other => other,
                };
                let cost = if *name == form { 1 } else { 50 + place };
                format!("APT::Compressor::{compressor}::Cost \"{cost}\";\n")
            };
            format!("{CONTENTS}Acquire::GzipIndexes \"true\";\n{}", order.map(cost).collect::<String>())
        }
    }
}

/// Both update from state to state; what they have is the same after each.
fn goes_with_apt(merged: bool, form: &str) {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), merged);
    let server = Server::start(&archive.state(0).root).unwrap();
    let (ours, theirs) = (Lists::new(&server, &archive, &kept_as(form)), Lists::new(&server, &archive, &kept_as(form)));
    for state in [0, 1, 3, 3] {
        server.switch_root(&archive.state(state).root);
        let ran = ours.update(&["-v"]).exits(0);
        theirs.update_by_apt();
        let (our, their) = (ours.content(), theirs.content());
        assert_eq!(our.keys().collect::<Vec<_>>(), their.keys().collect::<Vec<_>>(), "state {state}");
        for (name, content) in &our {
            assert!(*content == their[name], "{name} of state {state} differs");
        }
        assert_eq!(ours.partial(), Vec::<String>::new());
        // The last round finds nothing new.
        assert_eq!(ran.number("indexes.patched") > 0, state > 0 && ran.number("indexes.current") == 0, "{ran:?}");
        for (count, way) in [("indexes.patched", " patch"), ("indexes.whole", ": whole, as ")] {
            assert_eq!(ran.number(count) > 0, told_way(&ran, way), "{way}: {}", ran.stderr);
        }
    }
    assert_eq!(ours.seen_by_apt(), theirs.seen_by_apt());
    // apt finds nothing to do after us, and we nothing after apt.
    server.take_log();
    ours.update_by_apt();
    assert_eq!(server.take_log().len(), 1, "apt asks for InRelease only");
    assert_eq!(theirs.update(&[]).exits(0).number("totals.requests"), 1);
}

/// Whether the log says of an index that it goes this way.
fn told_way(ran: &Ran, way: &str) -> bool {
    ran.stderr.lines().any(|line| line.contains("INFO fullbore_apt::update: ") && line.contains(way))
}

#[test]
fn plain_lists_are_updated_by_chained_patches() {
    goes_with_apt(false, "plain");
}

#[test]
fn plain_lists_are_updated_by_merged_patches() {
    goes_with_apt(true, "plain");
}

#[test]
fn lists_in_lz4_are_updated_by_chained_patches() {
    goes_with_apt(false, "lz4");
}

#[test]
fn lists_in_gz_are_updated_by_merged_patches() {
    goes_with_apt(true, "gz");
}

#[test]
fn lists_in_xz_are_updated_by_chained_patches() {
    goes_with_apt(false, "xz");
}

#[test]
fn lists_in_zst_are_updated_by_merged_patches() {
    goes_with_apt(true, "zst");
}

#[test]
fn nothing_new_costs_one_request() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), true);
    let server = Server::start(&archive.state(0).root).unwrap();
    let lists = Lists::new(&server, &archive, "");
    lists.update(&[]).exits(0);
    server.take_log();
    let ran = lists.update(&["--changed-exit"]).exits(10);
    assert_eq!(ran.number("totals.requests"), 1);
    assert_eq!(server.take_log().len(), 1);
}

#[test]
fn a_slow_release_is_waited_for_as_long_as_bytes_come() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), true);
    archive.forge(0, "trixie").set_field("Description", &"long ".repeat(4000)).unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    let lists = Lists::new(&server, &archive, "Acquire::http::Timeout \"1\";");
    // Of 20 kB and more: over two seconds. A modem brings 4,200 bytes in one.
    let at_rate = |rate| FaultRule::always(PathMatch::Contains("Release".into()), Fault::Drip(rate));
    server.add_fault(at_rate(8000));
    lists.update(&[]).exits(0);
    server.change(|own| own.faults = vec![at_rate(1000)]);
    Lists::new(&server, &archive, "Acquire::http::Timeout \"1\";").update(&[]).exits(3).says("no answer within 1 s");
}

/// An update from state 0 to state 3 with a server that does something to some paths.
fn with_fault(change: impl FnOnce(&Server)) -> (Ran, bool) {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let (ours, theirs) = (Lists::new(&server, &archive, ""), Lists::new(&server, &archive, ""));
    ours.update(&[]).exits(0);
    let before = ours.content();
    server.switch_root(&archive.state(3).root);
    theirs.update_by_apt();
    change(&server);
    let ran = ours.update(&[]);
    let after = ours.content();
    if ran.code == Some(0) {
        assert_eq!(after, theirs.content());
    } else {
        assert!(after == before, "a failed update changed something");
    }
    (ran, after != before)
}

#[test]
fn wrong_patches_lead_to_the_whole_file() {
    for fault in [Fault::Corrupt, Fault::Status(404)] {
        let rule = || FaultRule::always(PathMatch::Contains(".diff/".into()), fault.clone());
        let (ran, _) = with_fault(|server| server.add_fault(rule()));
        let ran = ran.exits(0);
        assert_eq!(ran.number("indexes.patched"), 0);
        assert!(ran.number("indexes.whole") > 0);
    }
}

#[test]
fn an_index_that_is_missing_leaves_all_as_it_was() {
    let (ran, changed) = with_fault(|server| {
        for part in ["Packages", "by-hash"] {
            server.add_fault(FaultRule::always(PathMatch::Contains(part.into()), Fault::Status(404)));
        }
    });
    ran.exits(2).says("its indexes stay as they were");
    assert!(!changed);
}

#[test]
fn what_is_older_or_not_signed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(1).root).unwrap();
    let lists = Lists::new(&server, &archive, "");
    lists.update(&[]).exits(0);
    let before = lists.content();
    server.change(|behaviour| behaviour.validators = false);
    server.switch_root(&archive.state(0).root);
    lists.update(&[]).exits(5).says("older than the local");
    assert!(lists.content() == before);
    server.switch_root(&archive.state(2).root);
    archive.forge(2, "trixie").flip_signed_byte().unwrap();
    lists.update(&[]).exits(4).says("its indexes stay as they were");
    assert!(lists.content() == before);
}

#[test]
fn a_lock_that_apt_holds_is_respected() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let lists = Lists::new(&server, &archive, "");
    let script = "import fcntl,sys\nf=open(sys.argv[1],'w')\nfcntl.lockf(f,fcntl.LOCK_EX)\nprint('held',flush=True)\nsys.stdin.read()\n";
    need("python3", "python3");
    let mut holder = Command::new("python3")
        .args(["-c", script])
        .arg(lists.at("lists/lock"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    lists.update(&[]).exits(6).says("locked by another process");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    lists.update(&[]).exits(0);
}

#[test]
fn apts_commands_are_run_and_sources_that_went_are_cleaned() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let said = directory.path().join("said");
    let hook = |when: &str| format!("APT::Update::{when}:: \"echo {when} >> {}\";\n", said.display());
    let settings: String = ["Pre-Invoke", "Post-Invoke", "Post-Invoke-Success"].map(hook).concat();
    let lists = Lists::new(&server, &archive, &settings);
    let stray = lists.at("lists/old.example.org_debian_dists_sid_InRelease");
    std::fs::write(&stray, "").unwrap();
    lists.update(&["--no-hooks", "--no-clean"]).exits(0);
    assert!(stray.exists() && !said.exists());
    lists.update(&[]).exits(0);
    assert!(!stray.exists());
    assert_eq!(std::fs::read_to_string(&said).unwrap(), "Pre-Invoke\nPost-Invoke-Success\nPost-Invoke\n");
    let other = lists.at("other");
    let ran = lists.update(&["--lists", other.to_str().unwrap()]).exits(0);
    assert!(ran.number("indexes.whole") > 0 && other.join("lock").exists());
    assert_eq!(std::fs::read_to_string(&said).unwrap().lines().count(), 3, "they are for apt's own lists");
}

#[test]
fn a_source_that_fails_does_not_hold_up_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let lists = Lists::new(&server, &archive, "");
    let sources = std::fs::read_to_string(lists.at("a.sources")).unwrap();
    std::fs::write(
        lists.at("a.sources"),
        format!("{sources}\n{}", sources.replace("Suites: trixie", "Suites: absent")),
    )
    .unwrap();
    let ran = lists.update(&[]).exits(2).says("absent");
    assert!(ran.number("indexes.whole") > 0);
    assert!(lists.content().keys().any(|name| name.ends_with("trixie_InRelease")));
}

#[test]
fn a_killed_run_changes_partial_only_and_the_next_is_clean() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let (ours, theirs) = (Lists::new(&server, &archive, CONTENTS), Lists::new(&server, &archive, CONTENTS));
    ours.update(&[]).exits(0);
    // Of the same way to the same state nothing is said here.
    let indexes = |lists: &Lists| {
        let mut content = lists.content();
        content.retain(|name, _| !name.ends_with(".diff_Index"));
        content
    };
    let before = indexes(&ours);
    server.switch_root(&archive.state(3).root);
    theirs.update_by_apt();
    let after = indexes(&theirs);
    // Each answer takes a while, so that runs are cut at each step of the walk.
    server.change(|behaviour| behaviour.delay = std::time::Duration::from_millis(40));
    let mut cut = 0;
    for step in 0..12 {
        let mut run = ours.command(env!("CARGO_BIN_EXE_fullbore"), &["update", "--quiet"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(15 + 25 * step));
        let ended = run.try_wait().unwrap().is_some();
        run.kill().unwrap();
        run.wait().unwrap();
        if ended {
            break;
        }
        cut += 1;
        let now = indexes(&ours);
        // At the very end names are being given; what has one is whole.
        for (name, content) in &now {
            assert!(before.get(name) == Some(content) || after.get(name) == Some(content), "{name} after {step}");
        }
    }
    assert!(cut > 0);
    ours.update(&[]).exits(0);
    let now = indexes(&ours);
    assert_eq!(now.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (name, content) in &now {
        assert!(*content == after[name], "{name}");
    }
    assert_eq!(ours.partial(), Vec::<String>::new());
}
