//! The user's request to a sender on another machine. The sender may list nothing else: it could be malicious, and
//! write or delete in other places of the destination (as in CVE-2019-6111 and CVE-2022-29154 of other programs).
//!
//! The paths are below the destination. One that ends in a slash stands for the content of that directory, as in
//! [`crate::paths`]; a single slash is the destination.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use super::listing::parts;
use crate::entry::{Entry, Kind, join};
use crate::error::CopyError;
use crate::options::Options;
use crate::overlap::Whereabouts;
use crate::sender::KeptPath;
use crate::wire::List;

/// The error for listed entries that were not requested.
const UNASKED: CopyError = CopyError::Meaning("it lists entries that were not requested");
/// Stands for the home directory on the other machine, whose path is not known here. It cannot be a name, as names have
/// no slash.
const HOME: &[u8] = b"/";

/// The requested paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Sorted.
    paths: Arc<Vec<Vec<u8>>>,
}

impl Requested {
    /// Requests the given paths below the single source, sorted, in the form of [`crate::paths::parse`].
    pub(crate) fn only(paths: Arc<Vec<Vec<u8>>>) -> Requested {
        Requested { paths }
    }

    /// Requests these sources, as the user named them. If a path depends on the home directory, which only the other
    /// machine knows, it is taken from the sender's description `told`. The sender can choose the directories above a
    /// name, but not the name.
    pub(crate) fn sources(sources: &[OsString], options: &Options, told: &[Whereabouts]) -> Requested {
        let mut paths: Vec<Vec<u8>> = Vec::new();
        let mut of_home: Vec<(Vec<u8>, bool)> = Vec::new();
        for source in sources {
            let text = source.as_bytes();
            let (is_of_home, kept) = match (text.strip_prefix(b"~"), options.relative) {
                (Some(rest @ (b"" | [b'/', ..])), true) => {
                    let kept = KeptPath::relative_below(HOME, rest);
                    (kept.as_ref().is_some_and(|kept| !kept.is_cut), kept)
                }
                (_, true) => (false, KeptPath::relative(text)),
                (_, false) => (text == b"~", Some(KeptPath::last(text))),
            };
            let Some(kept) = kept else { continue };
            let names: Vec<&[u8]> = kept.names.iter().copied().filter(|name| *name != HOME).collect();
            let path = names.join(&b'/');
            match is_of_home {
                true if options.relative => of_home.push((path, kept.is_content)),
                // Under the name of that directory.
                true => of_home.push((Vec::new(), false)),
                false => paths.push(written(path, kept.is_content)),
            }
        }
        let mut told: Vec<Vec<u8>> = told.iter().map(Whereabouts::target_bytes).collect();
        told.retain(|path| !paths.contains(path) && !path.is_empty());
        for (end, is_content) in of_home {
            let is_that = |path: &Vec<u8>| {
                let rest = path.strip_suffix(&end[..]);
                rest.is_some_and(|rest| end.is_empty() || rest.is_empty() || rest.ends_with(b"/"))
            };
            if let Some(position) = told.iter().position(is_that) {
                paths.push(written(told.swap_remove(position), is_content));
            }
        }
        paths.sort_unstable();
        Requested { paths: Arc::new(paths) }
    }

    /// Checks that everything in a list was requested, and that no filter excludes any of it.
    ///
    /// # Errors
    /// [`CopyError::Meaning`] if an entry, or the directory itself, was not requested or is excluded.
    pub(super) fn check(&self, list: &List, options: &Options) -> Result<(), CopyError> {
        let directory = &list.directory[..];
        let is_whole = self.has_contents(directory, options);
        if !is_whole && (list.complete || !directory.is_empty() && !self.leads(directory)) {
            return Err(UNASKED);
        }
        let is_asked = |entry: &Entry| self.is_asked(directory, is_whole, entry, options);
        if list.entries.iter().all(is_asked) { Ok(()) } else { Err(UNASKED) }
    }

    /// Whether a file at this path was requested.
    pub(super) fn has_file(&self, path: &[u8], options: &Options) -> bool {
        let (directory, name) = parts(path);
        let is_whole = self.has_contents(directory, options);
        !name.is_empty() && self.is_asked(directory, is_whole, &Entry::plain(name, Kind::File), options)
    }

