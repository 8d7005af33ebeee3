//! `packaging/ci`: apt of a CI job fetches from several mirrors, whichever way the job calls the script, and is as
//! before afterwards.
//!
//! Most tests run with this machine's apt, below directories of their own in a private mount namespace. Long ones, run
//! by `script/test-long`, do the same in roots of three Debian releases that mmdebstrap makes, with their own apt and
//! dpkg.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fullbore_testkit::archive::{Archive, ArchiveBuilder};
use fullbore_testkit::digest::Digest;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use harness::apt::{FULLBORE, Ran, is_root, passable, script};
use harness::{need, remove_at_exit, signer};
use tempfile::TempDir;

/// Update and install beside a mirror that sends nothing. apt's own timeout, after which it would retry, is 30 s.
const JOB_LIMIT: Duration = Duration::from_secs(25);

/// Packages that need nothing else. The release's own date is long past, and apt checks only the new ones.
fn archive() -> &'static Archive {
    static ARCHIVE: OnceLock<Archive> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        need("gpgv", "gpgv");
        let directory = passable().keep();
        remove_at_exit(directory.clone());
        let builder = ArchiveBuilder::tiny(directory.join("archive")).signer(signer());
        builder.installable(true).odd_names(false).states(1).build().unwrap()
    })
}

/// Names of packages for amd64 that the archive has.
fn packages() -> Vec<String> {
    let text = archive().forge(0, "trixie").index("main/binary-amd64/Packages").unwrap();
    let names: Vec<String> =
        text.lines().filter_map(|line| line.strip_prefix("Package: ")).map(str::to_owned).take(3).collect();
    assert_eq!(names.len(), 3);
    names
}

fn good_mirror() -> Server {
    Server::start(&archive().state(0).root).unwrap()
}

