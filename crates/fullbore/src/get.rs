//! `fullbore get`: files out of a Tahoe-LAFS grid, or (`s3`) a bucket, to stdout or to a name that appears when all is
//! there.

mod s3;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_engine::stage::Ledger;
use fullbore_store::lafs::cap::{Cap, Chk};
use fullbore_store::lafs::download::{Downloader, GetError, Got};
use fullbore_store::lafs::upload::Grid;
use fullbore_store::lafs::upload::produce::Pool;
use fullbore_store::lafs::verdict::{DownloadCosts, Facts, judge};
use fullbore_store::verdict::Verdict;
use serde_json::json;
use tokio::sync::mpsc;

use crate::bucket;
use crate::cli::GetArgs;
use crate::error::{CommandError, ErrorKind};
use crate::fetching::Stop;
use crate::grid::{amount, connect, place, runtime, say, say_evidence, server_table, start_log, tell, verdict_table};
use crate::output::{self, Output};
use crate::program::process_costs;

/// Segments between decoding and writing.
const PIECES: usize = 4;

/// Characters of stdin that are read for caps, which have some hundred each.
const CAPS_BYTES_MAX: u64 = 64 << 20;

/// Files that are read at once, and bytes of those that wait for their turn to be written. Each holds some
/// segments in memory.
const FILES_AT_ONCE: usize = 100;
const AHEAD_BYTES: u64 = 32 << 20;

