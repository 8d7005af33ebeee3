//! `put` and `get` against a real grid: stock storage nodes, and the stock client beside ours.
//!
//! Each test starts a grid once, and everything runs on it step by step: nodes are slow to start, and a step that stops or
//! kills one must not meet another step. What is put by us is read by the stock client, and the other way round.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "lafs/grid.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod grid;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use grid::{Grid, content};

#[test]
fn files_go_both_ways_on_a_real_grid() {
    let grid = Grid::start(5, "3,4,5");
    let waiting = Waiting::begin(&grid);
    files_go_both_ways(&grid);
    several_files_are_read_in_their_order(&grid);
    files_are_read_as_their_caps_come(&grid);
    reports_have_no_caps(&grid);
    directories_are_read_by_the_stock_client(&grid);
    a_list_in_the_directory_that_is_put_is_no_part_of_it(&grid);
    an_empty_secret_is_told_of(&grid);
    caps_go_to_the_list_and_to_stdout_alone(&grid);
    pipes_are_spooled_or_streamed(&grid);
    what_is_there_is_not_sent_again(&grid);
    damaged_shares_are_named_and_replaced(&grid);
    two_uploaders_of_one_file(&grid);
    a_full_server_and_one_of_another_key(&grid);
    refusals_of_servers(&grid);
    a_run_without_a_journal_says_so(&grid);
    waiting.goes_on(&grid);
}

/// Runs and servers that end under way. Steps that take servers away come last.
#[test]
fn faults_of_a_real_grid_lose_no_file() {
    let grid = Grid::start(5, "3,4,5");
    a_killed_run_is_taken_up(&grid);
    places_of_a_killed_run_are_not_blocked(&grid);
    places_that_servers_forgot_or_that_have_other_bytes(&grid);
    caps_by_chance_survive_a_killed_run(&grid);
    an_interrupted_run_leaves_nothing_behind(&grid);
    a_pipe_that_gives_nothing_can_be_interrupted(&grid);
    caps_that_nobody_takes_are_an_error(&grid);
    a_stalled_server_is_given_up(&grid);
    a_server_that_stops_under_way(&grid);
    happiness_that_is_lost_late(&grid);
    a_server_that_is_killed_under_way(&grid);
    too_few_servers(&grid);
}

/// A run that has put a file and waits for the next one, which comes down a pipe, while other steps are made.
struct Waiting {
    run: Child,
    since: Instant,
}

impl Waiting {
    fn begin(grid: &Grid) -> Waiting {
        let first = grid.file("first", &content(200_000, 31));
        let journals = grid.dir.path().join("journals-of-the-waiting");
        let [first, journals] = [&first, &journals].map(|path| path.to_str().unwrap());
        let mut run = grid.begin(["put", "--journals", journals, "--node", grid.node(), first, "-"]);
        let mut cap = [0; 8];
        run.stdout.as_mut().unwrap().read_exact(&mut cap).unwrap();
        assert_eq!(&cap, b"URI:CHK:");
        Waiting { run, since: Instant::now() }
    }

    /// Servers close connections on which nothing was asked for 60 s.
    fn goes_on(mut self, grid: &Grid) {
        grid.wait("minute to pass", || self.since.elapsed() > Duration::from_secs(65));
        self.run.stdin.take().unwrap().write_all(&content(300_000, 32)).unwrap();
        let output = self.run.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(!stderr.contains("warning"), "{stderr}");
        let caps = String::from_utf8(output.stdout).unwrap();
        assert_eq!(grid.stock_get(caps.lines().last().unwrap()), content(300_000, 32));
    }
}

fn files_go_both_ways(grid: &Grid) {
    for size in [0, 1, 55, 56, 200, 70_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000] {
        let file = grid.file("both-ways", &content(size, size as u64));
        let cap = grid.put(&file);
        assert_eq!(
            cap,
            grid.fullbore(["put", "--dry-run", "--node", grid.node(), file.to_str().unwrap()]).stdout_line()
        );
        assert_eq!(grid.stock_get(&cap), content(size, size as u64), "{size} bytes, read by the stock client");
        assert_eq!(cap, grid.stock_put(&content(size, size as u64)), "{size} bytes, put by both");
        assert_eq!(grid.get(&cap), content(size, size as u64), "{size} bytes, read by us");
    }
    // Put by the stock client alone, and read by us; segments of another size than it has.
    let cap = grid.stock_put(&content(3_000_000, 99));
    assert_eq!(grid.get(&cap), content(3_000_000, 99));
    let file = grid.file("segments", &content(500_000, 7));
    let small = grid.fullbore(["put", "-q", "--segment-size", "131072", "--node", grid.node(), file.to_str().unwrap()]);
    assert_eq!(grid.stock_get(&small.stdout_line()), content(500_000, 7));
    assert_eq!(grid.get(&small.stdout_line()), content(500_000, 7));
    // Nobody reads to the end, which is a quiet one.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let got = grid.command(["get", "--node", grid.node(), &cap]).stdout(writer).output().unwrap();
    assert_eq!((got.status.code(), String::from_utf8_lossy(&got.stderr).as_ref()), (Some(0), ""));
}

