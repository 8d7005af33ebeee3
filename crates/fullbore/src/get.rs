//! `fullbore get`: files out of a Tahoe-LAFS grid, or (`s3`) a bucket, to stdout or to a name that appears when all is
//! there.

mod caps;
mod s3;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_engine::stage::Ledger;
use fullbore_engine::verdict::remote::Verdict;
use fullbore_lafs::cap::Chk;
use fullbore_lafs::download::{Downloader, GetError, Got};
use fullbore_lafs::upload::Grid;
use fullbore_lafs::upload::produce::Pool;
use fullbore_lafs::verdict::{DownloadCosts, Facts, judge};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::bucket;
use crate::cli::GetArgs;
use crate::grid::{amount, connect, place, runtime, say, say_evidence, server_table, start_log, tell, verdict_table};
use crate::output::{self, Output};
use crate::program::process_costs;
use crate::stdio;
use caps::{Caps, Wanted};
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};

/// Segments between decoding and writing.
const PIECES: usize = 4;

/// Files that are read at once, and bytes of those that wait for their turn to be written. Each holds some
/// segments in memory.
const FILES_AT_ONCE: usize = 100;
const AHEAD_BYTES: u64 = 32 << 20;

/// Servers of a grid that are all connected to while the next cap is awaited.
const WARM_SERVERS: usize = 100;

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
    if arguments.s3.any() || arguments.s3_get.require_checksum {
        return Err(CommandError::usage("a flag of S3 stores, and no address of one: s3://BUCKET/KEY"));
    }
    let caps = caps::read(&arguments.caps)?;
    let begun = Instant::now();
    let runtime = runtime(&Ledger::off())?;
    let mut files = Files::new(arguments, caps, Stop::listen(&runtime));
    let mut sink = Sink::open(arguments.output.as_deref())?;
    while let Some(bytes) = runtime.block_on(files.next())? {
        sink.write(&bytes)?;
        if sink.is_abandoned {
            return Ok(0);
        }
    }
    if files.count == 0 {
        return Err(CommandError::usage("no cap came from stdin"));
    }
    let bytes = sink.written;
    let target = sink.publish()?;
    let Files { reading, got, waited, .. } = files;
    for trouble in &got.troubles {
        say(&arguments.grid, &format!("warning: {trouble}"));
    }
    let (wall, count) = (begun.elapsed(), got.used.len());
    let decode = reading.as_ref().map(|reading| reading.downloader.decode_time()).unwrap_or_default();
    let costs = DownloadCosts { source: waited, decode, target };
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
            "stages": {
                "source_ms": costs.source.as_millis() as u64, "decode_ms": costs.decode.as_millis() as u64,
                "target_ms": target.as_millis() as u64,
            },
            "verdict": verdict_table(&verdict),
        }));
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

/// Files on their way, in the order in which they are written.
struct Files<'a> {
    arguments: &'a GetArgs,
    stop: Stop,
    caps: Caps,
    /// How many caps there have been.
    count: u64,
    /// There are no more.
    is_end: bool,
    coming: VecDeque<Coming>,
    /// Bytes of those, whether they are here or not.
    ahead: u64,
    /// From the first cap of a file that is in the grid.
    reading: Option<Reading>,
    got: Got,
    /// Time in which there was nothing to do before the next cap came.
    waited: Duration,
}

/// The means to read from a grid.
struct Reading {
    grid: Arc<Grid>,
    downloader: Arc<Downloader>,
}

/// A file whose turn comes.
enum Coming {
    Literal(Vec<u8>),
    Chk(Download),
    /// No file, which ends the run in its turn.
    Refused(CommandError),
}

/// A file on its way: its size, and what comes of it.
struct Download {
    size: u64,
    pieces: mpsc::Receiver<Bytes>,
    task: JoinHandle<Result<Got, GetError>>,
}

