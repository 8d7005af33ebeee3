//! Reads indexes into the plan.

use std::io::BufRead;

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::diff_index::DiffIndex;
use fullbore_debian::index::{self, IndexError};
use fullbore_debian::release::Release;

use super::filter::{Candidate, PackageFacts};
use super::plan::{IndexId, PlanBuilder, PlanError, SIZE_UNKNOWN};
use super::select::Reading;

/// Plain text accepted from an index whose plain form the Release does not list: this many
/// times the compressed size. Debian's indexes have 4 to 6, Contents up to 14; a guess with room.
const EXPANSION_MAX: u64 = 100;

/// Smallest limit, for tiny indexes that compress well.
const PLAIN_BYTES_MIN: u64 = 1 << 20;

/// An index that cannot be read into the plan.
#[derive(Debug, thiserror::Error)]
pub enum IndexReadError {
    /// An impossible entry.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Malformed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// It cannot be decompressed.
    #[error("cannot decompress: {0}")]
    Compression(#[source] std::io::Error),
}

/// The most bytes of plain text that an index may have. Its size in the Release, when the
/// plain form is listed, is exact; `stem` is the path without the form's ending.
pub fn plain_bytes_max(release: &Release, stem: &str, compressed_bytes: u64) -> u64 {
    release
        .find(stem)
        .map_or_else(|| compressed_bytes.saturating_mul(EXPANSION_MAX).max(PLAIN_BYTES_MIN), |entry| entry.size)
}

/// Adds the files that an index names to the plan. `path` is the index's path below the archive's root, `input` its
/// verified content as served. Returns the number of entries.
///
/// # Errors
/// A damaged index, conflicts with other indexes.
pub fn read_index<R: BufRead>(
    plan: &mut PlanBuilder,
    id: IndexId,
    reading: Reading,
    path: &str,
    form: Form,
    plain_bytes_max: u64,
    input: R,
) -> Result<u64, IndexReadError> {
    let reader = Reader::open(form, input, plain_bytes_max).map_err(IndexReadError::Compression)?;
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let count = match reading {
        Reading::Packages => packages(plan, id, reader)?,
        Reading::Sources => sources(plan, id, reader)?,
        Reading::InstallerSums => installer_sums(plan, id, directory, reader)?,
        Reading::DiffIndex => patches(plan, id, directory, reader)?,
    };
    plan.end_index(id)?;
    Ok(count)
}

fn packages(plan: &mut PlanBuilder, id: IndexId, reader: impl std::io::Read) -> Result<u64, IndexReadError> {
    index::packages(reader, |entry| {
        let package = PackageFacts {
            name: entry.package,
            architecture: entry.architecture,
            version: entry.version,
            source: entry.source,
            section: entry.section.unwrap_or_default(),
            priority: entry.priority.unwrap_or_default(),
        };
        let candidate = Candidate { path: entry.path, size: entry.size, sha256: entry.sha256, package: Some(package) };
        plan.add(id, &candidate).map_err(IndexReadError::from)
    })
}

fn sources(plan: &mut PlanBuilder, id: IndexId, reader: impl std::io::Read) -> Result<u64, IndexReadError> {
    let mut path = String::new();
    index::sources(reader, |entry| {
        let package = PackageFacts {
            name: entry.package,
            architecture: "source",
            version: entry.version,
            source: entry.package,
            section: entry.section.unwrap_or_default(),
            priority: entry.priority.unwrap_or_default(),
        };
        for file in entry.files() {
            let path = file.path_in(&mut path);
            let candidate = Candidate { path, size: file.size, sha256: file.sha256, package: Some(package) };
            plan.add(id, &candidate)?;
        }
        Ok::<_, IndexReadError>(())
    })
}

fn installer_sums(
    plan: &mut PlanBuilder,
    id: IndexId,
    directory: &str,
    reader: impl std::io::Read,
) -> Result<u64, IndexReadError> {
    index::sha256sums(std::io::BufReader::new(reader), |entry| {
        let path = format!("{directory}/{}", entry.path);
        let candidate = Candidate { path: &path, size: SIZE_UNKNOWN, sha256: entry.sha256, package: None };
        plan.add(id, &candidate).map_err(IndexReadError::from)
    })
}

fn patches(
    plan: &mut PlanBuilder,
    id: IndexId,
    directory: &str,
    reader: impl std::io::Read,
) -> Result<u64, IndexReadError> {
    let mut count = 0;
    for patch in DiffIndex::parse(reader)?.downloads() {
        let path = format!("{directory}/{}", patch.name);
        plan.add(id, &Candidate { path: &path, size: patch.size, sha256: patch.sha256, package: None })?;
        count += 1;
    }
    Ok(count)
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
