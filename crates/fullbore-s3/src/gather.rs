//! Memory for the content of pipes: it grows with the received bytes, so a pipe that stays silent for hours takes
//! little.
//!
//! Memory is taken step by step. Pipes that each hold some and need more could wait for one another for ever. So their
//! incomplete parts together have a limit of their own; beyond it, one pipe at a time continues.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use fullbore_engine::window::{Permit, Window};
use tokio::runtime::Handle;

use super::work::Work;

/// The first step, which every pipe may take: the size of the kernel's pipe buffer. Further steps add a quarter of the
/// present size.
const STEP_BYTES: u64 = 64 << 10;

/// Permits of the window; released when the last holder drops them.
pub(crate) type Held = Arc<Vec<Permit>>;

/// Content with its permits.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// The bytes.
    pub content: Bytes,
    /// Permits of the content.
    pub held: Held,
}

/// Memory for pipes. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Gathering {
    window: Window,
    /// Limit of incomplete parts beyond their first step.
    growing: Window,
    /// Gives one pipe at a time the right to continue beyond that limit.
    turn: Window,
}

impl Gathering {
    /// Creates the limits within this window. Incomplete parts take at most three eighths of it, and the pipe whose
    /// turn it is may take a further part, at most a quarter. The rest suffices for all other content.
    pub(crate) fn new(window: &Window) -> Gathering {
        let growing = Window::new(window.reading().bytes / 8 * 3, u32::MAX);
        Gathering { window: window.clone(), growing, turn: Window::new(1, 1) }
    }

    /// Reads up to `bytes` bytes, or to the end. Blocks; call it on a thread of a runtime that may wait.
    ///
    /// # Errors
    /// The error of the source, unchanged.
    pub(crate) fn read(&self, from: &mut dyn Read, bytes: u64, work: &Work) -> io::Result<Gathered> {
        let (mut content, mut held, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
        let (mut room, mut has_turn) = (0, false);
        while content.len() as u64 == room && room < bytes {
            let step = (room / 4).max(STEP_BYTES).min(bytes - room);
            work.wait(|| {
                if room > 0 && !has_turn {
                    let (permit, is_turn) = Handle::current().block_on(self.grow(step));
                    unfinished.push(permit);
                    has_turn = is_turn;
                }
                held.push(self.window.acquire_bytes_blocking(step));
            });
            room += step;
            content.reserve_exact(usize::try_from(step).unwrap_or(usize::MAX));
            work.read(|| from.take(step).read_to_end(&mut content))?;
        }
        if let Some(last) = held.last_mut() {
            last.shrink(last.bytes().saturating_sub(room - content.len() as u64));
        }
        Ok(Gathered { content: content.into(), held: Arc::new(held) })
    }

    /// Permission to hold `bytes` more of an incomplete part, or the turn to take what it needs.
    async fn grow(&self, bytes: u64) -> (Permit, bool) {
        tokio::select! {
            biased;
            permit = self.growing.acquire_bytes(bytes) => (permit, false),
            permit = self.turn.acquire(0) => (permit, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(window: &Window) -> u64 {
        window.reading().held_bytes
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_pipe_holds_what_has_come_and_little_more() {
        let window = Window::new(64 << 20, 8);
        let gathering = Gathering::new(&window);
        let (mut reader, writer) = io::pipe().unwrap();
        let reading = gathering.clone();
        let part = tokio::task::spawn_blocking(move || reading.read(&mut reader, 16 << 20, &Work::default()));
        let given = tokio::task::spawn_blocking(move || {
            for wanted in [0_u64, 100 << 10, 1 << 20, 3 << 20] {
                let chunk = vec![7; usize::try_from(wanted).unwrap()];
                io::Write::write_all(&mut &writer, &chunk).unwrap();
            }
            writer
        });
        let writer = given.await.unwrap();
        // All but what the kernel keeps was taken.
        assert!(held(&window) <= 16 << 20 && held(&window) >= 4 << 20, "{}", held(&window));
        drop(writer);
        let part = part.await.unwrap().unwrap();
        assert_eq!((part.content.len(), held(&window)), ((4 << 20) + (100 << 10), part.content.len() as u64));
        assert_eq!(window.reading().held_items, 0, "idle pipes leave the items to others");
        drop(part);
        assert_eq!((held(&window), held(&gathering.growing), held(&gathering.turn)), (0, 0, 0));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn pipes_that_give_nothing_leave_the_window_to_others() {
        let window = Window::new(64 << 20, 8);
        let gathering = Gathering::new(&window);
        let pipes: Vec<_> = (0..50).map(|_| io::pipe().unwrap()).collect();
        let (readers, writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
        let parts: Vec<_> = readers
            .into_iter()
            .map(|mut reader| {
                let gathering = gathering.clone();
                tokio::task::spawn_blocking(move || gathering.read(&mut reader, 16 << 20, &Work::default()))
            })
            .collect();
        // Has it all the same.
        drop(window.acquire(48 << 20).await);
        drop(writers);
        for part in parts {
            assert_eq!(part.await.unwrap().unwrap().content.len(), 0);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn pipes_that_all_want_more_do_not_wait_for_one_another() {
        const PART: u64 = 1 << 20;
        let window = Window::new(4 * PART, 8);
        let gathering = Gathering::new(&window);
        let parts: Vec<_> = (0..12)
            .map(|_| {
                let gathering = gathering.clone();
                tokio::task::spawn_blocking(move || {
                    for _ in 0..5 {
                        let part = gathering.read(&mut io::repeat(7), PART, &Work::default()).unwrap();
                        assert_eq!(part.content.len() as u64, PART);
                    }
                })
            })
            .collect();
        for part in parts {
            part.await.unwrap();
        }
        assert_eq!(held(&window), 0);
    }
}
