//! The descendants of this process.
//!
//! With `PR_SET_CHILD_SUBREAPER` set, a process whose parent ends becomes a child of this process, so
//! that none leaves the tree. `Seccomp: 2` in `/proc` would prove nothing: in a container
//! every process has some filter.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use rustix::process::{Pid, Signal};

/// A process of the command that is still running.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process id, as in `/proc`.
    pub pid: i32,
    /// Name of the program, at most 15 bytes.
    pub name: String,
    /// Start time in ticks since boot, which distinguishes processes with the same id.
    pub started: u64,
}

impl Process {
    /// Sends a signal; the process may have ended.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Descendants of this process that start after a moment.
#[derive(Debug)]
pub(super) struct Descendants {
    own: i32,
    /// Earlier descendants by id and start time. Names are not compared, because exec changes them.
    earlier: HashSet<(i32, u64)>,
}

impl Descendants {
    /// Makes this process the parent of orphans and remembers its present descendants: a shell that executed it may
    /// have left some.
    pub(super) fn watch() -> io::Result<Descendants> {
        let own = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(own))?;
        let own = own.as_raw_nonzero().get();
        let earlier = descendants(own).into_iter().map(|process| (process.pid, process.started)).collect();
        Ok(Descendants { own, earlier })
    }

    /// Living descendants.
    pub(super) fn living(&self) -> Vec<Process> {
        let mut living = descendants(self.own);
        living.retain(|process| !self.earlier.contains(&(process.pid, process.started)));
        living
    }
}

/// All living descendants of process `of`, without zombies.
fn descendants(of: i32) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<(Process, bool)>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that has ended since does not count.
        let Ok(stat) = fs::read(entry.path().join("stat")) else { continue };
        if let Some(Stat { name, is_over, parent, started }) = parse(&String::from_utf8_lossy(&stat)) {
            children.entry(parent).or_default().push((Process { pid, name, started }, is_over));
        }
    }
    let (mut found, mut parents) = (Vec::new(), vec![of]);
    while let Some(parent) = parents.pop() {
        for (process, is_over) in children.remove(&parent).unwrap_or_default() {
            parents.push(process.pid);
            if !is_over {
                found.push(process);
            }
        }
    }
    found.sort_by_key(|process| process.pid);
    found
}

struct Stat {
    name: String,
    is_over: bool,
    parent: i32,
    started: u64,
}

/// Parses `PID (NAME) STATE PARENT …`. The name may contain anything and ends with the last parenthesis.
fn parse(stat: &str) -> Option<Stat> {
    let (head, rest) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat {
        name: name.to_owned(),
        is_over: matches!(*fields.first()?, "Z" | "X" | "x"),
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_rest() {
        let stat = parse("7 (a) Z 1) S 42 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1234 0").unwrap();
        assert_eq!((stat.name.as_str(), stat.is_over, stat.parent, stat.started), ("a) Z 1", false, 42, 1234));
        assert!(parse("7 (a) S").is_none());
        assert!(parse("").is_none());
    }

    #[test]
    fn a_child_is_found() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(descendants(own).iter().any(|process| process.pid == pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(descendants(own).iter().all(|process| process.pid != pid));
    }
}