fn several_files_are_read_in_their_order(grid: &Grid) {
    let sizes = [20, 300, 3_000_000, 200, 0, 400_000];
    let files: Vec<_> =
        (0..).zip(sizes).map(|(n, size)| grid.file(&format!("several-{n}"), &content(size, n))).collect();
    let put = grid
        .fullbore(["put", "-q", "--node", grid.node()].into_iter().chain(files.iter().map(|f| f.to_str().unwrap())));
    let out = grid.dir.path().join("several.out");
    let get = ["get", "-q", "--node", grid.node(), "-o", out.to_str().unwrap(), "-"];
    let got = grid.fullbore_with(get, put.stdout.as_bytes());
    assert_eq!(got.code, 0, "{}", got.stderr);
    let expected: Vec<u8> = (0..).zip(sizes).flat_map(|(n, size)| content(size, n)).collect();
    assert!(fs::read(&out).unwrap() == expected, "{}", put.stdout);
    let none = grid.fullbore_with(get, b"\n");
    assert_eq!(none.code, 1, "{}", none.stderr);
}

fn files_are_read_as_their_caps_come(grid: &Grid) {
    let contents = [content(300, 31), content(400_000, 32), content(200, 33)];
    let caps: Vec<_> = (0..).zip(&contents).map(|(n, one)| grid.put(&grid.file(&format!("later-{n}"), one))).collect();
    let mut run = grid.begin(["get", "-q", "--node", grid.node(), "-"]);
    let (mut stdin, mut stdout) = (run.stdin.take().unwrap(), run.stdout.take().unwrap());
    for (cap, content) in caps.iter().zip(&contents) {
        writeln!(stdin, "{cap}").unwrap();
        let mut got = vec![0; content.len()];
        stdout.read_exact(&mut got).unwrap();
        assert!(got == *content);
        // A small file needs three of the servers; while nothing comes it connects to the others.
        grid.wait("connections to all servers", || grid::connections(&run) >= 5);
    }
    drop(stdin);
    assert!(run.wait().unwrap().success());

    // The files before it are given out, and then it is told without being repeated.
    let list = format!("{}\n\nURI:CHK:secret\n{}\n", caps[0], caps[1]);
    let bad = grid.fullbore_with(["get", "-q", "--node", grid.node(), "-"], list.as_bytes());
    assert!(bad.code == 1 && bad.stdout == String::from_utf8_lossy(&contents[0]), "{}", bad.stderr);
    assert!(bad.stderr.contains("line 3 of stdin") && !bad.stderr.contains("secret"), "{}", bad.stderr);

    // While nothing comes it can be interrupted, and leaves nothing.
    let out = grid.dir.path().join("later.out");
    let mut run = grid.begin(["get", "-q", "--node", grid.node(), "-o", out.to_str().unwrap(), "-"]);
    let mut stdin = run.stdin.take().unwrap();
    writeln!(stdin, "{}", caps[0]).unwrap();
    grid::interrupt(&run);
    grid.wait("end", || run.try_wait().unwrap().is_some());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert!(!out.exists());
}

fn reports_have_no_caps(grid: &Grid) {
    let file = grid.file("reported-file", &content(2_000_000, 40));
    let [page, json, trace] = ["r.html", "r.json", "t.json"].map(|name| grid.dir.path().join(name));
    let put = |report: &Path| {
        let (report, trace) = (report.to_str().unwrap(), trace.to_str().unwrap());
        let node = ["put", "-v", "--node", grid.node(), "--report", report, "--trace", trace, file.to_str().unwrap()];
        grid.fullbore(node)
    };
    let (one, other) = (put(&page), put(&json));
    assert_eq!((one.code, other.code), (0, 0), "{}{}", one.stderr, other.stderr);
    let cap = one.stdout_line();
    for text in [&page, &json, &trace].map(|path| fs::read_to_string(path).unwrap()).into_iter().chain([one.stderr]) {
        assert!(!text.contains(cap.split(':').nth(2).unwrap()) && !text.contains("URI:"), "a cap in {text}");
    }
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["summary"]["hosts"].as_array().unwrap().len(), 5);
    assert!(!report["summary"]["verdict"]["evidence"].as_array().unwrap().is_empty());
    let trace: serde_json::Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    assert!(trace.is_object() || trace.is_array());
}

