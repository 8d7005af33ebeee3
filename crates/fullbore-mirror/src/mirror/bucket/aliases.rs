//! Aliases of suites, such as `dists/stable` for `dists/trixie`: a store has no links, and so an alias is a directory of
//! copies.
//!
//! To the rest of the program such a directory is a symbolic link. The object [`MARKER`] in it names the target, is
//! written first and removed last, so that an alias is recognized even where the state is lost or a run was killed.
//! Copies are made within the store, in the order of publishing: files by hash, other files, `InRelease` last.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use fullbore_debian::path;
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::FileError;
use fullbore_s3::bucket::failure;
use fullbore_s3::objects::{Objects, Written};
use fullbore_s3::target::{Layout as _, NAMES_AT_ONCE, Overtaken};
use tokio::task::{JoinError, JoinSet};

use super::super::layout::{self, link_target};
use super::super::other_suites::SNAPSHOTS;
use super::super::signed_files::SIGNED_FILES;
use super::super::state::State;
use super::super::tree::Tree as _;
use super::tree::{KEPT_BYTES_MAX, Listed, StoreTree, failed};

/// The object of an alias that names its target.
const MARKER: &str = ".fullbore-alias";

/// Longest name in a marker that is read; names of suites are much shorter.
const MARKER_BYTES_MAX: u64 = 256;

/// How long files by hash of an alias's target before stay, from the change on, in seconds: a client that has read the
/// `InRelease` before, or that a cache has given it to, still asks for them. It is the retention of suites.
const OLD_COPIES_KEPT_S: i64 = 24 * 3600;

/// What is refused where another program has a directory.
const MAKE: &str = "replace by an alias";

/// A path, and the object that is there now.
type CopyResult = (String, Result<Listed, FileError>);

/// The steps of copying: a file of a later one appears after all of the earlier ones.
const STEPS: usize = 2 + SIGNED_FILES.len();

/// The step of files by hash.
const BY_HASH: usize = 0;

/// The path of an object to be copied, and its hash and size where they are known.
pub(super) type Copied = (String, Option<(Sha256, u64)>);

impl StoreTree {
    /// The directory below `dists/` that this path is or lies in, if it is an alias, and its target.
    pub(super) fn alias_of(&self, path: &str) -> Result<Option<(String, String)>, FileError> {
        let Some(below) = path.strip_prefix("dists/") else { return Ok(None) };
        let name = format!("dists/{}", below.split_once('/').map_or(below, |(name, _)| name));
        self.learn_aliases();
        let recorded = self.known().aliases.get(&name).cloned();
        match recorded {
            Some(None) => return Ok(None),
            Some(Some(target)) if self.is_as_recorded(&name, &target)? => return Ok(Some((name, target))),
            _ => {}
        }
        let marker = self.read(&format!("{name}/{MARKER}"), MARKER_BYTES_MAX)?;
        let target = marker.and_then(|marker| String::from_utf8(marker).ok()).map(|text| text.trim().to_owned());
        let target = target.filter(|target| path::check(target).is_ok() && !target.contains('/'));
        let mut known = self.known();
        known.aliases.insert(name.clone(), target.clone());
        known.confirmed.insert(name.clone());
        Ok(target.map(|target| (name, target)))
    }

    /// Whether a directory is still the alias that the state says it is: its `InRelease` is that of its target. Otherwise
    /// its marker tells, as it may be another program's by now.
    fn is_as_recorded(&self, link: &str, target: &str) -> Result<bool, FileError> {
        if self.known().confirmed.contains(link) {
            return Ok(true);
        }
        let signed = |directory: &str| self.read(&format!("{directory}/InRelease"), KEPT_BYTES_MAX as u64);
        let here = signed(link)?;
        let is_same = here.is_some() && here == signed(&format!("dists/{target}"))?;
        if is_same {
            self.known().confirmed.insert(link.to_owned());
        }
        Ok(is_same)
    }

