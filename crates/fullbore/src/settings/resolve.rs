//! From flags, environment and file to settings without open questions.

use std::path::{Path, PathBuf};

use fullbore_apt::system::{configuration, files, proxies};
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::{absolute, readable};
use fullbore_mirror::mirror::fleet::{FleetSettings, Role};
use fullbore_mirror::{DeleteGuard, MirrorStore, Retention, StateStore, check_host, check_snapshot_name};
use fullbore_s3::bucket::{self, BucketSettings};
use fullbore_wire::hosts::MAX_HOSTS;
use fullbore_wire::run::NetworkSettings;
use fullbore_wire::url::public_part;

use super::addresses;
use super::archive::{archives, store_of};
use super::bucket::{bucket_of, misplaced_flag, scratch, state_of};
use super::directories::directory_names;
use super::file::{self, Section};
use super::layers::flags;
use super::origins;
use super::queue::{Login, queue};
use super::work::run_id;
use super::{Clean, DEFAULT_CONFIG, Environment, Filters, Keep, MirrorSettings, OutputSettings, SourceSpec};
use crate::cli::{Aliases, MirrorArgs, NetworkArgs, OutputArgs, StoreArgs, StoreLock};

/// Connections per host by default; public mirrors ask for few.
const CONNECTIONS: u16 = 4;
/// The same if all mirrors are buckets: a store answers each request after some milliseconds, and is there for many.
const CONNECTIONS_TO_BUCKETS: u16 = 16;
/// Largest number of connections per host, in the file as on the command line.
const CONNECTIONS_MAX: u16 = 16;

/// What `--to` takes.
const TO_HINT: &str =
    "pass --to with a local directory or s3://BUCKET/PREFIX, and --from with the address of the archive";

/// The mirrors to be made and what is to be shown about them. Never an empty list.
pub fn mirrors(
    arguments: MirrorArgs,
    environment: &Environment,
) -> Result<(Vec<MirrorSettings>, OutputSettings), CommandError> {
    // The name of a run is data, which scripts read.
    let output = OutputSettings { stdout_has_data: arguments.pin, ..output(&arguments.output, arguments.changed_exit) };
    let sections = sections(&arguments)?;
    let several = sections.len() > 1;
    if several && (!arguments.from.is_empty() || arguments.to.is_some() || arguments.sources.is_some()) {
        return Err(CommandError::usage(
            "--from, --to and --sources would hold for several mirrors of the settings file",
        )
        .hint("name one of them, as in `fullbore mirror NAME --to DIR`"));
    }
    let mut mirrors = Vec::new();
    for (name, section) in sections {
        let wishes = section.under(flags(&arguments));
        let resolved = mirror(name.as_deref(), &wishes, &arguments, environment).map_err(|error| match &name {
            Some(name) => error.context(format_args!("in [mirror.{name}]")),
            None => error,
        })?;
        mirrors.extend(resolved);
    }
    if mirrors.len() > 1 && (arguments.pin || arguments.finish.is_some()) {
        let flag = if arguments.pin { "--pin" } else { "--finish" };
        return Err(CommandError::usage(format_args!("{flag} is for one mirror, and there are {}", mirrors.len()))
            .hint(format_args!("name one, as in `fullbore mirror NAME {flag}`")));
    }
    for (i, mirror) in mirrors.iter().enumerate() {
        if let Some(other) = mirrors.iter().take(i).find(|other| other.dir == mirror.dir) {
            return Err(CommandError::usage(format_args!("two mirrors would write into {}", mirror.dir.display()))
                .context(format_args!("{} and {}", shown(other), shown(mirror)))
                .hint("give each its own directory; several suites of one archive belong into one section"));
        }
        if let Some(other) = mirrors.iter().take(i).find(|other| share_a_state(other, mirror)) {
            return Err(CommandError::usage("two mirrors would have one state")
                .context(format_args!("{} and {}", shown(other), shown(mirror)))
                .hint("give each a state of its own, which is in no other mirror's bucket and prefix"));
        }
    }
    Ok((mirrors, output))
}

