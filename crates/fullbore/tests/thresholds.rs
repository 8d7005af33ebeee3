//! The numbers that decide verdicts: few, named, each with its origin, and none between the lines.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;

/// As many as can be kept in mind and measured.
const THRESHOLDS_MAX: usize = 60;

/// Where verdicts are decided: of samples, of trials, of stores and grids, of both ends of a copy, of a probe.
const MODULES: [&str; 13] = [
    "fullbore-engine/src/verdict.rs",
    "fullbore-engine/src/verdict/thresholds.rs",
    "fullbore-engine/src/verdict/facts.rs",
    "fullbore-engine/src/verdict/judge.rs",
    "fullbore-engine/src/verdict/opinion.rs",
    "fullbore-engine/src/verdict/remote.rs",
    "fullbore-engine/src/stage/network.rs",
    "fullbore-s3/src/verdict.rs",
    "fullbore-lafs/src/verdict.rs",
    "fullbore-copy/src/judgement.rs",
    "fullbore-copy/src/probe/finding.rs",
    "fullbore-copy/src/probe/prediction.rs",
    "fullbore-copy/src/probe/disks.rs",
];

/// Numbers without a decision: nothing and all of it, per cent, and units of time and size.
const PLAIN: [&str; 9] = ["0.0", "1.0", "100.0", "1000.0", "1e3", "1e-3", "1e-6", "1e-9", "1e9"];

/// A unit, too.
const NO_THRESHOLDS: [&str; 1] = ["SECTOR_BYTES"];

/// The module without its tests.
fn module(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.split("\n#[cfg(test)]").next().unwrap().to_owned()
}

/// Name and documentation of each constant that is a number or a time.
fn constants(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut comment = String::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(words) = line.strip_prefix("///") {
            comment.push_str(words);
            continue;
        }
        let declaration =
            line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ").trim_start_matches("pub ");
        if let Some((name, kind)) = declaration.strip_prefix("const ").and_then(|rest| rest.split_once(": "))
            && ["f64", "u32", "u64", "usize", "Duration", "(f64"].iter().any(|number| kind.starts_with(number))
        {
            found.push((name.to_owned(), comment.clone()));
        }
        comment.clear();
    }
    found
}

/// Numbers with a point or an exponent, outside of comments, strings and constants.
fn bare_numbers(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.contains("const ")) {
        // What stands between quotes is for people.
        let code: String = line.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let code = code.split("//").next().unwrap_or_default();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
        let words = code.replace("..", " ").replace("e-", "e~");
        let words = words.split(|c: char| !is_part(c) && c != '~').map(|word| word.replace('~', "-"));
        found.extend(words.filter(|word| {
            let begins = word.starts_with(|c: char| c.is_ascii_digit());
            begins && word.parse::<f64>().is_ok() && word.contains(['.', 'e']) && !PLAIN.contains(&word.as_str())
        }));
    }
    found
}

#[test]
fn thresholds_are_few_and_say_where_they_come_from() {
    let all: Vec<(String, String)> = MODULES
        .iter()
        .flat_map(|name| constants(&module(name)))
        .filter(|(name, _)| !NO_THRESHOLDS.contains(&name.as_str()))
        .collect();
    assert!(all.len() > 30, "they are somewhere else: {all:?}");
    assert!(all.len() <= THRESHOLDS_MAX, "{} thresholds; {THRESHOLDS_MAX} are allowed: {all:?}", all.len());
    let unfounded: Vec<&String> = all
        .iter()
        .filter(|(_, comment)| !comment.contains("Measured: ") && !comment.contains("Guess"))
        .map(|(name, _)| name)
        .collect();
    assert!(unfounded.is_empty(), "neither `Measured: what, where` nor `Guess`: {unfounded:?}");
}

#[test]
fn no_decision_has_a_number_without_a_name() {
    let bare: Vec<(&str, Vec<String>)> =
        MODULES.iter().map(|name| (*name, bare_numbers(&module(name)))).filter(|(_, bare)| !bare.is_empty()).collect();
    assert!(bare.is_empty(), "{bare:?}");
}

#[test]
fn numbers_and_constants_are_found() {
    let text = "/// Why. Guess.\npub const NAMED: f64 = 0.6;\nconst WORD: &str = \"\";\nlet a = x >= 0.75; // 0.3\nlet b = (0..2, 1e-9, \"0.4\", 2.5e3);\n";
    assert_eq!(constants(text), [("NAMED".to_owned(), " Why. Guess.".to_owned())]);
    assert_eq!(bare_numbers(text), ["0.75", "2.5e3"]);
}
