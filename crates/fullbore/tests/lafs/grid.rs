//! A grid of stock nodes for one test binary, and both clients on it.

#[path = "../harness/schema.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod schema;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub use fullbore_testkit::random::noise as content;
use serde_json::Value;

pub struct Grid {
    pub dir: tempfile::TempDir,
    venv: PathBuf,
    described: Value,
    process: Child,
    /// Nodes end when it does.
    stdin: Option<ChildStdin>,
    /// Nodes that were started again.
    restarted: Mutex<Vec<(usize, Child)>>,
}

/// What a command gave.
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// The only line of stdout.
    pub fn stdout_line(&self) -> String {
        let mut lines = self.stdout.lines();
        let line = lines.next().unwrap_or_else(|| panic!("nothing on stdout: {}", self.stderr));
        assert_eq!(lines.next(), None, "one line");
        line.to_owned()
    }

    fn events(&self) -> Vec<Value> {
        schema::events("put or get", &self.stdout)
    }

    /// The last line of `--json`.
    pub fn summary(&self) -> Value {
        self.events().pop().unwrap_or_else(|| panic!("no events: {}", self.stderr))
    }

    /// Files that were checked, of `--json`.
    pub fn checked(&self) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["event"] == "checked").collect()
    }

    /// Paths that something is wrong with, of `--json`.
    pub fn problems(&self) -> Vec<String> {
        let problems = self.events().into_iter().filter(|event| event["event"] == "problem");
        problems.map(|event| event["path"].as_str().unwrap().to_owned()).collect()
    }

    /// Files that were put, of `--json`.
    pub fn stored(&self) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["event"] == "stored").collect()
    }
}

/// As Ctrl-C does, once it is listened for.
pub fn interrupt(child: &Child) {
    fullbore_testkit::process::wait_for_interrupt_handler(child.id());
    signal(child.id(), rustix::process::Signal::INT);
}

