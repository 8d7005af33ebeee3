//! Flat archives: indexes and packages in one directory, with and without the fields of a suite.

use super::OddArchive;
use super::draft::Draft;

pub(super) const ALL: &[OddArchive] = &[
    OddArchive::usual("flat-dot", dotted).suite("./").components(""),
    OddArchive::usual("flat-dot-plain-names", |_| ()).suite("./").components(""),
    OddArchive::usual("flat-slash", dotted).suite("/").components(""),
    OddArchive::usual("flat-directory", |_| ()).suite("binary/").components(""),
    OddArchive::usual("flat-directory-dotted", |draft| draft.rename(|path| format!("./{path}")))
        .suite("binary/")
        .components(""),
    OddArchive::usual("flat-directory-slash", |draft| draft.rename(|path| format!("/{path}")))
        .suite("binary/")
        .components(""),
    OddArchive::usual("flat-of-a-suite", of_a_suite).suite("repo/").components(""),
    OddArchive::usual("flat-architecture-in-path", in_path).suite("./").components(""),
    OddArchive::usual("flat-without-date", |draft| draft.unset("Date")).suite("./").components(""),
    OddArchive::usual("flat-without-release", |draft| draft.signed.clear()).suite("./").components("").trusted(),
    OddArchive::usual("flat-entries-dotted", entries_dotted).suite("./").components(""),
    OddArchive::usual("flat-lists-itself", lists_itself).suite("./").components(""),
];

/// `Filename: ./x.deb` (NVIDIA/nvidia-docker#730, cybozu-go/aptutil#25: CUDA).
fn dotted(draft: &mut Draft) {
    draft.rename(|path| format!("./{path}"));
}

/// Suite and codename of a distribution (Debian/apt#85, Siderus/Orion#190).
fn of_a_suite(draft: &mut Draft) {
    draft.set("Suite", "stretch");
    draft.set("Codename", "stretch");
    draft.set("Architectures", "amd64");
    draft.set("Components", "main");
}

/// Packages in a directory of their architecture (owncloud/core#24887).
fn in_path(draft: &mut Draft) {
    let files = std::mem::take(&mut draft.files);
    draft.files = files.into_iter().map(|(path, bytes)| (format!("amd64/{path}"), bytes)).collect();
    draft.rename(|path| format!("./amd64/{path}"));
}

/// The Release lists itself and its packages (basho/node_package#161).
fn lists_itself(draft: &mut Draft) {
    draft.list("Release", b"an earlier one");
    draft.list("./InRelease", b"an earlier one");
    let deb = draft.first_deb();
    draft.list("odd-01_1.0_amd64.deb", &deb);
}

/// Entries of the Release that begin with `./` (NVIDIA/nvidia-docker#730).
fn entries_dotted(draft: &mut Draft) {
    let text = draft.index_text();
    draft.forms.clear();
    draft.publish("Packages", text.as_bytes());
    "./Packages".clone_into(&mut draft.listed[0].0);
}
