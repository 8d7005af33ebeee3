//! The same root as `dpkg --unpack` makes: files, owners, times, links, and the database to the byte.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fullbore_engine::digest::Sha256;
use fullbore_engine::stage::Ledger;
use fullbore_install::Lock;
use fullbore_install::unpack::{
    Archive, Examined, Filters, Options, Root, Script, Scripts, UnpackError, examine, put_files, unpack,
};
use harness::*;

/// Both unpack the same packages, dpkg one after the other, into roots prepared alike.
fn compare(prepare: impl Fn(&Path), debs: &[PathBuf]) {
    let (dpkgs, ours) = (empty_root(), empty_root());
    prepare(dpkgs.path());
    prepare(ours.path());
    dpkg_unpack(dpkgs.path(), debs, &[]).expect("dpkg unpacks");
    our_unpack(ours.path(), debs);
    assert_same(dpkgs.path(), ours.path(), &[]);
}

fn nothing(_: &Path) {}

/// Everything that tar and dpkg know in one package.
fn torture(directory: &Path, compressor: &str) -> PathBuf {
    let long = "long/".repeat(30) + "name";
    Tree::new("torture", "1:2.0~rc1-3", "Section: misc\nPriority: optional\nDepends: b (>= 1) ,c|d\nX-Own: y\n")
        .file("usr/bin/tool", "#!/bin/sh\n")
        .file(&format!("usr/share/{long}"), "long name")
        .file("usr/share/empty", "")
        .file("etc/torture.conf", "a=b\n")
        .file("etc/torture.d/more", "x\n")
        .file("var/cache/torture/setuid", "s")
        .file("DEBIAN/conffiles", "/etc/torture.conf\n/etc/torture.d/more\n")
        .file("DEBIAN/md5sums", "d41d8cd98f00b204e9800998ecf8427e  usr/share/empty\n")
        .file("DEBIAN/postinst", "#!/bin/sh\nexit 0\n")
        .file("DEBIAN/triggers", "interest-noawait /usr/share/torture\ninterest torture-named\nactivate ldconfig\n")
        .file("DEBIAN/shlibs", "libt 1 torture\n")
        .mode("DEBIAN/postinst", 0o755)
        .link("usr/lib/torture/link", "../../bin/tool")
        .link("usr/lib/torture/absolute", "/usr/bin/tool")
        .link("etc/dangling", "nowhere")
        .run(
            "ln usr/bin/tool usr/lib/torture/hard
             ln etc/torture.conf usr/share/conf-hard
             mkfifo usr/lib/torture/pipe
             mknod usr/lib/torture/null c 1 3
             mknod usr/lib/torture/loop b 7 0
             mkdir -p opt/empty srv/sticky srv/group
             chmod 1777 srv/sticky; chown 0:50 srv/group; chmod 2775 srv/group
             chown 1234:8 usr/share/empty
             chown 0:42 var/cache/torture/setuid; chmod 4750 var/cache/torture/setuid
             touch srv/group/inherits",
        )
        .build(directory, compressor)
}

#[test]
fn the_torture_package_unpacks_with_every_compressor() {
    let directory = tempfile::tempdir().unwrap();
    for compressor in ["xz", "gzip", "zstd", "none"] {
        let deb = torture(directory.path(), compressor);
        compare(nothing, &[deb]);
    }
}

/// Of a directory that several packages bring, the first in the order decides, whoever was faster.
#[test]
fn the_first_package_decides_the_mode_of_a_shared_directory() {
    let directory = tempfile::tempdir().unwrap();
    let mut debs = Vec::new();
    for (at, mode) in [0o755, 0o700, 0o750, 0o711, 0o775].into_iter().enumerate() {
        let name = format!("p{at}");
        let tree = Tree::new(&name, "1", "")
            .file(&format!("usr/share/shared/{name}"), &"content\n".repeat(1 + at * 20_000))
            .run("mkdir -p var/empty; ln usr/share/shared/p* usr/share/hard$(ls usr/share/shared)")
            .mode("usr/share/shared", mode)
            .mode("var/empty", mode);
        // The last ones are the smallest and done first.
        debs.push(tree.build(directory.path(), "gzip"));
    }
    compare(nothing, &debs);
    debs.reverse();
    compare(nothing, &debs);
}

