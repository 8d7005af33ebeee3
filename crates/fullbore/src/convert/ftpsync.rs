//! `ftpsync.conf`: shell assignments, read and not executed.

use fullbore_mirror::check_host;

use super::shell::assignments;
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
    let limit = limit.and_then(|value| {
        let rate = value.trim_start_matches("--bwlimit=").parse::<u64>().ok();
        if rate.is_none() {
            draft.note(1, format!("RSYNC_BW={value}"), "not a number of KiB per second; write `limit-rate` yourself");
        }
        rate
    });
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