    /// Refuses a directory of another program: objects without our marker. `dists/snapshots` is never an alias.
    fn refuse_what_is_not_ours(&self, link: &str, marker: Option<&[u8]>) -> Result<(), FileError> {
        self.list_top("dists")?;
        let is_in_the_way = marker.is_none() && below(&self.known().listed["dists"], link).next().is_some();
        if is_in_the_way || link == SNAPSHOTS {
            return Err(failed(MAKE, link, io::ErrorKind::AlreadyExists.into()));
        }
        Ok(())
    }

    /// Makes an alias, or removes it if there is no target. A directory of another program stays, and is noted.
    pub(super) fn change_alias(&self, target: Option<&str>, link: &str) -> Result<(), FileError> {
        let changed = match target {
            Some(target) => self.make_alias(target, link),
            None => self.remove_alias(link),
        };
        match changed {
            Err(FileError::Io { operation: MAKE, path, source }) if source.kind() == io::ErrorKind::AlreadyExists => {
                self.known().left.push(path);
                Ok(())
            }
            other => other,
        }
    }

    /// Directories of other programs in the place of aliases, which were left alone; each is told once.
    pub(crate) fn take_left(&self) -> Vec<String> {
        std::mem::take(&mut self.known().left)
    }

    /// Takes from the state which directories are aliases and which are not, unless that is done. So a run that finds
    /// nothing new asks for no marker.
    fn learn_aliases(&self) {
        if self.known().has_aliases {
            return;
        }
        let header = State::open(self.own(), "").map(|state| state.header).unwrap_or_default();
        let (mut aliases, mut suites) = (HashMap::new(), HashSet::new());
        for suite in header.suites.iter().filter(|suite| !suite.retired) {
            let target = link_target(&suite.directory);
            aliases.extend(suite.links.iter().map(|link| (link.clone(), Some(target.to_owned()))));
            if suite.directory.starts_with("dists/") {
                suites.insert(format!("dists/{target}"));
            }
        }
        aliases.extend(suites.iter().map(|suite| (suite.clone(), None)));
        let mut known = self.known();
        known.has_aliases = true;
        (known.aliases, known.suites) = (aliases, suites);
    }

    /// Whether the copies are those of the target: by the signed files, and by names and sizes where objects were listed.
    pub(super) fn alias_is_complete(&self, link: &str, target: &str) -> Result<bool, FileError> {
        let target = format!("dists/{target}");
        let signed = |directory: &str| self.read(&format!("{directory}/InRelease"), KEPT_BYTES_MAX as u64);
        if signed(link)? != signed(&target)? {
            return Ok(false);
        }
        let known = self.known();
        let Some(objects) = known.listed.get("dists") else { return Ok(true) };
        let sizes = |directory: &str| -> BTreeMap<&str, u64> {
            below(objects, directory).map(|(rest, listed)| (rest, listed.size)).collect()
        };
        let (mut copies, wanted) = (sizes(link), sizes(&target));
        // Those of the target before, for a while.
        copies.retain(|rest, _| wanted.contains_key(rest) || step(rest) != BY_HASH);
        Ok(copies == wanted)
    }

    /// Makes `link` a directory of copies of the suite `target`; what is right already stays.
    pub(super) fn make_alias(&self, target: &str, link: &str) -> Result<(), FileError> {
        let from = format!("dists/{target}");
        let marker = format!("{link}/{MARKER}");
        let here = self.read(&marker, MARKER_BYTES_MAX)?;
        self.refuse_what_is_not_ours(link, here.as_deref())?;
        if here.as_deref() != Some(target.as_bytes()) {
            self.may_publish().map_err(|error| failed("publish", link, error))?;
            self.write_object(&marker, target.as_bytes())?;
        }
        {
            let mut known = self.known();
            known.aliases.insert(link.to_owned(), Some(target.to_owned()));
            known.confirmed.insert(link.to_owned());
        }
        let mut gone = self.copy_differences(&from, link)?;
        gone.retain(|path| step(path) != BY_HASH);
        self.remove(&gone)
    }

