//! The sources of credentials, by the rules of the AWS tools.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_wire::auth::Authorization;
use fullbore_wire::connect::{ConnectOptions, Scheme};
use fullbore_wire::http1::{Method, RequestHead};
use fullbore_wire::url::{Host, Url};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::exchange::exchange;
use super::{CredentialsError, Lookup, Profiles, SOURCES_MAX, setting, unix_now};
use crate::sign::{Identity, Signable, Signer, amz_date, query_string};
use crate::xml;

/// Time limit for the machine's own metadata service, which is near or absent.
const METADATA_LIMIT: Duration = Duration::from_secs(2);

/// Time limit for other services, and for programs, which may have to ask a service themselves.
const SERVICE_LIMIT: Duration = Duration::from_secs(60);

/// Maximum size of a program's output or a token file, in bytes.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Lifetime of a session with the metadata service, in seconds: the longest allowed.
const METADATA_SESSION_S: &str = "21600";

/// Hosts that may supply a container's credentials without TLS, besides loopback addresses.
const CONTAINER_HOSTS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];

/// The security token service (STS), which issues credentials for a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenService {
    /// URL of the service; `None` for Amazon's in `region`.
    pub endpoint: Option<String>,
    /// Region of the service, also for signatures.
    pub region: String,
}

/// A source of credentials, in the terms of the AWS tools.
#[derive(Clone, PartialEq, Eq)]
pub enum Provider {
    /// Credentials given directly.
    Fixed(Identity),
    /// A command that prints credentials (`credential_process`).
    Process {
        /// The command line, for a shell.
        command: String,
    },
    /// A token of another service, in a file, exchanged for credentials of a role.
    WebIdentity {
        /// Path of the token file, read anew each time.
        token: PathBuf,
        /// ARN of the role.
        role: String,
        /// Name of the session.
        session: Option<String>,
        /// The token service to ask.
        service: TokenService,
    },
    /// Credentials of another source, exchanged for those of a role.
    AssumeRole {
        /// ARN of the role.
        role: String,
        /// Name of the session.
        session: Option<String>,
        /// External id that the role requires, a secret of its owner.
        external_id: Option<String>,
        /// Source of the original credentials.
        source: Box<Provider>,
        /// The token service to ask.
        service: TokenService,
    },
    /// The credential service of a container in ECS or EKS.
    Container {
        /// URL of the service.
        url: String,
        /// Authorization that the service requires.
        token: Option<ContainerToken>,
    },
    /// The machine's metadata service, version 2.
    Metadata {
        /// URL of the service.
        endpoint: String,
        /// Whether no setting names it: most machines have none.
        guess: bool,
    },
}