/// Whether two mirrors in buckets would have fullbore's own files at one place, or one has them in the other.
fn share_a_state(one: &MirrorSettings, other: &MirrorSettings) -> bool {
    let (Some(one), Some(other)) = (&one.store, &other.store) else { return false };
    let is_same = |one: &BucketSettings, other: &BucketSettings| {
        let key = |settings: &BucketSettings| settings.location.key.trim_end_matches('/').to_owned();
        (&one.location.bucket, key(one), &one.endpoint) == (&other.location.bucket, key(other), &other.endpoint)
    };
    let state_of =
        |store: &MirrorStore| store.state.clone().unwrap_or_else(|| StateStore::Bucket(Box::new(store.bucket.clone())));
    match (state_of(one), state_of(other)) {
        (StateStore::Directory(of_one), StateStore::Directory(of_other)) => of_one == of_other,
        (StateStore::Bucket(of_one), StateStore::Bucket(of_other)) => {
            is_same(&of_one, &of_other) || is_same(&of_one, &other.bucket) || is_same(&of_other, &one.bucket)
        }
        (StateStore::Bucket(of_one), StateStore::Directory(_)) => is_same(&of_one, &other.bucket),
        (StateStore::Directory(_), StateStore::Bucket(of_other)) => is_same(&of_other, &one.bucket),
    }
}

fn shown(mirror: &MirrorSettings) -> &str {
    mirror.name.as_deref().unwrap_or(&mirror.origins[0])
}

/// The sections asked for, the defaults of the file filled in; one empty section if flags say all.
fn sections(arguments: &MirrorArgs) -> Result<Vec<(Option<String>, Section)>, CommandError> {
    for name in &arguments.names {
        // The address may hold a password.
        let from = public_part(name).unwrap_or_else(|| "URL".to_owned());
        let hint = format!("use `fullbore mirror --from {from} --suite SUITE --to DIR`");
        let address = addresses::not_a_name(name.as_ref(), "the name of a mirror in the settings file", &hint);
        if let Some(error) = address.or_else(|| addresses::file_for_name(name)) {
            return Err(error);
        }
    }
    let by_flags = !arguments.from.is_empty() || arguments.sources.is_some();
    if arguments.config.is_none() && arguments.names.is_empty() && by_flags {
        return Ok(vec![(None, Section::default())]);
    }
    let path = arguments.config.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG));
    if arguments.config.is_none() && arguments.names.is_empty() && !path.exists() {
        return Err(CommandError::usage("no archive given, and no settings file exists")
            .context(format_args!("looked for {DEFAULT_CONFIG}"))
            .hint(
                "pass --from https://deb.example.org/debian --suite SUITE --to DIR, or see `fullbore mirror --help`",
            ));
    }
    let mut settings = file::read(&path)?;
    let names: Vec<String> =
        if arguments.names.is_empty() { settings.mirror.keys().cloned().collect() } else { arguments.names.clone() };
    if names.is_empty() {
        return Err(CommandError::usage(format_args!("{}: no [mirror.NAME] section", path.display())));
    }
    let known: Vec<String> = settings.mirror.keys().cloned().collect();
    let mut sections = Vec::new();
    for name in names {
        let Some(section) = settings.mirror.remove(&name) else {
            if sections.iter().any(|(taken, _): &(Option<String>, Section)| taken.as_ref() == Some(&name)) {
                continue;
            }
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let error = CommandError::usage(format_args!("{}: no section [mirror.{name}]", path.display()));
            return Err(match file::nearest(&name, &known) {
                Some(near) => error.hint(format_args!("use {near}, as in `fullbore mirror {near}`")),
                None => error.hint(format_args!("name one of {}", known.join(", "))),
            });
        };
        sections.push((Some(name), settings.defaults.clone().under(section)));
    }
    Ok(sections)
}

