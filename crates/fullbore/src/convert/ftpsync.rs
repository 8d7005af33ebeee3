//! `ftpsync.conf`: shell assignments, read and not executed.

use fullbore_mirror::check_host;

use super::{ConvertedMirror, Draft, names};

/// Debian's architectures when ftpsync mirrors all but some; the list is of Debian 13 with sid.
const ARCHITECTURES: &[&str] =
    &["amd64", "arm64", "armel", "armhf", "i386", "loong64", "ppc64el", "riscv64", "s390x", "all", "source"];

/// Debian's suites: ftpsync takes the whole archive, whatever it holds.
const SUITES: &[&str] = &[
    "oldstable",
    "oldstable-updates",
    "stable",
    "stable-updates",
    "stable-backports",
    "testing",
    "testing-updates",
    "unstable",
    "experimental",
];

/// What ftpsync writes into its trace file of these settings.
const INFO: &[(&str, &str)] = &[
    ("INFO_MAINTAINER", "Maintainer"),
    ("INFO_SPONSOR", "Sponsor"),
    ("INFO_COUNTRY", "Country"),
    ("INFO_LOCATION", "Location"),
    ("INFO_THROUGHPUT", "Throughput"),
];

/// One assignment; `value` is `None` when the shell would have to work it out.
struct Assignment {
    line: usize,
    name: String,
    value: Option<String>,
}

pub(super) fn convert(text: &str) -> Draft {
    let mut draft = Draft::default();
    let assignments = assignments(text, &mut draft);
    let find = |name: &str| assignments.iter().rev().find(|assignment| assignment.name == name);
    let value = |name: &str| find(name).and_then(|found| found.value.clone()).filter(|value| !value.is_empty());
    if value("RSYNC_HOST").is_none() && value("TO").is_none() && value("RSYNC_PATH").is_none() {
        return Draft::default();
    }
    let path = value("RSYNC_PATH").unwrap_or_else(|| "debian".to_owned());
    let path = path.trim_matches('/').to_owned();
    let mut section =
        ConvertedMirror { name: draft.free_name(path.rsplit('/').next().unwrap_or("")), ..ConvertedMirror::default() };
    section.comment("The tree of ftpsync is taken over: files that are right are not fetched again.");
    match value("RSYNC_HOST") {
        Some(host) => {
            section.comment("ftpsync fetches by rsync. Look whether the same host offers http, and add more mirrors.");
            section.text("from", format!("http://{host}/{path}").trim_end_matches('/'));
        }
        None => {
            section.comment("RSYNC_HOST was not set: name your upstream here.");
            section.text("from", "https://deb.example.org/debian");
        }
    }
    section.comment("ftpsync takes every suite of the archive: name those you want, and their components.");
    section.values.push(("suite", strings(SUITES.iter().copied())));
    let included = names(&value("ARCH_INCLUDE").unwrap_or_default());
    let excluded = names(&value("ARCH_EXCLUDE").unwrap_or_default());
    if !included.is_empty() {
        let mut architectures = included;
        if architectures.iter().any(|name| name != "source") && !architectures.iter().any(|name| name == "all") {
            architectures.push("all".to_owned());
        }
        section.list("arch", &architectures);
        if let Some(both) = find("ARCH_EXCLUDE").filter(|_| !excluded.is_empty()) {
            let setting = format!("ARCH_EXCLUDE={}", excluded.join(" "));
            draft.note(both.line, setting, "left out: ARCH_INCLUDE selects the architectures");
        }
    } else if !excluded.is_empty() {
        let left = ARCHITECTURES.iter().copied().filter(|name| !excluded.iter().any(|other| other == name));
        section.values.push(("arch", strings(left)));
    }
    match value("TO") {
        Some(to) => section.text("to", to.trim_end_matches('/')),
        None => {
            section.comment("TO was not set: name the directory here.");
            section.text("to", "/srv/mirrors/debian");
        }
    }
    // rsync's own option in the one, its value in the other; both in KiB per second (rsync(1), --bwlimit).
    let limit = value("RSYNC_BW").or_else(|| value("BWLIMIT"));
    let limit = limit.and_then(|value| value.trim_start_matches("--bwlimit=").parse::<u64>().ok());
    if let Some(kilobytes) = limit.filter(|rate| *rate > 0) {
        section.text("limit-rate", format!("{kilobytes}KiB"));
    }
    if let Some(host) = value("MIRRORNAME").or_else(|| value("TRACEHOST")).filter(|host| check_host(host).is_ok()) {
        section.text("trace-host", host);
    }
    let info: Vec<String> = INFO
        .iter()
        .filter_map(|(name, field)| Some(format!("{field}: {}", value(name)?)))
        .filter(|line| !line.contains(char::is_control))
        .collect();
    section.list("trace-info", &info);
    for assignment in &assignments {
        if assignment.value.as_deref() == Some("") {
            continue;
        }
        let shown = format!("{}={}", assignment.name, assignment.value.as_deref().unwrap_or("…"));
        if assignment.value.is_none() {
            draft.note(assignment.line, shown, "the shell would have to work this out; it is not executed");
        } else if let Some(reason) = reason(&assignment.name) {
            draft.note(assignment.line, shown, reason);
        }
    }
    draft.mirrors.push(section);
    draft
}

