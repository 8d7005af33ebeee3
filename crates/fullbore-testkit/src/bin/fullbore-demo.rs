//! The demonstration that `script/demo` runs: an archive, four mirrors with their faults, a clone,
//! an update, a check, and a verification that shares no code with the program shown.
//!
//!     fullbore-demo FULLBORE DIRECTORY [MEGABYTES]
//!
//! FULLBORE is the program to show, DIRECTORY is made and must not exist. Needs gpg and gpgv, no
//! root and no network beyond loopback. Ends with 0 only if everything was as promised.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Duration,
};

use fullbore_testkit::{
    archive::{Archive, ArchiveFile},
    demonstration::{self, ARCHITECTURES, COMPONENTS, SUITES, make_archive, selection, title},
    faults, process,
    server::{Counters, Life, Server},
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Weight of the pool by default: some seconds at the rates below.
const POOL_MEGABYTES: u64 = 80;

fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            println!("\nEverything was as promised.");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("\nfullbore-demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (program, directory, megabytes) = match &arguments[..] {
        [program, directory] => (program, directory, POOL_MEGABYTES),
        [program, directory, megabytes] => (program, directory, megabytes.parse()?),
        _ => return Err("usage: fullbore-demo FULLBORE DIRECTORY [MEGABYTES]".into()),
    };
    let program = fs::canonicalize(program).map_err(|error| format!("{program}: {error}"))?;
    fs::create_dir(directory).map_err(|error| format!("{directory}: {error}"))?;
    let directory = fs::canonicalize(directory)?;

    let archive = make_archive(&directory, megabytes)?;
    let mirrors = Mirrors::start(&archive)?;
    let demo = Demo { program, archive: &archive, mirrors: &mirrors, mirror: directory.join("mirror"), directory };

    title("1. Clone: four mirrors; b is slow, c is stale, d breaks off in mid-run");
    let before = mirrors.counters();
    demo.mirror("clone")?;
    demo.verify(1)?;
    demo.tell_traffic(before, needed(&archive, 1, &BTreeMap::new()));
    if mirrors.breaks_off.life() == Life::Alive {
        println!("(mirror d was not asked for enough to break off)");
    }

    title("2. Update: the archive has a new state, c is one behind, d is back");
    mirrors.publish(2);
    let before = mirrors.counters();
    demo.mirror("update")?;
    demo.verify(2)?;
    let changed = needed(&archive, 2, &selection(&archive, 1));
    demo.tell_traffic(before, changed);
    let fetched = mirrors.sent_bytes() - total_bytes(&before);
    // On a busy machine a mirror may look silent, and what it owes is asked of others as well. All of the archive
    // would be eight times as much.
    let allowed = 3 * changed + index_bytes(&archive, 2) + 1_000_000;
    if fetched > allowed {
        return Err(format!("the update fetched {fetched} bytes for {changed} that changed").into());
    }

    title("3. Again: nothing is new");
    let requests = mirrors.requests();
    demo.mirror("again")?;
    println!("{} requests in all.", mirrors.requests() - requests);

    title("4. Check: every file against the signed indexes");
    demo.expect("check", &demo.check(&[]), true)?;
    let selected = selection(&archive, 2);
    let victim = selected.values().max_by_key(|file| file.size).ok_or("an empty archive")?;
    println!("\nNow one bit of {} is flipped.", victim.path);
    faults::flip_bit(&demo.mirror.join(&victim.path), victim.size / 2)?;
    demo.expect("check", &demo.check(&[]), false)?;
    println!();
    let from = mirrors.arguments();
    demo.expect("repair", &demo.check(&[&["--repair".to_string()], &from[..]].concat()), true)?;
    demo.verify(2)?;

    title("Reports");
    for name in ["clone", "update", "again"] {
        let report = demo.report(name);
        if fs::metadata(&report).map_or(0, |metadata| metadata.len()) == 0 {
            return Err(format!("{}: no report", report.display()).into());
        }
        println!("{}", report.display());
    }
    Ok(())
}

/// The four mirrors.
struct Mirrors<'a> {
    archive: &'a Archive,
    good: Server,
    slow: Server,
    stale: Server,
    breaks_off: Server,
}

