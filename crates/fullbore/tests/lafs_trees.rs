//! Directories of a real grid, and `check`: stock storage nodes, and the stock client beside ours.
//!
//! The grid is started once, and everything runs on it step by step, as in `lafs.rs`.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "lafs/grid.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod grid;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use grid::{Grid, Output, content};
use serde_json::Value;

#[test]
fn trees_are_put_read_and_checked_on_a_real_grid() {
    let grid = Grid::start(5, "3,4,5");
    a_tree_comes_back_with_its_times(&grid);
    names_of_others_stay_below_the_destination(&grid);
    mutable_directories_are_read(&grid);
    mutable_files_are_read_whichever_shares_are_good(&grid);
    missing_shares_are_counted_and_made_again(&grid);
    missing_shares_of_mutable_files_are_made_again(&grid);
    damaged_shares_are_found_by_reading(&grid);
    leases_are_renewed_and_not_added(&grid);
    directories_are_walked(&grid);
    lists_are_checked_at_once(&grid);
    what_cannot_be_checked_is_named(&grid);
    an_entry_of_a_huge_size_costs_no_other(&grid);
    a_read_of_a_mutable_file_can_be_interrupted(&grid);
    servers_that_are_gone(&grid);
}

/// Runs fullbore on the node's grid, with the cap on stdin.
fn run(grid: &Grid, arguments: &[&str], stdin: &str) -> Output {
    let mut all = vec![arguments[0], "--node", grid.node()];
    all.extend(&arguments[1..]);
    grid.fullbore_with(all, stdin.as_bytes())
}

