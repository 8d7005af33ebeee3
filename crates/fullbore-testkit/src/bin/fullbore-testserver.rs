//! Serves a tree and misbehaves as told, until standard input ends.
//!
//! ```text
//! fullbore-testserver ROOT [--listen ADDRESS:PORT] [--tls CA.pem] [--log FILE] [KEY=VALUE …]
//! ```
//!
//! Prints its URL. Lines on standard input change it while it runs: a setting, `die`, `silent`,
//! `revive`, or `counters`, which prints them as JSON. With `--tls` it writes the authority's
//! certificate to the given file and offers HTTP/2. The log is written while it runs, so that a
//! server that is killed leaves one.

use std::{
    fs,
    io::{self, BufRead, Write},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use fullbore_testkit::server::{Life, LogEntry, Server, TestCa, TlsSpec, settings};

const USAGE: &str =
    "usage: fullbore-testserver ROOT [--listen ADDRESS:PORT] [--tls CA.pem] [--log FILE] [KEY=VALUE ...]\n";

/// How often the log is written. A guess: a person who reads along does not notice it.
const LOG_EVERY: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fullbore-testserver: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let root = match arguments.next() {
        Some(root) if !root.starts_with("--") => root,
        _ => {
            eprint!("{USAGE}{}", settings::HELP);
            return Err("no ROOT".into());
        }
    };
    let mut builder = Server::builder(fs::canonicalize(root)?);
    let (mut log, mut ca) = (None, None);
    let mut wrong = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--listen" => builder = builder.listen(arguments.next().unwrap_or_default().parse()?),
            "--tls" => ca = arguments.next(),
            "--log" => log = arguments.next(),
            _ => {
                builder =
                    builder.behaviour(|behaviour| wrong = settings::apply(behaviour, &argument).err().or(wrong.take()))
            }
        }
    }
    if let Some(error) = wrong {
        return Err(error.into());
    }
    if let Some(path) = ca {
        let authority = TestCa::new()?;
        fs::write(path, authority.pem())?;
        builder = builder.tls(&authority, &TlsSpec::default())?;
    }
    let server = builder.start()?;
    println!("{}", server.url());
    io::stdout().flush()?;
    let Some(path) = log else {
        return obey(&server);
    };
    let file = fs::File::create(path)?;
    // Its sender is dropped when standard input has ended.
    let (ended, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_log(file, &server, end));
        let obeyed = obey(&server);
        drop(ended);
        writer.join().map_err(|_| "the log's thread panicked")??;
        obeyed
    })
}

/// Reads standard input to its end.
fn obey(server: &Server) -> Result<(), Box<dyn std::error::Error>> {
    for line in io::stdin().lock().lines() {
        match line?.trim() {
            "" => {}
            "die" => server.live(Life::Refusing),
            "silent" => server.live(Life::Silent),
            "revive" => server.live(Life::Alive),
            "counters" => print_counters(server)?,
            setting => {
                let mut result = Ok(());
                server.change(|behaviour| result = settings::apply(behaviour, setting));
                if let Err(error) = result {
                    eprintln!("fullbore-testserver: {error}");
                }
            }
        }
    }
    Ok(())
}

fn print_counters(server: &Server) -> io::Result<()> {
    let counters = server.counters();
    println!(
        "{}",
        serde_json::json!({
            "connections": counters.connections,
            "open_connections": counters.open_connections,
            "max_open_connections": counters.max_open_connections,
            "requests": counters.requests,
            "faults": counters.faults,
            "body_bytes": counters.body_bytes,
        })
    );
    io::stdout().flush()
}

/// Writes the log until `end`.
fn write_log(file: fs::File, server: &Server, end: mpsc::Receiver<()>) -> io::Result<()> {
    let mut file = io::BufWriter::new(file);
    loop {
        let last = end.recv_timeout(LOG_EVERY) != Err(mpsc::RecvTimeoutError::Timeout);
        for entry in server.take_log() {
            write_entry(&mut file, &entry)?;
        }
        file.flush()?;
        if last {
            return Ok(());
        }
    }
}

/// One line: seconds, connection, number, method, path, range, status, fault, bytes, seconds.
fn write_entry(file: &mut impl Write, entry: &LogEntry) -> io::Result<()> {
    writeln!(
        file,
        "{:.4}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:.4}",
        entry.at.as_secs_f64(),
        entry.connection,
        entry.number,
        entry.method,
        entry.path,
        entry.range.as_deref().unwrap_or("-"),
        entry.status,
        entry.fault,
        entry.body_bytes,
        entry.took.as_secs_f64(),
    )
}
