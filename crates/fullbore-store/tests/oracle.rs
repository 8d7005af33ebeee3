//! Our encoder beside the stock one: the same caps, and shares that are the same byte for byte.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use fullbore_engine::digest::Sha256;
use fullbore_store::lafs::cap::Cap;
use fullbore_store::lafs::code::Code;
use fullbore_store::lafs::encode::{convergent_key, encode_whole};
use fullbore_store::lafs::extension::Extension;
use fullbore_store::lafs::geometry::{Encoding, Geometry};
use fullbore_store::lafs::layout::Layout;
use fullbore_store::lafs::merkle::proof_nodes;
use serde_json::{Value, json};

/// The Python that has tahoe-lafs: `script/test` makes it.
fn python() -> PathBuf {
    let venv = match std::env::var_os("FULLBORE_TAHOE_VENV") {
        Some(venv) => PathBuf::from(venv),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tahoe-venv"),
    };
    let python = venv.join("bin/python");
    assert!(
        python.exists(),
        "the stock client is needed at {}: `script/tahoe-venv` makes it, FULLBORE_TAHOE_VENV names another place",
        venv.display()
    );
    python
}

struct Oracle {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Oracle {
    fn start() -> Oracle {
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

    fn ask(&mut self, request: &Value) -> Value {
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

/// Bytes that look like chance and are always the same.
fn content(size: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

fn compare(oracle: &mut Oracle, dir: &Path, (needed, total): (u16, u16), size: usize, segment: u64, secret: &[u8]) {
    let data = content(size);
    let file = dir.join("file");
    std::fs::write(&file, &data).unwrap();
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let answer = oracle.ask(&json!({"file": file, "k": needed, "n": total, "segment": segment, "secret": hex}));
    let geometry = Geometry::new(Encoding::new(needed, 1, total).unwrap(), size as u64, segment).unwrap();
    let key = convergent_key(&geometry, secret, &data);
    let (cap, shares) = encode_whole(geometry, key, Arc::new(Code::new(needed, total)), &data).unwrap();
    let context = format!("{needed} of {total}, {size} bytes, segments of {segment}");
    assert_eq!(Cap::Chk(cap).to_text(), answer["cap"].as_str().unwrap(), "{context}");
    let sums: Vec<String> = shares.iter().map(|share| Sha256::of(share).to_hex().as_str().to_owned()).collect();
    assert_eq!(json!(sums), answer["shares"], "shares, {context}");
}

#[test]
fn caps_and_shares_are_those_of_the_stock_encoder() {
    matrix(1 << 20);
}

#[test]
fn also_with_segments_of_the_size_of_old() {
    matrix(128 << 10);
}

fn matrix(segment: u64) {
    let mut oracle = Oracle::start();
    let dir = tempfile::tempdir().unwrap();
    let secrets: [&[u8]; 2] = [b"", b"a secret of some bytes"];
    let whole = segment as usize;
    for code in [(1, 1), (1, 3), (2, 3), (3, 10), (71, 255), (101, 256)] {
        for size in [1, 55, 56, whole - 1, whole, whole + 1, 3 * whole + 777, (8 << 20) + 1] {
            // The secret goes into the key alone: one of the large ones will do.
            for secret in if size > 2 << 20 { &secrets[1..] } else { &secrets[..] } {
                compare(&mut oracle, dir.path(), code, size, segment, secret);
            }
        }
    }
}

#[test]
fn headers_of_huge_shares_are_those_of_the_stock_layout() {
    let mut oracle = Oracle::start();
    for (needed, total, size) in [(3, 10, 3 << 32), (3, 10, (3 << 32) - 1000), (1, 1, 1 << 40), (101, 256, 1 << 45)] {
        let geometry = Geometry::new(Encoding::new(needed, 1, total).unwrap(), size, 1 << 20).unwrap();
        let layout = Layout::new(&geometry);
        assert_eq!(layout.version, 2);
        let proof = proof_nodes(usize::from(total), 0).len();
        let numbers = [
            geometry.share_data(),
            geometry.block_size(),
            geometry.segments,
            proof as u64,
            Extension::length(geometry),
        ];
        let answer = oracle.ask(&json!({"header": numbers}));
        let hex: String = layout.header().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(answer["header"], json!(hex));
    }
}
