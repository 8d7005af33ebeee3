//! What `fullbore bootstrap` is to do.

mod format;
mod sources;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fullbore_apt::acquire::Configuration;
use fullbore_apt::system::files::authorities;
use fullbore_apt::system::{configuration as apt_configuration, proxies, sources as apt};
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::absolute;
use fullbore_install::SEARCH_PATH;
use fullbore_install::bootstrap::oci::{self, Platform};
use fullbore_install::bootstrap::skips::{Skips, UnknownStep};
use fullbore_install::hooks::{self, Hook};
use fullbore_install::settings::{
    BootstrapSettings, Format, Mode, Namespaces, OciContainer, OciSettings, Stream, StreamTo, Variant,
};
use fullbore_wire::run::NetworkSettings;

use super::keys::{check_keyring, with_hint_if_absent};
use super::resolve::{network, output};
use super::values::apt_option;
use super::{Environment, OutputSettings};
use crate::cli::{self, BootstrapArgs, BootstrapFormat, BootstrapMode, HookArg};
use crate::stdio;
use format::{Made, format_of};
use sources::sources;

/// Stands for stdout as the target.
const STDOUT: &str = "-";

/// Other names of stdout, as shells and scripts write them.
const STDOUT_FILES: [&str; 3] = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// Name of the files with the user's options in the root. Scripts that call mmdebstrap know its name of them.
const OPTIONS_NAME: &str = "99fullbore";
const AS_MMDEBSTRAP: &str = "99mmdebstrap";

/// Name of an image if there is neither `--oci-tag` nor a suite, as engines have it.
const OCI_TAG: &str = "latest";

/// Stands for a target that is thrown away.
const NOTHING: &str = "/dev/null";

/// Where a root is made that becomes an archive on stdout, unless `TMPDIR` says it: /tmp may be in memory.
const TEMPORARY: &str = "/var/tmp";

/// Archives' keyrings that count beside those that apt on this machine trusts: a machine of one distribution makes roots
/// of the other.
const ARCHIVE_KEYRINGS: [&str; 3] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
];