fn directories_are_read_by_the_stock_client(grid: &Grid) {
    let root = grid.dir.path().join("tree");
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    fs::write(root.join("ä b"), content(300, 1)).unwrap();
    fs::write(root.join("sub/large"), content(200_000, 2)).unwrap();
    fs::write(root.join("sub/small"), b"literal").unwrap();
    let caps = grid.dir.path().join("tree.caps");
    let put =
        grid.fullbore(["put", "-q", "--node", grid.node(), "--caps", caps.to_str().unwrap(), root.to_str().unwrap()]);
    let cap = put.stdout_line();
    assert!(cap.starts_with("URI:DIR2-CHK:"), "{}", put.stderr);
    let listed = grid.tahoe(["ls", "-F", &cap]);
    assert_eq!(listed.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["sub/", "ä b"]));
    assert_eq!(grid.tahoe(["ls", &format!("{cap}/sub/empty")]), "");
    assert_eq!(grid.stock_get(&format!("{cap}/sub/large")), content(200_000, 2));
    assert_eq!(grid.stock_get(&format!("{cap}/sub/small")), b"literal");
    assert_eq!(fs::read_to_string(caps).unwrap().lines().count(), 6, "three files, three directories");
    let empty = grid.fullbore(["put", "-q", "--node", grid.node(), root.join("sub/empty").to_str().unwrap()]);
    assert_eq!(empty.stdout_line(), "URI:DIR2-LIT:");
    // Copied as a whole; and one that is small enough to be a literal with something in it.
    let little = grid.dir.path().join("little");
    fs::create_dir(&little).unwrap();
    fs::write(little.join("a"), b"").unwrap();
    // A time with a fraction makes it too long.
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    fs::File::open(little.join("a")).unwrap().set_modified(time).unwrap();
    let literal = grid.fullbore(["put", "-q", "--node", grid.node(), little.to_str().unwrap()]).stdout_line();
    assert!(literal.len() > "URI:DIR2-LIT:".len() && literal.starts_with("URI:DIR2-LIT:"), "{literal}");
    assert_eq!(grid.tahoe(["ls", &literal]), "a\n");
    for (cap, root) in [(&cap, &root), (&literal, &little)] {
        let copy = root.with_extension("copy");
        grid.tahoe(["cp", "-r", cap, copy.to_str().unwrap()]);
        let differences = Command::new("diff").arg("-r").args([root, &copy]).output().unwrap();
        assert!(differences.status.success(), "{}", String::from_utf8_lossy(&differences.stdout));
    }
}

fn a_list_in_the_directory_that_is_put_is_no_part_of_it(grid: &Grid) {
    let root = grid.dir.path().join("listed");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("a"), b"literal").unwrap();
    let caps = root.join("caps");
    let arguments = ["put", "-q", "--node", grid.node(), "--caps", caps.to_str().unwrap(), root.to_str().unwrap()];
    grid.fullbore(arguments).stdout_line();
    let list = fs::read_to_string(caps).unwrap();
    assert_eq!(list.lines().count(), 2, "{list}");
}

fn an_empty_secret_is_told_of(grid: &Grid) {
    let [file, none] = [("guessed", "literal"), ("secret", "\n")].map(|(name, text)| grid.file(name, text.as_bytes()));
    let secret = ["--convergence-file", none.to_str().unwrap()];
    let put = grid.fullbore(["put", "--node", grid.node(), file.to_str().unwrap()].into_iter().chain(secret));
    assert!(put.code == 0 && put.stderr.contains("the convergence secret is empty"), "{}", put.stderr);
}

