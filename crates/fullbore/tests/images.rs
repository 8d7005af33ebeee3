//! `packaging/images`, and the static program where there is nothing else.
//!
//! No engine and no registry: the base images are roots that `fullbore bootstrap` makes of a signed archive on
//! loopback, and the lines of a Containerfile are followed by `harness/containerfile.rs`. These tests run when they are
//! asked for, by `script/test-images`, which builds the static program and names it in FULLBORE_TEST_STATIC.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness {
    pub mod compared;
    pub mod containerfile;
    pub mod packages;
    pub mod roots;
}
#[path = "s3/store.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod store;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server, TestCa, TlsSpec};
use harness::compared::{bootstrap_of, place};
use harness::containerfile::{Build, Image};
use harness::packages::{Packages, archive, well};
use tempfile::TempDir;

/// What the base images and the small image are made of.
const WANTED: &[&str] =
    &["?essential", "?priority(required)", "apt", "ca-certificates", "debian-archive-keyring", "gpgv", "file"];

/// In a Containerfile.
const BASE: &str = "debian:trixie-slim";

/// An install beside a mirror that sends nothing. apt's own timeout, after which it would retry, is 30 s.
const INSTALL_LIMIT: Duration = Duration::from_secs(25);

fn static_program() -> PathBuf {
    let named = std::env::var_os("FULLBORE_TEST_STATIC");
    PathBuf::from(named.expect("FULLBORE_TEST_STATIC names the static program: script/test-images sets it"))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

#[track_caller]
fn good(output: &Output) {
    assert!(output.status.success(), "{}\n{}", output.status, text(output));
}

/// Everything for builds: an archive of a release, its server, a base image, and a context with the program.
struct Bench {
    archive: Packages,
    server: Server,
    directory: TempDir,
}

impl Bench {
    fn new(release: &str, more: &[&str]) -> Bench {
        let archive = archive(Some(release), "amd64", &[WANTED, more].concat());
        let bench = Bench { server: archive.serve(), archive, directory: place() };
        let base = bench.base();
        well(&mut bootstrap_of(&bench.archive, &bench.server, "apt", &[], &base, &[]));
        bench.sources(&base, &bench.server.url());
        let context = bench.context();
        for path in ["packaging/ci", "packaging/images"] {
            fs::create_dir_all(context.join(path).parent().unwrap()).unwrap();
            well(clean_command("cp").arg("-r").arg(repository().join(path)).arg(context.join(path)));
        }
        fs::copy(static_program(), context.join("fullbore-static")).unwrap();
        bench
    }

    fn base(&self) -> PathBuf {
        self.directory.path().join("base")
    }

    fn context(&self) -> PathBuf {
        self.directory.path().join("context")
    }

    /// Has a root's apt use the archive at this address, and nothing else.
    fn sources(&self, root: &Path, address: &str) {
        let etc = root.join("etc/apt");
        let _ = fs::remove_dir_all(etc.join("sources.list.d"));
        fs::create_dir_all(etc.join("sources.list.d")).unwrap();
        fs::copy(&self.archive.key, etc.join("test.gpg")).unwrap();
        let line = format!("deb [signed-by=/etc/apt/test.gpg] {address} {} main\n", self.archive.codename);
        fs::write(etc.join("sources.list"), line).unwrap();
    }

    fn build(&self, text: &str, arguments: &[(&str, &str)]) -> Image {
        let place = self.directory.path().join("stages");
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).unwrap();
        let (context, base) = (self.context(), self.base());
        Build { context: &context, bases: &[(BASE, &base)], arguments, place: &place }.run(text)
    }

    fn containerfile(&self, name: &str, arguments: &[(&str, &str)]) -> Image {
        let text = fs::read_to_string(repository().join("packaging/images").join(name).join("Containerfile")).unwrap();
        self.build(&text, &[&[("PROGRAM", "fullbore-static")], arguments].concat())
    }
}