/// Many packages, many threads, and names on which they meet: links against directories, one file
/// taken over by another package, directories of different modes.
#[test]
fn packages_that_share_names_unpack_alike_with_any_threads() {
    let directory = tempfile::tempdir().unwrap();
    let mut debs = Vec::new();
    for number in 0..40_u32 {
        let name = format!("p{number:02}");
        let fields = if number % 5 == 4 { format!("Replaces: p{:02}\n", number - 1) } else { String::new() };
        let mut tree = Tree::new(&name, "1", &fields)
            .file(&format!("usr/share/{}/{name}", number % 7), &"text\n".repeat((number as usize * 37) % 400))
            .file(&format!("usr/lib/{}/{name}", number % 3), "library")
            .mode(&format!("usr/share/{}", number % 7), [0o755, 0o750, 0o711][number as usize % 3]);
        if number % 5 >= 3 {
            tree = tree.file(&format!("usr/bin/taken-{}", number / 5), &name);
        }
        if number % 10 == 7 {
            tree = tree.link("usr/link", "lib/1");
        } else if number % 10 == 9 {
            tree = tree.file(&format!("usr/link/other-{name}"), "through a link or not");
        }
        debs.push(tree.build(directory.path(), "none"));
    }
    let taken: Vec<PathBuf> =
        debs.iter().enumerate().filter(|(at, _)| at % 10 != 7 || *at == 7).map(|(_, deb)| deb.clone()).collect();
    let dpkgs = empty_root();
    dpkg_unpack(dpkgs.path(), &taken, &[]).expect("dpkg unpacks");
    for threads in [1, 2, 8, 8, 8] {
        let ours = empty_root();
        let unpacked = our_unpack_with(ours.path(), &taken, Options { threads, ..options() });
        assert_eq!(unpacked.refused, []);
        assert_same(dpkgs.path(), ours.path(), &[]);
    }
}

#[test]
fn multi_arch_same_packages_unpack_as_by_dpkg() {
    let directory = tempfile::tempdir().unwrap();
    let fields = "Architecture: amd64\nMulti-Arch: same\n";
    let deb = Tree::new("libm", "1", fields)
        .file("usr/lib/libm.so.1", "elf")
        .file("DEBIAN/triggers", "interest /usr/lib/m\ninterest-noawait named\nactivate-noawait ldconfig\n")
        .build(directory.path(), "gzip");
    let foreign =
        Tree::new("tool", "1", "Multi-Arch: foreign\n").file("usr/bin/t", "t").build(directory.path(), "gzip");
    compare(nothing, &[deb, foreign]);
}

/// A diversion of the administrator's, and one for a package; overrides of owner and mode.
#[test]
fn diversions_and_statoverrides_count_as_with_dpkg() {
    let directory = tempfile::tempdir().unwrap();
    let a = Tree::new("a", "1", "")
        .file("usr/bin/local", "local")
        .file("usr/bin/other", "other")
        .file("usr/bin/own", "own")
        .file("usr/bin/override", "o")
        .file("etc/conf", "conf")
        .file("DEBIAN/conffiles", "/etc/conf\n")
        .build(directory.path(), "gzip");
    let prepare = |root: &Path| {
        let diversions = "/usr/bin/local\n/usr/bin/local.distrib\n:\n/usr/bin/other\n/usr/bin/other.b\nb\n\
            /usr/bin/own\n/usr/bin/own.real\na\n/etc/conf\n/etc/conf.away\n:\n";
        write(root, "var/lib/dpkg/diversions", diversions);
        write(root, "var/lib/dpkg/statoverride", "#12 #34 4711 /usr/bin/override\n#1 #2 700 /usr/bin\n");
    };
    compare(prepare, &[a]);
}

/// `/bin` and `/lib` are links, and packages bring files by either name.
#[test]
fn packages_unpack_into_a_merged_usr_as_by_dpkg() {
    let directory = tempfile::tempdir().unwrap();
    let a = Tree::new("a", "1", "").file("bin/a", "a").file("lib/x/a", "a").build(directory.path(), "gzip");
    let b = Tree::new("b", "1", "").file("usr/bin/b", "b").file("usr/lib/x/b", "b").build(directory.path(), "gzip");
    let c = Tree::new("c", "1", "")
        .link("bin", "usr/bin")
        .link("lib", "usr/lib")
        .file("etc/c", "c")
        .build(directory.path(), "gzip");
    let prepare = |root: &Path| {
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
        std::os::unix::fs::symlink("usr/lib", root.join("lib")).unwrap();
    };
    compare(prepare, &[a.clone(), b.clone(), c.clone()]);
    // The links come with a package of the batch: first, in the middle and last.
    let usr = Tree::new("usr", "1", "")
        .run("mkdir -p usr/bin usr/lib")
        .file("usr/share/u", "u")
        .build(directory.path(), "gzip");
    for order in [[&usr, &c, &a, &b], [&usr, &a, &c, &b], [&usr, &a, &b, &c], [&a, &usr, &c, &b]] {
        compare(nothing, &order.map(PathBuf::clone));
    }
}

/// One name through two ways: dpkg does not see it, and the later package's file stays.
#[test]
fn the_later_package_wins_a_file_that_has_two_names() {
    let directory = tempfile::tempdir().unwrap();
    let a = Tree::new("a", "1", "").file("bin/x", &"a".repeat(100_000)).build(directory.path(), "gzip");
    let b = Tree::new("b", "1", "").file("usr/bin/x", "b").build(directory.path(), "gzip");
    let prepare = |root: &Path| {
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
    };
    compare(prepare, &[a.clone(), b.clone()]);
    compare(prepare, &[b, a]);
}

