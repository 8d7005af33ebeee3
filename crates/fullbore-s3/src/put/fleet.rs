//! `put` by many machines that have mounted the same directory.
//!
//! The planner lists the files and the bucket. Files that the bucket lacks, or has in another size, become tasks of a
//! queue. Workers read them below their own mount of the directory, and upload them (`worker`). Meanwhile the planner
//! compares the other files, and is a worker too.
//!
//! Only the bucket shows what is done. When the queue has no more tasks, it is listed, and missing files become tasks
//! of another round, at most three times. Then the planner uploads the rest itself, as it does without a queue.
//! Patterns of `--last` make turns: tasks of a turn are published when all earlier files are stored. Large files go to
//! workers in parts (`split`).

mod planner;
mod share;
mod split;
mod worker;

use std::future::Future;
use std::path::{Component, Path, PathBuf};

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::identity::Identity;
use fullbore_engine::run::CommandError;
use fullbore_fleet::message::{Item, MessageError, PutSource, Run, StorePlace};
use fullbore_fleet::names::{RunId, WorkerId};
use fullbore_fleet::queue::Queue;
use fullbore_wire::url::Url;

use super::PutSettings;
use super::plan::Plan;
use crate::journal::Open;
use crate::mtime;
use crate::objects::Condition;
use crate::parts::{Cut, PARTS_MAX};
pub(super) use share::Fleet;
pub use split::SPLIT_BYTES_MIN;
pub use worker::{Served, WorkerSettings, serve};

/// Number of hexadecimal digits in a run's name.
const RUN_DIGITS: usize = 16;

/// A queue that is not connected yet. A connection belongs to the runtime of the run.
pub trait Connect: Send + Sync {
    /// The queue after connecting.
    type Queue: Queue;

    /// Connects within some seconds.
    ///
    /// # Errors
    /// A [`CommandError`] of kind network if the queue cannot be reached.
    fn connect(&self) -> impl Future<Output = Result<Self::Queue, CommandError>> + Send;
}

/// Settings of a `put` by many machines.
#[derive(Debug)]
pub struct FleetPut<C> {
    /// The queue to connect to.
    pub queue: C,
    /// Name of this machine among the workers.
    pub worker: WorkerId,
    /// Whether the planner also reads and uploads files of tasks.
    pub is_worker: bool,
    /// Whether an unreachable queue is an error. Otherwise the planner works alone.
    pub requires_workers: bool,
    /// Name of this machine, for people.
    pub machine: String,
    /// Minimum size of a file that several machines upload in parts; [`SPLIT_BYTES_MIN`] by default.
    pub split_bytes_min: u64,
}

/// The announcement of a run, and the directory with its files.
pub(super) fn announcement(settings: &PutSettings, machine: &str) -> Result<(Run, PathBuf), CommandError> {
    let [directory] = settings.sources.as_slice() else {
        return Err(CommandError::usage("--queue needs one directory, which all machines have mounted"));
    };
    let is_directory = std::fs::metadata(directory).is_ok_and(|about| about.is_dir());
    if !is_directory {
        return Err(CommandError::usage(format_args!("{}: --queue needs a directory", directory.display())));
    }
    let real = directory.canonicalize().map_err(CommandError::usage)?;
    let root = real.to_str().ok_or_else(|| {
        CommandError::usage(format_args!("{}: the name is not UTF-8, as messages require", real.display()))
    })?;
    let bucket = &settings.bucket;
    let to = format!("s3://{}/{}", bucket.location.bucket, bucket.location.key);
    let place = StorePlace::parse(&to).map_err(CommandError::usage)?;
    let endpoint = bucket.endpoint.as_deref().or(bucket.aws.endpoint.as_deref());
    let source = PutSource {
        root: root.to_owned(),
        fields: super::fields::common(&settings.fields)?,
        content_type: settings.fields.content_type.clone(),
    };
    // A restarted planner continues the same run.
    let name = Sha256::of(format!("put\n{to}\n{}\n{root}", endpoint.unwrap_or_default()).as_bytes()).to_string();
    let run = Run {
        id: RunId::parse(&name[..RUN_DIGITS]).map_err(CommandError::usage)?,
        to: place,
        endpoint: endpoint.map(Url::parse).transpose().map_err(CommandError::usage)?,
        region: bucket.region.clone().or_else(|| bucket.aws.region.clone()),
        hosts: Vec::new(),
        budgets: fullbore_fleet::message::Budgets::new([].into()).map_err(CommandError::usage)?,
        rate_bytes_per_s: None,
        planner: machine.to_owned(),
        fullbore: fullbore_engine::VERSION.to_owned(),
        round: 1,
        put: Some(source),
    };
    // Refuse here what workers would refuse.
    match Run::parse(&run.to_bytes()) {
        Ok(_) => {}
        Err(error @ MessageError::Source { .. }) => {
            return Err(CommandError::usage(error)
                .hint("pass fewer or shorter attributes of objects, such as --metadata, or leave --queue out"));
        }
        Err(error) => return Err(CommandError::usage(error)),
    }
    Ok((run, directory.clone()))
}