/// TCP connections of a process.
pub fn connections(child: &Child) -> usize {
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let inode = |fd: std::io::Result<std::fs::DirEntry>| {
        let target = std::fs::read_link(fd.ok()?.path()).ok()?;
        Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    let sockets: HashSet<String> = std::fs::read_dir(process.join("fd")).unwrap().filter_map(inode).collect();
    // `proc_pid_net(5)`: the tenth field is the inode, in the fourth 01 is ESTABLISHED.
    let tables =
        ["tcp", "tcp6"].map(|table| std::fs::read_to_string(process.join("net").join(table)).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines());
    let is_ours = |fields: &Vec<&str>| {
        fields.get(3) == Some(&"01") && fields.get(9).is_some_and(|inode| sockets.contains(*inode))
    };
    lines.map(|line| line.split_whitespace().collect()).filter(is_ours).count()
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn venv() -> PathBuf {
    let venv = match std::env::var_os("FULLBORE_TEST_TAHOE_VENV") {
        Some(venv) => PathBuf::from(venv),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tahoe-venv"),
    };
    assert!(
        venv.join("bin/tahoe").exists(),
        "the stock client is needed at {}: `script/tahoe-venv` makes it, FULLBORE_TEST_TAHOE_VENV names another place",
        venv.display()
    );
    venv
}

impl Grid {
    /// Starts so many servers, and a client node with this encoding.
    pub fn start(servers: usize, encoding: &str) -> Grid {
        let venv = venv();
        let dir = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lafs/grid.py");
        let mut process = Command::new(venv.join("bin/python"))
            .arg(script)
            .arg(dir.path().join("grid"))
            .args([&servers.to_string(), encoding])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python of the venv starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let described = serde_json::from_str(&line).expect("the grid starts");
        let stdin = process.stdin.take();
        Grid { dir, venv, described, process, stdin, restarted: Mutex::default() }
    }

    /// The client node's directory.
    pub fn node(&self) -> &str {
        self.described["client"]["dir"].as_str().unwrap()
    }

    fn url(&self) -> &str {
        self.described["client"]["url"].as_str().unwrap()
    }

    /// Writes a file.
    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// fullbore, with pipes for all three.
    pub fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.args(arguments).env("XDG_STATE_HOME", self.dir.path().join("state"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs fullbore.
    pub fn fullbore<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Output {
        self.fullbore_with(arguments, b"")
    }

    /// Runs fullbore with something on stdin.
    pub fn fullbore_with<'a>(&self, arguments: impl IntoIterator<Item = &'a str>, stdin: &[u8]) -> Output {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let output = std::thread::scope(|scope| {
            // Whoever does not want it all closes the pipe.
            scope.spawn(move || drop(pipe.write_all(stdin)));
            child.wait_with_output().unwrap()
        });
        Output {
            code: output.status.code().unwrap_or(-output.status.signal().unwrap_or(0)),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Starts fullbore and goes on.
    pub fn begin<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Child {
        self.command(arguments).spawn().unwrap()
    }

    /// Puts a file by the node's settings.
    pub fn put(&self, file: &Path) -> String {
        let output = self.fullbore(["put", "-q", "--node", self.node(), file.to_str().unwrap()]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        output.stdout_line()
    }

    /// Gets a file.
    pub fn get(&self, cap: &str) -> Vec<u8> {
        let out = self.dir.path().join("got");
        let output = self.fullbore(["get", "-q", "--node", self.node(), "-o", out.to_str().unwrap(), cap]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        std::fs::read(out).unwrap()
    }

    /// Gets a file as `tahoe get` does: by the web interface of the client node.
    pub fn stock_get(&self, cap: &str) -> Vec<u8> {
        self.curl(&[&format!("{}uri/{}", self.url(), cap.replace(' ', "%20"))], b"")
    }

    /// Puts a file as `tahoe put` does.
    pub fn stock_put(&self, content: &[u8]) -> String {
        let cap = self.curl(&["-T", "-", &format!("{}uri", self.url())], content);
        String::from_utf8(cap).unwrap()
    }

    /// Asks the web interface of the client node, as `curl` with these arguments; `{}` is its address.
    pub fn web(&self, arguments: &[&str], stdin: &[u8]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("{}", self.url())).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        String::from_utf8(self.curl(&arguments, stdin)).unwrap()
    }

    /// The leases of shares: how many each has, and when the last of them ends.
    pub fn leases(&self, shares: &[PathBuf]) -> Vec<(usize, f64)> {
        let script = "import sys, json\nfrom allmydata.storage.shares import get_share_file\n\
                      ends = [[l.get_expiration_time() for l in get_share_file(p).get_leases()] for p in sys.argv[1:]]\n\
                      print(json.dumps([[len(e), max(e)] for e in ends]))";
        let output = Command::new(self.venv.join("bin/python")).args(["-c", script]).args(shares).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn curl(&self, arguments: &[&str], stdin: &[u8]) -> Vec<u8> {
        let mut child = Command::new("curl")
            .args(["-sS", "--fail-with-body"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("curl (package curl) starts");
        let mut pipe = child.stdin.take().unwrap();
        let output = std::thread::scope(|scope| {
            scope.spawn(move || drop(pipe.write_all(stdin)));
            child.wait_with_output().unwrap()
        });
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        output.stdout
    }

    /// Runs the stock program.
    pub fn tahoe<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        let output =
            Command::new(self.venv.join("bin/tahoe")).args(["-d", self.node()]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A server's storage directory.
    pub fn storage(&self, server: usize) -> PathBuf {
        PathBuf::from(self.described["servers"][server]["dir"].as_str().unwrap()).join("storage")
    }

    fn servers(&self) -> usize {
        self.described["servers"].as_array().unwrap().len()
    }

    /// Complete shares of all files on all servers.
    pub fn shares(&self) -> usize {
        (0..self.servers()).map(|server| files(&self.storage(server).join("shares"), "incoming").len()).sum()
    }

    /// Where shares that are not complete are.
    pub fn places(&self) -> Vec<PathBuf> {
        (0..self.servers()).flat_map(|server| files(&self.storage(server).join("shares/incoming"), "")).collect()
    }

    /// Shares that are not complete.
    pub fn incoming(&self) -> usize {
        self.places().len()
    }

    /// Where the shares of a file are, sorted by number.
    pub fn shares_of(&self, cap: &str) -> Vec<PathBuf> {
        let index = fullbore_lafs::Cap::parse(cap).unwrap().storage_index().expect("no literal");
        let index = fullbore_lafs::base32::encode(&index);
        let mut shares: Vec<PathBuf> = (0..self.servers())
            .flat_map(|server| files(&self.storage(server).join("shares").join(&index[..2]).join(&index), ""))
            .collect();
        shares.sort_by_key(|path| path.file_name().unwrap().to_string_lossy().parse::<u32>().unwrap());
        shares
    }

    /// Journals of uploads.
    pub fn journals(&self) -> Vec<PathBuf> {
        files(&self.dir.path().join("state/fullbore/put"), "")
    }

    /// The list of servers, changed, as a file of this name.
    pub fn altered_servers(&self, name: &str, change: impl FnOnce(&str) -> String) -> PathBuf {
        let yaml = std::fs::read_to_string(Path::new(self.node()).join("private/servers.yaml")).unwrap();
        self.file(name, change(&yaml).as_bytes())
    }

    fn pid(&self, server: usize) -> u32 {
        let restarted = self.restarted.lock().unwrap();
        match restarted.iter().rev().find(|(number, _)| *number == server) {
            Some((_, child)) => child.id(),
            None => self.described["servers"][server]["pid"].as_u64().unwrap() as u32,
        }
    }

    /// Stops a server: it accepts connections and says nothing.
    pub fn stop(&self, server: usize) {
        signal(self.pid(server), rustix::process::Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&self, server: usize) {
        signal(self.pid(server), rustix::process::Signal::CONT);
    }

    /// Kills a server.
    pub fn kill(&self, server: usize) {
        signal(self.pid(server), rustix::process::Signal::KILL);
    }

    /// Starts a server again with changed settings.
    pub fn restart(&self, server: usize, change: impl FnOnce(&str) -> String) {
        let path = PathBuf::from(self.described["servers"][server]["dir"].as_str().unwrap());
        let settings = path.join("tahoe.cfg");
        let changed = change(&std::fs::read_to_string(&settings).unwrap());
        std::fs::write(&settings, changed).unwrap();
        self.kill(server);
        let port = self.described["servers"][server]["port"].as_u64().unwrap() as u16;
        self.wait("its port to be free", || std::net::TcpListener::bind(("127.0.0.1", port)).is_ok());
        // The one that was killed is not waited for by anybody yet, and seems to run.
        let _ = std::fs::remove_file(path.join("running.process"));
        let log = std::fs::File::create(path.join("again.log")).unwrap();
        let child = Command::new(self.venv.join("bin/tahoe"))
            .args(["run", "--allow-stdin-close"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.restarted.lock().unwrap().push((server, child));
        self.wait("the server to listen", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// Waits for something that comes by itself.
    pub fn wait(&self, what: &str, mut ready: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !ready() {
            assert!(begun.elapsed() < Duration::from_secs(100), "no {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        for (_, child) in self.restarted.lock().unwrap().iter_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        drop(self.stdin.take());
        let _ = self.process.wait();
    }
}

/// Files below a directory, without those in directories called `not`.
fn files(dir: &Path, not: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return found };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if entry.file_name() != not {
                found.extend(files(&path, not));
            }
        } else {
            found.push(path);
        }
    }
    found
}
