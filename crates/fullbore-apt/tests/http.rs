//! The http method in conversations that APT has had with its own, and in some that it has not.
//!
//! `http/*.txt` are what went over the pipes between apt (2.6, or 3.0 where the name says so) and its own
//! method, with the paths made neutral. Each is had again with ours, before servers that answer as those did: every request must
//! have the answer that apt's method gave, with the same fields.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fullbore_apt::acquire::{Incoming, IncomingError, Message, Outgoing, Request};
use fullbore_apt::http::{self, Environment};
use fullbore_engine::digest::Sha256;
use fullbore_testkit::server::{Fault, FaultRule, Life, PathMatch, Server, TestCa, TlsSpec};
use fullbore_testkit::signer::Signer;
use fullbore_wire::conditional::{http_date, parse_http_date};
use tempfile::TempDir;

/// APT's end of a conversation.
struct Apt {
    to: Option<PipeWriter>,
    from: Incoming<PipeReader>,
    method: JoinHandle<Result<(), IncomingError>>,
    directory: TempDir,
}

impl Apt {
    fn start(settings: &[(&str, &str)]) -> Apt {
        Apt::start_as("http", settings).0
    }

    /// As a method of this name; and what it writes for whoever debugs it.
    fn start_as(name: &'static str, settings: &[(&str, &str)]) -> (Apt, Arc<Mutex<Vec<String>>>) {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let told = lines.clone();
        let debug = Arc::new(move |line: &str| told.lock().unwrap().push(line.to_owned()));
        let (reader, to) = std::io::pipe().unwrap();
        let (from, writer) = std::io::pipe().unwrap();
        let method = std::thread::spawn(move || {
            http::serve(name, reader, &Outgoing::new(writer), Environment::default(), debug)
        });
        let mut apt = Apt { to: Some(to), from: Incoming::new(from), method, directory: tempfile::tempdir().unwrap() };
        for part in ["lists/partial", "archives/partial"] {
            std::fs::create_dir_all(apt.at(part)).unwrap();
        }
        let capabilities = apt.receive();
        assert_eq!((capabilities.code, capabilities.get("Pipeline")), (100, Some("true")));
        let configuration = Message::new(601, "Configuration").with("Config-Item", "Acquire::Send-URI-Encoded=1");
        let add =
            |message: Message, (name, value): &(&str, &str)| message.with("Config-Item", format!("{name}={value}"));
        apt.send(&settings.iter().fold(configuration, add));
        (apt, lines)
    }

    fn at(&self, part: &str) -> PathBuf {
        self.directory.path().join(part)
    }

    fn send(&mut self, message: &Message) {
        self.to.as_mut().unwrap().write_all(&message.to_bytes()).unwrap();
    }

    fn receive(&mut self) -> Message {
        self.from.receive().unwrap().expect("the method is still there")
    }

    /// A request for a file of this name in `archives/partial`.
    fn request(&self, uri: &str, name: &str) -> Message {
        let filename = self.at("archives/partial").join(name);
        Message::new(600, "URI Acquire").with("URI", uri).with("Filename", filename.display())
    }

    /// The answer to a request, after which there is no other.
    fn ask(&mut self, request: &Message) -> Message {
        self.send(request);
        self.answer(request.get("URI").unwrap()).1
    }

    /// The next answer, which must be about this URI, and whether it was said before that it begins.
    fn answer(&mut self, uri: &str) -> (bool, Message) {
        let mut is_started = false;
        loop {
            let message = self.receive();
            assert_eq!(message.get("URI"), Some(uri), "{message:?}");
            match message.code {
                102 | 104 => {}
                200 => is_started = true,
                _ => return (is_started, message),
            }
        }
    }

    /// Closes the pipe, as APT does at the end.
    fn end(mut self) {
        drop(self.to.take());
        let rest = self.from.receive().unwrap();
        assert_eq!(rest, None);
        self.method.join().unwrap().unwrap();
    }
}

fn content_of(path: &str, size: usize) -> Vec<u8> {
    path.bytes().cycle().take(size).collect()
}

fn put(root: &Path, path: &str, content: &[u8], modified_s: u64) {
    let path = root.join(path.trim_start_matches('/'));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    let time = UNIX_EPOCH + Duration::from_secs(modified_s);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
}

fn signer() -> &'static Signer {
    static SIGNER: OnceLock<Signer> = OnceLock::new();
    SIGNER.get_or_init(|| Signer::new("Archive key").unwrap())
}

/// A Release with these fields, signed by the archive's key.
fn signed(fields: &str) -> Vec<u8> {
    signed_by(signer(), fields)
}

fn signed_by(signer: &Signer, fields: &str) -> Vec<u8> {
    signer.clearsign(release(fields).as_bytes()).unwrap()
}

fn release(fields: &str) -> String {
    let entry = format!(" {} 0 main/binary-all/Packages\n", Sha256::EMPTY.to_hex().as_str());
    format!("{fields}SHA256:\n{entry}")
}

/// The suite `s` of the archive at this address, as APT's source.
struct Source {
    directory: TempDir,
}

impl Source {
    fn of(uri: &str) -> Source {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("key.gpg");
        std::fs::write(&key, signer().public_key().unwrap()).unwrap();
        let own = Source { directory };
        own.set(&format!("URIs: {uri}\nSigned-By: {}\n", key.display()));
        own
    }