/// It takes requests and never answers.
fn stalled_mirror() -> Server {
    let hang = FaultRule::always(PathMatch::Any, Fault::Hang);
    Server::builder(&archive().state(0).root).fault(hang).start().unwrap()
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A machine that runs jobs.
enum Machine {
    /// This one, with `/etc/apt` and the state of apt and dpkg below a directory.
    Layer(TempDir),
    /// A root of its own.
    Root(PathBuf),
}

/// Mounts the directories of a layer, then runs a command.
const MOUNT: &str = "layer=$1; shift; for path in etc/apt var/lib/apt var/lib/dpkg var/cache/apt; do
    mount --bind \"$layer/$path\" \"/$path\" || exit 99; done; exec \"$@\"";

/// Runs a command in a root.
const ENTER: &str = "root=$1; shift; mount -t proc proc \"$root/proc\" || exit 99; exec chroot \"$root\" \"$@\"";

impl Machine {
    /// A layer whose only source is an archive at this address.
    fn layer(source: &str) -> Machine {
        need("unshare", "util-linux");
        need("apt-get", "apt");
        assert!(is_root(), "mount namespaces: run as root (script/test does)");
        let machine = Machine::Layer(passable());
        for path in
            ["var/lib/apt/lists/partial", "var/lib/dpkg/updates", "var/cache/apt/archives/partial", "srv", "tmp"]
        {
            fs::create_dir_all(machine.at(path)).unwrap();
        }
        // A copy: apt holds a lock beside it while it fetches packages.
        fs::copy("/var/lib/dpkg/status", machine.at("var/lib/dpkg/status")).unwrap();
        if fs::hard_link(FULLBORE, machine.at("srv/fullbore")).is_err() {
            fs::copy(FULLBORE, machine.at("srv/fullbore")).unwrap();
        }
        machine.sources(source);
        machine
    }

    /// Where a path of that machine is on this one.
    fn at(&self, path: &str) -> PathBuf {
        match self {
            Machine::Layer(directory) => directory.path().join(path),
            Machine::Root(root) => root.join(path),
        }
    }

    /// A path as a job sees it, of files that tests put below `srv`.
    fn seen(&self, path: &str) -> String {
        match self {
            Machine::Layer(directory) => directory.path().join(path).display().to_string(),
            Machine::Root(_) => format!("/{path}"),
        }
    }

    /// Replaces all of `/etc/apt` that names an archive.
    fn sources(&self, address: &str) {
        let _ = fs::remove_file(self.at("etc/apt/sources.list"));
        for part in ["apt.conf.d", "preferences.d", "sources.list.d", "trusted.gpg.d"] {
            fs::create_dir_all(self.at("etc/apt").join(part)).unwrap();
        }
        for entry in fs::read_dir(self.at("etc/apt/sources.list.d")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        fs::copy(archive().key(), self.at("etc/apt/test.gpg")).unwrap();
        let entry = format!(
            "Types: deb\nURIs: {address}\nSuites: trixie\nComponents: main\nArchitectures: amd64\n\
             Signed-By: /etc/apt/test.gpg\nCheck-Valid-Until: no\n"
        );
        fs::write(self.at("etc/apt/sources.list.d/test.sources"), entry).unwrap();
    }

    /// A command of a job.
    fn command(&self, environment: &[(&str, &str)], words: &[&str]) -> Command {
        let mut command = clean_command("timeout");
        command.args(["300", "unshare", "--mount", "--propagation", "private", "sh", "-c"]);
        let (script, directory) = match self {
            Machine::Layer(directory) => (MOUNT, directory.path()),
            Machine::Root(root) => (ENTER, root.as_path()),
        };
        command.args([script, "sh"]).arg(directory).arg("env").arg("--ignore-environment");
        command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"]);
        command.arg("DEBIAN_FRONTEND=noninteractive");
        if let Machine::Layer(_) = self {
            // Others may use the usual place on this machine.
            command.arg(format!("APT_FULLBORE_STATE={}", self.at("state").display()));
            command.arg(format!("TMPDIR={}", self.at("tmp").display()));
        }
        command.args(environment.iter().map(|(name, value)| format!("{name}={value}"))).args(words);
        command
    }

    fn run(&self, environment: &[(&str, &str)], words: &[&str]) -> Ran {
        Ran::of(self.command(environment, words).output().unwrap())
    }

    /// `apt-setup.sh` with a step of its own.
    fn setup(&self, environment: &[(&str, &str)], words: &[&str]) -> Ran {
        let script = match self {
            Machine::Layer(_) => repository("packaging/ci/apt-setup.sh").display().to_string(),
            Machine::Root(_) => "/srv/action/packaging/ci/apt-setup.sh".to_owned(),
        };
        self.run(environment, &[&["sh", &script], words].concat())
    }

    /// What a job does: only a root may really install.
    fn job(&self) -> String {
        let only = if matches!(self, Machine::Layer(_)) { "--download-only" } else { "" };
        format!("apt-get update && apt-get install --yes {only} {}", packages().join(" "))
    }

    /// Every file below `/etc/apt`: mode, owner and content.
    fn etc_apt(&self) -> BTreeMap<PathBuf, (u32, u32, Vec<u8>)> {
        let (mut files, mut directories) = (BTreeMap::new(), vec![self.at("etc/apt")]);
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let metadata = path.symlink_metadata().unwrap();
                let content = if metadata.is_dir() {
                    directories.push(path.clone());
                    Vec::new()
                } else {
                    fs::read(&path).unwrap()
                };
                files.insert(path, (metadata.mode(), metadata.uid(), content));
            }
        }
        files
    }

    fn state(&self) -> PathBuf {
        self.at(if matches!(self, Machine::Layer(_)) { "state" } else { "usr/lib/fullbore-ci" })
    }

    /// Panics unless apt has the packages: fetched, and in a root installed.
    #[track_caller]
    fn has_packages(&self) {
        for name in packages() {
            match self {
                Machine::Layer(_) => {
                    let files = fs::read_dir(self.at("var/cache/apt/archives")).unwrap();
                    let start = format!("{name}_");
                    let fits = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&start);
                    assert!(files.map(Result::unwrap).any(|entry| fits(&entry)), "{name} was not fetched");
                }
                Machine::Root(root) => {
                    let payload = root.join("usr/share").join(&name).join("payload");
                    assert!(payload.exists(), "{} was not installed", payload.display());
                }
            }
        }
    }

    /// Forgets lists and packages, for the next job.
    fn forget(&self) {
        let text =
            format!("dpkg --purge {} 2>/dev/null; rm -rf /var/lib/apt/lists/* && apt-get clean", packages().join(" "));
        let clean = "rm -rf /var/lib/apt/lists/* && apt-get clean";
        let text = if matches!(self, Machine::Root(_)) { text.as_str() } else { clean };
        let ran = self.run(&[], &["sh", "-c", text]);
        assert_eq!(ran.code, Some(0), "{}", ran.text);
    }

    /// Panics unless nothing is left of fullbore.
    #[track_caller]
    fn is_as_before(&self, before: &BTreeMap<PathBuf, (u32, u32, Vec<u8>)>) {
        let after = self.etc_apt();
        assert!(*before == after, "/etc/apt differs: {:?}, before {:?}", after.keys(), before.keys());
        assert!(!self.state().exists());
        let temporary: Vec<_> = fs::read_dir(self.at("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(temporary.is_empty(), "{temporary:?}");
    }
}

#[track_caller]
fn well(ran: &Ran) {
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    assert!(!ran.text.contains("warning") && !ran.text.contains("Err:"), "{}", ran.text);
}

/// Enables, updates, installs and disables, the mirror of the sources being stalled. `step` runs a step of a CI system.
fn a_job_goes_on(machine: &Machine, environment: &[(&str, &str)], step: impl Fn(&[(&str, &str)], &str) -> Ran) {
    let (stalled, good) = (stalled_mirror(), good_mirror());
    machine.sources(&stalled.url());
    let before = machine.etc_apt();
    let program = machine.seen("srv/fullbore");
    let mirrors = format!("{}\n{}\n", stalled.url(), good.url());
    let mut settings = vec![("APT_FULLBORE_MIRRORS", mirrors.as_str())];
    // Unless the job says itself where it is from.
    if !environment.iter().any(|(name, _)| name.starts_with("APT_FULLBORE_")) {
        settings.push(("APT_FULLBORE_PROGRAM", &program));
    }
    let settings = [environment, &settings].concat();
    well(&step(&settings, "enable"));
    assert!(machine.at("etc/apt/apt.conf.d/90fullbore").exists());
    let begun = Instant::now();
    well(&machine.run(environment, &["sh", "-c", &machine.job()]));
    assert!(begun.elapsed() < JOB_LIMIT, "{:?}", begun.elapsed());
    machine.has_packages();
    // The stalled one was asked, so that this was a test of it.
    assert!(!stalled.log().is_empty() && good.log().len() > 3);
    well(&step(&settings, "disable"));
    machine.is_as_before(&before);
    machine.forget();
}

#[test]
fn a_stalled_mirror_does_not_stop_a_job() {
    let machine = Machine::layer("http://127.0.0.1:9/");
    a_job_goes_on(&machine, &[], |environment, step| machine.setup(environment, &[step]));
}

/// What stands in the include for GitLab.
fn gitlab_setup() -> String {
    let text = fs::read_to_string(repository("packaging/ci/gitlab.yml")).unwrap();
    let (_, block) = text.split_once("&fullbore-apt-setup |-\n").unwrap();
    let block = block.lines().take_while(|line| line.is_empty() || line.starts_with("  "));
    let text: String = block.map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned() + "\n").collect();
    assert!(
        text.starts_with("sh -s -- \"$fullbore_step\" <<'END-OF-APT-SETUP'\n") && text.contains("turn_on"),
        "{text}"
    );
    text
}

