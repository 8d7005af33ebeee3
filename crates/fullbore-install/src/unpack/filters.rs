//! dpkg's `--path-exclude` and `--path-include`: files that are listed but not unpacked.

/// Path filters of dpkg, in order; the last match decides.
///
/// ```
/// use fullbore_install::unpack::Filters;
///
/// let mut filters = Filters::new();
/// filters.exclude("/usr/share/doc/*");
/// filters.include("/usr/share/doc/*/copyright");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Filters(Vec<Filter>);

#[derive(Debug, Clone)]
struct Filter {
    include: bool,
    pattern: Vec<u8>,
}

impl Filters {
    /// Makes an empty list, which excludes nothing.
    pub fn new() -> Filters {
        Filters::default()
    }

    /// Adds a pattern of `--path-exclude`, matched as by fnmatch(3) without flags.
    pub fn exclude(&mut self, pattern: &str) {
        self.0.push(Filter { include: false, pattern: pattern.as_bytes().to_vec() });
    }

    /// Adds a pattern of `--path-include`, matched as by fnmatch(3) without flags.
    pub fn include(&mut self, pattern: &str) {
        self.0.push(Filter { include: true, pattern: pattern.as_bytes().to_vec() });
    }

    /// Adds the `path-exclude` and `path-include` lines of a `dpkg.cfg` or a file of `dpkg.cfg.d`.
    pub fn read_configuration(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let (option, value) = line.split_once(|c: char| c == '=' || c.is_whitespace()).unwrap_or((line, ""));
            let value = value.trim_start_matches(|c: char| c == '=' || c.is_whitespace());
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
            match option.trim_start_matches('-') {
                "path-exclude" => self.exclude(value),
                "path-include" => self.include(value),
                _ => {}
            }
        }
    }

    /// Whether a path is excluded. Directories and symbolic links (`may_lead`) stay if an include may need them.
    pub(crate) fn skips(&self, path: &[u8], may_lead: bool) -> bool {
        let last = self.0.iter().rev().find(|filter| matches(&filter.pattern, path));
        if last.is_none_or(|filter| filter.include) {
            return false;
        }
        let leads = |filter: &&Filter| {
            let wildcard = filter.pattern.iter().position(|byte| b"*?[\\".contains(byte));
            let mut fixed = &filter.pattern[..wildcard.unwrap_or(filter.pattern.len())];
            while let [head @ .., b'/'] = fixed {
                fixed = head;
            }
            let common = path.len().min(fixed.len());
            path[..common] == fixed[..common]
        };
        !(may_lead && self.0.iter().filter(|filter| filter.include).any(|filter| leads(&filter)))
    }
}

/// Shell patterns as fnmatch(3) without flags: `*` and `?` match slashes too.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Positions to continue from if the pattern after the last `*` does not match: one byte later.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, t));
            p += 1;
            continue;
        }
        if let Some(length) = one(&pattern[p..], text[t]) {
            p += length;
            t += 1;
            continue;
        }
        match &mut retry {
            Some((after, from)) => {
                *from += 1;
                (p, t) = (*after, *from);
            }
            None => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The length of the pattern's first element if it matches the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', rest @ ..] => {
            let (negated, skipped) = match rest {
                [b'!' | b'^', ..] => (true, 1),
                _ => (false, 0),
            };
            // A leading `]` is literal.
            let length = rest.iter().skip(skipped + 1).position(|byte| *byte == b']');
            let Some(length) = length.map(|at| at + skipped + 1) else {
                return (byte == b'[').then_some(1);
            };
            let set = &rest[skipped..length];
            let mut found = false;
            let mut at = 0;
            while at < set.len() {
                if set.len() > at + 2 && set[at + 1] == b'-' {
                    found |= (set[at]..=set[at + 2]).contains(&byte);
                    at += 3;
                } else {
                    found |= set[at] == byte;
                    at += 1;
                }
            }
            (found != negated).then_some(length + 2)
        }
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_dpkg() {
        for (pattern, text, expected) in [
            ("/usr/share/doc/*", "/usr/share/doc/a/b", true),
            ("/usr/share/doc/*", "/usr/share/doc", false),
            ("*.gz", "/a/b.gz", true),
            ("/a?c", "/a/c", true),
            ("/[a-c]x", "/bx", true),
            ("/[!a-c]x", "/bx", false),
            ("/[]]", "/]", true),
            ("/\\*", "/*", true),
            ("/\\*", "/x", false),
            ("a*b*c", "axxbxxbc", true),
            ("a*b*c", "axxbxxbd", false),
            ("", "", true),
            ("[", "[", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    /// The example of dpkg(1): documentation goes, licences stay.
    #[test]
    fn the_last_match_decides_and_ways_stay() {
        let mut filters = Filters::new();
        filters
            .read_configuration("# slim\npath-exclude=/usr/share/doc/*\npath-include = /usr/share/doc/*/copyright\n");
        assert!(filters.skips(b"/usr/share/doc/a/README", false));
        assert!(!filters.skips(b"/usr/share/doc/a/copyright", false));
        assert!(!filters.skips(b"/usr/share/doc/a", true));
        assert!(!filters.skips(b"/usr/bin/a", false));
        assert!(!Filters::new().skips(b"/usr/bin/a", false));
    }
}