/// The mirrors one section stands for: one, or one per archive of its `sources`.
fn mirror(
    name: Option<&str>,
    wishes: &Section,
    arguments: &MirrorArgs,
    environment: &Environment,
) -> Result<Vec<MirrorSettings>, CommandError> {
    let to = wishes
        .to
        .as_deref()
        .ok_or_else(|| CommandError::usage("no directory to write the mirror into").hint("add --to DIR"))?;
    if let Some(error) = addresses::not_of_a_mirror(to.as_os_str(), &TO_HINT) {
        return Err(error);
    }
    let is_bucket = bucket::is_address(to.as_os_str());
    let dir = if is_bucket { to.to_owned() } else { absolute(to)? };
    let reads_buckets = wishes.from.0.iter().chain(&wishes.origin).any(|from| origins::is_bucket(from));
    if let Some(error) = misplaced_flag(arguments, is_bucket, reads_buckets || wishes.sources.is_some()) {
        return Err(error);
    }
    if let Some(snapshot) = &wishes.snapshot {
        check_snapshot_name(snapshot).map_err(CommandError::usage)?;
    }
    check_trace(wishes)?;
    if let Some(value) = &wishes.cache_control
        && (value.is_empty() || !value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()))
    {
        return Err(CommandError::usage(format_args!("--cache-control {value:?}: not a value of that field"))
            .hint("write a value such as `max-age=300`"));
    }
    let apt = wishes.sources.as_ref().map(|_| configuration::read()).transpose()?;
    let archives = archives(wishes, apt.as_ref())?;
    let mut environment = environment.clone();
    if let Some(apt) = &apt {
        environment.proxy = proxies::over(apt, &environment.proxy);
    }
    let several = archives.len() > 1;
    let names = directory_names(&archives);
    let mut mirrors = Vec::new();
    for (archive, directory) in archives.into_iter().zip(names) {
        let mut origins = archive.origins;
        let mut notes = archive.notes;
        notes.extend(sections_that_are_components(&wishes.section.0, &archive.sources));
        if let Some(origin) = &wishes.origin {
            let origin = origins::origin(origin, &store_of(wishes))?;
            if several {
                return Err(CommandError::usage("--origin would hold for several archives of --sources"));
            }
            origins.retain(|other| *other != origin);
            origins.insert(0, origin);
        }
        if origins.len() > MAX_HOSTS {
            return Err(CommandError::usage(format_args!(
                "{} mirrors, and at most {MAX_HOSTS} are used",
                origins.len()
            ))
            .hint("leave the slowest ones out"));
        }
        let gives_to_workers = arguments.pin || wishes.queue.is_some() && !arguments.dry_run;
        let used = if wishes.origin_only.unwrap_or(false) { 1 } else { origins.len() };
        if let Some(origin) = origins.iter().take(used).find(|origin| origins::is_bucket(origin))
            && is_bucket
            && gives_to_workers
        {
            return Err(CommandError::usage(format_args!("workers cannot fetch from a bucket yet: {origin}"))
                .hint("name an http or https mirror"));
        }
        let connections = wishes.connections.or_else(|| connections_to(&origins));
        mirrors.push(MirrorSettings {
            name: match (name, several) {
                (Some(name), true) => Some(format!("{name}/{directory}")),
                (Some(name), false) => Some(name.to_owned()),
                (None, true) => Some(directory.clone()),
                (None, false) => None,
            },
            store: match is_bucket {
                true => {
                    let to = if several { dir.join(&directory) } else { dir.clone() };
                    let store = StoreArgs {
                        endpoint: wishes.endpoint.clone(),
                        region: wishes.region.clone(),
                        profile: wishes.profile.clone(),
                    };
                    let bucket = |address: &Path| bucket_of(address, &store, wishes.cacert.as_deref(), &environment);
                    let state = wishes.state.as_deref().map(|state| state_of(state, &bucket)).transpose()?;
                    if several && state.is_some() {
                        return Err(CommandError::usage("--state would hold for several archives of --sources"));
                    }
                    Some(MirrorStore {
                        bucket: bucket(&to)?,
                        state,
                        scratch: scratch(wishes.scratch.as_deref(), &environment)?,
                        cache: wishes.cache.as_deref().map(absolute).transpose()?,
                        aliases: wishes.aliases != Some(Aliases::None),
                        cache_control: wishes.cache_control.clone(),
                        locks: wishes.lock != Some(StoreLock::None),
                        verifies_objects: arguments.verify_objects,
                    })
                }
                false => None,
            },
            dir: if several { dir.join(&directory) } else { dir.clone() },
            origins,
            origin_only: wishes.origin_only.unwrap_or(false),
            sources: archive.sources,
            filters: Filters {
                include: wishes.include.0.clone(),
                exclude: wishes.exclude.0.clone(),
                sections: wishes.section.0.clone(),
                priorities: wishes.priority.0.clone(),
                source_packages: wishes.source_package.0.clone(),
                newest: wishes.newest,
            },
            index_formats: wishes.index_formats.0.clone(),
            without: wishes.without.0.clone(),
            languages: wishes.languages.0.clone(),
            ignore_valid_until: wishes.ignore_valid_until.unwrap_or(false),
            ignore_missing: wishes.ignore_missing.unwrap_or(false),
            keep: keep(wishes)?,
            durability: wishes.durability.unwrap_or_default(),
            network: NetworkSettings {
                apt_ca_file: apt.as_ref().and_then(files::authorities),
                ..network(
                    &NetworkArgs {
                        limit_rate: wishes.limit_rate,
                        connections,
                        http1: wishes.http1.unwrap_or(false),
                        no_hedge: wishes.no_hedge.unwrap_or(false),
                        auth: wishes.auth.clone(),
                    },
                    wishes.cacert.as_deref(),
                    &environment,
                )?
            },
            snapshot: wishes.snapshot.clone(),
            snapshot_full: wishes.snapshot_full.unwrap_or(false),
            dry_run: arguments.dry_run,
            pin: arguments.pin,
            finish: arguments.finish.as_deref().map(|run| run_id("--finish", run)).transpose()?,
            // A section of defaults may be for directories, too.
            fleet: if is_bucket && !arguments.dry_run && !arguments.pin { fleet(wishes, &environment)? } else { None },
            trace_host: wishes.trace_host.clone(),
            trace_info: wishes.trace_info.0.clone(),
            notes,
        });
    }
    Ok(mirrors)
}

