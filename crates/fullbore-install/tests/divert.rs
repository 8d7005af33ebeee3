//! Diversions in a root of real packages, by the real dpkg: twice, cut at every step, with an
//! upgrade and a removal in between; and nothing left.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fullbore_install::divert::{DivertError, Root, State};
use tempfile::TempDir;

struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// A root with packages of the names, but not the content, of those that are diverted.
    fn new() -> Scratch {
        let scratch = Scratch { dir: tempfile::tempdir().unwrap() };
        let info = scratch.root().join("var/lib/dpkg");
        fs::create_dir_all(info.join("info")).unwrap();
        fs::create_dir_all(scratch.root().join("usr/lib")).unwrap();
        for name in ["status", "available", "diversions", "diversions-old"] {
            fs::write(info.join(name), "").unwrap();
        }
        scratch.install("dpkg", "1", &["usr/bin/dpkg"]);
        scratch.install("apt", "1", &["usr/bin/apt-get"]);
        scratch
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn dpkg(&self, words: &[&str]) -> Output {
        let mut command = Command::new("dpkg");
        command.arg("--root").arg(self.root()).args(["--force-all", "--log=/dev/null"]).args(words);
        let output = command.output().expect("needs the package dpkg");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn install(&self, name: &str, version: &str, files: &[&str]) {
        let tree = self.dir.path().join("tree");
        fs::create_dir_all(tree.join("DEBIAN")).unwrap();
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: x\n"
        );
        fs::write(tree.join("DEBIAN/control"), control).unwrap();
        let mut sums = String::new();
        for file in files {
            let path = tree.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!("#!/bin/sh\necho {file} {version} \"$@\"\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            let sum = Command::new("md5sum").arg(&path).output().unwrap();
            sums.push_str(&format!("{}  {file}\n", &String::from_utf8_lossy(&sum.stdout)[..32]));
        }
        fs::write(tree.join("DEBIAN/md5sums"), sums).unwrap();
        let deb = self.dir.path().join("package.deb");
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "-Znone", "--build"]).args([&tree, &deb]);
        assert!(build.output().unwrap().status.success());
        fs::remove_dir_all(&tree).unwrap();
        self.dpkg(&["--install", deb.to_str().unwrap()]);
    }

    /// Everything below the root: kind, mode, owner, time of the content, and content.
    fn tree(&self) -> BTreeMap<PathBuf, String> {
        let (mut entries, mut directories) = (BTreeMap::new(), vec![self.root()]);
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
                let about = entry.symlink_metadata().unwrap();
                // dpkg-divert's own backup of its list.
                if entry.ends_with("var/lib/dpkg/diversions-old") {
                    continue;
                }
                let mut text = format!("{:o} {} {} {}", about.mode(), about.uid(), about.gid(), about.nlink());
                if about.is_dir() {
                    directories.push(entry.clone());
                } else if about.is_symlink() {
                    text += &format!(" {:?}", fs::read_link(&entry).unwrap());
                } else if entry.ends_with("var/lib/dpkg/diversions") {
                    text += &fs::read_to_string(&entry).unwrap();
                } else {
                    text += &format!(" {} {}", about.mtime(), String::from_utf8_lossy(&fs::read(&entry).unwrap()));
                }
                entries.insert(entry, text);
            }
        }
        entries
    }

    fn on(&self) -> Result<Vec<PathBuf>, DivertError> {
        self.on_until(usize::MAX)
    }

    /// Stops before step `steps`, as a kill there would.
    fn on_until(&self, steps: usize) -> Result<Vec<PathBuf>, DivertError> {
        let helper = self.dir.path().join("helper");
        fs::write(&helper, "#!/bin/sh\nexit 1\n").unwrap();
        Root::open(&self.root()).unwrap().on(&[], &helper, false, &mut stop_after(steps))
    }

    fn off_until(&self, steps: usize) -> Result<Vec<PathBuf>, DivertError> {
        Root::open(&self.root()).unwrap().off(&[], &mut stop_after(steps))
    }

    fn off(&self) {
        self.off_until(usize::MAX).unwrap();
    }

    fn status(&self) -> Vec<(PathBuf, State)> {
        Root::open(&self.root()).unwrap().status(&[]).unwrap()
    }

    /// What every moment has to keep: the program is there, and it is a program.
    fn assert_dpkg_is_there(&self) {
        let about = self.root().join("usr/bin/dpkg").metadata().unwrap();
        assert!(about.is_file() && about.mode() & 0o111 == 0o111 && about.size() > 0);
    }
}