    fn is_asked(&self, directory: &[u8], is_whole: bool, entry: &Entry, options: &Options) -> bool {
        if entry.kind.is_special() && !options.specials || entry.kind == Kind::Symlink && options.copy_links {
            return false;
        }
        if entry.name.is_empty() {
            // The destination itself: the request has to be for its content.
            return self.has(b"/");
        }
        // Most entries are in a directory that was requested as a whole.
        if is_whole && options.filters.is_empty() {
            return true;
        }
        let path = join(directory, &entry.name);
        let is_excluded = options.filters.excludes(&path, entry.kind == Kind::Directory);
        // The name of a directory that only leads to a requested path is not checked by filters.
        !is_excluded && (is_whole || self.has(&path)) || self.leads(&path)
    }

    /// Whether all names in a directory were requested.
    fn has_contents(&self, directory: &[u8], options: &Options) -> bool {
        let mut above = directory;
        loop {
            let is_direct = above.len() == directory.len();
            if (options.recursive || is_direct) && self.has(&written(above.to_vec(), true)) {
                return true;
            }
            if above.is_empty() || options.filters.excludes(above, true) {
                return false;
            }
            if options.recursive && self.has(above) {
                return true;
            }
            above = parts(above).0;
        }
    }

    fn has(&self, path: &[u8]) -> bool {
        self.paths.binary_search_by(|other| other[..].cmp(path)).is_ok()
    }

    /// Whether a path is a parent of a requested path, or a directory whose content was requested.
    fn leads(&self, path: &[u8]) -> bool {
        let beneath = written(path.to_vec(), true);
        let next = self.paths.partition_point(|other| other[..] < beneath[..]);
        self.paths.get(next).is_some_and(|next| next.starts_with(&beneath))
    }
}