fn caps_go_to_the_list_and_to_stdout_alone(grid: &Grid) {
    let file = grid.file("secret", &content(9_000_000, 3));
    let caps = grid.dir.path().join("caps");
    let put =
        grid.fullbore(["put", "-vvv", "--node", grid.node(), "--caps", caps.to_str().unwrap(), file.to_str().unwrap()]);
    let cap = put.stdout_line();
    let key = cap.split(':').nth(2).unwrap();
    assert!(!put.stderr.contains(key) && !put.stderr.contains("URI:"), "{}", put.stderr);
    assert!(fs::read_to_string(&caps).unwrap().contains(&cap));
    assert_eq!(caps.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let get = grid.fullbore(["get", "-vvv", "--node", grid.node(), "-o", "/dev/null/x", &cap]);
    assert!(!get.stderr.contains(key), "{}", get.stderr);
    assert!(grid.journals().is_empty(), "no journal is left of an upload that ended");
}

fn pipes_are_spooled_or_streamed(grid: &Grid) {
    let data = content(2_500_000, 4);
    let spooled = grid.fullbore_with(["put", "-q", "--node", grid.node(), "-"], &data);
    assert_eq!(spooled.stdout_line(), grid.stock_put(&data), "convergent, as stock");
    let size = data.len().to_string();
    let stream = ["put", "-q", "--random-key", "--size", &size, "--node", grid.node(), "-"];
    let cap = grid.fullbore_with(stream, &data).stdout_line();
    assert_eq!(grid.stock_get(&cap), data);
    assert_ne!(cap, grid.fullbore_with(stream, &data).stdout_line(), "another key each time");
    for wrong in ["2499999", "2500001"] {
        let before = grid.shares();
        let put = grid.fullbore_with(["put", "-q", "--random-key", "--size", wrong, "--node", grid.node(), "-"], &data);
        assert_eq!((put.code, put.stdout.as_str()), (7, ""), "{}", put.stderr);
        assert!(put.stderr.contains("--size is wrong"), "{}", put.stderr);
        assert_eq!((grid.shares(), grid.incoming()), (before, 0), "all shares are aborted");
    }
}

fn what_is_there_is_not_sent_again(grid: &Grid) {
    let data = content(1_000_000, 5);
    let file = grid.file("again", &data);
    grid.stock_put(&data);
    let again = grid.fullbore(["put", "--json", "--node", grid.node(), file.to_str().unwrap()]);
    // No more than the first bytes, which go out with the question, and are aborted.
    assert!(again.summary()["store"]["sent_bytes"].as_u64().unwrap() <= 5 * 65_536, "{}", again.stdout);
    assert_eq!(grid.incoming(), 0);
    // Of five shares two are gone: those are sent, and no other.
    let cap = grid.stock_put(&data);
    let shares = grid.shares_of(&cap);
    assert_eq!(shares.len(), 5);
    fs::remove_file(&shares[0]).unwrap();
    fs::remove_file(&shares[3]).unwrap();
    let repaired = grid.fullbore(["put", "--json", "--node", grid.node(), file.to_str().unwrap()]);
    assert_eq!(repaired.code, 0, "{}", repaired.stderr);
    let sent = repaired.summary()["store"]["sent_bytes"].as_u64().unwrap();
    // And the first bytes of others, which went out with the questions. A share may be sent whole before it
    // is heard that another server has it; all five are not.
    assert!(sent > 2 * 333_334 && sent < 1_600_000, "{sent} {}", repaired.stderr);
    let numbers: BTreeSet<_> = grid.shares_of(&cap).iter().map(|path| path.file_name().unwrap().to_owned()).collect();
    assert_eq!(numbers.len(), 5);
}

fn damaged_shares_are_named_and_replaced(grid: &Grid) {
    let data = content(4_000_000, 6);
    let cap = grid.put(&grid.file("damaged", &data));
    let shares = grid.shares_of(&cap);
    let damage = |path: &Path, at: u64| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(b"damage", at).unwrap();
    };
    // In a block, and in the hashes at the end (in front of the lease).
    damage(&shares[0], 700_000);
    damage(&shares[1], shares[1].metadata().unwrap().len() - 200);
    let out = grid.dir.path().join("damaged.out");
    let get = grid.fullbore(["get", "--node", grid.node(), "-o", out.to_str().unwrap(), &cap]);
    assert_eq!(get.code, 0, "{}", get.stderr);
    assert!(get.stderr.contains(" shares. Limited by: "), "{}", get.stderr);
    assert_eq!(fs::read(&out).unwrap(), data);
    // Which three are read depends on the order of servers; with three good ones left both are met or not.
    for share in &shares[2..3] {
        fs::remove_file(share).unwrap();
    }
    let get = grid.fullbore(["get", "--node", grid.node(), "-o", out.to_str().unwrap(), &cap]);
    assert_eq!(get.code, 4, "two good shares of three, and two damaged ones: {}", get.stderr);
    assert!(
        get.stderr.contains("2 of the 3 shares that are needed were found; 5 servers were asked"),
        "{}",
        get.stderr
    );
    assert!(get.stderr.contains("damaged") || get.stderr.contains("hash"), "{}", get.stderr);
}