fn stop_after(mut steps: usize) -> impl FnMut(&'static str) -> io::Result<()> {
    move |_| match steps.checked_sub(1) {
        Some(left) => {
            steps = left;
            Ok(())
        }
        None => Err(io::Error::other("killed here")),
    }
}

#[test]
fn on_twice_and_off_twice_leave_nothing() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    let programs: Vec<_> = ["/usr/bin/dpkg", "/usr/bin/apt-get"].iter().map(PathBuf::from).collect();
    for _ in 0..2 {
        assert_eq!(scratch.on().unwrap(), programs);
        let mut status = scratch.status();
        status.sort_by(|a, b| b.0.cmp(&a.0));
        assert_eq!(status, [(programs[0].clone(), State::On), (programs[1].clone(), State::On)]);
    }
    let list = Command::new("dpkg-divert").arg("--root").arg(scratch.root()).arg("--list").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&list.stdout).lines().count(), 2);
    for _ in 0..2 {
        scratch.off();
        assert_eq!(scratch.tree(), before);
    }
    assert!(scratch.dpkg(&["--verify"]).stdout.is_empty());
    let list = Command::new("dpkg-divert").arg("--root").arg(scratch.root()).arg("--list").output().unwrap();
    assert!(list.stdout.is_empty());
}

#[test]
fn killed_at_any_step_it_goes_on_or_back() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    for steps in 0.. {
        // Cut while it is set up; brought back at once, or after another try.
        let is_whole = scratch.on_until(steps).is_ok();
        scratch.assert_dpkg_is_there();
        scratch.off();
        assert_eq!(scratch.tree(), before, "on was cut before step {steps}");
        let _ = scratch.on_until(steps);
        scratch.on().unwrap();
        assert!(scratch.status().iter().all(|(_, state)| *state == State::On));
        scratch.off();
        assert_eq!(scratch.tree(), before);
        if is_whole {
            assert_eq!(steps, 9, "a helper, and four steps for each of two programs");
            break;
        }
    }
    for steps in 0.. {
        scratch.on().unwrap();
        let is_whole = scratch.off_until(steps).is_ok();
        scratch.assert_dpkg_is_there();
        if !is_whole && steps % 2 == 1 {
            scratch.on().unwrap();
            assert!(scratch.status().iter().all(|(_, state)| *state == State::On));
        }
        scratch.off();
        assert_eq!(scratch.tree(), before, "off was cut before step {steps}");
        if is_whole {
            break;
        }
    }
}

#[test]
fn what_a_killed_dpkg_divert_has_left_goes() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    let _ = scratch.on_until(1);
    fs::write(scratch.root().join("var/lib/dpkg/diversions-new"), "/usr/bin/dpkg\n").unwrap();
    scratch.off();
    assert_eq!(scratch.tree(), before);
}

