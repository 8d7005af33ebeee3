//! `fullbore get`: a file out of a Tahoe-LAFS grid, to stdout or to a name that it gets when it is complete.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use fullbore_store::lafs::cap::{Cap, Chk};
use fullbore_store::lafs::download::{Downloader, GetError, Got};
use fullbore_store::lafs::upload::produce::Pool;
use serde_json::json;
use tokio::sync::mpsc;

use crate::cli::GetArgs;
use crate::error::{CommandError, ErrorKind};
use crate::fetching::Stop;
use crate::grid::{amount, connect, place, runtime, say, server_table, start_log, tell};
use crate::output::{self, Output};
use crate::program::process_costs;

/// Segments between decoding and writing.
const PIECES: usize = 4;

/// Characters of stdin that are read for a cap.
const CAP_BYTES_MAX: u64 = 8 << 10;

/// Gets a file; the result is the exit code.
///
/// # Errors
/// See [`ErrorKind`].
pub fn run(arguments: &GetArgs) -> Result<u8, CommandError> {
    start_log(&arguments.grid);
    if arguments.grid.json && arguments.output.is_none() {
        return Err(CommandError::usage("--json needs -o FILE: stdout cannot have both"));
    }
    match cap(arguments)? {
        Cap::Literal(content) => {
            let mut sink = Sink::open(arguments.output.as_deref())?;
            sink.write(&content)?;
            sink.publish()?;
            Ok(0)
        }
        Cap::Chk(chk) => get(arguments, &chk),
        Cap::Directory(_) | Cap::LiteralDirectory(_) => {
            Err(CommandError::usage("the cap is one of a directory")
                .hint("`tahoe ls` and `tahoe cp -r` read directories"))
        }
        Cap::Verifier(_) => Err(CommandError::usage("the cap is the right to check the file, not to read it")),
    }
}

/// The cap, which no error repeats.
fn cap(arguments: &GetArgs) -> Result<Cap, CommandError> {
    let text = if arguments.cap == "-" {
        let mut text = String::new();
        let read = io::stdin().take(CAP_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| CommandError::disk(Path::new("stdin"), &error))?;
        text
    } else {
        arguments.cap.to_string_lossy().into_owned()
    };
    Cap::parse(&text).map_err(|error| CommandError::usage(format_args!("the cap cannot be read: {error}")))
}

fn get(arguments: &GetArgs, chk: &Chk) -> Result<u8, CommandError> {
    let Some(place) = place(&arguments.grid)? else {
        return Err(CommandError::usage("which grid? --node or --servers says it"));
    };
    let begun = Instant::now();
    let mut sink = Sink::open(arguments.output.as_deref())?;
    let runtime = runtime()?;
    let stop = Stop::listen(&runtime);
    let grid = Arc::new(connect(&arguments.grid, &place, None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let downloader = Downloader::new(Arc::clone(&grid), Pool::new(threads), stop.watch());
    let (out, mut pieces) = mpsc::channel::<Bytes>(PIECES);
    let cap = chk.clone();
    let task = runtime.spawn(async move { downloader.get(&cap, &out).await });
    let mut written = Ok(());
    while let Some(piece) = pieces.blocking_recv() {
        written = sink.write(&piece);
        if written.is_err() {
            break;
        }
    }
    // Whoever still decodes hears that nobody wants it.
    drop(pieces);
    let got = runtime.block_on(task).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    written?;
    let Got { used, troubles } = got.map_err(|error| explain(&error))?;
    sink.publish()?;
    for trouble in &troubles {
        say(&arguments.grid, &format!("warning: {trouble}"));
    }
    let wall = begun.elapsed();
    let readings = grid.readings();
    if arguments.grid.json {
        let (cpu_ms, peak_rss_bytes) = process_costs();
        let shares: Vec<_> = used.iter().map(|(share, server)| json!({"share": share, "server": server})).collect();
        tell(&json!({
            "event": "summary", "bytes": chk.size, "duration_ms": wall.as_millis() as u64,
            "cpu_ms": cpu_ms, "peak_rss_bytes": peak_rss_bytes,
            "shares": shares, "troubles": troubles, "servers": server_table(&readings),
        }))?;
    } else if arguments.output.is_some() {
        say(&arguments.grid, &format!("{}, from {} shares", amount(chk.size, wall), used.len()));
    }
    Ok(0)
}

fn explain(error: &GetError) -> CommandError {
    let kind = match error {
        GetError::Segment { .. } => ErrorKind::Verification,
        GetError::Interrupted => ErrorKind::Interrupted,
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
enum Sink {
    Stdout,
    File(Output),
}

impl Sink {
    fn open(path: Option<&Path>) -> Result<Sink, CommandError> {
        let Some(path) = path else { return Ok(Sink::Stdout) };
        let output = Output::begin(path, output::FOR_ALL);
        Ok(Sink::File(output.map_err(|error| CommandError::disk(path, &error).context("-o"))?))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CommandError> {
        match self {
            Sink::Stdout => {
                io::stdout().write_all(bytes).map_err(|error| CommandError::disk(Path::new("stdout"), &error))
            }
            Sink::File(output) => {
                output.file().write_all(bytes).map_err(|error| CommandError::disk(output.path(), &error))
            }
        }
    }

    /// Gives the file its name: all of it is there, and right.
    fn publish(self) -> Result<(), CommandError> {
        match self {
            Sink::Stdout => io::stdout().flush().map_err(|error| CommandError::disk(Path::new("stdout"), &error)),
            Sink::File(output) => {
                let path = output.path().to_owned();
                let published = output.sync().and_then(|()| output.publish());
                published.map_err(|error| CommandError::disk(&path, &error))
            }
        }
    }
}