fn two_uploaders_of_one_file(grid: &Grid) {
    let data = content(12_000_000, 8);
    let file = grid.file("two", &data);
    let (one, other) = std::thread::scope(|scope| {
        let run = || grid.fullbore(["put", "--node", grid.node(), file.to_str().unwrap()]);
        let one = scope.spawn(run);
        (one.join().unwrap(), run())
    });
    let both = std::thread::scope(|scope| {
        let data = content(12_000_001, 8);
        let file = grid.file("two-more", &data);
        let run = move || grid.fullbore(["put", "--node", grid.node(), file.to_str().unwrap()]);
        let again = run.clone();
        let (a, b) = (scope.spawn(run), scope.spawn(again));
        (a.join().unwrap(), b.join().unwrap())
    });
    assert_eq!(one.stdout_line(), other.stdout_line());
    assert_eq!(both.0.stdout_line(), both.1.stdout_line(), "{} {}", both.0.stderr, both.1.stderr);
    assert_eq!(grid.stock_get(&both.0.stdout_line()), content(12_000_001, 8));
    assert_eq!(grid.incoming(), 0);
}

fn a_full_server_and_one_of_another_key(grid: &Grid) {
    let data = content(400_000, 9);
    let file = grid.file("full", &data);
    // A pin that is not the server's.
    let servers = grid.altered_servers("pin.yaml", |yaml| {
        let (before, after) = yaml.split_once("pb://").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let (furl, rest) = after.split_once("- pb://").unwrap();
        format!("{before}pb://{furl}- pb://{}{}", "A".repeat(43), &rest[43..])
    });
    let put = |encoding: &str, servers: &Path| {
        let convergence = format!("{}/private/convergence", grid.node());
        grid.fullbore([
            "put",
            "--encoding",
            encoding,
            "--servers",
            servers.to_str().unwrap(),
            "--convergence-file",
            &convergence,
            file.to_str().unwrap(),
        ])
    };
    let good = put("3,4,5", &servers);
    assert_eq!(good.code, 0, "{}", good.stderr);
    assert!(good.stderr.contains("the certificate is not the one in the NURL"), "{}", good.stderr);
    assert_eq!(grid.stock_get(&good.stdout_line()), data);
    let bad = put("2,5,5", &servers);
    assert_eq!((bad.code, bad.stdout.as_str()), (3, ""), "{}", bad.stderr);
    assert!(
        bad.stderr.contains("on 4 servers, 5 are needed") || bad.stderr.contains("are needed (happy)"),
        "{}",
        bad.stderr
    );
    assert_eq!(grid.incoming(), 0, "what was begun is aborted");
    // Servers that are read-only, or full: more is to be left to others than there is.
    for (size, setting) in [(400_001, "readonly = true"), (400_002, "reserved_space = 1000000G")] {
        grid.restart(0, |settings| settings.replace("reserved_space = 0", setting));
        let file = grid.file("full", &content(size, 9));
        let put = grid.fullbore(["put", "--node", grid.node(), file.to_str().unwrap()]);
        assert_eq!(put.code, 0, "{setting}: {}", put.stderr);
        assert!(put.stderr.contains("accepts no share"), "{setting}: {}", put.stderr);
        assert_eq!(grid.stock_get(&put.stdout_line()), content(size, 9), "{setting}");
        grid.restart(0, |settings| settings.replace(setting, "reserved_space = 0"));
    }
}

fn refusals_of_servers(grid: &Grid) {
    // 401: the right server, and a swissnum that is not its.
    let servers = grid.altered_servers("swissnum.yaml", |yaml| yaml.replacen("#v=1", "x#v=1", 1));
    let file = grid.file("refused", &content(300_000, 10));
    let put = |name: &str| {
        let servers = grid.dir.path().join(name);
        grid.fullbore([
            "put",
            "--encoding",
            "3,4,5",
            "--random-key",
            "--servers",
            servers.to_str().unwrap(),
            file.to_str().unwrap(),
        ])
    };
    let refused = put("swissnum.yaml");
    assert_eq!(refused.code, 0, "{}", refused.stderr);
    assert!(refused.stderr.contains("401"), "{}", refused.stderr);
    assert!(servers.exists());
    // 500: a server that cannot write.
    let incoming = grid.storage(1).join("shares/incoming");
    let (aside, file_there) = (incoming.with_extension("aside"), &incoming);
    fs::rename(&incoming, &aside).unwrap();
    fs::write(file_there, b"").unwrap();
    let failed = grid.fullbore(["put", "--node", grid.node(), file.to_str().unwrap()]);
    fs::remove_file(file_there).unwrap();
    fs::rename(&aside, &incoming).unwrap();
    assert_eq!(failed.code, 0, "{}", failed.stderr);
    assert!(failed.stderr.contains("500"), "{}", failed.stderr);
    assert_eq!(grid.stock_get(&failed.stdout_line()), content(300_000, 10));
    // A server that announces no address for HTTP.
    grid.altered_servers("foolscap.yaml", |yaml| yaml.replacen("anonymous-storage-NURLs", "other", 1));
    let foolscap = put("foolscap.yaml");
    assert_eq!(foolscap.code, 0, "{}", foolscap.stderr);
    assert!(foolscap.stderr.contains("Foolscap"), "{}", foolscap.stderr);
}

