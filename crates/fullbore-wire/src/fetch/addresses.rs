//! How many connections there may be to one address, whoever leads there: as many as to one host.
//!
//! A host's own connections count as well as those to where it redirects single files: two mirrors may turn out to
//! be one server, and a mirror may redirect to another one or to itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::lock;
use crate::counted::Counted;
use crate::url::Url;

/// Leave for one connection, for as long as it is kept.
pub(crate) type Slot = OwnedSemaphorePermit;

#[derive(Debug)]
pub(crate) struct Addresses {
    /// Connections to each.
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

    /// Leave to open a connection there, if there is room.
    pub(crate) fn free_slot(&self, to: &Url) -> Option<Slot> {
        self.place(to).room.try_acquire_owned().ok()
    }

    /// The same, as soon as there is room. `wake` is for those who have a connection for nothing.
    pub(crate) async fn slot(&self, to: &Url, wake: &Notify) -> Option<Slot> {
        if let Some(slot) = self.free_slot(to) {
            return Some(slot);
        }
        let place = self.place(to);
        let _waiting = Counted::one_more(&place.waiting);
        wake.notify_waiters();
        // Nobody ever closes it.
        place.room.acquire_owned().await.ok()
    }

    /// Whether somebody waits for room there: whoever has nothing to ask for is to make it.
    pub(crate) fn is_wanted(&self, to: &Url) -> bool {
        lock(&self.places).get(&name(to)).is_some_and(|place| place.waiting.load(Ordering::Relaxed) > 0)
    }

    fn place(&self, to: &Url) -> ServerSlot {
        let mut places = lock(&self.places);
        // Those that nobody uses are made anew when they are wanted.
        places.retain(|_, place| Arc::strong_count(&place.room) > 1);
        let anew = || ServerSlot { room: Arc::new(Semaphore::new(self.most)), waiting: Arc::default() };
        places.entry(name(to)).or_insert_with(anew).clone()
    }
}

fn name(url: &Url) -> String {
    format!("{}://{}", url.scheme().as_str(), url.host_and_port())
}
