//! Distributes work to many machines: one planner, any number of workers, and a store that tells what is done.
//!
//! The planner of a mirror knows which files the store lacks. It either pins that list, and machines take [`shards`] of
//! it without communicating. Or it publishes [`tasks`] in a [`queue`](queue::Queue), from which workers pull.
//!
//! The store alone tells what is done: the plan minus its objects is left. The queue only tells which worker is busy.
//! So a queue that loses, repeats or invents messages costs time, but never a file.
//!
//! ```
//! use std::time::Duration;
//!
//! use fullbore_digest::Sha256;
//! use fullbore_fleet::book::{Book, Step};
//! use fullbore_fleet::memory::MemoryQueue;
//! use fullbore_fleet::message::Item;
//! use fullbore_fleet::names::{Class, RunId, WorkerId};
//! use fullbore_fleet::queue::{Counts, Queue};
//! use fullbore_fleet::tasks;
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! // The planner publishes a file that the store lacks.
//! let (queue, run) = (MemoryQueue::new(1), RunId::parse("9c1f")?);
//! let item = Item { path: "pool/main/h/hello.deb".to_owned(), size: 5, sha256: Sha256::of(b"hello") };
//! queue.open(&run).await?;
//! queue.publish(&tasks::pack(&run, 1, vec![item])).await?;
//!
//! // A worker pulls the task, stores the file, and then acknowledges.
//! let (now, wait) = (Duration::ZERO, Duration::from_secs(1));
//! let mut book = Book::new(WorkerId::parse("w1")?, Duration::from_secs(60));
//! for held in queue.pull(&run, Class::Large, 2, wait).await? {
//!     let (begun, _) = book.take(now, held);
//!     let begun = begun.ok_or("a refused task")?;
//!     for step in book.stored(now, begun.number, 0) {
//!         if let Step::Acknowledge(delivery) = step {
//!             queue.acknowledge(&delivery).await?;
//!         }
//!     }
//! }
//! assert_eq!(queue.counts(&run).await?, Counts { waiting: 0, held: 0 });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules that decide read no clock and do no I/O: [`pull`], [`budget`], [`book`], [`watchdog`]. Callers pass the time
//! since their start. [`worker`] and [`announcement`] have the clock and make the requests. The queue is NATS JetStream
//! (`nats`, behind the cargo feature of this name) or, for tests and simulations, [`memory`] under a virtual clock. The
//! crate prints nothing, reads no environment variable, and opens no file of its own.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod announcement;
pub mod book;
pub mod budget;
pub mod memory;
pub mod message;
pub mod names;
#[cfg(feature = "nats")]
pub mod nats;
pub mod pull;
pub mod queue;
pub mod random;
pub mod settings;
pub mod shards;
pub mod tasks;
pub mod watchdog;
pub mod worker;