#[test]
fn apts_configuration_can_do_it_without_diversions() {
    let scratch = Scratch::new();
    let parts = scratch.root().join("etc/apt/apt.conf.d");
    fs::create_dir_all(&parts).unwrap();
    let helper = scratch.dir.path().join("helper");
    fs::write(&helper, "#!/bin/sh\nexit 1\n").unwrap();
    let before = scratch.tree();
    let root = || Root::open(&scratch.root()).unwrap();
    for steps in 0.. {
        let is_whole = root().on_by_apt(&helper, false, &mut stop_after(steps)).is_ok();
        scratch.off();
        assert_eq!(scratch.tree(), before, "on was cut before step {steps}");
        root().on_by_apt(&helper, false, &mut stop_after(usize::MAX)).unwrap();
        assert!(root().is_on_by_apt().unwrap() && scratch.status().is_empty());
        // Both at once: one does not take the helper from the other.
        scratch.on().unwrap();
        root().off(&["/usr/bin/dpkg".into(), "/usr/bin/apt-get".into()], &mut stop_after(usize::MAX)).unwrap();
        assert!(root().is_on_by_apt().unwrap());
        let is_off = scratch.off_until(steps).is_ok();
        scratch.off();
        assert_eq!(scratch.tree(), before, "off was cut before step {steps}");
        if is_whole && is_off {
            break;
        }
    }
    // What APT makes of it, and that the wrapper runs the real program.
    root().on_by_apt(&helper, false, &mut stop_after(usize::MAX)).unwrap();
    let config = scratch.dir.path().join("apt.conf");
    fs::write(&config, format!("Dir::Etc::parts \"{}\";\n", parts.display())).unwrap();
    let mut apt = Command::new("apt-config");
    let output = apt.env("APT_CONFIG", &config).args(["shell", "DPKG", "Dir::Bin::dpkg"]).output();
    let output = output.expect("needs the package apt");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "DPKG='/usr/lib/fullbore-nosync/dpkg'\n");
    assert!(
        fs::read_to_string(scratch.root().join("usr/lib/fullbore-nosync/dpkg"))
            .unwrap()
            .contains("exec '/usr/bin/dpkg'")
    );
    scratch.off();
    assert_eq!(scratch.tree(), before);
}

#[test]
fn an_upgrade_meanwhile_stays_and_a_removal_too() {
    let upgraded = Scratch::new();
    upgraded.install("dpkg", "2", &["usr/bin/dpkg"]);
    let expected = fs::read(upgraded.root().join("usr/bin/dpkg")).unwrap();
    // However far the diversion is when the upgrade comes: helper, registered, linked, written, all.
    for steps in [1, 2, 3, 4, 5, usize::MAX] {
        let scratch = Scratch::new();
        let _ = scratch.on_until(steps);
        let is_on = steps >= 5;
        scratch.install("dpkg", "2", &["usr/bin/dpkg"]);
        let wrapped = fs::read_to_string(scratch.root().join("usr/bin/dpkg")).unwrap().contains("fullbore divert");
        assert_eq!(wrapped, is_on, "{steps}");
        scratch.off();
        assert_eq!(fs::read(scratch.root().join("usr/bin/dpkg")).unwrap(), expected, "{steps}");
        assert!(scratch.dpkg(&["--verify"]).stdout.is_empty(), "{steps}");
    }
    let scratch = Scratch::new();
    scratch.on().unwrap();
    scratch.dpkg(&["--purge", "apt"]);
    scratch.off();
    assert!(!scratch.root().join("usr/bin/apt-get").exists());
    assert!(!scratch.root().join("usr/bin/apt-get.nosync-real").exists());
}

#[test]
fn a_link_of_the_alternatives_comes_back_as_a_link() {
    let scratch = Scratch::new();
    // The link's target is this root's.
    std::os::unix::fs::symlink("/usr/bin/apt-get", scratch.root().join("usr/bin/aptitude")).unwrap();
    let before = scratch.tree();
    let helper = scratch.dir.path().join("helper");
    fs::write(&helper, "").unwrap();
    let root = Root::open(&scratch.root()).unwrap();
    root.on(&["/usr/bin/aptitude".into()], &helper, false, &mut stop_after(usize::MAX)).unwrap();
    assert_eq!(scratch.status(), [("/usr/bin/aptitude".into(), State::On)]);
    scratch.off();
    assert_eq!(scratch.tree(), before);
}

