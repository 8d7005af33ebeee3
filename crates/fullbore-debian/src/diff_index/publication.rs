//! Reads, extends and writes an `X.diff/Index` for an archive that publishes one.
//!
//! A client needs only SHA-256, in any order. A publisher keeps all existing entries. It also keeps SHA-1, for clients
//! that use it (approx, python-debian), and the time at which a file was superseded, because clients may still be
//! fetching it.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::Read;

use super::{DiffFile, LIST_ENTRIES_MAX, check_name, current, hash_and_size, invalid, is_merged, lines, list};
use crate::deb822::{Deb822Error, Limits, Stanza, Stanzas};
use crate::index::IndexError;
use fullbore_digest::Sha256;

/// Suffix of a patch as served; apt reads no other form.
const DOWNLOAD_ENDING: &str = ".gz";

/// A SHA-1 value. It names files in old protocols and verifies nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sha1(pub [u8; 20]);

impl Sha1 {
    /// Parses 40 hexadecimal digits; `None` for any other text.
    pub fn from_hex(digits: &[u8]) -> Option<Sha1> {
        let mut bytes = [0; 20];
        if digits.len() != 2 * bytes.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Sha1(bytes))
    }
}

impl fmt::Display for Sha1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Size and hashes of a file in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Size of the content, in bytes.
    pub size: u64,
    /// SHA-256 of the whole content.
    pub sha256: Sha256,
    /// SHA-1 of the content, if known.
    pub sha1: Option<Sha1>,
}

/// A patch and the state of the index that it applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPatch {
    /// Name of the patch, without `.gz`. apt applies patches in the order of their names.
    pub name: String,
    /// State of the index before the patch.
    pub history: Listed,
    /// Size and hash of the uncompressed patch.
    pub patch: Listed,
    /// Size and hash of the compressed patch, `NAME.gz`.
    pub download: Listed,
}

impl ListedPatch {
    /// File name of the compressed patch, `NAME.gz`.
    pub fn file(&self) -> String {
        format!("{}{DOWNLOAD_ENDING}", self.name)
    }
}

/// A file that is not in the lists any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OlderFile {
    /// File name in the directory of the `Index`.
    pub file: String,
    /// Time at which the lists dropped it, Unix time in seconds.
    pub since_unix_s: i64,
}

/// A complete `Index`, for the operator of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Size and hash of the current index.
    pub current: Listed,
    /// Patches from each state to the next, oldest first.
    pub steps: Vec<ListedPatch>,
    /// Patches from each state to `current`, oldest first. Clients get these if they exist.
    pub merged: Option<Vec<ListedPatch>>,
    /// Files kept for clients that still use the previous `Index`.
    pub older: Vec<OlderFile>,
}

