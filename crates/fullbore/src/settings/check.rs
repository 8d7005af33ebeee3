//! What `check` of an archive is to do.

use std::path::{Path, PathBuf};

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::{absolute, directory};
use fullbore_mirror::MirrorStore;
use fullbore_s3::bucket;
use fullbore_wire::run::address;

use super::bucket::{bucket_of, for_buckets_only, scratch, state_of};
use super::keys::signed_by;
use super::resolve::{network, output};
use super::{CheckSettings, Environment, OutputSettings, addresses};
use crate::cli::{CheckArgs, StoreLock};

/// The first flag of a `check` that is about buckets.
pub(super) fn of_stores(arguments: &CheckArgs) -> Option<&'static str> {
    let given = [
        ("--checksums", arguments.checksums),
        ("--lock", arguments.lock.is_some()),
        ("--state", arguments.state.is_some()),
        ("--endpoint", arguments.store.endpoint.is_some()),
        ("--region", arguments.store.region.is_some()),
        ("--profile", arguments.store.profile.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
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
        })
    } else if let Some(error) = addresses::not_a_name(named, "a directory", &hint) {
        return Err(error);
    } else {
        None
    };
    let dir = if store.is_some() { PathBuf::from(named) } else { absolute(Path::new(named))? };
    if store.is_none() {
        directory(&dir)?;
        if let Some(flag) = of_stores(arguments) {
            return Err(for_buckets_only(flag));
        }
    }
    if !arguments.repair && !arguments.from.is_empty() {
        return Err(CommandError::usage("--from says where to repair from").hint("add --repair"));
    }
    let origins = arguments.from.iter().map(|from| address(from)).collect::<Result<_, _>>()?;
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