    fn set(&self, fields: &str) {
        let text = format!("Types: deb\nSuites: s\nComponents: main\n{fields}");
        std::fs::write(self.path(), text).unwrap();
    }

    /// For `Dir::Etc::sourcelist`.
    fn path(&self) -> String {
        self.directory.path().join("a.sources").display().to_string()
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A conversation of apt with its own method.
struct Capture {
    /// In order: whether APT said it, and what.
    said: Vec<(bool, Message)>,
}

impl Capture {
    fn read(name: &str) -> Capture {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/http/{name}.txt"));
        let text = std::fs::read_to_string(path).unwrap();
        let said = text.split_terminator("\n\n").map(|block| {
            let (who, message) = block.split_once('\n').unwrap();
            let mut reader =
                Incoming::new(message.as_bytes().iter().chain(b"\n\n").copied().collect::<Vec<_>>().leak() as &[u8]);
            (who == "-> apt", reader.receive().unwrap().unwrap())
        });
        Capture { said: said.collect() }
    }

    fn answers(&self) -> impl Iterator<Item = &Message> {
        self.said.iter().filter(|(by_apt, _)| !by_apt).map(|(_, message)| message)
    }

    /// What apt's method said at last about a request.
    fn answer(&self, uri: &str) -> &Message {
        let of = |message: &&Message| matches!(message.code, 103 | 201 | 400) && message.get("URI") == Some(uri);
        self.answers().filter(of).last().unwrap()
    }
}

/// Servers in the place of those that the capture names by their ports.
struct Stage {
    ports: BTreeMap<String, (TempDir, Server)>,
}

impl Stage {
    /// Files where apt's method was given files; nothing, or a redirect, where it was not.
    fn set(capture: &Capture) -> Stage {
        let ports = ["127.0.0.1:7001", "127.0.0.1:7002"].map(|port| {
            let directory = tempfile::tempdir().unwrap();
            let server = Server::start(directory.path()).unwrap();
            (port.to_owned(), (directory, server))
        });
        let stage = Stage { ports: BTreeMap::from(ports) };
        for (_, request) in capture.said.iter().filter(|(by_apt, message)| *by_apt && message.code == 600) {
            let uri = request.get("URI").unwrap();
            let (port, path) = place(uri);
            let answer = capture.answer(uri);
            let (directory, server) = &stage.ports[&port];
            if let Some(to) = answer.get("New-URI") {
                let (port, _) = place(to);
                let to = stage.ports[&port].1.url();
                server.add_fault(FaultRule::always(PathMatch::Exact(decoded(&path)), Fault::Redirect(to)));
            }
            if answer.get("FailReason") == Some("ConnectionRefused") {
                server.live(Life::Refusing);
            }
            if answer.code == 201 {
                let modified = answer.get("Last-Modified").map(|date| date.replace("+0000", "GMT"));
                let modified = modified.and_then(|date| parse_http_date(&date)).unwrap();
                // What a proxy brings lies at the proxy.
                let at =
                    request.get("Proxy").filter(|proxy| *proxy != "DIRECT").map(|proxy| place(&format!("{proxy}/")).0);
                let root = at.map_or(directory, |port| &stage.ports[&port].0);
                put(root.path(), &decoded(&path), &content(request, answer), modified as u64);
            }
        }
        stage
    }

    /// The same in this stage's terms.
    fn translate(&self, text: &str) -> String {
        self.ports
            .iter()
            .fold(text.to_owned(), |text, (port, (_, server))| text.replace(&format!("http://{port}"), &server.url()))
    }
}

/// Host with port, and the path behind.
fn place(uri: &str) -> (String, String) {
    let rest = uri.strip_prefix("http://").unwrap();
    let (port, path) = rest.split_at(rest.find('/').unwrap());
    (port.to_owned(), path.to_owned())
}

fn decoded(path: &str) -> String {
    path.replace("%2b", "+").replace("%7e", "~")
}

/// Content of the length that the capture's file had.
fn content(request: &Message, answer: &Message) -> Vec<u8> {
    let size =
        request.get("Expected-Checksum-FileSize").or(answer.get("Size")).map_or(500, |size| size.parse().unwrap());
    content_of(request.get("URI").unwrap(), size)
}

/// Has a conversation again.
fn replay(name: &str) {
    let capture = Capture::read(name);
    let stage = Stage::set(&capture);
    let mut apt = Apt::start(&[]);
    let mut waiting: Vec<String> = Vec::new();
    let mut started = Vec::new();
    for (by_apt, message) in &capture.said {
        if *by_apt && message.code == 600 {
            let answer = capture.answer(message.get("URI").unwrap());
            let request = request(&stage, &apt, message, answer);
            waiting.push(request.get("URI").unwrap().to_owned());
            apt.send(&request);
        }
        // Where apt's method had given its answer before the next request, so does ours.
        let is_answer = matches!(message.code, 103 | 201 | 400) && !by_apt;
        if is_answer {
            let uri = stage.translate(message.get("URI").unwrap());
            while waiting.contains(&uri) {
                let ours = apt.receive();
                let about = ours.get("URI").unwrap().to_owned();
                match ours.code {
                    102 => {}
                    200 => started.push(about),
                    _ => {
                        assert!(waiting.contains(&about), "{name}: {ours:?}");
                        waiting.retain(|waiting| *waiting != about);
                        compare(name, &stage, &capture, &apt, &ours, started.contains(&about));
                    }
                }
            }
        }
    }
    assert_eq!(waiting, [""; 0], "{name}");
    apt.end();
}

/// A captured request, with what is on the stage in the place of what was there.
fn request(stage: &Stage, apt: &Apt, captured: &Message, answer: &Message) -> Message {
    let content = content(captured, answer);
    let mut request = Message::new(600, "URI Acquire");
    for (field, value) in &captured.fields {
        let value = match field.as_str() {
            "Expected-SHA256" => Sha256::of(&content).to_string(),
            "Filename" => {
                let path =
                    value.strip_prefix("/apt/").map_or_else(|| format!("archives/partial/{value}"), str::to_owned);
                apt.at(&path).display().to_string()
            }
            _ => stage.translate(value),
        };
        request = request.with(field, value);
    }
    let filename = Path::new(request.get("Filename").unwrap());
    if let Some(resumed) = answer.get("Resume-Point") {
        std::fs::write(filename, &content[..resumed.parse().unwrap()]).unwrap();
    }
    if answer.get("IMS-Hit").is_some() {
        let kept = filename.parent().unwrap().parent().unwrap().join(filename.file_name().unwrap());
        std::fs::write(kept, &content).unwrap();
    }
    request
}

/// Hashes that apt's method adds where none, or others, are expected.
const OTHER_HASHES: [&str; 4] = ["MD5Sum-Hash", "MD5-Hash", "SHA1-Hash", "SHA512-Hash"];

fn compare(name: &str, stage: &Stage, capture: &Capture, apt: &Apt, ours: &Message, is_started: bool) {
    let uri = ours.get("URI").unwrap();
    let captured = capture
        .answers()
        .filter(|message| matches!(message.code, 103 | 201 | 400))
        .find(|message| message.get("URI").is_some_and(|captured| stage.translate(captured) == uri))
        .unwrap();
    let context = format!("{name}: {ours:?}\napt's own: {captured:?}");
    assert_eq!(ours.code, captured.code, "{context}");
    let names = |message: &Message| {
        let mut names: Vec<String> = message.fields.iter().map(|(name, _)| name.clone()).collect();
        names.retain(|name| !OTHER_HASHES.contains(&name.as_str()));
        names.sort();
        names
    };
    assert_eq!(names(ours), names(captured), "{context}");
    let captured_start =
        capture.answers().any(|message| message.code == 200 && message.get("URI") == captured.get("URI"));
    assert_eq!(is_started, captured_start, "{context}");
    for field in ["Size", "Checksum-FileSize-Hash", "Resume-Point", "IMS-Hit", "FailReason", "Transient-Failure"] {
        assert_eq!(ours.get(field), captured.get(field), "{context}");
    }
    if let Some(to) = captured.get("New-URI") {
        assert_eq!(ours.get("New-URI"), Some(stage.translate(to).as_str()), "{context}");
    }
    if let Some(hash) = ours.get("SHA256-Hash") {
        let written = std::fs::read(ours.get("Filename").unwrap()).unwrap();
        assert_eq!(Sha256::of(&written).to_string(), hash, "{context}");
        let time = Path::new(ours.get("Filename").unwrap()).metadata().unwrap().modified().unwrap();
        let time = time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let time = http_date(time as i64).map(|date| date.replace("GMT", "+0000"));
        assert_eq!(ours.get("Last-Modified"), time.as_deref(), "{context}");
    }
    let _ = apt;
}

#[test]
fn apt_gets_the_answers_that_its_own_method_gives() {
    for name in [
        "update",
        "update-3.0",
        "update-unchanged",
        "update-unchanged-3.0",
        "update-pdiffs",
        "update-pdiffs-3.0",
        "update-release-gpg",
        "update-by-hash-missing",
        "update-proxy-detected",
        "update-refused",
        "install",
        "install-3.0",
        "install-missing",
        "install-resumed",
        "install-redirected",
        "source",
    ] {
        replay(name);
    }
}

/// One server of one tree.
fn server() -> (TempDir, Server) {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path()).unwrap();
    (directory, server)
}

fn known(request: Message, content: &[u8]) -> Message {
    request.with("Expected-SHA256", Sha256::of(content)).with("Expected-Checksum-FileSize", content.len())
}

#[test]
fn files_with_weaker_hashes_or_none_are_fetched_too() {
    let (root, server) = server();
    let content = content_of("noise", 300_000);
    put(root.path(), "a", &content, 1_700_000_000);
    let uri = format!("{}/a", server.url());
    let mut apt = Apt::start(&[]);
    let plain = apt.request(&uri, "plain");
    let done = apt.ask(&plain);
    assert_eq!((done.code, done.get("Size")), (201, Some("300000")), "{done:?}");
    assert_eq!(std::fs::read(apt.at("archives/partial/plain")).unwrap(), content);
    let right = apt.request(&uri, "hash").with("Expected-SHA256", Sha256::of(&content));
    assert_eq!(apt.ask(&right).code, 201);
    // APT compares the hashes by itself, and tells its user which there are.
    let wrong = apt.request(&uri, "hash").with("Expected-SHA256", Sha256::of(b"other"));
    let shown = apt.ask(&wrong);
    assert_eq!((shown.code, shown.get("SHA256-Hash")), (201, Some(Sha256::of(&content).to_string().as_str())));
    assert_eq!(std::fs::read(apt.at("archives/partial/hash")).unwrap(), content);
    let sha512 = apt.request(&uri, "sha512").with("Expected-SHA512", "ab".repeat(64));
    let shown = apt.ask(&sha512);
    assert_eq!((shown.code, shown.get("SHA512-Hash").map(str::len)), (201, Some(128)));
    assert_eq!(shown.get("SHA256-Hash"), None, "APT did not ask for it");
    let weak = apt.request(&uri, "weak").with("Expected-MD5Sum", "0123").with("Expected-Checksum-FileSize", 300_000);
    let shown = apt.ask(&weak);
    for name in ["MD5Sum-Hash", "SHA1-Hash", "SHA256-Hash", "SHA512-Hash"] {
        assert!(shown.get(name).is_some(), "{name}: {shown:?}");
    }
    let small = apt.request(&uri, "small").with("Maximum-Size", 1000);
    assert_eq!(apt.ask(&small).get("FailReason"), Some("MaximumSizeExceeded"));
    let since = apt.request(&uri, "since").with("Last-Modified", http_date(1_700_000_000).unwrap());
    assert_eq!(apt.ask(&since).get("IMS-Hit"), Some("true"));
    let nowhere = known(apt.request(&uri, "x").with("x", "y"), &content);
    let nowhere = Message {
        fields: nowhere
            .fields
            .into_iter()
            .map(|(name, value)| if name == "Filename" { (name, "/dev/null".into()) } else { (name, value) })
            .collect(),
        ..nowhere
    };
    assert_eq!(apt.ask(&nowhere).code, 201);
    assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    apt.end();
}

#[test]
fn an_answer_without_an_end_is_cut_where_the_file_must_end() {
    let (root, server) = server();
    put(root.path(), "InRelease", b"Date: x\n", 1);
    server.add_fault(FaultRule::always(PathMatch::Any, Fault::Endless));
    let mut apt = Apt::start(&[]);
    let request = apt.request(&format!("{}/InRelease", server.url()), "r").with("Index-File", "true");
    assert_eq!(apt.ask(&request.with("Maximum-Size", 100_000)).get("FailReason"), Some("MaximumSizeExceeded"));
    apt.end();
}

#[test]
fn what_cannot_be_done_is_told_and_the_next_request_is_served() {
    let (root, server) = server();
    put(root.path(), "a", b"text", 1);
    let uri = format!("{}/a", server.url());
    let mut apt = Apt::start(&[("Acquire::http::Proxy::socks", "socks5h://s")]);
    for (request, reason) in [
        (apt.request("gopher://h/x", "x"), "gopher"),
        (apt.request("http://socks/x", "x"), "socks5h"),
        (apt.request("http://h h/x", "x"), "h h"),
        (Message::new(600, "URI Acquire").with("URI", &uri), "no file name to write to"),
        (known(apt.request(&uri, "none/x"), b"text"), "none"),
        (apt.request(&uri, "none/x"), "none"),
        (apt.request(&format!("{}/../b", server.url()), "x"), "b"),
    ] {
        let failed = apt.ask(&request);
        assert_eq!(failed.code, 400, "{failed:?}");
        assert!(failed.get("Message").unwrap().contains(reason), "{reason}: {failed:?}");
    }
    apt.send(&Message::new(602, "Authentication"));
    let request = known(apt.request(&uri, "right"), b"text");
    assert_eq!(apt.ask(&request).code, 201);
    apt.end();
}

#[test]
fn what_is_left_of_a_file_is_taken_up_unless_it_is_wrong() {
    let (root, server) = server();
    let content = content_of("content", 400_000);
    put(root.path(), "a", &content, 1_700_000_000);
    let uri = format!("{}/a", server.url());
    let mut apt = Apt::start(&[]);
    let target = apt.at("archives/partial/a");
    let mut ask = |left: &[u8]| {
        std::fs::write(&target, left).unwrap();
        server.take_log();
        let request = known(apt.request(&uri, "a"), &content);
        let done = apt.ask(&request);
        assert_eq!(done.code, 201, "{done:?}");
        assert!(std::fs::read(&target).unwrap() == content);
        (server.take_log(), done.get("Resume-Point").map(str::to_owned))
    };
    let (log, resumed) = ask(&content[..300_000]);
    assert_eq!((log[0].range.as_deref(), resumed.as_deref()), (Some("bytes=300000-399999"), Some("300000")));
    let (log, _) = ask(&content);
    assert!(log.is_empty(), "all of it was there: {log:?}");
    let mut spoilt = content[..300_000].to_vec();
    spoilt[5] ^= 1;
    let (log, _) = ask(&spoilt);
    assert!(log.iter().map(|entry| entry.body_bytes).sum::<u64>() >= 400_000, "{log:?}");
    let longer = [&content[..], b"more"].concat();
    assert_eq!(ask(&longer).1, None);
    apt.end();
}

#[test]
fn the_end_of_apt_leaves_what_can_be_resumed() {
    let (root, server) = server();
    let content = content_of("content", 2_000_000);
    put(root.path(), "a", &content, 1_700_000_000);
    server.change(|own| own.rate_bytes_per_s = Some(400_000));
    let mut apt = Apt::start(&[]);
    let uri = format!("{}/a", server.url());
    let request = known(apt.request(&uri, "a"), &content);
    apt.send(&request);
    while apt.receive().code != 200 {}
    let target = apt.at("archives/partial/a");
    // Enough that each connection has brought something.
    while server.counters().body_bytes < 600_000 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let Apt { to, method, directory: _directory, from } = apt;
    drop(to);
    method.join().unwrap().unwrap();
    drop(from);
    let left = std::fs::read(&target).unwrap();
    assert!(!left.is_empty() && left.len() < content.len() && left[..] == content[..left.len()], "{}", left.len());
}

#[test]
fn the_newest_release_of_two_mirrors_is_taken() {
    let hour = |hour: u32, more: &str| {
        signed(&format!("Suite: s\nDate: Sat, 10 Feb 2024 {hour:02}:00:00 UTC\nX-Note: {more}\n"))
    };
    let (older, newest, newer) = (hour(1, "old"), hour(2, "new"), hour(3, "newer"));
    let (old_root, old) = server();
    let (new_root, new) = server();
    put(old_root.path(), "d/dists/s/InRelease", &older, now_s() - 7200);
    put(new_root.path(), "e/dists/s/InRelease", &newest, now_s() - 3600);
    let (index, other) = (content_of("index", 70_000), content_of("older", 70_000));
    put(new_root.path(), "e/dists/s/Packages.xz", &index, 1);
    put(old_root.path(), "d/dists/s/Packages.xz", &other, 1);
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), format!("{}/d\n{}/e/\nnonsense\n", old.url(), new.url())).unwrap();
    let source = Source::of(&format!("{}/d", old.url()));
    let list_path = list.path().display().to_string();
    let mut apt = Apt::start(&[("Acquire::fullbore::Mirrors", &list_path), ("Dir::Etc::sourcelist", &source.path())]);
    let base = format!("{}/d/dists/s/", old.url());
    let partial = apt.at("lists/partial/InRelease");
    let release = |apt: &Apt| {
        Message::new(600, "URI Acquire")
            .with("URI", format!("{base}InRelease"))
            .with("Filename", apt.at("lists/partial/InRelease").display())
            .with("Index-File", "true")
            .with("Target-Base-URI", &base)
    };
    let request = release(&apt);
    apt.send(&request);
    let warning = apt.receive();
    assert!(warning.code == 104 && warning.get("Message").unwrap().contains("line 3"), "{warning:?}");
    assert_eq!(apt.answer(&format!("{base}InRelease")).1.code, 201);
    assert_eq!(std::fs::read(&partial).unwrap(), newest);
    // Its index comes from the mirror that has it, though the origin has one of this name and length.
    let uri = format!("{base}Packages.xz");
    let request = known(apt.request(&uri, "p"), &index).with("Index-File", "true").with("Target-Base-URI", &base);
    assert_eq!(apt.ask(&request).code, 201);
    assert!(old.log().iter().all(|entry| !entry.path.ends_with("Packages.xz")), "{:?}", old.log());
    // APT has the newest, or a newer one: nothing is older.
    for (content, has_news) in [(older, true), (newest, false), (newer, false)] {
        std::fs::write(apt.at("lists/InRelease"), &content).unwrap();
        let modified = now_s() as i64 - 10_000;
        let request = release(&apt).with("Last-Modified", http_date(modified).unwrap());
        let answer = apt.ask(&request);
        assert_eq!((answer.code, answer.get("IMS-Hit").is_none()), (201, has_news), "{answer:?}");
    }
    apt.end();
}