fn a_run_without_a_journal_says_so(grid: &Grid) {
    let file = grid.file("unnoted", &content(300, 7));
    let file = file.to_str().unwrap();
    // No directory, and one in which nothing can be made.
    for journals in [file, "/proc/fullbore"] {
        let put = grid.fullbore(["put", "--journals", journals, "--node", grid.node(), file]);
        assert_eq!(put.code, 0, "{}", put.stderr);
        assert!(put.stderr.contains("this run cannot be taken up") && put.stderr.contains(journals), "{}", put.stderr);
    }
}

fn a_killed_run_is_taken_up(grid: &Grid) {
    // Of runs that failed before, and lost servers without hearing that they give places up.
    grid.journals().iter().for_each(|journal| fs::remove_file(journal).unwrap());
    let data = content(60_000_000, 11);
    let file = grid.file("killed", &data);
    let mut run = grid.begin(["put", "-q", "--limit-rate", "12M", "--node", grid.node(), file.to_str().unwrap()]);
    // Until a good part is there.
    grid.wait("journal of some megabytes", || {
        grid.journals()
            .iter()
            .any(|journal| fs::read_to_string(journal).is_ok_and(|text| text.matches("there").count() > 12))
    });
    run.kill().unwrap();
    run.wait().unwrap();
    let journals = grid.journals();
    assert_eq!(journals.len(), 1);
    assert_eq!(journals[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let again = grid.fullbore(["put", "--json", "--node", grid.node(), file.to_str().unwrap()]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    let sent = again.summary()["store"]["sent_bytes"].as_u64().unwrap();
    assert!(sent < 92_000_000, "of 100 MB of shares at least 8 were there: {sent}");
    let cap = again.stored()[0]["cap"].as_str().unwrap().to_owned();
    assert_eq!(grid.stock_get(&cap), data);
    assert!(grid.journals().is_empty());
    assert_eq!(grid.incoming(), 0);
}

/// Of files and pipes of some megabytes, too, and when the file has another time by then.
fn places_of_a_killed_run_are_not_blocked(grid: &Grid) {
    let data = content(3_000_000, 19);
    let file = grid.file("killed-small", &data);
    for path in [file.to_str().unwrap(), "-"] {
        let mut run = grid.begin(["put", "-q", "--limit-rate", "1M", "--node", grid.node(), path]);
        if path == "-" {
            run.stdin.take().unwrap().write_all(&content(3_000_000, 20)).unwrap();
        }
        grid.wait("shares under way", || grid.incoming() == 5);
        run.kill().unwrap();
        run.wait().unwrap();
        // The same bytes, written later.
        fs::write(&file, &data).unwrap();
        let again = grid.fullbore_with(["put", "--node", grid.node(), path], &content(3_000_000, 20));
        assert_eq!(again.code, 0, "{}", again.stderr);
        assert!(!again.stderr.contains("accepts no share"), "{}", again.stderr);
        assert_eq!(grid.incoming(), 0);
        assert!(grid.journals().is_empty());
    }
}

/// What a server says 404 and 409 to.
fn places_that_servers_forgot_or_that_have_other_bytes(grid: &Grid) {
    let begun = |seed| {
        let file = grid.file("places", &content(3_000_000, seed));
        let mut run = grid.begin(["put", "-q", "--limit-rate", "1M", "--node", grid.node(), file.to_str().unwrap()]);
        grid.wait("bytes of all shares", || {
            grid.places().iter().filter(|place| place.metadata().is_ok_and(|about| about.len() > 10_000)).count() == 5
        });
        run.kill().unwrap();
        run.wait().unwrap();
        file
    };
    let taken_up = |file: &Path, seed| {
        let again = grid.fullbore(["put", "--node", grid.node(), file.to_str().unwrap()]);
        assert_eq!(again.code, 0, "{}", again.stderr);
        assert!(!again.stderr.contains("warning"), "asked anew, nothing is lost: {}", again.stderr);
        assert_eq!((grid.shares_of(&again.stdout_line()).len(), grid.incoming()), (5, 0));
        let out = grid.dir.path().join("places.out");
        let get = ["get", "--json", "--node", grid.node(), "-o", out.to_str().unwrap(), &again.stdout_line()];
        let got = grid.fullbore(get);
        assert!(fs::read(&out).unwrap() == content(3_000_000, seed));
        assert_eq!(got.summary()["store"]["troubles"].as_array().unwrap().len(), 0, "{}", got.stdout);
        assert_eq!(grid.stock_get(&again.stdout_line()), content(3_000_000, seed));
    };
    // A server drops what is not complete when it starts.
    let file = begun(33);
    grid.restart(1, ToOwned::to_owned);
    assert_eq!(grid.incoming(), 4);
    taken_up(&file, 33);
    // Nobody knows any more what is there, so that all is sent, and some of it is something else.
    let file = begun(34);
    for journal in grid.journals() {
        let lines = fs::read_to_string(&journal).unwrap();
        let lines: Vec<_> = lines.lines().filter(|line| !line.starts_with("{\"there\"")).collect();
        fs::write(&journal, lines.join("\n") + "\n").unwrap();
    }
    let place = fs::OpenOptions::new().write(true).open(&grid.places()[2]).unwrap();
    place.write_all_at(b"other bytes", 5_000).unwrap();
    taken_up(&file, 34);
}

fn caps_by_chance_survive_a_killed_run(grid: &Grid) {
    let root = grid.dir.path().join("chance");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("small"), content(300, 22)).unwrap();
    fs::write(root.join("large"), content(20_000_000, 22)).unwrap();
    let caps = grid.dir.path().join("chance.caps");
    let put = ["put", "-q", "--random-key", "--caps", caps.to_str().unwrap(), "--node", grid.node()];
    let mut run = grid.begin(put.into_iter().chain(["--limit-rate", "4M", root.to_str().unwrap()]));
    let journal =
        || grid.journals().iter().map(|path| fs::read_to_string(path).unwrap_or_default()).collect::<String>();
    let stored = || journal().lines().find(|line| line.starts_with("{\"stored\"")).map(ToOwned::to_owned);
    grid.wait("a complete file", || stored().is_some());
    run.kill().unwrap();
    run.wait().unwrap();
    let stored: serde_json::Value = serde_json::from_str(&stored().unwrap()).unwrap();
    let again = grid.fullbore(put.into_iter().chain([root.to_str().unwrap()]));
    assert_eq!(again.code, 0, "{}", again.stderr);
    let list = fs::read_to_string(caps).unwrap();
    assert!(list.contains(stored["stored"]["cap"].as_str().unwrap()), "the small file keeps its cap");
    assert_eq!(grid.stock_get(&format!("{}/large", again.stdout_line())), content(20_000_000, 22));
    assert!(grid.journals().is_empty(), "all caps are told");
}

fn an_interrupted_run_leaves_nothing_behind(grid: &Grid) {
    let before = grid.shares();
    let file = grid.file("interrupted", &content(50_000_000, 12));
    let run = grid.begin(["put", "-q", "--limit-rate", "4M", "--node", grid.node(), file.to_str().unwrap()]);
    grid.wait("shares under way", || grid.incoming() == 5);
    grid::interrupt(&run);
    let output = run.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(130), &b""[..]));
    grid.wait("aborted shares", || grid.incoming() == 0);
    assert_eq!(grid.shares(), before);
    assert!(grid.journals().is_empty());
}

