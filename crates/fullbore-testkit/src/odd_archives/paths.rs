//! `Filename` in other spellings than a plain relative path.

use super::OddArchive;
use super::draft::{Draft, set, value};

pub(super) const ALL: &[OddArchive] = &[
    OddArchive::usual("path-slash-before", slash_before),
    OddArchive::usual("path-dot-before", dot_before),
    OddArchive::usual("path-dot-and-slashes", dot_and_slashes),
    OddArchive::usual("path-double-slash", double_slash),
    OddArchive::usual("path-dot-within", dot_within),
    OddArchive::usual("path-up-and-down", up_and_down),
    OddArchive::usual("path-outside", outside),
    OddArchive::usual("path-address", address),
    OddArchive::usual("path-with-space", with_space),
    OddArchive::usual("path-percent", percent),
    OddArchive::usual("path-backslash", backslash),
    OddArchive::usual("path-hidden", hidden),
    OddArchive::usual("path-not-utf8-name", accents),
    OddArchive::usual("path-reserved", reserved),
    OddArchive::usual("path-own-directory", own_directory),
];

/// `Filename: /pool/…` (sonatype/nexus-public#586).
fn slash_before(draft: &mut Draft) {
    draft.rename(|path| format!("/{path}"));
}

/// `Filename: ./pool/…` (owncloud/core#24887).
fn dot_before(draft: &mut Draft) {
    draft.rename(|path| format!("./{path}"));
}

/// `Filename: .//pool/…`.
fn dot_and_slashes(draft: &mut Draft) {
    draft.rename(|path| format!(".//{path}"));
}

/// `Filename: pool//…` (Stifler6996/apt-mirror#50, apt-mirror/apt-mirror#119).
fn double_slash(draft: &mut Draft) {
    draft.rename(|path| path.replacen('/', "//", 1));
}

/// `Filename: pool/./…`.
fn dot_within(draft: &mut Draft) {
    draft.rename(|path| path.replacen('/', "/./", 1));
}

/// One path goes up within the archive.
fn up_and_down(draft: &mut Draft) {
    let path = value(draft.first(), "Filename").replacen("main/", "main/../main/", 1);
    set(draft.first(), "Filename", &path);
}

/// One path leaves the archive.
fn outside(draft: &mut Draft) {
    set(draft.first(), "Filename", "../../../etc/passwd");
}

/// One path is an address of another place.
fn address(draft: &mut Draft) {
    set(draft.first(), "Filename", "https://example.org/odd-01_1.0_amd64.deb");
}

/// A blank in a name.
fn with_space(draft: &mut Draft) {
    moved(draft, "pool/main/odd 01.deb");
}

/// A percent sign in a name, as apt itself saves files (apt-mirror/apt-mirror#170).
fn percent(draft: &mut Draft) {
    moved(draft, "pool/main/odd-01_1%3a1.0_amd64.deb");
}

/// A backslash in a name, as of a script on Windows.
fn backslash(draft: &mut Draft) {
    moved(draft, "pool\\main\\odd-01.deb");
}

/// A directory that starts with a dot.
fn hidden(draft: &mut Draft) {
    moved(draft, "pool/.cache/odd-01.deb");
}

/// Letters beyond ASCII.
fn accents(draft: &mut Draft) {
    moved(draft, "pool/main/ödd-01.deb");
}

/// The name of a signed file for a package.
fn reserved(draft: &mut Draft) {
    moved(draft, "pool/main/Release");
}

/// A package in the directory of a snapshot, where a mirror has something of its own.
fn own_directory(draft: &mut Draft) {
    moved(draft, "snapshots/2025/odd-01.deb");
}

/// The first package under another path.
fn moved(draft: &mut Draft, path: &str) {
    let deb = draft.first_deb();
    draft.files.insert(path.to_owned(), deb);
    set(draft.first(), "Filename", path);
}
