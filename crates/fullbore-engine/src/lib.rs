//! The engine under every command of fullbore: it moves bulk data and says what limits it.
//!
//! | module | what for |
//! |---|---|
//! | [`window`] | bounds the bytes and items in flight by permits |
//! | [`stage`] | clocks that measure what each stage waits for |
//! | [`pipeline`] | bounded channels between stages, whose waits are timed |
//! | [`landing`] | writes and hashes received files on threads of its own |
//! | [`target`], [`files`], [`durability`], [`journal`] | durable files: one module creates them, one syncs |
//! | [`verdict`] | names the limit of a run from the clocks and the kernel's counters |
//! | [`run`] | events, error kinds, report and signals that all commands share |
//!
//! The engine is no runtime: callers bring threads or tokio. It has no sockets (see `fullbore-wire`). It never prints
//! and never reads the environment. It exits only on a second signal, in [`run::signals`].
//!
//! # Example
//!
//! Two stages with at most 1 MiB and 16 items in flight. A permit travels with its item; dropping it gives its bytes
//! back to the window.
//!
//! ```
//! use fullbore_engine::pipeline;
//! use fullbore_engine::stage::{Kind, Ledger};
//! use fullbore_engine::window::{Permit, Window};
//!
//! let ledger = Ledger::new();
//! let (read, write) = (ledger.stage("read", Kind::Thread), ledger.stage("write", Kind::Thread));
//! let window = Window::new(1 << 20, 16);
//! let (sender, mut receiver) = pipeline::channel::<(Permit, Vec<u8>)>(4, &read, &write);
//! let source = window.clone();
//! let reader = std::thread::spawn(move || {
//!     read.adopt_thread();
//!     for _ in 0..100 {
//!         let permit = source.acquire_blocking(64 << 10);
//!         sender.send_blocking((permit, vec![0; 64 << 10])).expect("the writer goes on to the end");
//!     }
//! });
//! write.adopt_thread();
//! let mut written = 0;
//! while let Some((permit, bytes)) = receiver.recv_blocking() {
//!     written += bytes.len();
//!     write.add_items(1, permit.bytes());
//! }
//! reader.join().expect("the reader does not panic");
//! assert_eq!(written, 6_553_600);
//! assert_eq!((write.reading().items, window.reading().held_bytes), (100, 0));
//! ```

#![warn(unreachable_pub)]

// Errors are `#[non_exhaustive]`. Events, phases, error kinds and limits are not, because code that shows them must
// handle each.

/// Version of fullbore, from the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub mod buffers;
pub mod durability;
pub mod escape;
pub mod files;
pub mod filter;
pub mod journal;
pub mod landing;
pub mod machine;
pub mod memory;
pub mod memory_pool;
pub mod output;
pub mod pipeline;
pub mod random;
pub mod ranges;
pub mod run;
pub mod stage;
pub mod sys;
pub mod target;
pub mod temporary;
pub mod tree;
pub mod units;
pub mod verdict;
pub mod window;

// A separate crate, so that the formats need no engine.
pub use fullbore_digest as digest;