/// What apt gets when it asks the first of these for an InRelease, and all are mirrors of one another.
fn in_release_of(servers: &[(TempDir, Server)]) -> Vec<u8> {
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), servers.iter().map(|(_, server)| server.url() + "\n").collect::<String>()).unwrap();
    let source = Source::of(&servers[0].1.url());
    in_release_with(&list.path().display().to_string(), &source, &servers[0].1)
}

/// The same with this list of mirrors and this source.
fn in_release_with(list: &str, source: &Source, origin: &Server) -> Vec<u8> {
    let mut apt = Apt::start(&[("Acquire::fullbore::Mirrors", list), ("Dir::Etc::sourcelist", &source.path())]);
    let uri = format!("{}/dists/s/InRelease", origin.url());
    let request = apt.request(&uri, "InRelease").with("Index-File", "true");
    assert_eq!(apt.ask(&request).code, 201);
    let content = std::fs::read(apt.at("archives/partial/InRelease")).unwrap();
    apt.end();
    content
}

/// A mirror that could choose the Release could keep a suite from changing: APT takes one, and refuses it.
#[test]
fn a_mirror_replaces_the_origins_release_only_if_apt_would_accept_it() {
    let stranger = Signer::new("Somebody else").unwrap();
    let fields = |hour: u32, more: &str| format!("{more}Date: Sat, 10 Feb 2024 {hour:02}:00:00 UTC\n");
    let of_s = "Origin: O\nSuite: s\nCodename: s\n";
    let own = signed(&fields(1, of_s));
    let text = "Types: deb\nSuites: s\nComponents: main\n";
    for (what, newer, more, is_taken) in [
        ("good", signed(&fields(2, of_s)), "", true),
        ("of a stranger", signed_by(&stranger, &fields(2, of_s)), "", false),
        ("unsigned", release(&fields(2, of_s)).into_bytes(), "", false),
        ("of another suite", signed(&fields(2, "Origin: O\nSuite: t\nCodename: t\n")), "", false),
        ("of another archive", signed(&fields(2, "Origin: P\nSuite: s\nCodename: s\n")), "", false),
        ("expired", signed(&fields(2, &format!("{of_s}Valid-Until: Sun, 11 Feb 2024 00:00:00 UTC\n"))), "", false),
        ("by a trusting source", signed(&fields(2, of_s)), "Trusted: yes\n", false),
    ] {
        let servers = [&own, &newer].map(|content| {
            let (root, server) = server();
            put(root.path(), "dists/s/InRelease", content, 1);
            (root, server)
        });
        let list = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(list.path(), servers.iter().map(|(_, server)| server.url() + "\n").collect::<String>()).unwrap();
        let source = Source::of(&servers[0].1.url());
        let entry = std::fs::read_to_string(source.path()).unwrap();
        source.set(&(entry.strip_prefix(text).unwrap().to_owned() + more));
        let taken = in_release_with(&list.path().display().to_string(), &source, &servers[0].1);
        assert_eq!((taken == newer, taken == own), (is_taken, !is_taken), "{what}");
    }
}