#[test]
fn replaces_counts_in_either_order() {
    let directory = tempfile::tempdir().unwrap();
    let old = Tree::new("old", "1", "")
        .file("usr/bin/moved", "old")
        .file("usr/bin/kept", "k")
        .build(directory.path(), "gzip");
    let new =
        Tree::new("new", "2", "Replaces: old (<< 2)\n").file("usr/bin/moved", "new").build(directory.path(), "gzip");
    compare(nothing, &[old.clone(), new.clone()]);
    compare(nothing, &[new.clone(), old.clone()]);
    // The old one is there before.
    let (dpkgs, ours) = (empty_root(), empty_root());
    for root in [&dpkgs, &ours] {
        dpkg_unpack(root.path(), std::slice::from_ref(&old), &[]).unwrap();
    }
    dpkg_unpack(dpkgs.path(), std::slice::from_ref(&new), &[]).unwrap();
    our_unpack(ours.path(), &[new]);
    assert_same(dpkgs.path(), ours.path(), &[]);
}

/// What lies in the root unowned is overwritten; conffiles are left beside.
#[test]
fn unowned_files_are_overwritten_and_conffiles_kept() {
    let directory = tempfile::tempdir().unwrap();
    let a = Tree::new("a", "1", "")
        .file("usr/bin/a", "new")
        .file("etc/a.conf", "new")
        .file("etc/dir/x", "x")
        .file("DEBIAN/conffiles", "/etc/a.conf\n")
        .link("usr/lib/same", "../share/target")
        .link("usr/lib/other", "new")
        .link("usr/share/dir", "elsewhere")
        .run("mkdir -p usr/share/target")
        .build(directory.path(), "gzip");
    let prepare = |root: &Path| {
        write(root, "usr/bin/a", "old");
        write(root, "usr/bin/a.dpkg-new", "left by a killed run");
        write(root, "etc/a.conf", "mine");
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::create_dir_all(root.join("usr/share/target")).unwrap();
        fs::create_dir_all(root.join("usr/share/dir")).unwrap();
        fs::create_dir_all(root.join("other-place")).unwrap();
        std::os::unix::fs::symlink("../share/target", root.join("usr/lib/same")).unwrap();
        std::os::unix::fs::symlink("old", root.join("usr/lib/other")).unwrap();
        std::os::unix::fs::symlink("../other-place", root.join("etc/dir")).unwrap();
    };
    compare(prepare, &[a]);
}

/// A package that is installed is interested in what another brings.
#[test]
fn triggers_of_installed_packages_are_activated() {
    let directory = tempfile::tempdir().unwrap();
    let interested = Tree::new("man", "1", "")
        .file("usr/bin/man", "m")
        .file(
            "DEBIAN/triggers",
            "interest-noawait /usr/share/man\ninterest /usr/share/awaited\ninterest-noawait named\ninterest other\n",
        )
        .build(directory.path(), "gzip");
    let page = |name: &str, triggers: &str| {
        Tree::new(name, "1", "")
            .file(&format!("usr/share/man/{name}"), "page")
            .file(&format!("usr/share/awaited/{name}"), "page")
            .file("DEBIAN/triggers", triggers)
            .build(directory.path(), "gzip")
    };
    let one = page("one", "activate named\nactivate-noawait other\n");
    let two = page("two", "activate other\n");
    for then in [&[one.clone()][..], &[one.clone(), two.clone()], &[two, one]] {
        let (dpkgs, ours) = (empty_root(), empty_root());
        for root in [&dpkgs, &ours] {
            dpkg_unpack(root.path(), std::slice::from_ref(&interested), &[]).unwrap();
            let status = root.path().join("var/lib/dpkg/status");
            let text = fs::read_to_string(&status).unwrap().replace("ok unpacked", "ok installed");
            fs::write(status, text).unwrap();
        }
        dpkg_unpack(dpkgs.path(), then, &[]).unwrap();
        our_unpack(ours.path(), then);
        assert_same(dpkgs.path(), ours.path(), &[]);
    }
}

#[test]
fn path_filters_leave_out_what_they_do_with_dpkg() {
    let directory = tempfile::tempdir().unwrap();
    let a = Tree::new("a", "1", "")
        .file("usr/share/doc/a/copyright", "c")
        .file("usr/share/doc/a/README", "r")
        .file("usr/share/doc/a/examples/deep/x", "x")
        .file("usr/share/man/de/man1/a.1", "x")
        .link("usr/share/doc/a/link", "README")
        .file("usr/bin/a", "a")
        .build(directory.path(), "gzip");
    let (dpkgs, ours) = (empty_root(), empty_root());
    let lines =
        ["path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright", "path-exclude=/usr/share/man/*"];
    let arguments: Vec<String> = lines.iter().map(|line| format!("--{line}")).collect();
    let arguments: Vec<&str> = arguments.iter().map(|line| &line[..]).collect();
    dpkg_unpack(dpkgs.path(), std::slice::from_ref(&a), &arguments).unwrap();
    let mut options = options();
    options.filters.read_configuration(&lines.join("\n"));
    our_unpack_with(ours.path(), &[a], options);
    assert_same(dpkgs.path(), ours.path(), &[]);
}

