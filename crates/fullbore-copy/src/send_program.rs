//! `--send-program`: the program goes along by ssh, is compared with its hash, runs from a temporary directory,
//! and removes itself as soon as it runs.

use std::fmt::Write as _;
use std::path::Path;

use fullbore_engine::run::error::CommandError;

/// Exit codes of the script for what can go wrong before the program runs. Others than a shell's own.
const NO_ROOM: i32 = 91;
const DAMAGED: i32 = 92;
/// As a shell says that a file cannot be run.
const NOT_RUNNABLE: i32 = 126;
/// Largest program that is sent, in bytes; ours has a tenth of it.
const PROGRAM_BYTES: u64 = 256 << 20;
/// How the temporary directory is called: `remove_self` removes no other.
const PREFIX: &str = "fullbore-sent.";

/// A program to be sent.
#[derive(Debug)]
pub(crate) struct Parcel {
    /// Its bytes.
    pub(crate) program: Vec<u8>,
    hash: String,
}

impl Parcel {
    /// This program, if it is linked statically, or another file.
    pub(crate) fn open(file: Option<&Path>) -> Result<Parcel, CommandError> {
        let path = file.unwrap_or(Path::new("/proc/self/exe"));
        let length = std::fs::metadata(path).map_err(|error| CommandError::disk(path, &error))?.len();
        if length > PROGRAM_BYTES {
            return Err(CommandError::usage(format_args!("{}: too large for a program", path.display())));
        }
        let program = std::fs::read(path).map_err(|error| CommandError::disk(path, &error))?;
        if file.is_none() && !is_static(&program) {
            return Err(CommandError::usage("this fullbore needs libraries of this machine, which may not be there")
                .hint("give it a statically linked one: --send-program=FILE"));
        }
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &program);
        let hash = digest.as_ref().iter().fold(String::new(), |mut hash, byte| {
            let _ = write!(hash, "{byte:02x}");
            hash
        });
        Ok(Parcel { program, hash })
    }

    /// What the shell on the other machine runs. `command` is that of `--remote-path`, of which all words but
    /// the last, for example `sudo`, stay.
    pub(crate) fn script(&self, command: &str) -> String {
        let before = command.trim_end().rsplit_once(' ').map_or(String::new(), |(before, _)| format!("{before} "));
        let script = format!(
            "d=$(mktemp -d \"${{TMPDIR:-/tmp}}/{PREFIX}XXXXXXXX\") || exit {NO_ROOM}; \
             trap 'rm -rf \"$d\"' EXIT; trap 'exit 1' HUP INT TERM; \
             head -c {length} > \"$d/fullbore\" || exit {NO_ROOM}; \
             test \"$(sha256sum < \"$d/fullbore\" | cut -c 1-64)\" = {hash} || exit {DAMAGED}; \
             chmod 700 \"$d/fullbore\"; {before}\"$d/fullbore\" copy --server --remove-self",
            length = self.program.len(),
            hash = self.hash,
        );
        format!("exec sh -c '{}'", script.replace('\'', "'\\''"))
    }
}

/// What an exit code of the script means.
pub(crate) fn explain(code: i32) -> Option<&'static str> {
    match code {
        NO_ROOM => Some("there is no room for the program in the temporary directory there (TMPDIR, or /tmp)"),
        DAMAGED => Some("the program did not arrive there as it was sent"),
        NOT_RUNNABLE => Some(
            "the program that was sent cannot be run there: another processor, or a temporary directory from which \
             nothing may be run (set TMPDIR there to another one)",
        ),
        _ => None,
    }
}

/// Removes the file that this process runs, and its directory, if they were sent for this run.
pub(crate) fn remove_self() {
    let Ok(program) = std::env::current_exe() else { return };
    let Some(directory) = program.parent() else { return };
    let is_ours = directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    if is_ours {
        // What is left, the shell that started us removes.
        let _ = std::fs::remove_file(&program);
        let _ = std::fs::remove_dir(directory);
    }
}

/// Whether a program needs no loader: it has no `PT_INTERP` (elf(5)). Files that are no 64-bit ELF do.
fn is_static(program: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let u16_at = |at: usize| Some(u16::from_le_bytes(program.get(at..at + 2)?.try_into().ok()?));
    let headers = || {
        let table = u64::from_le_bytes(program.get(32..40)?.try_into().ok()?) as usize;
        let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
        let kind = |number: usize| {
            let at = table.checked_add(number * size)?;
            Some(u32::from_le_bytes(program.get(at..at.checked_add(4)?)?.try_into().ok()?))
        };
        (0..count).map(kind).collect::<Option<Vec<u32>>>()
    };
    program.starts_with(b"\x7fELF\x02\x01") && headers().is_some_and(|kinds| !kinds.contains(&PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_a_loader_is_told_from_one_that_does_not() {
        let mut elf = vec![0; 64 + 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[32], elf[54], elf[56]) = (64, 56, 1);
        assert!(is_static(&elf));
        elf[64] = 3;
        assert!(!is_static(&elf) && !is_static(&elf[..100]) && !is_static(b"#!/bin/sh\n"));
    }

    #[test]
    fn what_stands_before_the_program_stays_before_it() {
        let parcel = Parcel { program: vec![1; 10], hash: "ab".to_owned() };
        assert!(parcel.script("sudo -n fullbore").contains("sudo -n \"$d/fullbore\" copy --server --remove-self"));
        assert!(parcel.script("fullbore").contains("head -c 10"));
    }
}