#[test]
fn a_mirror_that_says_nothing_does_not_hide_that_the_origin_is_old() {
    let hour = |hour: u32| signed(&format!("Suite: s\nDate: Sat, 10 Feb 2024 {hour:02}:00:00 UTC\n"));
    let (older, newer) = (hour(1), hour(2));
    let servers = [&older, &newer, &newer].map(|content| {
        let (root, server) = server();
        put(root.path(), "dists/s/InRelease", content, 1);
        (root, server)
    });
    servers[1].1.add_fault(FaultRule::always(PathMatch::Any, Fault::Hang));
    assert_eq!(in_release_of(&servers), newer);
}

#[test]
fn two_mirrors_with_a_login_page_do_not_end_the_search() {
    let servers = [0, 1, 2].map(|_| server());
    let content = signed("Suite: s\nDate: Sat, 10 Feb 2024 01:00:00 UTC\n");
    for (root, server) in &servers {
        put(root.path(), "dists/s/InRelease", &content, 1);
        server.change(|own| own.delay = Duration::from_millis(50));
    }
    for (_, server) in &servers[..2] {
        server.add_fault(FaultRule::always(PathMatch::Any, Fault::Portal));
    }
    assert_eq!(in_release_of(&servers), content);
}

#[test]
fn credentials_go_where_they_belong() {
    let (root, origin) = server();
    let (_, mirror) = server();
    put(root.path(), "private/a", b"text", 1);
    origin.change(|own| own.authorization = Some("Basic dXNlcjp3b3Jk".into()));
    let files = tempfile::tempdir().unwrap();
    let (list, auth) = (files.path().join("mirrors"), files.path().join("auth.conf"));
    std::fs::write(&list, format!("{}/private\n{}/private\n", origin.url(), mirror.url())).unwrap();
    std::fs::write(&auth, format!("machine {}/private login user password word\n", origin.url())).unwrap();
    let (list, auth) = (list.display().to_string(), auth.display().to_string());
    for mirrors in ["", &list] {
        let mut apt = Apt::start(&[("Dir::Etc::netrc", &auth), ("Acquire::fullbore::Mirrors", mirrors)]);
        let uri = format!("{}/private/a", origin.url());
        let request = known(apt.request(&uri, "a"), b"text");
        assert_eq!(apt.ask(&request).code, 201);
        apt.end();
    }
    let leaked = mirror
        .log()
        .iter()
        .any(|entry| entry.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")));
    assert!(!leaked);
    let mut apt = Apt::start(&[]);
    let with_user = origin.url().replace("http://", "http://user:word@");
    let request = known(apt.request(&format!("{with_user}/private/a"), "a"), b"text");
    let done = apt.ask(&request);
    assert_eq!((done.code, done.get("URI")), (201, request.get("URI")));
    let request = known(apt.request(&format!("{}/private/a", origin.url()), "b"), b"text");
    let refused = apt.ask(&request);
    assert_eq!((refused.get("Message"), refused.get("FailReason")), (Some("401  Unauthorized"), Some("HttpError401")));
    apt.end();
}

/// As with apt's own method, also if a file names credentials for one of the addresses.
#[test]
fn each_address_is_asked_with_the_password_written_into_it() {
    let (root, server) = server();
    for path in ["ra/a", "rb/b"] {
        put(root.path(), path, b"text", 1);
    }
    let auth = tempfile::NamedTempFile::new().unwrap();
    let machine = |path: &str| format!("machine {}/{path} login file password f\n", server.url());
    std::fs::write(auth.path(), machine("ra") + &machine("rb/b")).unwrap();
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), format!("{}/\n", server.url())).unwrap();
    let (auth, list) = (auth.path().display().to_string(), list.path().display().to_string());
    for mirrors in ["", &list] {
        let mut apt = Apt::start(&[("Dir::Etc::netrc", &auth), ("Acquire::fullbore::Mirrors", mirrors)]);
        server.take_log();
        for (password, path) in [("AAA", "ra/a"), ("BBB", "rb/b"), ("AAA", "ra/a")] {
            let uri = format!("{}/{path}", server.url().replace("http://", &format!("http://tok:{password}@")));
            let request = known(apt.request(&uri, &path.replace('/', "-")), b"text");
            let _ = std::fs::remove_file(apt.at("archives/partial").join(path.replace('/', "-")));
            assert_eq!(apt.ask(&request).code, 201);
        }
        apt.end();
        let sent = |entry: &fullbore_testkit::server::LogEntry| {
            let field = entry.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
            field.map(|(_, value)| value.clone())
        };
        let sent: Vec<_> = server.take_log().iter().map(sent).collect();
        let (first, second) = ("Basic dG9rOkFBQQ==", "Basic dG9rOkJCQg==");
        assert_eq!(sent, [first, second, first].map(|value| Some(value.to_owned())), "{mirrors}");
    }
}

