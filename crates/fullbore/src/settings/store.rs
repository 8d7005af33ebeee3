//! `put`, `get`, `ls` and `check`: which grid or bucket, and how, from flags and environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fullbore_engine::filter::{Only, Selection};
use fullbore_engine::run::CommandError;
use fullbore_engine::run::sink::is_stdout;
use fullbore_engine::tree::{Choice, MirrorNames};
use fullbore_lafs::grid::GridSettings;
use fullbore_lafs::ls::ListSettings;
use fullbore_lafs::{check as grid_check, get as grid_get, put as grid_put};
use fullbore_mirror::SNAPSHOT_DIRECTORY;
use fullbore_mirror::mirror::fleet::{PutQueue, Role, worker_name};
use fullbore_mirror::{CheckSettings, OWN_DIRECTORY};
use fullbore_s3::bucket::{self, BucketSettings};
use fullbore_s3::credentials::Aws;
use fullbore_s3::get::tree::{Names, TreeSettings};
use fullbore_s3::put::fleet::{FleetPut, SPLIT_BYTES_MIN};
use fullbore_s3::{Addressing, Location, SCHEME, get as bucket_get, ls as bucket_ls, put as bucket_put};

use super::bucket::check_endpoint;
use super::queue::{Login, queue};
use super::values::Percent;
use super::{Environment, OutputSettings};
use super::{addresses, copy, resolve};
use crate::cli::{AddressingChoice, CheckArgs, GetArgs, GridArgs, LsArgs, PutArgs, S3Args, SelectionArgs};

/// Share of the objects that `--delete` may take, unless told otherwise.
const MAX_DELETE: f64 = 0.4;

/// Where `put` puts.
#[derive(Debug)]
pub enum Put {
    /// Into a bucket.
    Bucket(Box<bucket_put::PutSettings>, Option<Box<FleetPut<PutQueue>>>),
    /// Into a grid.
    Grid(Box<grid_put::PutSettings>),
}

/// Where `get` gets from.
#[derive(Debug)]
pub enum Get {
    /// Out of a bucket, one object.
    Bucket(Box<bucket_get::GetSettings>),
    /// Out of a bucket, several.
    Tree(Box<bucket_get::tree::TreeSettings>),
    /// Out of a grid.
    Grid(Box<grid_get::GetSettings>),
}

impl Put {
    /// Where to, for a report that does not know better.
    pub fn place(&self) -> PathBuf {
        match self {
            Put::Bucket(settings, _) => place_of(&settings.bucket.location),
            Put::Grid(settings) => PathBuf::from(settings.grid.name()),
        }
    }
}

impl Get {
    /// Where from.
    pub fn place(&self) -> PathBuf {
        match self {
            Get::Bucket(settings) => place_of(&settings.bucket.location),
            Get::Tree(settings) => place_of(&settings.bucket.location),
            Get::Grid(settings) => PathBuf::from(settings.grid.name()),
        }
    }
}

fn place_of(location: &Location) -> PathBuf {
    PathBuf::from(format!("{SCHEME}{}", location.bucket))
}

