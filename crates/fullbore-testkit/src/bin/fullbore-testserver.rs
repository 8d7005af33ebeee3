//! Serves a tree and misbehaves as told, until standard input ends.
//!
//!     fullbore-testserver ROOT [--listen ADDRESS:PORT] [--tls CA.pem] [--log FILE] [KEY=VALUE …]
//!
//! Prints its URL. Lines on standard input change it while it runs: a setting, `die`, `silent`,
//! `revive`, or `counters`, which prints them as JSON. With `--tls` it writes the authority's
//! certificate to the given file and offers HTTP/2.

use std::{
    fs,
    io::{self, BufRead, Write},
    process::ExitCode,
};

use fullbore_testkit::server::{Life, LogEntry, Server, TestCa, TlsSpec, settings};

const USAGE: &str =
    "usage: fullbore-testserver ROOT [--listen ADDRESS:PORT] [--tls CA.pem] [--log FILE] [KEY=VALUE ...]\n";

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
    for line in io::stdin().lock().lines() {
        match line?.trim() {
            "" => {}
            "die" => server.live(Life::Refusing),
            "silent" => server.live(Life::Silent),
            "revive" => server.live(Life::Alive),
            "counters" => print_counters(&server)?,
            setting => {
                let mut result = Ok(());
                server.change(|behaviour| result = settings::apply(behaviour, setting));
                if let Err(error) = result {
                    eprintln!("fullbore-testserver: {error}");
                }
            }
        }
    }
    match log {
        Some(path) => write_log(&path, &server.log()).map_err(Into::into),
        None => Ok(()),
    }
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

/// One line per request: seconds, connection, number, method, path, range, status, fault, bytes, seconds.
fn write_log(path: &str, entries: &[LogEntry]) -> io::Result<()> {
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    for entry in entries {
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
        )?;
    }
    file.flush()
}
