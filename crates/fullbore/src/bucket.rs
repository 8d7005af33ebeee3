//! What `put` and `get` share for S3 stores: the bucket as flags, environment and files name it, and its errors.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fullbore_engine::stage::Ledger;
use fullbore_s3::address::{Addressing, Bucket, Location, SCHEME};
use fullbore_s3::client::{CallError, Client, Options, TRY_FOR};
use fullbore_s3::credentials::{Aws, CredentialsError, Keeper};
use fullbore_wire::connect::{ConnectOptions, ProxyServer};
use fullbore_wire::rate_limit::RateLimit;
use fullbore_wire::socket::SocketOptions;
use fullbore_wire::tls::{Authorities, Offer, Tls, Trust};
use fullbore_wire::url::Url;
use tokio::sync::watch;

use crate::cli::{AddressingChoice, GridArgs, S3Args};
use crate::settings::Environment;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::run::proxies;

/// The region that is spoken to when nobody says which; a bucket elsewhere answers where it is.
const REGION: &str = "us-east-1";

/// Connections at most, unless told otherwise.
pub const CONNECTIONS: u16 = 64;

/// Unsent bytes in the kernel at most; on slow paths less.
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// Whether an argument is an address of a store.
pub fn is_address(text: &std::ffi::OsStr) -> bool {
    text.as_encoded_bytes().starts_with(SCHEME.as_bytes())
}

/// Reads an address.
pub fn location(text: &std::ffi::OsStr) -> Result<Location, CommandError> {
    let text = text.to_str().ok_or_else(|| CommandError::usage("the address of a store must be UTF-8"))?;
    Location::parse(text).map_err(CommandError::usage)
}

/// The way to a bucket; nothing is asked yet.
pub fn open(
    arguments: &S3Args,
    common: &GridArgs,
    location: &Location,
    limit: Option<Arc<RateLimit>>,
    stop: watch::Receiver<bool>,
    ledger: &Ledger,
) -> Result<Client, CommandError> {
    let lookup = |name: &str| std::env::var(name).ok();
    let aws = Aws::find(&lookup, arguments.profile.as_deref()).map_err(|error| explain_credentials(&error))?;
    let addressing = match arguments.addressing {
        AddressingChoice::Auto => aws.addressing,
        AddressingChoice::Path => Addressing::Path,
        AddressingChoice::Virtual => Addressing::Virtual,
    };
    let region = arguments.region.clone().or(aws.region.clone()).unwrap_or_else(|| REGION.to_owned());
    let endpoint = arguments.endpoint.clone().or(aws.endpoint.clone());
    let mut bucket =
        Bucket::new(&location.bucket, endpoint.as_deref(), &region, addressing).map_err(CommandError::usage)?;
    bucket.endpoint.proxy = proxy(&bucket)?;
    let trust = match arguments.cacert.clone().or(aws.authorities.clone()) {
        Some(path) => Trust::SystemAnd(Authorities::read(&path).map_err(CommandError::usage)?),
        None => Trust::System,
    };
    let connect = ConnectOptions {
        tls: Tls::new(trust),
        offer: Offer::Http1,
        limit: Duration::from_secs(common.timeout),
        ..ConnectOptions::default()
    };
    let keeper =
        if arguments.no_sign_request { Keeper::anonymous() } else { Keeper::new(aws.providers, connect.clone()) };
    let socket = SocketOptions { unsent_low_water_bytes: Some(UNSENT_BYTES_MAX), ..SocketOptions::default() };
    let options = Options {
        connect: ConnectOptions { socket, ..connect },
        connections: usize::from(arguments.connections.unwrap_or(CONNECTIONS)),
        patience: Duration::from_secs(common.timeout),
        try_for: TRY_FOR,
        limit,
        ledger: ledger.clone(),
    };
    Ok(Client::new(bucket, keeper, options, stop))
}

/// The proxy that the environment has for this store.
fn proxy(bucket: &Bucket) -> Result<Option<ProxyServer>, CommandError> {
    let proxies = proxies(&Environment::read().proxy)?;
    let url = Url::parse(&format!("{}://{}/", bucket.endpoint.scheme.as_str(), bucket.host));
    let url = url.map_err(CommandError::usage)?;
    Ok(proxies.route(&url).server())
}

/// Where this user's state is kept.
pub fn state_directory() -> Option<PathBuf> {
    let base = match std::env::var_os("XDG_STATE_HOME") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => PathBuf::from(std::env::var_os("HOME").filter(|home| !home.is_empty())?).join(".local/state"),
    };
    Some(base.join("fullbore/put"))
}

fn explain_credentials(error: &CredentialsError) -> CommandError {
    let command = CommandError::usage(error);
    match error {
        CredentialsError::None { .. } => command.hint(
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials; --no-sign-request needs none",
        ),
        _ => command,
    }
}

/// The library's error as the person sees it.
pub fn explain(error: &CallError) -> CommandError {
    let kind = match error {
        CallError::Credentials(error) => return explain_credentials(error),
        CallError::Interrupted => ErrorKind::Interrupted,
        CallError::Damaged { .. } => ErrorKind::Verification,
        CallError::Refused { status: 400..=428 | 430..=499, .. } => ErrorKind::Usage,
        _ => ErrorKind::Network,
    };
    let command = CommandError::from_error(kind, error);
    match (error.code(), error.status()) {
        ("SignatureDoesNotMatch", _) => command.hint("is the secret key the right one, and the --region?"),
        ("RequestTimeTooSkewed", _) => command.hint("is this machine's clock right?"),
        ("NoSuchBucket", _) => command.hint("fullbore makes no buckets: `aws s3 mb` does"),
        (_, Some(300..400)) => command.hint("the store is elsewhere: --endpoint says where, and --region"),
        (_, Some(403)) => {
            command.hint("may these credentials do that? `aws sts get-caller-identity` says whose they are")
        }
        _ => command,
    }
}

/// Whether an error would be that of every other request too.
pub fn is_fatal(error: &CallError) -> bool {
    match error {
        CallError::Credentials(_) | CallError::GivenUp(_) | CallError::Interrupted => true,
        CallError::Refused { status, error, .. } => {
            *status == 401
                || matches!(
                    error.code.as_str(),
                    "NoSuchBucket"
                        | "InvalidAccessKeyId"
                        | "SignatureDoesNotMatch"
                        | "AccountProblem"
                        | "AllAccessDisabled"
                        | "AuthorizationHeaderMalformed"
                        | "InvalidBucketName"
                        | "ExpiredToken"
                )
        }
        _ => false,
    }
}