/// Settings of `put`.
pub fn put(arguments: &PutArgs, environment: &Environment) -> Result<(Put, OutputSettings), CommandError> {
    let output = OutputSettings { stdout_has_data: true, ..resolve::output(&arguments.shown, false) };
    if let Some(address) = arguments.paths.last().filter(|path| bucket::is_address(path.as_os_str())) {
        let settings = put_into_bucket(arguments, address.as_os_str(), &output, environment)?;
        let fleet = put_fleet(arguments, environment)?.map(Box::new);
        return Ok((Put::Bucket(Box::new(settings), fleet), output));
    }
    if let Some(error) = arguments.paths.iter().find_map(|path| addresses::not_of_a_store(path.as_os_str())) {
        return Err(error);
    }
    if arguments.paths.iter().any(|path| bucket::is_address(path.as_os_str())) {
        return Err(CommandError::usage("the s3:// address is not the last argument")
            .hint("put sends to the last argument; `fullbore get -o FILE s3://BUCKET/KEY` fetches an object"));
    }
    if arguments.s3.any() || arguments.s3_put.any() {
        return Err(CommandError::usage("flags for S3 stores are given, but no s3:// address")
            .hint("name the bucket last, as in `fullbore put DIR s3://BUCKET/PREFIX`"));
    }
    if !arguments.grid.is_named() && !arguments.dry_run {
        return Err(no_store());
    }
    if arguments.queue.queue.is_some() {
        return Err(CommandError::usage("--queue is for S3 stores, not for Tahoe-LAFS grids"));
    }
    let key = match (&arguments.convergence, &arguments.convergence_file) {
        _ if arguments.random_key => grid_put::KeySettings::Random,
        (Some(secret), _) => grid_put::KeySettings::Secret(secret.clone()),
        (None, Some(file)) => grid_put::KeySettings::File(file.clone()),
        (None, None) => grid_put::KeySettings::OfNode,
    };
    let settings = grid_put::PutSettings {
        grid: grid(&arguments.grid),
        paths: arguments.paths.clone(),
        choice: choice(arguments)?,
        dry_run: arguments.dry_run,
        encoding: arguments.encoding.clone(),
        segment_bytes: arguments.segment_size,
        key,
        stdin_bytes: arguments.size,
        list: arguments.caps.clone(),
        journals: journals(arguments, environment),
        spool: spool(environment),
        limit_rate_bytes_per_s: arguments.limit_rate.map(|rate| rate.0),
    };
    Ok((Put::Grid(Box::new(settings)), output))
}

/// The queue of a `put`, if it has one.
fn put_fleet(arguments: &PutArgs, environment: &Environment) -> Result<Option<FleetPut<PutQueue>>, CommandError> {
    let flags = &arguments.queue;
    let Some(url) = &flags.queue else { return Ok(None) };
    if arguments.s3_put.overwrite {
        return Err(CommandError::usage("--overwrite and --queue: what the bucket has says what is done")
            .hint("leave --overwrite out: files that differ are uploaded in any case"));
    }
    let login = Login {
        creds: flags.login.queue_creds.as_deref(),
        nkey: flags.login.queue_nkey.as_deref(),
        certificate: (flags.login.queue_cert.as_deref(), flags.login.queue_key.as_deref()),
        is_insecure: flags.login.queue_insecure,
        cacert: arguments.s3.cacert.as_deref(),
    };
    let worker = worker_name();
    Ok(Some(FleetPut {
        queue: PutQueue::new(queue(url, Role::Planner, login, environment)?),
        machine: worker.to_string(),
        worker,
        is_worker: !flags.no_local,
        requires_workers: flags.require_workers,
        split_bytes_min: SPLIT_BYTES_MIN,
    }))
}

fn put_into_bucket(
    arguments: &PutArgs,
    address: &OsStr,
    output: &OutputSettings,
    environment: &Environment,
) -> Result<bucket_put::PutSettings, CommandError> {
    refuse_flags_of_grids(arguments)?;
    let location = bucket::location(address)?;
    let sources = &arguments.paths[..arguments.paths.len() - 1];
    if sources.is_empty() {
        return Err(CommandError::usage("no FILE or DIR to put")
            .hint("name it before the address, as in `fullbore put DIR s3://BUCKET/PREFIX`"));
    }
    if let Some(error) = sources.iter().find_map(|source| addresses::not_a_local_source(source.as_os_str())) {
        return Err(error);
    }
    let given = &arguments.s3_put;
    let delete = given.delete.then(|| bucket_put::DeleteSettings {
        share_max: given.max_delete.map_or(MAX_DELETE, Percent::fraction),
        force: given.force_delete,
    });
    Ok(bucket_put::PutSettings {
        bucket: bucket_settings(location, &arguments.s3, &arguments.grid, environment)?,
        sources: sources.to_vec(),
        choice: choice(arguments)?,
        fields: bucket_put::FieldSettings {
            content_type: given.content_type.clone(),
            cache_control: given.cache_control.clone(),
            metadata: given.metadata.clone(),
            storage_class: given.storage_class.clone(),
            acl: given.acl.clone(),
            sse: given.sse.clone(),
        },
        last: given.last.clone(),
        overwrite: given.overwrite,
        compare_all: given.checksum,
        delete,
        dry_run: arguments.dry_run,
        list: arguments.caps.clone(),
        journals: journals(arguments, environment),
        spool: spool(environment),
        limit_rate_bytes_per_s: arguments.limit_rate.map(|rate| rate.0),
        watch_stages: output.report.is_some() || output.trace.is_some(),
    })
}

