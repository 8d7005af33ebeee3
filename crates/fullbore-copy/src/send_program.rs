//! `--send-program`: sends the program over ssh, and runs it from a temporary directory on the other machine.
//!
//! First a script runs in the shell on the other machine. It prints the machine's type, finds a directory from which
//! programs may run, reads the program, compares its hash, and runs it. The program deletes its file as soon as it
//! runs.

mod elf;

use std::fs::File;
use std::io::{BufRead, Read as _, Write};
use std::path::{Path, PathBuf};

use fullbore_engine::digest::Sha256;
use fullbore_engine::run::error::CommandError;
use serde::Deserialize;

use crate::error::CopyError;
use crate::transport::setup;
use elf::Elf;

/// Exit codes of the script before the program runs. Shells do not use them.
const NO_DIRECTORY: i32 = 91;
const DAMAGED: i32 = 92;
const NO_TOOL: i32 = 93;
/// A shell's exit code for a file that it cannot run.
const NOT_RUNNABLE: i32 = 126;
/// A shell's exit code for a program, or its loader, that it cannot find.
const NOT_FOUND: i32 = 127;
/// Largest program that is sent, in bytes. fullbore itself has a tenth of this.
const PROGRAM_BYTES: u64 = 256 << 20;
/// Bytes of a program that are read to find its machine. Linkers put the table of segments right after the header.
const HEAD_BYTES: u64 = 64 << 10;
/// Longest line with a machine's type, in bytes.
const MACHINE_LINE_BYTES: u64 = 1 << 10;
/// Start of the temporary directory's name; `remove_self` removes no other directory.
const PREFIX: &str = "fullbore-sent.";
/// Directory in which packages and users put programs for other processors. The directory of this program is searched,
/// too.
const LIBRARY: &str = "/usr/lib/fullbore";

/// The type of the other machine, as `uname` there prints it.
#[derive(Clone, Debug, Deserialize)]
struct Machine {
    /// Output of `uname -s`: `Linux`.
    system: String,
    /// Output of `uname -m`: `aarch64`.
    machine: String,
}

/// Why no program can be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoProgram {
    /// The reason.
    pub(crate) reason: String,
    /// What the user can do.
    pub(crate) hint: String,
}

/// The programs that can be sent: FILE of `--send-program=FILE`, or this program and those for other processors.
#[derive(Clone, Debug)]
pub(crate) enum Programs {
    /// The user's file, for any machine.
    File(PathBuf),
    /// The first of these that is static and for the right processor: this program, then `fullbore-MACHINE` in each of
    /// the directories.
    Search { own: PathBuf, directories: Vec<PathBuf> },
}

impl Programs {
    /// Selects the user's file, or the programs found on this machine.
    ///
    /// # Errors
    /// A usage error if the user's file cannot be opened, or if there is no file and no static program on this machine.
    pub(crate) fn new(file: Option<&Path>) -> Result<Programs, CommandError> {
        let programs = match file {
            Some(file) => Programs::File(file.to_owned()),
            None => {
                let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
                let beside = own.parent().map(Path::to_owned);
                Programs::Search { own, directories: beside.into_iter().chain([LIBRARY.into()]).collect() }
            }
        };
        match &programs {
            Programs::File(file) => drop(open(file)?),
            Programs::Search { own, directories } => {
                let for_others = directories.iter().any(|directory| has_programs(directory));
                if !for_others && !elf_of(own)?.is_some_and(|elf| elf.is_static) {
                    return Err(CommandError::usage(
                        "this fullbore needs libraries that the other machine may not have, and there is no static one",
                    )
                    .hint(format_args!(
                        "put a static fullbore-MACHINE (such as fullbore-x86_64) into {LIBRARY}, or pass \
                         --send-program=FILE"
                    )));
                }
            }
        }
        Ok(programs)
    }

