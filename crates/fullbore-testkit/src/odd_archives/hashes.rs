//! Hashes that are weak, wrong, missing or spelled in another way.

use super::OddArchive;
use super::draft::{Algorithm, Draft, set, unset, value};

pub(super) const ALL: &[OddArchive] = &[
    OddArchive::usual("hash-one-md5-only", |draft| unset(draft.first(), "SHA256")),
    OddArchive::usual("hash-all-md5-only", all_md5_only),
    OddArchive::usual("hash-one-sha512-only", one_sha512_only),
    OddArchive::usual("hash-all-sha512-only", all_sha512_only),
    OddArchive::usual("hash-one-none", one_none),
    OddArchive::usual("hash-no-md5", no_md5),
    OddArchive::usual("hash-upper-case", upper_case),
    OddArchive::usual("hash-wrong", wrong),
    OddArchive::usual("hash-sha512-wrong", sha512_wrong),
    OddArchive::usual("hash-no-hex", |draft| set(draft.first(), "SHA256", "none")),
    OddArchive::usual("size-wrong", size_wrong),
    OddArchive::usual("release-sha512-only", |draft| draft.lists = vec![Algorithm::Sha512]),
    OddArchive::usual("release-md5-only", |draft| draft.lists = vec![Algorithm::Md5]),
    OddArchive::usual("release-upper-case", release_upper_case),
    OddArchive::usual("release-hash-wrong", release_hash_wrong),
];

/// No package has more than MD5 (inventage/nexus-apt-plugin#21).
fn all_md5_only(draft: &mut Draft) {
    draft.stanzas.iter_mut().for_each(|stanza| unset(stanza, "SHA256"));
}

fn sha512(draft: &mut Draft, number: usize) {
    let deb = draft.files[value(&draft.stanzas[number], "Filename")].clone();
    set(&mut draft.stanzas[number], "SHA512", &Algorithm::Sha512.of(&deb));
}

/// One package has only SHA-512 (inventage/nexus-apt-plugin#21).
fn one_sha512_only(draft: &mut Draft) {
    sha512(draft, 0);
    unset(draft.first(), "SHA256");
}

/// All packages have only SHA-512 (inventage/nexus-apt-plugin#21).
fn all_sha512_only(draft: &mut Draft) {
    for number in 0..draft.stanzas.len() {
        sha512(draft, number);
        unset(&mut draft.stanzas[number], "SHA256");
    }
}

/// One package has no hash.
fn one_none(draft: &mut Draft) {
    unset(draft.first(), "SHA256");
    unset(draft.first(), "MD5sum");
}

/// No MD5 anywhere (apt-mirror/apt-mirror#137, aptly-dev/aptly#442).
fn no_md5(draft: &mut Draft) {
    draft.stanzas.iter_mut().for_each(|stanza| unset(stanza, "MD5sum"));
    draft.lists = vec![Algorithm::Sha256];
}

/// Hashes in capital letters.
fn upper_case(draft: &mut Draft) {
    for stanza in &mut draft.stanzas {
        let hash = value(stanza, "SHA256").to_uppercase();
        set(stanza, "SHA256", &hash);
    }
}

/// The file differs from its hash (microsoft/vscode#28735, saltstack/salt#59801).
fn wrong(draft: &mut Draft) {
    set(draft.first(), "SHA256", &Algorithm::Sha256.of(b"another file"));
}

/// SHA-256 fits and SHA-512 does not (theinvisible/openfortigui#127).
fn sha512_wrong(draft: &mut Draft) {
    set(draft.first(), "SHA512", &Algorithm::Sha512.of(b"another file"));
}

/// The file differs from its size (esl/packages#64).
fn size_wrong(draft: &mut Draft) {
    set(draft.first(), "Size", "4711");
}

/// Hashes of the Release in capital letters.
fn release_upper_case(draft: &mut Draft) {
    draft.edit_release = |text| {
        let upper = |line: &str| match line.trim_start().split_once(' ') {
            Some((hash, rest)) if line.starts_with(' ') => format!(" {} {rest}\n", hash.to_uppercase()),
            _ => format!("{line}\n"),
        };
        text.lines().map(upper).collect::<String>().into_bytes()
    };
}

/// The index differs from the Release (DefGuard/defguard#1798, openai/codex#43968).
fn release_hash_wrong(draft: &mut Draft) {
    let other = draft.index_text().replacen("odd", "ood", 1);
    draft.forms.clear();
    draft.list("main/binary-amd64/Packages", other.as_bytes());
    let path = format!("{}main/binary-amd64/Packages", draft.directory);
    let text = draft.index_text().into_bytes();
    draft.files.insert(path, text);
}