#[test]
fn credentials_that_do_not_say_http_are_not_sent_and_told_of() {
    let (root, server) = server();
    put(root.path(), "a", b"text", 1);
    server.change(|own| own.authorization = Some("Basic dXNlcjp3b3Jk".into()));
    let auth = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(auth.path(), "machine 127.0.0.1 login user password word\n").unwrap();
    let file = auth.path().display().to_string();
    let mut apt = Apt::start(&[("Dir::Etc::netrc", &file)]);
    let uri = format!("{}/a", server.url());
    let mut warnings = Vec::new();
    for name in ["a", "b"] {
        let request = apt.request(&uri, name);
        apt.send(&request);
        loop {
            let message = apt.receive();
            match message.code {
                104 => warnings.push(message.get("Message").unwrap().to_owned()),
                400 => break,
                _ => {}
            }
        }
    }
    let told = "Credentials for 127.0.0.1 match, but the protocol is not encrypted. Annotate with http:// to use.";
    assert_eq!(warnings, [format!("{file}: {told}")]);
    apt.end();
}

#[test]
fn a_method_of_another_name_has_its_own_addresses_and_settings() {
    let (root, server) = server();
    put(root.path(), "a", b"text", 1);
    let elsewhere = Server::start(root.path()).unwrap();
    server.add_fault(FaultRule::always(PathMatch::Exact("/moved/a".into()), Fault::Redirect(elsewhere.url())));
    let settings = [("Acquire::foo::User-Agent", "of foo"), ("Debug::Acquire::foo", "1")];
    let (mut apt, lines) = Apt::start_as("foo+http", &settings);
    let uri = |path: &str| format!("foo+{}{path}", server.url());
    let request = apt.request(&uri("/a"), "a");
    assert_eq!(apt.ask(&request).code, 201);
    let request = known(apt.request(&uri("/moved/a"), "b"), b"text");
    let redirected = apt.ask(&request);
    assert!(redirected.get("New-URI").unwrap().starts_with("foo+http://"), "{redirected:?}");
    let other = apt.request("gopher://h/x", "x");
    assert_eq!(apt.ask(&other).code, 400);
    apt.end();
    assert!(server.log().iter().all(|entry| entry.headers.iter().any(|(_, value)| value == "of foo")));
    let lines = lines.lock().unwrap();
    assert!(lines.iter().any(|line| line == "GET /a HTTP/1.1"), "{lines:?}");
    assert!(lines.iter().any(|line| *line == format!("Answer for: {}", uri("/a"))), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("HTTP/1.1 200")), "{lines:?}");
}

