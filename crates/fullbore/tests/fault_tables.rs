//! Each fault of the tables in docs/design/0021-mirror-in-a-bucket.md and 0023-fleet.md has tests with its code, in the files
//! that its row names.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The cells of the rows whose first cell is a code that begins with this letter.
fn rows(page: &str, letter: char) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join("docs/design").join(page)).unwrap();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let rows = rows.map(cells).filter(|cells: &Vec<String>| {
        cells[0].strip_prefix(letter).is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
    });
    rows.collect()
}

/// The codes in the doc comments of a file's tests: `/// F1*` or `/// S3: …` before a function that is a test.
fn tested_in(path: &Path) -> Vec<String> {
    let Ok(text) = fs::read_to_string(path) else { panic!("{} is not there", path.display()) };
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let mut codes = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(comment) = line.strip_prefix("/// ") else { continue };
        let code: String = comment.chars().take_while(char::is_ascii_alphanumeric).collect();
        let is_code = code.starts_with(['F', 'S']) && code.len() > 1 && code[1..].bytes().all(|b| b.is_ascii_digit());
        let behind = lines[at + 1..].iter().take_while(|line| line.starts_with("///") || line.starts_with("#["));
        if is_code && behind.into_iter().any(|line| *line == "#[test]") {
            codes.push(code);
        }
    }
    codes
}

/// The Rust files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).collect()
}

/// The files that a name between backticks means: one, those of a folder, or one with its unit tests in a file of their own.
fn meant(name: &str) -> Vec<PathBuf> {
    let crates = root().join("crates");
    let fleet = crates.join("fullbore-fleet");
    let path = match name.split_once('/') {
        Some(("tests", _)) => fleet.join(name),
        Some(("s3" | "store_mirror", _)) => crates.join("fullbore/tests").join(name),
        None if name == "store_mirror.rs" => crates.join("fullbore/tests").join(name),
        Some(("mirror", _)) => crates.join("fullbore-mirror/src").join(name),
        Some(("fullbore-s3", _)) => crates.join(name),
        Some(("put_fleet", _)) => crates.join("fullbore-s3/tests").join(name),
        _ => fleet.join("src").join(name),
    };
    match name.ends_with('/') {
        true => files(&path),
        false => {
            let own_tests = path.with_extension("").join("tests.rs");
            [path].into_iter().chain(own_tests.exists().then_some(own_tests)).collect()
        }
    }
}

#[test]
fn each_fault_of_a_fleet_is_tested_where_its_row_says() {
    let rows = rows("0023-fleet.md", 'F');
    assert!(rows.len() >= 18, "{rows:?}");
    let crates = root().join("crates");
    let with_server = tested_in(&crates.join("fullbore-fleet/tests/nats.rs"));
    let built: Vec<String> =
        files(&crates.join("fullbore/tests/store_mirror")).iter().flat_map(|path| tested_in(path)).collect();
    for row in rows {
        let code = row[0].trim_end_matches('*').to_owned();
        let names: Vec<&str> = row[2].split('`').skip(1).step_by(2).filter(|name| !name.contains("fuzz")).collect();
        assert!(!names.is_empty(), "{row:?}");
        for name in names.into_iter().filter(|name| name.ends_with(".rs") || name.ends_with('/')) {
            let is_tested = meant(name).iter().any(|path| tested_in(path).contains(&code));
            assert!(is_tested, "{name} has no test of {code}");
        }
        match row[0].len() - code.len() {
            1 => assert!(with_server.contains(&code), "{code} is not tested with nats-server"),
            2 => assert!(built.contains(&code), "{code} is not tested with the built program"),
            _ => {}
        }
    }
}

#[test]
fn each_fault_of_a_bucket_is_tested_with_a_store() {
    let rows = rows("0021-mirror-in-a-bucket.md", 'S');
    assert_eq!(rows.len(), 9, "{rows:?}");
    let tests = root().join("crates/fullbore/tests");
    let mut tested = tested_in(&tests.join("store_mirror.rs"));
    tested.extend(files(&tests.join("store_mirror")).iter().flat_map(|path| tested_in(path)));
    for row in rows {
        assert!(tested.contains(&row[0]), "{row:?}");
    }
}
