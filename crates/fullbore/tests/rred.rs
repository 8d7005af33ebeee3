//! The rred method: conversations captured from real apt played again, and real apt itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;

use fullbore_apt::acquire::{Incoming, Message, Messages, User};
use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::date;
use fullbore_testkit::archive::{Archive, ArchiveBuilder};
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::apt::{Apt, FULLBORE, give_to_apt, is_root, passable, program, script};
use harness::{need, need_verifier, signer};

/// Where the captured lists directory was.
const LISTS: &str = "/var/lib/apt/lists";

/// The state to which all updates lead.
const LAST: usize = 3;

const INDEX: &str = "main/binary-amd64/Packages";

/// A captured conversation with the files that lay there when the request was made.
struct Capture {
    name: String,
    /// From apt: the configuration, and one request.
    said: Vec<Message>,
    /// From apt's own method.
    answered: Vec<Message>,
    directory: tempfile::TempDir,
}

impl Capture {
    fn open(case: &Path) -> Capture {
        let directory = passable();
        let lists = directory.path().display().to_string();
        let text = fs::read_to_string(case.join("conversation")).unwrap().replace(LISTS, &lists);
        let side = |mark: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
            let bytes: String = lines.map(|line| format!("{}\n", line.trim())).collect();
            let mut messages = Messages::new();
            messages.feed(bytes.as_bytes()).unwrap();
            std::iter::from_fn(|| messages.take()).collect::<Vec<_>>()
        };
        let name = case.file_name().unwrap().to_str().unwrap().to_owned();
        let capture = Capture { name, said: side("->"), answered: side("<-"), directory };
        capture.lay_out(&case.join("lists"));
        capture
    }

    /// Copies the files, with the link that apt makes, and the times that git does not keep.
    fn lay_out(&self, from: &Path) {
        let to = self.directory.path();
        fs::create_dir(to.join("partial")).unwrap();
        for part in ["", "partial"] {
            for entry in fs::read_dir(from.join(part)).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_file() {
                    fs::copy(entry.path(), to.join(part).join(entry.file_name())).unwrap();
                }
            }
        }
        let old = self.old();
        if !old.exists() {
            std::os::unix::fs::symlink(to.join(old.file_name().unwrap()), &old).unwrap();
        }
        let last_modified = date::parse(self.answered[2].get("Last-Modified").unwrap()).unwrap();
        let mut patches: Vec<PathBuf> =
            fs::read_dir(to.join("partial")).unwrap().map(|entry| entry.unwrap().path()).collect();
        patches.retain(|path| path.display().to_string().contains(".ed"));
        patches.sort();
        for (age, patch) in patches.iter().rev().enumerate() {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(last_modified as u64 - 3600 * age as u64);
            fs::File::options().write(true).open(patch).unwrap().set_modified(time).unwrap();
        }
        give_to_apt(&to.join("partial"));
    }

    fn request(&self) -> &Message {
        &self.said[1]
    }

    fn old(&self) -> PathBuf {
        PathBuf::from(self.request().get("URI").unwrap().strip_prefix("rred:").unwrap())
    }

    fn target(&self) -> PathBuf {
        PathBuf::from(self.request().get("Filename").unwrap())
    }

    /// What our method answers.
    fn play(&self) -> Vec<Message> {
        converse(&self.said)
    }
}

/// Starts the method as apt does and says this to it.
fn converse(said: &[Message]) -> Vec<Message> {
    let mut command = clean_command(FULLBORE);
    command.arg0("/usr/lib/apt/methods/rred");
    let (output, answers) = tell(command, said);
    assert!(output.status.success(), "{output:?}");
    answers
}

/// Says this to a method, and gives how it ended and what it answered.
fn tell(mut method: Command, said: &[Message]) -> (Output, Vec<Message>) {
    let mut child = method.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for message in said {
        // Who was killed reads no more.
        let _ = stdin.write_all(&message.to_bytes());
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let mut messages = Messages::new();
    messages.feed(&output.stdout).unwrap();
    let answers = std::iter::from_fn(|| messages.take()).collect();
    (output, answers)
}

fn captures() -> Vec<Capture> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captured");
    let mut cases: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases.iter().map(|case| Capture::open(case)).collect()
}

