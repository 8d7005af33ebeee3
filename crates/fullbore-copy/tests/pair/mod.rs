//! Sender and receiver in one process, with somebody between them who sees every message.
#![allow(dead_code)] // each test takes what it needs

pub mod disk;
pub mod scene;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fullbore_copy::error::CopyError;
use fullbore_copy::options::{Compress, Options};
use fullbore_copy::queue::{Queue, Taken};
use fullbore_copy::receiver::{self, Destination};
use fullbore_copy::sender::{self, Source, Sources};
use fullbore_copy::session::{CancelToken, Context, Event, Exchange, Link, Progress, RateLimit};
use fullbore_copy::wire::{Account, Decoder, Message, WireError, encode};
use fullbore_engine::durability::Durability;
use fullbore_engine::stage::{Kind, Ledger};
use fullbore_engine::window::Window;

/// What becomes of a message.
pub enum Step {
    /// It goes on.
    Pass,
    /// It is held back, and looked at again soon; messages of other connections go on.
    Later,
    /// The connection breaks here.
    Cut,
}

/// A copy with both ends here.
pub struct Pair<'a> {
    source: &'a Path,
    target: &'a Path,
    options: &'a Options,
    rotational: bool,
}

/// No syncs: nothing is lost while the machine runs. No compression that may or may not come.
pub fn options() -> Options {
    Options { durability: Durability::None, threads: 2, compress: Compress::Never, ..Options::default() }
}

impl<'a> Pair<'a> {
    /// From one directory's content to another.
    pub fn new(source: &'a Path, target: &'a Path, options: &'a Options) -> Pair<'a> {
        Pair { source, target, options, rotational: false }
    }

    /// With a source on a disk whose arm has to be moved.
    pub fn on_an_arm(self) -> Pair<'a> {
        Pair { rotational: true, ..self }
    }

    /// Runs it; true if it came to its end.
    pub fn run(&self, look: impl FnMut(&Message) -> Step + Send) -> bool {
        self.run_and_tell(look, &|_: Event| {}).is_some()
    }

    /// Runs it, tells of what the receiver tells of, and gives its figures if it came to its end.
    pub fn run_and_tell(
        &self,
        look: impl FnMut(&Message) -> Step + Send,
        tell: &(dyn Fn(Event) + Sync),
    ) -> Option<Account> {
        let (near, far) = (Link::remote(), Link::remote());
        let (near_cancel, far_cancel) = (CancelToken::new(&near), CancelToken::new(&far));
        let ledger = Ledger::off();
        let clock = ledger.stage("test", Kind::Thread);
        let look = Mutex::new(look);
        let pump = |from: &Queue<Message>, to: &Queue<Message>| {
            loop {
                match from.pop_within(Duration::from_secs(60), &clock) {
                    Taken::Item(message) => {
                        // The next one is seen when this one is on its way: as on a wire.
                        let step = || (look.lock().unwrap())(&message);
                        let mut next = step();
                        while matches!(next, Step::Later) {
                            std::thread::sleep(scene::LOOK);
                            next = step();
                        }
                        if matches!(next, Step::Cut) {
                            near_cancel.cancel(CopyError::Network("cut".to_owned()));
                            far_cancel.cancel(CopyError::Network("cut".to_owned()));
                            return;
                        }
                        let message = match carried(&message) {
                            Ok(message) => message,
                            Err(error) => {
                                near_cancel.cancel(CopyError::Protocol(error));
                                return;
                            }
                        };
                        if to.push(message, &clock).is_err() {
                            // As where a connection is cut: whoever has more to say does not wait.
                            return from.break_off();
                        }
                    }
                    Taken::End | Taken::TimedOut => return to.close(),
                }
            }
        };
        let tell = &tell;
        let (exchange, limit) = (Exchange::default(), RateLimit::new(0, Instant::now()));
        let (near_progress, far_progress) = (Progress::default(), Progress::default());
        let ends = [(&near, &near_cancel, &near_progress), (&far, &far_cancel, &far_progress)];
        let [sends, receives] = ends.map(|(link, cancel, progress)| Context {
            options: self.options,
            link: link.clone(),
            cancel: cancel.clone(),
            ledger: &ledger,
            progress,
            tell,
            exchange: &exchange,
            limit: &limit,
        });
        let sources = Sources {
            sources: vec![Source::open(&self.source.join("")).unwrap()],
            missing: Vec::new(),
            only: None,
            skip: None,
            rotational: self.rotational,
        };
        let destination = Destination { beside_source: true, ..Destination::at(self.target) };
        std::thread::scope(|scope| {
            scope.spawn(|| pump(&near.control_out, &far.control_in));
            scope.spawn(|| pump(&far.control_out, &near.control_in));
            scope.spawn(|| pump(&near.data, &far.data));
            let sending = scope.spawn(|| {
                let window = Window::new(64 << 20, 1000);
                let sent = sender::run(&sends, &sources, &window);
                near.data.close();
                near.control_out.close();
                if let Err(error) = &sent {
                    eprintln!("the sender: {error}");
                }
                sent.is_ok()
            });
            let received = receiver::run(&receives, &destination);
            let received = received.inspect_err(|error| eprintln!("the receiver: {error}")).ok();
            far.control_out.close();
            far.data.break_off();
            let account = received.filter(|_| sending.join().unwrap())?;
            // The sender's user sees as well that the totals are final.
            assert_eq!((near_progress.account(), near_progress.is_complete()), (account, true));
            Some(account)
        })
    }
}

