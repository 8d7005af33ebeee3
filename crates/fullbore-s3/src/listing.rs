//! Lists the objects of a bucket, page by page.
//!
//! The server says where its next page begins, and a faulty one could make us ask for ever ([`Endless`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fullbore_engine::memory::{self, PLACE_BYTES};
use fullbore_wire::http1::Method;
use tokio::task::JoinSet;

use super::client::{Call, CallError, Client};
use super::dialect::{Feature, Support};
use super::xml::{self, ListedObject, Next, Page, XmlError};

/// Maximum number of consecutive pages without an object. Some occur where many objects were deleted and old versions
/// are kept; this number is a guess at "never ends".
const EMPTY_PAGES_MAX: u32 = 1000;

/// Maximum number of key ranges listed at once. A guess.
const RANGES_MAX: usize = 16;

/// Minimum number of expected keys per range: a store lists a thousand in one answer.
const RANGE_KEYS_MIN: usize = 2000;

/// Whether to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    /// Request the next page.
    Yes,
    /// Stop.
    No,
}

/// Lists objects whose keys begin with `prefix`, in the order of their keys; `each` is called with every page.
///
/// # Errors
/// The errors of [`Pages::next`].
pub(crate) async fn list(
    client: &Client,
    prefix: &str,
    each: impl FnMut(Vec<ListedObject>) -> More + Send,
) -> Result<(), CallError> {
    list_behind(client, prefix, None, each).await
}

/// As [`list`], from the key after `behind` on. Pages are as the store sends them; a store without this feature begins
/// with the first key.
async fn list_behind(
    client: &Client,
    prefix: &str,
    behind: Option<&str>,
    mut each: impl FnMut(Vec<ListedObject>) -> More + Send,
) -> Result<(), CallError> {
    let mut pages = Pages { behind, ..Pages::new(client, prefix, false) };
    while let Some(page) = pages.next().await? {
        if each(page.objects) == More::No {
            break;
        }
    }
    Ok(())
}

/// Chooses the keys that divide a listing of `count` expected keys into ranges for `list_in_ranges`; `key` returns
/// them by position.
pub fn parted<'a>(count: usize, key: impl Fn(usize) -> &'a str) -> Vec<String> {
    let ranges = RANGES_MAX.min(count / RANGE_KEYS_MIN);
    (1..ranges).map(|range| key(range * count / ranges).to_owned()).collect()
}

/// Returns those of the given keys that exist, in order. As [`list_in_ranges`], but other objects of the bucket take no
/// memory.
///
/// # Errors
/// As [`list_in_ranges`].
pub(crate) async fn list_expecting(
    client: &Client,
    prefix: &str,
    mut keys: Vec<&str>,
) -> Result<Vec<ListedObject>, CallError> {
    keys.sort_unstable();
    let parted_behind = parted(keys.len(), |place| keys[place]);
    let wanted = keys.iter().copied().map(Box::from).collect();
    list_kept(client, prefix, &parted_behind, &keys, Keep::new(Some(wanted), memory::list_bytes_max())).await
}

/// As [`list`], but returns all objects, and lists ranges of keys at the same time. The ranges are divided behind the
/// sorted keys `parted_behind`. A store that lists in another order is asked again, without ranges.
///
/// # Errors
/// As [`list`], and [`CallError::GivenUp`] if there are more objects than fit in the memory for listings
/// (`memory::list_bytes_max`).
pub(crate) async fn list_in_ranges(
    client: &Client,
    prefix: &str,
    parted_behind: &[String],
) -> Result<Vec<ListedObject>, CallError> {
    let expected: Vec<&str> = parted_behind.iter().map(String::as_str).collect();
    list_kept(client, prefix, parted_behind, &expected, Keep::new(None, memory::list_bytes_max())).await
}

