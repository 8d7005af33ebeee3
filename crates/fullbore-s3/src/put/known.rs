//! Finds out which objects exist before anything is sent.
//!
//! For many files the bucket is listed, a thousand keys per request with sizes and ETags. For few files, or if the
//! bucket has far more objects, each object is requested separately, or put on the condition that it does not exist.

use std::collections::{HashMap, HashSet};

use fullbore_engine::run::error::CommandError;

use super::plan::Planned;
use crate::bucket::{explain, is_fatal};
use crate::client::{CallError, Client};
use crate::listing::{self, More};

/// Minimum number of files for a listing: fewer are requested one by one, in one round trip as well.
const LIST_FROM: usize = 9;

/// Number of keys per page.
const PAGE: usize = 1000;

/// Maximum number of pages beyond those that the files would fill; then asking for each file is faster.
const OTHER_PAGES: usize = 10;

/// What is known of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Presence {
    /// It does not exist, or certainly differs.
    Absent,
    /// An object of this size exists, with this ETag.
    SameSize(String),
    /// Unknown.
    Unknown,
}

/// What is known of all objects.
#[derive(Debug, Default)]
pub(super) struct Known {
    listed: HashMap<String, (u64, String)>,
    /// All keys up to this one are either listed or do not exist; `None` if nothing is known.
    through: Option<Through>,
    /// Upload everything, whatever exists.
    overwrite: bool,
}

#[derive(Debug)]
enum Through {
    Key(String),
    End,
}

impl Known {
    /// Treats every object as absent, so that all are uploaded.
    pub(super) fn overwrite() -> Known {
        Known { overwrite: true, ..Known::default() }
    }

    /// Lists the bucket, if that pays.
    ///
    /// # Errors
    /// A [`CommandError`] if the store cannot be reached, or its listing is endless or malformed. A store that refuses
    /// the listing is not an error.
    pub(super) async fn find(client: &Client, objects: &[Planned]) -> Result<Known, CommandError> {
        let mut known = Known::default();
        if objects.len() < LIST_FROM {
            return Ok(known);
        }
        let wanted: HashSet<&str> = objects.iter().map(|object| object.key.as_str()).collect();
        let prefix = common_prefix(objects);
        let pages_max = OTHER_PAGES + 4 * objects.len().div_ceil(PAGE);
        let mut pages = 0;
        let mut last: Option<String> = None;
        let mut in_order = true;
        let listed = listing::list(client, prefix, |page| {
            pages += 1;
            in_order &= last.iter().chain(page.iter().map(|object| &object.key)).is_sorted();
            last = page.last().map(|object| object.key.clone()).or(last.take());
            let ours = page.into_iter().filter(|object| wanted.contains(object.key.as_str()));
            known.listed.extend(ours.map(|object| (object.key, (object.size, object.etag))));
            if pages < pages_max { More::Yes } else { More::No }
        });
        match listed.await {
            Ok(()) => {}
            // A user who may put need not be allowed to list, and not every store can.
            Err(error @ CallError::Refused { status: 401..=499 | 501, .. }) if !is_fatal(&error) => {
                tracing::info!(%error, "cannot list the bucket; fullbore asks for each object");
                return Ok(Known::default());
            }
            Err(error @ (CallError::Endless { .. } | CallError::Answer { .. })) => {
                return Err(explain(&error).hint("pass --overwrite to upload everything without comparing"));
            }
            Err(error) => return Err(explain(&error)),
        }
        known.through = match last {
            _ if pages < pages_max => Some(Through::End),
            // Without an order, nothing is known of keys that were not listed yet.
            last => last.filter(|_| in_order).map(Through::Key),
        };
        Ok(known)
    }

    /// Whether so many objects are unknown that a request to test conditions pays.
    pub(super) fn leaves_many(&self, objects: &[Planned]) -> bool {
        objects.len() >= LIST_FROM && !matches!(self.through, Some(Through::End)) && !self.overwrite
    }

    /// What is known of an object that should have this size.
    pub(super) fn of(&self, key: &str, size: u64) -> Presence {
        if self.overwrite {
            return Presence::Absent;
        }
        match (self.listed.get(key), &self.through) {
            (Some((listed, etag)), _) if *listed == size => Presence::SameSize(etag.clone()),
            (Some(_), _) | (None, Some(Through::End)) => Presence::Absent,
            // The listing is in the order of bytes.
            (None, Some(Through::Key(last))) if key.as_bytes() <= last.as_bytes() => Presence::Absent,
            (None, _) => Presence::Unknown,
        }
    }
}

/// Common prefix of all keys.
fn common_prefix(objects: &[Planned]) -> &str {
    let Some(first) = objects.first().map(|object| object.key.as_str()) else { return "" };
    let mut length = first.len();
    for object in objects {
        let same = first.bytes().zip(object.key.bytes()).take_while(|(one, other)| one == other).count();
        length = length.min(same);
    }
    while !first.is_char_boundary(length) {
        length -= 1;
    }
    &first[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_beyond_the_listed_ones_is_unknown() {
        let listed = HashMap::from([("b".to_owned(), (5, "e".to_owned()))]);
        let known = Known { listed, through: Some(Through::Key("m".into())), overwrite: false };
        assert_eq!(known.of("b", 5), Presence::SameSize("e".into()));
        assert_eq!(known.of("b", 6), Presence::Absent);
        assert_eq!(known.of("c", 5), Presence::Absent);
        assert_eq!(known.of("z", 5), Presence::Unknown);
        assert_eq!(Known::default().of("b", 5), Presence::Unknown);
        assert_eq!(Known::overwrite().of("b", 5), Presence::Absent);
    }

    #[test]
    fn the_common_prefix_ends_between_characters() {
        let replaces = crate::objects::Condition::None;
        let object =
            |key: &str| Planned { path: "x".into(), found: None, key: key.into(), turn: 0, replaces: replaces.clone() };
        assert_eq!(common_prefix(&[object("a/ä"), object("a/ö")]), "a/");
        assert_eq!(common_prefix(&[object("ab"), object("ab")]), "ab");
        assert_eq!(common_prefix(&[]), "");
    }
}
