//! Owners of paths: the `info/*.list` files of all packages.

use std::collections::HashMap;

use super::{DIRECTORY, Database, DatabaseError, State, content};
use crate::root::Root;

/// Labels of the packages that list a path.
#[derive(Debug, Default)]
pub(crate) struct FileOwners {
    labels: Vec<String>,
    paths: HashMap<Box<[u8]>, OwnerIds>,
}

/// Most paths have one owner; only directories have several.
#[derive(Debug)]
enum OwnerIds {
    One(u32),
    Many(Vec<u32>),
}

impl FileOwners {
    /// Reads the lists of all packages that have one. A removed package keeps the paths of its configuration files, and
    /// purging it deletes them. As in dpkg, a missing list is an empty one.
    ///
    /// # Errors
    /// [`DatabaseError::Root`] if a list cannot be read, [`DatabaseError::Content`] if its last line is incomplete.
    pub(crate) fn read(root: &Root, database: &Database) -> Result<FileOwners, DatabaseError> {
        let mut owners = FileOwners::default();
        for record in database.records().filter(|record| record.state != State::NotInstalled) {
            let label = record.label();
            let path = format!("{DIRECTORY}/info/{label}.list");
            let list = root.read(&path)?.unwrap_or_default();
            owners.add(&label, paths_of(&list).map_err(|what| content(&path, what))?);
        }
        Ok(owners)
    }

    /// Adds the paths of a package.
    pub(crate) fn add<'p>(&mut self, label: &str, paths: impl Iterator<Item = &'p [u8]>) {
        let number = u32::try_from(self.labels.len()).unwrap_or(u32::MAX);
        self.labels.push(label.to_owned());
        for path in paths {
            match self.paths.get_mut(path) {
                None => {
                    self.paths.insert(path.into(), OwnerIds::One(number));
                }
                Some(ids) => match ids {
                    OwnerIds::One(first) => *ids = OwnerIds::Many(vec![*first, number]),
                    OwnerIds::Many(numbers) => numbers.push(number),
                },
            }
        }
    }

    /// Paths of a package. Slow: searches all paths.
    pub(crate) fn paths_of(&self, label: &str) -> impl Iterator<Item = &[u8]> {
        let number = self.labels.iter().position(|known| known == label).map(|at| at as u32);
        let has = move |ids: &OwnerIds| match ids {
            OwnerIds::One(one) => Some(*one) == number,
            OwnerIds::Many(many) => number.is_some_and(|number| many.contains(&number)),
        };
        self.paths.iter().filter(move |(_, ids)| has(ids)).map(|(path, _)| &path[..])
    }

    /// Labels of the packages that list this path.
    pub(crate) fn of(&self, path: &[u8]) -> impl Iterator<Item = &str> {
        let numbers = match self.paths.get(path) {
            None => &[][..],
            Some(OwnerIds::One(number)) => std::slice::from_ref(number),
            Some(OwnerIds::Many(numbers)) => numbers,
        };
        numbers.iter().map(|number| &self.labels[*number as usize][..])
    }
}

/// Paths in a list; dpkg writes the root directory as `/.`.
fn paths_of(list: &[u8]) -> Result<impl Iterator<Item = &[u8]>, String> {
    if !list.is_empty() && !list.ends_with(b"\n") {
        return Err("its last line is not complete".to_owned());
    }
    Ok(list.split(|byte| *byte == b'\n').filter(|path| !path.is_empty()))
}
