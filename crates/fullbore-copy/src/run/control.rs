//! Queries a running copy, and changes its rate limit.
//!
//! Each run listens on a socket of mode 0600, named by its process number, in [`directory`]. That directory belongs to
//! the user alone and is the same for every session. A client sends one line, `status` or `bwlimit BYTES_PER_S`, and
//! gets one line of JSON. Only the same user and root can open the socket.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::run::Progress;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::report::VerdictReport;
use fullbore_engine::stage::Ledger;
use fullbore_engine::units;
use fullbore_engine::verdict::thresholds::USED_UP;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::live_progress::LiveProgress;
use crate::session::{Link, RateLimit};

/// Longest line in either direction, in bytes.
const LINE_BYTES: u64 = 64 << 10;
/// How long each side waits for the other's line.
const LINE_TIME: Duration = Duration::from_secs(5);
/// How long a new run waits for its turn at the directory, and the interval of attempts. The holder needs a moment
/// only; a suspended holder must not block others.
const TURN_TIME: Duration = Duration::from_secs(1);
const TURN_LOOK: Duration = Duration::from_millis(5);

/// Name of the rate limit in verdicts.
const RATE_LIMIT: &str = "rate limit";

/// The parts of a run that can be changed.
#[derive(Clone, Debug)]
pub struct Levers {
    /// Rate limit of this end, which may change during the run.
    pub limit: Arc<RateLimit>,
    /// Link to a sender at the other end, which has to apply the limit.
    pub far_sender: Arc<Mutex<Option<Link>>>,
    /// Ledger that shows the rate limit.
    pub ledger: Ledger,
}

impl Levers {
    /// For a run with this limit in bytes per second; 0 for none.
    pub fn new(bytes_per_s: u64, ledger: &Ledger) -> Levers {
        ledger.set_rate_limit(bytes_per_s);
        Levers {
            limit: Arc::new(RateLimit::new(bytes_per_s, Instant::now())),
            far_sender: Arc::default(),
            ledger: ledger.clone(),
        }
    }

    /// The current limit: the rate limit if the run waits for it, else `found`.
    pub fn present(&self, found: Option<String>) -> Option<String> {
        if self.limit.is_awaited() { Some(RATE_LIMIT.to_owned()) } else { found }
    }

    /// The verdict for the rate limit, if the run used nearly all of it.
    pub fn reached(&self, written_bytes: u64, wall: Duration) -> Option<VerdictReport> {
        let bytes_per_s = self.limit.bytes_per_s();
        let share = written_bytes as f64 / (bytes_per_s as f64 * wall.as_secs_f64()).max(1.0);
        (bytes_per_s > 0 && share >= USED_UP).then(|| VerdictReport {
            limit: format!("the {RATE_LIMIT}"),
            reason: format!("{}/s", units::bytes(bytes_per_s)),
            confident: true,
            share: share.min(1.0),
            shares: vec![(RATE_LIMIT.to_owned(), share.min(1.0))],
            advice: "A higher --bwlimit would help.".to_owned(),
            ..VerdictReport::default()
        })
    }

    fn set(&self, bytes_per_s: u64) {
        self.limit.set(bytes_per_s);
        self.ledger.set_rate_limit(bytes_per_s);
        let link = self.far_sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(link) = link {
            // A run that has ended needs no limit.
            let _ = link.ask_for_limit(bytes_per_s, &self.ledger);
        }
    }
}

/// The answer to `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Process number of the copy.
    pub pid: u32,
    /// Sources, as the user named them.
    pub source: String,
    /// Destination, as the user named it.
    pub destination: String,
    /// The user's limit in bytes per second; 0 for none.
    pub bwlimit_bytes_per_s: u64,
    /// Files and bytes copied so far.
    #[serde(flatten)]
    pub progress: Progress,
}

/// The socket of this run; removed when dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves requests until the program ends. `places` has source and destination as the user named them.
///
/// # Errors
/// The error of creating `directory`, or its socket. `PermissionDenied` if the directory belongs to another user. A
/// copy can run without the socket.
pub fn serve(
    directory: &Path,
    levers: Levers,
    places: (String, String),
    live: Arc<LiveProgress>,
) -> io::Result<Socket> {
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => check(directory)?,
    }
    let turn = Turn::take(directory, TURN_TIME)?;
    if let Some(turn) = &turn {
        turn.sweep(directory)?;
    }
    let pid = std::process::id();
    let path = directory.join(pid.to_string());
    // A killed process with the same number has left it.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    drop(turn);
    let socket = Socket { path };
    std::fs::set_permissions(&socket.path, std::fs::Permissions::from_mode(0o600))?;
    let status = move |bwlimit_bytes_per_s| Status {
        pid,
        source: places.0.clone(),
        destination: places.1.clone(),
        bwlimit_bytes_per_s,
        progress: live.last(),
    };
    let work = move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(&stream, &levers, &status);
        }
    };
    std::thread::Builder::new().name("control socket".to_owned()).spawn(work)?;
    Ok(socket)
}