/// A step as GitLab's runner runs it: one shell for the lines of `before_script`, another one for `after_script`.
fn gitlab_step(machine: &Machine, environment: &[(&str, &str)], step: &str) -> Ran {
    let lines = format!("set -e\nfullbore_step={step}\n{}", gitlab_setup());
    machine.run(environment, &["sh", "-c", &lines])
}

const GITLAB: [(&str, &str); 3] = [("CI", "true"), ("GITLAB_CI", "true"), ("CI_PROJECT_DIR", "/builds/a/b")];

#[test]
fn the_include_for_gitlab_does_the_same() {
    let machine = Machine::layer("http://127.0.0.1:9/");
    a_job_goes_on(&machine, &GITLAB, |environment, step| gitlab_step(&machine, environment, step));
}

#[test]
fn the_include_for_gitlab_has_the_script_as_it_is() {
    let made = clean_command("sh").arg(repository("packaging/ci/make-gitlab")).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let text = fs::read_to_string(repository("packaging/ci/gitlab.yml")).unwrap();
    let made = String::from_utf8(made.stdout).unwrap();
    assert!(made == text, "run packaging/ci/make-gitlab >packaging/ci/gitlab.yml");
}

/// A directory as a release has it.
fn release(machine: &Machine) -> (PathBuf, String) {
    let directory = machine.at("srv/release");
    fs::create_dir_all(&directory).unwrap();
    let name = format!("fullbore-{}", std::env::consts::ARCH);
    let program = directory.join(&name);
    let _ = fs::remove_file(&program);
    if fs::hard_link(machine.at("srv/fullbore"), &program).is_err() {
        fs::copy(machine.at("srv/fullbore"), &program).unwrap();
    }
    let sum = Digest::of_file(&program).unwrap().0.to_string();
    let other = "0".repeat(64);
    fs::write(directory.join("SHA256SUMS"), format!("{other}  fullbore-other\n{sum}  {name}\n")).unwrap();
    (directory, sum)
}

