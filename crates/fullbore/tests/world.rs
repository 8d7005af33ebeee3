//! An archive of real packages made by reprepro, served by nginx and apache2, and the mirror of it
//! judged by debmirror and apt-get.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness {
    #![allow(dead_code, reason = "each test binary uses its own part")]
    pub mod packages;
    pub mod servers;
}

use std::path::{Path, PathBuf};
use std::process::Command;

use fullbore_testkit::process::clean_command;
use fullbore_testkit::signer::Signer;
use harness::servers::{apache, nginx};

/// Small source packages of every Debian release. Caches in front of an archive lack some at times.
const SOURCES: &[&str] = &["hostname", "ucf", "sensible-utils", "netbase", "file", "less", "gzip", "ed"];

/// So many of them must come.
const SOURCES_LEAST: usize = 2;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{command:?}\n{text}");
    text
}

/// Packages that apt brought, a few hundred with all that they depend on.
fn packages() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(harness::packages::packages().served().join("pool")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let made_up =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("fullbore-test-"));
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "deb") && !made_up(path)).collect()
}

/// Source packages that apt brought, by the sources of this machine; kept for the next time.
fn sources() -> Vec<PathBuf> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sources");
    if !cache.join("complete").exists() {
        let parts = cache.join("parts");
        for part in ["parts", "lists/partial"] {
            std::fs::create_dir_all(cache.join(part)).unwrap();
        }
        std::fs::write(cache.join("status"), "").unwrap();
        let listed = std::fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten();
        let listed = listed.map(|entry| entry.unwrap().path()).chain([PathBuf::from("/etc/apt/sources.list")]);
        for path in listed.filter(|path| path.is_file()) {
            let text = std::fs::read_to_string(&path).unwrap();
            let with_sources = |line: &str| match line.strip_prefix("deb ") {
                Some(rest) => format!("{line}\ndeb-src {rest}\n"),
                None => format!("{}\n", line.replace("Types: deb", "Types: deb deb-src")),
            };
            let text: String = text.replace(" deb-src", "").lines().map(with_sources).collect();
            std::fs::write(parts.join(path.file_name().unwrap()), text).unwrap();
        }
        let get = |words: &[&str]| {
            let mut command = clean_command("apt-get");
            let at = |part: &str| cache.join(part).display().to_string();
            for (name, value) in [
                ("Dir::Etc::sourcelist", "/dev/null".to_owned()),
                ("Dir::Etc::sourceparts", at("parts")),
                ("Dir::State::lists", at("lists")),
                ("Dir::State::status", at("status")),
                ("Dir::Cache::pkgcache", String::new()),
                ("Dir::Cache::srcpkgcache", String::new()),
                ("APT::Sandbox::User", "root".to_owned()),
                ("Acquire::Languages", "none".to_owned()),
            ] {
                command.arg(format!("--option={name}={value}"));
            }
            command.args(words);
            command
        };
        run(get(&["update"]).current_dir(&cache));
        for name in SOURCES {
            let directory = cache.join("sources").join(name);
            std::fs::create_dir_all(&directory).unwrap();
            let words = ["--download-only", "--only-source", "source", name];
            if !get(&words).current_dir(&directory).output().unwrap().status.success() {
                std::fs::remove_dir_all(&directory).unwrap();
            }
        }
        std::fs::remove_dir_all(cache.join("lists")).unwrap();
        std::fs::write(cache.join("complete"), "").unwrap();
    }
    walk(&cache.join("sources")).into_iter().filter(|path| path.extension().is_some_and(|e| e == "dsc")).collect()
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
        assert!(
            std::env::split_paths(&std::env::var_os("PATH").unwrap())
                .chain(["/usr/sbin".into()])
                .any(|path| path.join(program).exists()),
            "{program} is missing: apt-get install {package}"
        );
    }
    let directory = tempfile::Builder::new().prefix("fbworld.").tempdir_in("/tmp").unwrap();
    // Served by programs that may run as somebody else.
    run(Command::new("chmod").arg("755").arg(directory.path()));
    let (archive, to) = (directory.path().join("archive"), directory.path().join("mirror"));
    let signer = Signer::new("World").unwrap();
    let key = directory.path().join("key.gpg");
    std::fs::write(&key, signer.public_key().unwrap()).unwrap();

    // reprepro makes the archive and signs it.
    std::fs::create_dir_all(archive.join("conf")).unwrap();
    let distributions = format!(
        "Origin: World\nLabel: World\nSuite: stable\nCodename: trixie\nArchitectures: amd64 arm64 source\n\
         Components: main\nDescription: real packages\nSignWith: {}\n",
        signer.fingerprint()
    );
    std::fs::write(archive.join("conf/distributions"), distributions).unwrap();
    let (debs, sources) = (packages(), sources());
    assert!(debs.len() > 100 && sources.len() >= SOURCES_LEAST, "{} packages, {sources:?}", debs.len());
    let reprepro = || {
        let mut command = clean_command("reprepro");
        command.arg("-b").arg(&archive).env("GNUPGHOME", signer.home());
        command
    };
    run(reprepro().args(["includedeb", "trixie"]).args(&debs));
    for source in &sources {
        run(reprepro().args(["-S", "misc", "-P", "optional", "includedsc", "trixie"]).arg(source));
    }

    let (_nginx, first) = nginx(directory.path(), &archive);
    let (_apache, second) = apache(directory.path(), &archive);
    let mirror = |from: [&str; 2]| {
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.args([
            "mirror",
            "--suite",
            "trixie",
            "--arch",
            "amd64,all,source",
            "--from",
            from[0],
            "--from",
            from[1],
        ]);
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
            "--source",
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
    let source =
        |kind: &str| format!("{kind} [arch=amd64 signed-by={}] file:{} trixie main\n", key.display(), to.display());
    let source = source("deb") + &source("deb-src");
    std::fs::write(apt.join("etc/sources.list"), source).unwrap();
    let get = || private_apt(&apt, &apt.join("etc/sources.list"), &apt.join("status"));
    run(get().arg("update"));
    let names: Vec<String> = debs
        .iter()
        .map(|deb| run(Command::new("dpkg-deb").arg("-f").arg(deb).arg("Package")).trim().to_owned())
        .collect();
    let name = |dsc: &PathBuf| dsc.parent().unwrap().file_name().unwrap().to_owned();
    let names_of_sources: Vec<_> = sources.iter().map(name).collect();
    run(get().args(["--yes", "--download-only", "install"]).args(&names));
    // Copied: apt takes packages of a file: source from where they are.
    run(get().arg("download").args(&names));
    let count = |ending: &str| {
        let paths = std::fs::read_dir(&apt).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|found| found == ending)).count()
    };
    assert_eq!(count("deb"), debs.len());
    run(get().args(["--download-only", "--only-source", "source"]).args(&names_of_sources));
    assert_eq!(count("dsc"), sources.len());
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
    installed(directory.path(), &to, &key, &debs);
}

