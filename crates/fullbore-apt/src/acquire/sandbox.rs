//! Drops root's privileges to those of `APT::Sandbox::User`.
//!
//! APT starts methods with its own privileges; each drops them after receiving the configuration. The system calls affect
//! this thread only, so there must be no other thread yet.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Gid, Uid};

use super::configuration::Configuration;

/// Bytes read of /etc/passwd. A guess far above real ones.
const PASSWD_BYTES_MAX: u64 = 16 << 20;

/// Why the privileges could not be dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The user does not exist.
    #[error("cannot drop privileges: no user {0}")]
    NoUser(String),
    /// Other threads would keep the privileges.
    #[error("cannot drop privileges: {0} threads are running already")]
    Threads(usize),
    /// A system call failed.
    #[error("cannot drop privileges to those of user {user}: {operation}: {source}")]
    System {
        /// Name of the user.
        user: String,
        /// Name of the system call.
        operation: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// The process could regain root's privileges.
    #[error("privileges dropped to those of user {0} could be regained")]
    Reversible(String),
}

/// The user and group whose privileges a method keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Number of the user.
    pub uid: u32,
    /// Number of the user's own group.
    pub gid: u32,
}

impl User {
    /// Looks a user up by name in /etc/passwd or, for users of directory services, with `getent`.
    pub fn by_name(name: &str) -> Option<User> {
        if let Some(user) = User::in_file(Path::new("/etc/passwd"), name) {
            return Some(user);
        }
        let output = Command::new("getent").args(["passwd", "--", name]).stdin(Stdio::null()).output().ok()?;
        User::in_passwd(&String::from_utf8_lossy(&output.stdout), name)
    }

    /// Looks a user up in a file such as /etc/passwd.
    pub fn in_file(path: &Path, name: &str) -> Option<User> {
        let mut text = Vec::new();
        File::open(path).ok()?.take(PASSWD_BYTES_MAX).read_to_end(&mut text).ok()?;
        User::in_passwd(&String::from_utf8_lossy(&text), name)
    }

    /// `name:password:uid:gid:…` lines.
    fn in_passwd(text: &str, name: &str) -> Option<User> {
        let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        // The system calls take all ones for "no change".
        (uid != u32::MAX && gid != u32::MAX).then_some(User { uid, gid })
    }
}

/// Drops root's privileges to those of `APT::Sandbox::User`; without effect for other users. As in APT, an empty
/// setting, `root`, or `Debug::NoDropPrivs` keeps them. Programs started later can never gain privileges.
///
/// # Errors
/// [`SandboxError`] if the privileges may remain. The process must end then.
pub(crate) fn drop_privileges(configuration: &Configuration) -> Result<(), SandboxError> {
    if configuration.bool("Debug::NoDropPrivs", false) {
        return Ok(());
    }
    // Older kernels refuse; this is only a second barrier.
    let _ = rustix::thread::set_no_new_privs(true);
    let name = configuration.get_or("APT::Sandbox::User", "");
    if name.is_empty() || name == "root" || !rustix::process::getuid().is_root() {
        return Ok(());
    }
    let user = User::by_name(name).ok_or_else(|| SandboxError::NoUser(name.to_owned()))?;
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(SandboxError::Threads(threads));
    }
    become_user(name, user)
}

fn become_user(name: &str, user: User) -> Result<(), SandboxError> {
    let failed = |operation: &'static str| {
        move |errno: rustix::io::Errno| SandboxError::System { user: name.to_owned(), operation, source: errno.into() }
    };
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    // The groups first: later the process may not change them.
    rustix::thread::set_thread_groups(&[gid]).map_err(failed("setgroups"))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed("setresgid"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed("setresuid"))?;
    if !uid.is_root() && rustix::thread::set_thread_uid(Uid::ROOT).is_ok() {
        return Err(SandboxError::Reversible(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\n_apt_x:x:1:1::/:\n_apt:x:42:65534::/nonexistent:/bin/false\nbad:x:\n";
        assert_eq!(User::in_passwd(passwd, "_apt"), Some(User { uid: 42, gid: 65534 }));
        assert_eq!(User::in_passwd(passwd, "bad"), None);
        assert_eq!(User::in_passwd(passwd, ""), None);
        assert_eq!(User::by_name("root"), Some(User { uid: 0, gid: 0 }));
    }

    #[test]
    fn nothing_is_dropped_where_apt_drops_nothing() {
        let before = rustix::process::getuid();
        for (name, value) in [("APT::Sandbox::User", ""), ("APT::Sandbox::User", "root"), ("Debug::NoDropPrivs", "1")] {
            let mut configuration = Configuration::new();
            configuration.set(name, value);
            drop_privileges(&configuration).unwrap();
        }
        assert_eq!(rustix::process::getuid(), before);
    }

    #[test]
    fn a_user_that_is_not_there_is_an_error() {
        let mut configuration = Configuration::new();
        configuration.set("APT::Sandbox::User", "no-such-user-here");
        let result = drop_privileges(&configuration);
        assert_eq!(result.is_err(), rustix::process::getuid().is_root());
    }
}
