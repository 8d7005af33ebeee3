//! An end that lies: what it says leads to an error, never outside of source or destination.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod pair;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

use fullbore_copy::entry::{Entry, Kind as EntryKind};
use fullbore_copy::error::CopyError;
use fullbore_copy::options::Options;
use fullbore_copy::queue::Taken;
use fullbore_copy::receiver::{self, Destination};
use fullbore_copy::sender::{self, Source, Sources};
use fullbore_copy::wire::{Answer, Message, Pack, Payload, Problem, Run, Wanted, blocks};
use fullbore_engine::stage::{Kind, Ledger};
use fullbore_engine::window::Window;
use pair::scene::{LONG, LOOK, Scene, block, file, finish, list, pack};

fn same(id: u64) -> Message {
    Message::Same { sequence: 0, id, run: Run { first: 0, count: 1 } }
}

/// A record of three bytes, said to be compressed.
fn compressed(payload: &[u8]) -> Message {
    let Message::Pack(pack) = pack(0, b"abc") else { unreachable!() };
    Message::Pack(Pack { compressed: true, payload: Payload::new(payload.to_vec()), ..pack })
}

#[test]
fn a_sender_cannot_write_through_a_link_that_it_made() {
    let directory = tempfile::tempdir().unwrap();
    let (target, outside) = (directory.path().join("dst"), directory.path().join("outside"));
    fs::create_dir(&target).unwrap();
    fs::create_dir(&outside).unwrap();
    let link =
        Entry { target: outside.as_os_str().as_encoded_bytes().to_vec(), ..Entry::plain(b"a", EntryKind::Symlink) };
    let control =
        vec![list(0, "", vec![link]), list(1, "a", vec![file("file", 3)]), Message::Listed { entries: 2, errors: 0 }];
    let scene = Scene::new();
    scene.receive(&target, control, Vec::new()).unwrap();
    assert!(fs::read_dir(&outside).unwrap().next().is_none());
    assert!(!scene.with(|_| scene.problems.lock().unwrap().is_empty()));
}

#[test]
fn a_sender_that_breaks_its_word_is_left() {
    let listed =
        || vec![list(0, "", vec![file("file", 3), file("big", 3 << 20)]), Message::Listed { entries: 2, errors: 0 }];
    let wrong_hash = {
        let Message::Pack(pack) = pack(0, b"abc") else { unreachable!() };
        Message::Pack(Pack { hash: [0; 32], ..pack })
    };
    let cases = [
        ("a record longer than the file", listed(), vec![pack(0, b"abcdef")]),
        ("a file that nobody asked for", listed(), vec![pack(7, b"abc")]),
        ("a big file in a record", listed(), vec![pack(1, b"abc")]),
        ("a block of a small file", listed(), vec![block(0, 0, b"abc")]),
        ("a block beyond the end", listed(), vec![block(1, 3, b"abc")]),
        ("a block too long", listed(), vec![block(1, 0, &vec![0; (1 << 20) + 1])]),
        ("content with another hash", listed(), vec![wrong_hash]),
        (
            "holes in a file without",
            listed(),
            vec![Message::Holes { sequence: 0, id: 1, run: Run { first: 0, count: 1 } }],
        ),
        ("blocks of an old file that was not compared", listed(), vec![same(1)]),
        ("a file that is the same and was not compared", listed(), vec![Message::Identical { sequence: 0, id: 0 }]),
        ("a big file that is the same and was not compared", listed(), vec![Message::Identical { sequence: 0, id: 1 }]),
        ("what cannot be decompressed", listed(), vec![compressed(b"\x28\xb5\x2f\xfd\x00")]),
        ("numbers with a gap", vec![list(5, "", vec![file("file", 3)])], Vec::new()),
        ("another count", vec![list(0, "", Vec::new()), Message::Listed { entries: 9, errors: 0 }], Vec::new()),
        ("a receiver's message", vec![Message::Begin], Vec::new()),
        ("the end before all was listed", vec![list(0, "", Vec::new()), finish(0)], Vec::new()),
        ("the end before all was sent", listed().into_iter().chain([finish(0)]).collect(), Vec::new()),
    ];
    for (what, control, data) in cases {
        let directory = tempfile::tempdir().unwrap();
        let error = Scene::new().receive(directory.path(), control, data).expect_err(what);
        assert!(matches!(*error, CopyError::Meaning(_) | CopyError::Verification { .. }), "{what}: {error}");
        assert!(!directory.path().join("file").exists(), "{what}: a name was given");
    }
}

#[test]
fn the_end_is_waited_for_that_was_told_before_the_last_records_came() {
    let directory = tempfile::tempdir().unwrap();
    let control =
        vec![list(0, "", vec![file("one", 3), file("other", 3)]), Message::Listed { entries: 2, errors: 0 }, finish(2)];
    Scene::new().receive(directory.path(), control, vec![pack(0, b"abc"), pack(1, b"def")]).unwrap();
    assert_eq!(fs::read(directory.path().join("one")).unwrap(), b"abc");
    assert_eq!(fs::read(directory.path().join("other")).unwrap(), b"def");
}