impl<'a> Files<'a> {
    fn new(arguments: &'a GetArgs, caps: Caps, stop: Stop) -> Files<'a> {
        Files {
            arguments,
            stop,
            caps,
            count: 0,
            is_end: false,
            coming: VecDeque::new(),
            ahead: 0,
            reading: None,
            got: Got::default(),
            waited: Duration::ZERO,
        }
    }

    /// The next bytes to write; `None`: that was all.
    async fn next(&mut self) -> Result<Option<Bytes>, CommandError> {
        loop {
            match self.coming.pop_front() {
                Some(Coming::Literal(content)) => return Ok(Some(content.into())),
                Some(Coming::Refused(error)) => return Err(error),
                None if self.is_end => return Ok(None),
                None => {
                    let cap = match self.caps.try_recv() {
                        Ok(cap) => Some(cap),
                        Err(_) => self.wait().await?,
                    };
                    self.begin(cap)?;
                }
                Some(Coming::Chk(mut download)) => {
                    let has_room = !self.is_end && self.coming.len() + 1 < FILES_AT_ONCE && self.ahead < AHEAD_BYTES;
                    tokio::select! {
                        biased;
                        cap = self.caps.recv(), if has_room => {
                            self.coming.push_front(Coming::Chk(download));
                            self.begin(cap)?;
                        }
                        piece = download.pieces.recv() => match piece {
                            Some(piece) => {
                                self.coming.push_front(Coming::Chk(download));
                                return Ok(Some(piece));
                            }
                            None => self.end(download).await?,
                        },
                    }
                }
            }
        }
    }

    /// Waits for the next cap, and has the connections made meanwhile that it may need.
    async fn wait(&mut self) -> Result<Option<Result<Wanted, CommandError>>, CommandError> {
        if let Some(reading) = self.reading.as_ref().filter(|_| !self.caps.is_closed()) {
            reading.grid.warm(WARM_SERVERS);
        }
        let begun = Instant::now();
        let cap = self.stop.or(self.caps.recv()).await;
        self.waited += begun.elapsed();
        cap
    }

    /// Begins to read a file; `None`: there are no more.
    fn begin(&mut self, cap: Option<Result<Wanted, CommandError>>) -> Result<(), CommandError> {
        let Some(cap) = cap else {
            self.is_end = true;
            return Ok(());
        };
        self.count += 1;
        let one = match cap {
            Ok(Wanted::Literal(content)) => Coming::Literal(content),
            Ok(Wanted::Chk(chk)) => {
                self.ahead = chk.size.saturating_add(self.ahead);
                Coming::Chk(self.download(chk)?)
            }
            Err(error) => Coming::Refused(error),
        };
        self.coming.push_back(one);
        Ok(())
    }

    fn download(&mut self, chk: Chk) -> Result<Download, CommandError> {
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => none.insert(Reading::new(self.arguments, &self.stop)?),
        };
        let (out, pieces) = mpsc::channel::<Bytes>(PIECES);
        let (size, downloader) = (chk.size, Arc::clone(&reading.downloader));
        let task = tokio::spawn(async move { downloader.get(&chk, &out).await });
        Ok(Download { size, pieces, task })
    }

    /// All of a file has been given out, or it failed.
    async fn end(&mut self, download: Download) -> Result<(), CommandError> {
        let result = download.task.await.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        let Got { used, troubles } = result.map_err(|error| explain(&error))?;
        self.got.used.extend(used);
        self.got.troubles.extend(troubles);
        self.ahead = self.ahead.saturating_sub(download.size);
        Ok(())
    }
}

impl Reading {
    fn new(arguments: &GetArgs, stop: &Stop) -> Result<Reading, CommandError> {
        let Some(place) = place(&arguments.grid)? else {
            return Err(CommandError::usage("which grid? --node or --servers says it"));
        };
        let grid = Arc::new(connect(&arguments.grid, &place, None, &Ledger::off()));
        let downloader = Arc::new(Downloader::new(Arc::clone(&grid), Pool::new(threads()), stop.watch()));
        Ok(Reading { grid, downloader })
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
                let written = stdio::Stdout.write_all(bytes);
                self.is_abandoned = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
                match written {
                    Err(error) if !self.is_abandoned => Err(stdio::stdout_error(&error)),
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