/// Resolves flags, environment and apt's configuration.
///
/// # Errors
/// Flags that contradict each other, or name files that are not there.
pub fn bootstrap(
    arguments: &BootstrapArgs,
    environment: &Environment,
) -> Result<(BootstrapSettings, OutputSettings), CommandError> {
    let configuration = apt_configuration::read()?;
    let proxy = proxies::over(&configuration, &environment.proxy);
    let network_environment = Environment { proxy, ..environment.clone() };
    let suite = arguments.suite.clone().unwrap_or_default();
    if suite.contains(char::is_whitespace) {
        return Err(CommandError::usage(format_args!("`{suite}` is no suite")));
    }
    if let Some(wrong) = &environment.wrong_epoch {
        return Err(CommandError::usage(format_args!("SOURCE_DATE_EPOCH: `{wrong}` is no number of seconds")));
    }
    let is_stdout = |name: &&str| arguments.target.as_os_str() == *name;
    let to_stdout = std::iter::once(&STDOUT).chain(&STDOUT_FILES).any(is_stdout);
    let target = if to_stdout && arguments.format == BootstrapFormat::Auto && stdio::stdout_is_thrown_away() {
        PathBuf::from(NOTHING)
    } else if to_stdout {
        PathBuf::from(STDOUT)
    } else {
        let order = "name the target before the mirror, as in `fullbore bootstrap SUITE root URL`";
        absolute(&arguments.target).map_err(|error| error.hint(order))?
    };
    if target == Path::new("/") {
        return Err(CommandError::usage("/ is where this machine's own root is; name another directory"));
    }
    let to_stdout = target.as_os_str() == STDOUT;
    if to_stdout && !arguments.simulate && arguments.format != BootstrapFormat::Null {
        may_go_to_stdout(arguments)?;
    }
    let components = components(&arguments.components);
    let architectures = match &arguments.arch[..] {
        [] => vec![apt::native_architecture().to_owned()],
        named => named.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect(),
    };
    let format = match format_of(arguments.format, &target)? {
        Made::Root(format) => {
            needs_no_image(arguments)?;
            format
        }
        Made::Image(container) => Format::Oci(image(arguments, container, &architectures[0])?),
    };
    let (skips, mut warnings) = skips(&arguments.skip);
    let trusts_nothing = arguments.trust.keyring.is_empty()
        && !skips.has("check/signed-by")
        && of_apt(&configuration).iter().all(|path| is_without_keys(path));
    let (sources, mirrors) = sources(
        arguments,
        &architectures[0],
        &components.join(" "),
        environment.in_namespace.is_some(),
        trusts_nothing,
    )?;
    let mut trusted = Vec::new();
    for keyring in &arguments.trust.keyring {
        let keyring = keyring
            .canonicalize()
            .map_err(|error| with_hint_if_absent(CommandError::unreadable(keyring, &error), keyring))?;
        // As with mmdebstrap, an empty file means that no key is trusted.
        if !is_without_keys(&keyring) {
            check_keyring(&keyring)?;
        }
        trusted.push(keyring);
    }
    if trusted.is_empty() {
        trusted.extend(of_apt(&configuration));
        trusted.extend(ARCHIVE_KEYRINGS.iter().map(PathBuf::from).filter(|path| path.exists()));
    }
    let root_below = || PathBuf::from(environment.tmpdir.as_deref().unwrap_or(TEMPORARY));
    let stream = if format == Format::Dir {
        None
    } else if format == Format::Null || arguments.simulate {
        Some(Stream { to: StreamTo::Nothing, root_below: root_below() })
    } else if to_stdout {
        let file = stdio::stdout_file().map_err(|error| CommandError::disk(Path::new("stdout"), &error))?;
        Some(Stream { to: StreamTo::Stdout(Arc::new(file)), root_below: root_below() })
    } else if format::is_stream(&target) {
        if !matches!(format, Format::Tar) {
            return Err(CommandError::usage(format_args!("{}: only a tar archive goes there", target.display()))
                .hint("pass --format tar, or name a file"));
        }
        Some(Stream { to: StreamTo::File(target.clone()), root_below: root_below() })
    } else {
        None
    };
    let is_quiet = arguments.output.quiet || arguments.silent;
    let verbose = if arguments.debug { arguments.output.verbose.max(2) } else { arguments.output.verbose };
    let verbosity = if is_quiet { 0 } else { verbose.saturating_add(1) };
    let stderr = || {
        let file = stdio::stderr_file().map_err(|error| CommandError::disk(Path::new("stderr"), &error))?;
        Ok::<_, CommandError>(Some(Arc::new(file)))
    };
    let commands_print_to = if verbosity > 1 { stderr()? } else { None };
    // A shell as a hook needs the terminal itself.
    let hooks_print_to = if stdio::stderr_is_terminal() && !arguments.output.json { stderr()? } else { None };
    let hooks = hooks_of(arguments, &mut warnings)?;
    let may_come_later = skips.has("update") || hooks.iter().any(|hook| hook.moment == hooks::Moment::Setup);
    if environment.in_namespace.is_some() && sources.is_empty() && !may_come_later {
        return Err(CommandError::usage("stdin: no apt sources in it")
            .context("there are none among the arguments either")
            .hint("name a mirror, send apt sources to stdin, or let a setup hook bring them"));
    }
    warnings.extend(arguments.without_effect.given().map(|flag| format!("{flag} has no effect")));
    if arguments.simulate && !hooks.is_empty() {
        warnings.push("--simulate runs no hooks".to_owned());
    }
    if format == Format::Null && !to_stdout && target != Path::new(NOTHING) {
        warnings.push(format!("--format null makes nothing of {}", target.display()));
    }
    let mode = match environment.in_namespace {
        Some(namespace) => namespace.mode,
        None => mode_of(arguments.mode)?,
    };
    let settings = BootstrapSettings {
        suite,
        format,
        mode,
        namespaces: environment.in_namespace.map_or(Namespaces::Own, |namespace| namespace.namespaces),
        program: environment.program.clone(),
        options_name: if environment.in_namespace.is_some_and(|namespace| namespace.is_mmdebstrap) {
            AS_MMDEBSTRAP
        } else {
            OPTIONS_NAME
        },
        skips,
        simulate: arguments.simulate,
        warnings,
        stream,
        target,
        architectures,
        variant: variant_of(arguments.variant),
        include: included_of(&arguments.include)?,
        sources,
        mirrors,
        keyrings: trusted,
        apt_options: arguments.aptopt.iter().map(|option| for_file(option)).collect(),
        dpkg_options: arguments.dpkgopt.clone(),
        hooks,
        epoch: environment.source_date_epoch,
        path: match &environment.path {
            Some(path) => format!("{path}:{SEARCH_PATH}"),
            None => SEARCH_PATH.to_owned(),
        },
        network: NetworkSettings {
            apt_ca_file: authorities(&configuration),
            ..network(&arguments.network, arguments.trust.cacert.as_deref(), &network_environment)?
        },
        verbosity,
        commands_print_to,
        hooks_print_to,
    };
    let output = OutputSettings {
        stdout_is_taken: to_stdout,
        dpkg_prints: verbosity > 1,
        quiet: is_quiet,
        verbose,
        log_file: arguments.log_file.as_deref().map(absolute).transpose()?,
        ..output(&arguments.output, false)
    };
    Ok((settings, output))
}