/// The queue of a mirror, if it has one.
fn fleet(wishes: &Section, environment: &Environment) -> Result<Option<FleetSettings>, CommandError> {
    let Some(url) = &wishes.queue else { return Ok(None) };
    let login = Login {
        creds: wishes.queue_creds.as_deref(),
        nkey: wishes.queue_nkey.as_deref(),
        certificate: (wishes.queue_cert.as_deref(), wishes.queue_key.as_deref()),
        is_insecure: wishes.queue_insecure.unwrap_or(false),
        cacert: wishes.cacert.as_deref(),
    };
    Ok(Some(FleetSettings {
        queue: queue(url, Role::Planner, login, environment)?,
        is_worker: !wishes.no_local.unwrap_or(false),
        needs_queue: wishes.require_workers.unwrap_or(false),
    }))
}

/// Components of Debian and Ubuntu. debmirror calls them sections.
const COMPONENTS: [&str; 7] =
    ["main", "contrib", "non-free", "non-free-firmware", "universe", "multiverse", "restricted"];

/// A warning for each section filter that has the name of a component: hardly any package has such a section, so the
/// mirror might be empty.
fn sections_that_are_components(sections: &[String], sources: &[SourceSpec]) -> Vec<String> {
    let is_component = |section: &&String| {
        COMPONENTS.contains(&section.as_str()) || sources.iter().any(|source| source.components.contains(section))
    };
    let warning = |section: &String| {
        format!(
            "--section {section} names a component, and hardly any package has such a section; \
             use --component {section}"
        )
    };
    sections.iter().filter(is_component).map(warning).collect()
}

/// A mirror's name becomes a file, and what is told of it a line.
fn check_trace(wishes: &Section) -> Result<(), CommandError> {
    if let Some(host) = &wishes.trace_host {
        check_host(host).map_err(|error| CommandError::usage(format_args!("--trace-host: {error}")))?;
    }
    for line in &wishes.trace_info.0 {
        let field = line.split_once(": ").map(|(field, _)| field).unwrap_or_default();
        let named = !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !named || line.chars().any(char::is_control) {
            return Err(CommandError::usage(format_args!("--trace-info {line:?}: not a field and its value"))
                .hint("write a line such as `Maintainer: NAME <ADDRESS>`, `Sponsor: NAME URL` or `Country: CODE`"));
        }
    }
    Ok(())
}

fn keep(wishes: &Section) -> Result<Keep, CommandError> {
    let no_clean = wishes.no_clean.unwrap_or(false);
    let foreign = wishes.clean_foreign.unwrap_or(false);
    if no_clean && foreign {
        return Err(CommandError::usage("--no-clean and --clean-foreign contradict each other"));
    }
    let Keep { guard, retention, .. } = Keep::default();
    Ok(Keep {
        clean: match (no_clean, foreign) {
            (true, _) => Clean::Nothing,
            (false, true) => Clean::Untracked,
            (false, false) => Clean::Own,
        },
        guard: DeleteGuard {
            share_max: wishes.max_delete.map_or(guard.share_max, super::values::Percent::fraction),
            forced: wishes.force_delete.unwrap_or(guard.forced),
        },
        retention: Retention {
            generations: wishes.keep_generations.unwrap_or(retention.generations),
            hours: wishes.keep_hours.unwrap_or(retention.hours),
        },
    })
}