fn plain(path: &Path) -> Vec<u8> {
    let file = std::io::BufReader::new(fs::File::open(path).unwrap());
    let mut text = Vec::new();
    let mut reader = Reader::open(Form::of(path.to_str().unwrap()), file, 1 << 20).unwrap();
    std::io::Read::read_to_end(&mut reader, &mut text).unwrap();
    text
}

#[test]
fn captured_conversations_are_answered_as_apts_own_method_does() {
    let captures = captures();
    assert!(captures.len() >= 11, "only {} captures", captures.len());
    for capture in captures {
        let name = &capture.name;
        let answers = capture.play();
        assert_eq!(answers.len(), 3, "{name}: {answers:?}");
        // Capabilities may come in another order.
        for (own, apts) in answers.iter().zip(&capture.answered) {
            assert_eq!((own.code, &own.text), (apts.code, &apts.text), "{name}: {own:?}");
        }
        let fields = |message: &Message| {
            let mut fields = message.fields.clone();
            fields.sort();
            fields
        };
        assert_eq!(fields(&answers[0]), fields(&capture.answered[0]), "{name}");
        assert_eq!(fields(&answers[1]), fields(&capture.answered[1]), "{name}");
        // Before the files are read, which changes the time of access.
        let accessed = |path: &Path| {
            fs::metadata(path).unwrap().accessed().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
        };
        assert_eq!(accessed(&capture.target()), accessed(&capture.old()), "{name}");
        let (own, apts) = (&answers[2], &capture.answered[2]);
        for field in ["URI", "Filename", "Last-Modified", "SHA256-Hash", "Checksum-FileSize-Hash"] {
            assert_eq!(own.get(field), apts.get(field), "{name}: {field}");
        }
        // Every field of ours is one that apt knows.
        assert!(own.fields.iter().all(|(field, _)| apts.get(field).is_some()), "{name}: {own:?}");
        let metadata = fs::metadata(capture.target()).unwrap();
        assert_eq!(own.get("Size"), Some(metadata.len().to_string().as_str()), "{name}");
        let text = plain(&capture.target());
        assert_eq!(fullbore_testkit::digest::Digest::of(&text).to_string(), apts.get("SHA256-Hash").unwrap(), "{name}");
        let modified = metadata.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(date::parse(own.get("Last-Modified").unwrap()), Ok(modified as i64), "{name}");
    }
}

#[test]
fn in_doubt_the_answer_is_a_failure() {
    let change = |capture: &Capture, file: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let partial = capture.directory.path().join("partial");
        let paths = fs::read_dir(partial).unwrap().map(|entry| entry.unwrap().path());
        let path = paths.filter(|path| path.display().to_string().contains(file)).min().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        // The link to the old index, not what it leads to.
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).unwrap();
    };
    for capture in captures() {
        let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captured").join(&capture.name);
        let fails = |capture: Capture, said: Vec<Message>, what: &str| {
            let answers = converse(&said);
            let last = answers.last().unwrap();
            assert_eq!(last.code, 400, "{}: {what}: {answers:?}", capture.name);
            assert_eq!(last.get("URI"), said[1].get("URI"), "{what}");
            assert!(!capture.target().exists(), "{}: {what}", capture.name);
            let partial = fs::read_dir(capture.directory.path().join("partial")).unwrap();
            assert!(
                partial.map(|entry| entry.unwrap().file_name()).all(|name| !name.to_string_lossy().starts_with('.'))
            );
        };
        // The old index is not the one that was signed.
        let fresh = Capture::open(&case);
        let ending = Form::of(fresh.old().to_str().unwrap()).extension();
        change(&fresh, &format!("_Packages{ending}"), &|bytes| match bytes
            .windows(8)
            .position(|text| text == b"Package:")
        {
            Some(at) if ending.is_empty() => bytes[at + 1] = b'A',
            _ => bytes.truncate(bytes.len() / 2),
        });
        let said = fresh.said.clone();
        fails(fresh, said, "tampered index");
        // A patch that was cut, which the archive's hash tells.
        let fresh = Capture::open(&case);
        change(&fresh, ".ed", &|bytes| bytes.truncate(bytes.len() / 2));
        let said = fresh.said.clone();
        fails(fresh, said, "cut patch");
        // Requests that are not whole.
        for field in ["Patch-0-SHA256-Hash", "Filename", "Expected-SHA256", "Patch-0-Checksum-FileSize-Hash"] {
            let fresh = Capture::open(&case);
            let mut said = fresh.said.clone();
            if said[1].get(field).is_none() {
                continue;
            }
            said[1].fields.retain(|(name, _)| name != field);
            fails(fresh, said, field);
        }
        // Nothing says what must come out.
        if capture.request().get("Expected-SHA256").is_none() {
            let fresh = Capture::open(&case);
            let partial = fresh.directory.path().join("partial");
            let index = fs::read_dir(partial).unwrap().map(|entry| entry.unwrap().path());
            fs::remove_file(index.into_iter().find(|path| path.display().to_string().ends_with("diff_Index")).unwrap())
                .unwrap();
            let said = fresh.said.clone();
            fails(fresh, said, "no index of patches");
        }
    }
}

