//! Equal files of one run: one of them is uploaded, the others get its cap.
//!
//! Two uploads of one file would compete for its places on the servers, and the later one could only wait for shares
//! that the other is still sending.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use super::{PutError, Stored};
use crate::cap::{Cap, StorageIndex};

/// Most files remembered: some 20 MB. Beyond that later files are put again, and servers answer that they have the
/// shares.
const REMEMBERED_MAX: usize = 100_000;

/// A file, and the happiness required.
type Name = (StorageIndex, u16);

/// The cap and the happiness of a file, once it is in the grid.
type Slot = Arc<OnceCell<(Cap, usize)>>;

/// The convergent files of a run.
#[derive(Debug, Default)]
pub(super) struct Duplicates(Mutex<BTreeMap<Name, Slot>>);

impl Duplicates {
    /// Puts a file by `put`, unless an equal file is in the grid by then. If the upload that others wait for fails, the
    /// next of them tries.
    pub(super) async fn once<F>(&self, name: Name, put: impl FnOnce() -> F) -> Result<Stored, PutError>
    where
        F: Future<Output = Result<Stored, PutError>>,
    {
        let slot = Arc::clone(self.lock().entry(name).or_default());
        let mut own = None;
        let attempt = async {
            let stored = put().await?;
            let known = (stored.cap.clone(), stored.happiness);
            own = Some(stored);
            Ok::<_, PutError>(known)
        };
        let known = slot.get_or_try_init(|| attempt).await.cloned();
        let mut all = self.lock();
        // One reference is the map's, the other this one: nobody waits.
        let is_last = Arc::strong_count(&slot) <= 2;
        if is_last && (known.is_err() || all.len() > REMEMBERED_MAX) {
            all.remove(&name);
        }
        drop(all);
        let (cap, happiness) = known?;
        Ok(own.unwrap_or(Stored { cap, happiness, shares: (0, 0), sent_bytes: 0, troubles: Vec::new() }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Name, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> Stored {
        let cap = Cap::Literal(b"stands for another".to_vec());
        Stored { cap, happiness: 3, shares: (5, 0), sent_bytes: 100, troubles: vec!["one".into()] }
    }

    #[tokio::test]
    async fn the_next_one_tries_when_the_first_fails_and_the_last_gets_its_cap() {
        let equals = Duplicates::default();
        let put = |result: Result<Stored, PutError>| equals.once(([1; 16], 7), || async { result });
        let (first, second, third) = tokio::join!(
            put(Err(PutError::Interrupted)),
            put(Ok(stored())),
            put(Err(PutError::TooFewServers { usable: 0, happy: 7 })),
        );
        assert!(matches!(first, Err(PutError::Interrupted)));
        assert_eq!(second.unwrap().sent_bytes, 100);
        let third = third.expect("an equal one is there");
        assert_eq!((third.cap.to_text(), third.happiness), (stored().cap.to_text(), 3));
        assert_eq!((third.sent_bytes, third.troubles.len()), (0, 0), "what another sent is counted there");
    }
}
