//! Talking to a copy that runs: where it stands, and another rate limit.
//!
//! Each run listens on a socket of mode 0600 in the user's runtime directory, `fullbore-copy-PID`. A client
//! sends one line, `status` or `bwlimit BYTES_PER_S`, and gets one line of JSON. Only the same user and root can
//! open the socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fullbore_copy::session::{Link, RateLimit};
use fullbore_engine::stage::Ledger;
use serde_json::{Value, json};

use crate::error::{CommandError, ErrorKind};

const PREFIX: &str = "fullbore-copy-";
/// Longest line in either direction.
const LINE_BYTES: u64 = 64 << 10;
/// How long either side waits for the other's line.
const LINE_TIME: Duration = Duration::from_secs(5);

/// What of a run can be changed.
#[derive(Clone, Debug)]
pub struct Levers {
    /// The limit of this end.
    pub limit: Arc<RateLimit>,
    /// The link to a sender at the other end, which has to be asked.
    pub far_sender: Arc<Mutex<Option<Link>>>,
    /// Where the rate limit is shown.
    pub ledger: Ledger,
}

impl Levers {
    /// Of a run with this limit.
    pub fn new(bytes_per_s: u64, ledger: &Ledger) -> Levers {
        ledger.set_rate_limit(bytes_per_s);
        Levers { limit: Arc::new(RateLimit::new(bytes_per_s)), far_sender: Arc::default(), ledger: ledger.clone() }
    }

    fn set(&self, bytes_per_s: u64) {
        self.limit.set(bytes_per_s);
        self.ledger.set_rate_limit(bytes_per_s);
        let link = self.far_sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(link) = link {
            // A run that is over needs no limit.
            let _ = link.ask_for_limit(bytes_per_s, &self.ledger);
        }
    }
}

/// The socket of this run; gone when dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves requests until the program ends. A run without a socket is no worse otherwise.
pub fn serve(directory: &Path, levers: Levers, status: impl Fn() -> Value + Send + 'static) -> Option<Socket> {
    let path = directory.join(format!("{PREFIX}{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).ok()?;
    let socket = Socket { path };
    std::fs::set_permissions(&socket.path, std::fs::Permissions::from_mode(0o600)).ok()?;
    let work = move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(&stream, &levers, &status);
        }
    };
    std::thread::Builder::new().name("control socket".to_owned()).spawn(work).ok()?;
    Some(socket)
}

fn answer(mut stream: &UnixStream, levers: &Levers, status: &dyn Fn() -> Value) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LINE_TIME))?;
    stream.set_write_timeout(Some(LINE_TIME))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES)).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let answer = match words[..] {
        ["status"] => status(),
        ["bwlimit", rate] => match rate.parse() {
            Ok(bytes_per_s) => {
                levers.set(bytes_per_s);
                json!({"bwlimit_bytes_per_s": bytes_per_s})
            }
            Err(_) => json!({"error": "not a rate"}),
        },
        _ => json!({"error": "neither status nor bwlimit"}),
    };
    stream.write_all(format!("{answer}\n").as_bytes())
}

/// Asks all copies of this user, and gives one line for each.
///
/// # Errors
/// When there are none.
pub fn ask(directory: &Path, request: &str) -> Result<Vec<String>, CommandError> {
    let names = std::fs::read_dir(directory).map_err(|error| CommandError::disk(directory, &error))?;
    let mut lines = Vec::new();
    for entry in names.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix(PREFIX) else { continue };
        // A socket whose process has died refuses, and is passed over.
        if let Ok(answer) = ask_one(&entry.path(), request) {
            lines.push(format!("{process}: {}", answer.trim_end()));
        }
    }
    if lines.is_empty() {
        return Err(CommandError::new(ErrorKind::Usage, "no copy of yours is running here"));
    }
    Ok(lines)
}

fn ask_one(path: &Path, request: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(LINE_TIME))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES)).read_line(&mut line)?;
    Ok(line)
}

/// Where sockets of this user are: XDG_RUNTIME_DIR, or /run for root, or /tmp.
pub fn directory() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    let root = rustix::process::geteuid().is_root().then(|| PathBuf::from("/run"));
    own.or(root).unwrap_or_else(std::env::temp_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_tells_where_it_stands_and_takes_another_limit() {
        let directory = tempfile::tempdir().unwrap();
        assert!(ask(directory.path(), "status").is_err());
        let levers = Levers::new(0, &Ledger::off());
        let socket = serve(directory.path(), levers.clone(), || json!({"files": 3})).unwrap();
        let mode = std::fs::metadata(&socket.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let process = std::process::id();
        assert_eq!(ask(directory.path(), "status").unwrap(), [format!("{process}: {{\"files\":3}}")]);
        ask(directory.path(), "bwlimit 5000").unwrap();
        assert_eq!(levers.limit.bytes_per_s(), 5000);
        assert!(ask(directory.path(), "nonsense").unwrap()[0].contains("error"));
        drop(socket);
        assert!(ask(directory.path(), "status").is_err());
    }
}