/// Settings of `get`.
pub fn get(arguments: &GetArgs, environment: &Environment) -> Result<(Get, OutputSettings), CommandError> {
    if let Some(error) =
        arguments.output.as_deref().and_then(|output| addresses::not_a_local_output(output.as_os_str()))
    {
        return Err(error);
    }
    let file = arguments.output.clone().filter(|output| !is_stdout(output.as_os_str()));
    let is_on_stdout = file.is_none();
    if arguments.shown.json && is_on_stdout {
        return Err(CommandError::usage("--json and the content cannot both go to stdout").hint("add -o FILE"));
    }
    let output = resolve::output(&arguments.shown, false);
    let output = OutputSettings { stdout_has_data: true, stdout_is_taken: is_on_stdout, ..output };
    let from_stdin = arguments.caps.iter().any(|cap| cap == "-");
    let first = match arguments.caps.iter().find(|cap| bucket::is_address(cap)) {
        None if from_stdin && arguments.caps.len() == 1 && !arguments.grid.is_named() => address_on_stdin(),
        named => named.map(|named| Ok(named.clone())),
    };
    if let Some(address) = first {
        if let Some(other) = arguments.caps.iter().find(|cap| *cap != "-" && !bucket::is_address(cap)) {
            return Err(CommandError::usage(format_args!("{}: not an s3:// address", other.to_string_lossy()))
                .hint("name the file to write with -o FILE; caps of a grid need a run of their own"));
        }
        let location = bucket::location(&address?)?;
        let mut bucket = bucket_settings(location, &arguments.s3, &arguments.grid, environment)?;
        // Then one is required, whatever AWS_RESPONSE_CHECKSUM_VALIDATION says.
        bucket.aws.asks_for_checksums |= arguments.s3_get.require_checksum;
        return Ok((from_bucket(arguments, bucket, file)?, output));
    }
    if let Some(error) = arguments.caps.iter().find_map(|cap| addresses::not_of_a_store(cap)) {
        return Err(error);
    }
    if arguments.s3.any() || arguments.s3_get.require_checksum {
        return Err(CommandError::usage("flags for S3 stores are given, but no s3:// address")
            .hint("name the object, as in `fullbore get -o FILE s3://BUCKET/KEY`"));
    }
    if let Some(word) = arguments.caps.iter().find(|word| !is_cap(word)) {
        return Err(CommandError::usage(format_args!(
            "{}: neither a cap nor an s3:// address",
            word.to_string_lossy()
        ))
        .hint(
            "pass an object as s3://BUCKET/KEY, or a cap, which begins with URI:, such as URI:CHK: or URI:DIR2-RO:",
        ));
    }
    let settings = grid_get::GetSettings {
        grid: grid(&arguments.grid),
        caps: arguments.caps.clone(),
        output: file,
        selection: selection(&arguments.selection, arguments.caps.iter().any(|cap| cap == "-"))?,
        private: OWN_DIRECTORY.to_owned(),
        limit_rate_bytes_per_s: arguments.limit_rate.map(|rate| rate.0),
    };
    Ok((Get::Grid(Box::new(settings)), output))
}

/// What `check` checks.
#[derive(Debug)]
pub enum Check {
    /// An archive on disk or in a bucket.
    Archive(Box<CheckSettings>),
    /// Files in a grid.
    Grid(grid_check::CheckSettings),
}

impl Check {
    /// Where it is.
    pub fn place(&self) -> PathBuf {
        match self {
            Check::Archive(settings) => settings.dir.clone(),
            Check::Grid(settings) => PathBuf::from(settings.grid.name()),
        }
    }
}