/// Selects the objects of a listing to keep. Its ranges share the limit.
#[derive(Debug)]
struct Keep {
    /// Keys to keep; `None` for all.
    wanted: Option<HashSet<Box<str>>>,
    /// Memory of the kept objects in bytes, and its limit.
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Keep {
    fn new(wanted: Option<HashSet<Box<str>>>, bytes_max: u64) -> Keep {
        Keep { wanted, bytes: AtomicU64::new(0), bytes_max }
    }

    /// Keeps the selected objects of a page.
    fn take(&self, page: impl IntoIterator<Item = ListedObject>, found: &mut Vec<ListedObject>) -> More {
        let is_wanted = |object: &ListedObject| match &self.wanted {
            Some(wanted) => wanted.contains(object.key.as_str()),
            None => true,
        };
        for object in page.into_iter().filter(is_wanted) {
            let bytes = (object.key.len() + object.etag.len()) as u64 + PLACE_BYTES;
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            found.push(object);
        }
        if self.is_over() { More::No } else { More::Yes }
    }

    fn is_over(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.bytes_max
    }

    /// Fails if a listing was cut off because of its length.
    fn check(&self, prefix: &str, store: &str) -> Result<(), CallError> {
        if !self.is_over() {
            return Ok(());
        }
        Err(CallError::GivenUp(format!(
            "list of {prefix:?}: store {store} lists more objects than fullbore can keep in {} MB, a share of this machine's \
             memory; delete objects that do not belong below this prefix, or use a machine with more memory",
            self.bytes_max / 1_000_000
        )))
    }
}

/// The kept objects of a listing in order; `expected` are sorted keys that the store may have.
async fn list_kept(
    client: &Client,
    prefix: &str,
    parted_behind: &[String],
    expected: &[&str],
    keep: Keep,
) -> Result<Vec<ListedObject>, CallError> {
    let keep = Arc::new(keep);
    if !parted_behind.is_empty()
        && let Some(found) = list_ranges(client, prefix, parted_behind, expected, &keep).await?
    {
        return Ok(found);
    }
    keep.bytes.store(0, Ordering::Relaxed);
    let mut found = Vec::new();
    list(client, prefix, |page| keep.take(page, &mut found)).await?;
    keep.check(prefix, client.bucket().store())?;
    found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

/// The kept objects of all ranges. `None` if there may be gaps, because the store lists in another order than that of
/// bytes.
async fn list_ranges(
    client: &Client,
    prefix: &str,
    parted_behind: &[String],
    expected: &[&str],
    keep: &Arc<Keep>,
) -> Result<Option<Vec<ListedObject>>, CallError> {
    let mut listing = JoinSet::new();
    for place in 0..=parted_behind.len() {
        let behind = place.checked_sub(1).map(|before| parted_behind[before].clone());
        let until = parted_behind.get(place).cloned();
        let (client, prefix, keep) = (client.clone(), prefix.to_owned(), Arc::clone(keep));
        listing.spawn(async move { (place, Range::list(&client, &prefix, behind, until, &keep).await) });
    }
    let mut ranges = Vec::new();
    let mut is_in_order = true;
    while let Some(range) = listing.join_next().await {
        let (place, range) = range.map_err(|error| CallError::GivenUp(format!("a task failed: {error}")))?;
        match range? {
            Some(range) => ranges.push((place, range)),
            None => is_in_order = false,
        }
    }
    keep.check(prefix, client.bucket().store())?;
    ranges.sort_unstable_by_key(|(place, _)| *place);
    let ranges: Vec<Range> = ranges.into_iter().map(|(_, range)| range).collect();
    let is_whole = is_in_order && are_joined(&ranges) && !ranges.iter().any(|range| range.may_lack(expected));
    Ok(is_whole.then(|| ranges.into_iter().flat_map(|range| range.found).collect()))
}

/// Whether each range ended where the next non-empty range begins. A store with another order has keys in between.
fn are_joined(ranges: &[Range]) -> bool {
    let mut following = None;
    ranges.iter().rev().all(|range| {
        let is_joined = range.beyond == following;
        following = range.first.clone().or(following.take());
        is_joined
    })
}

/// The objects after one key, up to another.
#[derive(Debug, Default)]
struct Range {
    behind: Option<String>,
    until: Option<String>,
    /// Objects that are kept.
    found: Vec<ListedObject>,
    /// First key of the range, kept or not.
    first: Option<String>,
    /// First key after the range, at which the listing stopped; `None` if there was none.
    beyond: Option<String>,
}

impl Range {
    /// Lists a range; `None` if the store does not list it in order.
    async fn list(
        client: &Client,
        prefix: &str,
        behind: Option<String>,
        until: Option<String>,
        keep: &Keep,
    ) -> Result<Option<Range>, CallError> {
        let mut range = Range { behind: behind.clone(), until, ..Range::default() };
        let mut last = None;
        let mut is_in_order = true;
        list_behind(client, prefix, behind.as_deref(), |page| {
            // Include keys before the range: they show the order of a store that cannot begin at a key.
            is_in_order &=
                last.iter().chain(page.iter().map(|object| &object.key)).is_sorted_by(|one, next| one < next);
            if !is_in_order {
                return More::No;
            }
            last = page.last().map(|object| object.key.clone()).or(last.take());
            range.take(page, keep)
        })
        .await?;
        Ok(is_in_order.then_some(range))
    }

    /// Adds a page, which is in order.
    fn take(&mut self, page: Vec<ListedObject>, keep: &Keep) -> More {
        let before = page.partition_point(|object| self.behind.as_ref().is_some_and(|behind| object.key <= *behind));
        let until = page.partition_point(|object| self.until.as_ref().is_none_or(|until| object.key <= *until));
        let key = |place: usize| page.get(place).map(|object| object.key.clone());
        if self.first.is_none() && before < until {
            self.first = key(before);
        }
        self.beyond = key(until);
        let more = keep.take(page.into_iter().take(until).skip(before), &mut self.found);
        if self.beyond.is_some() { More::No } else { more }
    }

    /// Whether an expected key is missing that a store would list after the range's end if it lists directory by
    /// directory, as versitygw does: `films/a` before `films-old/a`. Such a store may still begin a listing at the
    /// first key that is greater by bytes, and then all ranges seem to be joined.
    fn may_lack(&self, expected: &[&str]) -> bool {
        let Some(beyond) = self.beyond.as_deref() else { return false };
        let place = |key: Option<&str>, none| key.map_or(none, |key| expected.partition_point(|one| *one <= key));
        let end = place(self.until.as_deref(), expected.len());
        let begin = place(self.behind.as_deref(), 0).min(end);
        let is_found = |key: &str| self.found.binary_search_by(|object| object.key.as_str().cmp(key)).is_ok();
        expected[begin..end].iter().any(|key| beyond.split('/').lt(key.split('/')) && !is_found(key))
    }
}

/// The pages of a listing.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    client: &'a Client,
    prefix: &'a str,
    /// Combines keys with a slash after the prefix into their common beginning up to it.
    by_directory: bool,
    /// Key after which the listing begins.
    behind: Option<&'a str>,
    next: Option<Next>,
    is_over: bool,
    endless: Endless,
}

impl<'a> Pages<'a> {
    /// Creates a listing of the objects whose keys begin with `prefix`; no request is sent yet.
    pub(crate) fn new(client: &'a Client, prefix: &'a str, by_directory: bool) -> Pages<'a> {
        Pages { client, prefix, by_directory, behind: None, next: None, is_over: false, endless: Endless::default() }
    }