/// Real apt and dpkg install from the mirror, served as it is, what has no scripts of its own; all that it needs
/// passes for installed.
fn installed(directory: &Path, mirror: &Path, key: &Path, debs: &[PathBuf]) {
    const INSTALLED: usize = 5;
    assert!(rustix::process::geteuid().is_root(), "dpkg gives files to root: run as root (script/test does)");
    let field = |deb: &Path, name: &str| run(Command::new("dpkg-deb").arg("-f").arg(deb).arg(name)).trim().to_owned();
    let scripts = |deb: &Path| {
        let list = "dpkg-deb --ctrl-tarfile \"$1\" | tar -t";
        let names = run(Command::new("sh").args(["-c", list, "sh"]).arg(deb));
        ["preinst", "postinst", "triggers"].iter().any(|name| names.lines().any(|line| line.ends_with(name)))
    };
    let plain = |deb: &&PathBuf| !scripts(deb) && field(deb, "Essential") != "yes";
    let mut debs = debs.to_vec();
    debs.sort();
    let chosen: Vec<&PathBuf> = debs.iter().filter(plain).take(INSTALLED).collect();
    assert_eq!(chosen.len(), INSTALLED, "packages without scripts");

    let root = directory.join("root");
    for part in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "lists/partial", "archives/partial"] {
        std::fs::create_dir_all(root.join(part)).unwrap();
    }
    let status = |deb: &PathBuf| {
        let fields = run(Command::new("dpkg-deb").arg("-f").arg(deb));
        fields.trim_end().replacen('\n', "\nStatus: install ok installed\n", 1) + "\n\n"
    };
    let others: String = debs.iter().filter(|deb| !chosen.contains(deb)).map(status).collect();
    std::fs::write(root.join("var/lib/dpkg/status"), others).unwrap();
    std::fs::create_dir(directory.join("served")).unwrap();
    let (_nginx, served) = nginx(&directory.join("served"), mirror);
    let source = format!("deb [arch=amd64 signed-by={}] {served} trixie main\n", key.display());
    std::fs::write(root.join("sources.list"), source).unwrap();
    let get = |words: &[&str]| {
        let mut apt = private_apt(&root, &root.join("sources.list"), &root.join("var/lib/dpkg/status"));
        for option in [
            format!("Dir::State::extended_states={}", root.join("extended").display()),
            "Acquire::http::Proxy=false".to_owned(),
            format!("DPkg::Options::=--root={}", root.display()),
            "DPkg::Options::=--force-unsafe-io".to_owned(),
        ] {
            apt.arg("-o").arg(option);
        }
        run(apt.args(words))
    };
    get(&["update"]);
    let names: Vec<String> = chosen.iter().map(|deb| field(deb, "Package")).collect();
    let words: Vec<&str> = ["--yes", "install"].into_iter().chain(names.iter().map(String::as_str)).collect();
    get(&words);
    for (deb, name) in chosen.iter().zip(&names) {
        let root = format!("--root={}", root.display());
        let format = "--showformat=${Version} ${db:Status-Status}";
        let there = run(Command::new("dpkg-query").args([&root, "--show", format, name]));
        assert_eq!(there, format!("{} installed", field(deb, "Version")), "{name}");
        assert_eq!(run(Command::new("dpkg").args([&root, "--verify", name])), "", "{name}");
    }
}

/// An `apt-get` that keeps everything below this directory and knows of no other source and package.
fn private_apt(directory: &Path, sources: &Path, status: &Path) -> Command {
    let mut command = clean_command("apt-get");
    for option in [
        format!("Dir::Etc::sourcelist={}", sources.display()),
        "Dir::Etc::sourceparts=-".to_owned(),
        format!("Dir::State::lists={}", directory.join("lists").display()),
        format!("Dir::State::status={}", status.display()),
        format!("Dir::Cache::archives={}", directory.join("archives").display()),
        "Dir::Cache::pkgcache=".to_owned(),
        "Dir::Cache::srcpkgcache=".to_owned(),
        "APT::Architecture=amd64".to_owned(),
        "APT::Architectures=amd64".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
        "APT::Update::Error-Mode=any".to_owned(),
        "APT::Install-Recommends=false".to_owned(),
        "Debug::NoLocking=true".to_owned(),
    ] {
        command.arg("-o").arg(option);
    }
    command.env("LC_ALL", "C.UTF-8").current_dir(directory);
    command
}

fn walk(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    fullbore_testkit::verify::walk(root, &mut |path| files.push(path.to_owned())).unwrap();
    files
}