/// Mirrors the archive in the small image: over http, and over https with the image's certificates.
fn mirrors_in_the_small_image(release: &str, verifier: &str) {
    let bench = Bench::new(release, &[verifier]);
    let image = bench.containerfile("small", &[("VERIFIER", verifier)]);
    let help = image.start(&[], &["--help"]);
    good(&help);
    assert!(text(&help).contains("mirror"), "{}", text(&help));
    for name in ["usr/share/keyrings/debian-archive-keyring.gpg", "usr/lib/fullbore/apt-setup.sh"] {
        assert!(image.root.join(name).exists(), "{name}");
    }
    let other = if verifier == "gpgv" { "sqv" } else { "gpgv" };
    assert!(image.root.join("usr/bin").join(verifier).exists() && !image.root.join("usr/bin").join(other).exists());
    assert!(!image.root.join("usr/bin/sh").exists() && !image.root.join("usr/bin/apt-get").exists());

    let authority = TestCa::new().unwrap();
    let secure = Server::builder(bench.archive.served()).tls(&authority, &TlsSpec::default()).unwrap().start().unwrap();
    let certificates = image.root.join("etc/ssl/certs/ca-certificates.crt");
    let known = fs::read_to_string(&certificates).unwrap();
    assert!(known.contains("BEGIN CERTIFICATE"));
    let volume = bench.directory.path().join("volume");
    fs::create_dir_all(volume.join("keys")).unwrap();
    fs::copy(&bench.archive.key, volume.join("keys/key.gpg")).unwrap();
    let volumes = [(volume.clone(), "/srv".to_owned())];
    let mirror = |url: &str, name: &str| {
        let to = format!("/srv/{name}");
        let suite = bench.archive.codename.as_str();
        let words = ["mirror", "--from", url, "--suite", suite, "--arch", "amd64,all", "--to", &to];
        image.start(&volumes, &[&words[..], &["--keyring", "/srv/keys/key.gpg"]].concat())
    };
    let output = mirror(&bench.server.url(), "plain");
    good(&output);
    // A certificate that the image does not know, then one that it does.
    let output = mirror(&secure.url(), "secure");
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    fs::write(&certificates, known + authority.pem()).unwrap();
    good(&mirror(&secure.url(), "secure"));
    for name in ["plain", "secure"] {
        let output = image.start(&volumes, &["check", &format!("/srv/{name}"), "--keyring", "/srv/keys/key.gpg"]);
        good(&output);
        assert!(volume.join(name).join("pool").exists());
    }
    // The verifier is what verifies: another key is refused.
    let unknown = bench.directory.path().join("unknown.gpg");
    fs::copy("/usr/share/keyrings/debian-archive-keyring.gpg", &unknown).unwrap();
    fs::copy(unknown, volume.join("keys/key.gpg")).unwrap();
    let output = mirror(&bench.server.url(), "refused");
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
}

#[test]
#[ignore = "long"]
fn the_small_image_of_bookworm_mirrors_with_gpgv() {
    mirrors_in_the_small_image("bookworm", "gpgv");
}

#[test]
#[ignore = "long"]
fn the_small_image_of_trixie_mirrors_with_sqv() {
    mirrors_in_the_small_image("trixie", "sqv");
}

/// The image on Debian: apt of it, and of a build on top of it, uses the mirrors.
#[test]
#[ignore = "long"]
fn apt_of_the_debian_image_uses_all_mirrors() {
    let bench = Bench::new("trixie", &["sqv"]);
    let hang = FaultRule::always(PathMatch::Any, Fault::Hang);
    let stalled = Server::builder(bench.archive.served()).fault(hang).start().unwrap();
    bench.sources(&bench.base(), &stalled.url());
    let mirrors = format!("{} {}", stalled.url(), bench.server.url());
    let image = bench.containerfile("debian", &[("MIRRORS", &mirrors)]);
    good(&image.execute(&["fullbore", "apt", "status"]));
    let begun = Instant::now();
    good(&image.execute(&["sh", "-c", "apt-get update && apt-get install --yes --no-install-recommends file"]));
    assert!(begun.elapsed() < INSTALL_LIMIT, "{:?}", begun.elapsed());
    assert!(image.root.join("usr/bin/file").exists());
    good(&image.execute(&["fullbore", "apt", "disable"]));
    assert!(!image.root.join("etc/apt/apt.conf.d/90fullbore").exists());
    // Without mirrors, patches only.
    let image = bench.containerfile("debian", &[]);
    let status = image.execute(&["fullbore", "apt", "status"]);
    good(&status);
    assert!(!text(&status).contains("mirrors "), "{}", text(&status));
}