/// Directories that a diversion writes to, by links that lead to the same path within the root and outside of it.
#[test]
fn a_diversion_follows_absolute_links_within_the_root() {
    for moved in ["usr/lib", "usr/bin", "usr", "var", "var/lib/dpkg", "etc", "etc/apt/apt.conf.d"] {
        let scratch = Scratch::new();
        let outside = tempfile::tempdir().unwrap();
        let place = scratch.root().join(moved);
        fs::create_dir_all(scratch.root().join("etc/apt/apt.conf.d")).unwrap();
        let same = scratch.root().join(outside.path().strip_prefix("/").unwrap());
        fs::create_dir_all(same.parent().unwrap()).unwrap();
        let copied = Command::new("cp").arg("-a").arg(place.join(".")).arg(outside.path()).status().unwrap();
        assert!(copied.success());
        fs::rename(&place, &same).unwrap();
        std::os::unix::fs::symlink(outside.path(), &place).unwrap();
        let state = || {
            let mut command = Command::new("find");
            command.arg(outside.path()).args(["-printf", "%P %m %n %s %C@\n"]);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let before = state();
        let helper = scratch.dir.path().join("helper");
        fs::write(&helper, "helper").unwrap();
        let root = Root::open(&scratch.root()).unwrap();
        let programs = ["/usr/bin/dpkg".into(), "/usr/bin/apt-get".into()];
        root.on(&programs, &helper, false, &mut stop_after(usize::MAX)).unwrap();
        root.on_by_apt(&helper, false, &mut stop_after(usize::MAX)).unwrap();
        assert!(root.is_on_by_apt().unwrap(), "{moved}");
        assert_eq!(scratch.status().len(), 2, "{moved}");
        assert!(scratch.status().iter().all(|(_, state)| *state == State::On), "{moved}: {:?}", scratch.status());
        root.off(&[], &mut stop_after(usize::MAX)).unwrap();
        assert!(!root.is_on_by_apt().unwrap() && scratch.status().is_empty(), "{moved}");
        assert_eq!(state(), before, "{moved}");
    }
}

#[test]
fn the_wrapper_runs_the_program_in_any_case() {
    let scratch = Scratch::new();
    scratch.on().unwrap();
    let wrapper = fs::read_to_string(scratch.root().join("usr/bin/dpkg")).unwrap();
    // As it would be in a chroot: its absolute names, below the root.
    let root = scratch.root().display().to_string();
    let here =
        wrapper.replace("helper=/usr", &format!("helper={root}/usr")).replace("'/usr/bin", &format!("'{root}/usr/bin"));
    let run = || Command::new("sh").args(["-c", &here, "dpkg", "--a b", "c"]).output().unwrap();
    let output = run();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "usr/bin/dpkg 1 --a b c\n");
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(String::from_utf8_lossy(&output.stderr).contains("they are carried out"), is_root);
    // A helper that works.
    let helper = scratch.root().join("usr/lib/fullbore-nosync/fullbore");
    fs::write(&helper, "#!/bin/sh\nshift 3\n[ \"$1\" = true ] || echo helped\nexec \"$@\"\n").unwrap();
    let output = run();
    let helped = if is_root { "helped\n" } else { "" };
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{helped}usr/bin/dpkg 1 --a b c\n"));
    assert!(output.stderr.is_empty());
    // An empty one, which the shell would run, too.
    fs::write(&helper, "").unwrap();
    assert_eq!(String::from_utf8_lossy(&run().stdout), "usr/bin/dpkg 1 --a b c\n");
}

#[test]
fn a_program_is_diverted_by_the_name_that_its_package_has() {
    let merged = |version: &str| {
        let scratch = Scratch::new();
        std::os::unix::fs::symlink("usr/bin", scratch.root().join("bin")).unwrap();
        scratch.install("grep", version, &["bin/grep"]);
        scratch
    };
    let upgraded = fs::read(merged("2").root().join("usr/bin/grep")).unwrap();
    for [called, known] in [
        ["/bin/grep", "/bin/grep"],
        ["/usr/bin/grep", "/bin/grep"],
        ["/bin/dpkg", "/usr/bin/dpkg"],
        ["/usr/bin/dpkg", "/usr/bin/dpkg"],
    ] {
        let (scratch, known) = (merged("1"), PathBuf::from(known));
        let before = scratch.tree();
        let root = Root::open(&scratch.root()).unwrap();
        let on = || root.on(&[called.into()], Path::new("/bin/true"), false, &mut stop_after(usize::MAX)).unwrap();
        let off = || root.off(&[called.into()], &mut stop_after(usize::MAX)).unwrap();
        assert_eq!((on(), on()), (vec![known.clone()], vec![known.clone()]), "{called}");
        assert_eq!(root.status(&[called.into()]).unwrap(), [(known.clone(), State::On)]);
        assert_eq!((off(), off()), (vec![known], vec![]), "{called}");
        assert_eq!(root.status(&[called.into()]).unwrap(), [(called.into(), State::Off)]);
        assert_eq!(scratch.tree(), before, "{called}");
        // By another name, dpkg would have put the new one over the wrapper, and `off` the old one over that.
        on();
        scratch.install("grep", "2", &["bin/grep"]);
        off();
        assert_eq!(fs::read(scratch.root().join("usr/bin/grep")).unwrap(), upgraded, "{called}");
        assert!(scratch.dpkg(&["--verify"]).stdout.is_empty(), "{called}");
    }
}

