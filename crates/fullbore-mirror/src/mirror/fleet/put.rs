//! `put` by the machines of a queue: the planner's connection, and runs of `put` among those that a worker serves.

use std::sync::{Mutex, PoisonError};

use fullbore_engine::run::CommandError;
use fullbore_engine::run::ErrorKind;
use fullbore_fleet::message::Run;
use fullbore_fleet::names::WorkerId;
use fullbore_fleet::queue::Queue;
use fullbore_fleet::settings::NatsSettings;
use fullbore_s3::put::fleet::{Connect, WorkerSettings, serve};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

use super::connection::{self, Client};
use super::work::Served;
use super::worker::{Done, Order};

/// Why a worker begins anew.
const REFUSED: &str = "the store refuses what any file would need, or cannot be reached";

/// The queue of a `put`.
#[derive(Debug)]
pub struct PutQueue {
    settings: NatsSettings,
    /// Runs the client, as long as this is there.
    runtime: Mutex<Option<Runtime>>,
}

impl PutQueue {
    /// Not connected yet.
    pub fn new(settings: NatsSettings) -> PutQueue {
        PutQueue { settings, runtime: Mutex::default() }
    }
}

impl Connect for PutQueue {
    type Queue = Client;

    async fn connect(&self) -> Result<Client, CommandError> {
        let settings = self.settings.clone();
        // The client has a runtime of its own, which no other one may wait for.
        let connected = tokio::task::spawn_blocking(move || connection::connect(&settings)).await;
        let connected = connected.map_err(|error| CommandError::new(ErrorKind::Internal, error))??;
        *self.runtime.lock().unwrap_or_else(PoisonError::into_inner) = Some(connected.runtime);
        Ok(connected.queue)
    }
}

/// Serves a run until it is told to end, or fails.
pub(super) fn serve_put<Q: Queue>(
    queue: Q,
    run: &Run,
    name: WorkerId,
    settings: &WorkerSettings,
    mut order: watch::Receiver<Order>,
    handle: &Handle,
) -> Served {
    let served = handle.block_on(async {
        let (end, over) = watch::channel(false);
        let told = tokio::spawn(async move {
            // A closed channel is an order to end, too.
            let _ = order.wait_for(|order| *order != Order::Work).await;
            end.send_replace(true);
        });
        let served = serve(queue, run, name, settings, over).await;
        told.abort();
        served
    });
    match served {
        Ok(served) => Served {
            done: Done { stored: (served.files, served.bytes), ..Done::default() },
            fault: served.is_refused.then(|| REFUSED.to_owned()),
            ..Served::default()
        },
        Err(error) => Served { fault: Some(error.message), ..Served::default() },
    }
}
