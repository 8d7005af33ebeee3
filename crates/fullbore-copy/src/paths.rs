//! Lists of paths below a source, in the format of `--files-from`.

use crate::entry::is_path;

/// Parses a list, one path per line, and makes the paths relative to the source. Lines that start with `#` or `;` are
/// comments. A list that has NULs is separated by NULs and has no comments. A path that ends in `/` or `/.` stands for
/// the content of that directory.
///
/// ```
/// let paths = fullbore_copy::paths::parse(b"etc/hosts\n# all of it:\nusr/share/doc/\n", false)?;
/// assert_eq!(paths, [&b"etc/hosts"[..], b"usr/share/doc/"]);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// The first line that does not name a path below the source, for instance one that climbs out of it with `..`.
pub fn parse(text: &[u8], ended_by_nul: bool) -> Result<Vec<Vec<u8>>, String> {
    let by_nul = ended_by_nul || text.contains(&0);
    let mut paths = Vec::new();
    for line in text.split(|byte| if by_nul { *byte == 0 } else { matches!(byte, b'\n' | b'\r') }) {
        if line.is_empty() || !by_nul && matches!(line[0], b'#' | b';') {
            continue;
        }
        let wrong = || String::from_utf8_lossy(line).into_owned();
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in line.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    parts.pop().ok_or_else(wrong)?;
                }
                part => parts.push(part),
            }
        }
        let mut relative = parts.join(&b'/');
        if !is_path(&relative) {
            return Err(wrong());
        }
        if relative.is_empty() || line.ends_with(b"/") || line.ends_with(b"/.") {
            relative.push(b'/');
        }
        paths.push(relative);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_paths_are_lines_or_end_in_nuls() {
        let paths = |text: &str, by_nul| {
            let paths = parse(text.as_bytes(), by_nul);
            paths.map(|paths| paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect::<Vec<_>>())
        };
        for (text, by_nul, expected) in [
            ("/a\n\n#b\nc//./d\r\n", false, &["a", "c/d"][..]),
            ("./a\nb\0#c\0", false, &["a\nb", "#c"]),
            ("a\nb", true, &["a\nb"]),
            ("a/\nb/.\n.\n/\n", false, &["a/", "b/", "/", "/"]),
            ("d/../a/x", false, &["a/x"]),
        ] {
            assert_eq!(paths(text, by_nul).unwrap(), expected, "{text}");
        }
        assert_eq!(paths("a\na/../../b", false), Err("a/../../b".to_owned()));
    }
}
