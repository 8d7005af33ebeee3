//! Trace files, as Debian's mirror network expects them and ftpsync writes them.
//!
//! `project/trace/HOST` tells when this mirror was last complete, `_traces` lists all trace files, and `_hierarchy` has
//! the chain of mirrors above. While a run changes the tree, `Archive-Update-in-Progress-HOST` is at its top.
//! `Archive-Update-Required-HOST`, which a push during a run creates, requests another run.

use fullbore_engine::files::{FileError, Kind};

use super::tree::Tree;

/// Directory of trace files, relative to the mirror.
pub(crate) const TRACE_DIRECTORY: &str = "project/trace";
/// Name of the archive's own trace file, which all mirrors carry.
pub(crate) const MASTER: &str = "master";
/// Maximum length of a host name (RFC 1123, section 2.1).
const HOST_BYTES_MAX: usize = 255;

/// Content of a trace file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace {
    /// Name of this mirror: its public host name.
    pub host: String,
    /// Start of the run, Unix seconds.
    pub started: i64,
    /// Time at which the mirror was complete, Unix seconds.
    pub finished: i64,
    /// `Archive serial` of the origin's `project/trace/master`, if it has one.
    pub archive_serial: Option<String>,
    /// Content of that file, for this mirror's copy.
    pub master: Option<String>,
    /// Mirrored architectures, including `source`; sorted.
    pub architectures: Vec<String>,
    /// Whether these are all architectures of the archive.
    pub all_architectures: bool,
    /// Names of the mirrored suites.
    pub suites: Vec<String>,
    /// Host name of the origin, for the line `Upstream-mirror`.
    pub upstream: String,
    /// Content of the origin's `_hierarchy`, if it has one.
    pub upstream_hierarchy: Option<String>,
    /// Number of bytes that the run received.
    pub received_bytes: u64,
    /// Further lines: `Maintainer: …` and others that ftpsync takes from its `INFO_` settings.
    pub info: Vec<String>,
}

/// Why a trace file cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The name of the mirror is not a host name.
    #[error("{0:?} is not a host name")]
    Host(String),
    /// A file cannot be read, written or removed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Checks that `host` can name a mirror in its trace files.
///
/// # Errors
/// [`TraceError::Host`] if it is empty, has more than 255 bytes (RFC 1123, section 2.1), begins with another character
/// than a letter or digit, or contains others than letters, digits, `.` and `-`.
///
/// ```
/// assert!(fullbore_mirror::check_host("mirror.example.org").is_ok());
/// assert!(fullbore_mirror::check_host("../etc").is_err());
/// ```
pub fn check_host(host: &str) -> Result<(), TraceError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let good = host.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && host.len() <= HOST_BYTES_MAX
        && host.bytes().all(allowed);
    if good { Ok(()) } else { Err(TraceError::Host(host.to_owned())) }
}

/// Marks that the tree is being changed.
///
/// # Errors
/// [`TraceError::Host`] for a bad host name, [`TraceError::File`] if the mark cannot be written.
pub(crate) fn mark_in_progress(tree: &dyn Tree, host: &str) -> Result<(), TraceError> {
    check_host(host)?;
    Ok(tree.write(&format!("Archive-Update-in-Progress-{host}"), b"")?)
}

/// Removes the mark of [`mark_in_progress`].
///
/// # Errors
/// [`TraceError::Host`] for a bad host name, [`TraceError::File`] if the mark cannot be removed.
pub(crate) fn unmark_in_progress(tree: &dyn Tree, host: &str) -> Result<(), TraceError> {
    check_host(host)?;
    tree.unlink(&format!("Archive-Update-in-Progress-{host}"))?;
    Ok(())
}

