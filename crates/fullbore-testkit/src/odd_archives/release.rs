//! The signed files: which exist, their line ends, and lists that contradict themselves.

use super::OddArchive;
use super::draft::{Draft, Signed};

pub(super) const ALL: &[OddArchive] = &[
    OddArchive::usual("release-and-gpg", |draft| draft.signed = vec![Signed::Release, Signed::ReleaseGpg]),
    OddArchive::usual("inrelease-only", |draft| draft.signed = vec![Signed::InRelease]),
    OddArchive::usual("release-unsigned", |draft| draft.signed = vec![Signed::Release]),
    OddArchive::usual("release-unsigned-trusted", |draft| draft.signed = vec![Signed::Release]).trusted(),
    OddArchive::usual("release-missing", |draft| draft.signed.clear()),
    OddArchive::usual("release-missing-trusted", |draft| draft.signed.clear()).trusted(),
    OddArchive::usual("release-crlf", release_crlf),
    OddArchive::usual("release-gpg-crlf", release_gpg_crlf),
    OddArchive::usual("inrelease-crlf", inrelease_crlf),
    OddArchive::usual("inrelease-altered", inrelease_altered),
    OddArchive::usual("inrelease-text-behind", text_behind),
    OddArchive::usual("inrelease-text-before", text_before),
    OddArchive::usual("inrelease-login-page", login_page),
    OddArchive::usual("release-lists-itself", |draft| draft.list("Release", b"an earlier one")),
    OddArchive::usual("release-entry-twice", entry_twice),
    OddArchive::usual("release-entry-two-contents", entry_two_contents),
    OddArchive::usual("release-entry-other-two-contents", entry_other_two_contents),
    OddArchive::usual("release-entry-outside", |draft| draft.list("../../x", b"outside")),
    OddArchive::usual("release-entry-hidden", |draft| draft.list(".htaccess", b"hidden")),
    OddArchive::usual("release-entry-slash", |draft| draft.list("/main/x", b"a slash")),
    OddArchive::usual("release-entry-with-blank", |draft| draft.list("main/a file", b"a blank")),
    OddArchive::usual("release-entry-broken", entry_broken),
    OddArchive::usual("release-list-without-colon", list_without_colon),
    OddArchive::usual("release-field-twice", |draft| draft.release.push(("Origin".to_owned(), "again".to_owned()))),
    OddArchive::usual("release-second-stanza", second_stanza),
    OddArchive::usual("release-empty-lines", empty_lines),
    OddArchive::usual("release-comment", comment),
    OddArchive::usual("release-tabs", tabs),
    OddArchive::usual("release-latin-1", latin_1),
];

/// Line ends of Windows before the signature (sonatype-nexus-community/nexus-repository-apt#65).
fn release_crlf(draft: &mut Draft) {
    draft.edit_release = |text| text.replace('\n', "\r\n").into_bytes();
}

/// The same with a signature beside it.
fn release_gpg_crlf(draft: &mut Draft) {
    draft.signed = vec![Signed::Release, Signed::ReleaseGpg];
    draft.edit_release = |text| text.replace('\n', "\r\n").into_bytes();
}

/// A server that changes line ends (sonatype-nexus-community/nexus-repository-apt#65).
fn inrelease_crlf(draft: &mut Draft) {
    draft.signed = vec![Signed::InRelease];
    draft.edit_inrelease = |bytes| String::from_utf8_lossy(&bytes).replace('\n', "\r\n").into_bytes();
}

/// One letter of the signed text is another.
fn inrelease_altered(draft: &mut Draft) {
    draft.signed = vec![Signed::InRelease];
    draft.edit_inrelease = |bytes| String::from_utf8_lossy(&bytes).replacen("Origin: Odd", "Origin: Old", 1).into();
}

/// Text behind the signature.
fn text_behind(draft: &mut Draft) {
    draft.signed = vec![Signed::InRelease];
    draft.edit_inrelease = |bytes| [&bytes[..], b"\nOrigin: Evil\n"].concat();
}

/// Text before the signed message.
fn text_before(draft: &mut Draft) {
    draft.signed = vec![Signed::InRelease];
    draft.edit_inrelease = |bytes| [b"Origin: Evil\n\n", &bytes[..]].concat();
}

/// A page in place of the file (Graylog2/fpm-recipes#83).
fn login_page(draft: &mut Draft) {
    draft.edit_inrelease = |_| b"<html>Please log in</html>\n".to_vec();
}

/// An entry twice with the same content.
fn entry_twice(draft: &mut Draft) {
    let text = draft.index_text();
    draft.list("main/binary-amd64/Packages", text.as_bytes());
}

/// The index with two contents, of which the archive serves the last.
fn entry_two_contents(draft: &mut Draft) {
    draft.list("main/binary-amd64/Packages", b"an earlier one");
    draft.list("main/binary-amd64/Packages.gz", b"an earlier one, compressed");
}

/// A file that nobody reads with two contents.
fn entry_other_two_contents(draft: &mut Draft) {
    draft.list("main/Contents-amd64", b"an earlier one");
    draft.publish("main/Contents-amd64", b"a later one");
}

/// A line of a list that lost its size.
fn entry_broken(draft: &mut Draft) {
    draft.edit_release = |text| format!("{text} 0123 main/binary-amd64/Packages.lz4\n").into_bytes();
}

/// `SHA256` without its colon (aptly-dev/aptly#328: nginx).
fn list_without_colon(draft: &mut Draft) {
    draft.edit_release = |text| text.replace("SHA256:", "SHA256").into_bytes();
}

/// A second stanza.
fn second_stanza(draft: &mut Draft) {
    draft.edit_release = |text| format!("{text}\nOrigin: Other\n").into_bytes();
}

/// Empty lines around the text.
fn empty_lines(draft: &mut Draft) {
    draft.edit_release = |text| format!("\n{text}\n\n").into_bytes();
}

/// A comment.
fn comment(draft: &mut Draft) {
    draft.edit_release = |text| format!("# made by hand\n{text}").into_bytes();
}

/// Tabs in lists and behind colons.
fn tabs(draft: &mut Draft) {
    draft.edit_release = |text| text.replace(": ", ":\t").replace("\n ", "\n\t").replace("  ", "\t").into_bytes();
}

/// A description in Latin-1.
fn latin_1(draft: &mut Draft) {
    draft.edit_release = |text| [b"Description: f\xfcr alle\n", text.as_bytes()].concat();
}