    /// Removes the files by hash that only the targets before had, when their time is over. Does so once in a run.
    pub(super) fn remove_old_copies(&self) -> Result<(), FileError> {
        self.learn_aliases();
        let old: Vec<(String, Vec<String>)> = {
            let mut known = self.known();
            // Files are removed in many groups, and once in a run is enough.
            if !known.listed.contains_key("dists") || std::mem::replace(&mut known.has_removed_old_copies, true) {
                return Ok(());
            }
            let Some(objects) = known.listed.get("dists") else { return Ok(()) };
            let old = known.aliases.iter().filter_map(|(link, target)| {
                let target = format!("dists/{}", target.as_ref()?);
                let wanted: HashSet<&str> = below(objects, &target).map(|(rest, _)| rest).collect();
                let copies = below(objects, link).map(|(rest, _)| rest);
                let gone = copies.filter(|rest| step(rest) == BY_HASH && !wanted.contains(rest));
                Some((link.clone(), gone.map(|rest| format!("{link}/{rest}")).collect()))
            });
            old.filter(|(_, gone): &(_, Vec<_>)| !gone.is_empty()).collect()
        };
        for (link, gone) in old {
            // It was written when the target changed, and both times are the store's.
            let marker = format!("{link}/{MARKER}");
            let facts = self.facts([marker.clone()])?.remove(&marker);
            let age = facts.and_then(|facts| Some(facts.answered? - facts.modified?));
            if age.is_some_and(|age| age >= OLD_COPIES_KEPT_S) {
                self.remove(&gone)?;
            }
        }
        Ok(())
    }

    /// Makes `link` an alias of `suite` in a tree below this one.
    pub(super) fn make_alias_below(&self, link: &str, suite: &str) -> Result<(), FileError> {
        let target = suite.rsplit('/').next().unwrap_or(suite);
        self.write_object(&format!("{link}/{MARKER}"), target.as_bytes())?;
        self.make_copies(suite, link)
    }

    /// Makes `link` a directory with copies of what is below `from`, and of nothing else.
    pub(super) fn make_copies(&self, from: &str, link: &str) -> Result<(), FileError> {
        let gone = self.copy_differences(from, link)?;
        self.remove(&gone)
    }

    /// Copies what a directory lacks of what is below `from`. Returns the paths that only the directory has.
    fn copy_differences(&self, from: &str, link: &str) -> Result<Vec<String>, FileError> {
        let (mut steps, gone) = self.differences(from, link)?;
        for step in &mut steps {
            if step.is_empty() {
                continue;
            }
            self.may_publish().map_err(|error| failed("publish", link, error))?;
            let names = std::mem::take(step).into_iter().map(|rest| (rest, None)).collect();
            self.runtime().block_on(self.copy_all(from, link, names))?;
        }
        Ok(gone)
    }

    /// What the copies lack, by steps, and paths that the target does not have.
    fn differences(&self, from: &str, link: &str) -> Result<([Vec<String>; STEPS], Vec<String>), FileError> {
        // Both are below one.
        let top = from.split_once('/').map_or(from, |(top, _)| top);
        self.list_top(top)?;
        let mut steps = [const { Vec::new() }; STEPS];
        let mut doubtful = Vec::new();
        let gone = {
            let known = self.known();
            let objects = &known.listed[top];
            let present: BTreeMap<&str, &Listed> = below(objects, link).collect();
            let mut wanted = HashSet::new();
            for (rest, listed) in below(objects, from) {
                wanted.insert(rest);
                match present.get(rest) {
                    // The same ETag is the same content.
                    Some(there) if there.size == listed.size && there.tag.is_some() && there.tag == listed.tag => {}
                    Some(there) if there.size == listed.size => doubtful.push(rest.to_owned()),
                    _ => steps[step(rest)].push(rest.to_owned()),
                }
            }
            let gone = present.keys().filter(|rest| !wanted.contains(*rest));
            gone.map(|rest| format!("{link}/{rest}")).collect()
        };
        // Another ETag may be of the same content: that of an object in parts tells of the parts.
        let paths = doubtful.iter().flat_map(|rest| [format!("{from}/{rest}"), format!("{link}/{rest}")]);
        let facts = self.facts(paths)?;
        for rest in doubtful {
            let content = |directory: &str| facts.get(&format!("{directory}/{rest}")).and_then(|facts| facts.sha256);
            if content(from).is_none() || content(from) != content(link) {
                steps[step(&rest)].push(rest);
            }
        }
        Ok((steps, gone))
    }