#[test]
fn the_program_is_fetched_and_its_sum_compared() {
    let (stalled, good) = (stalled_mirror(), good_mirror());
    let machine = Machine::layer(&good.url());
    let before = machine.etc_apt();
    let (directory, sum) = release(&machine);
    let server = Server::start(&directory).unwrap();
    let (url, mirrors) = (server.url(), good.url());
    let settings = [("APT_FULLBORE_URL", url.as_str()), ("APT_FULLBORE_MIRRORS", &mirrors)];
    let upper = format!("{}\n{}", "1".repeat(64), sum.to_uppercase());
    for more in [vec![], vec![("APT_FULLBORE_SHA256", upper.as_str())]] {
        let pinned = !more.is_empty();
        server.take_log();
        well(&machine.setup(&[&settings[..], &more].concat(), &["enable"]));
        let asked: Vec<String> = server.log().into_iter().map(|entry| entry.path).collect();
        assert_eq!(asked.iter().any(|path| path.ends_with("SHA256SUMS")), !pinned, "{asked:?}");
        well(&machine.setup(&[], &["disable"]));
        machine.is_as_before(&before);
    }
    // Nothing listens there; a mirror that says nothing is too slow for this test.
    drop(stalled);
    let wrong = "2".repeat(64);
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[("APT_FULLBORE_SHA256", &wrong)], "has the SHA-256"),
        (&[("APT_FULLBORE_SHA256", "?")], "has the SHA-256"),
        (&[("APT_FULLBORE_URL", "http://127.0.0.1:9")], "cannot fetch"),
        (&[("APT_FULLBORE_URL", &mirrors)], "cannot fetch"),
    ];
    for (more, reason) in cases {
        continues_without(&machine, &[&settings[..], more].concat(), reason);
    }
    fs::write(directory.join("SHA256SUMS"), format!("{wrong}  fullbore-{}\n", std::env::consts::ARCH)).unwrap();
    continues_without(&machine, &settings, "has the SHA-256");
    fs::write(directory.join("SHA256SUMS"), format!("{sum}  fullbore-other\n")).unwrap();
    continues_without(&machine, &settings, "does not name");
}

