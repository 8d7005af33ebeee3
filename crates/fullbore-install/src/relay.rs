//! A script that apt takes for dpkg, and that asks fullbore.
//!
//! apt keeps its work: it resolves, holds the locks, runs the hooks of its configuration, orders the steps, and keeps
//! its records. `Dir::Bin::dpkg` makes it call a small shell script in the root. The script passes each request to
//! unpack to fullbore through a pipe. The answer is that the request is done, or that the script must become the real
//! dpkg for the remaining files. It may also have to run dpkg for some files, and then request the others. Every other
//! request goes to the real dpkg at once.
//!
//! If fullbore is killed, the script notices by a free lock or by the end of the pipe, and becomes dpkg: the
//! installation is completed, only slower.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatVfsMountFlags};

use crate::root::{within, write_file};

/// Maximum size of a request, in bytes: more than the arguments of a program can have (`ARG_MAX`, 2 MiB).
const ORDER_BYTES_MAX: usize = 4 << 20;

/// End of a request: the end of the last argument, followed by an empty argument.
const END: &[u8] = b"\0\0";

/// Interval between checks whether apt has ended, in milliseconds.
const POLL_INTERVAL_MS: i64 = 20;

/// Parent directories for the script's directory; the first one that allows programs is used. Debian mounts `/run`
/// with `noexec`; dpkg starts maintainer scripts from the second.
const PARENTS: [&str; 2] = ["run", "var/lib"];

/// Prefix of the name of the directory, before the id of this process.
const DIRECTORY: &str = "fullbore-dpkg.";

/// Name of the file that is locked while a process answers.
const ALIVE: &str = "alive";

/// Answer to a request of the script.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The script prints this output and executes dpkg with these arguments.
    Run(Vec<OsString>, DpkgOutput),
    /// The script prints this output, runs dpkg with the first arguments, and then makes a request with the second.
    RunAndAsk(Vec<OsString>, Vec<OsString>, DpkgOutput),
    /// The request failed, and dpkg must not try it.
    Refuse,
    /// The request is done; the script prints this output.
    Done(DpkgOutput),
}

/// Output that dpkg would have made.
#[derive(Debug, Default)]
pub(crate) struct DpkgOutput {
    /// Text for stdout.
    pub output: Vec<u8>,
    /// Text for the status descriptor.
    pub status: Vec<u8>,
    /// Number of the status descriptor.
    pub status_descriptor: Option<u32>,
}

/// Error in placing or removing the script.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    /// No parent directory allows programs.
    #[error("{}: neither /run nor /var/lib allows programs", .0.display())]
    NotExecutable(PathBuf),
    /// A file cannot be created or removed.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

fn failed(path: &Path) -> impl Fn(io::Error) -> RelayError {
    let path = path.to_owned();
    move |error| RelayError::File { path: path.clone(), error }
}

/// A script in a root that apt takes for dpkg, with its pipes and its lock.
#[derive(Debug)]
pub(crate) struct Relay {
    directory: PathBuf,
    /// Handle of the directory, whose path may lead elsewhere later.
    handle: OwnedFd,
    inside: PathBuf,
    orders: File,
    answers: File,
    _alive: File,
}

impl Relay {
    /// Places the script in a root. It unsets the environment variables `without` for dpkg.
    ///
    /// # Errors
    /// [`RelayError::NotExecutable`] if neither parent directory allows programs, [`RelayError::File`] if the
    /// directory, a pipe or the script cannot be created.
    pub(crate) fn place(root: &Path, without: &[&str]) -> Result<Relay, RelayError> {
        let places = PARENTS.iter().filter_map(|place| Some((place, within(root, Path::new(place)).ok()?)));
        let place = places.into_iter().find(|(_, outside)| is_executable(outside));
        let (place, outside) = place.ok_or_else(|| RelayError::NotExecutable(root.to_owned()))?;
        let name = format!("{DIRECTORY}{}", std::process::id());
        let directory = outside.join(&name);
        Relay::place_in(directory.clone(), Path::new("/").join(place).join(name), without).map_err(failed(&directory))
    }

