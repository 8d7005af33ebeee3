//! Objects beneath the prefix that are not among the files, taken away when all else is there.

use std::collections::HashSet;
use std::sync::Arc;

use fullbore_store::s3::client::Client;
use fullbore_store::s3::listing::{self, More};
use fullbore_store::s3::remove::{KEYS_AT_ONCE, remove};
use tokio::task::JoinSet;

use super::protected::{Fate, Rules};
use crate::bucket::explain;
use crate::error::{CommandError, ErrorKind};

/// Requests on their way at once.
const AT_ONCE: usize = 4;

/// What is to be deleted.
pub struct Doomed {
    /// The keys.
    pub keys: Vec<String>,
    /// Private state of mirrors, which is deleted however much it is.
    pub private: Vec<String>,
    /// Objects that are kept, as the source may have them.
    pub kept: usize,
    /// How many objects beneath the prefix are the files' or are to be deleted. Neither what is kept nor private state
    /// counts: snapshots in the bucket must not hide that all files are gone.
    pub of: usize,
    /// One of the files' keys that is not listed.
    pub unlisted: Option<String>,
}

impl Doomed {
    /// Lists everything beneath the prefix, and keeps what is not wanted.
    pub async fn find(
        client: &Client,
        prefix: &str,
        wanted: &HashSet<&str>,
        rules: &Rules,
    ) -> Result<Doomed, CommandError> {
        let mut doomed = Doomed { keys: Vec::new(), private: Vec::new(), kept: 0, of: 0, unlisted: None };
        let mut stray = None;
        let mut unlisted = wanted.clone();
        let listed = listing::list(client, prefix, |page| {
            // A server that does not look at the prefix would have us delete what is others'.
            stray = page.iter().find(|object| !object.key.starts_with(prefix)).map(|object| object.key.clone());
            if stray.is_some() {
                return More::No;
            }
            doomed.of += page.len();
            for object in &page {
                unlisted.remove(object.key.as_str());
            }
            for object in page.into_iter().filter(|object| !wanted.contains(object.key.as_str())) {
                match rules.fate(&object.key, &object.key[prefix.len()..]) {
                    Fate::Absent => {
                        doomed.keys.push(object.key);
                        continue;
                    }
                    Fate::Kept => doomed.kept += 1,
                    Fate::Private => doomed.private.push(object.key),
                }
                doomed.of -= 1;
            }
            More::Yes
        });
        listed.await.map_err(|error| explain(&error))?;
        doomed.unlisted = unlisted.into_iter().min().map(str::to_owned);
        let Some(stray) = stray else { return Ok(doomed) };
        let bucket = client.bucket();
        Err(CommandError::new(
            ErrorKind::Network,
            format_args!(
                "--delete: store {} was asked what is beneath {prefix:?} and lists {stray:?}; nothing is deleted",
                bucket.store()
            ),
        ))
    }

    /// Refuses a store that does not list a key that was put. It may list that object under another name, which is then
    /// no file of ours: file systems that normalise Unicode or fold case do so, and answers in XML that cannot have
    /// control characters.
    pub fn refuse_other_names(&self, store: &str) -> Result<(), CommandError> {
        let Some(key) = &self.unlisted else { return Ok(()) };
        let error = format_args!(
            "--delete: {key:?} was put, and store {store} does not list it: it may have another name there; nothing is \
             deleted"
        );
        Err(CommandError::new(ErrorKind::Partial, error)
            .hint("compare the store's listing with the name, and rename the file if the store cannot keep it"))
    }

    /// Refuses to delete too much at once: a source that is suddenly empty is more likely a fault than a wish.
    pub fn guard(&self, share_max: f64, force: bool) -> Result<(), CommandError> {
        let share = self.keys.len() as f64 / self.of.max(1) as f64;
        if force || share <= share_max {
            return Ok(());
        }
        let error = format_args!(
            "--delete would delete {} of {} objects ({:.0} %), more than --max-delete allows; nothing is deleted",
            self.keys.len(),
            self.of,
            share * 100.0
        );
        Err(CommandError::new(ErrorKind::Partial, error).hint("--force-delete if that is right"))
    }

    /// Deletes; gives how many are gone.
    pub async fn delete(self, client: &Client) -> Result<usize, CommandError> {
        let all: Vec<String> = self.private.into_iter().chain(self.keys).collect();
        let total = all.len();
        let mut left = Vec::new();
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
                left.extend(removed.map_err(|error| explain(&error))?);
            }
        }
        let Some((key, error)) = left.first() else { return Ok(total) };
        let text = format!("{} objects could not be deleted; {key}: {} {}", left.len(), error.code, error.message);
        Err(CommandError::new(ErrorKind::Partial, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_at_once_is_refused() {
        let doomed =
            |count, of| Doomed { keys: vec!["k".into(); count], private: Vec::new(), kept: 0, of, unlisted: None };
        assert!(doomed(4, 10).guard(0.4, false).is_ok());
        assert!(doomed(5, 10).guard(0.4, false).is_err());
        assert!(doomed(10, 10).guard(0.4, true).is_ok());
        assert!(doomed(0, 0).guard(0.0, false).is_ok());
    }
}
