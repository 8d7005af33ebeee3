//! Retry-After (RFC 9110, section 10.2.3): how long a host asks to be left alone.

use crate::conditional::parse_http_date;

/// Longest pause that a host may request, in seconds. A run that waits longer for one host has no use for it; a guess.
pub(crate) const RETRY_AFTER_MAX_S: u64 = 3600;

/// Value of the field `Retry-After` in its two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    /// A number of seconds after the answer.
    Seconds(u64),
    /// A time in Unix seconds, by the server's clock.
    At(i64),
}

impl RetryAfter {
    /// Parses the field's value: seconds, or an HTTP date.
    ///
    /// ```
    /// use fullbore_wire::retry_after::RetryAfter;
    ///
    /// let after = RetryAfter::parse("120").unwrap();
    /// assert_eq!(after.delay_s(None, 1_700_000_000), 120);
    /// assert_eq!(RetryAfter::parse("soon"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_ascii();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            // Too many digits for u64 still means "very long".
            return Some(Self::Seconds(text.parse().unwrap_or(u64::MAX)));
        }
        parse_http_date(text).map(Self::At)
    }

    /// Seconds to wait, at most `RETRY_AFTER_MAX_S`. `date` is the Date of the same answer, which makes a wrong clock
    /// on either side harmless. Without it, `now` is used.
    pub fn delay_s(self, date: Option<i64>, now: i64) -> u64 {
        let delay_s = match self {
            Self::Seconds(seconds) => seconds,
            Self::At(time) => {
                let elapsed = time.saturating_sub(date.unwrap_or(now));
                u64::try_from(elapsed).unwrap_or(0)
            }
        };
        delay_s.min(RETRY_AFTER_MAX_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_delay_are_read_and_bounded() {
        let at = RetryAfter::parse("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(at, RetryAfter::At(784_111_777));
        assert_eq!(at.delay_s(Some(784_111_770), 0), 7);
        assert_eq!(at.delay_s(None, 784_111_772), 5);
        assert_eq!(at.delay_s(None, 784_111_999), 0);
        assert_eq!(at.delay_s(Some(i64::MIN), 0), RETRY_AFTER_MAX_S);
        assert_eq!(RetryAfter::parse(" 120 "), Some(RetryAfter::Seconds(120)));
        let long = RetryAfter::parse("99999999999999999999999").unwrap();
        assert_eq!(long.delay_s(None, 0), RETRY_AFTER_MAX_S);
        for text in ["", "-1", "1.5", "soon", "+3"] {
            assert_eq!(RetryAfter::parse(text), None, "{text:?}");
        }
    }
}
