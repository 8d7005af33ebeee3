//! The stock client's code, asked for its answers (`oracle.py`).

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// The Python that has tahoe-lafs: `script/test` makes it.
fn python() -> PathBuf {
    let venv = match std::env::var_os("FULLBORE_TEST_TAHOE_VENV") {
        Some(venv) => PathBuf::from(venv),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tahoe-venv"),
    };
    let python = venv.join("bin/python");
    assert!(
        python.exists(),
        "the stock client is needed at {}: `script/tahoe-venv` makes it, FULLBORE_TEST_TAHOE_VENV names another place",
        venv.display()
    );
    python
}

/// A process that answers.
pub struct Oracle {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Oracle {
    pub fn start() -> Oracle {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle.py");
        let mut child = Command::new(python())
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python of the venv starts");
        let ask = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Oracle { child, ask, answers }
    }

    pub fn ask(&mut self, request: &Value) -> Value {
        writeln!(self.ask, "{request}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the oracle failed at {request}"))
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