    /// Sends a program to the script on the other machine, once the script has reported the machine's type. If the
    /// script ends before that, nothing is sent: its exit code has the reason.
    ///
    /// # Errors
    /// [`NoProgram`] if there is no program for that machine. [`CopyError::Network`] if the connection breaks.
    pub(crate) fn send(
        &self,
        output: &mut impl BufRead,
        input: &mut impl Write,
    ) -> Result<Result<(), NoProgram>, CopyError> {
        let Some(machine) = setup::read::<Machine>(output, MACHINE_LINE_BYTES)? else { return Ok(Ok(())) };
        let (path, program) = match self.choose(&machine) {
            Ok(chosen) => chosen,
            Err(no_program) => return Ok(Err(no_program)),
        };
        tracing::info!(machine = machine.machine, program = %path.display(), bytes = program.len(), "sending the program");
        // If the script has ended, its exit code has the reason.
        let _ = writeln!(input, "{} {}", program.len(), Sha256::of(&program)).and_then(|()| input.write_all(&program));
        Ok(Ok(()))
    }

    /// The program for a machine, and its path.
    fn choose(&self, machine: &Machine) -> Result<(PathBuf, Vec<u8>), NoProgram> {
        let Machine { system, machine } = machine;
        if system != "Linux" {
            return Err(NoProgram {
                reason: format!("it runs {system}, and fullbore runs on Linux only"),
                hint: "copy through another machine, for example one that mounts the directory".to_owned(),
            });
        }
        let unreadable = |error: CommandError| NoProgram { reason: error.to_string(), hint: String::new() };
        let (own, directories) = match self {
            Programs::File(file) => {
                let program = read(file).map_err(unreadable)?;
                let elf = Elf::read(&program);
                return match elf.and_then(|elf| elf.machine) {
                    Some(own) if elf.is_some_and(|elf| !elf.runs_on(machine)) => Err(NoProgram {
                        reason: format!("its processor is {machine}, and {} is for {own}", file.display()),
                        hint: format!("pass a program for {machine}"),
                    }),
                    _ => Ok((file.clone(), program)),
                };
            }
            Programs::Search { own, directories } => (own, directories),
        };
        let name = format!("fullbore-{}", if machine == "armv8l" { "armv7l" } else { machine });
        let others = directories.iter().map(|directory| directory.join(&name));
        let candidates = std::iter::once(own.clone()).chain(others);
        let mut needs_libraries = None;
        for path in candidates {
            let Ok(elf) = elf_of(&path) else { continue };
            match elf {
                Some(elf) if !elf.runs_on(machine) => {}
                Some(Elf { is_static: true, .. }) => {
                    let program = read(&path).map_err(unreadable)?;
                    return Ok((path, program));
                }
                _ => needs_libraries = Some(path),
            }
        }
        let places: Vec<String> = directories.iter().map(|directory| directory.display().to_string()).collect();
        Err(NoProgram {
            reason: match needs_libraries {
                Some(path) => format!("its processor is {machine}, and {} is not a static program", path.display()),
                None => format!("its processor is {machine}, and there is no fullbore for it here"),
            },
            hint: format!("put a static {name} into {}, or pass --send-program=FILE", places.join(" or ")),
        })
    }
}

/// Whether a directory has programs for other machines. The other machine's name is only known later.
fn has_programs(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.take(10_000).any(|entry| {
        let name = entry.file_name();
        name.to_str().and_then(|name| name.strip_prefix("fullbore-")).is_some_and(|machine| !machine.contains('.'))
            && elf_of(&entry.path()).is_ok_and(|elf| elf.is_some_and(|elf| elf.is_static))
    })
}

/// Opens a program, and checks that its size can be sent.
fn open(path: &Path) -> Result<File, CommandError> {
    let disk = |error: std::io::Error| CommandError::cannot("read", path, &error);
    let file = File::open(path).map_err(disk)?;
    if file.metadata().map_err(disk)?.len() > PROGRAM_BYTES {
        return Err(CommandError::usage(format_args!("{}: too large for a program", path.display())));
    }
    Ok(file)
}

