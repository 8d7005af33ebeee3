//! A nats-server that a test starts, kills, freezes and robs of its data.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server with JetStream, which ends with the test.
pub struct Server {
    process: Child,
    port: u16,
    directory: tempfile::TempDir,
    is_tls: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An authority of certificates, which openssl makes.
pub struct Authority {
    /// Has `ca.pem`, and NAME.pem and NAME.key of each certificate.
    pub directory: tempfile::TempDir,
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

impl Authority {
    #[allow(clippy::new_without_default, reason = "it runs a program")]
    pub fn new() -> Authority {
        let authority = Authority { directory: tempfile::tempdir().unwrap() };
        let uses = "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign";
        authority.openssl(&format!("req -x509 {KEY} -keyout ca.key -out ca.pem -days 2 -subj /CN=test {uses}"));
        authority
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        let output = command.current_dir(self.directory.path()).args(arguments.split(' ')).output().expect("openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a certificate for these names, as `DNS:localhost`, and gives the lines for a server that shows it.
    pub fn certify(&self, name: &str, names: &str) -> String {
        std::fs::write(self.file("names"), format!("subjectAltName={names}\n")).unwrap();
        self.openssl(&format!("req {KEY} -keyout {name}.key -out request -subj /CN={name}"));
        self.openssl(&format!("x509 -req -in request -CA ca.pem -CAkey ca.key -days 2 -extfile names -out {name}.pem"));
        let file = |ending: &str| self.file(&format!("{name}.{ending}")).display().to_string();
        format!("cert_file: \"{}\", key_file: \"{}\"", file("pem"), file("key"))
    }
}

/// The program that tests start.
pub fn program() -> PathBuf {
    let directory = match std::env::var_os("FULLBORE_TEST_NATS_SERVER") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("nats-server"),
    };
    let path = directory.join("nats-server");
    assert!(
        path.exists(),
        "a NATS server is needed at {}: `script/nats-server` builds it, FULLBORE_TEST_NATS_SERVER names another place",
        path.display()
    );
    path
}

fn spawn(directory: &Path) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(directory.join("log")).unwrap();
    let mut command = Command::new(program());
    command.arg("--config").arg(directory.join("nats.conf"));
    command.env("FULLBORE_PLANNER_PASSWORD", "planner-password").env("FULLBORE_WORKER_PASSWORD", "worker-password");
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

impl Server {
    /// Starts a server with these lines in its configuration.
    pub fn start(configuration: &str) -> Server {
        Server::start_in(tempfile::tempdir().unwrap(), configuration, false)
    }

    /// Starts a server with a certificate for loopback.
    pub fn start_with_tls() -> Server {
        let authority = Authority::new();
        let tls = authority.certify("server", "IP:127.0.0.1,DNS:localhost");
        Server::start_at(authority.directory, &format!("tls {{ {tls} }}\n"))
    }

    /// Starts a server whose configuration may name files in this directory. Its address is that of a server with TLS.
    pub fn start_at(directory: tempfile::TempDir, configuration: &str) -> Server {
        Server::start_in(directory, configuration, true)
    }

    fn start_in(directory: tempfile::TempDir, configuration: &str, is_tls: bool) -> Server {
        let port = fullbore_testkit::ports::free();
        let mut text = format!("listen: \"127.0.0.1:{port}\"\n");
        // Packagers show a configuration with JetStream.
        if !configuration.contains("jetstream {") {
            let store = directory.path().join("store");
            writeln!(text, "jetstream {{ store_dir: \"{}\", max_file_store: 1GB }}", store.display()).unwrap();
        }
        text.push_str(configuration);
        std::fs::write(directory.path().join("nats.conf"), text).unwrap();
        let process = spawn(directory.path());
        let mut server = Server { process, port, directory, is_tls };
        server.wait();
        server
    }

    /// Waits until the server answers; JetStream is up before it listens.
    fn wait(&mut self) {
        let begun = Instant::now();
        loop {
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
                let mut greeting = [0; 4];
                stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                if stream.read_exact(&mut greeting).is_ok() && &greeting == b"INFO" {
                    let _ = stream.write_all(b"");
                    return;
                }
            }
            assert_eq!(self.process.try_wait().unwrap(), None, "the server has ended: {}", self.log());
            assert!(begun.elapsed() < Duration::from_secs(30), "no server: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", if self.is_tls { "tls" } else { "nats" }, self.port)
    }

    /// The certificate of its authority.
    pub fn authority(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// A file in its directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// As by SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the killed server again, at the same port and with its data.
    pub fn start_again(&mut self) {
        self.process = spawn(self.directory.path());
        self.wait();
    }

    /// Removes the data of the killed server.
    pub fn lose_data(&self) {
        std::fs::remove_dir_all(self.directory.path().join("store")).unwrap();
    }

    /// Sends a signal: STOP or CONT.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.process.id().to_string()).status().unwrap();
        assert!(status.success());
    }
}