/// A message as it comes out at the other end of a wire.
fn carried(message: &Message) -> Result<Message, WireError> {
    let mut frame = Vec::new();
    let payload = encode(message, &mut frame).to_vec();
    frame.extend_from_slice(&payload);
    let (mut decoder, mut rest) = (Decoder::new(), &frame[..]);
    loop {
        let space = decoder.space();
        let count = space.len().min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        if let Some(message) = decoder.filled(count)? {
            return Ok(message);
        }
    }
}

/// Makes a small tree with all sizes of files, other content for each seed; gives the bytes of its content.
pub fn tree(path: &Path, seed: u64) -> u64 {
    fs::create_dir_all(path.join("dir/sub")).unwrap();
    let mut total = 0;
    let mut write = |name: &str, length: usize| {
        let mut content = vec![0; length];
        for (page, space) in content.chunks_mut(4096).enumerate() {
            space.fill((page as u64 * 31 + seed) as u8);
        }
        fs::write(path.join(name), &content).unwrap();
        total += length as u64;
    };
    for number in 0..30 {
        write(&format!("dir/sub/{number}"), number * 700);
    }
    write("dir/medium", 300_000);
    write("big", (3 << 20) + 12_345);
    write("exact", 1 << 20);
    let sparse = fs::File::create(path.join("sparse")).unwrap();
    sparse.set_len(20 << 20).unwrap();
    sparse.write_all_at(b"island", 7 << 20).unwrap();
    (&sparse).write_all(b"coast").unwrap();
    total + 11
}

/// Fails unless two trees have the same files with the same content and times, and none of our own names.
pub fn equal(one: &Path, other: &Path) {
    let mut names: Vec<_> = fs::read_dir(one).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let mut others: Vec<_> = fs::read_dir(other).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    others.sort();
    assert_eq!(names, others, "in {}", other.display());
    for name in names {
        let (one, other) = (one.join(&name), other.join(&name));
        let (left, right) = (fs::symlink_metadata(&one).unwrap(), fs::symlink_metadata(&other).unwrap());
        assert_eq!(left.modified().unwrap(), right.modified().unwrap(), "{}", other.display());
        if left.is_dir() {
            equal(&one, &other);
        } else {
            assert!(fs::read(&one).unwrap() == fs::read(&other).unwrap(), "{}", other.display());
        }
    }
}