#[test]
fn queued_lists_share_one_answer_within_its_bound() {
    let directory = tempfile::tempdir().unwrap();
    let mut scene = Scene::new();
    scene.options.dry_run = true;
    let clock = Ledger::off().stage("test", Kind::Thread);
    let names = ["a", "b", "c"].map(|name| Entry::plain(name.as_bytes(), EntryKind::Directory));
    let files = || (0..600).map(|number| file(&format!("{number}"), 3)).collect();
    let end = [Message::Listed { entries: 1203, errors: 0 }, finish(0)];
    let lists = [list(0, "", names.into()), list(3, "a", Vec::new()), list(3, "b", files()), list(603, "c", files())];
    for message in lists.into_iter().chain(end) {
        scene.link.control_in.push(message, &clock).unwrap();
    }
    scene.with(|context| receiver::run(context, &Destination::at(directory.path()))).unwrap();
    let answers: Vec<(u64, usize)> = std::iter::from_fn(|| scene.link.control_out.try_pop())
        .filter_map(|message| match message {
            Message::Answer(answer) => Some((answer.through, answer.wanted.len())),
            _ => None,
        })
        .collect();
    assert_eq!(answers, [(603, 600), (1203, 600)]);
}

#[test]
fn a_file_that_claims_any_size_is_its_own_problem() {
    const ANY: u64 = i64::MAX as u64;
    let directory = tempfile::tempdir().unwrap();
    // As `truncate -s 7E` makes it on file systems that take it; here several of them.
    let holes = |number: usize| Entry { stored: Some(0), ..file(&format!("huge-{number}"), ANY) };
    let mut entries: Vec<Entry> = (0..20).map(holes).collect();
    entries.push(file("small", 3));
    let control = vec![list(0, "", entries), Message::Listed { entries: 21, errors: 0 }];
    let all = Run { first: 0, count: blocks(ANY) };
    let mut data: Vec<Message> = (0..20).map(|id| Message::Holes { sequence: 0, id, run: all }).collect();
    data.push(pack(20, b"abc"));
    let mut scene = Scene::new();
    scene.options.verify = true;
    scene.receive(directory.path(), control, data).unwrap();
    assert_eq!(fs::read(directory.path().join("small")).unwrap(), b"abc");
    // Each is there, or was named.
    let there = (0..20).filter(|number| directory.path().join(format!("huge-{number}")).exists()).count();
    assert_eq!(scene.problems.lock().unwrap().len() + there, 20);
    // Without holes it is what does not fit.
    let control = vec![list(0, "", vec![file("huge", ANY)]), Message::Listed { entries: 1, errors: 0 }];
    let error = Scene::new().receive(directory.path(), control, Vec::new()).unwrap_err();
    assert!(matches!(*error, CopyError::Disk(_)), "{error}");
}

fn sources(source: &Path) -> Sources {
    Sources {
        sources: vec![Source::open(&source.join("")).unwrap()],
        missing: Vec::new(),
        only: None,
        skip: None,
        rotational: false,
    }
}

/// What the sender makes of a receiver that answers its lists like this.
fn send(source: &Path, answer: impl Fn(u64) -> Vec<Message>, before: impl Fn()) -> (bool, Vec<Message>, Vec<Problem>) {
    let scene = Scene::new();
    let clock = Ledger::off().stage("test", Kind::Thread);
    let sources = sources(source);
    let (mut sent, mut all) = (Vec::new(), None);
    let ended = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let window = Window::new(64 << 20, 1000);
            scene.with(|context| sender::run(context, &sources, &window).is_ok())
        });
        let until = Instant::now() + LONG;
        while !sending.is_finished() && Instant::now() < until {
            match scene.link.control_out.pop_within(LOOK, &clock) {
                Taken::Item(Message::Listed { entries, .. }) => {
                    before();
                    for message in answer(entries) {
                        let _ = scene.link.control_in.push(message, &clock);
                    }
                }
                Taken::Item(Message::Finish { records }) => all = Some(records),
                _ => {}
            }
            while let Some(message) = scene.link.data.try_pop() {
                if let Message::Pack(pack) = &message {
                    let _ = scene.link.control_in.push(Message::Acknowledge { sequence: pack.sequence }, &clock);
                }
                sent.push(message);
            }
            if all.take_if(|records| *records == sent.len() as u64).is_some() {
                let last = Message::Account { account: Default::default(), last: true };
                let _ = scene.link.control_in.push(last, &clock);
            }
        }
        scene.end();
        sending.join().unwrap()
    });
    let problems = scene.problems.lock().unwrap().clone();
    (ended, sent, problems)
}