#[test]
fn a_tor_method_without_a_proxy_goes_nowhere() {
    let (root, server) = server();
    put(root.path(), "a", b"text", 1);
    let (mut apt, _) = Apt::start_as("tor+http", &[]);
    let request = apt.request(&format!("tor+{}/a", server.url()), "a");
    let refused = apt.ask(&request);
    assert!(refused.get("Message").unwrap().starts_with("Unsupported proxy configured: socks5h://"), "{refused:?}");
    assert!(server.log().is_empty());
    apt.end();
}

#[test]
fn an_https_proxy_may_have_an_authority_of_its_own() {
    let (root, _) = server();
    put(root.path(), "a", b"text", 1);
    let (authority, stranger) = (TestCa::new().unwrap(), TestCa::new().unwrap());
    let spec = TlsSpec { http2: false, ..TlsSpec::default() };
    let proxy = Server::builder(root.path()).tls(&authority, &spec).unwrap().start().unwrap();
    let files = tempfile::tempdir().unwrap();
    let pem = |name: &str, authority: &TestCa| {
        let path = files.path().join(name);
        std::fs::write(&path, authority.pem()).unwrap();
        path.display().to_string()
    };
    let (own, other) = (pem("own", &authority), pem("other", &stranger));
    let host = proxy.url().rsplit_once(':').unwrap().0.replace("https://", "");
    for (name, file, code) in [
        ("Acquire::https::CaInfo".to_owned(), &own, 201),
        (format!("Acquire::https::{host}::CaInfo"), &own, 201),
        ("Acquire::https::CaInfo".to_owned(), &other, 400),
    ] {
        let mut apt = Apt::start(&[("Acquire::http::Proxy", &proxy.url()), (&name, file)]);
        let request = known(apt.request("http://archive.invalid/a", "a"), b"text");
        assert_eq!(apt.ask(&request).code, code, "{name}");
        apt.end();
    }
}

