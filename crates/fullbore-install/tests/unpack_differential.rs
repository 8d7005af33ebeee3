//! Archives that are odd or damaged: what we take, dpkg takes, with the same result.

#![allow(clippy::unwrap_used)]

mod harness;

use std::fs;
use std::path::Path;
use std::process::Command;

use fullbore_install::Lock;
use fullbore_install::unpack::{Archive, Root, examine, unpack};
use harness::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Like the loop over a package that dpkg accepts: what we take, dpkg takes, with the same result.
/// `FULLBORE_TEST_CASES` sets how many are tried, `FULLBORE_TEST_SEED` which.
#[test]
fn mutated_packages_that_are_taken_unpack_as_by_dpkg() {
    let cases: u32 = std::env::var("FULLBORE_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
    let directory = tempfile::tempdir().unwrap();
    let long = "d/".repeat(55) + "name-of-a-file";
    let sound = Tree::new("m", "1", "")
        .file("usr/bin/tool", "#!/bin/sh\n")
        .file(&format!("usr/{long}"), "long")
        .file("usr/share/data", &"data".repeat(300))
        .link("usr/bin/link", "tool")
        .run("ln usr/bin/tool usr/bin/hard; mkfifo usr/fifo; mkdir -p opt/empty")
        .build(directory.path(), "none");
    let bytes = fs::read(&sound).unwrap();
    let place = Archive::open(&sound).unwrap().data();
    let (offset, end) = (place.offset as usize, (place.offset + place.bytes) as usize);
    // Headers of tar in data.tar and in control.tar, which begins after the format's version, and those of ar.
    let of_tar = |from: usize, to: usize| -> Vec<usize> {
        (from..to - 512).step_by(512).filter(|at| &bytes[at + 257..at + 262] == b"ustar").collect()
    };
    let control = CONTROL_OFFSET - 60;
    let (data, control_tar, members) =
        (of_tar(offset, end), of_tar(CONTROL_OFFSET, offset - 60), [8, control, offset - 60]);
    assert!(data.len() > 5 && control_tar.len() > 1);
    let seed = std::env::var("FULLBORE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random = Random(seed.unwrap_or(0x2545_f491));
    println!("seed {}", random.0);
    let (mut taken, mut left) = (0, 0);
    for case in 0..cases {
        let mut bad = bytes.clone();
        for _ in 0..1 + random.below(2) {
            let headers = match random.below(6) {
                0 => {
                    let at = members[random.below(members.len())];
                    mutate_member(&mut bad[at..at + 60], &mut random);
                    continue;
                }
                1 => &control_tar,
                _ => &data,
            };
            let at = headers[random.below(headers.len())];
            let block: &mut [u8; 512] = (&mut bad[at..at + 512]).try_into().unwrap();
            mutate(block, &mut random);
            if random.below(8) > 0 {
                block[148..156].fill(b' ');
                let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
        if random.below(20) == 0 {
            bad.truncate(offset + random.below(end - offset));
        }
        let deb = directory.path().join("mutated.deb");
        fs::write(&deb, &bad).unwrap();
        let ours = empty_root();
        copy_accounts(ours.path());
        let root = Root::open(ours.path()).unwrap();
        // A cut package is refused before anything is unpacked, or fails in unpacking.
        let Ok(archive) = Archive::open(&deb) else {
            left += 1;
            continue;
        };
        let _locks = (Lock::frontend(&root).unwrap(), Lock::database(&root).unwrap());
        let batch = examine(&root, vec![archive]).unwrap().batch;
        let result = unpack(&root, &batch, options());
        if batch.is_empty() || !matches!(&result, Ok(unpacked) if unpacked.refused.is_empty()) {
            left += 1;
            let only = nodes(ours.path()).into_keys().find(|name| !name.starts_with("var") && !name.starts_with("etc"));
            assert_eq!(only, None, "case {case}: something was left");
            continue;
        }
        taken += 1;
        let dpkgs = empty_root();
        copy_accounts(dpkgs.path());
        let kept = directory.path().join("kept.deb");
        fs::copy(&deb, &kept).unwrap();
        dpkg_unpack(dpkgs.path(), &[kept], &[]).unwrap_or_else(|error| {
            let keep = std::env::temp_dir().join("fullbore-differential.deb");
            fs::copy(&deb, &keep).unwrap();
            panic!("case {case}, kept as {}: dpkg: {error}", keep.display());
        });
        assert_same(dpkgs.path(), ours.path(), &[]);
    }
    println!("{taken} taken, {left} left to dpkg");
    assert!(taken > cases / 10 && left > cases / 10, "{taken} taken, {left} left");
}

/// Where `control.tar` begins in a package: after `!<arch>\n`, and `debian-binary` of four bytes.
const CONTROL_OFFSET: usize = 8 + 60 + 4 + 60;

/// Changes one field of a header of ar (deb(5)).
fn mutate_member(header: &mut [u8], random: &mut Random) {
    let (at, length) = [(0, 16), (16, 12), (28, 6), (34, 6), (40, 8), (48, 10), (58, 2)][random.below(7)];
    let field = &mut header[at..at + length];
    let place = random.below(length);
    match random.below(4) {
        0 => field[place] = b"0123456789/. \0x"[random.below(15)],
        1 => field[place] ^= 1 << random.below(8),
        2 => field.fill(b' '),
        _ => field[0] = [0x80, b' ', b'-', b'9'][random.below(4)],
    }
}

/// Changes one field of a header as archivers, old ones and attackers might have it.
fn mutate(block: &mut [u8; 512], random: &mut Random) {
    let fields = [
        (0, 100),
        (100, 8),
        (108, 8),
        (116, 8),
        (124, 12),
        (136, 12),
        (156, 1),
        (157, 100),
        (257, 8),
        (265, 32),
        (329, 8),
        (345, 155),
    ];
    let (at, length) = fields[random.below(fields.len())];
    let field = &mut block[at..at + length];
    match random.below(6) {
        0 => {
            let place = random.below(length);
            field[place] = b"0123456789/. \0xKLgS"[random.below(19)];
        }
        1 => {
            let place = random.below(length);
            field[place] ^= 1 << random.below(8);
        }
        2 => field.fill(0),
        3 => field[0] = [0x80, 0xff, b' ', b'7'][random.below(4)],
        4 => {
            let text = b"./usr/bin/tool";
            let length = length.min(text.len());
            field[..length].copy_from_slice(&text[..length]);
        }
        _ => field[length - 1] = [0, b' ', b'/', b'1'][random.below(4)],
    }
}

/// What an entry of an odd archive is.
#[derive(Debug, Clone)]
enum What {
    File(usize),
    Directory,
    Symlink(&'static str),
    HardLink(&'static str),
    Fifo,
    Device,
    /// A pax header before a file.
    Pax(&'static str),
}

/// An entry of an odd archive.
#[derive(Debug, Clone)]
struct Odd {
    name: String,
    what: What,
    mode: u32,
    /// The name goes into an entry of GNU's for long names, whether it is long or not.
    gnu_name: bool,
    /// The header has no `ustar` in it.
    old: bool,
}

/// Names that meet, lead through links, are long, or lead out.
fn names() -> impl Strategy<Value = String> {
    let plain = vec![
        "./a", "./d/", "./d", "./d/b", "./d/e/", "./d/e/c", "./link", "./link/x", "./up/x", "b", "d/f", "./", ".",
        "./a/",
    ];
    let hostile = vec!["../out", "./../out", "/abs", "./d/../../out", "./d//b", "./d/./b", "", "./a\n", "..", "./d/.."];
    prop_oneof![
        12 => prop::sample::select(plain).prop_map(str::to_owned),
        1 => prop::sample::select(hostile).prop_map(str::to_owned),
        2 => (90usize..290).prop_map(|length| format!("./d/{}", "n".repeat(length.min(200)) + &"/m".repeat(length / 40))),
    ]
}

fn odd() -> impl Strategy<Value = Odd> {
    let targets = || prop::sample::select(vec!["./a", "d", "/d", "../..", "./d/b", "/usr", "nowhere", "./link", "a"]);
    let what = prop_oneof![
        6 => (0usize..1600).prop_map(What::File),
        4 => Just(What::Directory),
        2 => targets().prop_map(What::Symlink),
        2 => targets().prop_map(What::HardLink),
        1 => Just(What::Fifo),
        1 => Just(What::Device),
        1 => prop::sample::select(vec!["14 path=./pax\n", "11 size=10\n", "22 GNU.sparse.major=1\n"]).prop_map(What::Pax),
    ];
    let mode = prop::sample::select(vec![0o644, 0o755, 0o4755, 0o2750, 0o1777, 0]);
    (names(), what, mode, prop::bool::weighted(0.15), prop::bool::weighted(0.05))
        .prop_map(|(name, what, mode, gnu_name, old)| Odd { name, what, mode, gnu_name, old })
}

/// What an ordinary package has: such entries around the odd ones, so that not all archives are refused.
fn tame() -> impl Strategy<Value = Odd> {
    let names = ["./a", "./b", "./c", "./d/e", "./d/f", "./d/g", "./usr/h", "./usr/i"].map(str::to_owned).to_vec();
    let what = prop_oneof![
        5 => (0usize..1600).prop_map(What::File),
        1 => prop::sample::select(vec!["a", "/usr", "../b"]).prop_map(What::Symlink),
        1 => Just(What::HardLink("./d/first")),
        1 => Just(What::Fifo),
    ];
    let mode = prop::sample::select(vec![0o644, 0o755, 0o4755, 0o600]);
    (prop::sample::select(names), what, mode, prop::bool::weighted(0.2)).prop_map(|(name, what, mode, gnu_name)| Odd {
        name,
        what,
        mode,
        gnu_name,
        old: false,
    })
}

/// An archive with its directories first, and now and then something odd in it.
fn archive() -> impl Strategy<Value = Vec<Odd>> {
    let directory =
        |name: &str| Odd { name: name.to_owned(), what: What::Directory, mode: 0o755, gnu_name: false, old: false };
    let first = Odd { name: "./d/first".to_owned(), what: What::File(3), mode: 0o644, gnu_name: false, old: false };
    let begin = [directory("./"), directory("./d/"), directory("./usr/"), first];
    let mixed = prop::collection::vec(prop_oneof![4 => tame(), 1 => odd()], 1..6);
    prop_oneof![
        3 => mixed.prop_map(move |rest| begin.iter().cloned().chain(rest).collect()),
        1 => prop::collection::vec(odd(), 1..6),
    ]
}

/// The archive's bytes.
fn odd_tar(entries: &[Odd], ends: bool) -> Vec<u8> {
    let mut tar = Vec::new();
    for entry in entries {
        if entry.gnu_name || entry.name.len() > 100 {
            let mut long = entry.name.clone().into_bytes();
            long.push(0);
            member(&mut tar, "././@LongLink", b'L', "", 0, &long, false);
        }
        let content = |length: usize| (0..length).map(|at| b'a' + (at % 26) as u8).collect::<Vec<u8>>();
        let (flag, link, bytes) = match &entry.what {
            What::File(length) => (b'0', "", content(*length)),
            What::Directory => (b'5', "", Vec::new()),
            What::Symlink(target) => (b'2', *target, Vec::new()),
            What::HardLink(target) => (b'1', *target, Vec::new()),
            What::Fifo => (b'6', "", Vec::new()),
            What::Device => (b'3', "", Vec::new()),
            What::Pax(record) => {
                member(&mut tar, "./PaxHeaders/x", b'x', "", 0o644, record.as_bytes(), false);
                (b'0', "", content(10))
            }
        };
        member(&mut tar, &entry.name, flag, link, entry.mode, &bytes, entry.old);
    }
    if ends {
        tar.extend_from_slice(&[0; 1024]);
    }
    tar
}

fn member(tar: &mut Vec<u8>, name: &str, flag: u8, link: &str, mode: u32, content: &[u8], old: bool) {
    let mut header = [0; 512];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, &name.as_bytes()[..name.len().min(100)]);
    put(100, format!("{mode:07o}\0").as_bytes());
    put(108, b"0000000\x000000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, format!("{LONG_AGO_S:011o}\0        ").as_bytes());
    put(156, &[flag]);
    put(157, link.as_bytes());
    if !old {
        put(257, b"ustar\x0000root");
        put(297, b"root");
        put(329, b"0000001\x000000002\0");
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.extend_from_slice(&header);
    tar.extend_from_slice(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

/// `FULLBORE_TEST_CASES` sets how many are tried, at random.
#[test]
fn odd_archives_are_taken_as_dpkg_takes_them() {
    let wanted = std::env::var("FULLBORE_TEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let directory = tempfile::tempdir().unwrap();
    let config = Config { cases: wanted.unwrap_or(60), failure_persistence: None, ..Config::default() };
    let mut runner = match wanted {
        Some(_) => TestRunner::new(config),
        // Always the same ones, where nobody looks for new ones.
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let (taken, left) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let strategy = (archive(), prop::bool::weighted(0.9));
    let result = runner.run(&strategy, |(entries, ends)| {
        let deb = deb_of(directory.path(), "odd", &odd_tar(&entries, ends));
        let place = empty_root();
        let ours = place.path();
        copy_accounts(ours);
        fs::create_dir(ours.join("usr")).unwrap();
        let root = Root::open(ours).unwrap();
        let _locks = (Lock::frontend(&root).unwrap(), Lock::database(&root).unwrap());
        let before = nodes(ours);
        let batch = examine(&root, open(std::slice::from_ref(&deb))).unwrap().batch;
        let result = unpack(&root, &batch, options());
        // Where hostile names lead to.
        let outside = [ours.with_file_name("out"), Path::new("/out").to_owned(), Path::new("/abs").to_owned()];
        prop_assert!(outside.iter().all(|path| path.symlink_metadata().is_err()), "something came outside");
        if !matches!(&result, Ok(unpacked) if unpacked.refused.is_empty()) {
            left.set(left.get() + 1);
            let new = nodes(ours).into_keys().find(|name| !before.contains_key(name) && !name.starts_with("var"));
            prop_assert_eq!(new, None, "something was left after {:?}", result);
            return Ok(());
        }
        taken.set(taken.get() + 1);
        let dpkgs = empty_root();
        copy_accounts(dpkgs.path());
        fs::create_dir(dpkgs.path().join("usr")).unwrap();
        let unpacked = dpkg_unpack(dpkgs.path(), std::slice::from_ref(&deb), &[]);
        prop_assert!(unpacked.is_ok(), "dpkg does not take it: {:?}", unpacked);
        let (dpkgs, ours) = (nodes(dpkgs.path()), nodes(ours));
        let differs: Vec<_> =
            dpkgs.keys().chain(ours.keys()).filter(|name| dpkgs.get(*name) != ours.get(*name)).collect();
        prop_assert!(differs.is_empty(), "{:?}: {:?} and {:?}", differs, dpkgs.get(differs[0]), ours.get(differs[0]));
        Ok(())
    });
    println!("{} taken, {} left to dpkg", taken.get(), left.get());
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(taken.get() > 10 && left.get() > 10, "{} taken, {} left", taken.get(), left.get());
}

/// Our reader of the ar container and its decompressors give dpkg-deb's bytes.
#[test]
fn the_plain_archive_is_dpkg_debs() {
    use fullbore_debian::deb::{Proof, data};
    use std::io::{Read as _, Seek as _, SeekFrom};
    let directory = tempfile::tempdir().unwrap();
    for compressor in ["none", "gzip", "xz", "zstd"] {
        let tree = Tree::new("plain", "1", "")
            .file("usr/share/x", &"content\n".repeat(50_000))
            .run("mkfifo p; ln usr/share/x y");
        let deb = tree.build(directory.path(), compressor);
        let place = Archive::open(&deb).unwrap().data();
        let mut file = fs::File::open(&deb).unwrap();
        file.seek(SeekFrom::Start(place.offset)).unwrap();
        let mut ours = Vec::new();
        data(file, place, 2, Proof::Checksums).unwrap().read_to_end(&mut ours).unwrap();
        let theirs = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&deb).output().unwrap().stdout;
        assert!(ours == theirs, "{compressor}: {} bytes, dpkg-deb gives {}", ours.len(), theirs.len());
    }
}