/// The lines of the guide for a Dockerfile, on a plain base image.
#[test]
#[ignore = "long"]
fn the_lines_for_a_dockerfile_leave_nothing_in_the_image() {
    let bench = Bench::new("trixie", &["sqv"]);
    let hang = FaultRule::always(PathMatch::Any, Fault::Hang);
    let stalled = Server::builder(bench.archive.served()).fault(hang).start().unwrap();
    bench.sources(&bench.base(), &stalled.url());
    let guide = fs::read_to_string(repository().join("docs/guide/ci.md")).unwrap();
    let (_, lines) = guide.split_once("```Dockerfile\n").unwrap();
    let (lines, _) = lines.split_once("```").unwrap();
    // The guide's names are examples.
    let addresses = ["http://deb.example.org/debian", "http://mirror.example.net/debian"];
    assert!(addresses.iter().all(|address| lines.contains(address)), "{lines}");
    let lines = lines.replace(addresses[0], &stalled.url()).replace(addresses[1], &bench.server.url());
    let lines = lines.replace("build-essential", "file");
    for name in ["fullbore-x86_64", "apt-setup.sh"] {
        let from = if name == "apt-setup.sh" { "packaging/ci/apt-setup.sh" } else { "fullbore-static" };
        fs::copy(bench.context().join(from), bench.context().join(name)).unwrap();
    }
    let begun = Instant::now();
    let image = bench.build(&lines, &[]);
    // The copy of the base is part of it.
    assert!(begun.elapsed() < 2 * INSTALL_LIMIT, "{:?}", begun.elapsed());
    assert!(image.root.join("usr/bin/file").exists());
    let both = [bench.base(), image.root.clone()].map(|root| root.join("etc/apt"));
    let output = clean_command("diff").arg("-r").args(both).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    for left in ["run/fullbore", "usr/lib/fullbore-ci"] {
        assert!(!image.root.join(left).exists(), "{left}");
    }
}

/// A root with the static program, and nothing else: no libraries, no shell, no certificates, not even `/proc`.
#[test]
#[ignore = "long"]
fn the_static_program_works_in_an_empty_root() {
    let directory = place();
    let root = directory.path().join("root");
    fs::create_dir(&root).unwrap();
    fullbore_testkit::process::copy_program(static_program(), root.join("fullbore"));
    let store = store::Store::start(|_| store::Fault::None);
    let run = |words: &[&str]| {
        let mut command = clean_command("timeout");
        command.args(["120", "env", "--ignore-environment", "AWS_ACCESS_KEY_ID=a", "AWS_SECRET_ACCESS_KEY=b"]);
        command.arg("/usr/sbin/chroot").arg(&root).arg("/fullbore").args(words).output().unwrap()
    };
    good(&run(&["--version"]));

    fs::create_dir_all(root.join("tree/below")).unwrap();
    for (name, size) in [("empty", 0), ("below/small", 10), ("below/large", 3_000_000)] {
        fs::write(root.join("tree").join(name), fullbore_testkit::random::noise(size, 5)).unwrap();
    }
    std::os::unix::fs::symlink("below/small", root.join("tree/link")).unwrap();
    let same = |name: &str| {
        let both = [root.join("tree"), root.join(name)];
        let output = clean_command("diff").args(["--recursive", "--no-dereference"]).args(both).output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output));
    };
    good(&run(&["copy", "/tree/", "/copied"]));
    same("copied");

    let endpoint = store.url.clone();
    good(&run(&["put", "/tree/below/large", "s3://bucket/large", "--endpoint", &endpoint]));
    good(&run(&["get", "-o", "/got", "s3://bucket/large", "--endpoint", &endpoint]));
    assert!(fs::read(root.join("got")).unwrap() == fs::read(root.join("tree/below/large")).unwrap());

    // It cannot verify, and names what is missing.
    let bench = archive(Some("trixie"), "amd64", &[WANTED, &["sqv"]].concat());
    let server = bench.serve();
    fs::copy(&bench.key, root.join("key.gpg")).unwrap();
    let suite = bench.codename.as_str();
    let url = server.url();
    let output = run(&[
        "mirror",
        "--from",
        &url,
        "--suite",
        suite,
        "--arch",
        "amd64",
        "--keyring",
        "/key.gpg",
        "--to",
        "/mirror",
    ]);
    let said = text(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("gpgv") && said.contains("sqv"),
        "{}\n{said}",
        output.status
    );
}
