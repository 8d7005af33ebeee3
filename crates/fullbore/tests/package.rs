//! The Debian package: all that its description names is there, and it installs and removes cleanly.
//!
//! cargo-deb, which makes the package that people get, takes minutes to build. The package tried here is made by
//! dpkg-deb from the same description in Cargo.toml, with the program of these tests; `script/deb-check` has the
//! same done to one by cargo-deb, which it names in FULLBORE_TEST_DEB. Installed is by the real dpkg, over this machine's
//! own root and its users, in a layer that is thrown away.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "package/fleet.rs"]
mod fleet;
mod harness;
#[path = "package/units.rs"]
mod units;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fullbore_testkit::process::clean_command;
use harness::{need, need_verifier};

const PROGRAM: &str = "target/release/fullbore";

/// Where `cargo xtask deb` puts manual pages and completions before it makes the package.
const GENERATED: &str = "../../packaging/generated/";

/// Manual pages and completions, as that command writes them.
fn generated() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in fullbore::manual::packaged_files() {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        // `cargo xtask deb` writes it with the date of the last commit.
        std::fs::write(directory.path().join("changelog"), "fullbore\n").unwrap();
        directory
    };
    DIRECTORY.get_or_init(make).path()
}

/// One file of the package.
struct Asset {
    source: PathBuf,
    target: PathBuf,
    mode: u32,
}

fn description() -> toml::Table {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let manifest: toml::Table = std::fs::read_to_string(manifest).unwrap().parse().unwrap();
    manifest["package"]["metadata"]["deb"].as_table().unwrap().clone()
}

/// The files that one line of the description stands for: `*` is any name but those with a dot in front.
fn sources(pattern: &str) -> Vec<PathBuf> {
    if pattern == PROGRAM {
        return vec![PathBuf::from(env!("CARGO_BIN_EXE_fullbore"))];
    }
    let pattern = match pattern.strip_prefix(GENERATED) {
        Some(below) => generated().join(below),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join(pattern),
    };
    let name = pattern.file_name().unwrap().to_str().unwrap();
    let Some((front, back)) = name.split_once('*') else {
        return vec![pattern];
    };
    let entries = std::fs::read_dir(pattern.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !name.starts_with('.') && name.starts_with(front) && name.ends_with(back)
    };
    let mut found: Vec<PathBuf> = entries.filter(fits).collect();
    found.sort();
    found
}

fn assets() -> Vec<Asset> {
    let mut assets = Vec::new();
    for line in description()["assets"].as_array().unwrap() {
        let [pattern, place, mode] = &line.as_array().unwrap()[..] else { panic!("{line}: three values") };
        let (pattern, place) = (pattern.as_str().unwrap(), place.as_str().unwrap());
        let sources = sources(pattern);
        assert!(!sources.is_empty(), "{pattern}: no such file");
        for source in sources {
            assert!(source.is_file(), "{}: no such file", source.display());
            let target = if place.ends_with('/') {
                Path::new(place).join(source.file_name().unwrap())
            } else {
                PathBuf::from(place)
            };
            assets.push(Asset { source, target, mode: u32::from_str_radix(mode.as_str().unwrap(), 8).unwrap() });
        }
    }
    assets
}

#[test]
fn manual_pages_have_no_warnings() {
    need("groff", "groff-base");
    for page in std::fs::read_dir(generated().join("man")).unwrap() {
        let page = page.unwrap().path();
        let shown =
            clean_command("groff").args(["-man", "-ww", "-z", "-Tutf8", "-rLL=80n"]).arg(&page).output().unwrap();
        let warnings = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
    }
}

#[test]
fn what_the_package_holds_is_there() {
    let targets: BTreeSet<PathBuf> = assets().into_iter().map(|asset| asset.target).collect();
    for wanted in [
        "usr/bin/fullbore",
        "usr/share/man/man1/fullbore.1",
        "usr/share/man/man1/fullbore-mirror.1",
        "usr/share/man/man5/fullbore-mirror.toml.5",
        "usr/share/bash-completion/completions/fullbore",
        "usr/share/zsh/vendor-completions/_fullbore",
        "usr/share/fish/vendor_completions.d/fullbore.fish",
        "usr/lib/systemd/system/fullbore-mirror@.service",
        "usr/lib/systemd/system/fullbore-mirror@.timer",
        "usr/lib/systemd/system/fullbore-work@.service",
        "usr/share/doc/fullbore/examples/fleet/compose.yaml",
        "usr/share/doc/fullbore/examples/nats/permissions.conf",
        "usr/share/doc/fullbore/guide/mirror.md",
    ] {
        assert!(targets.contains(Path::new(wanted)), "{wanted} is not in {targets:?}");
    }
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join(description()["maintainer-scripts"].as_str().unwrap());
    for name in ["postinst", "prerm", "postrm"] {
        let ran = clean_command("sh").arg("-n").arg(scripts.join(name)).output().unwrap();
        assert!(ran.status.success(), "{name}: {ran:?}");
    }
}