/// The first bytes of a program, or all of them if it is shorter.
fn read_up_to(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, CommandError> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(limit_bytes).read_to_end(&mut bytes);
    read.map_err(|error| CommandError::cannot("read", path, &error))?;
    Ok(bytes)
}

fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    read_up_to(path, PROGRAM_BYTES)
}

fn elf_of(path: &Path) -> Result<Option<Elf>, CommandError> {
    Ok(Elf::read(&read_up_to(path, HEAD_BYTES)?))
}

/// The command for the shell on the other machine. `command` comes from `--remote-path`; its words before the program,
/// for example `sudo`, are kept. `server` has the program's arguments.
pub(crate) fn script(command: &str, server: &str) -> String {
    let before = command.trim_end().rsplit_once(' ').map_or(String::new(), |(before, _)| format!("{before} "));
    // A directory may be missing, full, or on a file system that does not run programs.
    let script = format!(
        r#"for t in mktemp head sha256sum cut; do command -v $t >/dev/null || exit {NO_TOOL}; done
echo "fullbore-copy {{\"system\":\"$(uname -s)\",\"machine\":\"$(uname -m)\"}}"
read -r length hash || exit 1
trap 'rm -rf "$t"' EXIT; trap 'exit 1' HUP INT TERM
t=
for d in "$TMPDIR" /tmp /var/tmp "$HOME" /dev/shm .; do
[ -d "$d" ] || continue
free=$(df -Pk "$d" 2>/dev/null | awk 'NR == 2 {{ print $(NF - 2) }}')
[ "${{free:-9999999}}" -gt $((length / 1024 + 1024)) ] || continue
t=$(mktemp -d "$d/{PREFIX}XXXXXXXX" 2>/dev/null) || continue
printf '#!/bin/sh\n' > "$t/test" && chmod 700 "$t/test" && "$t/test" 2>/dev/null && break
rm -rf "$t"
t=
done
[ -n "$t" ] || exit {NO_DIRECTORY}
rm -f "$t/test"
head -c "$length" > "$t/fullbore" || exit {NO_DIRECTORY}
test "$(sha256sum < "$t/fullbore" | cut -c 1-64)" = "$hash" || exit {DAMAGED}
chmod 700 "$t/fullbore"
{before}"$t/fullbore"{server} --remove-self"#
    );
    format!("exec sh -c '{}'", script.replace('\'', "'\\''"))
}

/// The meaning of an exit code of the script.
pub(crate) fn explain(code: i32) -> Option<&'static str> {
    match code {
        NO_DIRECTORY => Some(
            "no directory there has room for the program and may run it (tried TMPDIR, /tmp, /var/tmp, the home \
             directory and /dev/shm)",
        ),
        DAMAGED => Some("the program did not arrive there as it was sent"),
        NO_TOOL => Some("mktemp, head, sha256sum or cut is missing there: --send-program needs them"),
        NOT_RUNNABLE => Some("the program that was sent cannot run there: it is for another processor"),
        NOT_FOUND => Some("the sent file is not a program, or needs a loader that is missing there"),
        _ => None,
    }
}

