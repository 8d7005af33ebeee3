//! Two network namespaces with a cable between them, and a real sshd in the second one.
#![allow(dead_code)] // each test takes what it needs

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Where sshd listens; no other port is needed of it.
const PORT: u16 = 22022;
/// Time that sshd has to come up in, on a busy machine.
const START_TIME: Duration = Duration::from_secs(60);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Two machines, as far as the network goes.
pub struct Lab {
    directory: TempDir,
    near: String,
    far: String,
    sshd: Child,
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} (needs iproute2, iptables, openssh-server, root): {text}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn ip(arguments: &str) {
    run(Command::new("ip").args(arguments.split(' ')));
}

impl Lab {
    /// Up, with keys of its own.
    pub fn new() -> Lab {
        assert!(rustix::process::geteuid().is_root(), "network namespaces: run as root (script/test does)");
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let tag = format!("{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (near, far) = (format!("fbn{tag}"), format!("fbf{tag}"));
        ip(&format!("netns add {near}"));
        ip(&format!("netns add {far}"));
        ip(&format!("-n {near} link add cable type veth peer name cable netns {far}"));
        for (namespace, address) in [(&near, "10.99.0.1/24"), (&far, "10.99.0.2/24")] {
            ip(&format!("-n {namespace} addr add {address} dev cable"));
            ip(&format!("-n {namespace} link set cable up"));
            ip(&format!("-n {namespace} link set lo up"));
        }
        for key in ["host", "user"] {
            run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]));
        }
        std::fs::copy(path("user.pub"), path("authorized")).unwrap();
        std::fs::create_dir_all("/run/sshd").unwrap();
        let settings = format!(
            "Port {PORT}\nListenAddress 10.99.0.2\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PermitRootLogin prohibit-password\nPidFile none\nMaxStartups 50\n",
            path("host"),
            path("authorized")
        );
        std::fs::write(path("sshd_config"), settings).unwrap();
        let sshd = Command::new("ip")
            .args(["netns", "exec", &far, "/usr/sbin/sshd", "-D", "-e", "-f", &path("sshd_config")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lab = Lab { directory, near, far, sshd };
        let until = Instant::now() + START_TIME;
        while !lab.ssh(&["true"]).status.success() {
            assert!(Instant::now() < until, "sshd does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        lab
    }

    /// The user's ssh, as `-e` takes it.
    fn rsh(&self) -> String {
        let key = self.directory.path().join("user");
        format!(
            "ssh -F none -p {PORT} -i {} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
             -o BatchMode=yes -o ConnectTimeout=10",
            key.display()
        )
    }

    fn ssh(&self, command: &[&str]) -> Output {
        let mut line = Command::new("ip");
        line.args(["netns", "exec", &self.near]).args(self.rsh().split(' ')).arg("root@10.99.0.2").args(command);
        line.output().unwrap()
    }

    /// A rule of the far machine's firewall for connections to anything but sshd.
    pub fn firewall(&self, namespace_is_near: bool, verdict: &str) {
        let namespace = if namespace_is_near { &self.near } else { &self.far };
        let rule = format!("-A INPUT -p tcp --syn ! --dport {PORT} -j {verdict}");
        run(Command::new("ip").args(["netns", "exec", namespace, "iptables"]).args(rule.split(' ')));
    }

    /// Takes all rules of both firewalls away.
    pub fn open(&self) {
        for namespace in [&self.near, &self.far] {
            run(Command::new("ip").args(["netns", "exec", namespace, "iptables", "-F"]));
        }
    }

    /// The program on the near machine, to be started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_fullbore");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.near, program, "copy", "-e", &self.rsh(), "--remote-path", program]);
        command.args(arguments).current_dir(self.directory.path());
        command
    }

    /// The program on the near machine, as a probe.
    pub fn probe(&self, arguments: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_fullbore");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.near, program, "probe", "-e", &self.rsh(), "--remote-path", program]);
        command.args(arguments).current_dir(self.directory.path());
        command
    }

    /// Processes on the far machine that serve a copy or a probe.
    pub fn servers(&self) -> Vec<i32> {
        let pids = run(Command::new("ip").args(["netns", "pids", &self.far]));
        let is_server = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.first().is_some_and(|program| program.ends_with(b"fullbore")) && words.contains(&&b"--server"[..])
        };
        pids.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_server).collect()
    }

    /// Runs it; it ends well. Gives what it prints.
    pub fn copy(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        let text = super::harness::said(&output);
        assert_eq!(output.status.code(), Some(0), "fullbore copy {arguments:?}: {text}");
        text
    }

    /// A path on the far machine, for the command line.
    pub fn there(&self, path: &Path) -> String {
        format!("root@10.99.0.2:{}", path.display())
    }

    /// Cuts all TCP connections but sshd's listening.
    pub fn cut(&self) {
        // Both ends hear of it at once, as when a router forgets them.
        let rule = "-I INPUT -p tcp -j REJECT --reject-with tcp-reset";
        for verb in ["-I", "-D"] {
            let rule = rule.replacen("-I", verb, 1);
            run(Command::new("ip").args(["netns", "exec", &self.far, "iptables"]).args(rule.split(' ')));
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// Connections of the far machine besides those of sshd.
    pub fn connections(&self) -> usize {
        let text = run(Command::new("ip").args(["netns", "exec", &self.far, "ss", "-Htn", "state", "established"]));
        text.lines().filter(|line| !line.contains(&format!(":{PORT}"))).count()
    }

    /// Whether anything listens on the far machine besides sshd.
    pub fn is_quiet(&self) -> bool {
        let text = run(Command::new("ip").args(["netns", "exec", &self.far, "ss", "-Hltn"]));
        text.lines().all(|line| line.contains(&format!(":{PORT}")))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
        for namespace in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
    }
}
