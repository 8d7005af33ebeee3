//! Answers apt's calls of dpkg.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Events, Phase};

use super::Part;
use super::record::RunRecord;
use super::unpacker::{Scripts, UnpackOutcome, Unpacker};
use crate::dpkg_call::DpkgCall;
use crate::relay::{Answer, DpkgOutput, Relay, RelayError};

/// Answers the dpkg calls of apt for one root.
pub(crate) struct DpkgServer<'a> {
    root: &'a Path,
    unpacker: &'a Unpacker<'a>,
    /// Package files that apt names by a path outside of the root, and their names in its archives directory.
    elsewhere: Vec<(PathBuf, PathBuf)>,
    /// Whether to compile Python modules ahead.
    compiles: bool,
    /// Error of a refused call; `None` if no call was refused.
    pub failure: Option<CommandError>,
}

impl<'a> DpkgServer<'a> {
    /// Serves this root. `elsewhere` are files outside of the archives directory, and their copies inside of the root.
    ///
    /// Python modules are compiled ahead unless `SOURCE_DATE_EPOCH` is set: then they have another format, which
    /// py3compile does not accept as current.
    pub(crate) fn new(
        root: &'a Path,
        unpacker: &'a Unpacker<'a>,
        elsewhere: Vec<(PathBuf, PathBuf)>,
        epoch: Option<i64>,
    ) -> DpkgServer<'a> {
        DpkgServer { root, unpacker, elsewhere, compiles: epoch.is_none(), failure: None }
    }

    /// Answers all calls of this apt until it ends.
    ///
    /// # Errors
    /// The system's error if the relay fails; apt may then still wait for an answer.
    pub(crate) fn serve(
        &mut self,
        relay: &Relay,
        apt: &mut Child,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> io::Result<ExitStatus> {
        relay.serve(apt, &mut |order| {
            if let Some(phase) = phase_of(&order) {
                record.turn(events, phase, Part::Unpack);
            }
            record.part(Part::Unpack);
            let answer = self.answer(&order, record);
            record.part(Part::Dpkg);
            answer
        })
    }

    /// Answers one call.
    fn answer(&mut self, arguments: &[OsString], record: &mut RunRecord) -> Answer {
        let Some(mut order) = DpkgCall::parse(self.root, arguments) else {
            return Answer::Run(arguments.to_vec(), DpkgOutput::default());
        };
        for file in &mut order.files {
            if let Some((_, ours)) = self.elsewhere.iter().find(|(theirs, _)| theirs == file) {
                file.clone_from(ours);
            }
        }
        let outside: Vec<PathBuf> = order.files.iter().map(|file| DpkgCall::outside(self.root, file)).collect();
        match self.unpacker.unpack(&outside, Scripts::Before) {
            Ok(done) => {
                record.unpacked(&done);
                record.part(Part::Dpkg);
                self.unpacker.note_in_dpkgs_log(&done);
                if self.compiles {
                    // Python modules are part of the scripts' work, done before the scripts run.
                    record.part(Part::Scripts);
                    self.unpacker.compile_modules(&done);
                }
                let left: Vec<PathBuf> = done.left.iter().map(|(file, _)| self.seen_inside(file)).collect();
                let (output, status) = told(&done);
                let told = DpkgOutput { output, status, status_descriptor: order.status_descriptor };
                let later: Vec<PathBuf> = done.later.iter().map(|file| self.seen_inside(file)).collect();
                match (left.is_empty(), later.is_empty()) {
                    (true, _) => Answer::Done(told),
                    (false, true) => Answer::Run(order.for_files(&left), told),
                    (false, false) => Answer::RunAndAsk(order.for_files(&left), order.for_files(&later), told),
                }
            }
            Err(error) => {
                self.failure = Some(error);
                Answer::Refuse
            }
        }
    }

    fn seen_inside(&self, file: &Path) -> PathBuf {
        file.strip_prefix(self.root).map_or_else(|_| file.to_owned(), |path| Path::new("/").join(path))
    }
}

/// Phase of a dpkg call. For other calls of apt, the current phase continues.
fn phase_of(order: &[OsString]) -> Option<Phase> {
    order.iter().find_map(|word| match word.to_str()? {
        "--unpack" => Some(Phase::Unpack),
        "--configure" => Some(Phase::Configure),
        _ => None,
    })
}

/// Error of the command for a relay script that cannot be placed.
pub(crate) fn of_relay(error: &RelayError) -> CommandError {
    match error {
        RelayError::NotExecutable(_) => CommandError::usage(error)
            .context("apt starts a script of fullbore's from there, and dpkg those of packages from /var/lib/dpkg")
            .hint("mount one of them without noexec"),
        RelayError::File { .. } => CommandError::from_error(ErrorKind::Disk, error),
    }
}

/// The output that dpkg would print, and its status lines (dpkg(1), `--status-fd`).
fn told(done: &UnpackOutcome) -> (Vec<u8>, Vec<u8>) {
    let (mut output, mut status) = (Vec::new(), String::new());
    for package in &done.packages {
        let (name, version) = (&package.name, &package.version);
        output.extend(format!("Selecting previously unselected package {name}.\n").into_bytes());
        output.extend(done.said.get(name).into_iter().flatten());
        output.extend(format!("Unpacking {name} ({version}) ...\n").into_bytes());
        let label = match package.architecture.as_str() {
            "all" => name.clone(),
            architecture => format!("{name}:{architecture}"),
        };
        status.push_str(&format!("processing: install: {label}\n"));
        status.push_str(&format!("status: {label}: half-installed\nstatus: {label}: unpacked\n"));
    }
    (output, status.into_bytes())
}