    /// Returns the next page; `None` after the last one.
    ///
    /// # Errors
    /// A [`CallError`] if the page cannot be fetched or parsed, has a key that does not begin with the prefix, or if
    /// the listing does not advance from page to page.
    pub(crate) async fn next(&mut self) -> Result<Option<Page>, CallError> {
        if self.is_over {
            return Ok(None);
        }
        let mut call = Call::new(Method::Get, None).optional_query(Feature::EncodedListing, "encoding-type", "url");
        if self.by_directory {
            call = call.query("delimiter", "/");
        }
        if !self.prefix.is_empty() {
            call = call.query("prefix", self.prefix);
        }
        call = match &self.next {
            None => {
                let call = call.optional_query(Feature::ListingTokens, "list-type", "2");
                match self.behind {
                    Some(key) if self.client.dialect().lacks(Feature::ListingTokens) => call.query("marker", key),
                    Some(key) => call.query("start-after", key),
                    None => call,
                }
            }
            Some(Next::Token(token)) => call.query("list-type", "2").query("continuation-token", token),
            Some(Next::Marker(key)) => call.query("marker", key),
        };
        call.answer_bytes_max = xml::ANSWER_BYTES_MAX;
        let answer = self.client.call(call).await?;
        let what = || format!("list of {:?}", self.prefix);
        if answer.head.status != 200 {
            return Err(CallError::refused(what(), &answer));
        }
        let mut page = xml::page(&answer.body).map_err(|source| CallError::Answer { what: what(), source })?;
        if let Some(key) = stray(&page, self.prefix) {
            let store = self.client.bucket().store().to_owned();
            let source = XmlError::Stray { prefix: self.prefix.to_owned(), store, key: key.to_owned() };
            return Err(CallError::Answer { what: what(), source });
        }
        let dialect = self.client.dialect();
        match &page.next {
            Some(Next::Token(_)) => dialect.learn(Feature::ListingTokens, Support::Honoured),
            Some(Next::Marker(_)) => dialect.learn(Feature::ListingTokens, Support::Lacking),
            None => {}
        }
        if let Some(Next::Marker(marker)) = &self.next {
            // Some stores begin a page with the key after which it should begin.
            page.objects.retain(|object| object.key != *marker);
            page.prefixes.retain(|prefix| prefix != marker);
        }
        if let Some(did) = self.endless.turns_out(&page) {
            return Err(CallError::Endless { what: what(), store: self.client.bucket().store().to_owned(), did });
        }
        self.next.clone_from(&page.next);
        self.is_over = page.next.is_none();
        Ok(Some(page))
    }
}