/// Panics unless the job has its own methods, is told why, and fails only where that was asked for.
#[track_caller]
fn continues_without(machine: &Machine, settings: &[(&str, &str)], reason: &str) {
    let before = machine.etc_apt();
    for (strict, code) in [("false", 0), ("true", 1)] {
        let output = machine.at("srv/output");
        fs::write(&output, "").unwrap();
        let seen = machine.seen("srv/output");
        let github = [("GITHUB_ACTIONS", "true"), ("GITHUB_OUTPUT", &seen), ("APT_FULLBORE_STRICT", strict)];
        let ran = machine.setup(&[settings, &github].concat(), &["enable"]);
        assert_eq!(ran.code, Some(code), "{}", ran.text);
        let warned = ran.text.lines().any(|line| line.starts_with("::warning ") && line.contains(reason));
        assert!(warned, "{reason:?} is not in\n{}", ran.text);
        assert_eq!(fs::read_to_string(&output).unwrap(), "enabled=false\n");
        machine.is_as_before(&before);
    }
    let ran = machine.setup(settings, &["run", "true"]);
    assert!(ran.code == Some(0) && ran.text.contains("warning: fullbore: "), "{}", ran.text);
    machine.is_as_before(&before);
    well(&machine.setup(settings, &["disable"]));
}

#[test]
fn whatever_is_wrong_the_job_continues_with_apts_own_methods() {
    let good = good_mirror();
    let machine = Machine::layer(&good.url());
    let (program, mirrors) = (machine.seen("srv/fullbore"), good.url());
    let silent = script(&machine.at("srv"), "silent", "exit 0");
    let silent = silent.display().to_string();
    continues_without(&machine, &[("APT_FULLBORE_MIRRORS", &mirrors)], "neither a program");
    continues_without(&machine, &[("APT_FULLBORE_PROGRAM", &program)], "no mirrors are set");
    let cases = [
        (program.as_str(), "ftp://127.0.0.1/", "not "),
        ("/nonexistent", &mirrors, "there is no"),
        (&silent, &mirrors, "is not fullbore"),
        (&program, "/nonexistent/list", "/nonexistent/list"),
    ];
    for (program, mirrors, reason) in cases {
        let settings = [("APT_FULLBORE_PROGRAM", program), ("APT_FULLBORE_MIRRORS", mirrors)];
        continues_without(&machine, &settings, reason);
    }
    // Somebody who is not root and has no sudo.
    let ran = machine.run(
        &[("APT_FULLBORE_PROGRAM", &program), ("APT_FULLBORE_MIRRORS", &mirrors)],
        &["setpriv", "--reuid=65534", "--clear-groups", "sh", &shared_script(&machine), "enable"],
    );
    assert!(ran.code == Some(0) && ran.text.contains("warning: fullbore: not root"), "{}", ran.text);
}

/// The script where everybody may read it.
fn shared_script(machine: &Machine) -> String {
    let path = machine.at("srv/apt-setup.sh");
    fullbore_testkit::process::copy_program(repository("packaging/ci/apt-setup.sh"), &path);
    machine.seen("srv/apt-setup.sh")
}