/// What this machine's apt trusts: a file and a directory of keys.
fn of_apt(configuration: &Configuration) -> Vec<PathBuf> {
    let keys = ["Dir::Etc::trusted", "Dir::Etc::trustedparts"];
    keys.iter().filter_map(|key| configuration.path(key)).filter(|path| path.exists()).collect()
}

/// Whether a file is empty, or a directory has no keyring.
fn is_without_keys(path: &Path) -> bool {
    let is_empty = |path: &Path| path.metadata().is_ok_and(|status| status.is_file() && status.len() == 0);
    let is_keyring = |path: &Path| path.extension().is_some_and(|ending| ending == "gpg" || ending == "asc");
    match std::fs::read_dir(path) {
        Ok(mut entries) => {
            !entries.any(|entry| entry.is_ok_and(|entry| is_keyring(&entry.path()) && !is_empty(&entry.path())))
        }
        Err(_) => is_empty(path),
    }
}

/// An archive on stdout has it for itself, and is nothing for people to read.
fn may_go_to_stdout(arguments: &BootstrapArgs) -> Result<(), CommandError> {
    if !matches!(arguments.format, BootstrapFormat::Auto | BootstrapFormat::Tar | BootstrapFormat::Oci) {
        return Err(CommandError::usage("only an archive goes to stdout")
            .hint("name a TARGET, or pass --format tar or --format oci"));
    }
    if arguments.output.json {
        return Err(CommandError::usage("--json needs stdout, which is for the archive").hint("name a TARGET"));
    }
    // Told before hours of work, not behind them.
    stdio::stdout_file().map_err(|error| CommandError::disk(Path::new("stdout"), &error))?;
    if stdio::stdout_is_terminal() {
        return Err(CommandError::usage("an archive is nothing for a terminal")
            .hint("name a TARGET, or send stdout elsewhere: `> root.tar`"));
    }
    Ok(())
}

/// # Errors
/// A mode that fullbore does not have.
fn mode_of(wish: BootstrapMode) -> Result<Mode, CommandError> {
    match wish {
        BootstrapMode::Root => Ok(Mode::Root),
        BootstrapMode::Auto if rustix::process::geteuid().is_root() => Ok(Mode::Root),
        BootstrapMode::Auto | BootstrapMode::Unshare => Ok(Mode::Unshare),
        BootstrapMode::Fakechroot => Err(CommandError::usage("fullbore has no mode fakechroot")
            .context("a preloaded library would have to pretend owners and a chroot, and does not reach fullbore")
            .hint("pass --mode unshare, which needs no root either")),
        BootstrapMode::Chrootless => Err(CommandError::usage("fullbore has no mode chrootless")
            .context("maintainer scripts would run outside of the root, which few packages allow")
            .hint("pass --mode unshare, or --variant extract to unpack packages without their scripts")),
    }
}

fn variant_of(wish: cli::Variant) -> Variant {
    match wish {
        cli::Variant::Extract => Variant::Extract,
        cli::Variant::Custom => Variant::Custom,
        cli::Variant::Essential => Variant::Essential,
        cli::Variant::Apt => Variant::Apt,
        cli::Variant::Required => Variant::Required,
        cli::Variant::Buildd => Variant::Buildd,
        cli::Variant::Important => Variant::Important,
        cli::Variant::Standard => Variant::Standard,
    }
}

/// Flags for images change nothing of other formats.
fn needs_no_image(arguments: &BootstrapArgs) -> Result<(), CommandError> {
    let flags = [("--oci-tag", arguments.oci_tag.is_some()), ("--oci-arch", arguments.oci_arch.is_some())];
    match flags.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((flag, _)) => Err(CommandError::usage(format_args!("{flag} is for OCI images"))
            .hint("pass --format oci, or a TARGET that ends in .oci or .oci.tar")),
    }
}

fn image(arguments: &BootstrapArgs, container: OciContainer, architecture: &str) -> Result<OciSettings, CommandError> {
    let suite = arguments.suite.as_deref().filter(|suite| !suite.is_empty());
    let tag = arguments.oci_tag.as_deref().or(suite).unwrap_or(OCI_TAG);
    if !oci::is_tag(tag) {
        return Err(CommandError::usage(format_args!("`{tag}` is not allowed as the name of an OCI image"))
            .hint("pass --oci-tag with letters and digits, and single -._:@+/ between them"));
    }
    let platform = match &arguments.oci_arch {
        None => Platform::of_debian(architecture).ok_or_else(|| {
            CommandError::usage(format_args!("OCI images have no name for the architecture {architecture}"))
                .hint(format_args!("pass --oci-arch, one of {}", Platform::names().join(", ")))
        })?,
        Some(name) => Platform::parse(name).ok_or_else(|| {
            CommandError::usage(format_args!("--oci-arch {name}: unknown architecture"))
                .hint(format_args!("name one of {}, with a variant as in arm/v7", Platform::names().join(", ")))
        })?,
    };
    Ok(OciSettings { container, tag: tag.to_owned(), platform })
}

