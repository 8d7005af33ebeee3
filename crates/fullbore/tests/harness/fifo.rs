//! Named pipes by which a test tells a program to go on.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// How long the program may take to come to read; a guess for a busy machine.
const COMES_WITHIN: Duration = Duration::from_secs(60);

/// Writes a text, once somebody reads, or does not if it `is_over`: opening it to write would wait for ever for a reader
/// that has ended.
pub fn tell(fifo: &Path, text: &str, is_over: &mut dyn FnMut() -> bool) {
    let begun = Instant::now();
    loop {
        match rustix::fs::open(fifo, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
            Ok(pipe) => return File::from(pipe).write_all(text.as_bytes()).unwrap(),
            Err(error) => assert_eq!(error, Errno::NXIO),
        }
        if is_over() {
            return;
        }
        assert!(begun.elapsed() < COMES_WITHIN, "nobody reads {}", fifo.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}
