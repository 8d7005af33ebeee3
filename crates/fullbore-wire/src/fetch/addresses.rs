//! Limits the connections to one address, whatever leads there, to the number allowed per host.
//!
//! Connections to redirect targets count as well as a host's own. Two mirrors may be one server, and a mirror may
//! redirect to another one or to itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::lock;
use crate::counted::Counted;
use crate::url::Url;

/// Permission for one connection, for as long as it is held.
pub(crate) type Slot = OwnedSemaphorePermit;

#[derive(Debug)]
pub(crate) struct Addresses {
    /// Maximum number of connections to each address.
    most: usize,
    places: Mutex<BTreeMap<String, ServerSlot>>,
}

#[derive(Clone, Debug)]
struct ServerSlot {
    room: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

impl Addresses {
    pub(crate) fn new(most: usize) -> Addresses {
        Addresses { most: most.max(1), places: Mutex::default() }
    }

    /// Takes a slot for a connection to this address, if one is free.
    pub(crate) fn free_slot(&self, to: &Url) -> Option<Slot> {
        self.place(to).room.try_acquire_owned().ok()
    }

    /// Waits for a slot. `wake` wakes connections to the address that have nothing to do.
    pub(crate) async fn slot(&self, to: &Url, wake: &Notify) -> Option<Slot> {
        if let Some(slot) = self.free_slot(to) {
            return Some(slot);
        }
        let place = self.place(to);
        let _waiting = Counted::one_more(&place.waiting);
        wake.notify_waiters();
        // The semaphore is never closed.
        place.room.acquire_owned().await.ok()
    }

    /// Whether a task waits for a slot there: an idle connection should then be closed.
    pub(crate) fn is_wanted(&self, to: &Url) -> bool {
        lock(&self.places).get(&name(to)).is_some_and(|place| place.waiting.load(Ordering::Relaxed) > 0)
    }

    fn place(&self, to: &Url) -> ServerSlot {
        let mut places = lock(&self.places);
        // Unused entries are dropped, and created again when needed.
        places.retain(|_, place| Arc::strong_count(&place.room) > 1);
        let anew = || ServerSlot { room: Arc::new(Semaphore::new(self.most)), waiting: Arc::default() };
        places.entry(name(to)).or_insert_with(anew).clone()
    }
}

fn name(url: &Url) -> String {
    format!("{}://{}", url.scheme().as_str(), url.host_and_port())
}
