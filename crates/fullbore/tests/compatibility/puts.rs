//! Uploads that were killed: in parts to an S3 store, and to a grid.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fullbore_lafs::base32;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::need;
use crate::store::{Fault, Store};
use crate::{fixture, fixture_text, fullbore, lines};

/// Puts a journal of the older version where runs look for those of others.
fn left_behind(state: &Path, name: &str, text: &str) {
    let directory = state.join("fullbore/put");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(name), text).unwrap();
}

fn journals(state: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(state.join("fullbore/put")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_none_or(|ending| ending != "s3-unchanged")).collect()
}

/// A store keeps the parts of an upload that nobody ends, and bills them. What the older version did for its own killed
/// runs, this one does for them: it gives the upload up. Neither goes on with one.
#[test]
fn an_upload_in_parts_of_a_killed_run_is_given_up() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::start(|_| Fault::None);
    let journal = fixture_text("put-s3.s3-uploads");
    let begun: Value = serde_json::from_str(&journal).unwrap();
    let id = begun["begun"]["upload_id"].as_str().unwrap();
    store.begin_upload("large", id, 1_700_000_000);
    store.begin_upload("large", "somebody-else's", 1_700_000_000);
    left_behind(place.path(), "1.s3-uploads", &journal.replace("HOST", store.url.trim_start_matches("http://")));
    // One of another store is none of this run's business.
    left_behind(place.path(), "2.s3-uploads", &journal.replace("HOST", "127.0.0.1:1"));
    let large = place.path().join("large");
    fs::write(&large, lines(32)).unwrap();
    let mut command = fullbore();
    command.args(["put", "--endpoint", &store.url]).arg(&large).arg("s3://bucket/large");
    command.env("XDG_STATE_HOME", place.path()).env("HOME", place.path());
    command.env("AWS_ACCESS_KEY_ID", "fullbore").env("AWS_SECRET_ACCESS_KEY", "only-for-tests");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("large: gave up the upload in parts"), "{said}");
    assert_eq!(store.upload_ids(), ["somebody-else's"]);
    assert!(store.object("large").is_some_and(|object| object.content == lines(32)));
    assert_eq!(journals(place.path()), [place.path().join("fullbore/put/2.s3-uploads")]);
}

/// Servers that keep shares in files; see `compatibility/grid`.
struct Grid {
    directory: TempDir,
    process: Child,
}

impl Grid {
    /// Starts three, after something was put into their directory.
    fn start(before: impl FnOnce(&Path)) -> Grid {
        for (program, package) in [("python3", "python3"), ("openssl", "openssl")] {
            need(program, package);
        }
        let directory = tempfile::tempdir().unwrap();
        before(directory.path());
        let mut command = Command::new(fixture("grid"));
        let mut process =
            command.arg(directory.path()).arg("3").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Grid { directory, process }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Puts the file that the older version put, with its settings, and gives the cap.
    fn put(&self, state: &Path) -> String {
        fs::create_dir_all(state).unwrap();
        let [large, secret] = ["large", "convergence"].map(|name| state.join(name));
        fs::write(&large, lines(12)).unwrap();
        fs::write(&secret, format!("{}\n", "a".repeat(52))).unwrap();
        let mut command = fullbore();
        command.args(["put", "--encoding", "2,2,3", "--servers"]).arg(self.at("servers.yaml"));
        command.arg("--convergence-file").arg(secret).arg(large).env("XDG_STATE_HOME", state);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("warning"), "{said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What was written: share, from, to.
    fn writes(&self) -> Vec<(u64, u64, u64)> {
        let number = |word: Option<&str>| word.unwrap().parse().unwrap();
        let text = fs::read_to_string(self.at("log")).unwrap();
        let write = |line: &str| {
            let mut words = line.split(' ');
            (number(words.next()), number(words.next()), number(words.next()))
        };
        text.lines().map(write).collect()
    }

    /// Names of the servers, in the order of their numbers.
    fn servers(&self) -> Vec<String> {
        let text = fs::read_to_string(self.at("servers.yaml")).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("  ")?.strip_suffix(':'));
        names.filter(|name| name.starts_with("v0-")).map(str::to_owned).collect()
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// A share as the older version's journal has it.
#[derive(Debug, Default)]
struct Noted {
    server: String,
    secret: String,
    bytes: u64,
}

#[test]
fn an_upload_to_a_grid_is_gone_on_with_by_the_secrets_of_the_killed_run() {
    let place = tempfile::tempdir().unwrap();
    let mut events: Vec<Value> =
        fixture_text("put-grid.grid-uploads").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let index = events[0]["upload"]["index"].as_str().unwrap().to_owned();
    let mut noted: BTreeMap<u64, Noted> = BTreeMap::new();
    for event in &events {
        for share in event["asked"]["shares"].as_array().into_iter().flatten() {
            let share = noted.entry(share.as_u64().unwrap()).or_default();
            share.server = event["asked"]["server"].as_str().unwrap().to_owned();
            let secret = base32::decode(event["asked"]["secret"].as_str().unwrap()).unwrap();
            share.secret = STANDARD.encode(secret);
        }
        if let Some(share) = event["there"]["share"].as_u64() {
            noted.get_mut(&share).unwrap().bytes = event["there"]["bytes"].as_u64().unwrap();
        }
    }
    assert!(
        noted.len() == 3 && noted.values().all(|share| share.bytes > 1 << 20),
        "the fixture is in order: {noted:?}"
    );
    // A week later nothing of a journal counts. The user runs the new version before that.
    events[0]["upload"]["at"] = json!(jiff::Timestamp::now().as_second());
    let text: String = events.iter().map(|event| format!("{event}\n")).collect();

    // What the shares are, on servers that know nothing of the older version's.
    let whole = Grid::start(|_| {});
    let cap = whole.put(&place.path().join("whole"));
    assert_eq!(cap, fixture_text("put-grid.cap"), "the same file has the same cap as ever");
    let share = |grid: &Grid, number: u64| fs::read(grid.at(&format!("{index}/{number}"))).unwrap();

    // The servers as the killed run left them: that much of each share, and its secret.
    let servers = whole.servers();
    let unfinished = Grid::start(|directory| {
        fs::create_dir(directory.join(&index)).unwrap();
        for (number, noted) in &noted {
            let mut bytes = share(&whole, *number);
            bytes[noted.bytes as usize..].fill(0);
            let about = json!({
                "server": servers.iter().position(|name| *name == noted.server).unwrap(),
                "size": bytes.len(), "there": [[0, noted.bytes]], "secret": noted.secret,
            });
            fs::write(directory.join(format!("{index}/{number}")), bytes).unwrap();
            fs::write(directory.join(format!("{index}/{number}.json")), about.to_string()).unwrap();
        }
    });
    let state = place.path().join("state");
    left_behind(&state, "1.grid-uploads", &text);
    assert_eq!(unfinished.put(&state), cap);
    for (number, from, to) in unfinished.writes() {
        assert!(from >= noted[&number].bytes, "share {number}: {from} to {to} was there");
    }
    for number in noted.keys() {
        assert!(share(&unfinished, *number) == share(&whole, *number), "share {number}");
    }
    assert_eq!(journals(&state), [] as [PathBuf; 0]);
}