/// The archive that most tests share: a patch for each step, or one from each state to the last.
fn archive(merged: bool) -> &'static Archive {
    static ARCHIVES: [OnceLock<Archive>; 2] = [OnceLock::new(), OnceLock::new()];
    ARCHIVES[usize::from(merged)].get_or_init(|| {
        let directory = tempfile::tempdir().unwrap().keep();
        harness::remove_at_exit(directory.clone());
        ArchiveBuilder::tiny(directory)
            .signer(signer())
            .sources(30)
            .states(LAST + 1)
            .churn(0.1)
            .merged_pdiffs(merged)
            .pdiffs(true)
            .build()
            .unwrap()
    })
}

fn needs() {
    need("apt-get", "apt");
    need_verifier();
}

/// A private apt that has state `from`, and the server that has the last one.
fn apt_at(archive: &Archive, directory: &Path, from: usize, prepare: impl FnOnce(Apt) -> Apt) -> (Server, Apt) {
    let server = Server::start(&archive.state(from).root).unwrap();
    let apt = prepare(Apt::new(directory.join("apt"), &server.url(), &archive.key()));
    let ran = apt.update(&[]).well();
    assert!(ran.fetched_the_full_index(), "{}", ran.text);
    server.switch_root(&archive.state(LAST).root);
    (server, apt)
}

/// The option that makes apt use this method.
fn by(method: &Path) -> String {
    format!("Dir::Bin::Methods::rred={}", method.display())
}

/// Real apt with our method: the index of `Packages` becomes that of the last state, by patches.
fn updates(merged: bool, from: usize, form: &str, options: &[&str]) {
    let what = format!("merged {merged}, from {from}, {form}, {options:?}");
    let directory = passable();
    let archive = archive(merged);
    let (server, apt) = apt_at(archive, directory.path(), from, |apt| apt.keeping(form));
    let method = by(&program(directory.path(), "method"));
    for state in if from + 1 == LAST { vec![LAST] } else { vec![LAST - 1, LAST] } {
        server.switch_root(&archive.state(state).root);
        let mut options = options.to_vec();
        options.push(&method);
        let ran = apt.update(&options).well();
        assert!(!ran.fetched_the_full_index() && ran.text.contains("pdiff"), "{what}: {}", ran.text);
        let signed = archive.forge(state, "trixie").index(INDEX).unwrap();
        assert!(apt.packages() == signed.as_bytes(), "{what}: another content than the signed one");
        let ending = if form == "plain" { String::new() } else { format!(".{form}") };
        let kept = apt.lists().into_keys().any(|name| name.ends_with(&format!("_Packages{ending}")));
        assert!(kept, "{what}: {:?}", apt.lists().keys());
        assert_eq!(apt.partial(), [""; 0], "{what}");
    }
}

#[test]
fn apt_update_applies_patches_that_apt_chains() {
    needs();
    std::thread::scope(|scope| {
        // Also with our own files as the old ones: two steps, the second on what the first made.
        for form in ["plain", "gz", "xz", "lz4", "zst"] {
            scope.spawn(move || updates(false, 0, form, &[]));
        }
        // One patch after the other, each of which is verified.
        scope.spawn(|| updates(false, 0, "plain", &["Acquire::PDiffs::Merge=false"]));
    });
}

#[test]
fn apt_update_applies_patches_that_the_archive_merged() {
    needs();
    std::thread::scope(|scope| {
        scope.spawn(|| updates(true, 0, "lz4", &[]));
        scope.spawn(|| updates(true, LAST - 1, "plain", &[]));
        scope.spawn(|| updates(true, LAST - 1, "zst", &[]));
    });
}

