//! Reads indexes into the plan, entry by entry.

use std::io::BufRead;

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::diff_index::DiffIndex;
use fullbore_debian::index::{self, IndexError, OddEntry};
use fullbore_debian::release::Release;

use super::filter::{Candidate, PackageFacts};
use super::plan::{IndexId, PlanBuilder, PlanError, SIZE_UNKNOWN};
use super::select::Reading;

/// Limit for the plain size of an index whose plain form is not in the Release, as a multiple of the compressed size.
/// Debian's indexes have factors of 4 to 6, Contents up to 14. A guess with room.
const EXPANSION_MAX: u64 = 100;

/// Minimum of this limit, for tiny indexes that compress well.
const PLAIN_BYTES_MIN: u64 = 1 << 20;

/// Maximum number of lines about odd entries of one index; further ones are only counted. A guess: more than anybody
/// reads.
const LINES_MAX: usize = 1000;

/// If more than one entry in this number is odd, the index as a whole counts as faulty.
const ODD_SHARE: u64 = 10;

/// Numbers of entries in an index.
#[derive(Debug, Default)]
pub(crate) struct IndexTally {
    /// Number of all entries.
    pub entries: u64,
    /// Number of wanted entries that cannot be verified.
    pub odd: u64,
    /// A line about each of these entries, up to a limit.
    pub lines: Vec<String>,
}

impl IndexTally {
    /// Whether so many entries are odd that a mirror without them would be useless.
    pub(crate) fn is_mostly_odd(&self) -> bool {
        self.odd * ODD_SHARE > self.entries
    }

    fn add(&mut self, line: String) {
        self.odd += 1;
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        }
    }
}

/// Why an index cannot be read into the plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IndexReadError {
    /// An entry that no plan can contain.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The index is malformed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// An unusable entry, where every file must be known.
    #[error("{0}")]
    Odd(String),
    /// The index cannot be decompressed.
    #[error("cannot decompress: {0}")]
    Compression(#[source] std::io::Error),
}

/// Maximum plain size of an index, in bytes. It is exact if the Release lists the plain form. `stem` is the path
/// without the extension of the form.
pub(crate) fn plain_bytes_max(release: &Release, stem: &str, compressed_bytes: u64) -> u64 {
    release
        .find(stem)
        .map_or_else(|| compressed_bytes.saturating_mul(EXPANSION_MAX).max(PLAIN_BYTES_MIN), |entry| entry.size)
}

/// Adds the files that an index names to the plan. `path` is the path of the index relative to the archive's root, and
/// `input` its verified content as served. Entries that cannot be verified are left out and named in the result.
///
/// # Errors
/// [`IndexReadError`] if the index cannot be decompressed or parsed, or an entry exceeds the limits of a plan.
pub(crate) fn read_index<R: BufRead>(
    plan: &mut PlanBuilder,
    id: IndexId,
    reading: Reading,
    path: &str,
    form: Form,
    plain_bytes_max: u64,
    input: R,
) -> Result<IndexTally, IndexReadError> {
    let reader = Reader::open(form, input, plain_bytes_max).map_err(IndexReadError::Compression)?;
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let tally = match reading {
        Reading::Packages => packages(plan, id, path, reader)?,
        Reading::Sources => sources(plan, id, path, reader)?,
        Reading::InstallerSums => installer_sums(plan, id, directory, reader)?,
        Reading::DiffIndex => patches(plan, id, directory, reader)?,
    };
    plan.end_index(id)?;
    Ok(tally)
}

/// Leaves out an odd entry and adds a line about it, unless the filters leave it out anyway.
fn leave_out(plan: &mut PlanBuilder, id: IndexId, path: &str, odd: &OddEntry, tally: &mut IndexTally) {
    if plan.leave_out_odd(id, odd) {
        let name = if odd.package.is_empty() { "an entry" } else { &odd.package };
        let space = if odd.version.is_empty() { "" } else { " " };
        tally.add(format!("{path}: {name}{space}{} is left out: {}", odd.version, odd.fault));
    }
}

