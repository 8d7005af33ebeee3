//! Web servers as they are installed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fullbore_testkit::process::clean_command;

/// A server program, ended with the test.
pub struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // A master that is asked ends its workers too.
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

fn answers(port: u16, daemon: &mut Daemon, log: &Path) {
    let start = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        let ended = daemon.0.try_wait().unwrap();
        let text = || std::fs::read_to_string(log).unwrap_or_default();
        assert!(
            ended.is_none() && start.elapsed() < Duration::from_secs(20),
            "server on {port}: {ended:?}\n{}",
            text()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// nginx with this root, and its address.
pub fn nginx(directory: &Path, root: &Path) -> (Daemon, String) {
    let port = fullbore_testkit::ports::free();
    let at = directory.join("nginx");
    std::fs::create_dir(&at).unwrap();
    let here = at.display();
    let text = format!(
        "daemon off; pid {here}/pid; error_log {here}/error.log; user root;\nevents {{}}\nhttp {{ access_log off;\n\
         client_body_temp_path {here}/a; proxy_temp_path {here}/b; fastcgi_temp_path {here}/c; uwsgi_temp_path {here}/d;\n\
         scgi_temp_path {here}/e; server {{ listen 127.0.0.1:{port}; root {}; }} }}\n",
        root.display()
    );
    let text = if rustix::process::geteuid().is_root() { text } else { text.replace(" user root;", "") };
    std::fs::write(at.join("conf"), text).unwrap();
    let mut child = clean_command("/usr/sbin/nginx");
    child.arg("-c").arg(at.join("conf")).arg("-e").arg(at.join("error.log"));
    let mut daemon = Daemon(child_of(&mut child, &at));
    answers(port, &mut daemon, &at.join("said"));
    (daemon, format!("http://127.0.0.1:{port}"))
}

/// Apache with this root, and its address.
pub fn apache(directory: &Path, root: &Path) -> (Daemon, String) {
    let port = fullbore_testkit::ports::free();
    let at = directory.join("apache2");
    std::fs::create_dir(&at).unwrap();
    let here = at.display();
    let modules = "/usr/lib/apache2/modules";
    let text = format!(
        "ServerRoot {here}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {here}/pid\nErrorLog {here}/error.log\n\
         LoadModule mpm_event_module {modules}/mod_mpm_event.so\nLoadModule authz_core_module {modules}/mod_authz_core.so\n\
         DocumentRoot {0}\n<Directory {0}>\nRequire all granted\nOptions FollowSymLinks\n</Directory>\n",
        root.display()
    );
    std::fs::write(at.join("conf"), text).unwrap();
    let mut child = clean_command("/usr/sbin/apache2");
    child.arg("-DFOREGROUND").arg("-f").arg(at.join("conf"));
    let mut daemon = Daemon(child_of(&mut child, &at));
    answers(port, &mut daemon, &at.join("said"));
    (daemon, format!("http://127.0.0.1:{port}"))
}

fn child_of(command: &mut Command, at: &Path) -> Child {
    let said = std::fs::File::create(at.join("said")).unwrap();
    command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap()
}