/// Settings of `check`. The kind of the argument chooses: a path, or caps.
pub fn check(arguments: &CheckArgs, environment: &Environment) -> Result<(Check, OutputSettings), CommandError> {
    let of_grids = [
        ("--node", arguments.grid.node.is_some()),
        ("--servers", arguments.grid.servers.is_some()),
        ("--caps", arguments.caps.is_some()),
        ("--renew", arguments.renew),
        ("--verify", arguments.verify),
    ];
    let is_grid = arguments.caps.is_some() || arguments.what.iter().any(|word| is_cap(word));
    if !is_grid {
        if let Some((flag, _)) = of_grids.iter().find(|(_, given)| *given) {
            return Err(CommandError::usage(format_args!(
                "{flag} is for files in a Tahoe-LAFS grid, but no cap is given"
            ))
            .hint("name caps, which begin with URI:, or a list of them with --caps FILE"));
        }
        return super::check::check(arguments, environment)
            .map(|(settings, output)| (Check::Archive(Box::new(settings)), output));
    }
    if let Some(word) = arguments.what.iter().find(|word| !is_cap(word)) {
        return Err(not_a_cap(word));
    }
    let (network, trust) = (&arguments.network, &arguments.trust);
    let of_archives = [
        ("--read-data-subset", arguments.read_data_subset.is_some()),
        ("--from", !arguments.from.is_empty()),
        ("--keyring", !trust.keyring.is_empty()),
        ("--cacert", trust.cacert.is_some()),
        ("--limit-rate", network.limit_rate.is_some()),
        ("--connections", network.connections.is_some()),
        ("--http1", network.http1),
        ("--no-hedge", network.no_hedge),
        ("--auth", network.auth.is_some()),
    ];
    let of_archives = of_archives.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
    if let Some(flag) = of_archives.or_else(|| super::check::of_stores(arguments)) {
        return Err(CommandError::usage(format_args!("{flag} is for archives, not for files in a grid")));
    }
    if !arguments.grid.is_named() {
        return Err(no_grid());
    }
    let settings = grid_check::CheckSettings {
        grid: grid(&arguments.grid),
        caps: arguments.what.clone(),
        list: arguments.caps.clone(),
        verify: arguments.verify,
        renew: arguments.renew,
        repair: arguments.repair,
    };
    Ok((Check::Grid(settings), resolve::output(&arguments.output, false)))
}

/// What `ls` lists.
#[derive(Debug)]
pub enum Ls {
    /// Objects of a bucket.
    Bucket(Box<bucket_ls::ListSettings>),
    /// A directory of a grid.
    Grid(ListSettings),
}

impl Ls {
    /// Where it is.
    pub fn place(&self) -> PathBuf {
        match self {
            Ls::Bucket(settings) => place_of(&settings.bucket.location),
            Ls::Grid(settings) => PathBuf::from(settings.grid.name()),
        }
    }
}

/// Settings of `ls`. The kind of the argument chooses: an address, or a cap.
pub fn ls(arguments: &LsArgs, environment: &Environment) -> Result<(Ls, OutputSettings), CommandError> {
    let output = OutputSettings { stdout_has_data: true, ..resolve::output(&arguments.output, false) };
    if bucket::is_address(&arguments.what) {
        let location = bucket::location(&arguments.what)?;
        let bucket = bucket_settings(location, &arguments.s3, &arguments.grid, environment)?;
        let settings = bucket_ls::ListSettings { bucket, recursive: arguments.recursive };
        return Ok((Ls::Bucket(Box::new(settings)), output));
    }
    if let Some(error) = addresses::not_of_a_store(&arguments.what) {
        return Err(error);
    }
    if !is_cap(&arguments.what) {
        return Err(CommandError::usage(format_args!(
            "{}: neither a cap nor an s3:// address",
            arguments.what.to_string_lossy()
        ))
        .hint("pass a prefix as s3://BUCKET/PREFIX/, or a cap, which begins with URI:, such as URI:DIR2-RO:"));
    }
    if arguments.s3.any() {
        return Err(CommandError::usage("flags for S3 stores are given, but no s3:// address"));
    }
    if !arguments.grid.is_named() {
        return Err(no_grid());
    }
    let settings =
        ListSettings { grid: grid(&arguments.grid), cap: arguments.what.clone(), recursive: arguments.recursive };
    Ok((Ls::Grid(settings), output))
}

