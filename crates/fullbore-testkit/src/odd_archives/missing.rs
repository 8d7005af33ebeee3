//! Files that are listed and absent, and by-hash directories that are promised.

use super::OddArchive;
use super::draft::{Algorithm, Draft, value};
use crate::compression::Form;

pub(super) const ALL: &[OddArchive] = &[
    OddArchive::usual("missing-package", missing_package),
    OddArchive::usual("missing-half-of-the-packages", missing_half),
    OddArchive::usual("missing-plain-index", missing_plain),
    OddArchive::usual("missing-best-index", missing_best),
    OddArchive::usual("missing-index-of-a-component", missing_component).components("main contrib"),
    OddArchive::usual("missing-index", missing_index),
    OddArchive::usual("missing-translation", |draft| draft.list("main/i18n/Translation-en.bz2", b"a translation")),
    OddArchive::usual("missing-contents", |draft| draft.list("main/Contents-amd64.gz", b"a list")),
    OddArchive::usual("missing-pdiff", |draft| {
        draft.list("main/binary-amd64/Packages.diff/Index", b"SHA256-Current:\n")
    }),
    // apt-mirror/apt-mirror#181
    OddArchive::usual("by-hash-promised", |draft| draft.set("Acquire-By-Hash", "yes")),
    OddArchive::usual("by-hash-only", by_hash_only),
    OddArchive::usual("index-unlisted", index_unlisted),
];

/// A package that is gone for ever (owncloud/core#24887, aptly-dev/aptly#1530: Jenkins).
fn missing_package(draft: &mut Draft) {
    let path = value(draft.first(), "Filename").to_owned();
    draft.files.remove(&path);
}

/// A repository that keeps old stanzas (aptly-dev/aptly#1530).
fn missing_half(draft: &mut Draft) {
    let gone: Vec<String> = draft.stanzas.iter().step_by(2).map(|stanza| value(stanza, "Filename").into()).collect();
    gone.iter().for_each(|path| drop(draft.files.remove(path)));
}

/// The plain index is listed and absent (aptly-dev/aptly#69, aptly-dev/aptly#129).
fn missing_plain(draft: &mut Draft) {
    draft.forms = vec![Form::Gz];
    let text = draft.index_text();
    draft.list("main/binary-amd64/Packages", text.as_bytes());
}

/// The best form of the index is listed and absent (pulp/pulp_deb#520).
fn missing_best(draft: &mut Draft) {
    let xz = Form::Xz.compress(draft.index_text().as_bytes()).expect("xz writes into memory");
    draft.list("main/binary-amd64/Packages.xz", &xz);
}

/// All forms of one component's index are listed and absent, as deb.sury.org once had it.
fn missing_component(draft: &mut Draft) {
    draft.set("Components", "main contrib");
    draft.list("contrib/binary-amd64/Packages", b"Package: a\n");
    draft.list("contrib/binary-amd64/Packages.gz", b"compressed");
}

/// The only index is absent (aptly-dev/aptly#250).
fn missing_index(draft: &mut Draft) {
    draft.forms.clear();
    let text = draft.index_text();
    draft.list("main/binary-amd64/Packages", text.as_bytes());
}

/// Indexes exist by hash alone (aptly-dev/aptly#664).
fn by_hash_only(draft: &mut Draft) {
    draft.set("Acquire-By-Hash", "yes");
    let text = draft.index_text();
    for form in std::mem::take(&mut draft.forms) {
        let bytes = form.compress(text.as_bytes()).expect("compressors write into memory");
        let by_hash = format!("{}main/binary-amd64/by-hash/SHA256/{}", draft.directory, Algorithm::Sha256.of(&bytes));
        draft.files.insert(by_hash, bytes.clone());
        draft.index_as(form.suffix(), &bytes);
        let path = format!("{}{}{}", draft.directory, draft.index, form.suffix());
        draft.files.remove(&path);
    }
}

/// Another form is there and not listed, and it is old (flathub-infra/flatpak-external-data-checker#13: Chrome).
fn index_unlisted(draft: &mut Draft) {
    let old = Form::Bz2.compress(b"Package: old\n").expect("bzip2 writes into memory");
    draft.files.insert("dists/stable/main/binary-amd64/Packages.bz2".to_owned(), old);
}