/// Appends a slash to a path that stands for the content of a directory.
fn written(mut path: Vec<u8>, is_content: bool) -> Vec<u8> {
    if is_content {
        path.push(b'/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filters;
    use crate::overlap::Number;

    fn sources(texts: &[&str], options: &Options, told: &[Whereabouts]) -> Requested {
        Requested::sources(&texts.iter().map(OsString::from).collect::<Vec<_>>(), options, told)
    }

    /// Whether a path may be listed; one with a slash at its end is a directory.
    fn may_list(requested: &Requested, options: &Options, path: &str) -> bool {
        let kind = if path.ends_with('/') { Kind::Directory } else { Kind::File };
        let (directory, name) = parts(path.trim_end_matches('/').as_bytes());
        let entries = vec![Entry::plain(name, kind)];
        let list = List { first: 0, directory: directory.to_vec(), complete: false, more: false, entries };
        requested.check(&list, options).is_ok()
    }

    fn may_be_complete(requested: &Requested, options: &Options, directory: &str) -> bool {
        let list = List { first: 0, directory: directory.into(), complete: true, more: false, entries: Vec::new() };
        requested.check(&list, options).is_ok()
    }

    fn assert_listed(requested: &Requested, options: &Options, listed: &[&str], refused: &[&str]) {
        for path in listed {
            assert!(may_list(requested, options, path), "{path}: {requested:?}");
        }
        for path in refused {
            assert!(!may_list(requested, options, path), "{path}: {requested:?}");
        }
    }

    #[test]
    fn a_far_sender_lists_only_names_that_were_asked_for() {
        let options = Options::default();
        let named = sources(&["report.txt", "/srv/data", "a//b"], &options, &[]);
        assert_listed(
            &named,
            &options,
            &["report.txt", "data/", "data/x", "data/.ssh/key", "b/x/y"],
            &[".ssh/", ".ssh/authorized_keys", "report.txt2", "dat", "data2/x", "a/", "srv/", "srv/data", ""],
        );
        assert!(may_be_complete(&named, &options, "data/x") && !may_be_complete(&named, &options, ""));
        assert!(!may_be_complete(&named, &options, ".ssh"));
        for content in ["", ".", "..", "/srv/", "/srv/.", "a/..", "~/"] {
            let all = sources(&["x", content], &options, &[]);
            assert_listed(&all, &options, &["", "any", "any/where/"], &[]);
            assert!(may_be_complete(&all, &options, ""), "{content}");
        }
    }

    #[test]
    fn a_far_sender_keeps_to_the_paths_of_relative_sources() {
        let options = Options { relative: true, ..Options::default() };
        let all = sources(&["/x/./a/b", "c/../d/e/", "/y/././f"], &options, &[]);
        assert_listed(
            &all,
            &options,
            &["a/", "a/b", "a/b/x/y", "d/", "d/e/", "d/e/x", "f"],
            &["x/", "a/c", "b", "d/x", "c/", "e", "", ".ssh/key"],
        );
        assert!(may_be_complete(&all, &options, "d/e") && may_be_complete(&all, &options, "a/b"));
        assert!(!may_be_complete(&all, &options, "a") && !may_be_complete(&all, &options, "d"));
        assert_listed(&sources(&["/x/./"], &options, &[]), &options, &["", "any/where"], &[]);
    }

    #[test]
    fn of_paths_below_home_a_far_sender_chooses_only_what_leads_there() {
        let told = |prefix: &str, name: Option<&str>| Whereabouts {
            root: Number(0, 0),
            name: name.map(|name| name.as_bytes().to_vec()),
            own: None,
            prefix: prefix.into(),
            written: Vec::new(),
            content: None,
            itself: None,
        };
        let plain = Options::default();
        let home = sources(&["~", "x"], &plain, &[told("", Some("x")), told("", Some("me")), told("", Some(".ssh"))]);
        assert_listed(&home, &plain, &["x", "me/", "me/any"], &[".ssh/", ".ssh/key", "~/"]);
        assert_listed(&sources(&["~/file"], &plain, &[]), &plain, &["file"], &["me/", "me/file"]);
        let kept = Options { relative: true, ..Options::default() };
        let lies = [told(".ssh", Some("key")), told("home/me", Some("file")), told("home/you", Some("file"))];
        let file = sources(&["~/file"], &kept, &lies);
        assert_listed(
            &file,
            &kept,
            &["home/", "home/me/", "home/me/file"],
            &[".ssh/", "file", "home/you/", "home/me/x"],
        );
        assert_listed(&sources(&["~/./a/b"], &kept, &lies), &kept, &["a/", "a/b"], &["home/", ".ssh/key"]);
        let all = sources(&["~/dir/"], &kept, &[told("home/me/dir", None)]);
        assert_listed(&all, &kept, &["home/me/dir/", "home/me/dir/x"], &["home/me/x"]);
    }

    #[test]
    fn a_far_sender_keeps_to_a_list_of_paths() {
        let paths = |paths: &[&str]| {
            let mut paths: Vec<_> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            paths.sort();
            Requested::only(Arc::new(paths))
        };
        let all = paths(&["a/b", "d", "e/", "f/g/"]);
        let flat = Options { recursive: false, ..Options::default() };
        assert_listed(
            &all,
            &flat,
            &["a/", "a/b", "d/", "e/", "e/x", "e/sub/", "f/", "f/g/", "f/g/x"],
            &["a/c", "a/b/x", "d/x", "e/sub/x", "f/x", "b", "", "dd"],
        );
        let deep = Options::default();
        assert_listed(&all, &deep, &["a/b/x", "d/x/y", "e/sub/x", "f/g/h/i"], &["a/c", "f/x", "", "dd/x"]);
        assert!(may_be_complete(&all, &deep, "d/x") && !may_be_complete(&all, &deep, "f"));
        assert_listed(&paths(&["/"]), &deep, &["", "any/where"], &[]);
        assert_listed(&paths(&["/"]), &flat, &["any/"], &["any/where"]);
    }

    #[test]
    fn a_far_sender_lists_nothing_that_a_filter_leaves_out() {
        let mut filters = Filters::default();
        filters.push(false, b".*");
        filters.push(false, b"cache/");
        let options = Options { filters, relative: true, specials: false, ..Options::default() };
        let all = sources(&["/x/./a/.b/c/", "/x/./.d/e"], &options, &[]);
        assert_listed(
            &all,
            &options,
            &["a/", "a/.b/", "a/.b/c/x", "a/.b/c/cache", ".d/", ".d/e/x"],
            &["a/.b/c/.x", "a/.b/c/cache/", "a/.b/c/cache/x", "a/.b/c/.x/y", "a/.b/x", ".d/x", ".d/e/.x"],
        );
        let pipe = Entry::plain(b"pipe", Kind::Fifo);
        let list = List { first: 0, directory: b".d/e".into(), complete: false, more: false, entries: vec![pipe] };
        assert!(all.check(&list, &options).is_err());
    }
}