fn no_grid() -> CommandError {
    CommandError::usage("no Tahoe-LAFS grid is named")
        .hint("give --node ~/.tahoe for the grid of a Tahoe-LAFS node, or --servers FILE")
}

fn not_a_cap(word: &OsStr) -> CommandError {
    CommandError::usage(format_args!("{}: not a cap", word.to_string_lossy()))
        .hint("pass a cap, which begins with URI:, such as URI:CHK: or URI:DIR2-RO:")
}

/// The first address on stdin, which stays there to be read; `None`: stdin has caps.
fn address_on_stdin() -> Option<Result<OsString, CommandError>> {
    let mut stdin = std::io::stdin().lock();
    let text = match std::io::BufRead::fill_buf(&mut stdin) {
        Ok(text) => text,
        Err(error) => return Some(Err(CommandError::usage(format_args!("stdin: {error}")))),
    };
    let line = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).find(|line| !line.is_empty())?;
    let line = OsString::from_vec(line.to_vec());
    bucket::is_address(&line).then_some(Ok(line))
}

/// Which objects of a bucket are got, and how.
fn from_bucket(arguments: &GetArgs, bucket: BucketSettings, file: Option<PathBuf>) -> Result<Get, CommandError> {
    let mut names = Vec::new();
    for argument in &arguments.caps {
        if argument == "-" {
            names.push(Names::Stdin);
            continue;
        }
        let location = bucket::location(argument)?;
        if location.bucket != bucket.location.bucket {
            return Err(CommandError::usage(
                "objects of several buckets are named, and get reads one bucket at a time",
            )
            .hint("run get once for each bucket"));
        }
        names.push(match Names::of(&location) {
            // As `aws s3 cp --recursive` has it.
            Names::Object(key) if arguments.selection.recursive && arguments.selection.files_from.is_none() => {
                Names::Below(format!("{key}/"))
            }
            names => names,
        });
    }
    let require_checksum = arguments.s3_get.require_checksum;
    let limit_rate_bytes_per_s = arguments.limit_rate.map(|rate| rate.0);
    if let [Names::Object(key)] = &names[..] {
        if arguments.selection.any() {
            return Err(CommandError::usage("--include, --exclude and --files-from need a prefix")
                .hint(format_args!("end it with a slash, as in s3://{}/{key}/", bucket.location.bucket)));
        }
        let settings = bucket_get::GetSettings { bucket, output: file, require_checksum, limit_rate_bytes_per_s };
        return Ok(Get::Bucket(Box::new(settings)));
    }
    let Some(output) = file else {
        return Err(CommandError::usage("several objects cannot be written to stdout")
            .hint("name a directory for them with -o DIR"));
    };
    Ok(Get::Tree(Box::new(TreeSettings {
        bucket,
        names,
        selection: selection(&arguments.selection, arguments.caps.iter().any(|cap| cap == "-"))?,
        output,
        private: OWN_DIRECTORY.to_owned(),
        require_checksum,
        limit_rate_bytes_per_s,
    })))
}

fn refuse_flags_of_grids(arguments: &PutArgs) -> Result<(), CommandError> {
    let given = [
        ("--node", arguments.grid.node.is_some()),
        ("--servers", arguments.grid.servers.is_some()),
        ("--encoding", arguments.encoding.is_some()),
        ("--convergence", arguments.convergence.is_some()),
        ("--convergence-file", arguments.convergence_file.is_some()),
        ("--size", arguments.size.is_some()),
        ("--segment-size", arguments.segment_size.is_some()),
        ("--random-key", arguments.random_key),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(CommandError::usage(format_args!("{flag} is for Tahoe-LAFS grids, not for S3 stores"))),
        None => Ok(()),
    }
}

/// Neither a grid nor a bucket is named.
fn no_store() -> CommandError {
    CommandError::usage("no S3 store or Tahoe-LAFS grid given")
        .hint("end with s3://BUCKET/PREFIX for an S3 store")
        .hint("give --node ~/.tahoe for the grid of a Tahoe-LAFS node, or --servers FILE")
}

