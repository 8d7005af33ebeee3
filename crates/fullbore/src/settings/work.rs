//! What `work` is to do: a queue's tasks, or a shard of a pinned plan.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use fullbore_engine::run::error::CommandError;
use fullbore_mirror::mirror::fleet::work::{Allowed, WorkSettings};
use fullbore_mirror::mirror::fleet::{NatsSettings, Role, Scope, StorePlace, endpoint_of};
use fullbore_mirror::mirror::work::shard::ShardSettings;
use fullbore_mirror::mirror::work::{RunId, Shard};
use fullbore_s3::bucket;
use fullbore_wire::url::shown;

use super::bucket::{bucket_of, scratch};
use super::queue::{Login, is_queue, queue};
use super::resolve::{network, output};
use super::{Environment, OutputSettings};
use crate::cli::WorkArgs;

/// Where a worker gets its work.
#[derive(Debug)]
pub enum Work {
    /// From a pinned plan.
    Shard(Box<ShardSettings>),
    /// From a queue.
    Queue(Box<WorkSettings>),
    /// It only looks at a queue.
    Status(Box<NatsSettings>),
}

impl Work {
    /// The mirror, for a report that does not know better.
    pub fn place(&self) -> PathBuf {
        match self {
            Work::Shard(settings) => PathBuf::from(settings.mirror()),
            Work::Queue(settings) => PathBuf::from(&settings.queue.url),
            Work::Status(settings) => PathBuf::from(&settings.url),
        }
    }
}

/// Settings of `work`.
pub fn work(arguments: &WorkArgs, environment: &Environment) -> Result<(Work, OutputSettings), CommandError> {
    let output = output(&arguments.output, false);
    if bucket::is_address(&arguments.place) {
        if let Some(flag) = of_queues(arguments) {
            return Err(CommandError::usage(format_args!("{flag} is for workers of a queue, not of a pinned plan"))
                .hint("name the queue: `fullbore work tls://HOST:4222 …`"));
        }
        return Ok((Work::Shard(Box::new(shard(arguments, environment)?)), output));
    }
    if is_queue(&arguments.place) {
        let work = worker(arguments, environment)?;
        return Ok((work, OutputSettings { stdout_has_data: arguments.status, ..output }));
    }
    let place = shown(&arguments.place.to_string_lossy());
    Err(CommandError::usage(format_args!("{place:?} is no address of a queue, nor of a mirror in a bucket"))
        .hint("write a queue as tls://HOST:4222, and a mirror as its --to has it: s3://BUCKET/PREFIX"))
}