#[test]
fn apt_gets_the_same_lists_as_with_its_own_method() {
    needs();
    let directory = passable();
    let mut lists = Vec::new();
    for merged in [false, true] {
        let place = directory.path().join(format!("merged-{merged}"));
        fs::create_dir(&place).unwrap();
        let (server, apt) = apt_at(archive(merged), &place, 0, |apt| apt);
        let before = Command::new("cp").arg("-a").arg(&apt.directory).arg(place.join("before")).status().unwrap();
        assert!(before.success());
        apt.update(&[]).well();
        lists.push(apt.lists());
        fs::remove_dir_all(&apt.directory).unwrap();
        fs::rename(place.join("before"), &apt.directory).unwrap();
        let ran = apt.update(&[&by(&program(&place, "method"))]).well();
        assert!(!ran.fetched_the_full_index(), "{}", ran.text);
        assert!(lists.last() == Some(&apt.lists()), "{:?}", apt.lists().keys());
        drop(server);
    }
}

#[test]
fn what_was_tampered_with_makes_apt_fetch_the_full_index() {
    needs();
    for merged in [false, true] {
        let directory = passable();
        // Of merged patches the last one is what apt itself does not verify.
        let (_server, apt) = apt_at(archive(merged), directory.path(), if merged { LAST - 1 } else { 0 }, |apt| apt);
        let lists = apt.directory.join("lists");
        let old = apt.lists().into_keys().find(|name| name.ends_with("_Packages")).unwrap();
        let text = String::from_utf8(apt.packages()).unwrap();
        // As long as it was, so that only the hash tells.
        let text = text.replacen("Maintainer: ", "Maintainer; ", 1);
        fs::write(lists.join(old), text).unwrap();
        let ran = apt.update(&[&by(&program(directory.path(), "method"))]);
        assert_eq!(ran.code, Some(0), "{}", ran.text);
        assert!(ran.fetched_the_full_index(), "merged {merged}: {}", ran.text);
        assert_eq!(apt.packages(), archive(merged).forge(LAST, "trixie").index(INDEX).unwrap().as_bytes());
        apt.update(&[]).well();
    }
}

/// Where writing is stopped: the size of a file, in bytes.
const KILLED_AT_BYTES: [u64; 5] = [0, 1, 700, 2_000, 4_000];

#[test]
fn killed_at_any_byte_the_method_leaves_only_an_unfinished_file() {
    need("prlimit", "util-linux");
    for capture in captures() {
        let content = |capture: &Capture| {
            let mut files = Vec::new();
            for part in ["", "partial"] {
                for entry in fs::read_dir(capture.directory.path().join(part)).unwrap() {
                    let path = entry.unwrap().path();
                    if !path.is_dir() && !path.file_name().unwrap().to_str().unwrap().starts_with('.') {
                        files.push((path.clone(), fs::read(&path).unwrap()));
                    }
                }
            }
            files.sort();
            files
        };
        let before = content(&capture);
        let programs = passable();
        let rred = program(programs.path(), "rred");
        let mut stopped = 0;
        for bytes in KILLED_AT_BYTES {
            // The kernel kills who writes a byte more to a file.
            let mut command = clean_command("prlimit");
            command.arg("--core=0").arg(format!("--fsize={bytes}")).arg(&rred);
            let (output, answers) = tell(command, &capture.said);
            assert_eq!(answers[0].code, 100);
            if answers.last().is_some_and(|last| last.code == 201) {
                fs::remove_file(capture.target()).unwrap();
            } else {
                assert!(!output.status.success() || answers.last().unwrap().code == 400, "{output:?}");
                stopped += 1;
            }
            assert!(content(&capture) == before, "{}: {bytes}", capture.name);
        }
        assert!(stopped >= 3, "{}", capture.name);
        let answers = capture.play();
        assert_eq!(answers.last().unwrap().code, 201, "{}: {answers:?}", capture.name);
        let hidden = fs::read_dir(capture.directory.path().join("partial")).unwrap();
        let hidden = hidden.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
        assert_eq!(hidden.count(), 0, "{}", capture.name);
    }
}

