//! apt-mirror's `mirror.list`: `set` lines, sources lines with an architecture in
//! the keyword, and lines on what to clean.

use std::collections::BTreeMap;

use fullbore_apt::system::sources::native_architecture;
use fullbore_wire::url::without_credentials;

use super::{ConvertedMirror, Draft, names, without_installer};

/// Replacements of `$variable` in one value; apt-mirror's own depth is 16.
const EXPANSIONS_MAX: usize = 16;
/// Longest value after replacement.
const VALUE_BYTES_MAX: usize = 4096;
/// apt-mirror's default for `nthreads`.
const THREADS: u64 = 20;

/// One `deb` line.
struct Line {
    uri: String,
    suite: String,
    components: Vec<String>,
    /// Architectures, or `source`.
    architectures: Vec<String>,
    /// Files and fingerprints.
    keyring: Vec<String>,
    trusted: bool,
    /// Options that are not taken over.
    left: Vec<String>,
}

/// Suites of one archive that are taken alike.
struct Group {
    suites: Vec<String>,
    components: Vec<String>,
    architectures: Vec<String>,
    keyring: Vec<String>,
    trusted: bool,
}

pub(super) fn convert(text: &str) -> Draft {
    let mut draft = Draft::default();
    let mut set: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut lines = Vec::new();
    let mut cleaned = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let number = i + 1;
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        let (keyword, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match keyword {
            "set" => {
                if let Some((name, value)) = rest.trim().split_once(char::is_whitespace) {
                    set.insert(name.to_owned(), (number, value.trim().to_owned()));
                }
            }
            "clean" => cleaned.push(rest.trim().trim_end_matches('/').to_owned()),
            "skip-clean" => {
                draft.note(number, line, "has no counterpart; fullbore deletes only files that it wrote");
            }
            "mirror_path" => draft.note(number, line, "set `to` in the section of this archive"),
            "ignore_errors" => draft.note(
                number,
                line,
                "has no counterpart: a suite with missing files stays unchanged, and the others are updated",
            ),
            "deb" | "deb-src" => match sources_line(keyword, rest) {
                Some(source) => lines.push((number, source)),
                None => draft.note(number, line, "not understood"),
            },
            _ if keyword.starts_with("deb-") => match sources_line(keyword, rest) {
                Some(source) => lines.push((number, source)),
                None => draft.note(number, line, "not understood"),
            },
            _ => draft.note(number, line, "not understood"),
        }
    }
    let variable = |name: &str| set.get(name).map(|(_, value)| expand(value, &set));
    let default_architecture = variable("defaultarch").unwrap_or_else(|| native_architecture().to_owned());
    let base = variable("base_path").unwrap_or_else(|| "/var/spool/apt-mirror".to_owned());
    let mirror_path = variable("mirror_path").unwrap_or_else(|| format!("{base}/mirror"));
    let threads = variable("nthreads").and_then(|value| value.parse().ok()).unwrap_or(THREADS);
    let limit_rate = variable("limit_rate").and_then(|limit| total_rate(&limit, threads));
    let contents = variable("contents").is_none_or(|value| !is_off(&value));
    notes_on_settings(&mut draft, &set, limit_rate.is_some());

    let mut archives: Vec<(String, Vec<Line>)> = Vec::new();
    for (number, mut line) in lines {
        for option in &line.left {
            draft.note(number, format!("[{option}]"), "has no counterpart for a single line");
        }
        if !line.uri.starts_with("http://") && !line.uri.starts_with("https://") {
            draft.note(number, &line.uri, "only http and https archives can be mirrored");
            continue;
        }
        if line.architectures.is_empty() {
            line.architectures.push(default_architecture.clone());
        }
        match archives.iter_mut().find(|(uri, _)| *uri == line.uri) {
            Some((_, lines)) => lines.push(line),
            None => archives.push((line.uri.clone(), vec![line])),
        }
    }
    for (uri, lines) in archives {
        let installer = lines.iter().any(|line| line.components.iter().any(|c| c.ends_with("/debian-installer")));
        let address = without_credentials(&uri);
        let rest = address.split_once("://").map_or("", |(_, rest)| rest);
        let mut section = ConvertedMirror {
            name: draft.free_name(rest.rsplit('/').next().unwrap_or("")),
            ..ConvertedMirror::default()
        };
        section.comment("The tree of apt-mirror is taken over: files that are right are not fetched again.");
        section.comment("apt-mirror does not verify signatures, fullbore does; name other keys with `keyring`.");
        section.text("from", &uri);
        let groups = groups(lines);
        match groups.as_slice() {
            [one] => section.values.extend(source_values(one)),
            many => section.sources = many.iter().map(source_values).collect(),
        }
        section.text("to", format!("{}/{}", mirror_path.trim_end_matches('/'), place(rest)));
        let mut without = vec!["installer".to_owned(), "pdiff".to_owned()];
        if !installer {
            without.push("udeb".to_owned());
        }
        if !contents {
            without.push("contents".to_owned());
        }
        section.list("without", &without);
        if let Some(rate) = &limit_rate {
            section.text("limit-rate", rate);
        }
        if !cleaned.iter().any(|clean| uri.starts_with(clean.as_str())) {
            section.on("no-clean");
        }
        draft.mirrors.push(section);
    }
    draft
}