fn refusals(root: &Path, debs: &[PathBuf]) -> Vec<String> {
    let root = Root::open(root).unwrap();
    let _locks = (Lock::frontend(&root).unwrap(), Lock::database(&root).unwrap());
    let Examined { batch, refused } = examine(&root, open(debs)).unwrap();
    let mut reasons: Vec<String> = refused.iter().map(|refused| refused.refusal.to_string()).collect();
    let unpacked = unpack(&root, &batch, options()).unwrap();
    reasons.extend(unpacked.refused.iter().map(ToString::to_string));
    reasons
}

/// What dpkg would do in another way is dpkg's, and the reason is said; nothing of it is left behind.
#[test]
fn what_is_left_to_dpkg_has_a_reason_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let build = |tree: Tree| tree.build(&tempfile::tempdir_in(directory.path()).unwrap().keep(), "gzip");
    let a = build(Tree::new("a", "1", "").file("usr/bin/a", "a").file("usr/share/doc/a/x", "x"));
    let root = empty_root();
    our_unpack(root.path(), std::slice::from_ref(&a));
    fs::create_dir_all(root.path().join("srv/there")).unwrap();
    let before = nodes(root.path());
    let cases = [
        (a.clone(), "it is installed in this version"),
        (build(Tree::new("a", "2", "")), "it is an upgrade from 1"),
        (build(Tree::new("a", "0", "")), "it is a downgrade from 1"),
        (build(Tree::new("clash", "1", "").file("usr/share/clash/x", "").file("usr/bin/a", "b")), "belongs to a"),
        (build(Tree::new("conflict", "1", "Conflicts: a\n")), "conflicts with a"),
        (build(Tree::new("breaks", "1", "Breaks: a (<< 2)\n")), "conflicts with a"),
        (
            build(Tree::new("script", "1", "").file("DEBIAN/preinst", "#!/bin/sh\n").mode("DEBIAN/preinst", 0o755)),
            "preinst",
        ),
        (
            build(
                Tree::new("diverts", "1", "")
                    .file("DEBIAN/preinst", "#!/bin/sh\ndpkg-divert x\n")
                    .mode("DEBIAN/preinst", 0o755),
            ),
            "its preinst calls dpkg-divert",
        ),
        (build(Tree::new("directory", "1", "").file("srv/there", "file")), "directory in the root"),
        (build(Tree::new("directories", "1", "").run("mkdir -p usr/bin")), "may let it disappear"),
        (
            build(Tree::new("swallows", "1", "Replaces: a\n").file("usr/bin/a", "s").file("usr/share/doc/a/x", "s")),
            "a would disappear",
        ),
    ];
    for (deb, reason) in cases {
        let reasons = refusals(root.path(), &[deb]);
        assert!(reasons.len() == 1 && reasons[0].contains(reason), "{reason}: {reasons:?}");
        let mut after = nodes(root.path());
        let mut before = before.clone();
        for nodes in [&mut before, &mut after] {
            nodes.retain(|name, _| name != "var/lib/dpkg/status-old");
        }
        assert!(before == after, "{reason}");
    }
}

/// Two packages with one file, neither of which replaces the other: the second is refused, as by
/// dpkg, whichever is faster.
#[test]
fn the_second_package_of_a_conflict_in_a_batch_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let large = Tree::new("large", "1", "").file("usr/share/a", &"x".repeat(1 << 20)).file("usr/share/clash", "large");
    let large = large.build(directory.path(), "none");
    let small = Tree::new("small", "1", "").file("usr/share/clash", "small").file("usr/share/small/x", "");
    let small = small.build(directory.path(), "none");
    for (first, second) in [(&large, &small), (&small, &large)] {
        let (dpkgs, ours) = (empty_root(), empty_root());
        let reasons = refusals(ours.path(), &[first.clone(), second.clone()]);
        assert_eq!(reasons.len(), 1);
        assert!(reasons[0].contains("/usr/share/clash belongs to"), "{reasons:?}");
        dpkg_unpack(dpkgs.path(), std::slice::from_ref(first), &[]).unwrap();
        assert_same(dpkgs.path(), ours.path(), &[]);
        let error = dpkg_unpack(dpkgs.path(), std::slice::from_ref(second), &[]).expect_err("dpkg refuses it too");
        assert!(error.contains("trying to overwrite"), "{error}");
    }
}