    /// Creates this directory, whose path in the root is `inside`.
    fn place_in(directory: PathBuf, inside: PathBuf, without: &[&str]) -> io::Result<Relay> {
        remove(&directory)?;
        // Fails if the name exists again: the files in it are executed.
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&directory, flags, Mode::empty())?;
        let pipe = |name: &str| -> io::Result<File> {
            rustix::fs::mknodat(&handle, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            // For both directions, so that opening and polling do not depend on the script.
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(rustix::fs::openat(&handle, name, flags, Mode::empty())?.into())
        };
        let alive = File::from(write_file(handle.as_fd(), ALIVE, 0o600, b"")?);
        alive.lock()?;
        write_file(handle.as_fd(), "dpkg", 0o755, script_text(&inside, without).as_bytes())?;
        let (orders, answers) = (pipe("order")?, pipe("answer")?);
        Ok(Relay { inside: inside.join("dpkg"), orders, answers, directory, handle, _alive: alive })
    }

    /// Removes the scripts of killed runs. The caller must hold dpkg's frontend lock, because an apt that survived
    /// its fullbore still needs its script.
    ///
    /// # Errors
    /// [`RelayError::File`] if a directory cannot be read or removed.
    pub(crate) fn clear_abandoned(root: &Path) -> Result<(), RelayError> {
        let places = PARENTS.iter().filter_map(|place| within(root, Path::new(place)).ok());
        for place in &places.filter(|place| place.is_dir()).collect::<Vec<_>>() {
            for entry in fs::read_dir(place).map_err(failed(place))? {
                let directory = entry.map_err(failed(place))?.path();
                let is_relays = directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(DIRECTORY));
                // The answering process has locked it.
                if is_relays && open_alive(&directory).is_some_and(|alive| alive.try_lock().is_ok()) {
                    remove(&directory).map_err(failed(&directory))?;
                }
            }
        }
        Ok(())
    }

    /// Path of the script in the root, for apt's `Dir::Bin::dpkg`.
    pub(crate) fn program(&self) -> &Path {
        &self.inside
    }

    /// Writes a file in the directory of the script; returns its path in the root.
    ///
    /// # Errors
    /// The system's error if the file cannot be written.
    pub(crate) fn add_file(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        write_file(self.handle.as_fd(), name, 0o644, text.as_bytes())?;
        Ok(self.inside.with_file_name(name))
    }

    /// Answers requests until apt, the process `child`, has ended. After a failure all requests are refused, so that
    /// apt ends and releases dpkg's locks.
    ///
    /// # Errors
    /// The system's error if an answer cannot be written or a pipe fails, and [`io::ErrorKind::InvalidData`] if a
    /// request is too long. After the failure of a pipe, apt may still wait for an answer.
    pub(crate) fn serve(
        &self,
        child: &mut Child,
        answer: &mut dyn FnMut(Vec<OsString>) -> Answer,
    ) -> io::Result<ExitStatus> {
        let mut order = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let mut failure = None;
        loop {
            let mut polled = [PollFd::new(&self.orders, PollFlags::IN)];
            let wait = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL_MS * 1_000_000 };
            match rustix::event::poll(&mut polled, Some(&wait)) {
                Ok(0) => {
                    if let Some(status) = child.try_wait()? {
                        return failure.map_or(Ok(status), Err);
                    }
                    continue;
                }
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let count = (&self.orders).read(&mut buffer)?;
            order.extend_from_slice(&buffer[..count]);
            if order.len() > ORDER_BYTES_MAX {
                failure = Some(io::Error::new(io::ErrorKind::InvalidData, "an order to dpkg without an end"));
                // The rest of the request is still read.
                order.drain(..order.len() - END.len());
            }
            if order.ends_with(END) {
                if failure.is_none() {
                    let arguments = order[..order.len() - END.len()].split(|byte| *byte == 0);
                    let arguments = arguments.map(|argument| OsStr::from_bytes(argument).to_owned()).collect();
                    failure = self.answer(answer(arguments)).err();
                }
                if failure.is_some() {
                    self.say("refuse", None)?;
                }
                order.clear();
            }
        }
    }

    fn answer(&self, answer: Answer) -> io::Result<()> {
        let (verdict, told) = match answer {
            Answer::Run(arguments, told) => {
                self.leave("command", &line("exec dpkg", &arguments, ""))?;
                ("run", told)
            }
            Answer::RunAndAsk(first, then, told) => {
                // As in a single dpkg call: dpkg continues after a package that it cannot unpack (status 1), and its
                // exit status reports that at the end.
                let mut command = line("dpkg", &first, "");
                command.extend_from_slice(b"status=$?\n[ \"$status\" -le 1 ] || exit \"$status\"\n");
                command.extend(line("\"$at/dpkg\"", &then, " || status=$?"));
                command.extend_from_slice(b"exit \"$status\"\n");
                self.leave("command", &command)?;
                ("run", told)
            }
            Answer::Refuse => ("refuse", DpkgOutput::default()),
            Answer::Done(told) => ("done", told),
        };
        self.leave("output", &told.output)?;
        self.leave("status", &told.status)?;
        self.say(verdict, told.status_descriptor)
    }

    /// Writes a file for the script.
    fn leave(&self, name: &str, content: &[u8]) -> io::Result<()> {
        write_file(self.handle.as_fd(), name, 0o644, content).map(drop)
    }

    fn say(&self, verdict: &str, descriptor: Option<u32>) -> io::Result<()> {
        let descriptor = descriptor.map(|number| number.to_string()).unwrap_or_default();
        let line = format!("{verdict} {descriptor}\n");
        (&self.answers).write_all(line.as_bytes())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The next run removes leftovers.
        let _ = remove(&self.directory);
    }
}

