//! Names in an archive, and their paths in dpkg's lists.

/// Reason why a name in an archive is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PathReason {
    /// A line break, which would break dpkg's lists.
    Newline,
    /// `..`, `.` or empty parts, which hardly any package has.
    Unnormal,
}

/// Converts a name in an archive to the path in dpkg's lists: `./usr/bin/x` is `/usr/bin/x`, and `./` is `/.`.
pub(super) fn listed_path(name: &[u8]) -> Result<Vec<u8>, PathReason> {
    if name.contains(&b'\n') {
        return Err(PathReason::Newline);
    }
    let mut rest = name;
    while let [b'/', tail @ ..] | [b'.', b'/', tail @ ..] = rest {
        rest = tail;
    }
    if matches!(rest, b"" | b".") {
        return Ok(b"/.".to_vec());
    }
    if rest.split(|byte| *byte == b'/').any(|part| matches!(part, b"" | b"." | b"..")) {
        return Err(PathReason::Unnormal);
    }
    Ok([b"/", rest].concat())
}

/// Converts a name in an archive to a path from the root in which `..` may remain, for the kernel to resolve within the
/// root. `None` for a line break.
pub(super) fn path_in_root(name: &[u8]) -> Option<Vec<u8>> {
    if name.contains(&b'\n') {
        return None;
    }
    let parts: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    match parts.last() {
        // A directory that exists.
        None | Some(&b"..") => Some(b"/.".to_vec()),
        Some(_) => Some(parts.iter().flat_map(|part| [b"/", *part].concat()).collect()),
    }
}

pub(super) fn show(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_as_by_dpkg() {
        for (name, path) in [
            ("./usr/bin/x", "/usr/bin/x"),
            ("usr/bin/x", "/usr/bin/x"),
            ("/usr", "/usr"),
            ("././/./x", "/x"),
            (".", "/."),
            ("./", "/."),
            ("./..x/.y", "/..x/.y"),
        ] {
            assert_eq!(listed_path(name.as_bytes()).as_deref(), Ok(path.as_bytes()), "{name}");
        }
        for name in ["..", "./../x", "./x/..", "./x/../y", "./x//y", "./x/./y", "./x/."] {
            assert_eq!(listed_path(name.as_bytes()), Err(PathReason::Unnormal), "{name}");
        }
        assert_eq!(listed_path(b"./x\ny"), Err(PathReason::Newline));
    }

    #[test]
    fn names_with_dots_are_left_to_the_kernel() {
        for (name, path) in
            [("./usr/../x", "/usr/../x"), (".//a/./b", "/a/b"), ("..", "/."), ("./", "/."), ("a/..", "/.")]
        {
            assert_eq!(path_in_root(name.as_bytes()).as_deref(), Some(path.as_bytes()), "{name}");
        }
        assert_eq!(path_in_root(b"./x\ny"), None);
    }
}