/// The first flag that is about queues.
fn of_queues(arguments: &WorkArgs) -> Option<&'static str> {
    let given = [
        ("--only", !arguments.only.is_empty()),
        ("--root", !arguments.root.is_empty()),
        ("--once", arguments.once),
        ("--status", arguments.status),
        ("--queue-creds", arguments.login.queue_creds.is_some()),
        ("--queue-nkey", arguments.login.queue_nkey.is_some()),
        ("--queue-cert", arguments.login.queue_cert.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
}

/// A worker of a queue.
fn worker(arguments: &WorkArgs, environment: &Environment) -> Result<Work, CommandError> {
    for (flag, given) in [("--run", arguments.run.is_some()), ("--shard", arguments.shard.is_some())] {
        if given {
            return Err(CommandError::usage(format_args!("{flag} is for workers of a pinned plan, not of a queue"))
                .hint("name the mirror: `fullbore work s3://BUCKET/PREFIX --run RUN --shard INDEX/COUNT`"));
        }
    }
    let cacert = arguments.cacert.as_deref();
    let login = Login {
        creds: arguments.login.queue_creds.as_deref(),
        nkey: arguments.login.queue_nkey.as_deref(),
        certificate: (arguments.login.queue_cert.as_deref(), arguments.login.queue_key.as_deref()),
        is_insecure: arguments.login.queue_insecure,
        cacert,
    };
    let url = arguments.place.to_string_lossy();
    let settings = queue(&url, Role::Worker, login, environment)?;
    if arguments.status {
        return Ok(Work::Status(Box::new(settings)));
    }
    if arguments.only.is_empty() {
        return Err(CommandError::usage("no place is named where this worker may store")
            .hint("pass --only with the bucket and prefix of a mirror: --only s3://BUCKET/PREFIX"));
    }
    let only = arguments.only.iter().map(|place| {
        let bucket = bucket_of(Path::new(place), &arguments.store, cacert, environment)?;
        let scope = Scope {
            place: StorePlace::parse(&place.to_string_lossy())
                .map_err(|error| CommandError::usage(format_args!("--only {error}")))?,
            endpoint: endpoint_of(&bucket)?,
        };
        Ok(Allowed { scope, bucket })
    });
    Ok(Work::Queue(Box::new(WorkSettings {
        queue: settings,
        only: only.collect::<Result<_, CommandError>>()?,
        once: arguments.once,
        scratch: scratch(arguments.scratch.as_deref(), environment)?,
        network: network(&arguments.network, cacert, environment)?,
        connections_max: arguments.network.connections.map(usize::from),
        roots: arguments.root.iter().map(|pair| root(pair)).collect::<Result<_, _>>()?,
    })))
}

/// A directory of planners, and where this machine has it.
fn root(pair: &OsStr) -> Result<(PathBuf, PathBuf), CommandError> {
    let bytes = pair.as_encoded_bytes();
    let both = bytes.iter().position(|byte| *byte == b'=').map(|at| (&bytes[..at], &bytes[at + 1..]));
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    both.map(|(from, to)| (path(from), path(to)))
        .filter(|(from, to)| from.is_absolute() && to.is_absolute())
        .ok_or_else(|| {
            CommandError::usage(format_args!("--root {}: two absolute paths are needed", pair.display()))
                .hint("write it as --root /share=/mnt/share: the planner's directory, and this machine's")
        })
}

fn shard(arguments: &WorkArgs, environment: &Environment) -> Result<ShardSettings, CommandError> {
    let Some(run) = &arguments.run else {
        return Err(CommandError::usage("no run is named")
            .hint("pass --run with the name that `fullbore mirror --to s3://BUCKET/PREFIX --pin` printed"));
    };
    let Some(shard) = &arguments.shard else {
        return Err(CommandError::usage("no shard is named")
            .hint("pass --shard INDEX/COUNT, from 0/COUNT on; 0/1 is the whole run"));
    };
    let shard: Shard = shard.parse().map_err(|error| {
        CommandError::usage(format_args!("--shard {error}"))
            .hint("number 16 shards from 0/16 to 15/16; Slurm counts so with --array=0-15")
    })?;
    let cacert = arguments.cacert.as_deref();
    let bucket = |address: &Path| bucket_of(address, &arguments.store, cacert, environment);
    Ok(ShardSettings {
        bucket: bucket(Path::new(&arguments.place))?,
        state: arguments.state.as_deref().map(bucket).transpose()?,
        scratch: scratch(arguments.scratch.as_deref(), environment)?,
        run: run_id("--run", run)?,
        shard,
        connections_max: arguments.network.connections.map(usize::from),
        network: network(&arguments.network, cacert, environment)?,
    })
}

/// The name of a run.
pub(super) fn run_id(flag: &str, text: &str) -> Result<RunId, CommandError> {
    RunId::parse(text).map_err(|error| {
        CommandError::usage(format_args!("{flag}: {error}"))
            .hint("pass the name that `fullbore mirror --to s3://BUCKET/PREFIX --pin` printed")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command};

    fn resolve(arguments: &[&str]) -> Result<Work, CommandError> {
        let arguments = ["fullbore", "work"].iter().chain(arguments);
        let Command::Work(arguments) = cli::parse(arguments).unwrap().command else { panic!("not work") };
        work(&arguments, &Environment::default()).map(|(work, _)| work)
    }

    #[test]
    fn a_shard_is_named_as_batch_systems_count() {
        let Work::Shard(settings) =
            resolve(&["s3://bucket/debian/", "--run", "9c1f", "--shard", "3/16", "--connections", "2"]).unwrap()
        else {
            panic!("no shard")
        };
        assert_eq!((settings.shard.index(), settings.shard.count()), (3, 16));
        assert_eq!((settings.mirror().as_str(), settings.connections_max), ("s3://bucket/debian", Some(2)));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_expected() {
        for (arguments, message, hint) in [
            (vec!["s3://bucket/x", "--shard", "0/1"], "no run", "--pin"),
            (vec!["s3://bucket/x", "--run", "9c1f"], "no shard", "0/1"),
            (vec!["s3://bucket/x", "--run", "9c1f", "--shard", "16/16"], "an index from 0 to COUNT - 1", "0-15"),
            (vec!["s3://bucket/x", "--run", "9c1f", "--shard", "3"], "INDEX/COUNT", "0-15"),
            (vec!["s3://bucket/x", "--run", "9c1f", "--shard", "-1/3"], "INDEX/COUNT", "0-15"),
            (vec!["s3://bucket/x", "--run", "../state", "--shard", "0/1"], "a-z and 0-9", "--pin"),
            (vec!["s3://bucket/x", "--run", "", "--shard", "0/1"], "1 to 32", "--pin"),
            (vec!["me:secret@nats.example:4222"], "\"nats.example:4222\" is no address", "tls://"),
            (vec!["/srv/mirror", "--run", "9c1f", "--shard", "0/1"], "nor of a mirror in a bucket", "s3://"),
        ] {
            let error = resolve(&arguments).unwrap_err();
            assert!(error.message.contains(message), "{arguments:?}: {error}");
            assert!(error.hints.iter().any(|given| given.contains(hint)), "{arguments:?}: {:?}", error.hints);
            assert_eq!(error.exit_code(), 1);
        }
    }
}