/// Only one process at a time makes sockets in a directory or removes stale ones. A socket that is being made does not
/// answer, just like that of a killed process.
struct Turn {
    directory: OwnedFd,
}

impl Turn {
    /// Waits for the turn; `None` if others hold it until the time is up.
    fn take(directory: &Path, within: Duration) -> io::Result<Option<Turn>> {
        use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open(directory, flags, Mode::empty())?;
        let until = Instant::now() + within;
        loop {
            match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Turn { directory: opened })),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(TURN_LOOK),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes the sockets of killed processes.
    fn sweep(&self, directory: &Path) -> io::Result<()> {
        for path in sockets(directory)?.into_values().filter(|path| is_deserted(path)) {
            // Root may have made a socket here meanwhile.
            let _ = std::fs::remove_file(path);
        }
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A child process of another thread has the directory open as well until it runs its program.
        let _ = rustix::fs::flock(&self.directory, rustix::fs::FlockOperation::Unlock);
    }
}

/// Whether no process listens. A busy process that does not answer still listens.
fn is_deserted(path: &Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else { return false };
    SocketAddrUnix::new(path).is_ok_and(|address| connect(&socket, &address) == Err(Errno::CONNREFUSED))
}

/// Sockets in the directory, by process number.
fn sockets(directory: &Path) -> io::Result<BTreeMap<u32, PathBuf>> {
    let names = std::fs::read_dir(directory)?.flatten();
    Ok(names.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))).collect())
}

fn answer(mut stream: &UnixStream, levers: &Levers, status: &dyn Fn(u64) -> Status) -> io::Result<()> {
    stream.set_read_timeout(Some(LINE_TIME))?;
    stream.set_write_timeout(Some(LINE_TIME))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES)).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let answer = match words[..] {
        ["status"] => serde_json::to_value(status(levers.limit.bytes_per_s()))?,
        ["bwlimit", rate] => match rate.parse() {
            Ok(bytes_per_s) => {
                levers.set(bytes_per_s);
                json!({"pid": std::process::id(), "bwlimit_bytes_per_s": bytes_per_s})
            }
            Err(_) => json!({"error": "not a rate"}),
        },
        _ => json!({"error": "neither status nor bwlimit"}),
    };
    stream.write_all(format!("{answer}\n").as_bytes())
}

/// A request to running copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Report the progress.
    Status,
    /// Set another rate limit in bytes per second; 0 for none.
    Limit(u64),
}

impl Request {
    fn line(self) -> String {
        match self {
            Request::Status => "status".to_owned(),
            Request::Limit(bytes_per_s) => format!("bwlimit {bytes_per_s}"),
        }
    }
}

/// Sends a request to the copies of this user, or to the one with this process number. Returns the answer of each.
///
/// # Errors
/// A [`CommandError`] of kind `Usage` if no copy of this user, or none with this `pid`, is running. Of kind `Disk` if
/// `directory` cannot be read.
pub fn ask(directory: &Path, request: Request, pid: Option<u32>) -> Result<Vec<Value>, CommandError> {
    let none = || {
        let which = pid.map_or_else(String::new, |pid| format!(" with the number {pid}"));
        CommandError::new(ErrorKind::Usage, format!("you have no running copy{which} on this machine"))
    };
    match check(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(none()),
        checked => checked.map_err(|error| CommandError::cannot("read", directory, &error))?,
    }
    let sockets = sockets(directory).map_err(|error| CommandError::cannot("read", directory, &error))?;
    let asked = sockets.into_iter().filter(|(found, _)| pid.is_none_or(|pid| pid == *found));
    // The next copy removes the sockets of killed processes.
    let answers: Vec<Value> = asked.filter_map(|(_, path)| ask_one(&path, request).ok()).collect();
    if answers.is_empty() { Err(none()) } else { Ok(answers) }
}

fn ask_one(path: &Path, request: Request) -> io::Result<Value> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(LINE_TIME))?;
    stream.write_all(format!("{}\n", request.line()).as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Directory for sockets of this user. It is the same for a login, a cron job and a service. XDG_RUNTIME_DIR exists
/// only during a login, and TMPDIR differs between shells.
pub fn directory() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() { "/run/fullbore".into() } else { format!("/tmp/fullbore-{}", user.as_raw()).into() }
}