/// A key outside the prefix. If a store or a proxy ignores the prefix, callers would trust or even delete such a key.
fn stray<'a>(page: &'a Page, prefix: &str) -> Option<&'a str> {
    let mut keys =
        page.objects.iter().map(|object| object.key.as_str()).chain(page.prefixes.iter().map(String::as_str));
    keys.find(|key| !key.starts_with(prefix))
}

/// Detects listings without an end, in little memory however long they are. Pages 1, 2, 4, 8, … are kept and compared
/// with all following pages, so a cycle is noticed before it was passed twice (Brent's algorithm).
#[derive(Debug, Default)]
struct Endless {
    pages: u64,
    empty: u32,
    /// Continuation after the kept page, and its first key.
    token: Option<Next>,
    key: Option<String>,
}

impl Endless {
    /// Description of the server's behaviour that shows an endless listing, if this page does.
    fn turns_out(&mut self, page: &Page) -> Option<String> {
        let mut keys = page.objects.iter().map(|object| &object.key).chain(&page.prefixes);
        let first = keys.clone().next();
        if self.key.is_some() && keys.any(|key| Some(key) == self.key.as_ref()) {
            return Some(format!("listed {:?} a second time", self.key.as_deref().unwrap_or_default()));
        }
        // The last page may contain anything.
        let next = page.next.as_ref()?;
        if Some(next) == self.token.as_ref() {
            return Some("named a page as the next one that it had already listed".into());
        }
        self.empty = if first.is_none() { self.empty + 1 } else { 0 };
        if self.empty >= EMPTY_PAGES_MAX {
            return Some(format!("gave {EMPTY_PAGES_MAX} pages in a row without any object"));
        }
        self.pages += 1;
        if self.pages.is_power_of_two() {
            self.token = Some(next.clone());
            self.key = first.cloned().or(self.key.take());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page at which a listing is found out to be endless, of so many; `page` tells keys and token.
    fn found_out(most: u32, page: impl Fn(u32) -> (Vec<u32>, Option<String>)) -> Option<(u32, String)> {
        let mut endless = Endless::default();
        (0..most).find_map(|number| {
            let (keys, next) = page(number);
            let object = |key: u32| ListedObject {
                key: format!("{key:09}"),
                size: 1,
                etag: String::new(),
                modified_unix_s: None,
            };
            let page = Page {
                objects: keys.into_iter().map(object).collect(),
                next: next.map(Next::Token),
                ..Page::default()
            };
            endless.turns_out(&page).map(|did| (number, did))
        })
    }

    #[test]
    fn circles_are_found_out_wherever_they_begin() {
        for (before, round) in [(0, 1), (0, 2), (0, 7), (3, 1), (5, 4), (100, 30)] {
            let place = |number: u32| if number < before { number } else { before + (number - before) % round };
            let by_token = found_out(1000, |number| (Vec::new(), Some(place(number).to_string())));
            assert!(by_token.unwrap().0 <= 3 * (before + round), "{before} {round}");
            let by_key = found_out(1000, |number| (vec![place(number)], Some(number.to_string())));
            let (page, did) = by_key.unwrap();
            assert!(page <= 3 * (before + round) && did.contains("second time"), "{before} {round} {did}");
        }
    }

    #[test]
    fn a_listing_is_parted_where_its_keys_are() {
        let keys: Vec<String> = (0..40_000).map(|number| format!("{number:05}")).collect();
        let parted = |count| parted(count, |place| &keys[place]);
        assert_eq!(parted(3999), [""; 0]);
        assert_eq!(parted(4000), ["02000"]);
        assert_eq!(parted(8000), ["02000", "04000", "06000"]);
        assert_eq!(parted(40_000).len(), 15);
    }

    fn object(key: &str) -> ListedObject {
        ListedObject { key: key.to_owned(), size: 1, etag: String::new(), modified_unix_s: None }
    }

    #[test]
    fn ranges_are_joined_where_none_has_a_key_between_them() {
        let range = |first: &str, beyond: &str| {
            let key = |key: &str| Some(key.to_owned()).filter(|key| !key.is_empty());
            Range { first: key(first), beyond: key(beyond), ..Range::default() }
        };
        assert!(are_joined(&[range("a", "c"), range("c", "e"), range("e", "")]));
        assert!(are_joined(&[range("", "e"), range("", "e"), range("e", "")]), "ranges without keys");
        assert!(are_joined(&[range("a", ""), range("", "")]));
        assert!(!are_joined(&[range("a", "d"), range("c", "")]), "the next one has an earlier key");
        assert!(!are_joined(&[range("a", "c"), range("d", "")]), "nor has it that one");
        assert!(!are_joined(&[range("a", ""), range("c", "")]), "the listing ended before");
        assert!(!are_joined(&[range("a", "c"), range("", "")]), "nobody has it");
    }

    #[test]
    fn foreign_objects_take_no_memory_of_a_listing() {
        let page = |number: u32| (0..1000).map(move |place| object(&format!("p/{number:05}{place:0100}")));
        let bytes_max = 1_000_000;
        let all = Keep::new(None, bytes_max);
        let mut found = Vec::new();
        let pages = (0..1000).take_while(|number| all.take(page(*number), &mut found) == More::Yes).count();
        assert!((1..20).contains(&pages), "{pages}");
        let error = all.check("p/", "s.example").unwrap_err().to_string();
        assert!(error.contains("s.example lists more objects than fullbore can keep in 1 MB"), "{error}");
        // What is not wanted takes none.
        let wanted = page(7).take(2).map(|object| object.key.into()).collect();
        let (some, mut found) = (Keep::new(Some(wanted), bytes_max), Vec::new());
        assert!((0..1000).all(|number| some.take(page(number), &mut found) == More::Yes));
        assert_eq!((found.len(), some.check("p/", "s.example")), (2, Ok(())));
    }

    #[test]
    fn long_listings_and_some_empty_pages_are_none() {
        let keys = |number: u32| if number % 400 == 3 { vec![number, number + 100_000_000] } else { Vec::new() };
        let next = |number: u32| (number < 9999).then(|| format!("t{number}"));
        assert_eq!(found_out(10_000, |number| (keys(number), next(number))), None);
        let (page, did) = found_out(10_000, |number| (Vec::new(), next(number))).unwrap();
        assert!(page + 1 == EMPTY_PAGES_MAX && did.contains("without any object"), "{page} {did}");
    }
}
