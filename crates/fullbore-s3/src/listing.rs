//! What is in a bucket, page by page.
//!
//! A server says itself where its next page begins, and one that errs there could have us ask for ever ([`Endless`]).

use fullbore_wire::http1::Method;

use tokio::task::JoinSet;

use super::client::{Call, CallError, Client};
use super::dialect::{Feature, Support};
use super::xml::{self, ListedObject, Next, Page};

/// Pages without an object in a row. Some come where many objects were deleted of which old versions are kept; so many are
/// a guess at "never ends".
const EMPTY_PAGES_MAX: u32 = 1000;

/// Ranges of keys that are listed at once. A guess.
const RANGES_MAX: usize = 16;

/// Expected keys of such a range at least: a store lists a thousand in one answer.
const RANGE_KEYS_MIN: usize = 2000;

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// The next page.
    Yes,
    /// That was enough.
    No,
}

/// Lists objects whose keys begin with `prefix`, in the order of their keys; `each` hears of every page.
///
/// # Errors
/// Those of [`Pages::next`].
pub async fn list(
    client: &Client,
    prefix: &str,
    each: impl FnMut(Vec<ListedObject>) -> More + Send,
) -> Result<(), CallError> {
    list_behind(client, prefix, None, each).await
}

/// As [`list`], with only the keys behind this one. A store that does not know how to begin there begins with the first.
///
/// # Errors
/// As of [`list`].
pub async fn list_behind(
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

/// Keys behind which a listing is parted into ranges for [`list_in_ranges`], if it is expected to have so many keys; `key`
/// gives them by their place in order.
pub fn parted<'a>(count: usize, key: impl Fn(usize) -> &'a str) -> Vec<String> {
    let ranges = RANGES_MAX.min(count / RANGE_KEYS_MIN);
    (1..ranges).map(|range| key(range * count / ranges).to_owned()).collect()
}

/// As [`list_in_ranges`], where these keys are expected, in any order.
///
/// # Errors
/// As of [`list`].
pub async fn list_expecting(
    client: &Client,
    prefix: &str,
    mut keys: Vec<&str>,
) -> Result<Vec<ListedObject>, CallError> {
    keys.sort_unstable();
    list_in_ranges(client, prefix, &parted(keys.len(), |place| keys[place])).await
}

/// As [`list`], all at once, in ranges that are listed at the same time: they are parted behind these keys, which are in
/// order. A store that lists in another order is asked again, without ranges.
///
/// # Errors
/// As of [`list`].
pub async fn list_in_ranges(
    client: &Client,
    prefix: &str,
    parted_behind: &[String],
) -> Result<Vec<ListedObject>, CallError> {
    if !parted_behind.is_empty()
        && let Some(found) = list_ranges(client, prefix, parted_behind).await?
    {
        return Ok(found);
    }
    let mut found = Vec::new();
    list(client, prefix, |page| {
        found.extend(page);
        More::Yes
    })
    .await?;
    found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

/// The objects of all ranges; `None` if the store does not list them in order.
async fn list_ranges(
    client: &Client,
    prefix: &str,
    parted_behind: &[String],
) -> Result<Option<Vec<ListedObject>>, CallError> {
    let mut listing = JoinSet::new();
    for place in 0..=parted_behind.len() {
        let behind = place.checked_sub(1).map(|before| parted_behind[before].clone());
        let (client, prefix, until) = (client.clone(), prefix.to_owned(), parted_behind.get(place).cloned());
        listing.spawn(async move { (place, list_range(&client, &prefix, behind.as_deref(), until.as_deref()).await) });
    }
    let mut ranges: Vec<Vec<ListedObject>> = vec![Vec::new(); parted_behind.len() + 1];
    let mut is_in_order = true;
    while let Some(range) = listing.join_next().await {
        let (place, found) = range.map_err(|error| CallError::GivenUp(format!("a task failed: {error}")))?;
        match found? {
            Some(found) => ranges[place] = found,
            None => is_in_order = false,
        }
    }
    Ok(is_in_order.then(|| ranges.into_iter().flatten().collect()))
}

/// The objects behind one key, up to another; `None` if the store does not list them in order.
async fn list_range(
    client: &Client,
    prefix: &str,
    behind: Option<&str>,
    until: Option<&str>,
) -> Result<Option<Vec<ListedObject>>, CallError> {
    let mut found: Vec<ListedObject> = Vec::new();
    let mut is_in_order = true;
    list_behind(client, prefix, behind, |page| {
        is_in_order &= found.last().iter().copied().chain(&page).is_sorted_by(|one, next| one.key < next.key);
        let count = page.partition_point(|object| until.is_none_or(|until| object.key.as_str() <= until));
        let is_over = count < page.len();
        found.extend(page.into_iter().take(count));
        if is_over || !is_in_order { More::No } else { More::Yes }
    })
    .await?;
    Ok(is_in_order.then_some(found))
}

/// The pages of a listing.
#[derive(Debug)]
pub struct Pages<'a> {
    client: &'a Client,
    prefix: &'a str,
    /// Keys with a slash behind the prefix are listed as what they have in common up to it.
    by_directory: bool,
    /// Keys up to this one are left out.
    behind: Option<&'a str>,
    next: Option<Next>,
    is_over: bool,
    endless: Endless,
}

