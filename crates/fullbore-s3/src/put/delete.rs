//! Deletes objects below the prefix that the source does not have, after everything else succeeded.

use std::collections::HashSet;
use std::sync::Arc;

use fullbore_engine::memory::{self, PLACE_BYTES};
use fullbore_engine::run::error::{CommandError, ErrorKind};
use tokio::task::JoinSet;

use super::protected::{Classification, Rules};
use crate::bucket::explain;
use crate::client::{CallError, Client};
use crate::listing::{self, More};
use crate::remove::{KEYS_AT_ONCE, remove};
use crate::xml::{ListedObject, XmlError};

/// Maximum number of requests in flight.
const AT_ONCE: usize = 4;

/// The objects to delete.
pub(super) struct Deletion {
    /// Keys to delete.
    pub keys: Vec<String>,
    /// Keys of mirrors' private state, which is deleted whatever its amount.
    pub private: Vec<String>,
    /// Number of objects that are kept, because the source may have them.
    pub kept: usize,
    /// Number of objects below the prefix that belong to the source or will be deleted. It excludes kept objects and
    /// private state: snapshots in the bucket must not hide that all files are gone.
    pub of: usize,
    /// A key of the source that the store does not list.
    pub unlisted: Option<String>,
    /// Memory of the keys in bytes, and its limit.
    bytes: u64,
    most_bytes: u64,
}

/// A listing has more objects to delete than can be kept.
struct TooMany;

impl Deletion {
    /// Lists all objects below the prefix, and selects those to delete.
    ///
    /// # Errors
    /// A [`CommandError`] of kind network if the bucket cannot be listed, or lists more objects to delete than this
    /// machine can keep; nothing is deleted then.
    pub(super) async fn find(
        client: &Client,
        prefix: &str,
        wanted: &HashSet<&str>,
        rules: &Rules,
    ) -> Result<Deletion, CommandError> {
        let mut deletion = Deletion::new(memory::list_bytes_max());
        let mut is_too_much = false;
        let mut unlisted = wanted.clone();
        let listed = listing::list(client, prefix, |page| {
            for object in &page {
                unlisted.remove(object.key.as_str());
            }
            is_too_much = deletion.take(page, prefix, wanted, rules).is_err();
            if is_too_much { More::No } else { More::Yes }
        });
        listed.await.map_err(|error| explain_listing(&error))?;
        deletion.unlisted = unlisted.into_iter().min().map(str::to_owned);
        if !is_too_much {
            return Ok(deletion);
        }
        let error = format!(
            "--delete: store {} lists more than {} objects beneath {prefix:?} that the source does not have, and this \
             machine can keep no more; nothing is deleted",
            client.bucket().store(),
            deletion.keys.len() + deletion.private.len()
        );
        Err(CommandError::new(ErrorKind::Network, error)
            .hint("delete them by a lifecycle rule of the store, or put directories one by one"))
    }

    /// Creates an empty selection with a limit on memory.
    fn new(most_bytes: u64) -> Deletion {
        Deletion { keys: Vec::new(), private: Vec::new(), kept: 0, of: 0, unlisted: None, bytes: 0, most_bytes }
    }

    /// Adds a page of the listing, whose keys begin with the prefix.
    fn take(
        &mut self,
        page: Vec<ListedObject>,
        prefix: &str,
        wanted: &HashSet<&str>,
        rules: &Rules,
    ) -> Result<(), TooMany> {
        self.of += page.len();
        for object in page.into_iter().filter(|object| !wanted.contains(object.key.as_str())) {
            let bytes = object.key.len() as u64 + PLACE_BYTES;
            match rules.classify(&object.key, &object.key[prefix.len()..]) {
                Classification::Absent => {
                    self.keys.push(object.key);
                    self.bytes += bytes;
                    continue;
                }
                Classification::Kept => self.kept += 1,
                Classification::Private => {
                    self.private.push(object.key);
                    self.bytes += bytes;
                }
            }
            self.of -= 1;
        }
        if self.bytes > self.most_bytes { Err(TooMany) } else { Ok(()) }
    }

    /// Refuses a store that does not list an uploaded key. It may list that object under another name, which would then
    /// not count as the source's. File systems that normalise Unicode or fold case do so, and so do listings in XML
    /// that cannot express control characters.
    ///
    /// # Errors
    /// A [`CommandError`] of kind partial with the key, if a key is not listed.
    pub(super) fn refuse_other_names(&self, store: &str) -> Result<(), CommandError> {
        let Some(key) = &self.unlisted else { return Ok(()) };
        let error = format!(
            "--delete: {key:?} was put, and store {store} does not list it: it may have another name there; nothing is \
             deleted"
        );
        Err(CommandError::new(ErrorKind::Partial, error)
            .hint("compare the store's listing with the name, and rename the file if the store cannot keep it"))
    }