#[test]
fn the_list_of_mirror_sources_serves_if_none_is_given() {
    let (stalled, good) = (stalled_mirror(), good_mirror());
    let machine = Machine::layer("unused");
    let list = machine.at("etc/apt/mirrors.txt");
    fs::write(&list, format!("{}\tpriority:1\n{}\tpriority:2\n", stalled.url(), good.url())).unwrap();
    machine.sources("mirror+file:/etc/apt/mirrors.txt");
    let before = machine.etc_apt();
    let program = machine.seen("srv/fullbore");
    well(&machine.setup(&[("APT_FULLBORE_PROGRAM", &program)], &["enable"]));
    let snippet = fs::read_to_string(machine.at("etc/apt/apt.conf.d/90fullbore")).unwrap();
    assert!(snippet.contains("\"/etc/apt/mirrors.txt\""), "{snippet}");
    let begun = Instant::now();
    well(&machine.run(&[], &["sh", "-c", &machine.job()]));
    assert!(begun.elapsed() < JOB_LIMIT, "{:?}", begun.elapsed());
    machine.has_packages();
    well(&machine.setup(&[], &["disable"]));
    machine.is_as_before(&before);
}

#[test]
fn sets_of_mirrors_and_indented_lines_are_understood() {
    let good = good_mirror();
    let machine = Machine::layer(&good.url());
    let program = machine.seen("srv/fullbore");
    let mirrors = format!("\n  # Debian\n  {}  http://127.0.0.1:9/b\r\n\n\thttp://127.0.0.1:9/c\n", good.url());
    let settings = [("APT_FULLBORE_PROGRAM", program.as_str()), ("APT_FULLBORE_MIRRORS", &mirrors)];
    well(&machine.setup(&settings, &["enable"]));
    let list = fs::read_to_string(machine.state().join("mirrors")).unwrap();
    assert_eq!(list.trim(), format!("{}\nhttp://127.0.0.1:9/b\n\nhttp://127.0.0.1:9/c", good.url()));
    well(&machine.setup(&settings, &["disable"]));
}

#[test]
fn a_machine_that_used_fullbore_before_does_so_afterwards() {
    let good = good_mirror();
    let machine = Machine::layer(&good.url());
    let own = machine.seen("srv/fullbore");
    let ran = machine.run(&[], &[&own, "apt", "enable"]);
    well(&ran);
    let before = machine.etc_apt();
    let mirrors = good.url();
    let settings = [("APT_FULLBORE_PROGRAM", own.as_str()), ("APT_FULLBORE_MIRRORS", &mirrors)];
    well(&machine.setup(&settings, &["enable"]));
    assert!(machine.etc_apt() != before);
    // That job is killed; the next one begins where it began.
    let ran = machine.setup(&settings, &["enable"]);
    assert!(ran.text.contains("a job before this one was killed"), "{}", ran.text);
    well(&ran);
    well(&machine.setup(&settings, &["disable"]));
    machine.is_as_before(&before);
    // What somebody has changed by hand is neither used nor lost.
    let snippet = machine.at("etc/apt/apt.conf.d/90fullbore");
    fs::write(&snippet, "Acquire::Retries \"9\";\n").unwrap();
    continues_without(&machine, &settings, "90fullbore");
}

#[test]
fn run_ends_as_its_command_does_and_undoes() {
    let good = good_mirror();
    let machine = Machine::layer(&good.url());
    let before = machine.etc_apt();
    let (program, mirrors) = (machine.seen("srv/fullbore"), good.url());
    let settings = [("APT_FULLBORE_PROGRAM", program.as_str()), ("APT_FULLBORE_MIRRORS", &mirrors)];
    let job = format!("test -e /etc/apt/apt.conf.d/90fullbore && {}", machine.job());
    well(&machine.setup(&settings, &["run", "sh", "-c", &job]));
    machine.has_packages();
    machine.is_as_before(&before);
    assert_eq!(machine.setup(&settings, &["run", "sh", "-c", "exit 7"]).code, Some(7));
    machine.is_as_before(&before);
    // A signal to its group, as from a job that is cancelled.
    let ran = machine.setup(&settings, &["run", "sh", "-c", "kill -TERM 0; sleep 60"]);
    assert!(ran.code != Some(0), "{ran:?}");
    assert_eq!(machine.setup(&settings, &["wrong"]).code, Some(2));
}

