//! An archive of real packages made by reprepro, served by nginx and apache2, and the mirror of it
//! judged by debmirror and apt-get.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fullbore_testkit::process::clean_command;
use fullbore_testkit::signer::Signer;
use harness::need;

/// Small packages of every Debian release, each without much that it depends on.
const PACKAGES: &[&str] = &["hostname", "sensible-utils", "tzdata-legacy", "netbase", "debianutils", "ucf"];

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{command:?}\n{text}");
    text
}

/// Packages that apt brought, kept for the next time; where apt has none, dpkg-deb makes some.
fn packages() -> Vec<PathBuf> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debs");
    std::fs::create_dir_all(&cache).unwrap();
    let found = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "deb")).collect()
    };
    if found().is_empty() {
        for name in PACKAGES {
            let _ = Command::new("apt-get").args(["download", name]).current_dir(&cache).output();
        }
    }
    if found().is_empty() {
        for number in 0..PACKAGES.len() {
            let root = cache.join(format!("made{number}"));
            std::fs::create_dir_all(root.join("DEBIAN")).unwrap();
            let control = format!(
                "Package: made{number}\nVersion: 1:2.0~rc1+b{number}\nArchitecture: amd64\nMaintainer: Nobody <nobody@example.org>\n\
                 Section: misc\nPriority: optional\nDescription: one of some\n"
            );
            std::fs::write(root.join("DEBIAN/control"), control).unwrap();
            std::fs::write(root.join("content"), vec![number as u8; 10_000 * (number + 1)]).unwrap();
            run(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&root).arg(&cache));
        }
    }
    found()
}