fn strings<'a>(values: impl Iterator<Item = &'a str>) -> toml::Value {
    toml::Value::Array(values.map(|value| toml::Value::String(value.to_owned())).collect())
}

/// Why a setting is not taken over; `None` if it is.
fn reason(name: &str) -> Option<&'static str> {
    Some(match name {
        "TO" | "RSYNC_HOST" | "RSYNC_PATH" | "ARCH_INCLUDE" | "ARCH_EXCLUDE" | "RSYNC_BW" | "BWLIMIT"
        | "MIRRORNAME" | "TRACEHOST" => return None,
        name if INFO.iter().any(|(info, _)| *info == name) => return None,
        "MAILTO" | "ERRORSONLY" | "FULLLOGS" => "let the service or its timer send mail, for example with OnFailure=",
        "LOGDIR" | "LOG" | "LOGROTATE" => "the log goes to stderr, and so to the journal",
        "HOOK1" | "HOOK2" | "HOOK3" | "HOOK4" | "HOOK5" => "run it by ExecStartPre= or ExecStartPost= of the service",
        "RSYNC_USER" | "RSYNC_PASSWORD" => "put credentials for http into apt's auth.conf",
        "RSYNC_PROXY" => "set http_proxy and https_proxy in the environment (of the service)",
        "EXCLUDE" => "rsync's patterns differ; write regular expressions into `exclude`",
        "LOCKTIMEOUT" | "UIPSLEEP" | "UIPRETRIES" | "HUB" => "not needed: a second run ends at once with exit code 6",
        name if name.starts_with("RSYNC_") => "belongs to rsync",
        _ => "has no counterpart",
    })
}

/// The assignments of a shell file; other commands become notes.
fn assignments(text: &str, draft: &mut Draft) -> Vec<Assignment> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while !rest.is_empty() {
        // One word of the shell: up to an unquoted space, newline, semicolon.
        let begin = line;
        let (word, length) = word(rest);
        let raw = &rest[..length];
        line += raw.matches('\n').count();
        rest = &rest[length..];
        let word_is_plain = word.as_ref().is_some_and(|word| !word.is_empty());
        if let Some((name, _)) = raw.split_once('=').filter(|(name, _)| is_name(name)) {
            let value = word.and_then(|word| word.split_once('=').map(|(_, value)| value.to_owned()));
            found.push(Assignment { line: begin, name: name.to_owned(), value });
        } else if word_is_plain && raw != "export" || word_is_none(raw) {
            // Another command: all of its line.
            let end = rest.find('\n').unwrap_or(rest.len());
            draft.note(begin, format!("{raw}{}", &rest[..end]), "not an assignment; the file is not executed");
            rest = &rest[end..];
        }
        // What separates words; a comment reaches to the end of its line.
        while let Some(c) = rest.chars().next() {
            if c == '#' {
                rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
            } else if c.is_whitespace() || c == ';' {
                line += usize::from(c == '\n');
                rest = &rest[c.len_utf8()..];
            } else {
                break;
            }
        }
    }
    found
}

/// Whether a word that could not be read stands there.
fn word_is_none(raw: &str) -> bool {
    !raw.is_empty() && word(raw).0.is_none()
}

