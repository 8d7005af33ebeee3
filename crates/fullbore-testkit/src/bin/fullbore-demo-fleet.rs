//! The demonstration that `script/demo-fleet` runs: an archive, two mirrors, a queue, a store, a planner and three workers,
//! of which one is killed in the middle. Then a verification that shares no code with the program shown.
//!
//!     fullbore-demo-fleet FULLBORE NATS-SERVER VERSITYGW DIRECTORY [MEGABYTES]
//!
//! FULLBORE is the program to show; DIRECTORY is made and must not exist. Needs gpg and gpgv, no root and no network beyond
//! loopback. Ends with 0 only if everything was as promised.

use std::error::Error;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fullbore_testkit::archive::Archive;
use fullbore_testkit::demonstration::{self, ARCHITECTURES, COMPONENTS, SUITES, make_archive, selection, title};
use fullbore_testkit::server::Server;
use fullbore_testkit::{ports, process, verify};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Weight of the pool by default: 20 s at the mirrors' rates.
const POOL_MEGABYTES: u64 = 60;

/// Each of the two mirrors. All workers of a busy machine together are faster.
const MIRROR_BYTES_PER_S: u64 = 1_500_000;

/// Time for the whole run: 20 s of transfer, and 8 s until the queue gives a dead worker's tasks to another. The rest is
/// for slow machines.
const RUN_MAX: Duration = Duration::from_secs(150);

/// Time in which a server answers, and in which a worker ends that is told to.
const MOMENT: Duration = Duration::from_secs(40);

const WORKERS: usize = 3;

/// The store's name and secret, the bucket and the prefix.
const ACCESS: &str = "demonstration";
const SECRET: &str = "of-no-value";
const PLACE: &str = "archive/debian";

/// The users of packaging/nats/permissions.conf, with the passwords of this demonstration.
const PLANNER: [&str; 2] = ["planner", "plans"];
const WORKER: [&str; 2] = ["worker", "works"];

fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            println!("\nEverything was as promised.");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("\nfullbore-demo-fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ([program, nats, versitygw, directory], megabytes) = match arguments.as_slice() {
        [program, nats, versitygw, directory] => ([program, nats, versitygw, directory], POOL_MEGABYTES),
        [program, nats, versitygw, directory, megabytes] => ([program, nats, versitygw, directory], megabytes.parse()?),
        _ => return Err("usage: fullbore-demo-fleet FULLBORE NATS-SERVER VERSITYGW DIRECTORY [MEGABYTES]".into()),
    };
    let program = fs::canonicalize(program).map_err(|error| format!("{program}: {error}"))?;
    fs::create_dir(directory).map_err(|error| format!("{directory}: {error}"))?;
    let directory = fs::canonicalize(directory)?;

    title("1. An archive, two mirrors, a queue, a store");
    let archive = make_archive(&directory, megabytes)?;
    let mirror = || {
        let builder = Server::builder(&archive.state(1).root);
        builder.behaviour(|behaviour| behaviour.rate_bytes_per_s = Some(MIRROR_BYTES_PER_S)).start()
    };
    let mirrors = [mirror()?, mirror()?];
    let queue = start_queue(Path::new(nats), &directory)?;
    let store = start_store(Path::new(versitygw), &directory)?;
    for (number, server) in mirrors.iter().enumerate() {
        println!("mirror {}  {}  1.5 MB/s", number + 1, server.url());
    }
    println!("queue     {}  (nats-server, with the permissions of packaging/nats)", queue.url("nats"));
    println!("store     {}  (versitygw)", store.url("http"));
    let demo = Demo { program, archive: &archive, mirrors: &mirrors, queue: &queue, store: &store, directory };

    title("2. Three workers and a planner");
    let mut workers: Vec<Daemon> = (1..=WORKERS).map(|number| demo.start_worker(number)).collect::<Outcome<_>>()?;
    let mut planner = demo.start_planner()?;
    let begun = Instant::now();
    let wanted = selection(&archive, 1);
    let needed: u64 = wanted.values().map(|file| file.size).sum();
    demo.wait_for_share(&mut planner, needed, begun)?;

    title("3. The busiest worker is killed (SIGKILL)");
    let busiest = demo.busiest(&workers)?;
    let (files, bytes) = demo.stored();
    println!("\nThe store has {files} of {} packages, {:.1} of {:.1} MB.", wanted.len(), mega(bytes), mega(needed));
    let mut killed = workers.remove(busiest);
    killed.kill();
    println!("{} is dead. Its tasks go to the others when it has not extended them for 8 s.", killed.name);
    let status = planner.wait(begun + RUN_MAX)?;
    println!("\n{}", planner.log().trim_end());
    if !status.success() {
        return Err(format!("fullbore mirror ended with {status}").into());
    }
    println!("\nThe planner has published after {:.0} s, one worker short.", begun.elapsed().as_secs_f64());

    title("4. The other workers are told to end");
    for worker in &mut workers {
        worker.signal("INT")?;
        let status = worker.wait(Instant::now() + MOMENT)?;
        println!("{}: {status}; {}", worker.name, worker.last_line());
        if !status.success() {
            return Err(format!("{} ended with {status}: {}", worker.name, worker.log()).into());
        }
    }

    title("5. What the bucket has");
    demonstration::verify(&archive, 1, &demo.bucket())?;
    let sent: u64 = mirrors.iter().map(|server| server.counters().body_bytes).sum();
    println!("The mirrors sent {:.1} MB, indexes included, for {:.1} MB of packages.", mega(sent), mega(needed));
    // Indexes, and twice what the dead worker held: six seconds of work.
    if sent > 2 * needed {
        return Err("most packages were fetched twice".into());
    }
    Ok(())
}

fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// A program in the background, which ends with the demonstration. Its output is in a file.
struct Daemon {
    name: String,
    process: Child,
    port: u16,
    output: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Daemon {
    fn start(name: &str, directory: &Path, command: &mut Command) -> Outcome<Daemon> {
        let output = directory.join(format!("{}.log", name.replace(' ', "-")));
        let file = File::create(&output)?;
        let process = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
        let process = process.map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
        Ok(Daemon { name: name.to_owned(), process, port: 0, output })
    }

    /// Waits until a server answers.
    fn listens(mut self, port: u16) -> Outcome<Daemon> {
        self.port = port;
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if self.process.try_wait()?.is_some() || begun.elapsed() > MOMENT {
                return Err(format!("{} does not answer: {}", self.name, self.log()).into());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(self)
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn signal(&self, name: &str) -> Outcome<()> {
        Command::new("kill").arg(format!("-{name}")).arg(self.process.id().to_string()).status()?;
        Ok(())
    }

    fn wait(&mut self, until: Instant) -> Outcome<ExitStatus> {
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > until {
                self.kill();
                return Err(format!("{} takes too long: {}", self.name, self.log()).into());
            }
            sleep(Duration::from_millis(100));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    fn last_line(&self) -> String {
        self.log().lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output").to_owned()
    }
}

fn start_queue(program: &Path, directory: &Path) -> Outcome<Daemon> {
    let (port, at) = (ports::free(), directory.join("queue"));
    fs::create_dir(&at)?;
    // The server looks for included files beside its configuration.
    let permissions = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/nats/permissions.conf");
    fs::copy(permissions, at.join("permissions.conf")).map_err(|error| format!("{permissions}: {error}"))?;
    let text = format!(
        "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\ninclude permissions.conf\n",
        at.display()
    );
    fs::write(at.join("nats.conf"), text)?;
    let mut command = Command::new(program);
    command.arg("--config").arg(at.join("nats.conf"));
    command.env("FULLBORE_PLANNER_PASSWORD", PLANNER[1]).env("FULLBORE_WORKER_PASSWORD", WORKER[1]);
    Daemon::start("queue", directory, &mut command)?.listens(port)
}

fn start_store(program: &Path, directory: &Path) -> Outcome<Daemon> {
    let (port, at) = (ports::free(), directory.join("store"));
    // A bucket is a directory.
    fs::create_dir_all(at.join(PLACE.split('/').next().unwrap_or(PLACE)))?;
    let mut command = Command::new(program);
    command.args(["--port", &format!("127.0.0.1:{port}")]).arg("posix").arg(&at);
    command.env("ROOT_ACCESS_KEY_ID", ACCESS).env("ROOT_SECRET_ACCESS_KEY", SECRET);
    Daemon::start("store", directory, &mut command)?.listens(port)
}

struct Demo<'a> {
    program: PathBuf,
    archive: &'a Archive,
    mirrors: &'a [Server],
    queue: &'a Daemon,
    store: &'a Daemon,
    directory: PathBuf,
}

impl Demo<'_> {
    /// The program with nothing inherited that could change its work.
    fn command(&self, arguments: &[&str], user: [&str; 2]) -> Command {
        let mut command = process::clean_command(&self.program);
        command.args(arguments).args(["--endpoint", &self.store.url("http")]);
        command.env("AWS_ACCESS_KEY_ID", ACCESS).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command.env("FULLBORE_QUEUE_USER", user[0]).env("FULLBORE_QUEUE_PASSWORD", user[1]);
        command
    }

    fn start_worker(&self, number: usize) -> Outcome<Daemon> {
        let place = format!("s3://{PLACE}");
        let mut command = self.command(&["work", &self.queue.url("nats"), "--only", &place], WORKER);
        println!("$ fullbore {}", shown(&command));
        Daemon::start(&format!("worker {number}"), &self.directory, &mut command)
    }

    /// The place of the worker with the most connections to mirrors, as the queue has them.
    fn busiest(&self, workers: &[Daemon]) -> Outcome<usize> {
        let mut command = process::clean_command(&self.program);
        command.args(["work", &self.queue.url("nats"), "--status"]);
        command.env("FULLBORE_QUEUE_USER", WORKER[0]).env("FULLBORE_QUEUE_PASSWORD", WORKER[1]);
        println!("$ fullbore {}", shown(&command));
        let status = String::from_utf8(command.output()?.stdout)?;
        print!("{status}");
        // worker NAME on HOST (…): RUN, 3 connections
        let connections = |worker: &Daemon| {
            let log = worker.log();
            let name = log
                .lines()
                .find_map(|line| line.split("worker ").nth(1)?.split_once(" waits for"))
                .map(|(name, _)| name);
            let line =
                status.lines().find(|line| name.is_some_and(|name| line.starts_with(&format!("worker {name} "))))?;
            line.rsplit(", ").next()?.split(' ').next()?.parse::<u32>().ok()
        };
        let counted = workers.iter().enumerate().filter_map(|(place, worker)| Some((connections(worker)?, place)));
        match counted.max() {
            Some((connections, place)) if connections > 0 => Ok(place),
            _ => Err("no worker has a connection to a mirror".into()),
        }
    }

    fn start_planner(&self) -> Outcome<Daemon> {
        let (place, queue) = (format!("s3://{PLACE}"), self.queue.url("nats"));
        // All packages come from workers.
        let mut command = self.command(&["mirror", "--to", &place, "--queue", &queue, "--no-local"], PLANNER);
        for server in self.mirrors {
            command.args(["--from", &server.url()]);
        }
        command.args(["--suite", &SUITES.join(","), "--component", &COMPONENTS.join(",")]);
        command.args(["--arch", &ARCHITECTURES.join(",")]).arg("--keyring").arg(self.archive.key());
        println!("$ fullbore {}", shown(&command));
        Daemon::start("planner", &self.directory, &mut command)
    }

    /// The objects of the mirror, as the store keeps them: files below a directory.
    fn bucket(&self) -> PathBuf {
        self.directory.join("store").join(PLACE)
    }

    /// Packages in the store, and their bytes.
    fn stored(&self) -> (usize, u64) {
        let mut stored = (0, 0);
        // Before the first package there is no directory, and directories may change under the walk.
        let _ = verify::walk(&self.bucket().join("pool"), &mut |path| {
            stored.0 += 1;
            stored.1 += fs::metadata(path).map_or(0, |about| about.len());
        });
        stored
    }

    /// Waits until a third of the bytes is stored.
    fn wait_for_share(&self, planner: &mut Daemon, needed: u64, begun: Instant) -> Outcome<()> {
        while self.stored().1 * 3 < needed {
            if let Some(status) = planner.process.try_wait()? {
                return Err(format!("fullbore mirror ended early with {status}: {}", planner.log()).into());
            }
            if begun.elapsed() > RUN_MAX {
                return Err(format!("nothing gets forward: {}", planner.log()).into());
            }
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

fn shown(command: &Command) -> String {
    command.get_args().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
