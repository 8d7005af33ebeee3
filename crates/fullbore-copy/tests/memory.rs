//! An end that talks without an end takes no memory of the other one.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod pair;

use std::fs;
use std::time::Instant;

use fullbore_copy::queue::Taken;
use fullbore_copy::receiver::{self, Destination};
use fullbore_copy::sender::{self, Source, Sources};
use fullbore_copy::session::{CancelToken, Context, Event, Exchange, Progress, RateLimit};
use fullbore_copy::wire::{Account, Basis, Message, Owner, Problem, ProblemKind};
use fullbore_engine::stage::{Kind, Ledger};
use fullbore_engine::window::Window;
use pair::scene::{LOOK, Scene, list};

/// What is said, by its number.
type Say<'a> = dyn Fn(u64) -> Message + Sync + 'a;

/// Messages of a flood.
const FLOOD: u64 = 1_000_000;
/// Of other messages.
const SHORT_FLOOD: u64 = 200_000;
/// What it may cost, in bytes.
const MOST_BYTES: u64 = 100 << 20;

/// What this process has in memory, in bytes (proc(5), `VmRSS`).
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn problem(number: u64) -> Message {
    let kind = ProblemKind::ALL[number as usize % ProblemKind::ALL.len()];
    let path = format!("{number:0200}").into_bytes();
    Message::Problem(Problem { kind, path, text: format!("{number:0200}") })
}

/// Runs an end against a flood of so many messages; gives how many bytes more it had at most, and whether it ended by itself.
fn flood(scene: &Scene, end: impl FnOnce(&Context<'_>) + Send, message: &Say<'_>, count: u64) -> (u64, bool) {
    let clock = Ledger::off().stage("test", Kind::Thread);
    let (ledger, progress) = (Ledger::off(), Progress::default());
    let (exchange, limit) = (Exchange::default(), RateLimit::new(0, Instant::now()));
    let before = resident_bytes();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            end(&Context {
                options: &scene.options,
                link: scene.link.clone(),
                cancel: CancelToken::new(&scene.link),
                ledger: &ledger,
                progress: &progress,
                tell: &|_: Event| {},
                exchange: &exchange,
                limit: &limit,
            });
        });
        // What it says itself is taken.
        let hearing = scope.spawn(|| {
            let clock = Ledger::off().stage("test", Kind::Thread);
            while !matches!(scene.link.control_out.pop_within(LOOK * 1000, &clock), Taken::End) {}
        });
        let mut most = 0;
        let mut is_heard = true;
        for number in 0..count {
            is_heard = scene.link.control_in.push(message(number), &clock).is_ok();
            if number % 10_000 == 0 || !is_heard {
                most = most.max(resident_bytes().saturating_sub(before));
            }
            if !is_heard {
                break;
            }
        }
        most = most.max(resident_bytes().saturating_sub(before));
        scene.end();
        running.join().unwrap();
        scene.link.control_out.break_off();
        hearing.join().unwrap();
        (most, !is_heard)
    })
}

#[test]
fn a_flood_of_messages_takes_no_memory() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("place");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("file"), "x").unwrap();
    let name = fs::read_to_string("/etc/passwd").unwrap();
    let name = name.lines().find_map(|line| line.split(':').next().filter(|_| line.contains(":1:"))).expect("a user 1");
    let owners = |number: u64| {
        let owner = |id| Owner { group: false, id, name: name.into() };
        Message::Owners((number * 10..number * 10 + 10).map(|id| owner(id as u32)).collect())
    };
    let open_list = |number: u64| {
        let Message::List(list) = list(0, &format!("{number:0200}"), Vec::new()) else { unreachable!() };
        Message::List(fullbore_copy::wire::List { more: true, ..list })
    };
    // What a sender may say to a receiver; whether that ends it.
    let to_receiver: [(&str, &Say<'_>, bool); 5] = [
        ("problems", &problem, false),
        ("files that are lost", &|id| Message::Lost { id }, false),
        ("counters", &|_| Message::Counters(vec![b'x'; 1000]), false),
        ("owners", &owners, true),
        ("directories that are not there", &open_list, false),
    ];
    for (what, message, ends) in to_receiver {
        let mut scene = Scene::new();
        scene.options.delete = true;
        let end = |context: &Context<'_>| drop(receiver::run(context, &Destination::at(&place)));
        let (most, ended) = flood(&scene, end, message, if what == "problems" { FLOOD } else { SHORT_FLOOD });
        assert!(most < MOST_BYTES, "{what}: {most} bytes");
        assert_eq!(ended, ends, "{what}");
    }
    let account = Account::default();
    let to_sender: [(&str, &Say<'_>); 6] = [
        ("problems", &problem),
        ("names made", &|number| Message::Made { path: format!("{number:0200}").into_bytes() }),
        ("names deleted", &|number| Message::Deleted { path: format!("{number:0200}").into_bytes() }),
        ("numbers of nothing visible", &|number| Message::Visible { ids: vec![number + 1000; 10], last: false }),
        ("figures", &|_| Message::Account { account, last: false }),
        ("hashes that nobody needs", &|_| {
            Message::Basis(Basis { id: 0, first: 0, hashes: vec![[7; 32]], last: false })
        }),
    ];
    for (what, message) in to_sender {
        let mut scene = Scene::new();
        scene.options.remove_source_files = true;
        let sources = Sources {
            sources: vec![Source::open(&place.join("")).unwrap()],
            missing: Vec::new(),
            only: None,
            skip: None,
            rotational: false,
        };
        let end = |context: &Context<'_>| drop(sender::run(context, &sources, &Window::new(64 << 20, 1000)));
        let (most, _) = flood(&scene, end, message, if what == "problems" { FLOOD } else { SHORT_FLOOD });
        assert!(most < MOST_BYTES, "{what}: {most} bytes");
    }
}

#[test]
fn directories_that_are_opened_without_an_end_end_the_copy() {
    let directory = tempfile::tempdir().unwrap();
    let mut scene = Scene::new();
    scene.options.delete = true;
    let mut control = Vec::new();
    for number in 0..100 {
        let name = number.to_string();
        fs::create_dir(directory.path().join(&name)).unwrap();
        let Message::List(list) = list(0, &name, Vec::new()) else { unreachable!() };
        control.push(Message::List(fullbore_copy::wire::List { more: true, ..list }));
    }
    let error = scene.receive(directory.path(), control, Vec::new()).unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("more directories at once"), "{error}");
}