/// The description's inputs are those that the program of the action reads and that the guide explains.
#[test]
fn every_input_of_the_action_is_read_and_explained() {
    let read = |path: &str| fs::read_to_string(repository(path)).unwrap();
    let (description, program, guide) = (read("action.yml"), read("packaging/ci/action.js"), read("docs/guide/ci.md"));
    let (_, inputs) = description.split_once("\ninputs:\n").unwrap();
    let (inputs, rest) = inputs.split_once("\noutputs:\n").unwrap();
    let names: Vec<&str> = inputs
        .lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .map(|line| line.trim_end_matches(':'))
        .collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let used = [format!("input('{name}')"), format!("INPUT_{}", name.to_uppercase())];
        assert!(used.iter().any(|text| program.contains(text)), "action.js does not read {name}");
        assert!(guide.contains(&format!("| `{name}` |")), "docs/guide/ci.md does not explain {name}");
    }
    for path in
        rest.lines().filter_map(|line| line.trim().strip_prefix("main: ").or(line.trim().strip_prefix("post: ")))
    {
        assert!(repository(path).exists(), "{path}");
    }
    let script = read("packaging/ci/apt-setup.sh");
    for name in ["MIRRORS", "PROGRAM", "URL", "SHA256", "STRICT"].map(|name| format!("APT_FULLBORE_{name}")) {
        assert!(script.contains(&name) && guide.contains(&format!("| `{name}` |")), "{name}");
    }
}

/// Roots of releases of Debian, made by mmdebstrap from the archive that apt on this machine uses. Their sources are
/// replaced before fullbore sees them.
mod long {
    use super::*;

    /// The static program if there is one, because it runs with every C library.
    fn program() -> PathBuf {
        std::env::var_os("FULLBORE_TEST_STATIC").map_or_else(|| FULLBORE.into(), PathBuf::from)
    }

    fn root(suite: &str, include: &str) -> (TempDir, Machine) {
        assert!(is_root(), "roots and mounts: run as root (script/test-long does)");
        need("mmdebstrap", "mmdebstrap");
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = directory.path().join("root");
        let made = clean_command("timeout")
            .args(["1500", "mmdebstrap", "--variant=apt", "--mode=root", "--quiet", "--dpkgopt=force-unsafe-io"])
            // The archive that apt on this machine uses may be a snapshot.
            .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
            .args((!include.is_empty()).then(|| format!("--include={include}")))
            .arg(suite)
            .arg(&root)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let machine = Machine::Root(root);
        machine.sources("http://127.0.0.1:9/");
        fs::create_dir_all(machine.at("srv/action/packaging/ci")).unwrap();
        for path in ["action.yml", "Cargo.toml", "packaging/ci/apt-setup.sh", "packaging/ci/action.js"] {
            fs::copy(repository(path), machine.at("srv/action").join(path)).unwrap();
        }
        fullbore_testkit::process::copy_program(program(), machine.at("srv/fullbore"));
        (directory, machine)
    }

    /// The three ways of a release's plain root, which has neither curl nor certificates.
    fn jobs(suite: &str) {
        let (_directory, machine) = root(suite, "");
        a_job_goes_on(&machine, &[("GITHUB_ACTIONS", "true"), ("CI", "true")], |environment, step| {
            machine.setup(environment, &[step])
        });
        a_job_goes_on(&machine, &GITLAB, |environment, step| gitlab_step(&machine, environment, step));
        // apt itself fetches the program.
        assert!(!machine.at("usr/bin/curl").exists() && !machine.at("usr/bin/wget").exists());
        let (directory, _) = release(&machine);
        let server = Server::start(&directory).unwrap();
        let url = server.url();
        let environment = [&GITLAB[..], &[("APT_FULLBORE_URL", url.as_str())]].concat();
        a_job_goes_on(&machine, &environment, |environment, step| gitlab_step(&machine, environment, step));
        // As in a Dockerfile.
        let (stalled, good) = (stalled_mirror(), good_mirror());
        machine.sources(&stalled.url());
        let before = machine.etc_apt();
        let mirrors = format!("{} {}", stalled.url(), good.url());
        let settings = [("APT_FULLBORE_PROGRAM", "/srv/fullbore"), ("APT_FULLBORE_MIRRORS", &mirrors)];
        well(&machine.setup(&settings, &["run", "sh", "-c", &machine.job()]));
        machine.has_packages();
        machine.is_as_before(&before);
        machine.forget();
    }