/// The line up to a word that starts with `#`. An address may have one within.
fn without_comment(line: &str) -> &str {
    let begins = |(at, _): &(usize, &str)| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
    line.match_indices('#').find(begins).map_or(line, |(at, _)| &line[..at])
}

fn sources_line(keyword: &str, rest: &str) -> Option<Line> {
    let mut rest = rest.trim();
    let mut architectures = Vec::new();
    let (mut keyring, mut trusted, mut left) = (Vec::new(), false, Vec::new());
    if let Some(inside) = rest.strip_prefix('[') {
        let (inside, after) = inside.split_once(']')?;
        for option in inside.split_whitespace() {
            match option.split_once('=') {
                Some(("arch", value)) => architectures = names(value),
                Some(("signed-by", value)) => keyring = names(value),
                Some(("trusted", value)) => trusted = value == "yes",
                _ => left.push(option.to_owned()),
            }
        }
        rest = after;
    }
    match keyword.strip_prefix("deb-") {
        Some("src") => architectures = vec!["source".to_owned()],
        Some(architecture) => architectures = vec![architecture.to_owned()],
        None => {}
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    let uri = words.next()?.trim_end_matches('/').to_owned();
    let suite = words.next()?;
    Some(Line { uri, suite, components: words.collect(), architectures, keyring, trusted, left })
}

/// Lines of one archive, put together where only suite or architecture differ.
fn groups(lines: Vec<Line>) -> Vec<Group> {
    let mut suites: Vec<Group> = Vec::new();
    for line in lines {
        let (components, _) = without_installer(line.components);
        let same = suites.iter_mut().find(|group| {
            group.suites[0] == line.suite
                && group.trusted == line.trusted
                && (group.components == components || components.is_empty() && !line.suite.ends_with('/'))
        });
        match same {
            Some(group) => {
                merge(&mut group.architectures, line.architectures);
                merge(&mut group.keyring, line.keyring);
            }
            None => suites.push(Group {
                suites: vec![line.suite],
                components,
                architectures: line.architectures,
                keyring: line.keyring,
                trusted: line.trusted,
            }),
        }
    }
    let mut groups: Vec<Group> = Vec::new();
    for mut suite in suites {
        // apt-mirror fetches binary-all beside each architecture.
        if suite.architectures.iter().any(|name| name != "source") {
            merge(&mut suite.architectures, vec!["all".to_owned()]);
        }
        let twin = groups.iter_mut().find(|group| {
            group.components == suite.components
                && group.architectures == suite.architectures
                && group.keyring == suite.keyring
                && group.trusted == suite.trusted
        });
        match twin {
            Some(group) => merge(&mut group.suites, suite.suites),
            None => groups.push(suite),
        }
    }
    groups
}

fn merge(list: &mut Vec<String>, more: Vec<String>) {
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

fn source_values(group: &Group) -> Vec<(&'static str, toml::Value)> {
    [
        ("suite", &group.suites),
        ("component", &group.components),
        ("arch", &group.architectures),
        ("keyring", &group.keyring),
    ]
    .into_iter()
    .filter_map(|(key, values)| super::list_value(values).map(|value| (key, value)))
    .chain(group.trusted.then_some(("trusted", toml::Value::Boolean(true))))
    .collect()
}

/// Where apt-mirror puts an archive below `mirror_path`: no user, no port, a tilde as it is.
fn place(rest: &str) -> String {
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.rsplit('@').next().unwrap_or(host);
    let host = host.split(':').next().unwrap_or(host);
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// wget's limit was for each thread: `100m` with 20 threads is 2000 MiB/s in all.
fn total_rate(limit: &str, threads: u64) -> Option<String> {
    let lower = limit.trim().to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let unit = match unit {
        "" => "",
        "k" => "KiB",
        "m" => "MiB",
        "g" => "GiB",
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    let rate = format!("{}{unit}", number.checked_mul(threads.clamp(1, 1000))?);
    // Only what our own settings take.
    rate.parse::<crate::settings::values::Rate>().ok().map(|_| rate)
}

/// A value with `$name` replaced by what was set before.
fn expand(value: &str, set: &BTreeMap<String, (usize, String)>) -> String {
    let mut value = value.to_owned();
    for _ in 0..EXPANSIONS_MAX {
        let Some(start) = value.find('$') else { break };
        let rest = &value[start + 1..];
        let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let name = &rest[..length];
        let replacement = match (name, set.get(name)) {
            (_, Some((_, replacement))) => replacement.clone(),
            ("base_path", None) => "/var/spool/apt-mirror".to_owned(),
            ("mirror_path", None) => "$base_path/mirror".to_owned(),
            ("var_path", None) => "$base_path/var".to_owned(),
            _ => String::new(),
        };
        value.replace_range(start..start + 1 + length, &replacement);
        if value.len() > VALUE_BYTES_MAX {
            break;
        }
    }
    value.replace('$', "_").chars().take(VALUE_BYTES_MAX).collect()
}

fn is_off(value: &str) -> bool {
    matches!(value, "0" | "off" | "no")
}

fn notes_on_settings(draft: &mut Draft, set: &BTreeMap<String, (usize, String)>, limited: bool) {
    let no_proxy = set.get("use_proxy").is_some_and(|(_, value)| is_off(value));
    for (name, (line, value)) in set {
        // What apt-mirror does not do needs no counterpart.
        if is_off(value) || no_proxy && name.contains("proxy") {
            continue;
        }
        let reason = match name.as_str() {
            "base_path" | "mirror_path" | "defaultarch" | "contents" => continue,
            "limit_rate" if limited => "was for each thread of apt-mirror; limit-rate is for all together",
            "limit_rate" => "not understood",
            "nthreads" => "not needed: 4 connections per host fill the link; see `connections`",
            "use_proxy" | "http_proxy" | "https_proxy" | "proxy_user" | "proxy_password" => {
                "set http_proxy and https_proxy in the environment (of the service)"
            }
            "run_postmirror" | "postmirror_script" => {
                "run it after fullbore, for example with ExecStartPost= of the service"
            }
            "cleanscript" | "_autoclean" | "autoclean" => "not needed: fullbore cleans by default, see `no-clean`",
            "skel_path" | "var_path" => "not needed: fullbore keeps its state in the mirror's directory",
            "_tilde" | "unlink" => "not needed",
            "no_check_certificate" => "not offered; trust your certificate with `cacert`",
            "ca_certificate" => "set `cacert`",
            "certificate" | "private_key" => "client certificates are not supported",
            "auth_no_challenge" => "not needed: credentials of apt's auth.conf are sent at once",
            _ => "has no counterpart",
        };
        draft.note(*line, format!("set {name} {value}"), reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ForeignFormat;

    #[test]
    fn a_section_is_not_called_after_a_password() {
        let text = "deb-amd64 http://who:secret@example.org/ trixie main\n";
        let converted = crate::convert::convert(ForeignFormat::AptMirror, text).unwrap();
        assert!(converted.render("x", ForeignFormat::AptMirror).contains("[mirror.example-org]\n"));
    }

    #[test]
    fn a_usual_mirror_list_is_converted() {
        let text = "\
############# config ##################
set base_path    /var/spool/apt-mirror
set mirror_path  $base_path/mirror
set nthreads     20
set limit_rate   1m
set _tilde 0
set run_postmirror 1
############# end config ##############

deb http://deb.example.org/debian trixie main contrib
deb http://deb.example.org/debian trixie-updates main contrib
deb-i386 http://deb.example.org/debian trixie main contrib
deb-src http://deb.example.org/debian trixie main contrib
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] https://user@example.org:8443/apt/ ./
deb ftp://ftp.example.org/debian sid main
clean http://deb.example.org/debian
skip-clean http://deb.example.org/debian/doc
frobnicate
";
        let text = text.replace("deb http://deb.example.org", "deb-amd64 http://deb.example.org");
        insta::assert_snapshot!(
            crate::convert::convert(ForeignFormat::AptMirror, &text)
                .unwrap()
                .render("mirror.list", ForeignFormat::AptMirror)
        );
    }

    #[test]
    fn comments_behind_lines_are_no_components() {
        for (line, left) in [
            ("deb http://h/x stable main # contrib later", "deb http://h/x stable main "),
            ("set nthreads 20\t#all", "set nthreads 20\t"),
            ("deb http://h/x#y stable main", "deb http://h/x#y stable main"),
            ("# clean http://h", ""),
        ] {
            assert_eq!(without_comment(line), left);
        }
    }

    #[test]
    fn options_of_lines_become_settings_or_notes() {
        let fingerprint = "0123456789ABCDEF0123456789ABCDEF01234567";
        let text = format!(
            "deb [arch=amd64 trusted=yes lang=de] http://x/y s main\n\
             deb [arch=amd64 signed-by=/k.gpg,{fingerprint}] http://x/z s main\ndeb-src http://x/z s main\n"
        );
        let draft = crate::convert::convert(ForeignFormat::AptMirror, &text).unwrap();
        let value = |mirror: usize, name: &str| {
            let values = &draft.mirrors[mirror].values;
            values.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        };
        assert_eq!((value(0, "trusted").as_deref(), value(0, "keyring")), (Some("true"), None));
        assert_eq!(value(1, "keyring"), Some(format!("[\"/k.gpg\", \"{fingerprint}\"]")));
        assert_eq!((value(1, "arch").as_deref(), value(1, "trusted")), (Some(r#"["amd64", "source", "all"]"#), None));
        let notes: Vec<String> = draft.notes.iter().map(ToString::to_string).collect();
        assert_eq!(notes, ["line 1: [lang=de]: has no counterpart for a single line"]);
    }

    #[test]
    fn what_is_off_is_not_missed() {
        let archive = "deb http://x/y s main\n";
        let notes = |text: &str| convert(&format!("{text}{archive}")).notes.len();
        assert_eq!(notes("set use_proxy off\nset http_proxy 127.0.0.1:3128\nset run_postmirror 0\n"), 0);
        assert_eq!(notes("set use_proxy on\nset http_proxy 127.0.0.1:3128\nset run_postmirror 1\n"), 3);
    }

    #[test]
    fn variables_that_name_each_other_end() {
        let text = "set a $b$b\nset b $a$a\nset mirror_path $a\ndeb http://x/y s main\n";
        assert_eq!(convert(text).mirrors.len(), 1);
    }
}