#[test]
fn what_is_left_of_a_file_without_a_hash_is_taken_up_by_its_time() {
    let (root, server) = server();
    let content = content_of("content", 400_000);
    put(root.path(), "a", &content, 1_700_000_000);
    let uri = format!("{}/a", server.url());
    let left = |apt: &Apt, size: usize, modified_s: u64| {
        let target = apt.at("archives/partial/a");
        put(target.parent().unwrap(), "a", &content[..size], modified_s);
        server.take_log();
        target
    };
    for (settings, modified_s, resumed) in [
        (&[][..], 1_700_000_000, Some("300000")),
        (&[], 1_600_000_000, None),
        (&[("Acquire::http::AllowRanges", "false")], 1_700_000_000, None),
    ] {
        let mut apt = Apt::start(settings);
        let target = left(&apt, 300_000, modified_s);
        let request = apt.request(&uri, "a");
        let done = apt.ask(&request);
        assert_eq!((done.code, done.get("Resume-Point")), (201, resumed), "{done:?}");
        assert!(std::fs::read(&target).unwrap() == content);
        let fetched: u64 = server.take_log().iter().map(|entry| entry.body_bytes).sum();
        assert_eq!(fetched, if resumed.is_some() { 100_000 } else { 400_000 });
        apt.end();
    }
    // All of it is there already.
    let mut apt = Apt::start(&[]);
    left(&apt, 400_000, 1_700_000_000);
    let request = apt.request(&uri, "a");
    let done = apt.ask(&request);
    assert_eq!((done.code, done.get("Resume-Point")), (201, Some("400000")), "{done:?}");
    apt.end();
}

