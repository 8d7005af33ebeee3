//! Shared code of `put` and `get`: settings and connection of a bucket, and errors in the words of the program.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use fullbore_engine::run::StoreFailure;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::stage::Ledger;
use fullbore_wire::connect::{ConnectOptions, ProxyServer};
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::{ProxyAddresses, hints, proxies};
use fullbore_wire::socket::SocketOptions;
use fullbore_wire::tls::{Authorities, Offer, Tls, Trust};
use fullbore_wire::url::Url;
use tokio::sync::watch;

use crate::address::{Addressing, Bucket, Location, SCHEME};
use crate::client::{CallError, Cause, Client, Options, TRY_FOR};
use crate::credentials::{Aws, CredentialCache, CredentialsError};
use crate::dialect::{Feature, Support};
use crate::download::DownloadError;
use crate::upload::UploadError;

/// Region of the first request if none is set. A bucket elsewhere answers with its region.
pub(crate) const REGION: &str = "us-east-1";

/// Default maximum number of connections.
pub const CONNECTIONS: usize = 64;

/// Maximum number of unsent bytes in the kernel; fewer on slow paths.
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// Whether an argument is the address of a store.
pub fn is_address(text: &std::ffi::OsStr) -> bool {
    text.as_encoded_bytes().starts_with(SCHEME.as_bytes())
}

/// Parses the address `s3://BUCKET/KEY` of a command line.
///
/// # Errors
/// A usage error if the text is not UTF-8, or if [`Location::parse`] refuses it.
pub fn location(text: &std::ffi::OsStr) -> Result<Location, CommandError> {
    let text = text.to_str().ok_or_else(|| CommandError::usage("the address of a store must be UTF-8"))?;
    Location::parse(text).map_err(CommandError::usage)
}

/// A bucket, and how fullbore reaches it.
#[derive(Debug, Clone, PartialEq)]
pub struct BucketSettings {
    /// The bucket, and a key or prefix in it.
    pub location: Location,
    /// URL of the store, unless the settings of the AWS tools have it.
    pub endpoint: Option<String>,
    /// Region of the bucket, unless the settings of the AWS tools have it.
    pub region: Option<String>,
    /// Where the bucket is placed in URLs; `Auto` follows the settings of the AWS tools.
    pub addressing: Addressing,
    /// Whether requests are signed; false for public buckets.
    pub signs: bool,
    /// Certificates trusted in addition to the system's, a PEM file.
    pub authorities: Option<PathBuf>,
    /// Maximum number of connections to the store.
    pub connections: usize,
    /// Time without progress after which a connection is given up.
    pub patience: Duration,
    /// Proxies from the environment.
    pub proxy: ProxyAddresses,
    /// Settings of the AWS tools.
    pub aws: Aws,
}

/// Creates the client of a bucket; no request is sent yet.
pub(crate) fn open(
    settings: &BucketSettings,
    limits: RateLimits,
    stop: watch::Receiver<bool>,
    ledger: &Ledger,
) -> Result<Client, CommandError> {
    let aws = &settings.aws;
    let addressing = match settings.addressing {
        Addressing::Auto => aws.addressing,
        chosen => chosen,
    };
    let region = settings.region.as_deref().or(aws.region.as_deref()).unwrap_or(REGION);
    let endpoint = settings.endpoint.as_deref().or(aws.endpoint.as_deref());
    let mut bucket =
        Bucket::new(&settings.location.bucket, endpoint, region, addressing).map_err(CommandError::usage)?;
    bucket.endpoint.proxy = proxy(&bucket, &settings.proxy)?;
    let trust = match settings.authorities.as_ref().or(aws.authorities.as_ref()) {
        Some(path) => Trust::SystemAnd(Authorities::read(path).map_err(CommandError::usage)?),
        None => Trust::System,
    };
    let connect = ConnectOptions {
        tls: Tls::new(trust),
        offer: Offer::Http1,
        limit: settings.patience,
        ..ConnectOptions::default()
    };
    let credentials = match settings.signs {
        true => CredentialCache::new(aws.providers.clone(), connect.clone()),
        false => CredentialCache::anonymous(),
    };
    let socket = SocketOptions { unsent_low_water_bytes: Some(UNSENT_BYTES_MAX), ..SocketOptions::default() };
    let options = Options {
        connect: ConnectOptions { socket, ..connect },
        connections: settings.connections,
        stall_timeout: settings.patience,
        try_for: TRY_FOR,
        limit: limits.send,
        receive_limit: limits.receive,
        ledger: ledger.clone(),
    };
    let client = Client::new(bucket, credentials, options, stop);
    let switch_off = |features: &[Feature]| {
        features.iter().for_each(|feature| client.dialect().learn(*feature, Support::Lacking));
    };
    if !aws.sends_checksums {
        switch_off(&[Feature::ObjectChecksums, Feature::PartChecksums]);
    }
    if !aws.asks_for_checksums {
        switch_off(&[Feature::ToldChecksums]);
    }
    Ok(client)
}