#[test]
fn the_package_description_names_every_command() {
    let description = description();
    let text = description["extended-description"].as_str().unwrap();
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_ascii_lowercase()).collect();
    let pages: Vec<_> = fullbore::manual::packaged_files().into_iter().map(|(name, _)| name).collect();
    let commands = pages.iter().filter_map(|name| name.strip_prefix("man/fullbore-")?.strip_suffix(".1"));
    let missing: BTreeSet<_> =
        commands.map(|page| page.split('-').next().unwrap()).filter(|name| !words.contains(name)).collect();
    assert!(missing.is_empty() && pages.len() > 10, "{missing:?}");
}

fn done(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command:?}: {said}");
    said
}

/// A package by the description, in `directory`.
fn package(directory: &Path) -> PathBuf {
    let root = directory.join("package");
    for asset in assets() {
        let target = root.join(&asset.target);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(&asset.source, &target).unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(asset.mode)).unwrap();
    }
    // What a debug build has for debuggers is most of it.
    done(clean_command("strip").arg(root.join("usr/bin/fullbore")));
    let control = root.join("DEBIAN");
    std::fs::create_dir(&control).unwrap();
    let description = description();
    let text = |name: &str| description[name].as_str().unwrap();
    let architecture = done(clean_command("dpkg").arg("--print-architecture"));
    // The release's program is static; this one needs a C library, which this machine has.
    let depends = text("depends");
    let fields = format!(
        "Package: fullbore\nVersion: {}\nArchitecture: {}\nMaintainer: {}\nSection: {}\nPriority: {}\nDepends: {depends}\n\
         Description: moves Debian archives\n",
        env!("CARGO_PKG_VERSION"),
        architecture.trim(),
        text("maintainer"),
        text("section"),
        text("priority")
    );
    std::fs::write(control.join("control"), fields).unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join(text("maintainer-scripts"));
    for name in ["postinst", "prerm", "postrm"] {
        std::fs::copy(scripts.join(name), control.join(name)).unwrap();
        std::fs::set_permissions(control.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let package = directory.join("fullbore.deb");
    done(clean_command("dpkg-deb").args(["--root-owner-group", "-Znone", "-b"]).arg(&root).arg(&package));
    package
}

/// What is done in the layer over the root. `/fullbore.deb` is the package.
const INSIDE: &str = r#"
say() { echo "$*" >&2; exit 1; }
installed() { dpkg-query -W -f '${db:Status-Status}' fullbore 2>/dev/null || true; }
[ "$(installed)" != installed ] || say "fullbore is installed on this machine: remove it first"

dpkg -i /fullbore.deb
[ "$(installed)" = installed ] || say "not installed"
fullbore --version
for page in fullbore fullbore-mirror fullbore-check fullbore-convert; do
    dpkg -L fullbore | grep -Eq "/usr/share/man/man1/$page\.1(\.gz)?\$" || say "no page of $page"
done
dpkg -L fullbore | while read -r path; do [ -e "$path" ] || say "$path is not there"; done
bash -c '. /usr/share/bash-completion/completions/fullbore; complete -p fullbore'
[ "$(stat -c %U:%G:%a /var/lib/fullbore)" = fullbore:fullbore:755 ] || say "/var/lib/fullbore is not the user's"
for unit in /usr/lib/systemd/system/fullbore-*.service; do
    command=$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$unit")
    [ -x "$command" ] || say "$unit starts $command, which is not there"
done
dpkg --verify fullbore

# Again over itself, with apt using it, and with what runs and people have left.
dpkg -i /fullbore.deb
fullbore apt enable
enabled="timers.target.wants/fullbore-mirror@debian.timer multi-user.target.wants/fullbore-work@debian.service"
for name in $enabled; do
    mkdir -p "/etc/systemd/system/${name%/*}"
    unit=${name#*/}
    ln -s "/usr/lib/systemd/system/${unit%@*}@.${unit##*.}" "/etc/systemd/system/$name"
done
[ -e /etc/apt/apt.conf.d/90fullbore ] || say "apt enable wrote nothing"
touch /var/lib/fullbore/debian.prom /var/lib/fullbore/debian.html
mkdir /var/lib/fullbore/mine
dpkg -r fullbore
[ ! -e /etc/apt/apt.conf.d/90fullbore ] || say "apt is left with methods that are gone"
for name in $enabled; do
    [ ! -L "/etc/systemd/system/$name" ] || say "$name is left without its unit"
done
[ ! -e /usr/bin/fullbore ] || say "the program is still there"
[ -e /var/lib/fullbore/debian.prom ] || say "removed what only a purge removes"
apt-config dump >/dev/null
dpkg -i /fullbore.deb
dpkg -P fullbore
[ ! -e /var/lib/fullbore/debian.prom ] || say "a purge left what describes runs"
[ -d /var/lib/fullbore/mine ] || say "a purge took what is not the package's"
rmdir /var/lib/fullbore/mine

# And once more from the start to nothing.
dpkg -i /fullbore.deb
dpkg -P fullbore
[ "$(installed)" = "" ] || [ "$(installed)" = not-installed ] || say "dpkg still knows it: $(installed)"
"#;

#[test]
fn the_package_installs_and_removes_cleanly() {
    assert!(
        rustix::process::geteuid().is_root(),
        "installs a package in a layer over /: run as root (script/test does)"
    );
    for (program, package) in
        [("dpkg-deb", "dpkg"), ("strip", "binutils"), ("unshare", "util-linux"), ("mount", "mount")]
    {
        need(program, package);
    }
    need_verifier();
    let directory = tempfile::tempdir().unwrap();
    let package = match std::env::var_os("FULLBORE_TEST_DEB") {
        Some(given) => PathBuf::from(given),
        None => package(directory.path()),
    };
    let layer = directory.path().join("layer");
    std::fs::create_dir(&layer).unwrap();
    // The index of all the machine's manual pages takes a minute to make, and is not the package's.
    let script = format!(
        "set -e
         mount -t tmpfs -o mode=755 none {0}
         mkdir {0}/upper {0}/work {0}/root
         mount -t overlay overlay -o lowerdir=/,upperdir={0}/upper,workdir={0}/work {0}/root
         mount -t proc proc {0}/root/proc
         mount --bind /dev {0}/root/dev
         cp {1} {0}/root/fullbore.deb
         ln -sf /bin/true {0}/root/usr/bin/mandb
         chroot {0}/root sh -eu -c \"$1\" >&2
         rm {0}/root/fullbore.deb {0}/upper/usr/bin/mandb
         cd {0}/upper
         find . ! -type d ! -type c",
        layer.display(),
        package.display()
    );
    let mut command = clean_command("unshare");
    command.args(["-m", "sh", "-c", &script, "sh", INSIDE]).env("DEBIAN_FRONTEND", "noninteractive");
    let ran = command.env("LC_ALL", "C.UTF-8").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}");
    assert!(!said.contains("warning"), "{said}");
    // Nothing stays but the user, who may own mirrors, and the records of dpkg and of whom it told.
    let kept = [
        "./etc/passwd",
        "./etc/group",
        "./etc/shadow",
        "./etc/gshadow",
        "./etc/.pwd.lock",
        "./etc/subuid",
        "./etc/subgid",
    ];
    let left = String::from_utf8(ran.stdout).unwrap();
    let foreign: Vec<&str> = left
        .lines()
        .filter(|path| !kept.contains(&path.trim_end_matches('-')))
        .filter(|path| !["./var/lib/dpkg/", "./var/log/", "./var/cache/"].iter().any(|own| path.starts_with(own)))
        .collect();
    assert!(foreign.is_empty(), "left behind: {foreign:?}");
    let named: Vec<&str> = left.lines().filter(|path| path.contains("fullbore")).collect();
    assert!(named.is_empty(), "left behind: {named:?}");
}
