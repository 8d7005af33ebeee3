//! What a pipe gives, in memory: as much of the window as has come, and little for one that gives nothing for hours.
//!
//! Room is taken step by step. Pipes that each hold some and wait for more could wait for one another for ever: what all
//! of them hold of parts that are not full has a bound of its own, and beyond it one pipe at a time goes on.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use fullbore_engine::window::{Permit, Window};
use tokio::runtime::Handle;

use super::work::Work;

/// The first step, which every pipe may take: what the kernel keeps for one. Further steps add a quarter of what there is.
const STEP_BYTES: u64 = 64 << 10;

/// Room in the window, until the last of those who share it lets go.
pub type Held = Arc<Vec<Permit>>;

/// Content, and its room.
#[derive(Debug, Default)]
pub struct Gathered {
    /// The bytes.
    pub content: Bytes,
    /// Their permits.
    pub held: Held,
}

/// Memory for pipes. Clones share it.
#[derive(Debug, Clone)]
pub struct Gathering {
    window: Window,
    /// Of what is not full, beyond the first step.
    growing: Window,
    /// Whose turn it is when that is taken.
    turn: Window,
}

impl Gathering {
    /// Within this window. What is not full takes three eighths of it, and whoever has the turn a part more: a quarter at
    /// most. What is left is enough for all others.
    pub fn new(window: &Window) -> Gathering {
        let growing = Window::new(window.reading().bytes / 8 * 3, u32::MAX);
        Gathering { window: window.clone(), growing, turn: Window::new(1, 1) }
    }

    /// Reads so many bytes, or to the end. On a thread of a runtime that may wait.
    ///
    /// # Errors
    /// The source cannot be read; its error is returned unchanged.
    pub fn read(&self, from: &mut dyn Read, bytes: u64, work: &Work) -> io::Result<Gathered> {
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

    /// The right to hold more of what is not full: so many bytes, or the turn to take what it needs.
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
