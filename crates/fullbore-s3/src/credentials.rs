//! Credentials, found in the way of the AWS tools: in the environment, in profiles, from a program, by a web identity,
//! or from the metadata service of a container or machine. They are renewed before they expire. Single sign-on is not
//! supported, and an error says so.
//!
//! Nothing here reads the environment: [`Aws::find`] gets a function to look up variables.

pub mod config;
pub mod exchange;
mod provider;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use fullbore_wire::connect::ConnectOptions;

use super::address::Addressing;
use super::sign::Identity;
use config::{ConfigError, Kind, Sections, Settings};
pub use provider::Provider;

/// Credentials are renewed this number of seconds before they expire.
pub(crate) const RENEW_BEFORE_S: i64 = 300;

/// Maximum length of a chain of profiles that name one another as their source.
const SOURCES_MAX: usize = 5;

/// Why credentials are missing. No text contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A settings file could not be used.
    #[error("{}: {reason}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why it could not be used.
        reason: String,
    },
    /// The requested profile is not in either file.
    #[error("profile {name:?} is neither in {} nor in {}", config.display(), credentials.display())]
    NoProfile {
        /// Name of the profile.
        name: String,
        /// Path of the `config` file.
        config: PathBuf,
        /// Path of the `credentials` file.
        credentials: PathBuf,
    },
    /// The profile cannot be used.
    #[error("profile {name:?}: {reason}")]
    Profile {
        /// Name of the profile.
        name: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// A source of credentials failed.
    #[error("no credentials from {source_name}: {reason}")]
    Source {
        /// Name of the source, such as "the metadata service of this machine".
        source_name: String,
        /// Why it failed.
        reason: String,
    },
    /// A checksum setting has a value that the AWS tools do not define.
    #[error("{name}={value}: must be when_supported or when_required")]
    Checksums {
        /// Name of the variable or of the profile's setting.
        name: String,
        /// Value of the setting.
        value: String,
    },
    /// No source had credentials.
    #[error("no credentials found{}{}", if tried.is_empty() { "" } else { ": " }, tried.join("; "))]
    None {
        /// The result of each source.
        tried: Vec<String>,
    },
}

/// A function that looks up an environment variable.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Settings of the AWS tools: environment variables and the two files of profiles.
#[derive(Debug, Clone, PartialEq)]
pub struct Aws {
    /// Sources of credentials, in order of precedence.
    pub providers: Vec<Provider>,
    /// Region of the environment or the profile; `None` if neither sets one.
    pub region: Option<String>,
    /// URL of the store from the environment or the profile; `None` if neither sets one.
    pub endpoint: Option<String>,
    /// How URLs contain the bucket; from `s3.addressing_style`.
    pub addressing: Addressing,
    /// File of trusted certificates, from `AWS_CA_BUNDLE` or `ca_bundle`.
    pub authorities: Option<PathBuf>,
    /// Whether to send checksums with uploads; false if `AWS_REQUEST_CHECKSUM_CALCULATION` or
    /// `request_checksum_calculation` is `when_required`.
    pub sends_checksums: bool,
    /// Whether to ask for the checksums of objects; false if `AWS_RESPONSE_CHECKSUM_VALIDATION` or
    /// `response_checksum_validation` is `when_required`.
    pub asks_for_checksums: bool,
}

/// The settings files, and the chosen profile.
struct Profiles {
    name: String,
    config_path: PathBuf,
    credentials_path: PathBuf,
    config: Sections,
    credentials: Sections,
}

