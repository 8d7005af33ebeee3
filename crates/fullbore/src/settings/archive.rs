//! Which archives are meant: by `--from` and `--suite`, or by apt's sources.

use fullbore_apt::acquire::Configuration;
use fullbore_apt::system::sources as apt;
use fullbore_engine::run::error::CommandError;

use super::apt_sources::{AptDefaults, apt_archives};
use super::file::{Section, SourceSection};
use super::keys::signed_by;
use super::origins::{Store, origin};
use super::{SignedBy, SourceSpec};

/// One archive and what to take from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// Its addresses, the origin first.
    pub origins: Vec<String>,
    /// What to take from it.
    pub sources: Vec<SourceSpec>,
    /// What was read and has no effect, one line each, for the user.
    pub notes: Vec<String>,
}

/// The archives that a section names; never none. `apt` is the configuration of apt, needed for apt's sources.
pub(super) fn archives(wishes: &Section, apt: Option<&Configuration>) -> Result<Vec<Archive>, CommandError> {
    if let Some(sources) = &wishes.sources {
        if !wishes.from.0.is_empty() {
            return Err(CommandError::usage("--sources and --from both name the archive").hint("pass only one of them"));
        }
        let defaults = apt.map(AptDefaults::of).unwrap_or_default();
        return apt_archives(apt::read(sources)?, wishes, sources, &defaults);
    }
    let mut origins = Vec::new();
    for from in &wishes.from.0 {
        let from = origin(from, &store_of(wishes))?;
        if !origins.contains(&from) {
            origins.push(from);
        }
    }
    if origins.is_empty() {
        return Err(CommandError::usage("no archive to mirror from").hint("pass --from URL, or --sources FILE"));
    }
    let mut parts: Vec<SourceSection> = Vec::new();
    if wishes.source.is_empty() || !wishes.suite.0.is_empty() {
        parts.push(SourceSection { suite: wishes.suite.clone(), ..SourceSection::default() });
    }
    parts.extend(wishes.source.iter().cloned());
    let mut sources = Vec::new();
    for part in parts {
        if part.suite.0.is_empty() {
            return Err(CommandError::usage("no suite to mirror").hint("pass --suite NAME, such as trixie or stable"));
        }
        for suite in &part.suite.0 {
            check_name("suite", suite)?;
        }
        let components = part.component.or(wishes.component.clone()).0;
        for component in &components {
            check_name("component", component)?;
        }
        let wanted = part.arch.or(wishes.arch.clone()).0;
        let (architectures, with_sources) = split_architectures(&wanted)?;
        let trusted = part.trusted.or(wishes.trusted).unwrap_or(false);
        let keyrings = part.keyring.or(wishes.keyring.clone()).0;
        let signed_by = if trusted && keyrings.is_empty() { SignedBy::Trusted } else { signed_by(&keyrings)? };
        sources.push(SourceSpec {
            suites: part.suite.0.into_iter().map(flat_suite).collect(),
            components,
            binaries: wanted.is_empty() || !architectures.is_empty(),
            sources: wanted.is_empty() || with_sources,
            architectures,
            ..SourceSpec::new("", signed_by)
        });
    }
    Ok(vec![Archive { origins, sources, notes: Vec::new() }])
}

/// What a section says of the stores of buckets.
pub(super) fn store_of(wishes: &Section) -> Store {
    Store {
        endpoint: wishes.endpoint.clone(),
        region: wishes.region.clone(),
        profile: wishes.profile.clone(),
        no_sign_request: wishes.no_sign_request.unwrap_or(false),
    }
}

/// Splits `amd64,source,all` into binary architectures and whether sources are wanted.
pub(super) fn split_architectures(wanted: &[String]) -> Result<(Vec<String>, bool), CommandError> {
    let mut architectures: Vec<String> = Vec::new();
    for name in wanted.iter().filter(|name| *name != "source") {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(CommandError::usage(format_args!("{name:?} is not the name of an architecture")));
        }
        if !architectures.contains(name) {
            architectures.push(name.clone());
        }
    }
    Ok((architectures, wanted.iter().any(|name| name == "source")))
}

/// A suite or component becomes part of paths; the final check is the archive path's own.
fn check_name(what: &str, name: &str) -> Result<(), CommandError> {
    let bad = name.is_empty()
        || (name.starts_with('/') && name != "/")
        || name.split('/').any(|part| part == "..")
        || name.chars().any(|c| c.is_control() || c.is_whitespace());
    if bad { Err(CommandError::usage(format_args!("{name:?} is not the name of a {what}"))) } else { Ok(()) }
}

/// `./`, as many sources have it, is the archive's own directory: `/`.
fn flat_suite(suite: String) -> String {
    match suite.strip_prefix("./") {
        Some("") => "/".to_owned(),
        Some(rest) => rest.to_owned(),
        None => suite,
    }
}
