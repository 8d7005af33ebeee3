//! Indexes in one form only, in another form than the name says, padded, empty, with other line ends.

use super::OddArchive;
use super::draft::Draft;
use crate::compression::Form;

pub(super) const ALL: &[OddArchive] = &[
    OddArchive::usual("form-plain-only", |draft| draft.forms = vec![Form::Plain]),
    OddArchive::usual("form-gz-only", |draft| named(draft, ".gz", &|text| Form::Gz.compress(text))),
    OddArchive::usual("form-bz2-only", |draft| named(draft, ".bz2", &|text| Form::Bz2.compress(text))),
    OddArchive::usual("form-xz-only", |draft| named(draft, ".xz", &|text| Form::Xz.compress(text))),
    OddArchive::usual("form-zst-only", |draft| named(draft, ".zst", &|text| Form::Zst.compress(text))),
    OddArchive::usual("form-lzma-only", |draft| named(draft, ".lzma", &lzma)),
    OddArchive::usual("form-lzma-in-xz", |draft| named(draft, ".xz", &lzma)),
    OddArchive::usual("form-gz-in-xz", |draft| named(draft, ".xz", &|text| Form::Gz.compress(text))),
    OddArchive::usual("form-xz-in-gz", |draft| named(draft, ".gz", &|text| Form::Xz.compress(text))),
    OddArchive::usual("form-gz-in-plain", |draft| named(draft, "", &|text| Form::Gz.compress(text))),
    OddArchive::usual("form-plain-in-gz", |draft| named(draft, ".gz", &|text| Ok(text.to_vec()))),
    OddArchive::usual("form-plain-in-xz", |draft| named(draft, ".xz", &|text| Ok(text.to_vec()))),
    OddArchive::usual("form-gz-padded", |draft| named(draft, ".gz", &|text| padded(Form::Gz, text))),
    OddArchive::usual("form-xz-padded", |draft| named(draft, ".xz", &|text| padded(Form::Xz, text))),
    OddArchive::usual("form-gz-cut", |draft| named(draft, ".gz", &cut)),
    OddArchive::usual("form-empty-gz", |draft| empty(draft, ".gz", b"")),
    OddArchive::usual("form-empty-plain", |draft| empty(draft, "", b"")),
    OddArchive::usual("form-gz-of-nothing", gz_of_nothing),
    OddArchive::usual("crlf-packages", |draft| named(draft, "", &|text| Ok(crlf(text)))),
    OddArchive::usual("crlf-packages-gz", crlf_gz),
];

/// The index alone, made by `make`, under this ending. The plain text is listed, as APT wants it, and absent.
fn named(draft: &mut Draft, ending: &str, make: &dyn Fn(&[u8]) -> std::io::Result<Vec<u8>>) {
    let text = draft.index_text();
    of_text(draft, ending, text.as_bytes(), make);
}

fn of_text(draft: &mut Draft, ending: &str, text: &[u8], make: &dyn Fn(&[u8]) -> std::io::Result<Vec<u8>>) {
    draft.forms.clear();
    let bytes = make(text).expect("compressors write into memory");
    draft.index_as(ending, &bytes);
    if !ending.is_empty() {
        let path = draft.index.clone();
        draft.list(&path, text);
    }
}

/// An index without packages, as these bytes.
fn empty(draft: &mut Draft, ending: &str, bytes: &[u8]) {
    draft.stanzas.clear();
    of_text(draft, ending, b"", &|_| Ok(bytes.to_vec()));
}

/// A compressed file of nothing (oerdnj/deb.sury.org#1978).
fn gz_of_nothing(draft: &mut Draft) {
    let gz = Form::Gz.compress(b"").expect("gzip writes into memory");
    empty(draft, ".gz", &gz);
}

/// The form of LZMA utils, which `xz --format=lzma` writes (rickysarraf/apt-offline#24 asks for such files).
fn lzma(text: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::Write as _;
    let options = liblzma::stream::LzmaOptions::new_preset(6)?;
    let stream = liblzma::stream::Stream::new_lzma_encoder(&options)?;
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(text)?;
    encoder.finish()
}

/// Zeros at the end, as of a tool that writes whole blocks (openbao/openbao#3799).
fn padded(form: Form, text: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = form.compress(text)?;
    bytes.resize(bytes.len().next_multiple_of(512) + 512, 0);
    Ok(bytes)
}

/// The end is missing, and the Release was made afterwards (ntop/ntopng#6137).
fn cut(text: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Form::Gz.compress(text)?;
    bytes.truncate(bytes.len() - 20);
    Ok(bytes)
}

/// Line ends of Windows (sonatype-nexus-community/nexus-repository-apt#65).
fn crlf(text: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(text).replace('\n', "\r\n").into_bytes()
}

/// The same, compressed.
fn crlf_gz(draft: &mut Draft) {
    let text = crlf(draft.index_text().as_bytes());
    of_text(draft, ".gz", &text, &|text| Form::Gz.compress(text));
}