#[test]
fn killed_with_apt_the_lists_stay_and_the_next_run_is_clean() {
    needs();
    need("prlimit", "util-linux");
    std::thread::scope(|scope| {
        for form in ["plain", "zst"] {
            scope.spawn(move || {
                let directory = passable();
                let (_server, apt) = apt_at(archive(false), directory.path(), 0, |apt| apt.keeping(form));
                let before = apt.lists();
                let rred = program(directory.path(), "rred");
                for bytes in [0, 700] {
                    // The first process of a method gets no request, and ends well.
                    let killed = format!("prlimit --core=0 --fsize={bytes} '{}'", rred.display());
                    let text = format!("{killed} || kill -KILL $PPID");
                    let method = script(directory.path(), &format!("killed-{bytes}"), &text);
                    let ran = apt.update(&[&by(&method)]);
                    assert_eq!(ran.code, None, "{form}, {bytes}: {}", ran.text);
                    assert!(apt.lists() == before, "{form}, {bytes}: {:?}", apt.lists().keys());
                }
                let ran = apt.update(&[&by(&rred)]).well();
                assert!(!ran.fetched_the_full_index(), "{form}: {}", ran.text);
                assert_eq!(apt.partial(), [""; 0], "{form}");
                assert_eq!(apt.packages(), archive(false).forge(LAST, "trixie").index(INDEX).unwrap().as_bytes());
            });
        }
    });
}

/// A method that runs, with its pipes open.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    incoming: Incoming<ChildStdout>,
}

impl Running {
    fn start() -> Running {
        let mut child = clean_command(FULLBORE)
            .arg0("/usr/lib/apt/methods/rred")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut running = Running { child, stdin, incoming: Incoming::new(stdout) };
        assert_eq!(running.answer().code, 100);
        running
    }

    fn say(&mut self, message: &Message) {
        self.stdin.as_mut().unwrap().write_all(&message.to_bytes()).unwrap();
    }

    fn answer(&mut self) -> Message {
        self.incoming.receive().unwrap().expect("an answer")
    }

    /// Sends the configuration and a request that fails, so that both are surely worked off.
    fn configure(&mut self, user: &str) {
        self.say(&Message::new(601, "Configuration").with("Config-Item", format!("APT::Sandbox::User={user}")));
        self.say(&Message::new(600, "URI Acquire").with("URI", "rred:/nonexistent").with("Filename", "/nonexistent"));
        assert_eq!([self.answer().code, self.answer().code], [200, 400]);
    }

    /// A line of the kernel's about the process.
    fn status(&self, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn rights_are_dropped_where_apt_drops_them() {
    let mut running = Running::start();
    let before = running.status("Uid:");
    running.configure("_apt");
    if is_root() {
        let user = User::by_name("_apt").expect("user _apt: apt-get install apt");
        let (uid, gid) = (user.uid, user.gid);
        assert_eq!(running.status("Uid:"), format!("{uid} {uid} {uid} {uid}"));
        assert_eq!(running.status("Gid:"), format!("{gid} {gid} {gid} {gid}"));
        assert_eq!(running.status("Groups:"), gid.to_string());
        assert!(running.status("CapEff:").bytes().all(|digit| digit == b'0'));
    } else {
        assert_eq!(running.status("Uid:"), before);
    }
    assert_eq!(running.status("NoNewPrivs:"), "1");
    for user in ["", "root"] {
        let mut running = Running::start();
        running.configure(user);
        assert_eq!(running.status("Uid:"), before);
    }
    if is_root() {
        let mut running = Running::start();
        running.say(&Message::new(601, "Configuration").with("Config-Item", "APT::Sandbox::User=nobody-of-that-name"));
        let answer = running.answer();
        assert_eq!(answer.code, 401, "{answer:?}");
        assert!(answer.get("Message").unwrap().contains("nobody-of-that-name"));
    }
}

#[test]
fn the_method_ends_quietly() {
    // As the first of the two processes that apt starts: closed and interrupted at once. (Whoever runs the tests in
    // the background may have had interrupts ignored; so it is closed in any case.)
    for (interrupt, close_first) in [(false, true), (true, false), (true, true)] {
        let mut running = Running::start();
        if close_first {
            running.stdin = None;
        }
        if interrupt {
            let process = rustix::process::Pid::from_child(&running.child);
            rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
        }
        let Running { child, stdin, .. } = running;
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        assert!(output.stderr.is_empty(), "{output:?}");
        assert!(interrupt || output.status.success(), "{output:?}");
    }
    // What is no message ends it with a word, not with a panic.
    let mut running = Running::start();
    running.stdin.as_mut().unwrap().write_all(b"\0\xff nonsense\n\n").unwrap();
    let output = running.child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(100));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("rred: a message begins with"), "{output:?}");
}