    #[test]
    #[ignore = "long"]
    fn jobs_on_bookworm_get_packages_despite_a_stalled_mirror() {
        jobs("bookworm");
    }

    #[test]
    #[ignore = "long"]
    fn jobs_on_trixie_get_packages_despite_a_stalled_mirror() {
        jobs("trixie");
    }

    #[test]
    #[ignore = "long"]
    fn jobs_on_sid_get_packages_despite_a_stalled_mirror() {
        jobs("sid");
    }

    /// The steps of the GitHub action as its runner calls them, in a container without curl: node fetches the program.
    #[test]
    #[ignore = "long"]
    fn the_action_fetches_the_program_in_a_container() {
        let (_directory, machine) = root("trixie", "nodejs");
        let (directory, _) = release(&machine);
        // The release that belongs to the checkout, at the address that belongs to the action's repository.
        let manifest = fs::read_to_string(repository("Cargo.toml")).unwrap();
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = ")).unwrap().trim_matches('"');
        let place = machine.at(&format!("srv/web/owner/name/releases/download/v{version}"));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::rename(directory, place).unwrap();
        let server = Server::start(machine.at("srv/web")).unwrap();
        let url = server.url();
        for file in ["state", "output"] {
            fs::write(machine.at("srv").join(file), "").unwrap();
        }
        let runner = [
            ("CI", "true"),
            ("GITHUB_ACTIONS", "true"),
            ("GITHUB_SERVER_URL", url.trim_end_matches('/')),
            ("GITHUB_ACTION_REPOSITORY", "owner/name"),
            ("GITHUB_STATE", "/srv/state"),
            ("GITHUB_OUTPUT", "/srv/output"),
        ];
        let step = |environment: &[(&str, &str)], step: &str| {
            let mirrors = environment.iter().find(|(name, _)| *name == "APT_FULLBORE_MIRRORS").unwrap().1;
            let mut inputs = [&runner[..], &[("INPUT_MIRRORS", mirrors), ("INPUT_STRICT", "false")]].concat();
            if step == "disable" {
                // The runner hands on what the first step has written.
                let state = fs::read_to_string(machine.at("srv/state")).unwrap();
                assert_eq!(state, "enabled=1\n");
                inputs.push(("STATE_enabled", "1"));
            }
            machine.run(&inputs, &["node", "/srv/action/packaging/ci/action.js"])
        };
        a_job_goes_on(&machine, &[("APT_FULLBORE_URL", "unused")], step);
        assert_eq!(fs::read_to_string(machine.at("srv/output")).unwrap(), "enabled=true\n");
        // Nothing is to be had: the step warns, and the job continues. With `strict`, it fails.
        let before = machine.etc_apt();
        for (strict, code) in [("false", 0), ("true", 1)] {
            let inputs = [("INPUT_MIRRORS", url.as_str()), ("INPUT_VERSION", "v9.9"), ("INPUT_STRICT", strict)];
            let ran = machine.run(&[&runner[..], &inputs].concat(), &["node", "/srv/action/packaging/ci/action.js"]);
            assert!(ran.code == Some(code) && ran.text.contains("download/v9.9/fullbore-"), "{ran:?}");
            machine.is_as_before(&before);
        }
    }
}
