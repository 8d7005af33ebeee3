//! Fetches the indexes of the archive, with fullbore's own update if that gives the same result as apt's, and reduces
//! them.
//!
//! apt takes more than a second to read all packages of an archive, in each call. So it first gets the dependency
//! closure (`closure`), and fullbore acts on its answers at once. While dpkg configures, apt repeats the calls with all
//! packages, and the result is kept only if apt confirms it ([`PrivateApt::confirms`]).

use std::ffi::OsString;
use std::path::Path;

use fullbore_apt::acquire::{Configuration, User};
use fullbore_apt::frames::Level;
use fullbore_apt::lists::Locale;
use fullbore_apt::system::files::trusted_keyrings;
use fullbore_apt::system::sources;
use fullbore_apt::update::UpdateSettings;
use fullbore_engine::durability::Durability;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::{Event, Events};
use fullbore_wire::run::NetworkSettings;

use super::ARCHIVES;
use super::apt::{AptOptions, DIRECTORY, PrivateApt};
use crate::closure::{Seeds, dependency_closure};
use crate::hooks::{Hook, Moment};
use crate::resolve::Wanted;
use crate::root::{FILE_BYTES_MAX, Root, RootError};
use crate::settings::BootstrapSettings;
use crate::settings::Variant;

/// Directory of apt's indexes, relative to the root.
pub(super) const LISTS: &str = "var/lib/apt/lists";

/// Modes of apt's `partial` directories and of the lock of the archives.
const PARTIAL_MODE: u32 = 0o700;
const LOCK_MODE: u32 = 0o640;

/// Maximum total size of indexes to reduce, in bytes; all of Debian has 60 MB.
const CUT_BYTES_MAX: u64 = 1 << 30;

/// Suffixes of the signed files in a lists directory.
const RELEASES: [&str; 3] = ["_InRelease", "_Release", "_Release.gpg"];

/// Options of `Acquire` that `fullbore update` implements; others are left to apt.
const UNDERSTOOD: [&str; 6] = [
    "acquire::languages",
    "acquire::check-valid-until",
    "acquire::check-date",
    "acquire::max-futuretime",
    "acquire::http::proxy",
    "acquire::https::proxy",
];

/// Creates the directories in which apt fetches indexes and packages.
///
/// # Errors
///
/// `Disk` if a directory cannot be created or given to apt's user.
pub(super) fn prepare(configuration: &Configuration, root: &Path) -> Result<(), CommandError> {
    let handle = Root::open(root)?;
    let user = configuration.get("APT::Sandbox::User").and_then(User::by_name);
    handle.create_directories(&format!("{ARCHIVES}/partial"), 0o755)?;
    Ok(as_apts_own(&handle, ARCHIVES, user)?)
}

/// Creates the lock that apt leaves where it has fetched packages.
///
/// # Errors
///
/// `Disk` if the lock file cannot be written.
pub(super) fn lock_archives(files: &[Wanted], root: &Path) -> Result<(), CommandError> {
    if files.is_empty() {
        return Ok(());
    }
    Ok(Root::open(root)?.write(&format!("{ARCHIVES}/lock"), LOCK_MODE, b"")?)
}

/// Fetches and verifies the indexes: by fullbore's own update if that gives the same result, otherwise by apt-get.
///
/// # Errors
///
/// The errors of [`fullbore_apt::update::run`] or of [`PrivateApt::update`]. `Disk` if apt's directories cannot be
/// created or changed.
pub(super) fn refresh(
    settings: &BootstrapSettings,
    network: NetworkSettings,
    apt: &PrivateApt<'_>,
    configuration: Configuration,
    root: &Path,
    events: &mut dyn Events,
) -> Result<(), CommandError> {
    let user = configuration.get("APT::Sandbox::User").and_then(User::by_name);
    let handle = Root::open(root)?;
    let Some(settings) = ours(settings, network, configuration, root) else { return apt.update() };
    fullbore_apt::update::run(&settings, &mut Within(events))?;
    Ok(as_apts_own(&handle, LISTS, user)?)
}

/// Gives apt's user its `partial` directory, as apt does.
fn as_apts_own(root: &Root, below: &str, user: Option<User>) -> Result<(), RootError> {
    let owner = user.map(|user| user.uid).filter(|uid| *uid != 0);
    root.own_directory(&format!("{below}/partial"), owner, PARTIAL_MODE)
}

/// Settings for `fullbore update`; `None` if its result might differ from that of apt.
fn ours(
    settings: &BootstrapSettings,
    network: NetworkSettings,
    configuration: Configuration,
    root: &Path,
) -> Option<UpdateSettings> {
    let sources = sources::configured(&configuration).ok()?;
    let is_plain = |uri: &String| uri.starts_with("http://") || uri.starts_with("https://");
    let is_ours = settings.architecture() == sources::native_architecture()
        && sources.iter().all(|source| source.uris.iter().all(is_plain))
        && settings.apt_options.iter().all(|option| is_understood(option));
    if !is_ours {
        return None;
    }
    Some(UpdateSettings {
        sources,
        lists: root.join(LISTS),
        is_system: false,
        keyrings: Vec::new(),
        trusted: trusted_keyrings(&configuration),
        ignore_valid_until: false,
        pdiffs: false,
        clean: false,
        hooks: false,
        locale: Locale::default(),
        level: Level::Fast,
        // Removed when the root is complete.
        durability: Durability::None,
        mirrors: settings.mirrors.clone(),
        network,
        configuration,
    })
}

