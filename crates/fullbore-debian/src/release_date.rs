//! Checks that a Release is not dated in the future of this machine's clock.
//!
//! Nothing older may replace a Release, so one with a date far in the future would block every later one. It is
//! refused, and one that was accepted before this check existed is ignored. All commands use this check.

use thiserror::Error;

use crate::date;

/// How far the `Date` of a Release may be ahead of the clock, in seconds: apt's default of `Acquire::Max-FutureTime`.
pub const MAX_FUTURE_S: i64 = 10;

/// Checks the `Date` of a Release against the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateCheck {
    now: i64,
    /// `None` disables the check.
    max_future_s: Option<i64>,
}

/// A Release has a `Date` in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the Release is dated in the future: its Date is {}, this machine's clock says {}", date::format(*.date), date::format(*.now))]
pub struct FutureDate {
    /// `Date` of the Release, Unix seconds.
    pub date: i64,
    /// Time of this machine, in Unix seconds.
    pub now: i64,
}

/// Hint for the user about a [`FutureDate`].
pub const HINT_FUTURE: &str = "set this machine's clock right; if it is right, the mirror serves a Release with a wrong date: \
     use another mirror, or accept it with `Date-Max-Future` or `Check-Date: no` in the source";

/// Relation of an offered Release to the local one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Succession {
    /// It has the same age or is newer, or there is no local one.
    Follows,
    /// It is older, and must not replace the local one.
    Older,
    /// It is older, but the local one has a `Date` in the future and does not count.
    Corrects(FutureDate),
}

impl DateCheck {
    /// Makes a check against the time `now`, in Unix seconds. `checked` is `Check-Date`, `max_future_s` is
    /// `Max-FutureTime`.
    pub fn new(now: i64, checked: bool, max_future_s: i64) -> DateCheck {
        DateCheck { now, max_future_s: checked.then_some(max_future_s) }
    }

    /// Latest accepted `Date`, in Unix seconds; `None` if all are accepted.
    pub fn latest(self) -> Option<i64> {
        self.max_future_s.map(|ahead| self.now.saturating_add(ahead))
    }

    /// Returns an error value if the date is in the future. A Release without a `Date` passes.
    pub fn future(self, date: Option<i64>) -> Option<FutureDate> {
        let date = date?;
        self.latest().is_some_and(|latest| date > latest).then_some(FutureDate { date, now: self.now })
    }

    /// Whether a Release dated `offered` may follow one dated `have`. `may_correct` says whether the offered Release is
    /// validly signed, or the local one is not signed either.
    ///
    /// It is safe against replay of an old signed Release if the local date is correct, because only a date in the
    /// future is ignored. In that case `Valid-Until` limits the age of a replayed Release.
    pub fn succession(self, offered: Option<i64>, have: Option<i64>, may_correct: bool) -> Succession {
        if have <= offered {
            return Succession::Follows;
        }
        match self.future(have) {
            // A Release without a date, or with a date in the future itself, does not replace it.
            Some(future) if may_correct && offered.is_some() && self.future(offered).is_none() => {
                Succession::Corrects(future)
            }
            _ => Succession::Older,
        }
    }

    /// Sort key for choosing among several Releases: dates in the future rank below all others, then the newest ranks
    /// highest.
    pub fn rank(self, date: Option<i64>) -> (bool, Option<i64>) {
        (self.future(date).is_none(), date)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn check() -> DateCheck {
        DateCheck::new(NOW, true, MAX_FUTURE_S)
    }

    #[test]
    fn ten_seconds_ahead_are_a_clock_and_eleven_the_future() {
        for (date, is_future) in
            [(None, false), (Some(NOW), false), (Some(NOW + 10), false), (Some(NOW + 11), true), (Some(i64::MAX), true)]
        {
            assert_eq!(check().future(date).is_some(), is_future, "{date:?}");
            assert_eq!(DateCheck::new(NOW, false, MAX_FUTURE_S).future(date), None, "not checked");
        }
        let far = DateCheck::new(NOW, true, i64::MAX);
        assert_eq!((far.latest(), far.future(Some(i64::MAX))), (Some(i64::MAX), None));
        let text = check().future(Some(NOW + 86_400)).unwrap().to_string();
        assert!(
            text.contains("Wed, 15 Nov 2023 22:13:20 UTC") && text.contains("Tue, 14 Nov 2023 22:13:20 UTC"),
            "{text}"
        );
    }

    #[test]
    fn only_a_date_in_the_future_stops_counting() {
        use Succession::{Follows, Older};
        let (past, future) = (Some(NOW - 5), Some(NOW + 999));
        for (offered, have, may_correct, expected) in [
            (past, None, false, Follows),
            (past, past, false, Follows),
            (Some(NOW), past, false, Follows),
            (Some(NOW - 6), past, true, Older),
            (None, past, true, Older),
            (past, future, false, Older),
            (None, future, true, Older),
            (Some(NOW + 99), future, true, Older),
        ] {
            assert_eq!(check().succession(offered, have, may_correct), expected, "{offered:?} {have:?}");
        }
        assert!(matches!(check().succession(past, future, true), Succession::Corrects(_)));
        assert_eq!(DateCheck::new(NOW, false, 0).succession(past, future, true), Older, "not checked");
        assert!(check().rank(past) > check().rank(future) && check().rank(past) > check().rank(None));
    }
}
