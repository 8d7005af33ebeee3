//! A mirror in a bucket: which store has it, and the flags for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::{absolute, directory};
use fullbore_mirror::StateStore;
use fullbore_s3::Addressing;
use fullbore_s3::bucket::{self, BucketSettings};
use fullbore_s3::credentials::Aws;
use fullbore_wire::url::{HIDDEN_HOST, public_part};

use super::{Environment, addresses, store};
use crate::cli::{MirrorArgs, StoreArgs};

/// Time without progress after which a connection to the store of a mirror is given up; that of `put`.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// What `--state` takes.
const STATE_HINT: &str = "pass --state with a local directory or s3://BUCKET/PREFIX";

/// The endpoint that a flag names, which needs a scheme: nothing else tells whether the store has TLS.
pub(super) fn check_endpoint(endpoint: Option<&str>) -> Result<(), CommandError> {
    match endpoint {
        Some(text) if !text.contains("://") => {
            // A password before the host is for nobody's eyes.
            let shown = public_part(text).unwrap_or_else(|| HIDDEN_HOST.to_owned());
            Err(CommandError::usage(format_args!("--endpoint {shown}: no http:// or https:// before the host"))
                .hint(format_args!("write --endpoint https://{shown}, or http://{shown} for a store without TLS")))
        }
        _ => Ok(()),
    }
}

/// The bucket of a mirror, and how it is reached.
pub(super) fn bucket_of(
    to: &Path,
    store: &StoreArgs,
    cacert: Option<&Path>,
    environment: &Environment,
) -> Result<BucketSettings, CommandError> {
    check_endpoint(store.endpoint.as_deref())?;
    let lookup = |name: &str| std::env::var(name).ok();
    let aws = Aws::find(&lookup, store.profile.as_deref());
    let location = bucket::location(to.as_os_str())?;
    if location.key.contains('?') {
        return Err(CommandError::usage(format_args!("{}: only addresses of --from have parameters", to.display()))
            .hint("pass --endpoint, --region or --profile"));
    }
    Ok(BucketSettings {
        location,
        endpoint: store.endpoint.clone(),
        region: store.region.clone(),
        addressing: Addressing::Auto,
        signs: true,
        authorities: cacert.map(Path::to_owned),
        connections: bucket::CONNECTIONS,
        patience: STORE_PATIENCE,
        proxy: environment.proxy.clone(),
        aws: aws.map_err(|error| bucket::explain_credentials(&error))?,
    })
}

/// The directory for temporary files of a mirror in a bucket.
pub(super) fn scratch(wish: Option<&Path>, environment: &Environment) -> Result<PathBuf, CommandError> {
    match wish {
        Some(wish) => {
            let wish = absolute(wish)?;
            directory(&wish)?;
            Ok(wish)
        }
        None => Ok(store::spool(environment)),
    }
}

/// Where `--state` puts fullbore's own files.
pub(super) fn state_of(
    wish: &Path,
    bucket: &dyn Fn(&Path) -> Result<BucketSettings, CommandError>,
) -> Result<StateStore, CommandError> {
    if let Some(error) = addresses::not_of_a_mirror(wish.as_os_str(), &STATE_HINT) {
        return Err(error);
    }
    match bucket::is_address(wish.as_os_str()) {
        true => Ok(StateStore::Bucket(Box::new(bucket(wish)?))),
        false => Ok(StateStore::Directory(absolute(wish)?)),
    }
}

/// The error for a flag of a `mirror` on the command line that is about buckets where none is written or read. Flags of
/// a settings file may be for others.
pub(super) fn misplaced_flag(arguments: &MirrorArgs, writes: bool, reads: bool) -> Option<CommandError> {
    let of_writing = [
        ("--aliases", arguments.aliases.is_some()),
        ("--state", arguments.state.is_some()),
        ("--cache-control", arguments.cache_control.is_some()),
        ("--lock", arguments.lock.is_some()),
        ("--scratch", arguments.scratch.is_some()),
        ("--cache", arguments.cache.is_some()),
        ("--snapshot-full", arguments.snapshot_full),
        ("--pin", arguments.pin),
        ("--finish", arguments.finish.is_some()),
        ("--verify-objects", arguments.verify_objects),
        ("--queue", arguments.queue.queue.is_some()),
    ];
    let given = |flags: &[(&'static str, bool)]| flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
    if !writes && let Some(flag) = given(&of_writing) {
        return Some(for_buckets_only(flag));
    }
    if !reads && arguments.no_sign_request {
        return Some(no_bucket_to_read());
    }
    let flag = given(&of_stores(&arguments.store));
    flag.filter(|_| !writes && !reads).map(no_bucket)
}

/// The flags that say which store, and whether they were given.
pub(super) fn of_stores(store: &StoreArgs) -> [(&'static str, bool); 3] {
    [
        ("--endpoint", store.endpoint.is_some()),
        ("--region", store.region.is_some()),
        ("--profile", store.profile.is_some()),
    ]
}

/// The refusal of a flag about stores without any.
pub(super) fn no_bucket(flag: &str) -> CommandError {
    CommandError::usage(format_args!("{flag} is for buckets, and no s3:// address is given"))
}

/// The refusal of a flag about buckets that are read.
pub(super) fn no_bucket_to_read() -> CommandError {
    CommandError::usage("--no-sign-request is for buckets that are read, and no --from is an s3:// address")
}

/// The refusal of a flag where the mirror is a directory.
pub(super) fn for_buckets_only(flag: &str) -> CommandError {
    CommandError::usage(format_args!("{flag} is for mirrors in a bucket, not for directories"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_scheme_is_shown_whole_and_with_one() {
        for (text, shown) in [
            ("store.example.org", "store.example.org"),
            ("localhost:9000", "localhost:9000"),
            ("me:secret@store.example.org", "store.example.org"),
            ("me:sec/ret@store.example.org", "HOST…"),
            ("store.example.org/a@b", "HOST…"),
        ] {
            let error = check_endpoint(Some(text)).unwrap_err();
            assert!(error.message.starts_with(&format!("--endpoint {shown}: ")), "{error}");
            assert!(error.hints[0].starts_with(&format!("write --endpoint https://{shown}, ")), "{error}");
        }
        for text in [None, Some("http://127.0.0.1:9"), Some("HTTPS://store.example.org")] {
            assert!(check_endpoint(text).is_ok());
        }
    }
}