/// Opens the lock of a script directory. A file of this name that fullbore did not make may be a link, a blocking
/// pipe, or a device with side effects.
fn open_alive(directory: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let status = rustix::fs::statat(&directory, ALIVE, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(&directory, ALIVE, flags, Mode::empty()).ok().map(File::from)
}

/// Whether the directory exists and allows programs.
fn is_executable(directory: &Path) -> bool {
    let status = rustix::fs::statvfs(directory);
    directory.is_dir() && status.is_ok_and(|status| !status.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A line of a shell script: a program, its arguments, and the end of the line.
fn line(program: &str, arguments: &[OsString], end: &str) -> Vec<u8> {
    let mut line = program.as_bytes().to_vec();
    for argument in arguments {
        line.push(b' ');
        line.extend(quoted(argument));
    }
    line.extend_from_slice(end.as_bytes());
    line.push(b'\n');
    line
}

/// Quotes an argument for the shell.
fn quoted(argument: &OsStr) -> Vec<u8> {
    let mut word = vec![b'\''];
    for byte in argument.to_owned().into_vec() {
        match byte {
            b'\'' => word.extend_from_slice(br"'\''"),
            other => word.push(other),
        }
    }
    word.push(b'\'');
    word
}

fn script_text(directory: &Path, without: &[&str]) -> String {
    // `flock` is in util-linux, an Essential package. dash has no syntax for descriptors above 9.
    format!(
        r#"#!/bin/sh
# Placed by fullbore for one run of apt, and removed after it: what apt wants unpacked, fullbore unpacks.
at={}
unset NOTHING {}
case " $* " in *' --unpack '*) ;; *) exec dpkg "$@" ;; esac
if flock -n "$at/alive" true; then exec dpkg "$@"; fi
{{
    # If fullbore ends from now on, this answers. It keeps nothing of ours open, and a pipe opened for both directions
    # does not wait for the other end: it ends, too, where this script has been killed.
    flock -o "$at/alive" sh -c 'echo gone 1<>"$0/answer"' "$at" >/dev/null 2>&1 9<&- &
    # Writing to a pipe that nobody reads ends this subshell only.
    (exec 8<>"$at/order" 1>"$at/order" 8<&- 9<&- && printf '%s\0' "$@" '')
    read -r verdict descriptor <&9 || verdict=gone
}} 9<>"$at/answer"
{{ kill $! && wait $!; }} 2>/dev/null # dash would say "Terminated"
case $verdict in
run | done) ;;
refuse) exit 2 ;;
*) exec dpkg "$@" ;;
esac
cat "$at/output"
if [ -z "$descriptor" ]; then :
elif [ -e "/proc/self/fd/$descriptor" ]; then cat "$at/status" >"/proc/self/fd/$descriptor"
else bash -c "cat '$at/status' >&$descriptor" 2>/dev/null || :
fi
[ "$verdict" = done ] || . "$at/command"
"#,
        directory.display(),
        without.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A root in which the script runs as if it were there: its directory is that of the outside.
    fn placed(dir: &Path) -> (Relay, PathBuf) {
        fs::create_dir(dir.join("run")).unwrap();
        let relay = Relay::place(dir, &[]).unwrap();
        let script = relay.directory.join("dpkg");
        fs::write(&script, script_text(&relay.directory, &["TMPDIR"])).unwrap();
        (relay, script)
    }

    /// As by a kill of who was to answer: pipes and lock go, files stay.
    fn killed(relay: &mut Relay) {
        let nothing = || File::open("/dev/null").unwrap();
        (relay.orders, relay.answers, relay._alive) = (nothing(), nothing(), nothing());
    }

    #[test]
    fn an_order_to_unpack_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let (relay, script) = placed(dir.path());
        let mut command = Command::new(&script);
        command.args(["--unpack", "a b.deb", "it's.deb"]).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut orders = Vec::new();
        let status = relay
            .serve(&mut child, &mut |order| {
                orders.push(order);
                Answer::Done(DpkgOutput { output: b"Unpacking a\n".to_vec(), ..DpkgOutput::default() })
            })
            .unwrap();
        assert!(status.success());
        assert_eq!(orders, [["--unpack", "a b.deb", "it's.deb"]]);
        let mut noise = String::new();
        child.stderr.take().unwrap().read_to_string(&mut noise).unwrap();
        assert_eq!(noise, "");
    }

    #[test]
    fn what_is_left_goes_to_the_real_dpkg() {
        let dir = tempfile::tempdir().unwrap();
        let (relay, script) = placed(dir.path());
        let mut command = Command::new(&script);
        command.args(["--unpack", "/nowhere.deb"]).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let status =
            relay.serve(&mut child, &mut |_| Answer::Run(vec!["--version".into()], DpkgOutput::default())).unwrap();
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(status.success() && text.contains("package management program"), "{text}");
    }

    #[test]
    fn what_comes_after_dpkg_is_asked_for_again() {
        let dir = tempfile::tempdir().unwrap();
        let (relay, script) = placed(dir.path());
        // Conflicting actions are fatal for dpkg (status 2), and the script ends.
        for (first, orders_expected, code) in [
            (&["--compare-versions", "1", "lt", "2"][..], 2, 0),
            (&["--compare-versions", "1", "gt", "2"], 2, 1),
            (&["--unpack", "--version"], 1, 2),
        ] {
            let mut command = Command::new(&script);
            command.args(["--unpack", "a.deb", "it's.deb"]).stderr(std::process::Stdio::null());
            let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
            let mut orders = Vec::new();
            let status = relay.serve(&mut child, &mut |order| {
                orders.push(order);
                match orders.len() {
                    1 => Answer::RunAndAsk(
                        first.iter().map(OsString::from).collect(),
                        ["--unpack", "it's.deb"].map(OsString::from).to_vec(),
                        DpkgOutput::default(),
                    ),
                    _ => Answer::Done(DpkgOutput::default()),
                }
            });
            assert_eq!((orders.len(), status.unwrap().code()), (orders_expected, Some(code)), "{orders:?}");
            assert!(orders.get(1).is_none_or(|order| *order == ["--unpack", "it's.deb"]), "{orders:?}");
        }
    }

    #[test]
    fn without_us_the_script_is_dpkg() {
        let dir = tempfile::tempdir().unwrap();
        let (relay, script) = placed(dir.path());
        let Relay { _alive: alive, .. } = &relay;
        alive.unlock().unwrap();
        let output = Command::new(&script).args(["--unpack", "--version"]).output().unwrap();
        // Without waiting for its locks, as other tests start it too.
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("dpkg: error: conflicting actions"), "{text}");
    }

    #[test]
    fn whoever_was_to_answer_may_be_killed_while_the_script_asks() {
        let dir = tempfile::tempdir().unwrap();
        let (mut relay, script) = placed(dir.path());
        let mut command = Command::new(&script);
        // More than a pipe takes at once.
        command.args(["--unpack", "--version", &"x".repeat(100_000)]).stderr(std::process::Stdio::piped());
        let child = command.spawn().unwrap();
        rustix::event::poll(&mut [PollFd::new(&relay.orders, PollFlags::IN)], None).unwrap();
        killed(&mut relay);
        let output = child.wait_with_output().unwrap();
        // Without waiting for its locks, as other tests start it too.
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("dpkg: error: conflicting actions"), "{text}");
    }

    #[test]
    fn nothing_is_left_of_a_script_that_is_killed_while_it_asks() {
        let dir = tempfile::tempdir().unwrap();
        let (mut relay, script) = placed(dir.path());
        let mut child = Command::new(&script).args(["--unpack", "--version"]).spawn().unwrap();
        rustix::event::poll(&mut [PollFd::new(&relay.orders, PollFlags::IN)], None).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        killed(&mut relay);
        let directory = relay.directory.to_str().unwrap();
        let left = || {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
            lines.find(|line| String::from_utf8_lossy(line).contains(directory))
        };
        let begun = std::time::Instant::now();
        while let Some(line) = left() {
            assert!(begun.elapsed().as_secs() < 20, "{}", String::from_utf8_lossy(&line));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    #[test]
    fn an_answer_that_cannot_be_given_is_a_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let (relay, script) = placed(dir.path());
        let mut child = Command::new(&script).args(["--unpack", "a.deb"]).spawn().unwrap();
        let served = relay.serve(&mut child, &mut |_| {
            fs::create_dir(relay.directory.join("output")).unwrap();
            Answer::Done(DpkgOutput::default())
        });
        assert_eq!(served.unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(child.wait().unwrap().code(), Some(2));
    }

    #[test]
    fn an_order_that_is_too_long_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (relay, _script) = placed(dir.path());
        // The kernel would not start the script with so many arguments.
        let printing = r#"(head -c "$2" /dev/zero | tr '\0' x; printf '\0\0') >"$1/order"
            read -r verdict <"$1/answer"; [ "$verdict" = refuse ]"#;
        let mut command = Command::new("sh");
        command.args(["-c", printing, "sh"]).arg(&relay.directory).arg((ORDER_BYTES_MAX + 1).to_string());
        let mut child = command.spawn().unwrap();
        let served = relay.serve(&mut child, &mut |_| panic!("asked"));
        assert_eq!(served.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    #[test]
    fn what_a_killed_run_has_left_is_removed_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (relay, script) = placed(dir.path());
        let abandoned = ["run/fullbore-dpkg.1", "var/lib/fullbore-dpkg.1"].map(|path| dir.path().join(path));
        for directory in &abandoned {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("alive"), "").unwrap();
        }
        fs::create_dir(dir.path().join("run/other")).unwrap();
        Relay::clear_abandoned(dir.path()).unwrap();
        assert!(!abandoned.iter().any(|directory| directory.exists()));
        assert!(script.exists() && dir.path().join("run/other").exists());
        drop(relay);
        assert!(!script.exists());
    }

    #[test]
    fn a_pipe_in_place_of_a_lock_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (_relay, script) = placed(dir.path());
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join(ALIVE), "").unwrap();
        let at = |name: &str| dir.path().join("run").join(name);
        for name in ["fullbore-dpkg.pipe", "fullbore-dpkg.link", "fullbore-dpkg.none"] {
            fs::create_dir(at(name)).unwrap();
        }
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fullbore-dpkg.pipe/alive"),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        std::os::unix::fs::symlink(outside.path().join(ALIVE), at("fullbore-dpkg.link/alive")).unwrap();
        std::os::unix::fs::symlink(outside.path(), at("fullbore-dpkg.outside")).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let root = dir.path().to_owned();
        std::thread::spawn(move || tell.send(Relay::clear_abandoned(&root).is_ok()));
        assert_eq!(told.recv_timeout(std::time::Duration::from_secs(20)), Ok(true));
        assert!(script.exists() && outside.path().join(ALIVE).exists());
        assert!(at("fullbore-dpkg.outside").is_symlink(), "is nothing that was made here");
    }

    #[test]
    fn a_quote_in_an_argument_stays_one() {
        assert_eq!(quoted(OsStr::new("it's")), br"'it'\''s'");
    }
}