    /// Copies objects of a directory to another. A hash and a size that are given are those of a state: the copy gets the
    /// hash if the store says both of the object. Where none is given, the hash is the one that this run knows.
    pub(super) async fn copy_all(&self, from: &str, link: &str, names: Vec<Copied>) -> Result<(), FileError> {
        let mut copying = JoinSet::new();
        for (rest, listed) in names {
            if copying.len() >= NAMES_AT_ONCE {
                self.copied(copying.join_next().await)?;
            }
            let (source, to) = (layout::below(from, &rest), layout::below(link, &rest));
            let known = self.known().hashes.get(&source).map(|(sha256, _)| *sha256);
            let (objects, fields, condition) = (self.objects().clone(), self.fields(&to), self.condition(&to));
            let is_signed = step(&rest) >= 2;
            copying.spawn(async move {
                let copied = match is_signed {
                    // Stores ignore conditions of copies, and a run that was frozen must not undo another's.
                    true => put_again(&objects, &source, &to, fields, &condition).await,
                    false => {
                        let sha256 = match listed {
                            Some((sha256, size)) => confirmed(&objects, &source, sha256, size).await,
                            None => known,
                        };
                        copy(&objects, &source, &to, fields, sha256).await
                    }
                };
                (to, copied)
            });
        }
        while let Some(result) = copying.join_next().await {
            self.copied(Some(result))?;
        }
        Ok(())
    }

    /// Notes the result of one copy.
    fn copied(&self, result: Option<Result<CopyResult, JoinError>>) -> Result<(), FileError> {
        let Some(result) = result else { return Ok(()) };
        let (to, copied) = result.map_err(|error| failed("copy", "an object", io::Error::other(error)))?;
        let is_overtaken = |error: &FileError| match error {
            FileError::Io { source, .. } => source.get_ref().is_some_and(|content| content.is::<Overtaken>()),
            _ => false,
        };
        if copied.as_ref().is_err_and(is_overtaken) {
            self.note_overtaken();
        }
        self.note_listed(&to, Some(copied?));
        Ok(())
    }

    /// Removes an alias: the signed files first, so that no client begins with it, and the marker last.
    pub(super) fn remove_alias(&self, link: &str) -> Result<(), FileError> {
        let marker = self.read(&format!("{link}/{MARKER}"), MARKER_BYTES_MAX)?;
        self.refuse_what_is_not_ours(link, marker.as_deref())?;
        let rests: Vec<String> = below(&self.known().listed["dists"], link).map(|(rest, _)| rest.to_owned()).collect();
        let (mut signed, others): (Vec<String>, Vec<String>) = rests.into_iter().partition(|rest| step(rest) >= 2);
        signed.sort_by_key(|rest| std::cmp::Reverse(step(rest)));
        let whole = |rests: Vec<String>| rests.into_iter().map(|rest| format!("{link}/{rest}")).collect::<Vec<_>>();
        self.remove(&whole(signed))?;
        self.remove(&whole(others))?;
        self.remove(&[format!("{link}/{MARKER}")])?;
        self.known().aliases.insert(link.to_owned(), None);
        Ok(())
    }

    /// The copies of this path, in aliases of its suite.
    pub(super) fn copies_of(&self, path: &str) -> Vec<String> {
        self.learn_aliases();
        let Some((target, rest)) = path.strip_prefix("dists/").and_then(|below| below.split_once('/')) else {
            return Vec::new();
        };
        let links: Vec<String> = {
            let known = self.known();
            let links = known.aliases.iter().filter(|(_, to)| to.as_deref() == Some(target));
            links.map(|(link, _)| link.clone()).collect()
        };
        let is_ours = |link: &String| self.alias_of(link).is_ok_and(|alias| alias.is_some());
        links.into_iter().filter(is_ours).map(|link| format!("{link}/{rest}")).collect()
    }
}