    /// Refuses to delete a large share of the objects: a source that is suddenly empty is more likely a fault than
    /// intended.
    ///
    /// # Errors
    /// A [`CommandError`] of kind partial if the share exceeds `share_max` and `force` is false.
    pub(super) fn guard(&self, share_max: f64, force: bool) -> Result<(), CommandError> {
        let share = self.keys.len() as f64 / self.of.max(1) as f64;
        if force || share <= share_max {
            return Ok(());
        }
        let error = format!(
            "--delete would delete {} of {} objects ({:.0} %), more than --max-delete allows; nothing is deleted",
            self.keys.len(),
            self.of,
            share * 100.0
        );
        Err(CommandError::new(ErrorKind::Partial, error).hint("pass --force-delete to delete them"))
    }

    /// Deletes the objects, and returns their number.
    ///
    /// # Errors
    /// A [`CommandError`] if a request fails, or of kind partial if the store keeps some of the objects.
    pub(super) async fn delete(self, client: &Client) -> Result<usize, CommandError> {
        let all: Vec<String> = self.private.into_iter().chain(self.keys).collect();
        let total = all.len();
        // Only the first failure is reported; a store may send any text for each.
        let (mut left, mut first) = (0, None);
        let mut under_way = JoinSet::new();
        let keys: Arc<[String]> = all.into();
        let mut next = 0;
        while next < total || !under_way.is_empty() {
            while next < total && under_way.len() < AT_ONCE {
                let (client, keys, end) = (client.clone(), Arc::clone(&keys), (next + KEYS_AT_ONCE).min(total));
                under_way.spawn(async move { remove(&client, &keys[next..end]).await });
                next = end;
            }
            if let Some(removed) = under_way.join_next().await {
                let removed = removed.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
                let not_removed = removed.map_err(|error| explain(&error))?;
                left += not_removed.len();
                first = first.or(not_removed.into_iter().next());
            }
        }
        let Some((key, error)) = first else { return Ok(total) };
        let text = format!("{left} objects could not be deleted; {key}: {} {}", error.code, error.message);
        Err(CommandError::new(ErrorKind::Partial, text))
    }
}

/// Explains a failed listing. If a server ignores the prefix, the deletion would hit other objects.
fn explain_listing(error: &CallError) -> CommandError {
    let CallError::Answer { source: XmlError::Stray { prefix, store, key }, .. } = error else {
        return explain(error);
    };
    let error = format!("--delete: asked for keys below {prefix:?}, store {store} lists {key:?}; nothing is deleted");
    CommandError::new(ErrorKind::Network, error).hint("check the endpoint, and any proxy in front of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_of_what_is_others_says_that_nothing_is_deleted() {
        let source = XmlError::Stray { prefix: "q/".into(), store: "s.example".into(), key: "p/0".into() };
        let error = explain_listing(&CallError::Answer { what: "list of \"q/\"".into(), source });
        assert_eq!(
            error.message,
            "--delete: asked for keys below \"q/\", store s.example lists \"p/0\"; nothing is deleted"
        );
    }

    #[test]
    fn too_much_at_once_is_refused() {
        let deletion = |count, of| Deletion { keys: vec!["k".into(); count], of, ..Deletion::new(0) };
        assert!(deletion(4, 10).guard(0.4, false).is_ok());
        assert!(deletion(5, 10).guard(0.4, false).is_err());
        assert!(deletion(10, 10).guard(0.4, true).is_ok());
        assert!(deletion(0, 0).guard(0.0, false).is_ok());
    }

    #[test]
    fn endless_pages_of_new_keys_filled_the_memory() {
        let page = |number: u32| {
            let key = |place: u32| {
                let key = format!("p/{number:05}{place:0100}");
                ListedObject { key, size: 1, etag: String::new(), modified_unix_s: None }
            };
            (0..1000).map(key).collect::<Vec<_>>()
        };
        let most_bytes = 1_000_000;
        let mut deletion = Deletion::new(most_bytes);
        let (wanted, rules) = (HashSet::new(), Rules::default());
        let pages = (0..1000).take_while(|number| deletion.take(page(*number), "p/", &wanted, &rules).is_ok()).count();
        assert!((1..20).contains(&pages), "{pages}");
        assert!(deletion.bytes > most_bytes && deletion.bytes < 2 * most_bytes, "{}", deletion.bytes);
        // Files of the source take none, however often they are listed.
        let listed = page(0);
        let wanted = listed.iter().map(|object| object.key.as_str()).collect();
        let mut deletion = Deletion::new(0);
        assert!((0..100).all(|_| deletion.take(page(0), "p/", &wanted, &rules).is_ok()));
    }
}