/// Gets files, one after the other into one place; the result is the exit code.
///
/// # Errors
/// See [`ErrorKind`].
pub fn run(arguments: &GetArgs) -> Result<u8, CommandError> {
    start_log(&arguments.grid);
    if arguments.grid.json && arguments.output.is_none() {
        return Err(CommandError::usage("--json needs -o FILE: stdout cannot have both"));
    }
    if let Some(address) = arguments.caps.iter().find(|cap| bucket::is_address(cap)) {
        if arguments.caps.len() > 1 {
            return Err(CommandError::usage("one object at a time, and no caps beside it"));
        }
        return s3::run(arguments, address);
    }
    if arguments.s3.any() {
        return Err(CommandError::usage("a flag of S3 stores, and no address of one: s3://BUCKET/KEY"));
    }
    let files = wanted(arguments)?;
    let begun = Instant::now();
    let mut sink = Sink::open(arguments.output.as_deref())?;
    let reading = match files.iter().any(|file| matches!(file, Wanted::Chk(_))) {
        true => Some(Reading::new(arguments)?),
        false => None,
    };
    let mut got = Got::default();
    if let Some(reading) = &reading {
        reading.all(files, &mut sink, &mut got)?;
    } else {
        for file in files {
            if let Wanted::Literal(content) = file {
                sink.write(&content)?;
            }
        }
    }
    if sink.is_abandoned {
        return Ok(0);
    }
    let bytes = sink.written;
    let target = sink.publish()?;
    for trouble in &got.troubles {
        say(&arguments.grid, &format!("warning: {trouble}"));
    }
    let (wall, count) = (begun.elapsed(), got.used.len());
    let decode = reading.as_ref().map(|reading| reading.downloader.decode_time()).unwrap_or_default();
    let costs = DownloadCosts { decode, target };
    let (cpu_ms, peak_rss_bytes) = process_costs();
    let facts = Facts {
        wall,
        processor: Duration::from_millis(cpu_ms),
        cores: threads(),
        threads: threads(),
        download: Some(costs),
        servers: reading.map(|reading| reading.grid.readings()).unwrap_or_default(),
        moved_bytes: bytes,
        ..Facts::default()
    };
    let verdict = judge(&facts);
    if arguments.grid.json {
        let shares: Vec<_> = got.used.iter().map(|(share, server)| json!({"share": share, "server": server})).collect();
        tell(&json!({
            "event": "summary", "bytes": bytes, "duration_ms": wall.as_millis() as u64,
            "cpu_ms": cpu_ms, "peak_rss_bytes": peak_rss_bytes,
            "shares": shares, "troubles": got.troubles, "servers": server_table(&facts.servers),
            "stages": { "decode_ms": costs.decode.as_millis() as u64, "target_ms": target.as_millis() as u64 },
            "verdict": verdict_table(&verdict),
        }))?;
    } else {
        let Verdict { limit, reason, .. } = &verdict;
        let line = format!("{}, from {count} shares. Limited by: {limit} ({reason}).", amount(bytes, wall));
        say(&arguments.grid, &line);
        say_evidence(&arguments.grid, &verdict);
    }
    Ok(0)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A file to be read.
enum Wanted {
    Literal(Vec<u8>),
    Chk(Chk),
}

/// The caps, which no error repeats.
fn wanted(arguments: &GetArgs) -> Result<Vec<Wanted>, CommandError> {
    let mut files = Vec::new();
    for argument in &arguments.caps {
        if argument == "-" {
            let text = list_of_caps(io::stdin(), CAPS_BYTES_MAX)?;
            for line in text.lines().filter(|line| !line.trim().is_empty()) {
                files.push(cap(line)?);
            }
        } else {
            files.push(cap(&argument.to_string_lossy())?);
        }
    }
    match files.is_empty() {
        true => Err(CommandError::usage("no cap came from stdin")),
        false => Ok(files),
    }
}

fn list_of_caps(from: impl Read, bytes_max: u64) -> Result<String, CommandError> {
    let mut text = String::new();
    let read = from.take(bytes_max + 1).read_to_string(&mut text);
    read.map_err(|error| CommandError::disk(Path::new("stdin"), &error))?;
    // The last one would be cut, and the half of a literal is one as well.
    if text.len() as u64 > bytes_max {
        return Err(CommandError::usage(format_args!("more than {bytes_max} bytes of caps on stdin")));
    }
    Ok(text)
}

fn cap(text: &str) -> Result<Wanted, CommandError> {
    let cap = Cap::parse(text).map_err(|error| CommandError::usage(format_args!("the cap cannot be read: {error}")))?;
    match cap {
        Cap::Literal(content) => Ok(Wanted::Literal(content)),
        Cap::Chk(chk) => Ok(Wanted::Chk(chk)),
        Cap::Directory(_) | Cap::LiteralDirectory(_) => {
            Err(CommandError::usage("the cap is one of a directory")
                .hint("`tahoe ls` and `tahoe cp -r` read directories"))
        }
        Cap::Verifier(_) => Err(CommandError::usage("the cap is the right to check the file, not to read it")),
    }
}

/// The means to read from a grid.
struct Reading {
    runtime: tokio::runtime::Runtime,
    grid: Arc<Grid>,
    downloader: Arc<Downloader>,
}

/// A file on its way: its size, and what comes of it.
struct Coming {
    size: u64,
    pieces: mpsc::Receiver<Bytes>,
    task: tokio::task::JoinHandle<Result<Got, GetError>>,
}

impl Reading {
    fn new(arguments: &GetArgs) -> Result<Reading, CommandError> {
        let Some(place) = place(&arguments.grid)? else {
            return Err(CommandError::usage("which grid? --node or --servers says it"));
        };
        let ledger = Ledger::off();
        let runtime = runtime(&ledger)?;
        let stop = Stop::listen(&runtime);
        let grid = Arc::new(connect(&arguments.grid, &place, None, &ledger));
        let downloader = Arc::new(Downloader::new(Arc::clone(&grid), Pool::new(threads()), stop.watch()));
        Ok(Reading { runtime, grid, downloader })
    }

    /// Reads files, several at once, and writes them in their order.
    fn all(&self, files: Vec<Wanted>, sink: &mut Sink, got: &mut Got) -> Result<(), CommandError> {
        let mut files = files.into_iter();
        let mut coming: VecDeque<Result<Coming, Vec<u8>>> = VecDeque::new();
        let mut ahead = 0;
        loop {
            while coming.len() < FILES_AT_ONCE && (coming.is_empty() || ahead < AHEAD_BYTES) {
                match files.next() {
                    Some(Wanted::Literal(content)) => coming.push_back(Err(content)),
                    Some(Wanted::Chk(chk)) => {
                        ahead = chk.size.saturating_add(ahead);
                        coming.push_back(Ok(self.begin(chk)));
                    }
                    None => break,
                }
            }
            match coming.pop_front() {
                None => return Ok(()),
                Some(Err(content)) => sink.write(&content)?,
                Some(Ok(mut one)) => {
                    let mut written = Ok(());
                    while let Some(piece) = one.pieces.blocking_recv() {
                        written = sink.write(&piece);
                        if written.is_err() || sink.is_abandoned {
                            break;
                        }
                    }
                    // Whoever still decodes hears that nobody wants it.
                    drop(one.pieces);
                    let result = self.runtime.block_on(one.task);
                    let result = result.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
                    written?;
                    if sink.is_abandoned {
                        return Ok(());
                    }
                    let Got { used, troubles } = result.map_err(|error| explain(&error))?;
                    got.used.extend(used);
                    got.troubles.extend(troubles);
                    ahead = ahead.saturating_sub(one.size);
                }
            }
        }
    }

    fn begin(&self, chk: Chk) -> Coming {
        let (out, pieces) = mpsc::channel::<Bytes>(PIECES);
        let (size, downloader) = (chk.size, Arc::clone(&self.downloader));
        let task = self.runtime.spawn(async move { downloader.get(&chk, &out).await });
        Coming { size, pieces, task }
    }
}

fn explain(error: &GetError) -> CommandError {
    let kind = match error {
        GetError::Segment { .. } => ErrorKind::Verification,
        GetError::Interrupted => ErrorKind::Interrupted,
        GetError::Geometry(_) => ErrorKind::Usage,
        _ => ErrorKind::Network,
    };
    let mut command = CommandError::from_error(kind, error);
    if let GetError::TooFewShares { troubles, .. } = error {
        for trouble in troubles {
            command = command.context(trouble);
        }
    }
    command
}

/// Where the content goes.
struct Sink {
    /// Stdout without.
    output: Option<Output>,
    /// Nobody reads stdout any more (`fullbore get CAP | head`): a quiet, normal end.
    is_abandoned: bool,
    written: u64,
    /// Time that writing took.
    worked: Duration,
}

impl Sink {
    fn open(path: Option<&Path>) -> Result<Sink, CommandError> {
        let begin = |path| {
            let output = Output::begin(path, output::FOR_ALL);
            output.map_err(|error| CommandError::disk(path, &error).context("-o"))
        };
        let output = path.map(begin).transpose()?;
        Ok(Sink { output, is_abandoned: false, written: 0, worked: Duration::ZERO })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CommandError> {
        self.written += bytes.len() as u64;
        let begun = Instant::now();
        let written = match &mut self.output {
            None => {
                let mut stdout = io::stdout();
                let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
                self.is_abandoned = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
                match written {
                    Err(error) if !self.is_abandoned => Err(CommandError::disk(Path::new("stdout"), &error)),
                    _ => Ok(()),
                }
            }
            Some(output) => output.file().write_all(bytes).map_err(|error| CommandError::disk(output.path(), &error)),
        };
        self.worked += begun.elapsed();
        written
    }

    /// Gives the file its name: all of it is there, and right. Returns the time that all writing took.
    fn publish(self) -> Result<Duration, CommandError> {
        let begun = Instant::now();
        let published = match self.output {
            None => Ok(()),
            Some(output) => {
                let path = output.path().to_owned();
                let published = output.sync().and_then(|()| output.publish());
                published.map_err(|error| CommandError::disk(&path, &error))
            }
        };
        published.map(|()| self.worked + begun.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_caps_is_not_cut() {
        let list = "URI:LIT:aaaa\nURI:LIT:aaaaaaaa\n";
        let whole = |bytes_max| list_of_caps(list.as_bytes(), bytes_max);
        assert_eq!(whole(list.len() as u64).unwrap(), list);
        assert!(whole(list.len() as u64 - 5).is_err());
    }
}
