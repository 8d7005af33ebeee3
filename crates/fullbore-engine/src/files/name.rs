//! Rules for paths beneath the destination, and the names of temporary files.

use std::borrow::Cow;

use super::FileError;
use crate::digest::Sha256;

/// Longest file name, in bytes: `NAME_MAX` of every Linux file system we write to.
const NAME_BYTES: usize = 255;
/// Longest path, in bytes: `PATH_MAX` of Linux (4096) with its final NUL.
const PATH_BYTES: usize = 4095;
/// Most directories in a path. A guess: an archive has fewer than ten.
const PATH_DEPTH: usize = 64;
/// Suffix of every unfinished file; its name also starts with a dot.
pub const PART_ENDING: &str = ".part";

/// Splits a path into the directory ("" for the root) and the name in it.
///
/// # Errors
/// [`FileError::Path`] for a path that could lead outside the destination or cannot be a name: absolute, empty, `.` or
/// `..` as a component, a doubled or final slash, NUL, too long, too deep.
pub(super) fn split(path: &str) -> Result<(&str, &str), FileError> {
    check(path)?;
    Ok(path.rsplit_once('/').unwrap_or(("", path)))
}

/// As [`split`], for a name that a finished file may get. It refuses names of unfinished files: otherwise two files
/// could meet under one name.
pub(super) fn split_final(path: &str) -> Result<(&str, &str), FileError> {
    let (directory, name) = split(path)?;
    if is_part_name(name) {
        return Err(refuse(path, "names like .NAME.part are kept for unfinished files"));
    }
    Ok((directory, name))
}

/// Checks the path of a directory; "" is the root.
pub(super) fn check_directory(path: &str) -> Result<(), FileError> {
    if path.is_empty() { Ok(()) } else { check(path) }
}

fn check(path: &str) -> Result<(), FileError> {
    if path.is_empty() {
        return Err(refuse(path, "it is empty"));
    }
    if path.len() > PATH_BYTES {
        return Err(refuse(path, "it is longer than 4095 bytes"));
    }
    if path.contains('\0') {
        return Err(refuse(path, "it contains a NUL byte"));
    }
    for (depth, part) in path.split('/').enumerate() {
        if depth >= PATH_DEPTH {
            return Err(refuse(path, "it is more than 64 directories deep"));
        }
        match part {
            "" => return Err(refuse(path, "it is absolute, or a part of it is empty")),
            "." | ".." => return Err(refuse(path, "a part of it is . or ..")),
            _ if part.len() > NAME_BYTES => {
                return Err(refuse(path, "a name in it is longer than 255 bytes"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks the target of a symbolic link at `link`: a relative path that stays beneath the destination, resolved from
/// there.
pub(super) fn check_link_target(link: &str, target: &str) -> Result<(), FileError> {
    let depth = link.matches('/').count();
    let mut rest = target;
    let mut up = 0;
    while let Some(shorter) = rest.strip_prefix("../") {
        rest = shorter;
        up += 1;
    }
    if rest == ".." {
        rest = "";
        up += 1;
    }
    if up > depth {
        return Err(refuse(target, "as a symbolic link it leads outside the destination"));
    }
    if rest.is_empty() && up > 0 { Ok(()) } else { check(rest) }
}

pub(super) fn refuse(path: &str, reason: &'static str) -> FileError {
    // A hostile path may be megabytes long; the message need not be.
    let shown: String = path.chars().take(200).collect();
    FileError::Path { path: shown, reason }
}

/// Whether this is the name of an unfinished file (`.NAME.part`).
pub fn is_part_name(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(PART_ENDING) && name.len() > PART_ENDING.len() + 1
}

/// Name of the unfinished file for `name`: `.NAME.part`, or with the hash of the name where that would be too long.
pub fn part_name(name: &str) -> String {
    dotted(name, PART_ENDING)
}

/// Temporary name of a new link until it replaces the old one. It differs from the name of an unfinished download,
/// which must survive.
pub(super) fn link_name(name: &str) -> String {
    dotted(name, ".link.part")
}

fn dotted(name: &str, ending: &str) -> String {
    let stem: Cow<'_, str> = if name.len() + ending.len() < NAME_BYTES {
        name.into()
    } else {
        Sha256::of(name.as_bytes()).to_string().into()
    };
    format!(".{stem}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_directory_are_refused() {
        let long_name = "a".repeat(256);
        let long_path = "a/".repeat(3000) + "b";
        let deep = "a/".repeat(64) + "b";
        for path in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../x",
            "a/../../x",
            "a/..",
            ".",
            "./a",
            "a/./b",
            "a//b",
            "a/",
            "a\0b",
            &long_name,
            &long_path,
            &deep,
        ] {
            assert!(split(path).is_err(), "{path:?} was taken");
        }
        for path in ["a", "pool/main/a/a~1+b:c.deb", "..a", "a..", "...", "%2e%2e/x"] {
            assert!(split(path).is_ok(), "{path:?} was refused");
        }
        let message = split(&long_path).unwrap_err().to_string();
        assert!(message.len() < 400, "{message}");
    }

    #[test]
    fn names_of_part_files_are_reserved() {
        assert_eq!(part_name("a.deb"), ".a.deb.part");
        let long = part_name(&"x".repeat(250));
        assert!(long.len() <= 255 && is_part_name(&long));
        assert_ne!(long, part_name(&"x".repeat(251)));
        assert!(split_final("pool/.a.deb.part").is_err());
        assert!(split_final("pool/a.part").is_ok());
        assert!(split_final("pool/.part").is_ok());
    }

    #[test]
    fn link_targets_stay_inside_the_directory() {
        assert!(check_link_target("dists/stable", "trixie").is_ok());
        assert!(check_link_target("dists/a/stable", "../trixie").is_ok());
        assert!(check_link_target("dists/stable", "..").is_ok());
        assert!(check_link_target("dists/stable", "../../x").is_err());
        assert!(check_link_target("stable", "..").is_err());
        assert!(check_link_target("dists/stable", "/etc").is_err());
        assert!(check_link_target("dists/stable", "a/../../..").is_err());
        assert!(check_link_target("dists/stable", "").is_err());
    }
}