/// Whether a word may be a cap, or names stdin; the grid's side reads it closely.
fn is_cap(word: &OsStr) -> bool {
    // Newer clients write `ro.` or `imm.` before some.
    let starts = |start: &str| word.as_encoded_bytes().starts_with(start.as_bytes());
    word == "-" || ["URI:", "ro.URI:", "imm.URI:"].into_iter().any(starts)
}

fn grid(arguments: &GridArgs) -> GridSettings {
    let patience = Duration::from_secs(arguments.timeout);
    GridSettings { node: arguments.node.clone(), servers: arguments.servers.clone(), patience }
}

/// Which files take part. `reads_stdin`: so does the command itself.
fn selection(arguments: &SelectionArgs, reads_stdin: bool) -> Result<Selection, CommandError> {
    let lists = arguments.filters.rules.iter().filter(|rule| rule.from).map(|rule| rule.value.as_os_str());
    let lists = lists.chain(arguments.files_from.as_ref().map(|path| path.as_os_str()));
    if lists.filter(|list| list.as_encoded_bytes() == b"-").count() + usize::from(reads_stdin) > 1 {
        return Err(CommandError::usage("two lists or files are to be read from stdin, which can be read once")
            .hint("write one of them into a file"));
    }
    let filters = copy::filters(&arguments.filters, arguments.from0)?;
    let paths = arguments.files_from.as_deref().map(|path| copy::paths_of(path, arguments.from0)).transpose()?;
    Ok(Selection { filters, only: paths.map(|paths| Only::new(paths, arguments.recursive)) })
}

fn choice(arguments: &PutArgs) -> Result<Choice, CommandError> {
    let mirrors = MirrorNames { state: OWN_DIRECTORY.to_owned(), snapshots: SNAPSHOT_DIRECTORY.to_owned() };
    let reads_stdin = arguments.paths.iter().any(|path| path.as_os_str() == "-");
    let selection = selection(&arguments.selection, reads_stdin)?;
    Ok(Choice { mirrors, copy_links: arguments.copy_links, with_snapshots: arguments.with_snapshots, selection })
}

/// The bucket as flags, environment and the files of the AWS tools have it.
fn bucket_settings(
    location: Location,
    arguments: &S3Args,
    common: &GridArgs,
    environment: &Environment,
) -> Result<BucketSettings, CommandError> {
    check_endpoint(arguments.store.endpoint.as_deref())?;
    let lookup = |name: &str| std::env::var(name).ok();
    let aws = Aws::find(&lookup, arguments.store.profile.as_deref());
    Ok(BucketSettings {
        location,
        endpoint: arguments.store.endpoint.clone(),
        region: arguments.store.region.clone(),
        addressing: match arguments.addressing {
            AddressingChoice::Auto => Addressing::Auto,
            AddressingChoice::Path => Addressing::Path,
            AddressingChoice::Virtual => Addressing::Virtual,
        },
        signs: !arguments.no_sign_request,
        authorities: arguments.cacert.clone(),
        connections: arguments.connections.map_or(bucket::CONNECTIONS, usize::from),
        patience: Duration::from_secs(common.timeout),
        proxy: environment.proxy.clone(),
        aws: aws.map_err(|error| bucket::explain_credentials(&error))?,
    })
}

/// Where journals are kept.
fn journals(arguments: &PutArgs, environment: &Environment) -> Option<PathBuf> {
    let usual = || environment.state_directory.as_ref().map(|state| state.join("fullbore/put"));
    arguments.state_dir.clone().or_else(usual)
}

/// Where pipes are kept. Not /tmp, unless TMPDIR says so: it may be in memory.
pub(super) fn spool(environment: &Environment) -> PathBuf {
    let usual = Path::new("/var/tmp");
    match &environment.tmpdir {
        Some(path) => path.into(),
        None if usual.is_dir() => usual.to_owned(),
        None => PathBuf::from("/tmp"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_kept_on_a_disk_or_where_a_person_says() {
        let chosen =
            |tmpdir: Option<&str>| spool(&Environment { tmpdir: tmpdir.map(str::to_owned), ..Environment::default() });
        assert!(chosen(None) == Path::new("/var/tmp") || !Path::new("/var/tmp").is_dir());
        assert_eq!(chosen(Some("/elsewhere")), Path::new("/elsewhere"));
    }
}
