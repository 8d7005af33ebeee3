//! Arguments with which apt calls dpkg: package files to unpack, and options.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use crate::root::within;

/// Options without effect on a package that is not installed.
const HARMLESS: [&str; 10] = [
    "--unpack",
    "--auto-deconfigure",
    "--no-triggers",
    "--force-confold",
    "--force-confnew",
    "--force-confdef",
    "--force-confmiss",
    "--force-unsafe-io",
    "--refuse-downgrade",
    "--no-pager",
];

/// Parsed arguments of a `dpkg --unpack` command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DpkgCall {
    /// Number of the descriptor for status messages (dpkg(1), `--status-fd`).
    pub status_descriptor: Option<u32>,
    /// Package files as seen from inside the root, in the given order.
    pub files: Vec<PathBuf>,
    /// Arguments other than files.
    options: Vec<OsString>,
}

impl DpkgCall {
    /// Parses dpkg's arguments. `None` if only dpkg implements one of the options. The files of directories
    /// (`--recursive`) are sorted by name.
    pub(crate) fn parse(root: &Path, arguments: &[OsString]) -> Option<DpkgCall> {
        let mut call = DpkgCall { status_descriptor: None, files: Vec::new(), options: Vec::new() };
        let (mut is_recursive, mut is_unpack) = (false, false);
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let text = word.to_str();
            match text {
                Some("--status-fd") => {
                    let number = words.next()?;
                    call.status_descriptor = Some(number.to_str()?.parse().ok()?);
                    call.options.extend([word.clone(), number.clone()]);
                }
                Some("--recursive" | "-R") => is_recursive = true,
                Some("--") => {}
                Some(option) if option.starts_with('-') => {
                    if !HARMLESS.contains(&option) {
                        return None;
                    }
                    is_unpack |= option == "--unpack";
                    call.options.push(word.clone());
                }
                _ => call.files.push(PathBuf::from(word)),
            }
        }
        if is_recursive {
            let mut files = Vec::new();
            for directory in &call.files {
                walk(&DpkgCall::outside(root, directory), &mut files);
            }
            call.files = files.into_iter().filter_map(|file| target(root, &file)).collect();
        }
        (is_unpack && !call.files.is_empty()).then_some(call)
    }

    /// Path of a file as seen from outside the root.
    pub(crate) fn outside(root: &Path, path: &Path) -> PathBuf {
        // A link loop is reported where the file is opened.
        within(root, path).unwrap_or_else(|_| root.join(path.strip_prefix("/").unwrap_or(path)))
    }

    /// The same arguments with other package files.
    pub(crate) fn for_files(&self, files: &[PathBuf]) -> Vec<OsString> {
        let mut arguments = self.options.clone();
        arguments.extend(files.iter().map(|file| file.as_os_str().to_owned()));
        arguments
    }
}

/// Package files below a directory, sorted: apt numbers its links.
fn walk(directory: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    for entry in entries {
        if entry.symlink_metadata().is_ok_and(|status| status.is_dir()) {
            walk(&entry, files);
        } else if entry.extension() == Some(OsStr::new("deb")) {
            files.push(entry);
        }
    }
}

/// Target of a link in apt's directory of links, as seen from inside the root.
fn target(root: &Path, file: &Path) -> Option<PathBuf> {
    match fs::read_link(file) {
        Ok(target) if target.is_absolute() => Some(target),
        Ok(target) => Some(Path::new("/").join(file.parent()?.join(target).strip_prefix(root).ok()?)),
        Err(_) => Some(Path::new("/").join(file.strip_prefix(root).ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn apts_arguments_are_understood() {
        let arguments = words("--status-fd 14 --no-triggers --unpack --auto-deconfigure /a_1_all.deb /b_1_all.deb");
        let call = DpkgCall::parse(Path::new("/"), &arguments).unwrap();
        assert_eq!(call.status_descriptor, Some(14));
        assert_eq!(call.files, [Path::new("/a_1_all.deb"), Path::new("/b_1_all.deb")]);
        let left = call.for_files(&call.files[1..]);
        assert_eq!(left, words("--status-fd 14 --no-triggers --unpack --auto-deconfigure /b_1_all.deb"));
    }

    #[test]
    fn an_unknown_option_is_dpkgs() {
        assert_eq!(DpkgCall::parse(Path::new("/"), &words("--unpack --force-overwrite /a.deb")), None);
        assert_eq!(DpkgCall::parse(Path::new("/"), &words("--configure --pending")), None);
        assert_eq!(DpkgCall::parse(Path::new("/"), &words("--unpack --status-fd")), None);
    }

    #[test]
    fn links_in_a_directory_lead_to_files_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("tmp/apt-dpkg")).unwrap();
        for (link, to) in [("1-b.deb", "/var/b.deb"), ("0-a.deb", "/var/a.deb"), ("readme", "/var/c.deb")] {
            std::os::unix::fs::symlink(to, root.join("tmp/apt-dpkg").join(link)).unwrap();
        }
        let call = DpkgCall::parse(root, &words("--unpack --recursive /tmp/apt-dpkg")).unwrap();
        assert_eq!(call.files, [Path::new("/var/a.deb"), Path::new("/var/b.deb")]);
        assert_eq!(DpkgCall::outside(root, &call.files[0]), root.join("var/a.deb"));
        std::os::unix::fs::symlink("/srv/archives", root.join("var")).unwrap();
        assert_eq!(DpkgCall::outside(root, &call.files[0]), root.join("srv/archives/a.deb"));
    }
}