fn packages(
    plan: &mut PlanBuilder,
    id: IndexId,
    path: &str,
    reader: impl std::io::Read,
) -> Result<IndexTally, IndexReadError> {
    let mut tally = IndexTally::default();
    tally.entries = index::packages_and_odd(reader, |entry| {
        let entry = match entry {
            Ok(entry) => entry,
            Err(odd) => {
                leave_out(plan, id, path, &odd, &mut tally);
                return Ok(());
            }
        };
        let package = PackageFacts {
            name: entry.package,
            architecture: entry.architecture,
            version: entry.version,
            source: entry.source,
            section: entry.section.unwrap_or_default(),
            priority: entry.priority.unwrap_or_default(),
        };
        let candidate = Candidate { path: entry.path, size: entry.size, sha256: entry.sha256, package: Some(package) };
        add(plan, id, &candidate, &mut tally)
    })?;
    Ok(tally)
}

/// Adds a file. An entry with a path that a mirror cannot have is left out, with a line about it.
fn add(
    plan: &mut PlanBuilder,
    id: IndexId,
    candidate: &Candidate<'_>,
    tally: &mut IndexTally,
) -> Result<(), IndexReadError> {
    match plan.add(id, candidate) {
        Err(error) if error.is_of_entry() => {
            tally.add(format!("{error}; it is left out"));
            Ok(())
        }
        other => Ok(other?),
    }
}

fn sources(
    plan: &mut PlanBuilder,
    id: IndexId,
    path: &str,
    reader: impl std::io::Read,
) -> Result<IndexTally, IndexReadError> {
    let mut buffer = String::new();
    let mut tally = IndexTally::default();
    tally.entries = index::sources_and_odd(reader, |entry| {
        let entry = match entry {
            Ok(entry) => entry,
            Err(odd) => {
                leave_out(plan, id, path, &odd, &mut tally);
                return Ok(());
            }
        };
        let package = PackageFacts {
            name: entry.package,
            architecture: "source",
            version: entry.version,
            source: entry.package,
            section: entry.section.unwrap_or_default(),
            priority: entry.priority.unwrap_or_default(),
        };
        for file in entry.files() {
            let path = file.path_in(&mut buffer);
            let candidate = Candidate { path, size: file.size, sha256: file.sha256, package: Some(package) };
            add(plan, id, &candidate, &mut tally)?;
        }
        Ok::<_, IndexReadError>(())
    })?;
    Ok(tally)
}

fn installer_sums(
    plan: &mut PlanBuilder,
    id: IndexId,
    directory: &str,
    reader: impl std::io::Read,
) -> Result<IndexTally, IndexReadError> {
    let entries = index::sha256sums(std::io::BufReader::new(reader), |entry| {
        let path = format!("{directory}/{}", entry.path);
        let candidate = Candidate { path: &path, size: SIZE_UNKNOWN, sha256: entry.sha256, package: None };
        plan.add(id, &candidate).map_err(IndexReadError::from)
    })?;
    Ok(IndexTally { entries, ..IndexTally::default() })
}

fn patches(
    plan: &mut PlanBuilder,
    id: IndexId,
    directory: &str,
    reader: impl std::io::Read,
) -> Result<IndexTally, IndexReadError> {
    let mut entries = 0;
    for patch in DiffIndex::parse(reader)?.downloads() {
        let path = format!("{directory}/{}", patch.name);
        plan.add(id, &Candidate { path: &path, size: patch.size, sha256: patch.sha256, package: None })?;
        entries += 1;
    }
    Ok(IndexTally { entries, ..IndexTally::default() })
}

#[cfg(test)]
mod tests {
    use fullbore_engine::digest::Sha256;

    use super::*;
    use crate::settings::Filters;

    fn read(reading: Reading, path: &str, text: &str, filters: Filters) -> Vec<(String, Option<u64>)> {
        let mut plan = PlanBuilder::new(filters);
        let id = plan.index(path, 0).unwrap();
        read_index(&mut plan, id, reading, path, Form::Plain, text.len() as u64, text.as_bytes()).unwrap();
        let plan = plan.finish().unwrap();
        plan.files().map(|file| (file.path.to_owned(), file.known_size())).collect()
    }