#[test]
fn a_missing_diverted_program_is_restored_and_an_unknown_one_refused() {
    let scratch = Scratch::new();
    scratch.install("tool", "1", &["opt/tool/bin/tool"]);
    let root = Root::open(&scratch.root()).unwrap();
    let tool = [PathBuf::from("/opt/tool/bin/tool")];
    root.on(&tool, Path::new("/bin/true"), false, &mut stop_after(usize::MAX)).unwrap();
    scratch.dpkg(&["--purge", "tool"]);
    fs::remove_dir_all(scratch.root().join("opt")).unwrap();
    assert_eq!(root.off(&tool, &mut stop_after(usize::MAX)).unwrap(), tool);
    for unknown in ["/opt/tool/bin/tool", "/usr/bin/typo", "/usr/bin/dpkg/typo", "/usr/bin", "dpkg"] {
        let names = [PathBuf::from("/usr/bin/dpkg"), PathBuf::from(unknown)];
        scratch.on().unwrap();
        let off = root.off(&names, &mut stop_after(usize::MAX));
        assert!(matches!(off, Err(DivertError::Path { .. })), "{unknown}: {off:?}");
        assert!(matches!(root.status(&names), Err(DivertError::Path { .. })), "{unknown}");
        // Nothing was done to the other one.
        assert_eq!(root.status(&names[..1]).unwrap(), [(names[0].clone(), State::On)]);
        scratch.off();
    }
}

#[test]
fn what_cannot_be_diverted_is_refused() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    let root = Root::open(&scratch.root()).unwrap();
    std::os::unix::fs::symlink("/", scratch.root().join("out")).unwrap();
    std::os::unix::fs::symlink("usr/bin", scratch.root().join("bin")).unwrap();
    fs::write(scratch.root().join("plain"), "").unwrap();
    for program in [
        "usr/bin/dpkg",
        "/usr/bin/../bin/dpkg",
        "/out/bin/sh",
        "/usr/bin/none",
        "/usr/bin/a'b",
        "/usr/bin",
        "/bin",
        "/plain",
    ] {
        let refused = root.on(&[program.into()], Path::new("/bin/true"), false, &mut stop_after(usize::MAX));
        assert!(matches!(refused, Err(DivertError::Path { .. })), "{program}");
    }
    // A helper that is no program of this root.
    let refused = root.on(&[], Path::new("/bin/true"), true, &mut stop_after(usize::MAX));
    assert!(matches!(refused, Err(DivertError::Helper { .. })));
    // Somebody else's diversion.
    let mut theirs = Command::new("dpkg-divert");
    theirs.arg("--root").arg(scratch.root()).args(["--quiet", "--no-rename", "--add", "/usr/bin/apt-get"]);
    assert!(theirs.status().unwrap().success());
    let with_theirs = scratch.tree();
    let refused = scratch.on().unwrap_err();
    assert!(matches!(refused, DivertError::Taken { .. }), "{refused}");
    assert!(refused.to_string().contains("the administrator diverts it to /usr/bin/apt-get.distrib"), "{refused}");
    assert_eq!(scratch.tree(), with_theirs, "something was changed before");
    // By the other name of its directory as well.
    let refused = root.on(&["/bin/apt-get".into()], Path::new("/bin/true"), false, &mut stop_after(usize::MAX));
    assert!(matches!(refused, Err(DivertError::Taken { .. })), "{refused:?}");
    let mut theirs = Command::new("dpkg-divert");
    theirs.arg("--root").arg(scratch.root()).args(["--quiet", "--no-rename", "--remove", "/usr/bin/apt-get"]);
    assert!(theirs.status().unwrap().success());
    for made in ["out", "bin", "plain"] {
        fs::remove_file(scratch.root().join(made)).unwrap();
    }
    assert_eq!(scratch.tree(), before);
}