fn a_pipe_that_gives_nothing_can_be_interrupted(grid: &Grid) {
    let random = ["put", "-q", "--random-key", "--size", "50000000", "--node", grid.node(), "-"];
    for arguments in [&["put", "-q", "--node", grid.node(), "-"][..], &random] {
        let mut run = grid.begin(arguments.iter().copied());
        // It stays open, and nothing comes.
        let stdin = run.stdin.take();
        grid::interrupt(&run);
        grid.wait("end", || run.try_wait().unwrap().is_some());
        assert_eq!(run.wait().unwrap().code(), Some(130), "{arguments:?}");
        drop(stdin);
    }
    grid.wait("aborted shares", || grid.incoming() == 0);
    // More of them than there are threads, by names, and nobody has opened the other ends.
    let pipes: Vec<_> = (0..8).map(|number| grid.dir.path().join(format!("pipe-{number}"))).collect();
    for pipe in &pipes {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    let names = pipes.iter().map(|pipe| pipe.to_str().unwrap());
    let mut run = grid.begin(["put", "-q", "--node", grid.node()].into_iter().chain(names));
    grid::interrupt(&run);
    grid.wait("end", || run.try_wait().unwrap().is_some());
    assert_eq!(run.wait().unwrap().code(), Some(130));
}

fn caps_that_nobody_takes_are_an_error(grid: &Grid) {
    let small = grid.file("small", b"a literal, which is done at once");
    let large = grid.file("large", &content(50_000_000, 18));
    let [small, large] = [&small, &large].map(|file| file.to_str().unwrap());
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for stdout in [std::process::Stdio::from(full), closed.into()] {
        let before = grid.shares();
        let arguments = ["put", "-q", "--limit-rate", "4M", "--node", grid.node(), small, large];
        let run = grid.command(arguments).stdout(stdout).spawn().unwrap();
        let output = run.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
        grid.wait("aborted shares", || grid.incoming() == 0);
        assert_eq!(grid.shares(), before, "what was under way is given up");
    }
}

fn a_stalled_server_is_given_up(grid: &Grid) {
    let data = content(8_000_000, 13);
    let file = grid.file("stalled", &data);
    grid.stop(2);
    let begun = Instant::now();
    let put = grid.fullbore(["put", "--timeout", "4", "--node", grid.node(), file.to_str().unwrap()]);
    let lasted = begun.elapsed();
    // It reads from the others meanwhile, too.
    let got = grid.fullbore(["get", "--timeout", "4", "--node", grid.node(), "-o", "/dev/null", &put.stdout_line()]);
    grid.go_on(2);
    assert_eq!(put.code, 0, "{}", put.stderr);
    assert!(put.stderr.contains("s2 ("), "{}", put.stderr);
    assert!(lasted >= Duration::from_secs(4), "{lasted:?}");
    assert!(got.code == 0 || got.stderr.contains("/dev"), "{}", got.stderr);
    assert_eq!(grid.stock_get(&put.stdout_line()), data);
}

fn a_server_that_stops_under_way(grid: &Grid) {
    let data = content(20_000_000, 21);
    let file = grid.file("stopped-server", &data);
    let limited = ["put", "--limit-rate", "8M", "--timeout", "4", "--node", grid.node(), file.to_str().unwrap()];
    let run = grid.begin(limited);
    grid.wait("shares under way", || grid.incoming() == 5);
    grid.stop(3);
    let output = run.wait_with_output().unwrap();
    grid.go_on(3);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("s3 ("), "the stopped server is named: {stderr}");
    assert_eq!(grid.stock_get(String::from_utf8(output.stdout).unwrap().trim()), data);
    // It has the beginning of a share, which a server drops when it starts.
    grid.restart(3, ToOwned::to_owned);
}