/// The proxy for this store, if there is one.
fn proxy(bucket: &Bucket, addresses: &ProxyAddresses) -> Result<Option<ProxyServer>, CommandError> {
    let proxies = proxies(addresses)?;
    let url = Url::parse(&format!("{}://{}/", bucket.endpoint.scheme.as_str(), bucket.host));
    let url = url.map_err(CommandError::usage)?;
    Ok(proxies.route(&url).server())
}

/// Converts missing credentials to a command's error with a hint.
pub fn explain_credentials(error: &CredentialsError) -> CommandError {
    let command = CommandError::usage(error);
    match error {
        CredentialsError::None { .. } => command.hint(
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials; public buckets need --no-sign-request only",
        ),
        _ => command,
    }
}

/// Converts a failed request to a command's error with a hint.
pub fn explain(error: &CallError) -> CommandError {
    let kind = match error {
        CallError::Credentials(error) => return explain_credentials(error),
        CallError::Interrupted => ErrorKind::Interrupted,
        CallError::LockLost => ErrorKind::Locked,
        CallError::Disk(_) => ErrorKind::Disk,
        CallError::Damaged { .. } => ErrorKind::Verification,
        CallError::Refused { status: 400..=428 | 430..=499, .. } => ErrorKind::Usage,
        _ => ErrorKind::Network,
    };
    let command = CommandError::from_error(kind, error);
    if let CallError::Unreachable(unreachable) = error {
        return match unreachable.cause {
            Cause::Silence => command.hint(hints::REACH),
            Cause::UnknownIssuer => command.hint(hints::TRUST),
            Cause::WrongCertificate => command.hint(hints::CERTIFICATE),
            Cause::Name => command,
        };
    }
    match (error.code(), error.status()) {
        ("SignatureDoesNotMatch", _) => command.hint("check the secret key and --region"),
        ("RequestTimeTooSkewed", _) => command.hint("set this machine's clock right"),
        ("NoSuchBucket", _) => command.hint("create the bucket first, for example with `aws s3 mb`"),
        (_, Some(300..400)) => command.hint("pass the address of the store with --endpoint, or its --region"),
        ("InvalidObjectState", _) => command.hint(
            "the object is archived: restore it first, for example with `aws s3api restore-object`, and get it when that is done",
        ),
        (_, Some(403)) => command
            .hint("check the permissions of these credentials; `aws sts get-caller-identity` shows whose they are"),
        _ => command,
    }
}

/// Converts a failed request for a mirror's file to an I/O error that names the store, not a disk, as the cause.
pub fn failure(error: &CallError) -> io::Error {
    StoreFailure::io(explain(error))
}

/// Converts a failed upload of a mirror's file. Reading the file may have failed on the local disk.
pub(crate) fn upload_failure(error: UploadError) -> io::Error {
    let kind = match error {
        UploadError::Call(error) => return failure(&error),
        UploadError::Source(error) => return error,
        UploadError::Damaged { .. } => ErrorKind::Verification,
        UploadError::Changed => ErrorKind::Disk,
        UploadError::Condition => ErrorKind::Locked,
        UploadError::Conflict => ErrorKind::Network,
        UploadError::TooLarge { .. } | UploadError::TooManyParts { .. } => ErrorKind::Usage,
    };
    StoreFailure::io(CommandError::new(kind, error))
}

/// Converts a failed download of a mirror's file.
pub fn download_failure(error: &DownloadError) -> io::Error {
    match error {
        // The store works: only this object must be restored first.
        DownloadError::Call(error) if error.code() == "InvalidObjectState" => {
            io::Error::new(io::ErrorKind::PermissionDenied, explain(error).message)
        }
        DownloadError::Call(error) => failure(error),
        // A caller that compares the content itself detects that it is wrong.
        DownloadError::Wrong { .. } => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
        DownloadError::Missing { .. } => io::Error::new(io::ErrorKind::NotFound, error.to_string()),
        other => StoreFailure::io(CommandError::new(ErrorKind::Network, other)),
    }
}

/// Whether every other request would fail with the same error.
pub(crate) fn is_fatal(error: &CallError) -> bool {
    match error {
        CallError::Credentials(_)
        | CallError::Unreachable(_)
        | CallError::GivenUp(_)
        | CallError::Interrupted
        | CallError::LockLost => true,
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