/// A server program, ended with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // A master that is asked ends its workers too.
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn answers(port: u16, daemon: &mut Daemon, log: &Path) {
    let start = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        let ended = daemon.0.try_wait().unwrap();
        let text = || std::fs::read_to_string(log).unwrap_or_default();
        assert!(
            ended.is_none() && start.elapsed() < Duration::from_secs(20),
            "server on {port}: {ended:?}\n{}",
            text()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn nginx(directory: &Path, root: &Path) -> (Daemon, String) {
    let port = free_port();
    let at = directory.join("nginx");
    std::fs::create_dir(&at).unwrap();
    let here = at.display();
    let text = format!(
        "daemon off; pid {here}/pid; error_log {here}/error.log; user root;\nevents {{}}\nhttp {{ access_log off;\n\
         client_body_temp_path {here}/a; proxy_temp_path {here}/b; fastcgi_temp_path {here}/c; uwsgi_temp_path {here}/d;\n\
         scgi_temp_path {here}/e; server {{ listen 127.0.0.1:{port}; root {}; }} }}\n",
        root.display()
    );
    let text = if rustix_root() { text } else { text.replace(" user root;", "") };
    std::fs::write(at.join("conf"), text).unwrap();
    let mut child = clean_command("/usr/sbin/nginx");
    child.arg("-c").arg(at.join("conf")).arg("-e").arg(at.join("error.log"));
    let mut daemon = Daemon(child_of(&mut child, &at));
    answers(port, &mut daemon, &at.join("said"));
    (daemon, format!("http://127.0.0.1:{port}"))
}

fn apache(directory: &Path, root: &Path) -> (Daemon, String) {
    let port = free_port();
    let at = directory.join("apache2");
    std::fs::create_dir(&at).unwrap();
    let here = at.display();
    let modules = "/usr/lib/apache2/modules";
    let text = format!(
        "ServerRoot {here}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {here}/pid\nErrorLog {here}/error.log\n\
         LoadModule mpm_event_module {modules}/mod_mpm_event.so\nLoadModule authz_core_module {modules}/mod_authz_core.so\n\
         DocumentRoot {0}\n<Directory {0}>\nRequire all granted\nOptions FollowSymLinks\n</Directory>\n",
        root.display()
    );
    std::fs::write(at.join("conf"), text).unwrap();
    let mut child = clean_command("/usr/sbin/apache2");
    child.arg("-DFOREGROUND").arg("-f").arg(at.join("conf"));
    let mut daemon = Daemon(child_of(&mut child, &at));
    answers(port, &mut daemon, &at.join("said"));
    (daemon, format!("http://127.0.0.1:{port}"))
}

fn child_of(command: &mut Command, at: &Path) -> Child {
    let said = std::fs::File::create(at.join("said")).unwrap();
    command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap()
}

fn rustix_root() -> bool {
    run(Command::new("id").arg("-u")).trim() == "0"
}

#[test]
fn other_programs_find_nothing_missing() {
    for (program, package) in [
        ("reprepro", "reprepro"),
        ("nginx", "nginx-light"),
        ("apache2", "apache2-bin"),
        ("debmirror", "debmirror"),
        ("apt-get", "apt"),
        ("dpkg-deb", "dpkg"),
        ("gpg", "gpg"),
    ] {
        need(program, package);
    }
    let directory = tempfile::Builder::new().prefix("fbworld.").tempdir_in("/tmp").unwrap();
    // Served by programs that may run as somebody else.
    run(Command::new("chmod").arg("755").arg(directory.path()));
    let (archive, to) = (directory.path().join("archive"), directory.path().join("mirror"));
    let signer = Signer::new("World").unwrap();
    let key = directory.path().join("key.gpg");
    std::fs::write(&key, signer.public_key().unwrap()).unwrap();

    // reprepro makes the archive; Release is signed by the test's own key, whose home it does not know.
    std::fs::create_dir_all(archive.join("conf")).unwrap();
    let distributions = "Origin: World\nLabel: World\nSuite: stable\nCodename: trixie\nArchitectures: amd64 arm64\n\
                         Components: main\nDescription: real packages\n";
    std::fs::write(archive.join("conf/distributions"), distributions).unwrap();
    let debs = packages();
    let reprepro = || {
        let mut command = clean_command("reprepro");
        command.arg("-b").arg(&archive);
        command
    };
    run(reprepro().args(["includedeb", "trixie"]).args(&debs));
    let dist = archive.join("dists/trixie");
    let release = std::fs::read(dist.join("Release")).unwrap();
    std::fs::write(dist.join("InRelease"), signer.clearsign(&release).unwrap()).unwrap();
    std::fs::write(dist.join("Release.gpg"), signer.detached(&release).unwrap()).unwrap();

    let (_nginx, first) = nginx(directory.path(), &archive);
    let (_apache, second) = apache(directory.path(), &archive);
    let mirror = |from: [&str; 2]| {
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["mirror", "--suite", "trixie", "--arch", "amd64,all", "--from", from[0], "--from", from[1]]);
        command.arg("--keyring").arg(&key).arg("--to").arg(&to);
        run(&mut command)
    };
    mirror([&first, &second]);
    let said = mirror([&second, &first]);
    assert!(said.contains("nothing has changed"), "{said}");

    // debmirror would fetch nothing more.
    let port = first.rsplit(':').next().unwrap();
    let said = run(clean_command("debmirror")
        .args([
            "--dry-run",
            "--verbose",
            "--method=http",
            "--root=/",
            "--dist=trixie",
            "--section=main",
            "--arch=amd64",
        ])
        .args([
            "--nosource",
            "--no-check-gpg",
            "--i18n",
            "--getcontents",
            "--rsync-extra=none",
            "--disable-ssl-verification",
        ])
        .arg(format!("--host=127.0.0.1:{port}"))
        .arg(&to));
    assert!(said.contains("Files to download: 0 B"), "{said}");
    let of_archive = ["deleting pool/", "deleting dists/"];
    assert!(!of_archive.iter().any(|line| said.contains(line)), "{said}");

    // apt with the mirror as its only source has all of them.
    let apt = directory.path().join("apt");
    for part in ["lists/partial", "archives/partial", "etc"] {
        std::fs::create_dir_all(apt.join(part)).unwrap();
    }
    std::fs::write(apt.join("status"), "").unwrap();
    let source = format!("deb [arch=amd64 signed-by={}] file:{} trixie main\n", key.display(), to.display());
    std::fs::write(apt.join("etc/sources.list"), source).unwrap();
    let get = || {
        let at = |part: &str| apt.join(part).display().to_string();
        let mut command = clean_command("apt-get");
        for option in [
            format!("Dir::Etc::sourcelist={}", at("etc/sources.list")),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache::archives={}", at("archives")),
            "Dir::Cache::pkgcache=".to_owned(),
            "Dir::Cache::srcpkgcache=".to_owned(),
            "APT::Architecture=amd64".to_owned(),
            "APT::Architectures=amd64".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "APT::Update::Error-Mode=any".to_owned(),
            "Debug::NoLocking=true".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command.env("LC_ALL", "C.UTF-8").current_dir(&apt);
        command
    };
    run(get().arg("update"));
    let names: Vec<String> = debs
        .iter()
        .map(|deb| run(Command::new("dpkg-deb").arg("-f").arg(deb).arg("Package")).trim().to_owned())
        .collect();
    run(get().arg("download").args(&names));
    let count = std::fs::read_dir(&apt)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "deb"))
        .count();
    assert_eq!(count, debs.len());
    for deb in &debs {
        let name = deb.file_name().unwrap().to_string_lossy().replace("%3a", ":").replace("%3A", ":");
        let plain = name.split_once(':').map_or(name.clone(), |(start, rest)| {
            format!("{}_{rest}", start.rsplit_once('_').map_or(start, |(package, _)| package))
        });
        let found =
            walk(&to).into_iter().find(|path| path.file_name().is_some_and(|file| file.to_string_lossy() == plain));
        let found = found.unwrap_or_else(|| panic!("{plain} is not in the mirror"));
        assert!(std::fs::read(found).unwrap() == std::fs::read(deb).unwrap(), "{name} differs");
    }
}

fn walk(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    fullbore_testkit::verify::walk(root, &mut |path| files.push(path.to_owned())).unwrap();
    files
}