/// The scripts run before any file is there, with the package verified.
#[test]
fn preinsts_come_first() {
    let directory = tempfile::tempdir().unwrap();
    let a = Tree::new("a", "1", "").file("usr/bin/a", "a").build(directory.path(), "gzip");
    let b = Tree::new("b", "1", "")
        .file("usr/bin/b", "b")
        .file("DEBIAN/preinst", "#!/bin/sh\n")
        .mode("DEBIAN/preinst", 0o755)
        .build(directory.path(), "gzip");
    let root = empty_root();
    let mut seen = Vec::new();
    let mut preinst = |archive: &Archive, script: Script| {
        assert!(!root.path().join("usr").exists());
        seen.push((archive.name().to_owned(), script));
        Ok(())
    };
    let options = Options { scripts: Scripts::Run(&mut preinst), ..options() };
    our_unpack_with(root.path(), &[a, b], options);
    assert_eq!(seen, [("b".to_owned(), Script::Preinst)]);
}

/// No preinst runs for a package that is left to dpkg, as far as that can be known; and where one has, it is told that
/// nothing is left.
#[test]
fn a_preinst_whose_package_is_left_to_dpkg_is_undone() {
    let directory = tempfile::tempdir().unwrap();
    let with_preinst = |name: &str, file: &str| {
        let tree = Tree::new(name, "1", "").file(file, name).file("DEBIAN/preinst", "#!/bin/sh\n");
        tree.mode("DEBIAN/preinst", 0o755).build(directory.path(), "gzip")
    };
    let there = Tree::new("there", "1", "").file("usr/share/taken", "t").build(directory.path(), "gzip");
    let root = empty_root();
    our_unpack_with(root.path(), &[there], options());
    let debs = [
        with_preinst("clashing", "usr/share/taken"),
        with_preinst("failing", "usr/bin/failing"),
        with_preinst("fine", "usr/bin/same"),
        // Known only when both are unpacked.
        with_preinst("late", "usr/bin/same"),
        Tree::new("plain", "1", "").file("usr/bin/plain", "p").build(directory.path(), "gzip"),
    ];
    let mut seen = Vec::new();
    let mut run = |archive: &Archive, script: Script| {
        seen.push(format!("{} {script:?}", archive.name()));
        if archive.name() == "failing" { Err("exit status 1".to_owned()) } else { Ok(()) }
    };
    let handle = Root::open(root.path()).unwrap();
    let batch = examine(&handle, open(&debs)).unwrap().batch;
    let unpacked = unpack(&handle, &batch, Options { scripts: Scripts::Run(&mut run), ..options() }).unwrap();
    let names: Vec<_> = unpacked.packages.iter().map(|package| &package.name[..]).collect();
    assert_eq!(names, ["fine", "plain"]);
    let refused: Vec<_> = unpacked.refused.iter().map(|refusal| &refusal.package[..]).collect();
    assert_eq!(refused, ["clashing", "failing", "late"]);
    assert!(unpacked.refused[1].reason.contains("exit status 1"), "{:?}", unpacked.refused);
    let expected = ["failing Preinst", "failing AbortInstall", "fine Preinst", "late Preinst", "late AbortInstall"];
    assert_eq!(seen, expected);
    assert!(!root.path().join("usr/bin/failing").exists());
    // Nothing of a batch is left.
    let stopped = AtomicBool::new(false);
    let mut seen = Vec::new();
    let mut run = |archive: &Archive, script: Script| {
        seen.push(format!("{} {script:?}", archive.name()));
        stopped.store(true, Ordering::Relaxed);
        Ok(())
    };
    let another = with_preinst("another", "usr/bin/another");
    let batch = examine(&handle, open(&[another])).unwrap().batch;
    let options = Options { scripts: Scripts::Run(&mut run), stop: Some(&stopped), ..options() };
    assert!(matches!(unpack(&handle, &batch, options), Err(UnpackError::Stopped)));
    assert_eq!(seen, ["another Preinst", "another AbortInstall"]);
}

