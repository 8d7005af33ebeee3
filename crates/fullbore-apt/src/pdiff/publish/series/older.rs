//! The new `Index`, and unlisted files, which stay for clients that are fetching them.

use std::collections::HashSet;

use fullbore_debian::diff_index::{ListedPatch, OlderFile, Publication};
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::is_part_name;
use fullbore_engine::run::error::CommandError;

use super::super::super::file_error;
use super::super::find::Index;
use super::before::Published;
use super::{Before, Change, Next, Series};

/// Largest number of unlisted files that stay: a day of merged patches, four times.
const OLDER_MAX: usize = 1_000;

/// Directory of by-hash names below a directory of indexes. apt requests the strongest hash of the Release, and then the
/// plain name.
const BY_HASH: &str = "by-hash/SHA256";
/// Older by-hash files that always stay: an archive may be published once a month.
const BY_HASH_KEPT: usize = 3;

impl Series<'_> {
    /// Decides on the new Index, and on files to remove.
    pub(super) fn list(
        &self,
        index: &Index,
        next: &mut Next,
        published: &Published,
        mut publication: Publication,
    ) -> Result<(), CommandError> {
        if publication.steps.is_empty() {
            if published.is_here {
                next.change = Change::Remove;
            }
            return Ok(());
        }
        let listed: HashSet<String> = publication.patches().map(ListedPatch::file).collect();
        let mut older = published.last.as_ref().map(|last| last.older.clone()).unwrap_or_default();
        // Dropped patches, and files of a killed run or of an unusable Index.
        let dropped = published.last.iter().flat_map(Publication::patches).map(ListedPatch::file);
        let entries = self.root.list(&format!("{}.diff", index.path)).map_err(file_error)?;
        // The lock excludes other writers.
        let parts = entries.iter().filter_map(|(name, _)| name.to_str()).filter(|name| is_part_name(name));
        for part in parts.filter(|_| matches!(self.before, Before::Saved(_))) {
            self.root.unlink(&index.patch_path(part)).map_err(file_error)?;
        }
        let strays = entries.iter().filter_map(|(name, _)| name.to_str()).filter(|name| name.ends_with(".gz"));
        let since_unix_s = self.now_unix_s;
        older.extend(dropped.chain(strays.map(str::to_owned)).map(|file| OlderFile { file, since_unix_s }));
        let mut known = HashSet::new();
        older.retain(|older| !listed.contains(&older.file) && known.insert(older.file.clone()));
        (publication.older, next.expired) = self.split_older(index, older);
        next.change = Change::Write(publication.render());
        Ok(())
    }

    /// Splits unlisted files into those that stay and the paths of those to remove.
    pub(super) fn split_older(&self, index: &Index, mut older: Vec<OlderFile>) -> (Vec<OlderFile>, Vec<String>) {
        older.sort_by(|a, b| (a.since_unix_s, &a.file).cmp(&(b.since_unix_s, &b.file)));
        let last = self.now_unix_s - self.keep_s;
        let too_old = older.partition_point(|older| older.since_unix_s < last);
        let saved = older.split_off(too_old.max(older.len().saturating_sub(OLDER_MAX)));
        (saved, older.into_iter().map(|older| index.patch_path(&older.file)).collect())
    }

    /// Gives the Index a by-hash name if indexes have them, for clients of the previous Release.
    pub(super) fn name_by_hash(&self, index: &Index, path: &str, text: &str) -> Result<(), CommandError> {
        let beside = index.path.rsplit_once('/').map_or(String::new(), |(directory, _)| format!("{directory}/"));
        if self.root.stat(&format!("{beside}{BY_HASH}")).map_err(file_error)?.is_none() {
            return Ok(());
        }
        let directory = index.patch_path(BY_HASH);
        let name = format!("{directory}/{}", Sha256::of(text.as_bytes()));
        self.root.create_directory(&directory, 0o755).map_err(file_error)?;
        self.root.hard_link(path, &name).map_err(file_error)?;
        let mut older = Vec::new();
        for (entry, _) in self.root.list(&directory).map_err(file_error)? {
            let path = format!("{directory}/{}", entry.to_string_lossy());
            if let Some(status) = self.root.stat(&path).map_err(file_error)?.filter(|_| path != name) {
                older.push((status.mtime, path));
            }
        }
        older.sort();
        older.truncate(older.len().saturating_sub(BY_HASH_KEPT));
        for (_, path) in older.iter().filter(|(mtime, _)| *mtime < self.now_unix_s - self.keep_s) {
            self.root.unlink(path).map_err(file_error)?;
        }
        Ok(())
    }
}
