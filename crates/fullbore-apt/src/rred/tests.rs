//! The method without APT: hostile requests, and what the captured conversations do not have.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use fullbore_engine::digest::Sha256;
use proptest::prelude::*;

use super::*;
use crate::rewrite::RewriteError;

const OLD: &str = "one\ntwo\nthree\n";

/// Steps from [`OLD`], and the states behind them.
const STEPS: [(&str, &str); 2] =
    [("2c\nzwei\n.\n", "one\nzwei\nthree\n"), ("3a\nfour\n.\n", "one\nzwei\nthree\nfour\n")];

/// A lists directory with an index and its patches.
struct Lists {
    directory: tempfile::TempDir,
}

impl Lists {
    fn new() -> Lists {
        let lists = Lists { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(lists.path("partial")).unwrap();
        fs::write(lists.path("partial/h_Packages"), OLD).unwrap();
        lists
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts a patch beside the index: `.ed`, or `.ed.NAME.gz`.
    fn patch(&self, ending: &str, script: &[u8]) {
        fs::write(self.path(&format!("partial/h_Packages{ending}")), gz(script)).unwrap();
    }

    /// Puts the index of patches of the two steps.
    fn diff_index(&self, name: &str, merged: bool) {
        let line =
            |content: &str, name: &str| format!(" {} {} {name}\n", Sha256::of(content.as_bytes()), content.len());
        let mut text = format!("SHA256-Current:{}", line(STEPS[1].1, "").trim_end());
        text = format!("{}\nSHA256-History:\n{}{}", text.trim_end(), line(OLD, "1"), line(STEPS[0].1, "2"));
        text.push_str(&format!("SHA256-Patches:\n{}{}", line(STEPS[0].0, "1"), line(STEPS[1].0, "2")));
        if merged {
            text.push_str("X-Patch-Precedence: merged\n");
        }
        fs::write(self.path(name), text).unwrap();
    }

    /// A request for `h_Packages-patched` with these patches.
    fn request(&self, patches: &[&str]) -> Message {
        let mut message = Message::new(600, "URI Acquire")
            .with("URI", format!("rred:{}", self.path("partial/h_Packages").display()))
            .with("Filename", self.path("partial/h_Packages-patched").display());
        for (number, patch) in patches.iter().enumerate() {
            message = message
                .with(&format!("Patch-{number}-SHA256-Hash"), Sha256::of(patch.as_bytes()))
                .with(&format!("Patch-{number}-Checksum-FileSize-Hash"), patch.len());
        }
        message
    }
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn expecting(message: Message, content: &str) -> Message {
    message.with("Expected-SHA256", Sha256::of(content.as_bytes())).with("Expected-Checksum-FileSize", content.len())
}

fn patch(message: Message) -> Result<Message, RredError> {
    Rred::new().patch(&Request::new(message)).map(|(done, _)| done)
}

fn made(lists: &Lists) -> String {
    fs::read_to_string(lists.path("partial/h_Packages-patched")).unwrap()
}

#[test]
fn patches_are_joined_in_the_order_of_their_names() {
    let lists = Lists::new();
    lists.patch(".ed.2025-06-16-0306.40.gz", STEPS[1].0.as_bytes());
    lists.patch(".ed.2025-06-15-1506.40.gz", STEPS[0].0.as_bytes());
    // Another index's, and what is no patch.
    fs::write(lists.path("partial/h_Packages2.ed.1.gz"), "x").unwrap();
    fs::write(lists.path("partial/h_Packages.ed.3.gz.FAILED"), "x").unwrap();
    let request = expecting(lists.request(&[STEPS[0].0, STEPS[1].0]), STEPS[1].1);
    let done = patch(request.clone()).unwrap();
    assert_eq!(made(&lists), STEPS[1].1);
    assert_eq!(done.get("Size"), Some(STEPS[1].1.len().to_string().as_str()));
    // One that APT named is missing; one is there that it did not name.
    fs::remove_file(lists.path("partial/h_Packages.ed.2025-06-15-1506.40.gz")).unwrap();
    assert!(matches!(patch(request), Err(RredError::Patch(PatchError::Missing { number: 1, .. }))));
    let wrong = expecting(lists.request(&[STEPS[0].0]), STEPS[0].1);
    assert!(matches!(patch(wrong), Err(RredError::Patch(PatchError::Mismatch { .. } | PatchError::Read { .. }))));
    let more = expecting(lists.request(&[STEPS[1].0, STEPS[1].0]), STEPS[1].1);
    assert!(matches!(patch(more), Err(RredError::Patch(PatchError::Missing { number: 1, .. }))));
    lists.patch(".ed.9.gz", STEPS[1].0.as_bytes());
    let fewer = expecting(lists.request(&[STEPS[1].0]), STEPS[1].1);
    assert!(matches!(patch(fewer), Err(RredError::Patch(PatchError::Unnamed { number: 1, .. }))));
}

#[test]
fn what_apt_does_not_verify_is_verified_by_the_index_of_patches() {
    for (name, merged, leads_to) in [
        ("partial/h_Packages.diff_Index", false, STEPS[0].1),
        // Where the archive says that it has not changed, it is in its final place.
        ("h_Packages.diff_Index", false, STEPS[0].1),
    ] {
        let lists = Lists::new();
        lists.patch(".ed", STEPS[0].0.as_bytes());
        let request = lists.request(&[STEPS[0].0]);
        assert!(matches!(patch(request.clone()), Err(RredError::Target(TargetError::NoIndex(_)))));
        lists.diff_index(name, merged);
        let done = patch(request.clone()).unwrap();
        assert_eq!(made(&lists), leads_to);
        assert_eq!(done.get("SHA256-Hash"), Some(Sha256::of(leads_to.as_bytes()).to_string().as_str()));
        // The old index is not the signed one: APT would take what comes of it.
        fs::write(lists.path("partial/h_Packages"), OLD.replace("three", "THREE")).unwrap();
        fs::remove_file(lists.path("partial/h_Packages-patched")).unwrap();
        let error = patch(request).unwrap_err();
        assert!(matches!(error, RredError::Rewrite(RewriteError::Mismatch { .. })), "{error}");
        assert!(!lists.path("partial/h_Packages-patched").exists());
    }
}

#[test]
fn where_a_state_comes_back_the_last_of_its_patches_counts() {
    let lists = Lists::new();
    lists.patch(".ed", STEPS[0].0.as_bytes());
    // From the old state by the same patch to another one, of which nothing is true, and then to the current one.
    let line = |content: &str, name: &str| format!(" {} {} {name}\n", Sha256::of(content.as_bytes()), content.len());
    let patches = format!("{}{}{}", line(STEPS[0].0, "1"), line("", "2"), line(STEPS[0].0, "3"));
    let text = format!(
        "SHA256-Current:{}SHA256-History:\n{}{}{}SHA256-Patches:\n{patches}",
        line(STEPS[0].1, "").trim_end().to_owned() + "\n",
        line(OLD, "1"),
        line("\n", "2"),
        line(OLD, "3")
    );
    fs::write(lists.path("partial/h_Packages.diff_Index"), text).unwrap();
    for request in [
        lists.request(&[STEPS[0].0]),
        lists.request(&[STEPS[0].0]).with("Start-SHA256-Hash", Sha256::of(OLD.as_bytes())),
    ] {
        patch(request).unwrap();
        assert_eq!(made(&lists), STEPS[0].1);
    }
}

#[test]
fn a_merged_patch_leads_to_the_current_state() {
    let lists = Lists::new();
    lists.patch(".ed", STEPS[0].0.as_bytes());
    lists.diff_index("partial/h_Packages.diff_Index", true);
    // Of the first of merged patches more is said than that it makes one step.
    let error = patch(lists.request(&[STEPS[0].0])).unwrap_err();
    let RredError::Rewrite(RewriteError::Mismatch { wrong, .. }) = error else { panic!("{error}") };
    assert_eq!(wrong.expected.sha256, Sha256::of(STEPS[1].1.as_bytes()));
    // The last one.
    fs::write(lists.path("partial/h_Packages"), STEPS[0].1).unwrap();
    lists.patch(".ed", STEPS[1].0.as_bytes());
    patch(lists.request(&[STEPS[1].0])).unwrap();
    assert_eq!(made(&lists), STEPS[1].1);
    // A patch that it does not list.
    lists.patch(".ed", b"1d\n");
    let error = patch(lists.request(&["1d\n"])).unwrap_err();
    assert!(matches!(error, RredError::Target(TargetError::Unlisted { .. })), "{error}");
    fs::write(lists.path("partial/h_Packages.diff_Index"), "SHA256-Current: x\n").unwrap();
    let error = patch(lists.request(&["1d\n"])).unwrap_err();
    assert!(matches!(error, RredError::Target(TargetError::Index { .. })), "{error}");
}

#[test]
fn without_a_uri_the_result_gets_a_name_of_its_own() {
    let lists = Lists::new();
    lists.patch(".ed", STEPS[0].0.as_bytes());
    let mut request = expecting(lists.request(&[STEPS[0].0]), STEPS[0].1);
    request.fields.retain(|(name, _)| name != "URI" && name != "Filename");
    let old = lists.path("partial/h_Packages");
    let done = patch(request.with("Filename", old.display())).unwrap();
    assert_eq!(fs::read_to_string(with_suffix(&old, ".result")).unwrap(), STEPS[0].1);
    // As APT's own method: the name that was asked for.
    assert_eq!(done.get("Filename"), Some(old.display().to_string().as_str()));
}

#[test]
fn sizes_that_are_claimed_cost_nothing() {
    let lists = Lists::new();
    // A bomb: 100 MB of zeros.
    let bomb = vec![0_u8; 100 << 20];
    lists.patch(".ed", &bomb);
    let request = lists.request(&[STEPS[0].0]);
    let error = patch(expecting(request, STEPS[0].1)).unwrap_err();
    assert!(error.to_string().contains("exceeds the announced"), "{error}");
    for (size, expected) in
        [("18446744073709551615", "which is too much"), ("536870912", "12 bytes with SHA-256"), ("-1", "no size")]
    {
        lists.patch(".ed", b"1d\n1d\n1d\n1d\n");
        let mut request = expecting(lists.request(&[STEPS[0].0]), STEPS[0].1);
        for (name, value) in &mut request.fields {
            if name == "Patch-0-Checksum-FileSize-Hash" {
                *value = size.to_owned();
            }
        }
        let error = patch(request).unwrap_err().to_string();
        assert!(error.contains(expected), "{size}: {error}");
    }
}

#[test]
fn requests_without_a_sensible_path_or_hash_are_refused() {
    let lists = Lists::new();
    lists.patch(".ed", STEPS[0].0.as_bytes());
    let with = |uri: &str, filename: &str| {
        let mut request = expecting(lists.request(&[STEPS[0].0]), STEPS[0].1);
        request.fields.retain(|(name, _)| name != "URI" && name != "Filename");
        patch(request.with("URI", uri).with("Filename", filename)).unwrap_err()
    };
    assert!(matches!(with("rred:h_Packages", "/x"), RredError::Request("path in its URI")));
    assert!(matches!(with("rred:/x", ""), RredError::Request("Filename")));
    assert!(matches!(with("rred:/nonexistent/x", "/x"), RredError::Patch(PatchError::Read { .. })));
    let uri = format!("rred:{}", lists.path("partial/h_Packages").display());
    assert!(matches!(with(&uri, "/nonexistent/x"), RredError::Rewrite(_)));
    assert!(matches!(with(&uri, lists.path("partial").to_str().unwrap()), RredError::Rewrite(_)));
    // Half an expectation is none.
    let half = lists.request(&[STEPS[0].0]).with("Expected-SHA512", "00");
    assert!(matches!(patch(half), Err(RredError::Target(TargetError::Expectation))));
}

#[test]
fn an_index_or_a_patch_that_is_a_directory_is_no_panic() {
    let lists = Lists::new();
    fs::create_dir(lists.path("partial/h_Packages.ed.1.gz")).unwrap();
    let error = patch(expecting(lists.request(&[STEPS[0].0]), STEPS[0].1)).unwrap_err();
    assert!(matches!(error, RredError::Patch(PatchError::Read { .. })), "{error}");
    fs::remove_dir(lists.path("partial/h_Packages.ed.1.gz")).unwrap();
    lists.patch(".ed", STEPS[0].0.as_bytes());
    fs::remove_file(lists.path("partial/h_Packages")).unwrap();
    fs::create_dir(lists.path("partial/h_Packages")).unwrap();
    assert!(patch(expecting(lists.request(&[STEPS[0].0]), STEPS[0].1)).is_err());
    assert!(!Path::new(&lists.path("partial/h_Packages-patched")).exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever APT or an attacker sends: an answer, nothing written elsewhere, nothing left.
    #[test]
    fn any_request_has_an_answer(
        fields in proptest::collection::vec(
            ("(URI|Filename|Expected-SHA256|Expected-Checksum-FileSize|Start-SHA256-Hash|Patch-[0-2]-(SHA256|Checksum-FileSize)-Hash)",
             "(rred:|)(/[a-z%.]{0,5}){0,3}|[0-9]{0,20}|[0-9a-f]{64}"),
            0..8,
        ),
        script in "([0-9]{1,2}[acds]?\n|[a-z.]\n|\\PC{0,3}){0,8}",
    ) {
        let lists = Lists::new();
        lists.patch(".ed", script.as_bytes());
        // All of it below a directory in which nothing is.
        let nowhere = lists.path("nowhere");
        let mut request = lists.request(&[&script]);
        for (name, value) in fields {
            let value = match name.as_str() {
                "Filename" => format!("{}{value}", nowhere.display()),
                "URI" => value.replacen(":/", &format!(":{}/", nowhere.display()), 1),
                _ => value,
            };
            request.fields.insert(0, (name, value));
        }
        let _ = patch(request);
        let mut names: Vec<_> =
            fs::read_dir(lists.path("partial")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        prop_assert_eq!(names, ["h_Packages", "h_Packages.ed"]);
        prop_assert!(!nowhere.exists());
    }
}

#[test]
fn the_level_is_a_setting_of_apts_configuration() {
    let names = [("best", Level::Best), ("fast", Level::Fast), ("", Level::Fast)];
    let old_names = [("apt", Level::Best), ("own", Level::Fast)];
    for (value, level) in names.into_iter().chain(old_names) {
        let mut configuration = Configuration::new();
        configuration.set(LEVEL_SETTING, value);
        let mut rred = Rred::new();
        // No user is named, so that no rights are dropped.
        rred.configure(configuration).unwrap();
        assert_eq!(rred.level, level, "{value}");
    }
}