    #[test]
    fn what_nobody_can_vouch_for_is_named_and_left_out() {
        let hash = Sha256::EMPTY;
        let stanza = |name: &str, file: &str, hash: &str| {
            format!("Package: {name}\nVersion: 1\nArchitecture: all\nFilename: {file}\nSize: 5\n{hash}\n")
        };
        let sound = stanza("sound", "/pool//s/sound.deb", &format!("SHA256: {hash}\n")).repeat(9);
        for (odd, why) in [
            (
                stanza("odd", "pool/o/odd.deb", "MD5sum: 00\n"),
                "x/Packages: odd 1 is left out: entry at line 64: no SHA-256",
            ),
            (stanza("odd", "../../odd.deb", &format!("SHA256: {hash}\n")), "odd 1 is left out: entry at line 64: path"),
            (stanza("odd", "snapshots/a/b", &format!("SHA256: {hash}\n")), "a reserved path; it is left out"),
        ] {
            let text = format!("{sound}{odd}");
            let tally_of = |text: &str, filters: Filters| {
                let mut plan = PlanBuilder::new(filters);
                let id = plan.index("x/Packages", 0).unwrap();
                let (limit, input) = (text.len() as u64, text.as_bytes());
                let tally = read_index(&mut plan, id, Reading::Packages, "x/Packages", Form::Plain, limit, input);
                (tally.unwrap(), plan.finish().unwrap())
            };
            let (tally, plan) = tally_of(&text, Filters::default());
            assert_eq!((tally.entries, tally.odd, tally.is_mostly_odd()), (10, 1, false));
            assert!(tally.lines[0].contains(why), "{:?}", tally.lines);
            assert_eq!(plan.files().map(|file| file.path).collect::<Vec<_>>(), ["pool/s/sound.deb"]);
            assert!(tally_of(&format!("{text}{odd}"), Filters::default()).0.is_mostly_odd(), "2 of 11");
            let exclude =
                Filters { exclude: vec!["odd".parse().unwrap(), "/a/b".parse().unwrap()], ..Filters::default() };
            assert_eq!(tally_of(&text, exclude).0.odd, 0, "nobody judges what nobody wants");
        }
    }

    #[test]
    fn each_kind_names_files_in_its_own_way() {
        let hash = Sha256::EMPTY;
        let packages = format!(
            "Package: hello\nVersion: 1\nArchitecture: amd64\nSection: devel\nFilename: pool/h/hello_1_amd64.deb\nSize: 5\nSHA256: {hash}\n\n\
             Package: hello-doc\nVersion: 1\nArchitecture: all\nSection: doc\nFilename: ./pool/h/hello-doc_1_all.deb\nSize: 6\nSHA256: {hash}\n"
        );
        let found = read(Reading::Packages, "dists/x/main/binary-amd64/Packages", &packages, Filters::default());
        assert_eq!(
            found,
            [("pool/h/hello-doc_1_all.deb".to_owned(), Some(6)), ("pool/h/hello_1_amd64.deb".to_owned(), Some(5))]
        );
        let only_doc = Filters { sections: vec!["doc".into()], ..Filters::default() };
        assert_eq!(read(Reading::Packages, "x", &packages, only_doc).len(), 1);

        let sources = format!(
            "Package: hello\nVersion: 1\nDirectory: pool/h\nChecksums-Sha256:\n {hash} 7 hello_1.dsc\n {hash} 8 hello_1.tar.xz\n"
        );
        let found = read(Reading::Sources, "dists/x/main/source/Sources", &sources, Filters::default());
        assert_eq!(found, [("pool/h/hello_1.dsc".to_owned(), Some(7)), ("pool/h/hello_1.tar.xz".to_owned(), Some(8))]);

        let sums = format!("{hash}  ./netboot/linux\n");
        let path = "dists/x/main/installer-amd64/current/images/SHA256SUMS";
        let found = read(Reading::InstallerSums, path, &sums, Filters::default());
        assert_eq!(found, [("dists/x/main/installer-amd64/current/images/netboot/linux".to_owned(), None)]);
    }
}