#[test]
fn a_receiver_gets_nothing_but_what_was_listed() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("src");
    fs::create_dir_all(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), "inside").unwrap();
    let wanted = |ids: &[u64]| {
        ids.iter().map(|id| Wanted { id: *id, have: Vec::new(), compare: false, same_size: false }).collect()
    };
    let all = |entries| Message::Answer(Answer { through: entries, wanted: wanted(&[entries - 1]) });
    let (ended, sent, _) = send(&source, |entries| vec![all(entries), Message::Begin], || ());
    assert!(ended && sent.len() == 1, "{sent:?}");
    let hashed = |_| Message::Hashed { path: b"dir/file".into(), hash: [7; 32] };
    let lies: [&dyn Fn(u64) -> Vec<Message>; 7] = [
        &|entries| vec![Message::Answer(Answer { through: entries + 1, wanted: Vec::new() })],
        &|entries| vec![Message::Answer(Answer { through: entries, wanted: wanted(&[0]) })],
        &|entries| vec![all(entries), Message::Answer(Answer { through: entries, wanted: wanted(&[entries - 1]) })],
        &|_| vec![Message::Acknowledge { sequence: 5 }],
        &|_| vec![finish(0)],
        &|entries| vec![all(entries), Message::Account { account: Default::default(), last: true }],
        // More hashes than there are entries.
        &|entries| (0..=entries).map(hashed).collect(),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let (ended, sent, _) = send(&source, lie, || ());
        assert!(!ended && sent.is_empty(), "lie {number}: {sent:?}");
    }
}

#[test]
fn a_directory_that_became_a_link_meanwhile_is_not_read_through() {
    let directory = tempfile::tempdir().unwrap();
    let (source, outside) = (directory.path().join("src"), directory.path().join("outside"));
    fs::create_dir_all(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), "inside").unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "secret").unwrap();
    let answer = |entries| {
        let wanted = vec![Wanted { id: entries - 1, have: Vec::new(), compare: false, same_size: false }];
        vec![Message::Answer(Answer { through: entries, wanted }), Message::Begin]
    };
    let swap = || {
        fs::rename(source.join("dir"), source.join("away")).unwrap();
        symlink(&outside, source.join("dir")).unwrap();
    };
    let (ended, sent, problems) = send(&source, answer, swap);
    assert!(ended && sent.is_empty(), "{sent:?}");
    assert_eq!(problems.len(), 1, "{problems:?}");
}

#[test]
fn a_sender_with_many_failed_removals_still_listens() {
    let directory = tempfile::tempdir().unwrap();
    for number in 0..200 {
        fs::write(directory.path().join(number.to_string()), "listed").unwrap();
    }
    let scene = Scene { options: Options { remove_source_files: true, ..pair::options() }, ..Scene::new() };
    let (clock, sources) = (Ledger::off().stage("test", Kind::Thread), sources(directory.path()));
    let window = Window::new(64 << 20, 1000);
    std::thread::scope(|scope| {
        scope.spawn(|| scene.with(|context| sender::run(context, &sources, &window).is_ok()));
        let entries = loop {
            match scene.link.control_out.pop_within(LONG, &clock) {
                Taken::Item(Message::Listed { entries, .. }) => break entries,
                Taken::Item(_) => {}
                taken => panic!("{taken:?}"),
            }
        };
        for number in 0..200 {
            fs::write(directory.path().join(number.to_string()), "edited").unwrap();
        }
        // From now on nobody takes what it says.
        let (scene, clock) = (&scene, &clock);
        let telling = scope.spawn(move || {
            let first = [
                Message::Answer(Answer { through: entries, wanted: Vec::new() }),
                Message::Visible { ids: (0..entries).collect(), last: false },
            ];
            let accounts = (0..200).map(|_| Message::Account { account: Default::default(), last: false });
            first.into_iter().chain(accounts).all(|message| scene.link.control_in.push(message, clock).is_ok())
        });
        let until = Instant::now() + LONG;
        while !telling.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        scene.end();
        assert!(telling.join().unwrap(), "the sender does not listen");
    });
}

#[test]
fn a_sender_whose_other_end_is_gone_does_not_wait_to_be_heard() {
    let directory = tempfile::tempdir().unwrap();
    for number in 0..200 {
        // Each is told of by itself, as what is not copied.
        fs::write(directory.path().join(format!(".{number}.fullbore-part")), "").unwrap();
    }
    let (scene, sources) = (Scene::new(), sources(directory.path()));
    let window = Window::new(64 << 20, 1000);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| scene.with(|context| sender::run(context, &sources, &window).map(drop)));
        let until = Instant::now() + LONG;
        // What is said nobody takes, and then nothing more comes.
        while !scene.link.control_out.is_full() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        scene.link.control_in.close();
        while !sending.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        let ended = sending.is_finished();
        scene.end();
        let error = sending.join().unwrap().unwrap_err();
        assert!(ended && error.is_lost_connection(), "{error}");
    });
}