impl Profiles {
    fn read(lookup: Lookup<'_>, asked: Option<&str>) -> Result<Profiles, CredentialsError> {
        let home = lookup("HOME").map(PathBuf::from).unwrap_or_default();
        let path = |variable: &str, name: &str| {
            lookup(variable).map_or_else(|| home.join(".aws").join(name), |path| expand(&path, &home))
        };
        let (config_path, credentials_path) =
            (path("AWS_CONFIG_FILE", "config"), path("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
        let named =
            asked.map(str::to_owned).or_else(|| lookup("AWS_PROFILE")).or_else(|| lookup("AWS_DEFAULT_PROFILE"));
        let profiles = Profiles {
            name: named.clone().unwrap_or_else(|| "default".into()),
            config: read(&config_path, Kind::Config)?,
            credentials: read(&credentials_path, Kind::Credentials)?,
            config_path,
            credentials_path,
        };
        if named.is_some() && !profiles.has(&profiles.name) {
            return Err(profiles.missing(&profiles.name));
        }
        Ok(profiles)
    }

    fn has(&self, name: &str) -> bool {
        self.config.profile(name).is_some() || self.credentials.profile(name).is_some()
    }

    fn missing(&self, name: &str) -> CredentialsError {
        CredentialsError::NoProfile {
            name: name.to_owned(),
            config: self.config_path.clone(),
            credentials: self.credentials_path.clone(),
        }
    }

    /// A setting of the chosen profile.
    fn setting(&self, name: &str) -> Option<String> {
        setting(self.config.profile(&self.name), name)
    }
}

fn setting(settings: Option<&Settings>, name: &str) -> Option<String> {
    settings?.get(name).filter(|value| !value.is_empty()).cloned()
}

fn expand(path: &str, home: &Path) -> PathBuf {
    path.strip_prefix("~/").map_or_else(|| PathBuf::from(path), |rest| home.join(rest))
}

/// Reads a file; a missing one counts as empty.
fn read(path: &Path, kind: Kind) -> Result<Sections, CredentialsError> {
    let failed = |reason: String| CredentialsError::File { path: path.to_owned(), reason };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Sections::default()),
        Err(error) => return Err(failed(error.to_string())),
        Ok(about) if about.len() > config::FILE_BYTES_MAX as u64 => {
            return Err(failed(ConfigError::TooLong.to_string()));
        }
        Ok(_) => {}
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    Sections::parse(&text, kind).map_err(|error| failed(error.to_string()))
}

impl Aws {
    /// Reads all settings; `profile` is the one named on the command line, if any.
    ///
    /// # Errors
    /// [`CredentialsError::File`] if a file cannot be read or parsed; [`CredentialsError::NoProfile`] or
    /// [`CredentialsError::Profile`] if the profile is missing or cannot be used; [`CredentialsError::Checksums`] for
    /// an unknown checksum setting.
    pub fn find(lookup: Lookup<'_>, profile: Option<&str>) -> Result<Aws, CredentialsError> {
        let given = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let profiles = Profiles::read(&given, profile)?;
        let ignored =
            given("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let region = given("AWS_REGION").or_else(|| given("AWS_DEFAULT_REGION")).or_else(|| profiles.setting("region"));
        let service_endpoint = |variable: &str, service: &str| {
            if ignored {
                return None;
            }
            let section = profiles.setting("services").and_then(|name| profiles.config.services(&name).cloned());
            given(variable)
                .or_else(|| setting(section.as_ref(), &format!("{service}.endpoint_url")))
                .or_else(|| given("AWS_ENDPOINT_URL"))
                .or_else(|| profiles.setting("endpoint_url"))
        };
        let tokens = provider::TokenService {
            endpoint: service_endpoint("AWS_ENDPOINT_URL_STS", "sts"),
            region: region.clone().unwrap_or_else(|| "us-east-1".into()),
        };
        let addressing = match profiles.setting("s3.addressing_style").as_deref() {
            Some("path") => Addressing::Path,
            Some("virtual") => Addressing::Virtual,
            _ => Addressing::Auto,
        };
        let when_supported = |variable: &str, setting: &str| {
            let (name, value) = match (given(variable), profiles.setting(setting)) {
                (Some(value), _) => (variable, value),
                (None, Some(value)) => (setting, value),
                (None, None) => return Ok(true),
            };
            match value.trim().to_ascii_lowercase().as_str() {
                "when_supported" => Ok(true),
                "when_required" => Ok(false),
                _ => Err(CredentialsError::Checksums { name: name.to_owned(), value }),
            }
        };
        Ok(Aws {
            sends_checksums: when_supported("AWS_REQUEST_CHECKSUM_CALCULATION", "request_checksum_calculation")?,
            asks_for_checksums: when_supported("AWS_RESPONSE_CHECKSUM_VALIDATION", "response_checksum_validation")?,
            providers: provider::chain(&given, &profiles, profile.is_some(), &tokens)?,
            region,
            endpoint: service_endpoint("AWS_ENDPOINT_URL_S3", "s3"),
            addressing,
            authorities: given("AWS_CA_BUNDLE").or_else(|| profiles.setting("ca_bundle")).map(PathBuf::from),
        })
    }
}

/// Holds credentials, and renews them before they expire.
#[derive(Debug)]
pub struct CredentialCache {
    /// `None`: requests are not signed.
    providers: Option<Vec<Provider>>,
    connect: ConnectOptions,
    cached: Mutex<Option<Arc<Identity>>>,
    /// Held by the caller that is asking the providers.
    asking: tokio::sync::Mutex<()>,
}

impl CredentialCache {
    /// Creates a cache that asks these providers, in order, when credentials are first needed. `connect` has the
    /// connection options for services.
    pub fn new(providers: Vec<Provider>, connect: ConnectOptions) -> CredentialCache {
        CredentialCache { providers: Some(providers), connect, cached: Mutex::default(), asking: Default::default() }
    }