/// Connections per host for these mirrors, if that is another number than usual.
pub(super) fn connections_to(origins: &[String]) -> Option<u16> {
    let are_buckets = !origins.is_empty() && origins.iter().all(|origin| origins::is_bucket(origin));
    are_buckets.then_some(CONNECTIONS_TO_BUCKETS)
}

pub(super) fn network(
    wishes: &NetworkArgs,
    cacert: Option<&Path>,
    environment: &Environment,
) -> Result<NetworkSettings, CommandError> {
    let connections = wishes.connections.unwrap_or(CONNECTIONS);
    if !(1..=CONNECTIONS_MAX).contains(&connections) {
        return Err(CommandError::usage(format_args!(
            "connections = {connections}: 1 to {CONNECTIONS_MAX} are possible"
        )));
    }
    if let Some(file) = cacert {
        readable(file)?;
    }
    Ok(NetworkSettings {
        connections_per_host: usize::from(connections),
        limit_rate_bytes_per_s: wishes.limit_rate.map(|rate| rate.0),
        ca_file: cacert.map(Path::to_owned),
        apt_ca_file: None,
        http1_only: wishes.http1,
        hedge: !wishes.no_hedge,
        auth_files: match &wishes.auth {
            Some(file) => {
                readable(file)?;
                vec![file.clone()]
            }
            None => files::auth_files(),
        },
        proxy: environment.proxy.clone(),
        record: environment.record.clone(),
        buckets: Some(origins::sources().shared()),
    })
}