fn happiness_that_is_lost_late(grid: &Grid) {
    let file = grid.file("unhappy", &content(20_000_000, 35));
    let all = ["put", "--encoding", "3,5,5", "--limit-rate", "8M", "--node", grid.node(), file.to_str().unwrap()];
    let run = grid.begin(all);
    grid.wait("shares under way", || grid.incoming() == 5);
    grid.kill(4);
    let output = run.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b""[..]), "{stderr}");
    assert!(stderr.contains("5 are needed (happy)") && stderr.contains("s4 ("), "{stderr}");
    grid.restart(4, ToOwned::to_owned);
    grid.wait("aborted shares", || grid.incoming() == 0);
}

fn a_server_that_is_killed_under_way(grid: &Grid) {
    let data = content(40_000_000, 14);
    let file = grid.file("killed-server", &data);
    let run = grid.begin(["put", "--limit-rate", "8M", "--node", grid.node(), file.to_str().unwrap()]);
    grid.wait("shares under way", || grid.incoming() == 5);
    grid.kill(4);
    let output = run.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("s4 ("), "the lost server is named: {stderr}");
    let cap = String::from_utf8(output.stdout).unwrap();
    assert_eq!(grid.stock_get(cap.trim()), data);
    assert_eq!(grid.get(cap.trim()), data);
}

/// Server 4 is gone since the last step.
fn too_few_servers(grid: &Grid) {
    let file = grid.file("few", &content(100_000, 15));
    let put = grid.fullbore(["put", "--encoding", "3,5,5", "--node", grid.node(), file.to_str().unwrap()]);
    assert_eq!((put.code, put.stdout.as_str()), (3, ""), "{}", put.stderr);
    assert!(put.stderr.contains("5 are needed (happy)") && put.stderr.contains("s4 ("), "{}", put.stderr);
    let put = grid.fullbore(["put", "--encoding", "3,6,10", "--node", grid.node(), file.to_str().unwrap()]);
    assert!(put.stderr.contains("5 servers can be used, 6 are needed (happy)"), "{}", put.stderr);
}
