//! Real servers for one test binary, and ours as their client.

#[path = "../harness/schema.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
pub mod schema;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use fullbore_testkit::random::noise as content;
use serde_json::Value;

/// What a command gave.
#[derive(Debug)]
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    pub fn lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }

    /// The events of `--json`, which are as the schema says.
    pub fn events(&self) -> Vec<Value> {
        schema::events("put or get", &self.stdout)
    }

    /// The last of them.
    pub fn summary(&self) -> Value {
        self.events().pop().unwrap_or_else(|| panic!("no events: {}", self.stderr))
    }
}

/// Our program, with an environment of its own and keys that the servers take.
pub struct Client {
    pub endpoint: String,
    pub home: tempfile::TempDir,
    pub variables: Vec<(String, String)>,
}

impl Client {
    pub fn new(endpoint: &str) -> Client {
        let variables = [("AWS_ACCESS_KEY_ID", "fullbore"), ("AWS_SECRET_ACCESS_KEY", "only-for-tests")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Client { endpoint: endpoint.to_owned(), home: tempfile::tempdir().unwrap(), variables }
    }

    pub fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("HOME", self.home.path())
            .env("PATH", "/usr/bin:/bin")
            .args(arguments)
            .args(["--endpoint", &self.endpoint])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Output {
        finish(self.command(arguments).spawn().unwrap())
    }

    /// As `run`, with this on stdin.
    pub fn run_with<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
        mut input: impl Read + Send + 'static,
    ) -> Output {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feeding = std::thread::spawn(move || std::io::copy(&mut input, &mut stdin).map(drop));
        let output = finish(child);
        let _ = feeding.join().unwrap();
        output
    }

    /// An object's content, by our `get`.
    pub fn get(&self, address: &str) -> Vec<u8> {
        let path = self.home.path().join("got");
        let output = self.run(["get", "-o", path.to_str().unwrap(), address]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        assert!(!output.stderr.contains("warning"), "{}", output.stderr);
        std::fs::read(path).unwrap()
    }

    /// A file to be put.
    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }
}