/// Where dpkg is not there yet: links stay and lead no further than the root, filters hold.
#[test]
fn files_alone_go_where_dpkg_would_put_them() {
    let directory = tempfile::tempdir().unwrap();
    let root = empty_root();
    let at = |path: &str| root.path().join(path);
    for there in ["usr/lib", "usr/share/kept"] {
        fs::create_dir_all(at(there)).unwrap();
    }
    // From the outside an absolute link leads out of the root.
    let outside = tempfile::tempdir().unwrap();
    let absolute = outside.path().to_str().unwrap();
    fs::create_dir_all(at(&absolute[1..])).unwrap();
    std::os::unix::fs::symlink(absolute, at("lib")).unwrap();
    let deb = Tree::new("a", "1", "")
        .file("lib/a.so", "library")
        .file("usr/bin/a", "program")
        .file("usr/share/doc/a/README", "left out")
        .link("usr/share/kept", "/usr/lib")
        .link("usr/bin/b", "a")
        .run("ln usr/bin/a usr/bin/c; chown 7:8 usr/bin/a; chmod 4755 usr/bin/a")
        .build(directory.path(), "xz");
    let mut filters = Filters::new();
    filters.exclude("/usr/share/doc/*");
    // A second time over the first.
    for _ in 0..2 {
        put_files(&Root::open(root.path()).unwrap(), &Archive::open(&deb).unwrap(), &filters).unwrap();
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(at(&absolute[1..]).join("a.so")).unwrap(), "library");
    let program = at("usr/bin/a").metadata().unwrap();
    assert_eq!((program.mode() & 0o7777, program.uid(), program.gid(), program.nlink()), (0o4755, 7, 8, 2));
    assert_eq!(program.mtime(), LONG_AGO_S as i64);
    assert_eq!(fs::read_link(at("usr/bin/b")).unwrap(), Path::new("a"));
    assert!(at("usr/share/kept").is_dir() && at("lib").is_symlink());
    assert!(!at("usr/share/doc/a/README").exists());
    let left = nodes(root.path()).into_keys().filter(|name| name.ends_with(".dpkg-new")).count();
    assert_eq!(left, 0);
}

/// dpkg does not know them, and without them the file would be another one.
#[test]
fn files_alone_have_no_holes() {
    let directory = tempfile::tempdir().unwrap();
    fs::File::create(directory.path().join("holes")).unwrap().set_len(1 << 20).unwrap();
    for format in ["gnu", "pax"] {
        let mut tar = Command::new("tar");
        tar.args(["--create", "--sparse", "--format", format, "--directory"]).arg(directory.path()).arg("holes");
        let deb = deb_of(directory.path(), format, &tar.output().unwrap().stdout);
        let root = empty_root();
        let put = put_files(&Root::open(root.path()).unwrap(), &Archive::open(&deb).unwrap(), &Filters::new());
        assert!(matches!(&put, Err(UnpackError::Tar { .. })), "{format}: {put:?}");
        assert!(!root.path().join("holes").exists(), "{format}");
    }
}

/// What the verdict reads: work that each stage has done.
#[test]
fn stages_count_their_work() {
    let directory = tempfile::tempdir().unwrap();
    let deb = Tree::new("a", "1", "").file("usr/share/a", &"text\n".repeat(100_000)).build(directory.path(), "xz");
    let bytes = fs::read(&deb).unwrap();
    let data = Archive::open(&deb).unwrap().data();
    let root = empty_root();
    let handle = Root::open(root.path()).unwrap();
    let ledger = Ledger::new();
    let archive = Archive::open(&deb).unwrap().expecting(bytes.len() as u64, Sha256::of(&bytes));
    let batch = examine(&handle, vec![archive]).unwrap().batch;
    let done = AtomicU64::new(0);
    let options = Options { ledger: Some(&ledger), done_bytes: Some(&done), ..options() };
    let unpacked = unpack(&handle, &batch, options).unwrap();
    let stage = |name: &str| ledger.reading().stages.into_iter().find(|stage| stage.name == name).unwrap();
    assert_eq!(stage("verify").bytes, bytes.len() as u64 - data.offset);
    assert_eq!(stage("write").items, 1);
    assert!(stage("write").device_calls > 0 && unpacked.plain_bytes > 500_000);
    // The reader of the archive stops at its end; the decoder goes on to the end of the padding.
    assert!(stage("decompress").bytes >= unpacked.plain_bytes);
    // But for a byte of padding at most.
    assert!(bytes.len() as u64 - done.load(Ordering::Relaxed) <= 1, "{done:?}");
    assert_eq!(stage("bookkeeping").name, "bookkeeping");
}

/// The caller may end a run; nothing of it stays.
#[test]
fn a_run_that_the_caller_stops_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let deb = Tree::new("a", "1", "").file("usr/share/a", "a").build(directory.path(), "xz");
    let root = empty_root();
    let before = nodes(root.path());
    let handle = Root::open(root.path()).unwrap();
    let batch = examine(&handle, open(&[deb])).unwrap().batch;
    let stop = AtomicBool::new(true);
    let error = unpack(&handle, &batch, Options { stop: Some(&stop), ..options() }).expect_err("stopped");
    assert!(matches!(error, UnpackError::Stopped), "{error}");
    assert!(before == nodes(root.path()));
}

/// The modes of an archive, whatever mask the process has and whatever a default ACL says.
#[test]
fn modes_do_not_depend_on_the_mask() {
    let directory = tempfile::tempdir().unwrap();
    let deb = Tree::new("a", "1", "").file("usr/bin/a", "a").file("usr/bin/b", "b").mode("usr/bin/b", 0o666);
    let deb = deb.build(directory.path(), "none");
    let prepare = |root: &Path| {
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        let status = Command::new("setfacl").args(["-d", "-m", "u::rwx,g::r,o::-"]).arg(root.join("usr/bin")).status();
        assert!(status.expect("setfacl does not run: apt-get install acl").success());
    };
    compare(prepare, &[deb]);
}