/// Whether an option does not affect fetching indexes, or sets one option that `fullbore update` implements.
fn is_understood(option: &str) -> bool {
    let is_file = Path::new(option).is_file();
    let option = option.to_ascii_lowercase();
    let name = option.trim_start().split([' ', '\t', '"', '=', '{', ';']).next().unwrap_or_default();
    let is_name =
        |known: &&str| name.strip_prefix(*known).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    let is_ours = option.matches("acquire").count() == 1 && UNDERSTOOD.iter().any(is_name);
    !is_file && (!option.contains("acquire") || is_ours)
}

/// Events of an update within a larger run.
struct Within<'a>(&'a mut dyn Events);

impl Events for Within<'_> {
    fn emit(&mut self, event: Event) {
        match event {
            Event::Started { .. } | Event::Phase { .. } | Event::Published { .. } => {}
            other => self.0.emit(other),
        }
    }
}

/// Writes indexes with only the dependency closure of the wanted packages. `None` if apt must use all packages: early
/// hooks cannot run twice, and a pattern is not a plain name.
///
/// # Errors
///
/// `Disk` if an index cannot be read or written, or a link to a signed file cannot be created.
pub(super) fn cut(
    settings: &BootstrapSettings,
    apt: &PrivateApt<'_>,
    configuration: &Configuration,
    root: &Path,
) -> Result<Option<AptOptions>, CommandError> {
    let is_early = |hook: &Hook| matches!(hook.moment, Moment::Setup | Moment::Extract);
    // A simulation asks apt only once, and no index has the dependencies of a local file.
    let is_path = |name: &String| name.starts_with('/');
    if settings.simulate || settings.hooks.iter().any(is_early) || settings.include.iter().any(is_path) {
        return Ok(None);
    }
    let mut names = match settings.variant {
        Variant::Apt => vec!["apt"],
        Variant::Buildd => vec!["build-essential"],
        _ => Vec::new(),
    };
    names.extend(settings.include.iter().map(|request| name_of(request)));
    let handle = Root::open(root)?;
    let shown = format!("{DIRECTORY}/lists");
    handle.create_directories(&format!("{shown}/partial"), 0o755)?;
    let (mut files, mut indexes, mut bytes) = (Vec::new(), Vec::new(), 0);
    for name in handle.names(LISTS)? {
        let name = String::from_utf8_lossy(&name).into_owned();
        let path = format!("{LISTS}/{name}");
        if name.ends_with("_Packages") {
            let size = handle.size_bytes(&path).unwrap_or_default();
            bytes += size;
            if size > FILE_BYTES_MAX || bytes > CUT_BYTES_MAX {
                return Ok(None);
            }
            indexes.extend(handle.read(&path)?);
            files.push(name);
        } else if name.contains("_Packages.") {
            // apt is configured to keep indexes compressed.
            return Ok(None);
        } else if RELEASES.iter().any(|ending| name.ends_with(ending)) {
            handle.hard_link(&path, &format!("{shown}/{name}"))?;
        }
    }
    let seeds = Seeds {
        names: &names,
        priorities: priorities(settings.variant),
        recommends: configuration.bool("APT::Install-Recommends", true),
        suggests: configuration.bool("APT::Install-Suggests", false),
    };
    let Some(reached) = dependency_closure(&indexes, &seeds) else { return Ok(None) };
    for (name, stanzas) in files.iter().zip(reached) {
        let mut text = stanzas.join(&b"\n\n"[..]);
        text.extend(b"\n\n");
        handle.write(&format!("{shown}/{name}"), 0o644, &text)?;
    }
    let mut directory = apt.directory().join("lists").into_os_string();
    directory.push("/");
    let mut options = vec![OsString::from("--option"), OsString::from("Dir::State::Lists=")];
    options[1].push(directory);
    // Without cache files: building the cache is faster than reading one.
    options.extend(["--option", "Dir::Cache::pkgcache=", "--option", "Dir::Cache::srcpkgcache="].map(OsString::from));
    Ok(Some(AptOptions(options)))
}

/// Name in an argument of apt: `NAME[:ARCH][=VERSION|/RELEASE]`.
fn name_of(request: &str) -> &str {
    request.split([':', '=', '/']).next().unwrap_or_default()
}

/// Priorities of which a variant has all packages.
fn priorities(variant: Variant) -> &'static [&'static str] {
    match variant {
        Variant::Extract | Variant::Custom | Variant::Essential | Variant::Apt => &[],
        Variant::Required | Variant::Buildd => &["required"],
        Variant::Important => &["required", "important"],
        Variant::Standard => &["required", "important", "standard"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_on_fetching_are_apts_unless_they_are_known() {
        for ours in [
            "APT::Install-Recommends \"true\"",
            "Acquire::Languages \"none\"",
            "Acquire::Check-Valid-Until false",
            "Acquire::http::Proxy \"http://p:1\"",
            "Acquire::http::Proxy::h.example=DIRECT",
        ] {
            assert!(is_understood(ours), "{ours}");
        }
        for apts in [
            "Acquire::AllowInsecureRepositories true",
            "acquire { retries 3 }",
            "Acquire::http::Proxy-Auto-Detect \"/bin/find\"",
            "Acquire::Languages none; Acquire::Retries 3",
            "/etc/passwd",
        ] {
            assert!(!is_understood(apts), "{apts}");
        }
    }

    #[test]
    fn requests_name_packages() {
        assert_eq!(["g++", "x:i386", "y=1:2-3", "z/sid", "?name(a)"].map(name_of), ["g++", "x", "y", "z", "?name(a)"]);
    }
}