/// Checks that the directory belongs to this user: others may write to /tmp, so it could be theirs.
fn check(directory: &Path) -> io::Result<()> {
    let status = std::fs::symlink_metadata(directory)?;
    if status.is_dir() && status.uid() == rustix::process::geteuid().as_raw() && status.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "not a directory of yours alone"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_limit_that_is_reached_is_what_limits() {
        let levers = Levers::new(1_000_000, &Ledger::off());
        let limited = |bytes, seconds| levers.reached(bytes, Duration::from_secs(seconds));
        assert_eq!(
            limited(9_900_000, 10).map(|found| found.to_string()).as_deref(),
            Some("Limited by: the rate limit (1.00 MB/s).")
        );
        assert_eq!(limited(5_000_000, 10), None, "something else was slower");
        levers.set(0);
        assert_eq!(levers.reached(1 << 40, Duration::from_secs(1)), None);
        assert_eq!(levers.present(Some("disk".to_owned())).as_deref(), Some("disk"));
    }

    #[test]
    fn a_run_tells_where_it_stands_and_takes_another_limit() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("own");
        assert!(ask(&directory, Request::Status, None).is_err());
        // Above the largest number that a process may have (proc_sys_kernel(5), `pid_max`).
        let killed = directory.join("4194305");
        std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
        drop(UnixListener::bind(&killed).unwrap());
        let busy = UnixListener::bind(directory.join("4194306")).unwrap();
        let levers = Levers::new(0, &Ledger::off());
        let live = Arc::new(LiveProgress::of(&Arc::default()));
        live.figures(Some("the network".to_owned()), Duration::ZERO);
        let places = ("/srv".to_owned(), "host:/backup".to_owned());
        let socket = serve(&directory, levers.clone(), places, live).unwrap();
        let mode = std::fs::metadata(&socket.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!killed.exists() && directory.join("4194306").exists(), "who was killed has gone, who is busy has not");
        drop(busy);
        let pid = std::process::id();
        let answers = ask(&directory, Request::Status, None).unwrap();
        assert!(answers.len() == 1, "{answers:?}");
        let told = |answer: &Value| Status::deserialize(answer).unwrap();
        let status = told(&answers[0]);
        let live = (&*status.source, &*status.destination, status.progress.limit.as_deref());
        assert_eq!((status.pid, live), (pid, ("/srv", "host:/backup", Some("the network"))));
        let answers = ask(&directory, Request::Limit(5000), Some(pid)).unwrap();
        assert_eq!(answers[0], json!({"pid": pid, "bwlimit_bytes_per_s": 5000}));
        assert_eq!(levers.limit.bytes_per_s(), 5000);
        let answers = ask(&directory, Request::Status, Some(pid)).unwrap();
        assert_eq!(told(&answers[0]), Status { bwlimit_bytes_per_s: 5000, ..status });
        let other = ask(&directory, Request::Limit(7000), Some(pid + 1)).unwrap_err();
        assert!(other.to_string().contains(&(pid + 1).to_string()) && levers.limit.bytes_per_s() == 5000, "{other}");
        drop(socket);
        assert!(ask(&directory, Request::Status, None).is_err());
    }

    #[test]
    fn a_new_socket_is_not_taken_for_a_dead_process() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let made = directory.join("1");
        let turn = Turn::take(directory, TURN_TIME).unwrap().unwrap();
        // It has its name before it listens (unix(7)).
        let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
        let socket = socket.unwrap();
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&made).unwrap()).unwrap();
        assert!(is_deserted(&made));
        assert!(Turn::take(directory, TURN_LOOK).unwrap().is_none());
        rustix::net::listen(&socket, 1).unwrap();
        drop(turn);
        Turn::take(directory, TURN_TIME).unwrap().unwrap().sweep(directory).unwrap();
        assert!(made.exists());
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("own");
        std::fs::create_dir(&own).unwrap();
        let serve = |path: &Path| {
            let live = Arc::new(LiveProgress::of(&Arc::default()));
            serve(path, Levers::new(0, &Ledger::off()), Default::default(), live)
        };
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(serve(&own).is_err() && ask(&own, Request::Status, None).is_err());
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&own, directory.path().join("link")).unwrap();
        assert!(serve(&directory.path().join("link")).is_err());
        assert!(serve(&own).is_ok());
    }
}