pub(super) fn output(arguments: &OutputArgs, changed_exit: bool) -> OutputSettings {
    OutputSettings {
        json: arguments.json,
        report: arguments.report.clone(),
        metrics: arguments.metrics.clone(),
        trace: arguments.trace.clone(),
        quiet: arguments.quiet,
        verbose: arguments.verbose,
        changed_exit,
        stdout_is_taken: false,
        ..OutputSettings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command};

    fn resolve(arguments: &[&str]) -> Result<Vec<MirrorSettings>, CommandError> {
        let arguments = ["fullbore", "mirror"].iter().chain(arguments);
        let Command::Mirror(arguments) = cli::parse(arguments).unwrap().command else { panic!("not mirror") };
        mirrors(*arguments, &Environment::default()).map(|(mirrors, _)| mirrors)
    }

    /// A directory with what looks like a keyring, and files as given.
    fn directory(files: &[(&str, &str)]) -> (tempfile::TempDir, impl Fn(&str) -> String) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("key.gpg"), b"\x99").unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let path = dir.path().to_owned();
        (dir, move |name: &str| path.join(name).to_str().unwrap().to_owned())
    }

    #[test]
    fn flags_alone_make_a_mirror() {
        let (_dir, path) = directory(&[]);
        let settings = resolve(&[
            "--from",
            "https://a/debian/",
            "--from",
            "http://b:8080/debian",
            "--suite",
            "sid",
            "--arch",
            "amd64,all,source",
            "--to",
            "/srv/m",
            "--keyring",
            &path("key.gpg"),
            "--no-clean",
        ])
        .unwrap();
        let [mirror] = settings.as_slice() else { panic!("{settings:?}") };
        assert_eq!(mirror.origins, ["https://a/debian", "http://b:8080/debian"]);
        assert_eq!(mirror.dir, Path::new("/srv/m"));
        assert_eq!(mirror.sources[0].architectures, ["amd64", "all"]);
        assert!(mirror.sources[0].sources && mirror.sources[0].binaries);
        assert_eq!(mirror.keep.clean, Clean::Nothing);
        assert_eq!(mirror.network.connections_per_host, 4);
    }

    #[test]
    fn only_sources_means_no_binaries() {
        let (_dir, path) = directory(&[]);
        let key = path("key.gpg");
        let with = |arch: &[&str]| {
            let mut arguments = vec!["--from", "https://a/", "--suite", "sid", "--to", "/x", "--keyring", &key];
            arguments.extend(arch);
            let source = resolve(&arguments).unwrap()[0].sources[0].clone();
            (source.binaries, source.sources, source.architectures.len())
        };
        assert_eq!(with(&["--arch", "source"]), (false, true, 0));
        assert_eq!(with(&["--arch", "amd64"]), (true, false, 1));
        assert_eq!(with(&[]), (true, true, 0));
    }

    #[test]
    fn a_section_that_is_a_component_is_warned_of() {
        let (_dir, path) = directory(&[]);
        let key = path("key.gpg");
        let notes = |more: &[&str]| {
            let mut arguments = vec!["--from", "https://a/", "--suite", "sid", "--to", "/x", "--keyring", &key];
            arguments.extend(more);
            resolve(&arguments).unwrap()[0].notes.clone()
        };
        let [main] = &notes(&["--section", "main,devel,non-free/devel"])[..] else { panic!("one warning") };
        assert!(main.contains("--section main") && main.ends_with("use --component main"), "{main}");
        assert_eq!(notes(&["--section", "stable", "--component", "stable"]).len(), 1);
        assert!(notes(&["--section", "devel", "--component", "main"]).is_empty());
    }

    #[test]
    fn two_mirrors_in_buckets_have_two_states() {
        let (_dir, path) = directory(&[]);
        let with = |a: &str, b: &str| {
            let section = |name: &str, more: &str| {
                format!(
                    "[mirror.{name}]\nfrom = 'https://{name}/debian'\nsuite = 'sid'\nto = 's3://films/{name}'\n{more}\n"
                )
            };
            let defaults = format!("[defaults]\nkeyring = '{}'\n", path("key.gpg"));
            std::fs::write(path("m.toml"), [defaults, section("a", a), section("b", b)].concat()).unwrap();
            resolve(&["--config", &path("m.toml")]).map(|mirrors| mirrors.len()).map_err(|error| error.message)
        };
        let refused = Err("two mirrors would have one state".to_owned());
        assert_eq!(with("", ""), Ok(2));
        assert_eq!(with("state = 's3://own/a'", "state = 's3://own/b'"), Ok(2));
        assert_eq!(with("state = 's3://own/x'", "state = 's3://own/x/'"), refused);
        assert_eq!(with("", "state = 's3://films/a'"), refused);
        assert_eq!(with("state = 's3://own/a'", "state = 's3://films/a'"), refused);
        assert_eq!(with("state = 's3://films/b/'", "state = 's3://own/b'"), refused);
    }

    #[test]
    fn flags_win_over_the_section_and_the_section_over_defaults() {
        let (_dir, path) = directory(&[(
            "m.toml",
            "[defaults]\nlimit-rate = '1M'\nconnections = 2\nkeep-hours = 48\nkeyring = 'KEY'\n\
             [mirror.a]\nfrom = 'https://a/debian'\nsuite = 'sid'\nto = '/srv/a'\nconnections = 3\n\
             [mirror.b]\nfrom = 'https://b/debian'\nsuite = 'sid'\nto = '/srv/b'\n",
        )]);
        let text = std::fs::read_to_string(path("m.toml")).unwrap().replace("KEY", &path("key.gpg"));
        std::fs::write(path("m.toml"), text).unwrap();
        let settings = resolve(&["--config", &path("m.toml"), "--limit-rate", "2M"]).unwrap();
        assert_eq!(settings.len(), 2);
        assert_eq!(settings[0].network.limit_rate_bytes_per_s, Some(2_000_000));
        assert_eq!(settings[0].network.connections_per_host, 3);
        assert_eq!(settings[1].network.connections_per_host, 2);
        assert_eq!(settings[1].keep.retention.hours, 48);
        let one = resolve(&["--config", &path("m.toml"), "b", "--to", "/elsewhere"]).unwrap();
        assert_eq!(one[0].dir, Path::new("/elsewhere"));
        let error = resolve(&["--config", &path("m.toml"), "--to", "/elsewhere"]).unwrap_err();
        assert!(error.message.contains("several mirrors"), "{error}");
        let error = resolve(&["--config", &path("m.toml"), "c"]).unwrap_err();
        assert_eq!(error.hints, ["use a, as in `fullbore mirror a`"]);
    }

    #[test]
    fn sources_of_several_archives_get_directories_of_their_own() {
        let (_dir, path) = directory(&[(
            "debian.sources",
            "Types: deb\nURIs: https://deb.example.org/debian https://ftp.example.org/debian/\n\
             Suites: trixie trixie-updates\nComponents: main\nSigned-By: KEY\n\n\
             Types: deb deb-src\nURIs: https://deb.example.org/debian-security/\nSuites: trixie-security\n\
             Components: main\nArchitectures: arm64\nSigned-By: KEY\n",
        )]);
        let file = path("debian.sources");
        let text = std::fs::read_to_string(&file).unwrap().replace("KEY", &path("key.gpg"));
        std::fs::write(&file, text).unwrap();
        let settings = resolve(&["--sources", &file, "--to", "/srv/m"]).unwrap();
        let [debian, security] = settings.as_slice() else { panic!("{settings:?}") };
        assert_eq!(debian.dir, Path::new("/srv/m/debian"));
        assert_eq!(debian.origins.len(), 2);
        assert_eq!(debian.sources[0].suites, ["trixie", "trixie-updates"]);
        assert!(!debian.sources[0].sources);
        assert_eq!(security.dir, Path::new("/srv/m/debian-security"));
        assert_eq!(security.sources[0].architectures, ["arm64", "all"]);
        assert!(security.sources[0].sources);
        let one = resolve(&["--sources", &file, "--to", "/srv/m", "--suite", "trixie"]).unwrap();
        assert_eq!(one[0].dir, Path::new("/srv/m"));
    }

    #[test]
    fn more_mirrors_than_are_used_are_refused() {
        let (_dir, path) = directory(&[]);
        let key = path("key.gpg");
        for (count, is_good) in [(MAX_HOSTS, true), (MAX_HOSTS + 1, false)] {
            let mirrors: Vec<String> =
                (0..count).map(|number| format!("https://m{number}.example.org/debian")).collect();
            let mut arguments: Vec<&str> = mirrors.iter().flat_map(|mirror| ["--from", mirror]).collect();
            arguments.extend(["--to", "/x", "--suite", "s", "--keyring", &key]);
            assert_eq!(resolve(&arguments).is_ok(), is_good, "{count}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let (_dir, path) = directory(&[]);
        let key = path("key.gpg");
        for (arguments, message) in [
            (vec!["--from", "https://a/"], "no directory"),
            (vec!["--from", "https://a/", "--to", "/x"], "no suite"),
            (
                vec!["--from", "s3://archive/debian", "--to", "s3://films/debian", "--suite", "s", "--pin"],
                "workers cannot fetch from a bucket yet",
            ),
            (vec!["--from", "ftp://a/", "--to", "/x", "--suite", "s"], "only http, https and s3"),
            (vec!["--from", "deb.example.org", "--to", "/x", "--suite", "s"], "not an address"),
            (vec!["--from", "s3:/b/x", "--to", "/x", "--suite", "s"], "addresses begin with s3://"),
            (vec!["--from", "file:///srv", "--to", "/x", "--suite", "s"], "a local directory"),
            (vec!["--from", "https://a/", "--to", "s3:/b/x", "--suite", "s"], "addresses begin with s3://"),
            (vec!["--from", "https://a/", "--to", "host:/srv/x", "--suite", "s"], "another machine"),
            (vec!["--from", "https://a/", "--to", "https://b/", "--suite", "s"], "a directory or a bucket is expected"),
            (vec!["--from", "https://a/", "--to", "/x", "--suite", "../s"], "not the name of a suite"),
            (vec!["--from", "https://a/", "--to", "/x", "--suite", "s", "--arch", "a/b"], "not the name of an arch"),
            (vec!["--from", "https://a/", "--to", "/x", "--suite", "s", "--snapshot", "../x"], "invalid snapshot name"),
        ] {
            let mut arguments = arguments;
            arguments.extend(["--keyring", &key]);
            let error = resolve(&arguments).unwrap_err();
            assert!(error.message.contains(message), "{error}");
            assert_eq!(error.exit_code(), 1);
        }
        let error = resolve(&["--config", "/no/such/file", "x"]).unwrap_err();
        assert!(error.message.starts_with("cannot read /no/such/file"), "{error}");
    }
}