/// The same, which has to end well.
fn good(grid: &Grid, arguments: &[&str], stdin: &str) -> Output {
    let output = run(grid, arguments, stdin);
    assert_eq!(output.code, 0, "{arguments:?}: {}", output.stderr);
    output
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// All paths below a directory with kind, time and content.
fn tree(root: &Path) -> Vec<(PathBuf, i64, i64, Option<Vec<u8>>)> {
    fn walk(root: &Path, below: &Path, found: &mut Vec<(PathBuf, i64, i64, Option<Vec<u8>>)>) {
        for entry in fs::read_dir(root.join(below)).unwrap() {
            let path = below.join(entry.unwrap().file_name());
            let about = fs::symlink_metadata(root.join(&path)).unwrap();
            let content = about.is_file().then(|| fs::read(root.join(&path)).unwrap());
            let is_directory = about.is_dir();
            found.push((path.clone(), about.mtime(), about.mtime_nsec(), content));
            if is_directory {
                walk(root, &path, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(root, Path::new(""), &mut found);
    found.sort();
    found
}

fn set_time(path: &Path, seconds: u64, nanoseconds: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    File::open(path).unwrap().set_modified(time).unwrap();
}

fn a_tree_comes_back_with_its_times(grid: &Grid) {
    let root = grid.dir.path().join("tree");
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    for (number, name) in (1..).zip(["ä b", "sub/large", "sub/small", "empty file", "sub/segments"]) {
        let size = [300, 200_000, 7, 0, 2_500_000][number as usize - 1];
        fs::write(root.join(name), content(size, number)).unwrap();
        set_time(&root.join(name), 1_600_000_000 + number, 123_456_000 + number as u32);
    }
    for (number, name) in ["sub/empty", "sub", ""].into_iter().enumerate() {
        set_time(&root.join(name), 1_500_000_000 + number as u64, 5);
    }
    let cap = good(grid, &["put", "-q", text(&root)], "").stdout_line();
    let again = good(grid, &["put", "-q", "--dry-run", text(&root)], "").stdout_line();
    assert_eq!(cap, again, "the same tree is the same directory");
    let out = grid.dir.path().join("tree.out");
    let got = good(grid, &["get", "-o", text(&out), "-"], &cap);
    assert_eq!(tree(&out), tree(&root));
    assert!(got.stderr.contains("5 files"), "{}", got.stderr);
    // Nothing of it is read again, unless it is another one now.
    fs::write(out.join("sub/large"), content(200_000, 77)).unwrap();
    fs::remove_file(out.join("ä b")).unwrap();
    let again = good(grid, &["get", "--json", "-o", text(&out), "-"], &cap).summary();
    assert_eq!((&again["store"]["files"], &again["store"]["present"]), (&2.into(), &3.into()), "{again}");
    assert_eq!(tree(&out), tree(&root));
    // Files that the rules of copy choose; permissions of a replaced file stay.
    let some = grid.dir.path().join("some.out");
    let names = || tree(&some).into_iter().map(|(path, ..)| path.display().to_string()).collect::<BTreeSet<_>>();
    good(grid, &["get", "-o", text(&some), "--exclude", "/sub/s*", "--exclude", "empty", "-"], &cap);
    assert_eq!(names(), ["empty file", "sub", "sub/large", "ä b"].map(str::to_owned).into());
    fs::remove_dir_all(&some).unwrap();
    let list = grid.file("list", b"sub/small\nnone\n");
    let listed = run(grid, &["get", "-o", text(&some), "--files-from", text(&list), &cap], "");
    assert!(listed.code == 2 && listed.stderr.contains("none: "), "{} {}", listed.code, listed.stderr);
    assert_eq!(names(), ["sub", "sub/small"].map(str::to_owned).into());
    fs::set_permissions(some.join("sub/small"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(some.join("sub/small"), "other").unwrap();
    good(grid, &["get", "-o", text(&some), "--limit-rate", "10M", &cap], "");
    assert_eq!(tree(&some), tree(&root));
    assert_eq!(fs::metadata(some.join("sub/small")).unwrap().mode() & 0o777, 0o600);
    // A part of it, by a path.
    let part = grid.dir.path().join("part.out");
    good(grid, &["get", "-o", text(&part), &format!("{cap}/sub")], "");
    assert_eq!(tree(&part), tree(&root.join("sub")));
    let one = good(grid, &["get", &format!("{cap}/sub/small")], "");
    assert_eq!(one.stdout.as_bytes(), String::from_utf8_lossy(&content(7, 3)).as_bytes());
    assert_eq!(run(grid, &["get", "-o", text(&part), &format!("{cap}/sub/none")], "").code, 1);
    // The stock client knows the times.
    let json: Value = serde_json::from_str(&grid.web(&[&format!("{{}}uri/{cap}?t=json")], b"")).unwrap();
    let time = &json[1]["children"]["ä b"][1]["metadata"]["mtime"];
    assert!((time.as_f64().unwrap() - 1_600_000_001.123_456).abs() < 1e-5, "{time}");
    let listed = good(grid, &["ls", "-"], &cap).stdout;
    let names: Vec<&str> = listed.lines().map(|line| line.split_at(41).1).collect();
    assert_eq!(names, ["empty file", "sub/", "ä b"], "{listed}");
    assert!(listed.contains("2020-09-13 12:26:41 UTC"), "{listed}");
    assert!(!listed.contains("URI:"), "caps are secrets: {listed}");
    let all = good(grid, &["ls", "-R", "-"], &cap).stdout;
    let mut names: Vec<String> = all.lines().map(|line| line.split_at(41).1.trim_end_matches('/').to_owned()).collect();
    assert_eq!(names.iter().position(|name| name == "sub"), Some(1), "what is in a directory follows it: {all}");
    names.sort();
    let mut here: Vec<String> = tree(&root).into_iter().map(|(path, ..)| text(&path).to_owned()).collect();
    here.sort();
    assert_eq!(names, here);
    // Without a place for it.
    let nowhere = run(grid, &["get", &cap], "");
    assert!(nowhere.code == 1 && nowhere.stderr.contains("-o DIR"), "{}", nowhere.stderr);
}

/// A directory's content as a file that the stock client never writes.
fn packed(children: &[(&str, &str)]) -> Vec<u8> {
    let net = |text: &str| format!("{}:{text},", text.len());
    let child = |(name, cap): &(&str, &str)| net(&[net(name), net(cap), net(""), net("{\"mtime\": 1.5}")].concat());
    children.iter().map(child).collect::<String>().into_bytes()
}

fn names_of_others_stay_below_the_destination(grid: &Grid) {
    let place = grid.dir.path().join("hostile");
    fs::create_dir(&place).unwrap();
    let out = place.join("out");
    fs::create_dir(&out).unwrap();
    fs::create_dir(place.join("elsewhere")).unwrap();
    symlink(place.join("elsewhere"), out.join("link")).unwrap();
    symlink(place.join("elsewhere/file"), out.join("linked file")).unwrap();
    fs::create_dir(out.join("occupied")).unwrap();
    let long = "x".repeat(256);
    let (file, empty) = ("URI:LIT:mfrgg", "URI:DIR2-LIT:");
    let inner = grid.put(&grid.file("inner", &packed(&[("deep", file), ("..", file)])));
    let inner = inner.replace("URI:CHK:", "URI:DIR2-CHK:").replace("URI:LIT:", "URI:DIR2-LIT:");
    let children = [
        ("good", file),
        ("..", file),
        (".", empty),
        ("", file),
        ("../up", file),
        ("/absolute", file),
        ("a/b", file),
        ("nul\0", file),
        (&long, file),
        ("link", &inner),
        ("linked file", file),
        ("occupied", file),
        ("twice", file),
        ("twice", file),
        ("both", file),
        ("both", empty),
        ("unknown", "URI:NEW:abc"),
        ("no cap", ""),
        ("mutable", "URI:SSK-RO:aeaqcaibaeaqcaibaeaqcaibae:aeaqcaibaeaqcaibaeaqcaibaeaqcaibaeaqcaibaeaqcaibaeaq"),
        ("inner", &inner),
        (".good.part", file),
    ];
    let cap = grid.put(&grid.file("hostile.dir", &packed(&children))).replace("URI:CHK:", "URI:DIR2-CHK:");
    let got = run(grid, &["get", "--json", "-o", text(&out), "-"], &cap);
    assert_eq!(got.code, 2, "{}", got.stderr);
    let mut names: Vec<String> = tree(&out).into_iter().map(|(path, ..)| path.to_str().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["both", "good", "inner", "inner/deep", "link", "linked file", "occupied", "twice"]);
    assert!(out.join("occupied").is_dir() && out.join("link").is_symlink() && out.join("linked file").is_symlink());
    assert_eq!(tree(&place.join("elsewhere")), [], "{}", got.stderr);
    let mut problems = got.problems();
    problems.sort();
    let mut left_out: Vec<&str> = children.iter().map(|(name, _)| *name).collect();
    left_out.retain(|name| !["good", "inner"].contains(name));
    // One of two equal names is got.
    for twice in ["twice", "both"] {
        left_out.remove(left_out.iter().position(|name| *name == twice).unwrap());
    }
    left_out.push("inner/..");
    left_out.sort_unstable();
    assert_eq!(problems, left_out);
    let mut around: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    around.sort();
    assert_eq!(around, ["elsewhere", "out"]);
    // A directory that is none.
    let none = grid.put(&grid.file("no.dir", &content(300, 5))).replace("URI:CHK:", "URI:DIR2-CHK:");
    assert_eq!(run(grid, &["get", "-o", text(&out), "-"], &none).code, 4);
}

/// The caps of a directory that the stock client makes: to write and to read.
fn stock_directory(grid: &Grid, format: &str) -> (String, String) {
    let write = grid.web(&["-X", "POST", &format!("{{}}uri?t=mkdir&format={format}")], b"");
    let json: Value = serde_json::from_str(&grid.web(&[&format!("{{}}uri/{write}?t=json")], b"")).unwrap();
    (write, json[1]["ro_uri"].as_str().unwrap().to_owned())
}

fn mutable_directories_are_read(grid: &Grid) {
    for (format, kind) in [("sdmf", "URI:DIR2-RO:"), ("mdmf", "URI:DIR2-MDMF-RO:")] {
        let (write, read) = stock_directory(grid, format);
        assert!(read.starts_with(kind), "{format}");
        assert_eq!(good(grid, &["ls", "-"], &read).stdout, "", "an empty one");
        for (name, size) in [("a", 10), ("b", 100_000)] {
            grid.web(&["-T", "-", &format!("{{}}uri/{write}/{name}")], &content(size, size as u64));
        }
        grid.web(&["-X", "POST", &format!("{{}}uri/{write}/sub?t=mkdir")], b"");
        grid.web(&["-T", "-", &format!("{{}}uri/{write}/sub/mutable?format=mdmf")], &content(300_000, 9));
        grid.web(&["-X", "PUT", "-d", &write, &format!("{{}}uri/{write}/sub/again?t=uri")], b"");
        let listed = good(grid, &["ls", "-"], &read).stdout;
        assert_eq!(listed.lines().map(|line| line.split_at(41).1).collect::<Vec<_>>(), ["a", "b", "sub/"]);
        let all = run(grid, &["ls", "-R", "-"], &read);
        assert!(all.code == 2 && all.stderr.contains("sub/again: the directory contains itself"), "{}", all.stderr);
        let names: Vec<&str> = all.stdout.lines().map(|line| line.split_at(41).1).collect();
        assert_eq!(names, ["a", "b", "sub/", "sub/again/", "sub/mutable"]);
        for cap in [&write, &read] {
            let out = grid.dir.path().join(format!("{format}.{}.out", cap.len()));
            // The directory is in its own one.
            let got = run(grid, &["get", "-o", text(&out), "-"], cap);
            assert!(got.code == 2 && got.stderr.contains("contains itself"), "{}", got.stderr);
            let names: Vec<PathBuf> = tree(&out).into_iter().map(|(path, ..)| path).collect();
            assert_eq!(names, ["a", "b", "sub", "sub/mutable"].map(PathBuf::from));
            assert_eq!(fs::read(out.join("b")).unwrap(), content(100_000, 100_000));
            assert_eq!(fs::read(out.join("sub/mutable")).unwrap(), content(300_000, 9));
            let age = fs::metadata(out.join("a")).unwrap().modified().unwrap().elapsed().unwrap();
            assert!(age > Duration::ZERO && age < Duration::from_secs(1000), "{age:?}");
        }
        let checked = good(grid, &["check", "--verify", "--json", "-"], &read).checked();
        assert_eq!(checked.len(), 5, "each once: {checked:?}");
    }
}

fn mutable_files_are_read_whichever_shares_are_good(grid: &Grid) {
    for format in ["sdmf", "mdmf"] {
        for size in [0, 1, 1000, 131_072, 131_073, 700_001] {
            let cap = grid.web(&["-T", "-", &format!("{{}}uri?format={format}")], &content(size, 3));
            assert_eq!(grid.get(&cap), content(size, 3), "{format}, {size} bytes");
        }
        let cap = grid.web(&["-T", "-", &format!("{{}}uri?format={format}")], &content(300_000, 4));
        let shares = grid.shares_of(&cap);
        assert_eq!(shares.len(), 5);
        // A byte of each of two shares; behind the server's 468 bytes comes the share.
        let damage = |share: usize, at: u64| {
            let file = File::options().read(true).write(true).open(&shares[share]).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 468 + at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], 468 + at).unwrap();
        };
        damage(0, 40_000);
        damage(1, 20);
        assert_eq!(grid.get(&cap), content(300_000, 4), "{format}");
        let verified = run(grid, &["check", "--verify", "--json", "-"], &cap);
        assert_eq!(verified.code, 4, "{}", verified.stderr);
        let file = &verified.checked()[0];
        assert_eq!((&file["shares"], file["damaged"].as_array().unwrap().len()), (&3.into(), 2), "{file}");
        damage(2, 30);
        let lost = run(grid, &["get", "-"], &cap);
        assert!(lost.code == 4 && lost.stderr.contains("2 of the 3 shares"), "{}", lost.stderr);
        let unreadable = run(grid, &["check", "--verify", "-"], &cap);
        assert!(unreadable.code == 4 && unreadable.stderr.contains("cannot be read"), "{}", unreadable.stderr);
        // A changed file is read as it is now, not as a server that slept has it.
        let cap = grid.web(&["-T", "-", &format!("{{}}uri?format={format}")], &content(500, 5));
        let old = fs::read(&grid.shares_of(&cap)[0]).unwrap();
        grid.web(&["-T", "-", &format!("{{}}uri/{cap}")], &content(600, 6));
        fs::write(&grid.shares_of(&cap)[0], old).unwrap();
        assert_eq!(grid.get(&cap), content(600, 6), "{format}");
        let stale = run(grid, &["check", "-"], &cap);
        assert!(stale.code == 2 && stale.stderr.contains("of other versions"), "{}", stale.stderr);
    }
}

fn missing_shares_are_counted_and_made_again(grid: &Grid) {
    for (number, size) in [(1, 300), (2, 200_000), (3, 5_000_000)] {
        let cap = grid.stock_put(&content(size, 400 + number));
        let healthy = good(grid, &["check", "--json", "-"], &cap);
        let file = &healthy.checked()[0];
        assert_eq!((&file["shares"], &file["happiness"], &file["healthy"]), (&5.into(), &5.into(), &true.into()));
        let shares = grid.shares_of(&cap);
        let before: Vec<Vec<u8>> = shares.iter().map(|share| fs::read(share).unwrap()).collect();
        fs::remove_file(&shares[1]).unwrap();
        fs::remove_file(&shares[4]).unwrap();
        let lacking = run(grid, &["check", "-"], &cap);
        assert_eq!(lacking.code, 2, "{}", lacking.stderr);
        assert!(
            lacking.stderr.contains("3 of 5 shares (3 needed) on 3 servers, happiness 3 (4 wanted)"),
            "{}",
            lacking.stderr
        );
        let repaired = good(grid, &["check", "--repair", "--json", "-"], &cap);
        assert_eq!(repaired.checked()[0]["sent_shares"], 2, "{}", repaired.stdout);
        let after = grid.shares_of(&cap);
        assert_eq!(after.len(), 5);
        for (share, before) in after.iter().zip(&before) {
            let now = fs::read(share).unwrap();
            // Behind the server's header of 12 bytes, and before its lease of 72.
            assert!(now[12..now.len() - 72] == before[12..before.len() - 72], "{size} bytes: {share:?}");
        }
        assert_eq!(grid.stock_get(&cap), content(size, 400 + number));
        assert_eq!(good(grid, &["check", "--verify", "-"], &cap).code, 0);
        // By a cap that can only verify.
        let fullbore_lafs::Cap::Chk(chk) = fullbore_lafs::Cap::parse(&cap).unwrap() else { panic!("not a file") };
        let verifier = fullbore_lafs::Cap::Verifier(chk.verifier()).to_text();
        fs::remove_file(&after[0]).unwrap();
        assert_eq!(run(grid, &["check", "-"], &verifier).code, 2);
        good(grid, &["check", "--repair", "-"], &verifier);
        assert_eq!(grid.shares_of(&cap).len(), 5);
        // Too few are left.
        for share in &grid.shares_of(&cap)[..3] {
            fs::remove_file(share).unwrap();
        }
        let lost = run(grid, &["check", "--repair", "-"], &cap);
        assert!(lost.code == 4 && lost.stderr.contains("too few shares are left"), "{}", lost.stderr);
    }
}

fn missing_shares_of_mutable_files_are_made_again(grid: &Grid) {
    for (format, size) in [("sdmf", 0), ("sdmf", 1000), ("sdmf", 300_001), ("mdmf", 1000), ("mdmf", 300_001)] {
        let cap = grid.web(&["-T", "-", &format!("{{}}uri?format={format}")], &content(size, 7));
        let json: Value = serde_json::from_str(&grid.web(&[&format!("{{}}uri/{cap}?t=json")], b"")).unwrap();
        let read = json[1]["ro_uri"].as_str().unwrap();
        let shares = grid.shares_of(&cap);
        // The server's header of 468 bytes has the length of the share at 84.
        let share = |path: &Path| {
            let bytes = fs::read(path).unwrap();
            let length = u64::from_be_bytes(bytes[84..92].try_into().unwrap()) as usize;
            bytes[468..468 + length].to_vec()
        };
        let before: Vec<Vec<u8>> = shares.iter().map(|path| share(path)).collect();
        fs::remove_file(&shares[0]).unwrap();
        fs::remove_file(&shares[3]).unwrap();
        let by_reader = run(grid, &["check", "--repair", "-"], read);
        assert!(by_reader.code == 2 && by_reader.stderr.contains("it takes the write cap"), "{}", by_reader.stderr);
        let repaired = good(grid, &["check", "--repair", "--json", "-"], &cap);
        assert_eq!(repaired.checked()[0]["sent_shares"], 2, "{}", repaired.stdout);
        let after: Vec<Vec<u8>> = grid.shares_of(&cap).iter().map(|path| share(path)).collect();
        assert!(after == before, "{format} {size}");
        good(grid, &["check", "--verify", "-"], read);
        // The servers know who may write: the owner changes all of the shares.
        grid.web(&["-T", "-", &format!("{{}}uri/{cap}")], &content(2000, 8));
        assert_eq!(good(grid, &["check", "--verify", "--json", "-"], read).checked()[0]["shares"], 5);
        assert_eq!(grid.get(read), content(2000, 8));
    }
}

fn damaged_shares_are_found_by_reading(grid: &Grid) {
    let cap = grid.put(&grid.file("damaged", &content(2_000_000, 500)));
    let shares = grid.shares_of(&cap);
    let file = File::options().read(true).write(true).open(&shares[2]).unwrap();
    file.write_all_at(b"damage", 100_000).unwrap();
    assert_eq!(good(grid, &["check", "-"], &cap).code, 0, "whoever does not read does not see it");
    let found = run(grid, &["check", "--verify", "-"], &cap);
    assert!(found.code == 4 && found.stderr.contains("share 2 on s"), "{}", found.stderr);
    assert!(found.stderr.contains("is damaged"), "{}", found.stderr);
    // Its server takes no other share of this number: another one gets it.
    let repaired = good(grid, &["check", "--verify", "--repair", "--json", "-"], &cap);
    let file = &repaired.checked()[0];
    assert_eq!((&file["shares"], &file["sent_shares"]), (&5.into(), &1.into()), "{file}");
    assert_eq!(file["damaged"].as_array().unwrap().len(), 1, "it is told of as long as it is there");
    assert_eq!(grid.shares_of(&cap).len(), 6);
}

fn leases_are_renewed_and_not_added(grid: &Grid) {
    let file = grid.file("leases", &content(3000, 600));
    let mutable = grid.web(&["-T", "-", "{}uri?format=sdmf"], &content(100, 1));
    let foreign = {
        // Of another node, with a secret of its own.
        let servers = format!("{}/private/servers.yaml", grid.node());
        let put = ["put", "-q", "--random-key", "--servers", &servers, "--encoding", "3,4,5", text(&file)];
        grid.fullbore(put).stdout_line()
    };
    let caps = [(grid.put(&file), 1), (grid.stock_put(&content(3000, 601)), 1), (mutable, 1), (foreign, 2)];
    let before: Vec<_> = caps.iter().map(|(cap, _)| grid.leases(&grid.shares_of(cap))).collect();
    // Servers count in seconds.
    std::thread::sleep(Duration::from_millis(2100));
    let list: String = caps.iter().map(|(cap, _)| format!("{cap}\n")).collect();
    let renewed = good(grid, &["check", "--renew", "--json", "-"], &list);
    assert_eq!(renewed.summary()["store"]["check"]["renewed_leases"], 20);
    for ((cap, count), before) in caps.iter().zip(before) {
        for ((now, end), (_, old_end)) in grid.leases(&grid.shares_of(cap)).into_iter().zip(before) {
            assert!(now == *count && end >= old_end + 2.0, "{now} leases until {end}, was {old_end}");
        }
    }
    let servers = format!("{}/private/servers.yaml", grid.node());
    let refused = grid.fullbore(["check", "--renew", "--servers", &servers, &caps[0].0]);
    assert!(refused.code == 1 && refused.stderr.contains("--node"), "{}", refused.stderr);
}

fn directories_are_walked(grid: &Grid) {
    let root = grid.dir.path().join("walked");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/b/file"), content(3000, 700)).unwrap();
    fs::write(root.join("a/copy"), content(3000, 700)).unwrap();
    fs::write(root.join("a/literal"), b"x").unwrap();
    fs::write(root.join("a/unique"), content(3000, 701)).unwrap();
    let caps = grid.dir.path().join("walked.caps");
    let cap = good(grid, &["put", "-q", "--caps", text(&caps), text(&root)], "").stdout_line();
    let healthy = good(grid, &["check", "--json", "-"], &cap);
    let names: Vec<String> = healthy.checked().iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), 6, "the copy is the same file: {names:?}");
    let list = fs::read_to_string(&caps).unwrap();
    let unique = list.lines().find(|line| line.contains("unique")).unwrap();
    let unique: Value = serde_json::from_str(unique).unwrap();
    fs::remove_file(&grid.shares_of(unique["cap"].as_str().unwrap())[0]).unwrap();
    let lacking = run(grid, &["check", "-"], &cap);
    assert_eq!(lacking.code, 2, "{}", lacking.stderr);
    assert!(lacking.stderr.contains("line 1 of stdin/a/unique: not healthy: 4 of 5"), "{}", lacking.stderr);
    assert!(
        lacking.stdout.contains("3 files and 3 directories checked: 5 healthy, 1 not healthy"),
        "{}",
        lacking.stdout
    );
    // By the list that put wrote, names are those of the files.
    let listed = run(grid, &["check", "--caps", text(&caps)], "");
    assert!(listed.code == 2 && listed.stderr.contains("walked/a/unique: not healthy"), "{}", listed.stderr);
    for output in [&lacking, &listed] {
        assert!(!output.stderr.contains("URI:") && !output.stdout.contains("URI:"), "{}", output.stderr);
    }
    good(grid, &["check", "--repair", "--renew", "--caps", text(&caps)], "");
    good(grid, &["check", "--verify", &cap], "");
}

fn lists_are_checked_at_once(grid: &Grid) {
    let root = grid.dir.path().join("many");
    fs::create_dir(&root).unwrap();
    for number in 0..700 {
        fs::write(root.join(number.to_string()), content(100, number)).unwrap();
    }
    let caps = grid.dir.path().join("many.caps");
    good(grid, &["put", "-q", "--caps", text(&caps), text(&root)], "");
    let checked = good(grid, &["check", "--caps", text(&caps), "--renew", "--json"], "").summary();
    let counts = &checked["store"]["check"];
    assert_eq!(
        (&counts["files"], &counts["healthy"], &counts["renewed_leases"]),
        (&700.into(), &701.into(), &3505.into())
    );
}

fn what_cannot_be_checked_is_named(grid: &Grid) {
    let file = grid.put(&grid.file("named", &content(3000, 800)));
    let list = format!("{file} good\nURI:NEW:x bad\nURI:DIR2-LIT:/none below\n\nURI:LIT:mfrgg\n");
    let some = run(grid, &["check", "-"], &list);
    assert_eq!(some.code, 2, "{}", some.stderr);
    assert!(some.stderr.contains("bad: not a cap") && some.stderr.contains("below/none"), "{}", some.stderr);
    assert!(some.stdout.contains("2 files checked: 2 healthy"), "{}", some.stdout);
    for (arguments, hint) in [
        (&["check", "--renew", "/srv"][..], "no cap is given"),
        (&["check", "--read-data-subset", "5%", "URI:LIT:"], "is for archives"),
        (&["check", "URI:LIT:", "/srv"], "not a cap"),
        (&["check", "URI:NEW:secret"], "unknown kind"),
        (&["ls", "/srv"], "neither a cap"),
    ] {
        let refused = run(grid, arguments, "");
        assert!(refused.code == 1 && refused.stderr.contains(hint), "{arguments:?}: {}", refused.stderr);
        assert!(!refused.stderr.contains("secret"), "{}", refused.stderr);
    }
    let empty = run(grid, &["check", "-"], "\n");
    assert!(empty.code == 1 && empty.stderr.contains("no cap"), "{}", empty.stderr);
}

fn an_entry_of_a_huge_size_costs_no_other(grid: &Grid) {
    let chk = grid.put(&grid.file("huge", &content(300_000, 901)));
    let huge = format!("{}:10000000000000", chk.rsplit_once(':').unwrap().0);
    let names: Vec<String> = (0..20).map(|number| format!("z{number}")).collect();
    let mut children = vec![("a", chk.as_str()), ("huge", huge.as_str())];
    children.extend(names.iter().map(|name| (name.as_str(), "URI:LIT:mfrgg")));
    let cap = grid.put(&grid.file("huge.dir", &packed(&children))).replace("URI:CHK:", "URI:DIR2-CHK:");
    let out = grid.dir.path().join("huge.out");
    let got = run(grid, &["get", "--json", "-o", text(&out), "-"], &cap);
    assert_eq!((got.code, got.problems()), (2, vec!["huge".to_owned()]), "{}", got.stderr);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 21);
}

fn a_read_of_a_mutable_file_can_be_interrupted(grid: &Grid) {
    let cap = grid.web(&["-T", "-", "{}uri?format=sdmf"], &content(500, 902));
    (0..5).for_each(|server| grid.stop(server));
    let mut run = grid.begin(["get", "--timeout", "600", "--node", grid.node(), &cap]);
    grid::interrupt(&run);
    let begun = Instant::now();
    let status = run.wait().unwrap();
    (0..5).for_each(|server| grid.go_on(server));
    assert!(status.code() == Some(130) && begun.elapsed() < Duration::from_secs(60), "{status} {:?}", begun.elapsed());
}

fn servers_that_are_gone(grid: &Grid) {
    let cap = grid.put(&grid.file("gone", &content(3000, 900)));
    let mutable = grid.web(&["-T", "-", "{}uri?format=sdmf"], &content(500, 903));
    grid.kill(0);
    let warned = good(grid, &["get", "-"], &mutable);
    assert!(warned.stderr.contains("s0 ("), "the server may have a newer version: {}", warned.stderr);
    let fewer = run(grid, &["check", "--timeout", "2", "-"], &cap);
    assert_eq!(fewer.code, 2, "{}", fewer.stderr);
    assert!(
        fewer.stderr.contains("4 of 5 shares") && fewer.stderr.contains("1 server did not answer"),
        "{}",
        fewer.stderr
    );
    // The share goes to a server that has one already: it is as happy as it can be.
    let repaired = run(grid, &["check", "--timeout", "2", "--repair", "--json", "-"], &cap);
    assert_eq!(repaired.code, 0, "{}", repaired.stdout);
    (1..5).for_each(|server| grid.kill(server));
    let nobody = run(grid, &["check", "--timeout", "2", "-"], &cap);
    assert!(nobody.code == 3 && nobody.stderr.contains("cannot be judged"), "{}", nobody.stderr);
}
