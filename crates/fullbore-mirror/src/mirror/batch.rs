//! The files of one fetch: files of the plan, then indexes by their hash.

use std::sync::Arc;

use fullbore_engine::digest::Sha256;
use fullbore_engine::landing::FileSpec;
use fullbore_wire::fetch::Catalogue;
use fullbore_wire::queue::{Item, ItemId};

use super::plan::{FileId, Plan};
use super::session::Session;
use super::state::index_path;
use super::subtract::FileSet;

/// An index to fetch into the store of files by hash.
#[derive(Debug, Clone)]
pub(crate) struct IndexDownload {
    /// Path on the mirrors, by hash if the archive has by-hash paths.
    pub path: String,
    /// The plain path, if it differs.
    pub other_path: Option<String>,
    /// Size of the served file in bytes.
    pub size: u64,
    /// SHA-256, which names the file in the store.
    pub sha256: Sha256,
}

/// Files of a plan, numbered as in the plan, followed by indexes.
pub(crate) struct Files {
    plan: Option<(Arc<Plan>, FileSet)>,
    /// Sizes that mirrors reported for files without a size in their index.
    learned: Vec<(FileId, u64)>,
    indexes: Vec<IndexDownload>,
}

impl Files {
    /// Indexes alone, before there is a plan.
    pub(crate) fn of_indexes(indexes: Vec<IndexDownload>) -> Files {
        Files { plan: None, learned: Vec::new(), indexes }
    }

    /// Files of a plan; those in `replace` are fetched into the store. `learned` is sorted by file.
    pub(crate) fn of_plan(
        plan: Arc<Plan>,
        replace: FileSet,
        learned: Vec<(FileId, u64)>,
        indexes: Vec<IndexDownload>,
    ) -> Files {
        Files { plan: Some((plan, replace)), learned, indexes }
    }

    fn first_index(&self) -> ItemId {
        self.plan.as_ref().map_or(0, |(plan, _)| plan.len() as ItemId)
    }

    /// The index of an item, unless it is a file of the plan.
    pub(crate) fn index(&self, item: ItemId) -> Option<&IndexDownload> {
        self.indexes.get(item.checked_sub(self.first_index())? as usize)
    }

    /// The items to fetch: `files` of the plan, and all indexes.
    pub(crate) fn items(&self, files: &[FileId], session: &Session) -> Vec<Item> {
        let last = self.first_index() + self.indexes.len() as ItemId;
        files
            .iter()
            .copied()
            .chain(self.first_index()..last)
            .map(|id| {
                let spec = self.spec(id);
                let present = session.site.landing.present(&spec.path, spec.size, spec.sha256);
                Item { id, size: spec.size, present, ..Item::default() }
            })
            .collect()
    }
}

impl Catalogue for Files {
    fn path(&self, item: ItemId) -> String {
        match (self.index(item), &self.plan) {
            (Some(index), _) => index.path.clone(),
            (None, Some((plan, _))) => plan.file(item).path.to_owned(),
            (None, None) => String::new(),
        }
    }

    fn other_path(&self, item: ItemId) -> Option<String> {
        self.index(item)?.other_path.clone()
    }

    fn sha256(&self, item: ItemId) -> Sha256 {
        self.spec(item).sha256
    }

    fn spec(&self, item: ItemId) -> FileSpec {
        if let Some(index) = self.index(item) {
            return FileSpec {
                item,
                path: index_path(index.sha256),
                size: index.size,
                sha256: index.sha256,
                mtime: None,
            };
        }
        let Some((plan, replace)) = &self.plan else {
            return FileSpec { item, path: String::new(), size: 0, sha256: Sha256::EMPTY, mtime: None };
        };
        let file = plan.file(item);
        let path = if replace.contains(item) { index_path(file.sha256) } else { file.path.to_owned() };
        let learned = || self.learned.binary_search_by_key(&item, |(id, _)| *id).ok().map(|at| self.learned[at].1);
        let size = file.known_size().or_else(learned).unwrap_or(0);
        FileSpec { item, path, size, sha256: file.sha256, mtime: None }
    }
}