/// Names of the six lists of one set of patches: SHA-256, SHA-1.
struct Fields {
    history: [&'static str; 2],
    patches: [&'static str; 2],
    download: [&'static str; 2],
}

const MAIN: Fields = Fields {
    history: ["SHA256-History", "SHA1-History"],
    patches: ["SHA256-Patches", "SHA1-Patches"],
    download: ["SHA256-Download", "SHA1-Download"],
};

const UNMERGED: Fields = Fields {
    history: ["X-Unmerged-SHA256-History", "X-Unmerged-SHA1-History"],
    patches: ["X-Unmerged-SHA256-Patches", "X-Unmerged-SHA1-Patches"],
    download: ["X-Unmerged-SHA256-Download", "X-Unmerged-SHA1-Download"],
};

/// A field of fullbore; apt and others ignore unknown fields.
const OLDER: &str = "X-Older-Files";

impl Publication {
    /// Parses an `Index` written by any program.
    ///
    /// # Errors
    /// [`IndexError::Syntax`] if it is not a control file of one stanza; [`IndexError::Missing`] or
    /// [`IndexError::Invalid`] without SHA-256 lists, or if the lists name different patches.
    pub fn parse(reader: impl Read) -> Result<Publication, IndexError> {
        let mut stanzas = Stanzas::new(reader, Limits::RELEASE);
        let Some(stanza) = stanzas.next()? else {
            return Err(IndexError::Missing { line: 1, field: "SHA256-Current" });
        };
        let (sha256, size) = current(&stanza)?;
        let sha1 = stanza.get_text("SHA1-Current")?.and_then(|value| {
            let (sha1, sized, rest) = hash_and_size(value, Sha1::from_hex)?;
            (sized == size && rest.is_none()).then_some(sha1)
        });
        let main = patches(&stanza, &MAIN)?;
        let (steps, merged) =
            if is_merged(&stanza) { (patches(&stanza, &UNMERGED)?, Some(main)) } else { (main, None) };
        let publication = Publication { current: Listed { size, sha256, sha1 }, steps, merged, older: older(&stanza)? };
        match stanzas.next()? {
            Some(second) => Err(Deb822Error::Line { line: second.line(), what: "a second stanza" }.into()),
            None => Ok(publication),
        }
    }

    /// All patches in the list, those of `steps` first.
    pub fn patches(&self) -> impl Iterator<Item = &ListedPatch> {
        self.steps.iter().chain(self.merged.iter().flatten())
    }

    /// Formats the `Index`. It has SHA-1 lists only if every SHA-1 is known: an incomplete list would mislead
    /// programs that read nothing else.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let listed = |patch: &ListedPatch| [patch.history.sha1, patch.patch.sha1, patch.download.sha1];
        let all_sha1 = self.current.sha1.is_some() && self.patches().flat_map(listed).all(|sha1| sha1.is_some());
        let main = self.merged.as_ref().unwrap_or(&self.steps);
        let unmerged = self.merged.is_some().then_some(&self.steps);
        let hashes = [(0, true), (1, all_sha1)].into_iter().filter(|(_, wanted)| *wanted).map(|(hash, _)| hash);
        for hash in hashes.rev() {
            let _ =
                writeln!(text, "{}: {}", ["SHA256-Current", "SHA1-Current"][hash], entry(&self.current, hash, None));
            write_lists(&mut text, &MAIN, main, hash);
            if let Some(unmerged) = unmerged {
                write_lists(&mut text, &UNMERGED, unmerged, hash);
            }
        }
        if self.merged.is_some() {
            text.push_str("X-Patch-Precedence: merged\n");
        }
        if !self.older.is_empty() {
            let _ = writeln!(text, "{OLDER}:");
            for older in &self.older {
                let _ = writeln!(text, " {} {}", older.since_unix_s, older.file);
            }
        }
        text
    }
}

fn write_lists(text: &mut String, fields: &Fields, patches: &[ListedPatch], hash: usize) {
    let mut list = |field: &str, of: &dyn Fn(&ListedPatch) -> (Listed, String)| {
        let _ = writeln!(text, "{field}:");
        for patch in patches {
            let (listed, name) = of(patch);
            let _ = writeln!(text, " {}", entry(&listed, hash, Some(&name)));
        }
    };
    list(fields.history[hash], &|patch| (patch.history, patch.name.clone()));
    list(fields.patches[hash], &|patch| (patch.patch, patch.name.clone()));
    list(fields.download[hash], &|patch| (patch.download, patch.file()));
}

fn entry(listed: &Listed, hash: usize, name: Option<&str>) -> String {
    let digits = match (hash, listed.sha1) {
        (1, Some(sha1)) => sha1.to_string(),
        _ => listed.sha256.to_string(),
    };
    let Listed { size, .. } = listed;
    match name {
        Some(name) => format!("{digits} {size:>10} {name}"),
        None => format!("{digits} {size}"),
    }
}

/// Builds a set of patches from lists that must have the same names in the same order.
fn patches(stanza: &Stanza<'_>, fields: &Fields) -> Result<Vec<ListedPatch>, IndexError> {
    let history = listed(stanza, &fields.history)?;
    let patches = listed(stanza, &fields.patches)?;
    let download = listed(stanza, &fields.download)?;
    let apart = |field, name: &str| invalid(stanza, field, name, "is not what the other lists have there");
    if patches.len() != history.len() || download.len() != history.len() {
        return Err(apart(fields.patches[0], "its length"));
    }
    let lists = history.into_iter().zip(patches).zip(download);
    let joined = lists.map(|(((name, history), (patch_name, patch)), (file, download))| {
        if patch_name != name {
            return Err(apart(fields.patches[0], &patch_name));
        }
        if file.strip_suffix(DOWNLOAD_ENDING) != Some(&name) {
            return Err(apart(fields.download[0], &file));
        }
        Ok(ListedPatch { name, history, patch, download })
    });
    joined.collect()
}

/// Reads a list of SHA-256, with SHA-1 if the other list has the same name and size.
fn listed(stanza: &Stanza<'_>, fields: &[&'static str; 2]) -> Result<Vec<(String, Listed)>, IndexError> {
    let mut weak = HashMap::new();
    for line in lines(stanza, fields[1])? {
        if let Some((sha1, size, Some(name))) = hash_and_size(line, Sha1::from_hex) {
            weak.insert((name, size), sha1);
        }
    }
    let with_sha1 = |file: DiffFile| {
        let sha1 = weak.get(&(file.name.as_str(), file.size)).copied();
        (file.name, Listed { size: file.size, sha256: file.sha256, sha1 })
    };
    Ok(list(stanza, fields[0])?.into_iter().map(with_sha1).collect())
}

fn older(stanza: &Stanza<'_>) -> Result<Vec<OlderFile>, IndexError> {
    let mut files = Vec::new();
    for line in lines(stanza, OLDER)? {
        let mut words = line.split_ascii_whitespace();
        let since = words.next().and_then(|since| since.parse().ok());
        let (Some(since_unix_s), Some(file), None) = (since, words.next(), words.next()) else {
            return Err(invalid(stanza, OLDER, line, "is not `seconds name`"));
        };
        check_name(stanza, file)?;
        files.push(OlderFile { file: file.to_owned(), since_unix_s });
    }
    debug_assert!(files.len() <= LIST_ENTRIES_MAX, "bounded by lines()");
    Ok(files)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::DiffIndex;
    use super::*;

    fn listed(number: u8, sha1: bool) -> Listed {
        Listed {
            size: u64::from(number) * 1000,
            sha256: Sha256([number; 32]),
            sha1: sha1.then_some(Sha1([number; 20])),
        }
    }

    fn patch(name: &str, number: u8, sha1: bool) -> ListedPatch {
        let [history, patch, download] = [number, number + 1, number + 2].map(|number| listed(number, sha1));
        ListedPatch { name: name.to_owned(), history, patch, download }
    }

    fn publication(sha1: bool) -> Publication {
        Publication {
            current: listed(200, sha1),
            steps: vec![patch("2026-10-29-2000.12", 1, sha1), patch("2026-10-30-0800.52", 11, sha1)],
            merged: None,
            older: vec![OlderFile { file: "2026-10-01-0800.00.gz".to_owned(), since_unix_s: 1_793_347_200 }],
        }
    }

    fn merged(sha1: bool) -> Publication {
        let merged = vec![patch("T-2026-10-30-0800.52-F-2026-10-29-2000.12", 21, sha1)];
        Publication { merged: Some(merged), ..publication(sha1) }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for publication in [publication(true), publication(false), merged(true), merged(false)] {
            let text = publication.render();
            assert_eq!(Publication::parse(text.as_bytes()).expect("our own"), publication, "{text}");
        }
    }

    #[test]
    fn clients_read_what_is_written() {
        let index = DiffIndex::parse(publication(true).render().as_bytes()).expect("our own");
        assert!(!index.merged && index.unmerged.downloads.is_empty());
        assert_eq!(index.main.downloads[1].name, "2026-10-30-0800.52.gz");
        assert_eq!(index.main.history[0].sha256, Sha256([1; 32]));
        let index = DiffIndex::parse(merged(true).render().as_bytes()).expect("our own");
        assert!(index.merged);
        assert_eq!(index.main.patches[0].size, 22_000);
        assert_eq!(index.unmerged.history[1].name, "2026-10-30-0800.52");
    }

    #[test]
    fn a_list_of_sha1_is_whole_or_absent() {
        let mut one_missing = publication(true);
        one_missing.steps[1].patch.sha1 = None;
        assert!(!one_missing.render().contains("SHA1"));
        assert!(publication(true).render().contains("SHA1-Patches:\n"));
    }

    #[test]
    fn lists_that_do_not_belong_together_are_refused() {
        let text = publication(true).render();
        for (from, to) in [
            (" 2026-10-30-0800.52.gz", " 2026-10-30-0800.53.gz"),
            (" 2026-10-30-0800.52.gz", " 2026-10-30-0800.52.xz"),
            (" 2026-10-29-2000.12\n", " ../2026-10-29-2000.12\n"),
            ("SHA256-History:\n", "SHA256-History:\n 00 1 x\n"),
            (" 1793347200 ", " tomorrow "),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);
            assert!(Publication::parse(changed.as_bytes()).is_err(), "{changed}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in "(SHA(1|256)-(Current|Download|History|Patches)|X-Older-Files|X-Patch-Precedence: merged|: ?|\n|\n |[a-f0-9]{40}|[a-f0-9]{64}|[a-z0-9.]{1,9}| ){0,40}") {
            if let Ok(publication) = Publication::parse(text.as_bytes()) {
                prop_assert!(Publication::parse(publication.render().as_bytes()).is_ok());
            }
        }
    }
}
