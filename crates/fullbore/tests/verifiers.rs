//! The programs that verify signatures: with sqv alone, with gpgv beside it, and without either.
//!
//! Each program is found in `PATH`. A directory of symbolic links stands for a machine that has some of them.
#![allow(clippy::unwrap_used)]

mod harness;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use fullbore_testkit::archive::Archive;
use fullbore_testkit::process::{clean_command, write_program};
use fullbore_testkit::server::Server;
use harness::apt::{Apt, FULLBORE, passable};
use harness::{Mirror, Ran, common, need, own_archive, signer, stranger};
use tempfile::TempDir;

const VERIFIERS: [&str; 2] = ["gpgv", "sqv"];

/// Everything in `PATH` but the programs that verify signatures.
struct Programs {
    directory: TempDir,
}

impl Programs {
    fn none() -> Programs {
        let directory = tempfile::tempdir().unwrap();
        for from in std::env::split_paths(&std::env::var_os("PATH").unwrap()) {
            for entry in fs::read_dir(from).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if !VERIFIERS.iter().any(|verifier| name == *verifier) {
                    // The first of a name counts.
                    let _ = symlink(entry.path(), directory.path().join(name));
                }
            }
        }
        Programs { directory }
    }

    fn and(self, name: &str, program: &Path) -> Programs {
        symlink(program, self.directory.path().join(name)).unwrap();
        self
    }

    /// With a script in place of a program.
    fn and_script(self, name: &str, script: &str) -> Programs {
        let file = self.directory.path().join(name);
        write_program(&file, &format!("#!/bin/sh\n{script}\n"));
        self
    }

    /// This command, with these programs alone.
    fn run(&self, mut command: Command) -> Command {
        command.env("PATH", self.directory.path());
        command
    }
}

/// A program in `PATH`.
fn installed(name: &str) -> PathBuf {
    need(name, name);
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|program| program.exists()).unwrap()
}

/// Programs with sqv alone.
fn sqv_alone() -> Programs {
    Programs::none().and("sqv", &installed("sqv"))
}

/// A key of somebody else.
fn other_key(directory: &Path) -> PathBuf {
    let file = directory.join("other.gpg");
    fs::write(&file, stranger().public_key().unwrap()).unwrap();
    file
}

#[test]
fn mirror_and_check_verify_with_sqv_alone() {
    let programs = sqv_alone();
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    mirror.finish(programs.run(mirror.command(&[&server], &[]))).exits(0);
    // Nothing is new: the local copy is verified again.
    mirror.finish(programs.run(mirror.command(&[&server], &[]))).exits(0);
    server.switch_root(&common().state(1).root);
    mirror.finish(programs.run(mirror.command(&[&server], &[]))).exits(0);
    mirror.finish(programs.run(mirror.check_command(&[]))).exits(0);

    let other = other_key(mirror.to.parent().unwrap());
    let strange = Mirror::new(common()).keyring(other.clone());
    let ran = strange.finish(programs.run(strange.command(&[&server], &[])));
    ran.exits(4).says(&format!("no public key for the signature by {}", signer().fingerprint())).says("--keyring");
    assert!(!strange.to.join("dists").exists());

    let file = mirror.to.join("dists/trixie/InRelease");
    let text = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(&file, text.replacen("Origin: ", "Origin: not ", 1)).unwrap();
    mirror.finish(programs.run(mirror.check_command(&[]))).exits(4).says("bad signature");
}

#[test]
fn a_detached_signature_is_verified_with_sqv_alone() {
    let (_directory, archive) = own_archive(|builder| builder);
    fs::remove_file(archive.state(0).root.join("dists/trixie/InRelease")).unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    let programs = sqv_alone();
    let mirror = Mirror::new(&archive);
    mirror.finish(programs.run(mirror.command(&[&server], &[]))).exits(0);
    mirror.finish(programs.run(mirror.check_command(&[]))).exits(0);
}

#[test]
fn fingerprints_and_armored_keyrings_count_with_sqv_alone() {
    let server = Server::start(&common().state(0).root).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let armored = directory.path().join("key.asc");
    fs::write(&armored, signer().public_key_armored().unwrap()).unwrap();
    let (keybox, other) = (directory.path().join("key.kbx"), other_key(directory.path()));
    let mut import = Command::new("gpg");
    import.args(["--homedir"]).arg(directory.path()).args(["--batch", "--quiet", "--no-default-keyring", "--keyring"]);
    assert!(import.arg(&keybox).arg("--import").arg(common().key()).status().unwrap().success());
    let programs = sqv_alone();
    let run = |keyring: &Path, more: &[&str]| {
        let mirror = Mirror::new(common()).keyring(keyring.to_owned());
        mirror.finish(programs.run(mirror.command(&[&server], more)))
    };
    run(&armored, &[]).exits(0);
    run(&other, &["--keyring", armored.to_str().unwrap()]).exits(0);
    run(&armored, &["--keyring", signer().fingerprint()]).exits(0);
    let only_the_primary = format!("{}!", signer().fingerprint());
    run(&armored, &["--keyring", &only_the_primary]).exits(4).says("name its primary key without `!`");
    run(&armored, &["--keyring", stranger().fingerprint()]).exits(4).says("which Signed-By does not list");
    run(&keybox, &[]).exits(4).says("sqv cannot read a GnuPG keybox").says("hint: write its keys to a file");
}

