//! Stanzas that lack, repeat or garble fields, and packages that are there twice.

use super::OddArchive;
use super::draft::{Algorithm, Draft, set, unset, value};
use crate::compression::Form;

pub(super) const ALL: &[OddArchive] = &[
    OddArchive::usual("stanza-without-version", |draft| unset(draft.first(), "Version")),
    OddArchive::usual("stanza-without-architecture", |draft| unset(draft.first(), "Architecture")),
    OddArchive::usual("stanza-without-filename", |draft| unset(draft.first(), "Filename")),
    OddArchive::usual("stanza-without-size", |draft| unset(draft.first(), "Size")),
    OddArchive::usual("stanza-size-no-number", |draft| set(draft.first(), "Size", "12 kB")),
    OddArchive::usual("stanza-without-package", |draft| unset(draft.first(), "Package")),
    OddArchive::usual("stanza-field-twice", field_twice),
    OddArchive::usual("stanza-filename-twice", filename_twice),
    OddArchive::usual("stanza-long-field", long_field),
    OddArchive::usual("stanza-many-fields", many_fields),
    OddArchive::usual("stanza-tabs", tabs),
    OddArchive::usual("stanza-latin-1", latin_1),
    OddArchive::usual("stanza-line-without-colon", line_without_colon),
    OddArchive::usual("stanza-comment", comment),
    OddArchive::usual("stanza-blank-lines", blank_lines),
    OddArchive::usual("stanza-no-last-newline", no_last_newline),
    OddArchive::usual("stanza-twice", twice),
    OddArchive::usual("versions-several", several_versions),
    OddArchive::usual("path-two-contents", two_contents),
    OddArchive::usual("path-two-versions", two_versions),
    OddArchive::usual("stanzas-half-odd", half_odd),
];

/// A field twice in one stanza.
fn field_twice(draft: &mut Draft) {
    draft.first().push(("Description".to_owned(), "again".to_owned()));
}

/// A field that decides, twice with the same value.
fn filename_twice(draft: &mut Draft) {
    let path = value(draft.first(), "Filename").to_owned();
    draft.first().push(("Filename".to_owned(), path));
}

/// A field of half a megabyte.
fn long_field(draft: &mut Draft) {
    set(draft.first(), "Provides", &vec!["a-virtual-package"; 30_000].join(", "));
}

/// Hundreds of fields that nobody knows.
fn many_fields(draft: &mut Draft) {
    for number in 0..600 {
        set(draft.first(), &format!("X-Vendor-{number}"), "yes");
    }
}

/// The index as text that was changed.
fn edited(draft: &mut Draft, edit: impl Fn(&str) -> Vec<u8>) {
    let bytes = edit(&draft.index_text());
    draft.forms.clear();
    draft.index_as("", &bytes);
    let gz = Form::Gz.compress(&bytes).expect("gzip writes into memory");
    draft.index_as(".gz", &gz);
}

/// Tabs behind the colon.
fn tabs(draft: &mut Draft) {
    edited(draft, |text| text.replace(": ", ":\t ").into_bytes());
}

/// A name in Latin-1.
fn latin_1(draft: &mut Draft) {
    edited(draft, |text| {
        let at = text.find("Odd <").expect("a maintainer");
        [&text.as_bytes()[..at], b"\xd6dd <", &text.as_bytes()[at + 5..]].concat()
    });
}

/// A line of a description that lost its blank (aptly-dev/aptly#950, sysown/proxysql#5683).
fn line_without_colon(draft: &mut Draft) {
    edited(draft, |text| text.replacen("Filename", "and more of it\nFilename", 1).into_bytes());
}

/// A comment in an index.
fn comment(draft: &mut Draft) {
    edited(draft, |text| text.replacen("Filename", "# by hand\nFilename", 1).into_bytes());
}

/// Empty lines before, between and behind stanzas.
fn blank_lines(draft: &mut Draft) {
    edited(draft, |text| format!("\n\n{}\n\n", text.replace("\n\n", "\n\n\n\n")).into_bytes());
}

/// No line end at the end (cat of files that a script made).
fn no_last_newline(draft: &mut Draft) {
    edited(draft, |text| text.trim_end().as_bytes().to_vec());
}

/// The same stanza twice (aptly-dev/aptly#187).
fn twice(draft: &mut Draft) {
    let stanza = draft.first().clone();
    draft.stanzas.push(stanza);
}

/// Two versions of one package.
fn several_versions(draft: &mut Draft) {
    let stanza = draft.package("odd-01", "2.0", "pool/main/");
    draft.stanzas.push(stanza);
}

/// One path with two contents; the archive serves the first (aptly-dev/aptly#183, esl/packages#64).
fn two_contents(draft: &mut Draft) {
    let mut stanza = draft.first().clone();
    set(&mut stanza, "Size", "4711");
    set(&mut stanza, "SHA256", &Algorithm::Sha256.of(b"what it was before"));
    set(&mut stanza, "MD5sum", &Algorithm::Md5.of(b"what it was before"));
    draft.stanzas.push(stanza);
}

/// One path for two versions; the archive serves the newer (ntop/PF_RING#595).
fn two_versions(draft: &mut Draft) {
    let mut stanza = draft.first().clone();
    set(&mut stanza, "Version", "0.9");
    set(&mut stanza, "Size", "4711");
    set(&mut stanza, "SHA256", &Algorithm::Sha256.of(b"what it was before"));
    set(&mut stanza, "MD5sum", &Algorithm::Md5.of(b"what it was before"));
    draft.stanzas.push(stanza);
}

/// Half of the stanzas have no hash that counts (inventage/nexus-apt-plugin#21).
fn half_odd(draft: &mut Draft) {
    for stanza in draft.stanzas.iter_mut().step_by(2) {
        unset(stanza, "SHA256");
    }
}