impl<'a> Pages<'a> {
    /// The objects whose keys begin with `prefix`; nothing is asked yet.
    pub fn new(client: &'a Client, prefix: &'a str, by_directory: bool) -> Pages<'a> {
        Pages { client, prefix, by_directory, behind: None, next: None, is_over: false, endless: Endless::default() }
    }

    /// The next page; `None`: that was all.
    ///
    /// # Errors
    /// [`CallError`] if the page cannot be fetched or parsed, or if the listing does not advance from page to page.
    pub async fn next(&mut self) -> Result<Option<Page>, CallError> {
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
        let dialect = self.client.dialect();
        match &page.next {
            Some(Next::Token(_)) => dialect.learn(Feature::ListingTokens, Support::Honoured),
            Some(Next::Marker(_)) => dialect.learn(Feature::ListingTokens, Support::Lacking),
            None => {}
        }
        if let Some(Next::Marker(marker)) = &self.next {
            // Some stores begin a page with the key behind which it should begin.
            page.objects.retain(|object| object.key != *marker);
            page.prefixes.retain(|prefix| prefix != marker);
        }
        if let Some(did) = self.endless.turns_out(&page) {
            return Err(CallError::Endless { what: what(), store: self.client.bucket().store().to_owned(), did });
        }
        if let Some(key) = self.behind {
            // A store that does not know how to begin there gives all.
            page.objects.retain(|object| object.key.as_str() > key);
        }
        self.next.clone_from(&page.next);
        self.is_over = page.next.is_none();
        Ok(Some(page))
    }
}

/// Finds out listings that have no end, by few bytes however long they are: what page 1, 2, 4, 8, … had is kept and looked
/// for in all that follow, so that a circle is noticed before it was gone through twice (Brent's algorithm).
#[derive(Debug, Default)]
struct Endless {
    pages: u64,
    empty: u32,
    /// How the page after the one that is kept was to be asked for, and the first key of it.
    token: Option<Next>,
    key: Option<String>,
}

impl Endless {
    /// What the server did that shows it, with this page.
    fn turns_out(&mut self, page: &Page) -> Option<String> {
        let mut keys = page.objects.iter().map(|object| &object.key).chain(&page.prefixes);
        let first = keys.clone().next();
        if self.key.is_some() && keys.any(|key| Some(key) == self.key.as_ref()) {
            return Some(format!("listed {:?} a second time", self.key.as_deref().unwrap_or_default()));
        }
        // The last page may have anything.
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

    #[test]
    fn long_listings_and_some_empty_pages_are_none() {
        let keys = |number: u32| if number % 400 == 3 { vec![number, number + 100_000_000] } else { Vec::new() };
        let next = |number: u32| (number < 9999).then(|| format!("t{number}"));
        assert_eq!(found_out(10_000, |number| (keys(number), next(number))), None);
        let (page, did) = found_out(10_000, |number| (Vec::new(), next(number))).unwrap();
        assert!(page + 1 == EMPTY_PAGES_MAX && did.contains("without any object"), "{page} {did}");
    }
}