/// Removes the request for another run, and returns whether there was one. Call it when a run begins and when it ends.
///
/// # Errors
/// [`TraceError::Host`] for a bad host name, [`TraceError::File`] if the request cannot be removed.
pub(crate) fn take_update_required(tree: &dyn Tree, host: &str) -> Result<bool, TraceError> {
    check_host(host)?;
    Ok(tree.unlink(&format!("Archive-Update-Required-{host}"))?)
}

/// Writes this mirror's trace file, `_traces` and `_hierarchy`, each atomically. Trace files of others stay.
///
/// # Errors
/// [`TraceError::Host`] for a bad host name, [`TraceError::File`] if a file cannot be read or written.
pub(crate) fn write(tree: &dyn Tree, trace: &Trace) -> Result<(), TraceError> {
    check_host(&trace.host)?;
    let put = |name: &str, text: &str| tree.write(&format!("{TRACE_DIRECTORY}/{name}"), text.as_bytes());
    if let Some(master) = &trace.master {
        put(MASTER, master)?;
    }
    put(&trace.host, &render(trace))?;
    put("_hierarchy", &hierarchy(trace))?;
    let mut names: Vec<String> = tree
        .list(TRACE_DIRECTORY)?
        .into_iter()
        .filter(|(_, kind)| *kind == Kind::File)
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| !name.starts_with(['_', '.']))
        .collect();
    names.sort_unstable();
    put("_traces", &(names.join("\n") + "\n"))?;
    Ok(())
}

/// Value of `Archive serial` in a trace file.
pub(crate) fn archive_serial(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("Archive serial: ")).map(str::trim)
}

/// Whether a received text is a trace file: its first line is a time as `date -u` writes it.
pub(crate) fn is_trace(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    let year = words.last().is_some_and(|year| year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit()));
    year && words.contains(&"UTC") && !text.contains(|c: char| c.is_control() && c != '\n')
}

fn render(trace: &Trace) -> String {
    let seconds = trace.finished.saturating_sub(trace.started).max(0);
    let mut lines = vec![
        // `date -u` in the C locale; readers of trace files take the time from this line.
        format_time(trace.finished, "%a %b %e %H:%M:%S UTC %Y"),
        format!("Date: {}", format_time(trace.finished, "%a, %d %b %Y %H:%M:%S +0000")),
        format!("Date-Started: {}", format_time(trace.started, "%a, %d %b %Y %H:%M:%S +0000")),
    ];
    if let Some(serial) = &trace.archive_serial {
        lines.push(format!("Archive serial: {}", one_line(serial)));
    }
    lines.push(format!("Creator: fullbore {}", env!("CARGO_PKG_VERSION")));
    lines.push(format!("Running on host: {}", trace.host));
    lines.extend(trace.info.iter().map(|line| one_line(line)));
    // Tells checkers of mirrors which rules are followed; otherwise they go by ftpsync's version.
    lines.push("Revision: i18n InRelease AUIP".to_owned());
    lines.push(format!("Suites: {}", one_line(&trace.suites.join(" "))));
    lines.push(format!("Architectures: {}", one_line(&trace.architectures.join(" "))));
    let configuration = if trace.all_architectures {
        "ALL".to_owned()
    } else {
        format!("INCLUDE {}", one_line(&trace.architectures.join(" ")))
    };
    lines.push(format!("Architectures-Configuration: {configuration}"));
    lines.push(format!("Upstream-mirror: {}", one_line(&trace.upstream)));
    // The names are ftpsync's, because programs for mirror statistics look for them.
    lines.push(format!("Total bytes received in rsync: {}", trace.received_bytes));
    lines.push(format!("Total time spent in rsync: {seconds}"));
    if seconds > 0 {
        lines.push(format!("Average rate: {} B/s", trace.received_bytes / seconds.unsigned_abs()));
    }
    lines.join("\n") + "\n"
}

