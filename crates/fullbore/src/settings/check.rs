//! What `check` of an archive is to do.

use std::path::{Path, PathBuf};

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::{absolute, directory};
use fullbore_mirror::MirrorStore;
use fullbore_s3::bucket;

use super::bucket::{bucket_of, for_buckets_only, no_bucket, no_bucket_to_read, scratch, state_of};
use super::keys::signed_by;
use super::origins::{self, Store};
use super::resolve::{network, output};
use super::{CheckSettings, Environment, OutputSettings, addresses};
use crate::cli::{CheckArgs, StoreLock};

/// The first flag of a `check` that is about a mirror in a bucket.
fn of_buckets(arguments: &CheckArgs) -> Option<&'static str> {
    let given = [
        ("--checksums", arguments.checksums),
        ("--lock", arguments.lock.is_some()),
        ("--state", arguments.state.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
}

/// The first flag of a `check` that is about buckets.
pub(super) fn of_stores(arguments: &CheckArgs) -> Option<&'static str> {
    let of_stores = super::bucket::of_stores(&arguments.store);
    let of_stores = of_stores.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag);
    of_buckets(arguments).or(of_stores).or(arguments.no_sign_request.then_some("--no-sign-request"))
}

/// What `check` is to do.
pub(super) fn check(
    arguments: &CheckArgs,
    environment: &Environment,
) -> Result<(CheckSettings, OutputSettings), CommandError> {
    let hint = "use `fullbore check DIR`, with --repair --from URL to fetch damaged files anew";
    let [named] = &arguments.what[..] else {
        return Err(CommandError::usage("several directories, and check reads one archive at a time")
            .hint("run check once for each"));
    };
    let store = if bucket::is_address(named) {
        let cacert = arguments.trust.cacert.as_deref();
        let bucket = |address: &Path| bucket_of(address, &arguments.store, cacert, environment);
        Some(MirrorStore {
            bucket: bucket(Path::new(named))?,
            state: arguments.state.as_deref().map(|state| state_of(state, &bucket)).transpose()?,
            scratch: scratch(None, environment)?,
            cache: None,
            aliases: true,
            cache_control: None,
            locks: arguments.lock != Some(StoreLock::None),
            verifies_objects: false,
        })
    } else if let Some(error) = addresses::not_of_a_mirror(named, &hint) {
        return Err(error);
    } else {
        None
    };
    let dir = if store.is_some() { PathBuf::from(named) } else { absolute(Path::new(named))? };
    let reads_buckets = arguments.from.iter().any(|from| origins::is_bucket(from));
    if store.is_none() {
        directory(&dir)?;
        if let Some(flag) = of_buckets(arguments) {
            return Err(for_buckets_only(flag));
        }
        let of_stores = super::bucket::of_stores(&arguments.store);
        if let Some((flag, _)) = of_stores.iter().find(|(_, given)| *given && !reads_buckets) {
            return Err(no_bucket(flag));
        }
    }
    if arguments.no_sign_request && !reads_buckets {
        return Err(no_bucket_to_read());
    }
    if !arguments.repair && !arguments.from.is_empty() {
        return Err(CommandError::usage("--from says where to repair from").hint("add --repair"));
    }
    let of_flags = Store {
        endpoint: arguments.store.endpoint.clone(),
        region: arguments.store.region.clone(),
        profile: arguments.store.profile.clone(),
        no_sign_request: arguments.no_sign_request,
    };
    let origins: Vec<String> =
        arguments.from.iter().map(|from| origins::origin(from, &of_flags)).collect::<Result<_, _>>()?;
    let settings = CheckSettings {
        dir,
        store,
        checksums: arguments.checksums,
        // With checksums, content is read only on request.
        read_share: match arguments.read_data_subset {
            Some(share) => share.fraction(),
            None if arguments.checksums => 0.0,
            None => 1.0,
        },
        repair: arguments.repair,
        origins,
        signed_by: signed_by(&arguments.trust.keyring)?,
        network: network(&arguments.network, arguments.trust.cacert.as_deref(), environment)?,
    };
    Ok((settings, output(&arguments.output, false)))
}