/// A removed package keeps the paths of its configuration files until it is purged. dpkg takes such a path out of its
/// list, whatever the new package has there.
#[test]
fn files_of_a_removed_package_are_taken_over_by_dpkg() {
    let directory = tempfile::tempdir().unwrap();
    let build = |tree: Tree| tree.build(&tempfile::tempdir_in(directory.path()).unwrap().keep(), "gzip");
    let old = build(
        Tree::new("old", "1", "").file("etc/default/tool", "a=b\n").file("DEBIAN/conffiles", "/etc/default/tool\n"),
    );
    let removed = |root: &Path| {
        dpkg_unpack(root, std::slice::from_ref(&old), &[]).unwrap();
        for action in [["--configure", "old"], ["--remove", "old"]] {
            let dpkg = Command::new("dpkg").arg("--root").arg(root).args(["--log=/dev/null"]).args(action).output();
            assert!(dpkg.unwrap().status.success(), "{action:?}");
        }
        assert!(root.join("etc/default/tool").exists());
    };
    let root = empty_root();
    removed(root.path());
    let conffile = Tree::new("new", "1", "").file("etc/default/tool", "a=b\n");
    for tree in [
        conffile.file("DEBIAN/conffiles", "/etc/default/tool\n"),
        Tree::new("new", "1", "").file("etc/default/tool", "plain"),
        Tree::new("new", "1", "Replaces: old\n").file("etc/default/tool", "plain"),
        Tree::new("new", "1", "").link("etc/default/tool", "elsewhere"),
    ] {
        let reasons = refusals(root.path(), &[build(tree)]);
        assert!(reasons.len() == 1 && reasons[0].contains("removed and not purged"), "{reasons:?}");
    }
    // Also where its directory is gone and the file is excluded.
    let mut options = options();
    options.filters.exclude("/etc/default/*");
    fs::remove_dir_all(root.path().join("etc/default")).unwrap();
    let plain = build(Tree::new("new", "1", "").file("etc/default/tool", "plain"));
    let unpacked = our_unpack_with(root.path(), &[plain], options);
    assert_eq!(unpacked.refused.len(), 1, "{unpacked:?}");
    // Directories have many owners.
    let beside = build(Tree::new("beside", "1", "").file("etc/default/beside", "b"));
    compare(removed, &[beside]);
}

/// With a diversion two packages may have a conffile of one path. dpkg compares the new one with the hash of the other.
#[test]
fn a_diverted_conffile_with_another_owner_is_dpkgs() {
    let directory = tempfile::tempdir().unwrap();
    let build = |name: &str| {
        let tree = Tree::new(name, "1", "").file("etc/conf", name).file("DEBIAN/conffiles", "/etc/conf\n");
        tree.build(directory.path(), "gzip")
    };
    let root = empty_root();
    our_unpack(root.path(), &[build("first")]);
    write(root.path(), "var/lib/dpkg/diversions", "/etc/conf\n/etc/conf.first\nsecond\n");
    let reasons = refusals(root.path(), &[build("second")]);
    assert!(reasons.len() == 1 && reasons[0].contains("/etc/conf is another package's"), "{reasons:?}");
}

/// A file that keeps its mode says nothing about bits that it does not have.
#[test]
fn each_permission_bit_is_checked_not_only_the_first_file() {
    const MODES: [u32; 6] = [0o644, 0o600, 0o664, 0o666, 0o775, 0o777];
    let directory = tempfile::tempdir().unwrap();
    let mut tree = Tree::new("a", "1", "");
    // In every order, because that of the archive is the file system's.
    for first in 0..MODES.len() {
        for at in 0..MODES.len() {
            let path = format!("usr/share/{first}/{at}");
            tree = tree.file(&path, "x").mode(&path, MODES[(first + at) % MODES.len()]);
        }
    }
    let deb = tree.build(directory.path(), "none");
    for taken_away in ["g::rx,o::rx", "g::-,o::-"] {
        let prepare = |root: &Path| {
            fs::create_dir_all(root.join("usr/share")).unwrap();
            let mut setfacl = Command::new("setfacl");
            setfacl.args(["-d", "-m", &format!("u::rwx,{taken_away}")]).arg(root.join("usr/share"));
            assert!(setfacl.status().expect("setfacl does not run: apt-get install acl").success());
        };
        compare(prepare, std::slice::from_ref(&deb));
        // Without a database, too.
        let (dpkgs, ours) = (empty_root(), empty_root());
        prepare(dpkgs.path());
        prepare(ours.path());
        dpkg_unpack(dpkgs.path(), std::slice::from_ref(&deb), &[]).unwrap();
        put_files(&Root::open(ours.path()).unwrap(), &Archive::open(&deb).unwrap(), &Filters::new()).unwrap();
        for (path, node) in nodes(dpkgs.path()).iter().filter(|(path, _)| path.starts_with("usr/share/")) {
            assert_eq!(nodes(ours.path()).get(path), Some(node), "{path}");
        }
    }
}