/// Site, host and upstream of each mirror from the master down to this one.
fn hierarchy(trace: &Trace) -> String {
    let own = format!("{0} {0} {1}", trace.host, one_line(&trace.upstream));
    let site = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    // All lines or none: a web page is not a hierarchy, even if a line of it looks like one.
    let above = trace
        .upstream_hierarchy
        .as_deref()
        .filter(|text| text.lines().all(|line| !line.contains(char::is_control) && check_host(&site(line)).is_ok()));
    let above = above.unwrap_or_default().lines();
    let mut lines: Vec<&str> = above.filter(|line| site(line) != trace.host).collect();
    lines.push(&own);
    lines.join("\n") + "\n"
}

fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

fn format_time(unix_s: i64, format: &str) -> String {
    let time = jiff::Timestamp::from_second(unix_s).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    time.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use fullbore_engine::files::Root;

    use super::*;

    fn trace() -> Trace {
        Trace {
            host: "mirror.example.org".into(),
            started: 1_461_772_251,
            finished: 1_461_772_597,
            archive_serial: Some("2016042703".into()),
            architectures: vec!["amd64".into(), "source".into()],
            all_architectures: false,
            suites: vec!["trixie".into()],
            master: Some("Wed Apr 27 15:00:00 UTC 2016\nArchive serial: 2016042703\n".into()),
            upstream: "deb.example.net".into(),
            upstream_hierarchy: Some("a a master\nmirror.example.org old entry\n".into()),
            received_bytes: 5_116_226_559,
            info: vec!["Maintainer: Example <mirror@example.org>".into()],
        }
    }

    #[test]
    fn a_trace_file_is_as_ftpsync_writes_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        write(&root, &trace()).unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.path().join("project/trace").join(name)).unwrap();
        let text = read("mirror.example.org").replace(env!("CARGO_PKG_VERSION"), "VERSION");
        insta::assert_snapshot!(text, @"
        Wed Apr 27 15:56:37 UTC 2016
        Date: Wed, 27 Apr 2016 15:56:37 +0000
        Date-Started: Wed, 27 Apr 2016 15:50:51 +0000
        Archive serial: 2016042703
        Creator: fullbore VERSION
        Running on host: mirror.example.org
        Maintainer: Example <mirror@example.org>
        Revision: i18n InRelease AUIP
        Suites: trixie
        Architectures: amd64 source
        Architectures-Configuration: INCLUDE amd64 source
        Upstream-mirror: deb.example.net
        Total bytes received in rsync: 5116226559
        Total time spent in rsync: 346
        Average rate: 14786781 B/s
        ");
        assert_eq!(read("_traces"), "master\nmirror.example.org\n");
        assert_eq!(read("_hierarchy"), "a a master\nmirror.example.org mirror.example.org deb.example.net\n");
        let page = Trace { upstream_hierarchy: Some("a a master\n<p>error\n".into()), ..trace() };
        assert_eq!(hierarchy(&page), "mirror.example.org mirror.example.org deb.example.net\n");
        assert_eq!(archive_serial(&read("master")), Some("2016042703"));
        assert!(is_trace(&read("master")) && is_trace(&read("mirror.example.org")));
        for text in ["", "<html>", "Wed Apr 27 15:00:00 UTC 2016\n\u{1b}[31m\n", "Archive serial: 2016042703\n"] {
            assert!(!is_trace(text), "{text:?}");
        }
    }

    #[test]
    fn marks_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let mark = directory.path().join("Archive-Update-in-Progress-h.example");
        mark_in_progress(&root, "h.example").unwrap();
        assert!(mark.exists());
        unmark_in_progress(&root, "h.example").unwrap();
        assert!(!mark.exists());
        std::fs::write(directory.path().join("Archive-Update-Required-h.example"), "").unwrap();
        assert!(take_update_required(&root, "h.example").unwrap());
        assert!(!take_update_required(&root, "h.example").unwrap());
        for host in ["", "../x", "a/b", ".x", "a b"] {
            assert!(matches!(mark_in_progress(&root, host), Err(TraceError::Host(_))), "{host}");
        }
    }
}
