//! `fullbore apt status`: what apt would do, as apt itself reads its configuration.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use fullbore_apt::acquire::Configuration;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events as _;
use fullbore_install::root::{Root, RootError};
use rustix::fs::{FileType, MemfdFlags};
use serde::Serialize;

use super::snippet::{Settings, SnippetState};
use super::{NAME, PARTS, System, probe};
use crate::progress::Screen;

/// Methods that may be ours.
const METHODS: [&str; 3] = ["rred", "http", "https"];

/// apt's main configuration file, below the root.
const MAIN: &str = "etc/apt/apt.conf";

/// Begins a line by which a configuration file has apt read another one.
const INCLUDE: &[u8] = b"#include";

/// Snippets that are searched for one that overrides ours; a system has ten.
const PARTS_MAX: usize = 10_000;

/// What is on.
#[derive(Debug, Serialize)]
struct Report {
    /// Path of the snippet.
    snippet: String,
    /// `absent`, `ours`, `edited` or `foreign`.
    standing: &'static str,
    /// Each method and the program that apt starts for it; `None` for apt's own.
    methods: Vec<Used>,
    /// Lists of mirrors.
    mirrors: Vec<String>,
    /// What is not as the snippet says, or would fail.
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Used {
    method: &'static str,
    program: Option<String>,
}

/// Shows what is on. Exit code 0 when it is as `enable` or `disable` left it, 2 with problems.
pub fn run(system: &System, json: bool, screen: &mut Screen) -> Result<u8, CommandError> {
    let standing = system.parts()?.map_or(Ok(SnippetState::Absent), |parts| system.standing(&parts))?;
    let configuration = configuration(system)?;
    let report = report(system, &standing, &configuration);
    if json {
        screen.print_json(&report);
    } else {
        lines(&report).iter().for_each(|line| screen.print_line(line));
    }
    Ok(if report.problems.is_empty() { 0 } else { ErrorKind::Partial.exit_code() })
}

/// After `enable`: says so when another file has the last word.
pub fn warn_if_overridden(system: &System, settings: &Settings, screen: &mut Screen) {
    match configuration(system) {
        Ok(configuration) => {
            for problem in overridden(system, settings, &configuration) {
                screen.warn(problem);
            }
        }
        Err(error) => screen.warn(format!("cannot tell whether another file overrides it: {}", error.message)),
    }
}

fn report(system: &System, standing: &SnippetState, configuration: &Configuration) -> Report {
    let mut problems = Vec::new();
    let standing_name = match standing {
        SnippetState::Absent => "absent",
        SnippetState::Ours(settings) => {
            problems.extend(overridden(system, settings, configuration));
            if let Err(error) = probe::program(system, Path::new(&settings.program), &settings.methods()) {
                problems.push(error.message);
            }
            for mirrors in &settings.mirrors {
                if let Err(error) = probe::mirrors(system, Path::new(mirrors)) {
                    problems.push(error.message);
                }
            }
            "ours"
        }
        SnippetState::Edited => {
            problems.push(format!("{} was changed after fullbore wrote it", system.snippet_path().display()));
            "edited"
        }
        SnippetState::Other => {
            problems.push(format!("{} was not written by fullbore", system.snippet_path().display()));
            "foreign"
        }
    };
    let used = METHODS.map(|method| Used { method, program: program(configuration, method) });
    Report {
        snippet: system.snippet_path().display().to_string(),
        standing: standing_name,
        methods: used.into(),
        mirrors: configuration.list("Acquire::fullbore::Mirrors").into_iter().map(str::to_owned).collect(),
        problems,
    }
}

fn lines(report: &Report) -> Vec<String> {
    let what = match report.standing {
        "absent" => "not there",
        "ours" => "as fullbore wrote it",
        "edited" => "changed by hand",
        _ => "not fullbore's",
    };
    let mut lines = vec![format!("snippet  {} ({what})", report.snippet)];
    for used in &report.methods {
        let program = used.program.as_deref().unwrap_or("apt's own");
        lines.push(format!("{:<8} {program}", used.method));
    }
    lines.extend(report.mirrors.iter().map(|mirrors| format!("mirrors  {mirrors}")));
    lines.extend(report.problems.iter().map(|problem| format!("problem  {problem}")));
    lines
}

/// What apt starts for a method; `None` for its own.
fn program(configuration: &Configuration, method: &str) -> Option<String> {
    configuration.get(&format!("Dir::Bin::Methods::{method}")).map(str::to_owned)
}

/// Methods for which apt does not start what our snippet says, with the file that may be why.
fn overridden(system: &System, settings: &Settings, configuration: &Configuration) -> Vec<String> {
    let mut problems = Vec::new();
    for method in settings.methods() {
        let used = program(configuration, method);
        if used.as_deref() != Some(settings.program.as_str()) {
            let used = used.as_deref().unwrap_or("its own method");
            let by = suspects(system).map_or(String::new(), |files| format!(" (look at {files})"));
            problems.push(format!("{method}: apt uses {used}, not {}{by}", settings.program));
        }
    }
    problems
}

/// Files read after ours that speak of methods.
fn suspects(system: &System) -> Option<String> {
    let parts = system.parts().ok()??;
    let mut names: Vec<String> = parts
        .list("")
        .ok()?
        .into_iter()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.as_str() > NAME)
        .take(PARTS_MAX)
        .collect();
    names.sort();
    let mut paths: Vec<_> = names.into_iter().map(|name| Path::new(PARTS).join(name)).collect();
    // apt's main file comes after the snippets.
    paths.push(MAIN.into());
    let mut paths: Vec<_> = paths.iter().filter_map(|path| system.at(path).ok()).collect();
    paths.retain(|path| {
        let text = std::fs::read_to_string(path).unwrap_or_default().to_ascii_lowercase();
        text.contains("methods")
    });
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    (!paths.is_empty()).then(|| paths.join(", "))
}