/// The `Authorization` field for requests to [`Provider::Container`].
#[derive(Clone, PartialEq, Eq)]
pub enum ContainerToken {
    /// The value itself.
    Text(String),
    /// Path of a file with the value, read anew each time.
    File(PathBuf),
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

/// The configured sources, in the order of the AWS tools.
pub(super) fn chain(
    given: Lookup<'_>,
    profiles: &Profiles,
    profile_asked: bool,
    service: &TokenService,
) -> Result<Vec<Provider>, CredentialsError> {
    let mut chain = Vec::new();
    // A profile named on the command line precedes the environment.
    if !profile_asked && let Some(access_key_id) = given("AWS_ACCESS_KEY_ID") {
        let secret_access_key = given("AWS_SECRET_ACCESS_KEY").ok_or_else(|| CredentialsError::Source {
            source_name: "the environment".into(),
            reason: "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not".into(),
        })?;
        let session_token = given("AWS_SESSION_TOKEN").or_else(|| given("AWS_SECURITY_TOKEN"));
        chain.push(Provider::Fixed(Identity { access_key_id, secret_access_key, session_token, expires: None }));
        return Ok(chain);
    }
    if !profile_asked
        && given("AWS_PROFILE").is_none()
        && let (Some(token), Some(role)) = (given("AWS_WEB_IDENTITY_TOKEN_FILE"), given("AWS_ROLE_ARN"))
    {
        let session = given("AWS_ROLE_SESSION_NAME");
        chain.push(Provider::WebIdentity { token: token.into(), role, session, service: service.clone() });
        return Ok(chain);
    }
    if let Some(provider) = of_profile(given, profiles, &profiles.name, service, 0)? {
        chain.push(provider);
        return Ok(chain);
    }
    chain.extend(of_container(given));
    chain.extend(of_machine(given, chain.is_empty()));
    Ok(chain)
}

/// The source that a profile names, if it names one.
fn of_profile(
    given: Lookup<'_>,
    profiles: &Profiles,
    name: &str,
    service: &TokenService,
    depth: usize,
) -> Result<Option<Provider>, CredentialsError> {
    let wrong = |reason: &str| CredentialsError::Profile { name: name.to_owned(), reason: reason.to_owned() };
    if depth > SOURCES_MAX {
        return Err(wrong("its source_profile settings form a loop"));
    }
    let of = |key: &str| {
        setting(profiles.credentials.profile(name), key).or_else(|| setting(profiles.config.profile(name), key))
    };
    let fixed = || match (of("aws_access_key_id"), of("aws_secret_access_key")) {
        (Some(access_key_id), Some(secret_access_key)) => Ok(Some(Provider::Fixed(Identity {
            access_key_id,
            secret_access_key,
            session_token: of("aws_session_token"),
            expires: None,
        }))),
        (None, None) => Ok(None),
        _ => Err(wrong("aws_access_key_id and aws_secret_access_key go together")),
    };
    if let Some(role) = of("role_arn") {
        let session = of("role_session_name");
        if let Some(token) = of("web_identity_token_file") {
            return Ok(Some(Provider::WebIdentity { token: token.into(), role, session, service: service.clone() }));
        }
        if of("mfa_serial").is_some() {
            return Err(wrong("needs an MFA code (mfa_serial), which is not supported; use credential_process"));
        }
        let source = match (of("source_profile"), of("credential_source")) {
            // A profile may be its own source: then its keys are used.
            (Some(source), _) if source == name => fixed()?,
            (Some(source), _) if !profiles.has(&source) => return Err(profiles.missing(&source)),
            (Some(source), _) => of_profile(given, profiles, &source, service, depth + 1)?,
            (None, Some(source)) => of_source(given, &source),
            (None, None) => return Err(wrong("has role_arn, but neither source_profile nor credential_source")),
        };
        let source = source.ok_or_else(|| wrong("its source_profile has no credentials"))?;
        return Ok(Some(Provider::AssumeRole {
            role,
            session,
            external_id: of("external_id"),
            source: Box::new(source),
            service: service.clone(),
        }));
    }
    if let Some(fixed) = fixed()? {
        return Ok(Some(fixed));
    }
    if let Some(command) = of("credential_process") {
        return Ok(Some(Provider::Process { command }));
    }
    if of("sso_session").is_some() || of("sso_start_url").is_some() {
        return Err(wrong(
            "single sign-on is not supported; `credential_process = aws configure export-credentials --profile NAME` \
             in a profile beside it hands its credentials over",
        ));
    }
    Ok(None)
}

fn of_source(given: Lookup<'_>, name: &str) -> Option<Provider> {
    match name {
        "Environment" => Some(Provider::Fixed(Identity {
            access_key_id: given("AWS_ACCESS_KEY_ID")?,
            secret_access_key: given("AWS_SECRET_ACCESS_KEY")?,
            session_token: given("AWS_SESSION_TOKEN"),
            expires: None,
        })),
        "EcsContainer" => of_container(given),
        "Ec2InstanceMetadata" => of_machine(given, false),
        _ => None,
    }
}

fn of_container(given: Lookup<'_>) -> Option<Provider> {
    let url = match given("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        Some(path) => format!("http://{}{path}", CONTAINER_HOSTS[0]),
        None => given("AWS_CONTAINER_CREDENTIALS_FULL_URI")?,
    };
    let file = given("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(|path| ContainerToken::File(path.into()));
    let token = file.or_else(|| given("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(ContainerToken::Text));
    Some(Provider::Container { url, token })
}

fn of_machine(given: Lookup<'_>, guess: bool) -> Option<Provider> {
    if given("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    let named = given("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    let ipv6 = given("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE").is_some_and(|mode| mode.eq_ignore_ascii_case("ipv6"));
    let usual = if ipv6 { "http://[fd00:ec2::254]" } else { "http://169.254.169.254" };
    Some(Provider::Metadata { endpoint: named.unwrap_or_else(|| usual.into()), guess })
}

/// Credentials in the form printed by programs and services.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    access_key_id: String,
    secret_access_key: String,
    #[serde(alias = "Token")]
    session_token: Option<String>,
    expiration: Option<String>,
}

impl Provider {
    /// Name of the source, for error messages.
    pub fn name(&self) -> String {
        match self {
            Provider::Fixed(_) => "environment or profile".into(),
            Provider::Process { .. } => "the program of credential_process".into(),
            Provider::WebIdentity { role, .. } => format!("the web identity for {role}"),
            Provider::AssumeRole { role, .. } => format!("the role {role}"),
            Provider::Container { .. } => "the service of this container".into(),
            Provider::Metadata { .. } => "the metadata service of this machine".into(),
        }
    }

    /// Whether no setting names this source; then its absence is no error.
    pub fn is_guess(&self) -> bool {
        matches!(self, Provider::Metadata { guess: true, .. })
    }

    /// Gets credentials from the source: reads a file, runs a program, or asks a service.
    ///
    /// # Errors
    /// [`CredentialsError::Source`] if the service, program or token file gives no credentials; it names the source and
    /// the reason.
    pub async fn fetch(&self, connect: &ConnectOptions) -> Result<Identity, CredentialsError> {
        let fetched = match self {
            Provider::Fixed(identity) => Ok(identity.clone()),
            Provider::Process { command } => process(command).await,
            Provider::WebIdentity { token, role, session, service } => {
                let token = read_token(token)?;
                let session = session_name(session);
                let parameters =
                    [("RoleArn", role.as_str()), ("RoleSessionName", &session), ("WebIdentityToken", &token)];
                ask_tokens(service, "AssumeRoleWithWebIdentity", &parameters, None, connect).await
            }
            Provider::AssumeRole { role, session, external_id, source, service } => {
                let source = Box::pin(source.fetch(connect)).await?;
                let session = session_name(session);
                let mut parameters = vec![("RoleArn", role.as_str()), ("RoleSessionName", &session)];
                parameters.extend(external_id.as_deref().map(|id| ("ExternalId", id)));
                ask_tokens(service, "AssumeRole", &parameters, Some(&source), connect).await
            }
            Provider::Container { url, token } => container(url, token.as_ref(), connect).await,
            Provider::Metadata { endpoint, .. } => metadata(endpoint, connect).await,
        };
        let fetched = fetched.and_then(|identity| sendable(&identity).map(|()| identity));
        fetched.map_err(|reason| CredentialsError::Source { source_name: self.name(), reason })
    }
}

fn session_name(given: &Option<String>) -> String {
    given.clone().unwrap_or_else(|| format!("fullbore-{}", unix_now()))
}

fn read_token(path: &std::path::Path) -> Result<String, CredentialsError> {
    let failed = |reason: String| CredentialsError::File { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let token = text.trim();
    if token.is_empty() || token.len() as u64 > OUTPUT_BYTES_MAX {
        return Err(failed("no token".into()));
    }
    Ok(token.to_owned())
}

/// Parses printed credentials; errors do not repeat any of them.
fn printed(bytes: &[u8]) -> Result<Identity, String> {
    let printed: Printed =
        serde_json::from_slice(bytes).map_err(|error| format!("unexpected output: line {}", error.line()))?;
    identity(printed.access_key_id, printed.secret_access_key, printed.session_token, printed.expiration.as_deref())
}

fn identity(
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<&str>,
) -> Result<Identity, String> {
    let expires = match expiration {
        None => None,
        Some(text) => {
            let time: Timestamp = text.parse().map_err(|_| format!("{text:?} is not an expiry time"))?;
            Some(time.as_second())
        }
    };
    Ok(Identity {
        access_key_id,
        secret_access_key,
        session_token: session_token.filter(|token| !token.is_empty()),
        expires,
    })
}

/// Checks that credentials can be part of a request. An invalid value is named and not shown.
fn sendable(identity: &Identity) -> Result<(), String> {
    let Identity { access_key_id, secret_access_key, session_token, .. } = identity;
    let parts = [
        ("access key", Some(access_key_id)),
        ("secret key", Some(secret_access_key)),
        ("session token", session_token.as_ref()),
    ];
    let odd = parts.iter().find(|(_, text)| text.is_some_and(|text| text.contains(char::is_control)));
    odd.map_or(Ok(()), |(what, _)| Err(format!("its {what} has a line end, or another control character, in it")))
}

async fn process(command: &str) -> Result<Identity, String> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // The program may talk to a person, for instance to log in.
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot be started: {error}"))?;
    let Some(stdout) = child.stdout.take() else { return Err("has no output".into()) };
    let run = async {
        let mut output = Vec::new();
        let read = stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut output).await;
        let status = child.wait().await;
        (read, status, output)
    };
    let (read, status, output) =
        timeout(SERVICE_LIMIT, run).await.map_err(|_| format!("did not end within {} s", SERVICE_LIMIT.as_secs()))?;
    let status = read.and(status).map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("ended with {status}"));
    }
    printed(&output)
}

async fn container(url: &str, token: Option<&ContainerToken>, connect: &ConnectOptions) -> Result<Identity, String> {
    let url = Url::parse(url).map_err(|error| error.to_string())?;
    let near = match url.host() {
        Host::Address(address) => address.is_loopback() || CONTAINER_HOSTS.contains(&url.host().to_string().as_str()),
        Host::Name(name) => name == "localhost",
    };
    if url.scheme() == Scheme::Http && !near {
        return Err(format!("{} is not of this machine: https is needed", url.host()));
    }
    let mut head = RequestHead::get(url.host_field(), url.target());
    head.authorization = match token {
        None => None,
        Some(ContainerToken::Text(text)) => Some(Authorization::new(text.trim())),
        Some(ContainerToken::File(path)) => {
            Some(Authorization::new(read_token(path).map_err(|error| error.to_string())?))
        }
    };
    match exchange(&url, &head, Bytes::new(), connect, METADATA_LIMIT).await? {
        (200, content) => printed(&content),
        (status, _) => Err(format!("it answered {status}")),
    }
}

async fn metadata(endpoint: &str, connect: &ConnectOptions) -> Result<Identity, String> {
    const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
    let base = Url::parse(endpoint).map_err(|error| error.to_string())?;
    let prefix = base.path().trim_end_matches('/');
    let mut head = RequestHead::new(Method::Put, base.host_field(), format!("{prefix}/latest/api/token"));
    head.fields.push(("X-aws-ec2-metadata-token-ttl-seconds".into(), METADATA_SESSION_S.into()));
    let (status, session) = exchange(&base, &head, Bytes::new(), connect, METADATA_LIMIT).await?;
    if status != 200 {
        return Err(format!("a session was answered by {status}"));
    }
    let session = String::from_utf8(session.to_vec()).map_err(|_| "its session token is not UTF-8".to_owned())?;
    let ask = |path: String| {
        let mut head = RequestHead::get(base.host_field(), path);
        head.fields.push(("X-aws-ec2-metadata-token".into(), session.clone()));
        let (base, connect) = (base.clone(), connect.clone());
        async move {
            match exchange(&base, &head, Bytes::new(), &connect, METADATA_LIMIT).await? {
                (200, content) => Ok(content),
                (404, _) => Err("the machine has no role".to_owned()),
                (status, _) => Err(format!("it answered {status}")),
            }
        }
    };
    let roles = ask(format!("{prefix}{ROLES}")).await?;
    let role = std::str::from_utf8(&roles).ok().and_then(|text| text.lines().next()).unwrap_or_default().trim();
    if role.is_empty() || !role.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b'?') {
        return Err("the machine has no role".into());
    }
    printed(&ask(format!("{prefix}{ROLES}{role}")).await?)
}

