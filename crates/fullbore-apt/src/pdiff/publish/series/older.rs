//! The new `Index`, and files that it does not list any more: they stay for those who are just
//! fetching them.

use std::collections::HashSet;

use fullbore_debian::diff_index::{ListedPatch, OlderFile, Publication};
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::is_part_name;
use fullbore_engine::run::error::CommandError;

use super::super::super::file_error;
use super::super::find::Index;
use super::before::Published;
use super::{Before, Change, Next, Series};

/// Files that stay beside those that are listed. A day of merged patches, four times over.
const OLDER_MAX: usize = 1_000;

/// Where names by hash are, below a directory of indexes. apt asks for the strongest hash of the
/// Release, and by the usual name if there is no such file.
const BY_HASH: &str = "by-hash/SHA256";
/// Older ones that stay however old they are: an archive may be published once a month.
const BY_HASH_KEPT: usize = 3;

impl Series<'_> {
    /// Decides on the new Index, and on files that leave it.
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
        // Those that leave the lists; and files of a run that was killed, or of an Index that
        // could not be continued.
        let dropped = published.last.iter().flat_map(Publication::patches).map(ListedPatch::file);
        let beside = self.root.list(&format!("{}.diff", index.path)).map_err(file_error)?;
        // The lock says that nobody else is writing them.
        let parts = beside.iter().filter_map(|(name, _)| name.to_str()).filter(|name| is_part_name(name));
        for part in parts.filter(|_| matches!(self.before, Before::Saved(_))) {
            self.root.unlink(&index.patch_path(part)).map_err(file_error)?;
        }
        let strays = beside.iter().filter_map(|(name, _)| name.to_str()).filter(|name| name.ends_with(".gz"));
        let since_unix_s = self.now_unix_s;
        older.extend(dropped.chain(strays.map(str::to_owned)).map(|file| OlderFile { file, since_unix_s }));
        let mut known = HashSet::new();
        older.retain(|older| !listed.contains(&older.file) && known.insert(older.file.clone()));
        (publication.older, next.expired) = self.split_older(index, older);
        next.change = Change::Write(publication.render());
        Ok(())
    }

    /// Files that stay for a while, and the paths of those that have stayed long enough.
    pub(super) fn split_older(&self, index: &Index, mut older: Vec<OlderFile>) -> (Vec<OlderFile>, Vec<String>) {
        older.sort_by(|a, b| (a.since_unix_s, &a.file).cmp(&(b.since_unix_s, &b.file)));
        let last = self.now_unix_s - self.keep_s;
        let too_old = older.partition_point(|older| older.since_unix_s < last);
        let kept = older.split_off(too_old.max(older.len().saturating_sub(OLDER_MAX)));
        (kept, older.into_iter().map(|older| index.patch_path(&older.file)).collect())
    }

    /// Where indexes have names by hash, the Index has one too: who reads the Release of before then
    /// finds the Index that it lists.
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