impl Mirrors<'_> {
    fn start(archive: &Archive) -> Outcome<Mirrors<'_>> {
        let (now, before) = (&archive.state(1).root, &archive.state(0).root);
        let start = |root: &PathBuf, rate: u64, delay_ms: u64, lives_for: Option<u64>| {
            Server::builder(root)
                .behaviour(|behaviour| {
                    behaviour.rate_bytes_per_s = Some(rate);
                    behaviour.delay = Duration::from_millis(delay_ms);
                    behaviour.die_after_bytes = lives_for;
                })
                .start()
        };
        let mirrors = Mirrors {
            archive,
            good: start(now, 20_000_000, 20, None)?,
            slow: start(now, 400_000, 60, None)?,
            stale: start(before, 20_000_000, 10, None)?,
            breaks_off: start(now, 20_000_000, 30, Some(5_000_000))?,
        };
        println!("a  {}  20 MB/s, 20 ms (the origin)", mirrors.good.url());
        println!("b  {}  0.4 MB/s, 60 ms", mirrors.slow.url());
        println!("c  {}  20 MB/s, 10 ms, one state behind", mirrors.stale.url());
        println!("d  {}  20 MB/s, 30 ms, dies after 5 MB", mirrors.breaks_off.url());
        Ok(mirrors)
    }

    fn all(&self) -> [&Server; 4] {
        [&self.good, &self.slow, &self.stale, &self.breaks_off]
    }

    /// All mirrors but the stale one get this state.
    fn publish(&self, number: usize) {
        for server in [&self.good, &self.slow, &self.breaks_off] {
            server.switch_root(&self.archive.state(number).root);
        }
        self.stale.switch_root(&self.archive.state(number - 1).root);
        self.breaks_off.change(|behaviour| behaviour.die_after_bytes = None);
        self.breaks_off.live(Life::Alive);
    }

    fn arguments(&self) -> Vec<String> {
        self.all().iter().flat_map(|server| ["--from".to_string(), server.url()]).collect()
    }

    fn counters(&self) -> [Counters; 4] {
        self.all().map(Server::counters)
    }

    fn sent_bytes(&self) -> u64 {
        total_bytes(&self.counters())
    }

    fn requests(&self) -> u64 {
        self.all().iter().map(|server| server.counters().requests).sum()
    }
}

/// Bytes of the pool that a state has and an earlier selection has not.
fn needed(archive: &Archive, state: usize, have: &BTreeMap<&str, &ArchiveFile>) -> u64 {
    let wanted = selection(archive, state);
    wanted
        .values()
        .filter(|file| have.get(file.path.as_str()).is_none_or(|old| old.sha256 != file.sha256))
        .map(|file| file.size)
        .sum()
}

fn index_bytes(archive: &Archive, state: usize) -> u64 {
    archive.state(state).indexes.iter().filter(|index| index.present).map(|index| index.size).sum()
}

struct Demo<'a> {
    program: PathBuf,
    archive: &'a Archive,
    mirrors: &'a Mirrors<'a>,
    directory: PathBuf,
    mirror: PathBuf,
}

impl Demo<'_> {
    fn report(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.html"))
    }

    /// The program with nothing inherited that could change what it does.
    fn command(&self, name: &str) -> Command {
        let mut command = process::clean_command(&self.program);
        command.arg(name).arg("--keyring").arg(self.archive.key());
        command
    }

    fn mirror(&self, name: &str) -> Outcome<()> {
        let mut command = self.command("mirror");
        command.args(self.mirrors.arguments());
        command.args(["--suite", &SUITES.join(","), "--component", &COMPONENTS.join(",")]);
        command.args(["--arch", &ARCHITECTURES.join(",")]);
        command.arg("--to").arg(&self.mirror).arg("--report").arg(self.report(name));
        println!("$ fullbore {}", shown(&command));
        let status = command.status()?;
        if status.success() { Ok(()) } else { Err(format!("{name}: fullbore mirror ended with {status}").into()) }
    }

    fn check(&self, more: &[String]) -> Vec<String> {
        let mut arguments = vec![self.mirror.display().to_string()];
        arguments.extend_from_slice(more);
        arguments
    }

    fn expect(&self, name: &str, arguments: &[String], success: bool) -> Outcome<()> {
        let mut command = self.command("check");
        command.args(arguments);
        println!("$ fullbore {}", shown(&command));
        let status = command.status()?;
        println!("({status})");
        if status.success() == success {
            Ok(())
        } else {
            Err(format!("{name}: fullbore check ended with {status}").into())
        }
    }

    fn verify(&self, state: usize) -> Outcome<()> {
        demonstration::verify(self.archive, state, &self.mirror)
    }

    fn tell_traffic(&self, before: [Counters; 4], needed: u64) {
        let now = self.mirrors.counters();
        let sent = total_bytes(&now) - total_bytes(&before);
        println!(
            "The mirrors sent {:.1} MB, indexes included, for {:.1} MB of new files:",
            sent as f64 / 1e6,
            needed as f64 / 1e6
        );
        for (name, (now, before)) in ["a", "b", "c", "d"].iter().zip(now.iter().zip(before)) {
            println!(
                "  {name}  {:>7.2} MB  {:>5} requests  {:>2} connections",
                (now.body_bytes - before.body_bytes) as f64 / 1e6,
                now.requests - before.requests,
                now.connections - before.connections,
            );
        }
    }
}

fn total_bytes(counters: &[Counters; 4]) -> u64 {
    counters.iter().map(|counters| counters.body_bytes).sum()
}

fn shown(command: &Command) -> String {
    command.get_args().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