/// Debian and its derivatives set the policy in files and in these variables.
#[test]
#[ignore = "the sqv of Debian 12 has no policy: script/test-apt runs it in later releases"]
fn a_policy_for_sqv_counts() {
    let programs = sqv_alone();
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.config");
    fs::write(&policy, "[hash_algorithms]\nsha512.collision_resistance = 2001-01-01\n").unwrap();
    let server = Server::start(&common().state(0).root).unwrap();
    for variable in ["APT_SEQUOIA_CRYPTO_POLICY", "SEQUOIA_CRYPTO_POLICY"] {
        let mirror = Mirror::new(common());
        let mut command = programs.run(mirror.command(&[&server], &[]));
        command.env(variable, &policy);
        mirror.finish(command).exits(4).says("SHA512 is not considered secure since 2001-01-01");
    }
}

#[test]
fn update_verifies_with_sqv_alone() {
    let programs = sqv_alone();
    let directory = passable();
    let server = Server::start(&common().state(0).root).unwrap();
    let apt = Apt::new(directory.path().join("apt"), &server.url(), &common().key());
    let update = || update(&programs, &apt);
    update().exits(0);
    server.switch_root(&common().state(1).root);
    update().exits(0);
    let kept = apt.lists().into_iter().find(|(name, _)| name.ends_with("_InRelease")).unwrap().1;
    assert_eq!(kept, fs::read(common().state(1).root.join("dists/trixie/InRelease")).unwrap());

    fs::write(apt.directory.join("etc/key.gpg"), stranger().public_key().unwrap()).unwrap();
    update().exits(4).says("no public key for the signature by");
    assert!(apt.lists().values().any(|file| *file == kept));
}

fn update(programs: &Programs, apt: &Apt) -> Ran {
    let mut command = apt.command(FULLBORE);
    command.args(["update", "--quiet"]);
    ended(programs.run(command))
}

fn ended(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        report: serde_json::Value::Null,
    }
}

/// A hook that puts the programs that dpkg requires into the root, which has no package with any.
const WITH_DPKG: &str = r#"
for program in sh rm tar diff dpkg dpkg-deb dpkg-query dpkg-split dpkg-divert ldconfig start-stop-daemon; do
    file=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v "$program")
    cp --parents --dereference "$file" $(ldd "$file" 2>/dev/null | grep -o '/[^ ]*') "$1"
done"#;

/// Packages that can be installed, without scripts.
fn installable() -> (TempDir, Archive) {
    own_archive(|builder| builder.installable(true).odd_names(false))
}

/// `fullbore bootstrap` with one package.
fn bootstrap(programs: &Programs, server: &Server, archive: &Archive, key: &Path, root: &Path) -> Ran {
    let index = archive.forge(0, "trixie").index("main/binary-amd64/Packages").unwrap();
    let package = index.lines().find_map(|line| line.strip_prefix("Package: ")).unwrap();
    let mut command = clean_command(FULLBORE);
    command.args(["bootstrap", "--quiet", "--variant", "custom", "--arch", "amd64", "--include", package]);
    command.args(["--setup-hook", WITH_DPKG, "--keyring"]).arg(key).arg("trixie").arg(root).arg(server.url());
    ended(programs.run(command))
}

#[test]
fn bootstrap_verifies_with_sqv_alone() {
    let (directory, archive) = installable();
    let server = Server::start(&archive.state(0).root).unwrap();
    let programs = sqv_alone();
    let root = directory.path().join("root");
    bootstrap(&programs, &server, &archive, &archive.key(), &root).exits(0);
    assert!(fs::read_to_string(root.join("var/lib/dpkg/status")).unwrap().contains("Status: install ok installed"));

    let other = directory.path().join("other");
    let ran = bootstrap(&programs, &server, &archive, &other_key(directory.path()), &other);
    ran.exits(4).says("no public key for the signature by");
}

#[test]
fn gpgv_verifies_where_both_are() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let gpgv = format!("echo run >> {}; exec {} \"$@\"", log.path().display(), installed("gpgv").display());
    let programs = Programs::none().and_script("gpgv", &gpgv).and_script("sqv", "exit 1");
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    mirror.finish(programs.run(mirror.command(&[&server], &[]))).exits(0);
    assert!(fs::read_to_string(log.path()).unwrap().starts_with("run\n"));
    // What gpgv refuses is not given to sqv.
    let programs = Programs::none().and_script("gpgv", "exit 1").and("sqv", &installed("sqv"));
    mirror.finish(programs.run(mirror.check_command(&[]))).exits(4).says("no signature found");
}

#[test]
fn without_either_both_are_named() {
    let missing = |ran: Ran| {
        let ran = ran.exits(1).says("cannot verify signatures: found no gpgv and no sqv");
        ran.says("hint: install gpgv or sqv: apt-get install gpgv")
    };
    let programs = Programs::none();
    let (directory, archive) = installable();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    missing(mirror.finish(programs.run(mirror.command(&[&server], &[]))));
    assert!(!mirror.to.join("dists").exists());
    // A mirror that is there stays as it is.
    mirror.run(&[&server]).exits(0);
    let before = tree(&mirror.to);
    server.switch_root(&archive.state(1).root);
    missing(mirror.finish(programs.run(mirror.command(&[&server], &[]))));
    missing(mirror.finish(programs.run(mirror.check_command(&[]))));
    missing(mirror.finish(programs.run(mirror.check_command(&["--repair"]))));
    assert_eq!(tree(&mirror.to), before);

    let passable = passable();
    let apt = Apt::new(passable.path().join("apt"), &server.url(), &archive.key());
    missing(update(&programs, &apt));
    assert!(apt.lists().is_empty(), "{:?}", apt.lists().into_keys());
    missing(bootstrap(&programs, &server, &archive, &archive.key(), &directory.path().join("root")));
}

/// Names of all published files.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![directory.join("dists"), directory.join("pool")]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}
