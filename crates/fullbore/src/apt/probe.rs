//! Whether apt could use a program as its method.
//!
//! apt starts methods as root and lets them drop to `APT::Sandbox::User`, and it also runs for
//! ordinary users (`apt-get source`). So the program must be executable by everybody, root's
//! alone to change, and must answer as a method does when it is started under a method's name.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fullbore_apt::acquire::{Messages, User};
use fullbore_apt::http::{LIST_BYTES_MAX, MirrorSets};
use fullbore_engine::run::error::CommandError;

use super::System;

/// Time that a method has for its first message. apt has no limit; ours need milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Bytes of a first message that are read; apt's have 100.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// The user that apt gives its methods, as Debian makes it.
const SANDBOX_USER: &str = "_apt";

/// Checks the program and asks it, under the name of each method, for its capabilities.
pub fn program(system: &System, program: &Path, methods: &[&str]) -> Result<(), CommandError> {
    let path = system.at(program)?;
    permitted(&path)?;
    for method in methods {
        answers(system, &path, method)?;
    }
    Ok(())
}

/// Checks that everybody may read a file.
fn readable(system: &System, file: &Path) -> Result<(), CommandError> {
    let path = system.at(file)?;
    let metadata = std::fs::metadata(&path).map_err(|error| CommandError::unreadable(&path, &error))?;
    if !metadata.is_file() || metadata.mode() & 0o004 == 0 {
        return Err(CommandError::usage(format_args!("{}: not a file that everybody may read", path.display()))
            .hint(format_args!("apt's methods run as user {SANDBOX_USER}; `chmod a+r` makes it readable")));
    }
    directories(&path)
}

/// Checks that a list of mirrors can be read by everybody and names mirrors.
pub fn mirrors(system: &System, file: &Path) -> Result<(), CommandError> {
    readable(system, file)?;
    let path = system.at(file)?;
    let refuse = |why: &dyn std::fmt::Display| {
        CommandError::usage(format_args!("{}: {why}", path.display()))
            .hint("one http or https address per line, an empty line between sets of mirrors of the same archive")
    };
    let mut text = String::new();
    let opened = std::fs::File::open(&path).and_then(|file| file.take(LIST_BYTES_MAX).read_to_string(&mut text));
    opened.map_err(|error| refuse(&error))?;
    let mut sets = MirrorSets::default();
    if let Some(error) = sets.add(&text).first() {
        return Err(refuse(error));
    }
    if sets.is_empty() { Err(refuse(&"names no mirror")) } else { Ok(()) }
}

/// Checks that everybody may execute the program and that only root may change it.
fn permitted(path: &Path) -> Result<(), CommandError> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| CommandError::usage(format_args!("cannot run {}: {error}", path.display())))?;
    let refuse =
        |what: &str, hint: &str| Err(CommandError::usage(format_args!("{}: {what}", path.display())).hint(hint));
    if !metadata.is_file() || metadata.mode() & 0o001 == 0 {
        return refuse(
            "not every user may run this program",
            "apt also runs its methods for ordinary users; `install -m 755` it to /usr/local/bin",
        );
    }
    if metadata.mode() & 0o002 != 0 || !is_own(&metadata) {
        return refuse(
            "users other than root can change this program",
            "apt starts methods as root; make root the owner, and the only user who may write to it",
        );
    }
    directories(path)
}

/// Checks that everybody may enter each directory of the path and that only root may change it.
fn directories(path: &Path) -> Result<(), CommandError> {
    let real = std::fs::canonicalize(path).map_err(|error| CommandError::cannot("find", path, &error))?;
    for directory in real.ancestors().skip(1) {
        let metadata = std::fs::metadata(directory);
        let metadata = metadata.map_err(|error| CommandError::cannot("read", directory, &error))?;
        let refuse = |what: &str, hint: &str| {
            Err(CommandError::usage(format_args!("{}: {what}", directory.display()))
                .context(format_args!("on the way to {}", path.display()))
                .hint(hint))
        };
        if metadata.mode() & 0o001 == 0 {
            let hint =
                "apt's methods run for ordinary users, too; install the program elsewhere, such as below /usr/local";
            return refuse("not every user may enter this directory", hint);
        }
        // In a directory like /tmp (sticky bit) nobody can replace the files of others.
        let open = metadata.mode() & 0o002 != 0 && metadata.mode() & 0o1000 == 0;
        if open || !is_own(&metadata) {
            let hint =
                "apt starts methods as root; install the program where only root may write, such as below /usr/local";
            return refuse("users other than root can change this directory", hint);
        }
    }
    Ok(())
}

/// Whether root owns it, or this user, who may try the command below a directory of their own.
fn is_own(metadata: &std::fs::Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid())
}

/// Starts the program under the name of a method and waits for its first message.
fn answers(system: &System, path: &Path, method: &str) -> Result<(), CommandError> {
    let failed = |what: String| {
        CommandError::usage(format_args!("{} does not answer as apt's method {method}: {what}", path.display()))
            .hint("name a fullbore of this version that runs on this machine")
    };
    let mut command = Command::new(path);
    command.arg0(PathBuf::from("/usr/lib/apt/methods").join(method));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if rustix::process::geteuid().is_root()
        && let Some(user) = sandbox_user(system)
    {
        command.uid(user.uid).gid(user.gid).current_dir("/");
    }
    let child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let text = answer(child).map_err(failed)?;
    let mut messages = Messages::new();
    messages.feed(&text).map_err(|error| failed(error.to_string()))?;
    match messages.take() {
        Some(message) if message.code == 100 && message.get("Send-Config").is_some() => Ok(()),
        Some(message) => Err(failed(format!("its first message is {} {}", message.code, message.text))),
        None => Err(failed("it ended without a message".to_owned())),
    }
}

/// What the program says until it ends, which it does as its input is empty.
fn answer(mut child: Child) -> Result<Vec<u8>, String> {
    let Some(stdout) = child.stdout.take() else { return Err("it has no output".to_owned()) };
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut text).map(|_| text)
    });
    let deadline = Instant::now() + ANSWER_LIMIT;
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(_) => break,
            None if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no end after {} s", ANSWER_LIMIT.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    match reader.join() {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("its output could not be read".to_owned()),
    }
}

fn sandbox_user(system: &System) -> Option<User> {
    if system.is_running_system() {
        return User::by_name(SANDBOX_USER);
    }
    User::in_file(&system.at(Path::new("/etc/passwd")).ok()?, SANDBOX_USER)
}
