//! Variables that set flags of another kind of store.
//!
//! A variable is a default for many runs. `FULLBORE_NODE` names the grid of those runs that use one, and does not keep
//! `put` from a bucket. On the command line, such a flag is a mistake, which the settings report.

use std::ffi::OsStr;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// Flags for grids.
const GRIDS: &[&str] = &[
    "node",
    "servers",
    "encoding",
    "segment_size",
    "convergence",
    "convergence_file",
    "random_key",
    "size",
    "renew",
    "verify",
];

/// Flags that say where a store is.
const STORES: &[&str] = &["endpoint", "region", "profile", "addressing", "no_sign_request"];

/// Flags of `put` and `get` for objects.
const OBJECTS: &[&str] = &[
    "cacert",
    "connections",
    "require_checksum",
    "content_type",
    "cache_control",
    "metadata",
    "storage_class",
    "acl",
    "sse",
    "last",
    "overwrite",
    "checksum",
    "delete",
];

/// Flags of `check` for archives in buckets.
const ARCHIVES_IN_BUCKETS: &[&str] = &["checksums", "lock", "state"];

/// Flags of `check` for all archives.
const ARCHIVES: &[&str] =
    &["read_data_subset", "from", "keyring", "cacert", "limit_rate", "connections", "http1", "no_hedge", "auth"];

/// The same matches, without flags that a variable has set and that are for another kind of store. `command` makes the
/// definition of the command line.
pub(super) fn set_aside(
    matches: ArgMatches,
    arguments: &[std::ffi::OsString],
    command: impl FnOnce() -> Command,
) -> Result<ArgMatches, clap::Error> {
    let Some((name, given)) = matches.subcommand() else { return Ok(matches) };
    let others = of_other_kinds(name, given);
    let wrong: Vec<String> = given
        .ids()
        .map(clap::Id::as_str)
        .filter(|id| others.iter().any(|flags| flags.contains(id)))
        .filter(|id| given.value_source(id) == Some(ValueSource::EnvVariable))
        .map(str::to_owned)
        .collect();
    if wrong.is_empty() {
        return Ok(matches);
    }
    let without = |command: Command| {
        wrong.into_iter().fold(command, |command, id| {
            command.mut_arg(id, |argument| argument.env(clap::builder::Resettable::<clap::builder::OsStr>::Reset))
        })
    };
    command().mut_subcommand(name, without).try_get_matches_from(arguments)
}

/// Flags that are not for what this command line names.
fn of_other_kinds(name: &str, given: &ArgMatches) -> &'static [&'static [&'static str]] {
    let words = |id: &str| given.get_raw(id).into_iter().flatten();
    let is_bucket = |id: &str| words(id).any(|word| begins(word, "s3://"));
    let is_cap = |id: &str| words(id).any(|word| begins(word, "URI:"));
    match name {
        "put" if is_bucket("paths") => &[GRIDS],
        "put" => &[STORES, OBJECTS],
        "get" if is_bucket("caps") => &[GRIDS],
        "get" if is_cap("caps") => &[STORES, OBJECTS],
        "ls" if is_bucket("what") => &[GRIDS],
        "ls" => &[STORES, OBJECTS],
        "check" if is_bucket("what") => &[GRIDS],
        "check" if is_cap("what") || given.value_source("caps") == Some(ValueSource::CommandLine) => {
            &[STORES, ARCHIVES_IN_BUCKETS, ARCHIVES]
        }
        "check" => &[GRIDS, STORES, ARCHIVES_IN_BUCKETS],
        "mirror" if words("to").next().is_some() && !is_bucket("to") && !is_bucket("from") => &[STORES],
        _ => &[],
    }
}

fn begins(word: &OsStr, with: &str) -> bool {
    word.as_encoded_bytes().starts_with(with.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_of_a_flag() {
        let definition = super::super::command();
        let all: Vec<&str> = definition
            .get_subcommands()
            .flat_map(clap::Command::get_arguments)
            .map(|own| own.get_id().as_str())
            .collect();
        for id in [GRIDS, STORES, OBJECTS, ARCHIVES_IN_BUCKETS, ARCHIVES].concat() {
            assert!(all.contains(&id), "{id}");
        }
    }
}
