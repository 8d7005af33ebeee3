//! A mirror in a bucket: which store has it, and the flags for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::{absolute, directory};
use fullbore_mirror::StateStore;
use fullbore_s3::Addressing;
use fullbore_s3::bucket::{self, BucketSettings};
use fullbore_s3::credentials::Aws;

use super::{Environment, store};
use crate::cli::{MirrorArgs, StoreArgs};

/// Time without progress after which a connection to the store of a mirror is given up; that of `put`.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// The bucket of a mirror, and how it is reached.
pub(super) fn bucket_of(
    to: &Path,
    store: &StoreArgs,
    cacert: Option<&Path>,
    environment: &Environment,
) -> Result<BucketSettings, CommandError> {
    let lookup = |name: &str| std::env::var(name).ok();
    let aws = Aws::find(&lookup, store.profile.as_deref());
    Ok(BucketSettings {
        location: bucket::location(to.as_os_str())?,
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
    match bucket::is_address(wish.as_os_str()) {
        true => Ok(StateStore::Bucket(bucket(wish)?)),
        false => Ok(StateStore::Directory(absolute(wish)?)),
    }
}

/// The first flag of a `mirror` on the command line that is about buckets. Those of a settings file may be for others.
pub(super) fn of_buckets(arguments: &MirrorArgs) -> Option<&'static str> {
    let given = [
        ("--aliases", arguments.aliases.is_some()),
        ("--state", arguments.state.is_some()),
        ("--cache-control", arguments.cache_control.is_some()),
        ("--lock", arguments.lock.is_some()),
        ("--scratch", arguments.scratch.is_some()),
        ("--cache", arguments.cache.is_some()),
        ("--snapshot-full", arguments.snapshot_full),
        ("--endpoint", arguments.store.endpoint.is_some()),
        ("--region", arguments.store.region.is_some()),
        ("--profile", arguments.store.profile.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
}

/// The refusal of a flag where the mirror is a directory.
pub(super) fn for_buckets_only(flag: &str) -> CommandError {
    CommandError::usage(format_args!("{flag} is for mirrors in a bucket, not for directories"))
}