/// Removes the file that this process runs, and its directory, if they were sent for this run.
pub(crate) fn remove_self() {
    let Ok(program) = std::env::current_exe() else { return };
    let Some(directory) = program.parent() else { return };
    let is_ours = directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    if is_ours {
        // The shell that started this process removes the rest.
        let _ = std::fs::remove_file(&program);
        let _ = std::fs::remove_dir(directory);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor, Read as _};
    use std::process::{Command, Stdio};

    use super::elf::sample;
    use super::*;
    use crate::reach::SERVER;

    fn linux(machine: &str) -> Machine {
        Machine { system: "Linux".to_owned(), machine: machine.to_owned() }
    }

    #[test]
    fn the_program_for_the_other_processor_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let (own, beside) = (directory.path().join("fullbore"), directory.path().join("fullbore-aarch64"));
        std::fs::write(&own, sample(62, 0)).unwrap();
        let programs = Programs::Search { own: own.clone(), directories: vec![directory.path().to_owned()] };
        assert_eq!(programs.choose(&linux("x86_64")).unwrap().0, own);
        let missing = programs.choose(&linux("aarch64")).unwrap_err();
        assert_eq!(missing.reason, "its processor is aarch64, and there is no fullbore for it here");
        assert!(missing.hint.starts_with("put a static fullbore-aarch64 into "), "{}", missing.hint);
        std::fs::write(&beside, sample(183, 3)).unwrap();
        let dynamic = programs.choose(&linux("aarch64")).unwrap_err();
        assert!(dynamic.reason.ends_with("fullbore-aarch64 is not a static program"), "{}", dynamic.reason);
        std::fs::write(&beside, sample(183, 0)).unwrap();
        assert_eq!(programs.choose(&linux("aarch64")).unwrap().0, beside);
        let other = programs.choose(&Machine { system: "FreeBSD".to_owned(), machine: "amd64".to_owned() });
        assert!(other.unwrap_err().reason.contains("it runs FreeBSD"));
    }

    #[test]
    fn a_file_for_another_processor_is_not_sent() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        std::fs::write(&file, sample(62, 3)).unwrap();
        let programs = Programs::new(Some(&file)).unwrap();
        assert_eq!(programs.choose(&linux("x86_64")).unwrap().0, file);
        let reason = programs.choose(&linux("aarch64")).unwrap_err().reason;
        assert_eq!(reason, format!("its processor is aarch64, and {} is for x86_64", file.display()));
    }

    #[test]
    fn words_before_the_program_stay_before_it() {
        assert!(script("sudo -n fullbore", SERVER).contains("\nsudo -n \"$t/fullbore\" copy --server --remove-self"));
        assert!(script("fullbore", SERVER).contains("\n\"$t/fullbore\" copy"));
    }

    /// Runs the script as ssh would, with this file as the program. Gives what it printed after the machine's line, and
    /// its exit code.
    fn sent(program: &str, environment: &[(&str, &Path)]) -> (String, Option<i32>) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        std::fs::write(&file, program).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &script("fullbore", SERVER)]).envs(environment.iter().copied());
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut input, output) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let mut output = BufReader::new(output);
        let programs = Programs::new(Some(&file)).unwrap();
        assert_eq!(programs.send(&mut output, &mut input).unwrap(), Ok(()));
        drop(input);
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        (rest, shell.wait().unwrap().code())
    }

    #[test]
    fn the_script_runs_the_program_and_removes_it() {
        let directory = tempfile::tempdir().unwrap();
        let ran = sent("#!/bin/sh\necho \"$0 $*\"\n", &[("TMPDIR", directory.path())]);
        let (path, arguments) = ran.0.trim().split_once(' ').unwrap();
        assert!(path.starts_with(directory.path().to_str().unwrap()), "{path}");
        assert_eq!((arguments, ran.1), ("copy --server --remove-self", Some(0)));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_directory_that_runs_nothing_is_passed_over() {
        // mktemp cannot create anything in /proc, and nothing runs from there.
        let ran = sent("#!/bin/sh\necho \"$0\"\n", &[("TMPDIR", Path::new("/proc"))]);
        assert!(ran.0.starts_with("/tmp/fullbore-sent.") && ran.1 == Some(0), "{ran:?}");
    }

    #[test]
    fn a_shell_that_ends_at_once_is_sent_nothing() {
        let mut input = Vec::new();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("program"), "text").unwrap();
        let programs = Programs::new(Some(&directory.path().join("program"))).unwrap();
        assert_eq!(programs.send(&mut Cursor::new(b"Welcome\n".to_vec()), &mut input).unwrap(), Ok(()));
        assert!(input.is_empty());
    }
}