/// As a line of apt.conf(5); files stay what they are.
fn for_file(option: &str) -> String {
    match apt_option(option) {
        Some((name, value))
            if option[name.len()..].starts_with('=') && !value.contains('"') && !Path::new(option).is_file() =>
        {
            format!("{name} \"{value}\";")
        }
        _ => option.to_owned(),
    }
}

/// A pattern of apt's stays whole, names are split at commas and spaces.
fn included(text: &str) -> Vec<String> {
    if text.starts_with(['?', '~', '!', '(']) {
        return vec![text.to_owned()];
    }
    // The name of a file may contain commas and spaces.
    if is_path(text) && Path::new(text).is_file() {
        return vec![text.to_owned()];
    }
    text.split([',', ' ', '\n', '\t']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// All arguments of `--include`, files by their absolute paths.
///
/// # Errors
/// A file does not exist or cannot be read.
fn included_of(arguments: &[String]) -> Result<Vec<String>, CommandError> {
    let file = |name: &str| {
        let path = Path::new(name).canonicalize().and_then(|path| std::fs::File::open(&path).map(|_| path));
        let path = path.map_err(|error| CommandError::usage(format_args!("--include {name}: {error}")))?;
        path.to_str().filter(|_| path.is_file()).map(str::to_owned).ok_or_else(|| {
            CommandError::usage(format_args!("--include {name}: is no file")).hint("name a package file")
        })
    };
    let named = arguments.iter().flat_map(|text| included(text));
    named.map(|name| if is_path(&name) { file(&name) } else { Ok(name) }).collect()
}

/// Whether apt takes this argument as a file.
fn is_path(name: &str) -> bool {
    name.starts_with('/') || name.starts_with("./") || name.starts_with("../")
}

/// The words of these arguments, each once.
fn components(arguments: &[String]) -> Vec<String> {
    let mut components: Vec<String> = Vec::new();
    for word in arguments.iter().flat_map(|text| text.split_whitespace()) {
        if !components.iter().any(|known| known == word) {
            components.push(word.to_owned());
        }
    }
    if components.is_empty() { vec!["main".to_owned()] } else { components }
}

/// The steps to leave out, and a warning for each unknown one.
fn skips(arguments: &[String]) -> (Skips, Vec<String>) {
    let (mut skips, mut warnings) = (Skips::default(), Vec::new());
    let names = arguments.iter().flat_map(|text| text.split([',', ' ', '\n', '\t']));
    for name in names.filter(|name| !name.is_empty()) {
        if let Err(UnknownStep) = skips.add(name) {
            warnings.push(format!("--skip {name}: no step has this name"));
        }
    }
    (skips, warnings)
}

fn hooks_of(arguments: &BootstrapArgs, warnings: &mut Vec<String>) -> Result<Vec<Hook>, CommandError> {
    let mut all = Vec::new();
    for argument in &arguments.hooks.0 {
        match argument {
            HookArg::Command { moment, place, script } => {
                all.push(Hook { moment: *moment, place: *place, script: script.clone() });
            }
            HookArg::Directory(directory) => {
                let absolute = absolute(directory)?;
                let found =
                    hooks::of_directory(&absolute).map_err(|error| CommandError::unreadable(directory, &error))?;
                warnings.extend(found.warnings);
                all.extend(found.hooks);
            }
        }
    }
    for hook in &all {
        hook.check().map_err(|error| {
            CommandError::usage(format_args!("{} hook `{}`: {error}", hook.moment.name(), hook.script))
        })?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn included_names_are_split_and_patterns_are_not() {
        assert_eq!(included("a,b c"), ["a", "b", "c"]);
        assert_eq!(included("?and(~n^a, ~pb)"), ["?and(~n^a, ~pb)"]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a b,c.deb").display().to_string();
        assert_eq!(included(&file).len(), 3);
        std::fs::write(&file, "").unwrap();
        assert_eq!(included(&file), [&file[..]]);
        assert_eq!(included("a,./b.deb"), ["a", "./b.deb"]);
    }

    #[test]
    fn a_component_counts_once() {
        let of = |texts: &[&str]| components(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["main main", "main", "contrib main"]), ["main", "contrib"]);
        assert_eq!(of(&[]), ["main"]);
    }

    #[test]
    fn unknown_steps_are_told_of() {
        let (_, warnings) = skips(&["cleanup/apt, check/empty".to_owned(), "clean".to_owned()]);
        assert_eq!(warnings, ["--skip clean: no step has this name"]);
    }
}