    /// Creates a cache without credentials: requests are not signed.
    pub fn anonymous() -> CredentialCache {
        let connect = ConnectOptions::default();
        CredentialCache { providers: None, connect, cached: Mutex::default(), asking: Default::default() }
    }

    /// Returns current credentials, fetching or renewing them if necessary; `None` for unsigned requests. `refused` are
    /// credentials that the store no longer accepts.
    ///
    /// # Errors
    /// [`CredentialsError`] of the first provider that fails, or of all of them if none has credentials. Unexpired
    /// credentials stay in use if their renewal fails, unless the store has refused them. They also stay in use while
    /// another caller renews them.
    pub async fn identity(&self, refused: Option<&Identity>) -> Result<Option<Arc<Identity>>, CredentialsError> {
        let Some(providers) = &self.providers else { return Ok(None) };
        if let Some(identity) = self.fresh(refused) {
            return Ok(Some(identity));
        }
        let unexpired = self.cached().filter(|cached| refused.is_none() && !is_over(cached));
        let _asking = match (self.asking.try_lock(), &unexpired) {
            (Ok(asking), _) => asking,
            (Err(_), Some(identity)) => return Ok(Some(Arc::clone(identity))),
            (Err(_), None) => self.asking.lock().await,
        };
        // Another caller may have renewed them.
        if let Some(identity) = self.fresh(refused) {
            return Ok(Some(identity));
        }
        match (self.ask(providers).await, unexpired) {
            (Ok(identity), _) => {
                let identity = Arc::new(identity);
                *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&identity));
                Ok(Some(identity))
            }
            (Err(error), Some(identity)) => {
                tracing::warn!(%error, "credentials could not be renewed");
                Ok(Some(identity))
            }
            (Err(error), None) => Err(error),
        }
    }

    fn cached(&self) -> Option<Arc<Identity>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Credentials that need no renewal yet.
    fn fresh(&self, refused: Option<&Identity>) -> Option<Arc<Identity>> {
        let ends = |identity: &Identity| identity.expires.is_some_and(|expires| expires - RENEW_BEFORE_S <= unix_now());
        self.cached().filter(|identity| !ends(identity) && refused != Some(&**identity))
    }

    async fn ask(&self, providers: &[Provider]) -> Result<Identity, CredentialsError> {
        let mut tried = Vec::new();
        for provider in providers {
            match provider.fetch(&self.connect).await {
                Ok(identity) => return Ok(identity),
                // The last resort on every machine: elsewhere, its absence is no news.
                Err(error) if provider.is_guess() => tried.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Err(CredentialsError::None { tried })
    }
}

fn is_over(identity: &Identity) -> bool {
    identity.expires.is_some_and(|expires| expires <= unix_now())
}

/// Current time in seconds since 1970.
pub fn unix_now() -> i64 {
    let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(passed.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