/// Finds a run's directory on a worker: below the first root that has it. Returns this machine's directory of the root,
/// and the path beneath it, in which no link may be followed. A root is the directory on the planner's machine and on
/// this one.
fn place_of(root: &str, roots: &[(PathBuf, PathBuf)]) -> Option<(PathBuf, PathBuf)> {
    let root = Path::new(root);
    // The message was checked before; here the check is vital.
    if root.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    roots.iter().find_map(|(from, to)| Some((to.clone(), root.strip_prefix(from).ok()?.to_owned())))
}

/// Whether one of these roots has the directory of a run.
pub fn has_place(root: &str, roots: &[(PathBuf, PathBuf)]) -> bool {
    place_of(root, roots).is_some()
}

/// The condition under which a task's object may be replaced; see [`fullbore_fleet::message::Task::replaces`].
fn condition(replaces: Option<&str>) -> Condition {
    match replaces {
        None => Condition::None,
        Some("") => Condition::Absent,
        Some(tag) => Condition::Tag(tag.to_owned()),
    }
}

/// The user's fields as text: an upload with other fields is another upload.
fn given(settings: &PutSettings) -> Result<String, CommandError> {
    Ok(format!("{:?} {:?}", super::fields::common(&settings.fields)?, settings.fields.content_type))
}

/// Whether a run continues a multipart upload that an earlier one left: it belongs to a file of the plan that has not
/// changed.
pub(super) fn goes_on(settings: &PutSettings, plan: &Plan, open: &Open) -> bool {
    let (Some(of), Ok(given)) = (&open.of, given(settings)) else { return false };
    let Some(object) = plan.objects.iter().find(|object| object.key == open.key) else { return false };
    let file = object.found.as_ref().and_then(|found| found.open(&object.path).ok());
    let Some(about) = file.and_then(|file| file.metadata().ok()) else { return false };
    let part_bytes = Cut::at_most(about.len(), PARTS_MAX).part_bytes(0);
    *of == split::identify(&Identity::of(&about), part_bytes, &given)
}

/// Identifies the content of a file between planner and worker.
fn item(path: String, about: &std::fs::Metadata) -> Item {
    let (size, time) = (about.len(), mtime::of_file(about));
    let (unix_s, nanoseconds) = time.map_or((0, 0), |time| (time.unix_s, time.nanoseconds));
    Item { path, size, sha256: Item::version(size, unix_s, nanoseconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_found_by_whole_parts() {
        let roots = [("/share/photos", "/mnt/p"), ("/share", "/mnt/s")].map(|(from, to)| (from.into(), to.into()));
        for (root, place) in [
            ("/share/photos", Some(("/mnt/p", ""))),
            ("/share/photos/2026", Some(("/mnt/p", "2026"))),
            ("/share/photosynthesis", Some(("/mnt/s", "photosynthesis"))),
            ("/shared", None),
            ("/share/../etc", None),
        ] {
            assert_eq!(place_of(root, &roots), place.map(|(to, rest)| (to.into(), rest.into())), "{root}");
        }
    }
}