/// Paths below a directory, relative to it, without the marker of an alias.
fn below<'a>(
    objects: &'a BTreeMap<String, Listed>,
    directory: &str,
) -> impl Iterator<Item = (&'a str, &'a Listed)> + use<'a> {
    let prefix = format!("{directory}/");
    let length = prefix.len();
    objects
        .range(prefix.clone()..)
        .take_while(move |(path, _)| path.starts_with(&prefix))
        .map(move |(path, listed)| (&path[length..], listed))
        .filter(|(rest, _)| *rest != MARKER)
}

/// To which step of copying a path below a suite's directory belongs.
fn step(rest: &str) -> usize {
    if rest.contains("by-hash/") {
        return BY_HASH;
    }
    let name = rest.rsplit('/').next();
    // Components have a `Release` of their own, which is not signed, and does no harm here.
    SIGNED_FILES.iter().position(|signed| name == Some(*signed)).map_or(1, |place| 2 + place)
}

/// The hash, if the store says it of an object of this size. Nobody has read the object, and a label that is wrong would be
/// believed by later runs. Without an answer, the copy has no label, or fails by itself.
async fn confirmed(objects: &Objects, path: &str, sha256: Sha256, size: u64) -> Option<Sha256> {
    let facts = objects.head(path).await.ok().flatten()?;
    (facts.size == size && facts.sha256 == Some(sha256)).then_some(sha256)
}

async fn copy(
    objects: &Objects,
    from: &str,
    to: &str,
    fields: Vec<(String, String)>,
    sha256: Option<Sha256>,
) -> Result<Listed, FileError> {
    let copied = async {
        objects.copy(from, to, fields, sha256).await?;
        objects.head(to).await
    };
    match copied.await.map_err(|error| failed("copy", from, failure(&error)))? {
        Some(facts) => Ok(Listed { size: facts.size, tag: facts.etag }),
        // Some stores answer before they have done it.
        None => Err(failed("copy", from, io::Error::other("the copy is not there"))),
    }
}

async fn put_again(
    objects: &Objects,
    from: &str,
    to: &str,
    fields: Vec<(String, String)>,
    condition: &fullbore_s3::objects::Condition,
) -> Result<Listed, FileError> {
    let wrong = |error| failed("copy", from, failure(&error));
    let Some(found) = objects.get(from, KEPT_BYTES_MAX).await.map_err(wrong)? else {
        return Err(failed("copy", from, io::ErrorKind::NotFound.into()));
    };
    match objects.put(to, fields, found.content, condition).await.map_err(wrong)? {
        Written::Stored(tag) => Ok(Listed { size: found.facts.size, tag }),
        Written::Refused => Err(failed("copy", to, io::Error::other(Overtaken))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_by_hash_come_first_and_the_inrelease_last() {
        let paths = ["main/binary-amd64/by-hash/SHA256/00", "main/binary-amd64/Packages.xz", "Release.gpg", "Release"];
        let steps: Vec<usize> = paths.into_iter().chain(["InRelease"]).map(step).collect();
        assert_eq!(steps, [0, 1, 2, 3, 4]);
        assert_eq!(steps.len(), STEPS);
    }

    #[test]
    fn the_objects_of_a_directory_are_those_below_it() {
        let paths =
            ["dists/stable-updates/a", "dists/stable/.fullbore-alias", "dists/stable/a", "dists/stable/b/c", "dists/t"];
        let objects = paths.into_iter().map(|path| (path.to_owned(), Listed { size: 1, tag: None })).collect();
        assert_eq!(below(&objects, "dists/stable").map(|(rest, _)| rest).collect::<Vec<_>>(), ["a", "b/c"]);
        assert_eq!(below(&objects, "dists/none").count(), 0);
    }
}