/// As Ctrl-C does, once it is listened for.
pub fn interrupt(child: &Child) {
    fullbore_testkit::process::wait_for_interrupt_handler(child.id());
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// Time for anything here; a command that does not end is a failure.
const LIMIT: Duration = Duration::from_secs(300);

pub fn finish(child: Child) -> Output {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let watching = std::thread::spawn(move || {
        let late = end.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if late {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        late
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    assert!(!watching.join().unwrap(), "no end: {}", String::from_utf8_lossy(&output.stderr));
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A server that runs, and ends with the test.
pub struct Server {
    process: Child,
    command: Command,
    pub url: String,
    pub directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// Waits until it listens.
    fn wait(&mut self) {
        let begun = Instant::now();
        while TcpStream::connect(self.url.trim_start_matches("http://")).is_err() {
            assert_eq!(self.process.try_wait().unwrap(), None, "the server has ended");
            let log = || std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < Duration::from_secs(120), "the server does not start: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// As by SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the killed server again, at the same port and with its data.
    pub fn start_again(&mut self) {
        self.process = self.command.spawn().unwrap();
        self.wait();
    }
}

pub fn program(name: &str) -> PathBuf {
    let servers = match std::env::var_os("FULLBORE_TEST_S3_SERVERS") {
        Some(servers) => PathBuf::from(servers),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("s3-servers"),
    };
    let path = servers.join(name);
    assert!(
        path.exists(),
        "an S3 server is needed at {}: `script/s3-servers` gets it, FULLBORE_TEST_S3_SERVERS names another place",
        path.display()
    );
    path
}

fn start(mut command: Command, port: u16, directory: tempfile::TempDir) -> Server {
    let log = std::fs::File::create(directory.path().join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let process = command.spawn().unwrap();
    let mut server = Server { process, command, url: format!("http://127.0.0.1:{port}"), directory };
    server.wait();
    server
}

/// versitygw over a directory, with an empty bucket `bucket`. Objects are files of that directory.
pub fn versitygw() -> Server {
    versitygw_over(&["data", "data/bucket"], |_| Vec::new())
}

/// versitygw that keeps connections open, as object stores do. By default it closes them after each answer.
pub fn versitygw_with_keep_alive() -> Server {
    versitygw_over(&["data", "data/bucket"], |_| vec!["--keep-alive".into()])
}

/// versitygw without a bucket, with room for users. Over a bucket that was not made through it, it cannot copy for them.
pub fn versitygw_with_users() -> Server {
    versitygw_over(&["data", "users"], |directory| vec!["--iam-dir".into(), directory.join("users").into()])
}

/// versitygw with TLS, which keeps connections open: the certificate is `cert.pem` in its directory. Its `url` is without
/// TLS, as all here.
pub fn versitygw_with_tls() -> Server {
    versitygw_over(&["data", "data/bucket"], |directory| {
        let [certificate, key] = ["cert.pem", "key.pem"].map(|name| directory.join(name));
        let mut openssl = Command::new("openssl");
        openssl.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            "/CN=store",
        ]);
        openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
        assert!(openssl.output().unwrap().status.success());
        vec!["--keep-alive".into(), "--cert".into(), certificate.into(), "--key".into(), key.into()]
    })
}

fn versitygw_over(directories: &[&str], flags: impl FnOnce(&Path) -> Vec<OsString>) -> Server {
    let program = program("versitygw");
    // Its metadata are extended attributes, which not every /tmp has.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    directories.iter().for_each(|name| std::fs::create_dir(directory.path().join(name)).unwrap());
    let data = directory.path().join("data");
    let port = fullbore_testkit::ports::free();
    let mut command = Command::new(program);
    command.env_clear().args([
        "--access",
        "fullbore",
        "--secret",
        "only-for-tests",
        "--region",
        "us-east-1",
        "--quiet",
    ]);
    command.args(["--port", &format!("127.0.0.1:{port}")]).args(flags(directory.path())).arg("posix").arg(&data);
    start(command, port, directory)
}

/// MinIO over a directory, with an empty bucket `bucket`.
pub fn minio() -> Server {
    let program = program("minio");
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let data = directory.path().join("data");
    std::fs::create_dir_all(data.join("bucket")).unwrap();
    let port = fullbore_testkit::ports::free();
    let mut command = Command::new(program);
    command.env_clear().env("HOME", directory.path()).env("PATH", "/usr/bin:/bin");
    command.env("MINIO_ROOT_USER", "fullbore").env("MINIO_ROOT_PASSWORD", "only-for-tests");
    command.args(["server", "--quiet", "--address", &format!("127.0.0.1:{port}")]).arg(data);
    start(command, port, directory)
}

/// Keys of the form that Garage takes.
pub const GARAGE_KEYS: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", "GK0123456789abcdef01234567"),
    ("AWS_SECRET_ACCESS_KEY", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"),
];

/// Garage with one node, in its own region `garage`, with an empty bucket `bucket`.
pub fn garage() -> Server {
    let program = program("garage");
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (api, rpc) = (fullbore_testkit::ports::free(), fullbore_testkit::ports::free());
    let at = |name: &str| directory.path().join(name).display().to_string();
    let config = format!(
        "metadata_dir = {:?}\ndata_dir = {:?}\ndb_engine = \"sqlite\"\nreplication_factor = 1\n\
         rpc_bind_addr = \"127.0.0.1:{rpc}\"\nrpc_public_addr = \"127.0.0.1:{rpc}\"\nrpc_secret = \"{}\"\n\
         [s3_api]\ns3_region = \"garage\"\napi_bind_addr = \"127.0.0.1:{api}\"\nroot_domain = \".s3.localhost\"\n",
        at("meta"),
        at("data"),
        "5".repeat(64)
    );
    std::fs::write(directory.path().join("garage.toml"), config).unwrap();
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("GARAGE_DEFAULT_BUCKET", "bucket");
    command.env("GARAGE_DEFAULT_ACCESS_KEY", GARAGE_KEYS[0].1).env("GARAGE_DEFAULT_SECRET_KEY", GARAGE_KEYS[1].1);
    command.args(["--config", &at("garage.toml"), "server", "--single-node", "--default-bucket"]);
    start(command, api, directory)
}

/// moto, with an empty bucket `bucket`.
pub fn moto() -> Server {
    let directory = tempfile::tempdir().unwrap();
    let port = fullbore_testkit::ports::free();
    let mut command = Command::new(program("moto/bin/moto_server"));
    command.env_clear().env("PATH", "/usr/bin:/bin").args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    let server = start(command, port, directory);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "PUT /bucket HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
    server
}