/// apt's configuration of a system, by `apt-config`.
fn configuration(system: &System) -> Result<Configuration, CommandError> {
    let failed = |what: &dyn std::fmt::Display| {
        CommandError::usage(format_args!("cannot read apt's configuration: {what}"))
            .hint("install apt, or check that `apt-config dump` works")
    };
    let mut command = Command::new("apt-config");
    command.args(Configuration::DUMP).stdin(Stdio::null());
    if !system.is_running_system() {
        // apt follows an absolute link out of the root: it is given the files' content. Only the file that this
        // variable names is read early enough; it must be a regular one.
        let mut file: File = rustix::fs::memfd_create("apt.conf", MemfdFlags::CLOEXEC)
            .map_err(|errno| failed(&std::io::Error::from(errno)))?
            .into();
        let text = of_root(&system.root).map_err(|error| failed(&error))?;
        file.write_all(&text).map_err(|error| failed(&error))?;
        command.stdin(file).env("APT_CONFIG", "/dev/stdin");
    }
    let output = command.output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    Configuration::from_dump(&String::from_utf8_lossy(&output.stdout)).map_err(|error| failed(&error))
}

/// The configuration files of a root, one after the other as apt reads them (apt.conf(5)), and that apt is to read no
/// others. What they include by name is left out: apt would look for it on this machine.
fn of_root(root: &Path) -> Result<Vec<u8>, RootError> {
    let root = Root::open(root)?;
    let mut names: Vec<String> = root
        .names(PARTS)?
        .into_iter()
        .filter_map(|name| String::from_utf8(name).ok())
        .filter(|name| is_part(name))
        .collect();
    names.sort();
    let files = names.into_iter().take(PARTS_MAX).map(|name| format!("{PARTS}/{name}")).chain([MAIN.to_owned()]);
    let mut text = format!("Dir \"{}/\";\n", root.path().display().to_string().trim_end_matches('/')).into_bytes();
    for file in files.filter(|file| root.leads_to(file) == Some(FileType::RegularFile)) {
        let content = root.read(&file)?.unwrap_or_default();
        for line in content.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii_start().starts_with(INCLUDE)) {
            text.extend_from_slice(line);
            text.push(b'\n');
        }
    }
    text.extend_from_slice(b"Dir::Etc::parts \"/dev/null\";\nDir::Etc::main \"/dev/null\";\n");
    Ok(text)
}

/// Names of snippets that apt reads (apt.conf(5)).
fn is_part(name: &str) -> bool {
    let has_ending = name.rsplit_once('.').is_none_or(|(_, ending)| ending == "conf");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    has_ending && !name.starts_with('.') && name.bytes().all(is_plain)
}