#[test]
fn a_file_of_another_size_is_left_for_apt_to_rename() {
    let (root, server) = server();
    put(root.path(), "a", b"longer", 1);
    let uri = format!("{}/a", server.url());
    let mut apt = Apt::start(&[]);
    for request in [
        known(apt.request(&uri, "a"), b"text"),
        apt.request(&uri, "a").with("Expected-SHA512", "ab".repeat(64)).with("Expected-Checksum-FileSize", 4),
    ] {
        let _ = std::fs::remove_file(apt.at("archives/partial/a"));
        apt.send(&request);
        let (is_started, failed) = apt.answer(&uri);
        assert_eq!(failed.get("Message"), Some("File has unexpected size (6 != 4). Mirror sync in progress?"));
        assert_eq!((is_started, failed.get("FailReason")), (true, Some("MaximumSizeExceeded")));
        assert!(apt.at("archives/partial/a").exists());
    }
    apt.end();
}

#[test]
fn wrong_bytes_of_a_known_file_are_shown_to_apt() {
    let (root, server) = server();
    put(root.path(), "a", b"other", 1);
    let mut apt = Apt::start(&[]);
    let uri = format!("{}/a", server.url());
    let request = known(apt.request(&uri, "a"), b"right");
    apt.send(&request);
    let (is_started, shown) = apt.answer(&uri);
    assert_eq!((is_started, shown.code), (true, 201));
    assert_eq!(shown.get("SHA256-Hash"), Some(Sha256::of(b"other").to_string().as_str()));
    assert_eq!(std::fs::read(apt.at("archives/partial/a")).unwrap(), b"other");
    apt.end();
}

#[test]
fn spellings_of_paths_that_indexes_have_are_asked_as_apt_writes_them() {
    let (root, server) = server();
    put(root.path(), "debian/pool/a", b"text", 1);
    let mut apt = Apt::start(&[]);
    for path in ["debian/./pool/a", "debian//pool/a"] {
        let request = known(apt.request(&format!("{}/{path}", server.url()), "a"), b"text");
        assert_eq!(apt.ask(&request).code, 201, "{path}");
    }
    apt.end();
}

#[test]
fn a_site_that_was_lost_is_asked_anew() {
    let (root, server) = server();
    put(root.path(), "a", b"text", 1);
    server.live(Life::Refusing);
    let mut apt = Apt::start(&[]);
    let uri = format!("{}/a", server.url());
    let request = known(apt.request(&uri, "a"), b"text");
    let failed = apt.ask(&request);
    assert_eq!((failed.get("FailReason"), failed.get("Transient-Failure")), (Some("ConnectionRefused"), Some("true")));
    server.live(Life::Alive);
    assert_eq!(apt.ask(&request).code, 201, "APT asks again after a pause");
    apt.end();
}

#[test]
fn a_site_that_says_nothing_is_given_up_after_the_time_that_apt_allows() {
    let (root, server) = server();
    put(root.path(), "a", b"text", 1);
    server.add_fault(FaultRule::always(PathMatch::Any, Fault::Hang));
    let mut apt = Apt::start(&[("Acquire::http::Timeout", "1")]);
    let uri = format!("{}/a", server.url());
    for request in [apt.request(&uri, "a"), known(apt.request(&uri, "a"), b"text")] {
        let failed = apt.ask(&request);
        assert_eq!((failed.get("FailReason"), failed.get("Transient-Failure")), (Some("Timeout"), Some("true")));
    }
    apt.end();
}

#[test]
fn apts_limit_is_kept() {
    let (root, server) = server();
    let content = content_of("content", 400_000);
    put(root.path(), "a", &content, 1);
    let mut apt = Apt::start(&[("Acquire::http::Dl-Limit", "200")]);
    let request = known(apt.request(&format!("{}/a", server.url()), "a"), &content);
    let begun = std::time::Instant::now();
    assert_eq!(apt.ask(&request).code, 201);
    // 400 kB at 200 KiB/s, less what each connection has read before it must wait.
    assert!(begun.elapsed() > Duration::from_millis(800), "{:?}", begun.elapsed());
    apt.end();
}

#[test]
fn requests_are_read_as_apt_writes_them() {
    for name in ["install", "source", "update"] {
        let capture = Capture::read(name);
        let requests = capture.said.iter().filter(|(by_apt, message)| *by_apt && message.code == 600);
        for (_, message) in requests {
            let request = Request::new(message.clone());
            assert!(!request.uri.is_empty() && !request.filename.as_os_str().is_empty());
        }
    }
}