/// Sends a form to the security token service, signed if there is an identity.
async fn ask_tokens(
    service: &TokenService,
    action: &str,
    parameters: &[(&str, &str)],
    signed_by: Option<&Identity>,
    connect: &ConnectOptions,
) -> Result<Identity, String> {
    let text = service.endpoint.clone().unwrap_or_else(|| format!("https://sts.{}.amazonaws.com", service.region));
    let url = Url::parse(&text).map_err(|error| error.to_string())?;
    let mut all = vec![("Action", action), ("Version", "2011-06-15")];
    all.extend(parameters);
    let body = query_string(&all);
    let path = match url.path().trim_end_matches('/') {
        "" => "/",
        path => path,
    };
    let mut head = RequestHead::new(Method::Post, url.host_field(), path);
    head.fields.push(("Content-Type".into(), "application/x-www-form-urlencoded; charset=utf-8".into()));
    if let Some(identity) = signed_by {
        let now = unix_now();
        head.fields.push(("X-Amz-Date".into(), amz_date(now)));
        head.fields.extend(identity.session_token.iter().map(|token| ("X-Amz-Security-Token".into(), token.clone())));
        let payload = Sha256::of(body.as_bytes()).to_hex();
        let request = Signable {
            method: "POST",
            path,
            query: &[],
            host: &head.host,
            fields: &head.fields,
            payload: payload.as_str(),
        };
        let value = Signer::new("sts").authorization(&request, identity, &service.region, now);
        head.authorization = Some(Authorization::new(value));
    }
    let (status, content) = exchange(&url, &head, body.into(), connect, SERVICE_LIMIT).await?;
    if status != 200 {
        let error = xml::service_error(&content).unwrap_or_default();
        return Err(format!("{status} {} {}", error.code, error.message).trim().to_owned());
    }
    let temporary = xml::temporary(&content).map_err(|error| error.to_string())?;
    identity(
        temporary.access_key_id,
        temporary.secret_access_key,
        Some(temporary.session_token),
        Some(&temporary.expiration),
    )
}