/// An override has the path in the archive; one of the path to which a file is diverted says nothing about it.
#[test]
fn an_override_counts_before_the_diversion() {
    let directory = tempfile::tempdir().unwrap();
    let a = Tree::new("a", "1", "")
        .file("usr/bin/named", "named")
        .file("usr/bin/away", "away")
        .run("ln usr/bin/named usr/bin/hard; mkfifo usr/bin/pipe")
        .build(directory.path(), "gzip");
    let prepare = |root: &Path| {
        let diversion = |name: &str| format!("/usr/bin/{name}\n/usr/bin/{name}.real\n:\n");
        let diversions: String = ["named", "away", "hard", "pipe"].map(diversion).concat();
        write(root, "var/lib/dpkg/diversions", &diversions);
        let overrides = "#1 #2 4711 /usr/bin/named\n#3 #4 640 /usr/bin/away.real\n#1 #2 4711 /usr/bin/hard\n\
            #5 #6 600 /usr/bin/pipe\n";
        write(root, "var/lib/dpkg/statoverride", overrides);
    };
    compare(prepare, &[a]);
}

/// Scripts of a package that is left to dpkg may divert files of those after it, or override their modes.
#[test]
fn what_comes_after_a_package_that_diverts_is_left_to_dpkg() {
    let directory = tempfile::tempdir().unwrap();
    let build = |tree: Tree| tree.build(&tempfile::tempdir_in(directory.path()).unwrap().keep(), "gzip");
    let scripted = |name: &str, version: &str, script: &str, text: &str| {
        let path = format!("DEBIAN/{script}");
        build(Tree::new(name, version, "").file(&path, &format!("#!/bin/sh\n{text}\n")).mode(&path, 0o755))
    };
    let plain = |name: &str| build(Tree::new(name, "1", "").file(&format!("usr/bin/{name}"), name));
    let installed = scripted("installed", "1", "postrm", "dpkg-divert --remove x");
    let calm = scripted("calm", "1", "prerm", "# dpkg-divert x");
    let root = empty_root();
    our_unpack(root.path(), &[installed, calm]);
    let handle = Root::open(root.path()).unwrap();
    for (left, diverts) in [
        (scripted("diverts", "1", "preinst", "dpkg-divert --add x"), true),
        (scripted("overrides", "1", "preinst", "dpkg-statoverride --add x"), true),
        // Upgrades, by a script of either version.
        (scripted("calm", "2", "preinst", "exec /usr/bin/dpkg-divert --add x"), true),
        (build(Tree::new("installed", "2", "")), true),
        (build(Tree::new("calm", "2", "")), false),
    ] {
        let Examined { batch, refused } = examine(&handle, open(&[plain("before"), left, plain("after")])).unwrap();
        let taken: Vec<&str> = batch.archives().map(Archive::name).collect();
        let refused: Vec<bool> = refused.iter().map(|refused| refused.waits).collect();
        if diverts {
            assert_eq!((&taken[..], &refused[..]), (&["before"][..], &[false, true][..]));
        } else {
            assert_eq!((&taken[..], &refused[..]), (&["before", "after"][..], &[false][..]));
        }
    }
    // What is dpkg's in any case needs no call of its own.
    let diverts = || scripted("diverts", "1", "preinst", "dpkg-divert --add x");
    let upgrade = || build(Tree::new("calm", "2", ""));
    let waits = |archives: &[PathBuf]| -> Vec<bool> {
        examine(&handle, open(archives)).unwrap().refused.iter().map(|refused| refused.waits).collect()
    };
    assert_eq!(waits(&[diverts(), upgrade()]), [false, false]);
    assert_eq!(waits(&[diverts(), upgrade(), plain("after"), upgrade()]), [false, false, true, true]);
}

/// `info/python3.13.list` is the list of python3.13, and not a control file `13.list` of python3.
#[test]
fn control_files_with_a_dot_are_not_installed() {
    let directory = tempfile::tempdir().unwrap();
    let other = Tree::new("python3.13", "1", "").file("usr/bin/python3.13", "p").build(directory.path(), "gzip");
    let dotted = Tree::new("python3", "1", "")
        .file("usr/bin/python3", "p")
        .file("DEBIAN/13.list", "/etc/shadow\n")
        .file("DEBIAN/postinst", "#!/bin/sh\n")
        .file("DEBIAN/postinst.orig", "#!/bin/sh\n")
        .mode("DEBIAN/postinst", 0o755)
        .build(directory.path(), "gzip");
    for order in [[&other, &dotted], [&dotted, &other]] {
        compare(nothing, &order.map(PathBuf::clone));
    }
}