fn is_name(text: &str) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The word at the beginning, quotes removed, and how many bytes it takes. The word is
/// `None` when it has substitutions, which only a shell can do.
fn word(text: &str) -> (Option<String>, usize) {
    let mut value = String::new();
    let mut plain = true;
    let mut quote = None;
    let mut letters = text.char_indices().peekable();
    while let Some((at, c)) = letters.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some('\''), c) => value.push(c),
            (_, '\\') => value.extend(letters.next().map(|(_, escaped)| escaped)),
            (_, '`') => {
                plain = false;
                letters.find(|(_, c)| *c == '`');
            }
            (_, '$') => {
                plain = false;
                skip_substitution(&mut letters);
            }
            (Some(_), c) => value.push(c),
            (None, '"' | '\'') => quote = Some(c),
            (None, c) if c.is_whitespace() || c == ';' => return (plain.then_some(value), at),
            (None, '#') if at == 0 => return (Some(String::new()), 0),
            (None, c) => value.push(c),
        }
    }
    ((plain && quote.is_none()).then_some(value), text.len())
}

/// Passes `(…)` or `{…}` behind a dollar, others within them counted.
fn skip_substitution(letters: &mut std::iter::Peekable<std::str::CharIndices<'_>>) {
    let Some((open, close)) =
        [('(', ')'), ('{', '}')].into_iter().find(|(open, _)| letters.peek().is_some_and(|(_, next)| next == open))
    else {
        return;
    };
    let mut depth = 0;
    for (_, c) in letters.by_ref() {
        depth += i32::from(c == open) - i32::from(c == close);
        if depth == 0 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ForeignFormat;

    #[test]
    fn a_usual_file_of_ftpsync_is_converted() {
        let text = r#"########################################################################
## This is a sample configuration file for the ftpsync mirror script. ##
MIRRORNAME=`hostname -f`
TO="/srv/mirrors/debian/"
RSYNC_HOST=syncproxy.eu.example.org
RSYNC_PATH="debian"
RSYNC_USER=me
MAILTO="root@example.org"
ARCH_EXCLUDE="armel s390x"   # no room
RSYNC_BW=5000
EXCLUDE="--exclude=*.changes
  --exclude=foo"
HOOK1=''
export LOGDIR=${BASEDIR}/log
if [ -f /etc/x ]; then . /etc/x; fi
"#;
        insta::assert_snapshot!(
            crate::convert::convert(ForeignFormat::Ftpsync, text)
                .unwrap()
                .render("ftpsync.conf", ForeignFormat::Ftpsync)
        );
    }

    #[test]
    fn name_limit_and_what_is_told_of_a_mirror_are_taken_over() {
        let text = "TO=/srv/m\nRSYNC_HOST=x.example.org\nMIRRORNAME=ftp.example.org\nBWLIMIT=--bwlimit=5000\n\
                    INFO_MAINTAINER='A B <a@example.org>'\nINFO_COUNTRY=DE\n";
        let draft = convert(text);
        assert!(draft.notes.is_empty(), "{:?}", draft.notes);
        let find =
            |key: &str| draft.mirrors[0].values.iter().find(|(name, _)| *name == key).map(|(_, v)| v.to_string());
        assert_eq!(find("limit-rate").as_deref(), Some("\"5000KiB\""));
        assert_eq!(find("trace-host").as_deref(), Some("\"ftp.example.org\""));
        let info = find("trace-info").unwrap();
        assert!(info.contains("Maintainer: A B <a@example.org>") && info.contains("Country: DE"), "{info}");
    }

    #[test]
    fn an_exclusion_beside_an_inclusion_is_told_of() {
        let draft = convert("TO=/x\nARCH_INCLUDE=amd64\nARCH_EXCLUDE=i386\n");
        assert_eq!((draft.notes.len(), draft.notes[0].line), (1, 3), "{:?}", draft.notes);
    }

    #[test]
    fn nothing_is_executed_and_everything_ends() {
        assert!(convert("").mirrors.is_empty());
        assert!(convert("TO=$(rm -rf /)").mirrors.is_empty());
        assert_eq!(convert("TO=/x\n\"").mirrors.len(), 1);
    }
}
