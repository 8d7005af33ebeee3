//! Values as people write them: rates, shares, kinds of files, patterns.
//!
//! Each type has one text form, used by the flags, the environment and the
//! settings file alike; the error says what would have been right.

use std::fmt;
use std::str::FromStr;

/// A text that is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(pub String);

/// A rate in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(pub u64);

/// Units of a rate and what one of them is in bytes per second. Decimal as in
/// networking; the binary ones have their `i`; bits are spelt out. A lower-case
/// `b` behind a letter is refused: `Mb` is megabits to some and megabytes to others.
const RATE_UNITS: &[(&str, f64)] = &[
    ("", 1.0),
    ("b", 1.0),
    ("k", 1e3),
    ("kb", 1e3),
    ("m", 1e6),
    ("mb", 1e6),
    ("g", 1e9),
    ("gb", 1e9),
    ("ki", 1024.0),
    ("kib", 1024.0),
    ("mi", 1_048_576.0),
    ("mib", 1_048_576.0),
    ("gi", 1_073_741_824.0),
    ("gib", 1_073_741_824.0),
    ("bit", 0.125),
    ("kbit", 125.0),
    ("mbit", 125e3),
    ("gbit", 125e6),
];

/// Slowest rate accepted: below it no time limit of a host could be kept.
const RATE_MIN_BYTES_PER_S: f64 = 1024.0;
/// Fastest rate accepted, far above any link; keeps later sums in range.
const RATE_MAX_BYTES_PER_S: f64 = 1e12;

impl FromStr for Rate {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError("expected bytes per second, such as 20M, 2.5MB, 512KiB or 100Mbit".to_owned());
        let rate = text.trim();
        let rate = rate.strip_suffix("/s").or(rate.strip_suffix("/S")).unwrap_or(rate);
        let digits = rate.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rate.len());
        let (number, unit) = rate.split_at(digits);
        let unit = unit.trim();
        if unit.ends_with('b') {
            return Err(ValueError(format!(
                "{text:?} may be bits or bytes: a capital B is bytes, as in 20MB; bits are written 20Mbit"
            )));
        }
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let (_, factor) = RATE_UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).ok_or_else(wrong)?;
        let rate = number * factor;
        if rate.is_nan() || rate < RATE_MIN_BYTES_PER_S {
            return Err(ValueError(format!("{text} is less than 1 KiB/s, the lowest possible rate")));
        }
        if rate > RATE_MAX_BYTES_PER_S {
            return Err(ValueError(format!("{text} is more than 1 TB/s; leave the limit out instead")));
        }
        Ok(Rate(rate as u64))
    }
}

/// A share, written as percent: `5%` or `5`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percent(f64);

impl Percent {
    /// The share between 0 and 1.
    pub fn fraction(self) -> f64 {
        self.0 / 100.0
    }

    /// From a number of percent.
    pub fn new(percent: f64) -> Result<Self, ValueError> {
        if (0.0..=100.0).contains(&percent) {
            Ok(Percent(percent))
        } else {
            Err(ValueError("expected a share between 0% and 100%".to_owned()))
        }
    }
}

impl FromStr for Percent {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let number = text.trim().trim_end_matches('%').trim();
        number.parse().map_err(|_| ValueError("expected a share between 0% and 100%".to_owned())).and_then(Self::new)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// Name and value of an option of apt, written as in apt.conf(5) (`NAME "VALUE";`) or as for `apt-get --option`
/// (`NAME=VALUE`). `None` if it is neither, such as the name of a file or several options.
pub(super) fn apt_option(text: &str) -> Option<(&str, &str)> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_' | '/' | '.' | '+');
    let end = text.find(|c| !is_of_name(c)).filter(|end| *end > 0)?;
    let (name, rest) = text.split_at(end);
    let value = match rest.strip_prefix('=') {
        Some(value) => value,
        None if rest.starts_with(char::is_whitespace) && !rest.trim_start().starts_with('=') => rest,
        None => return None,
    };
    let value = value.trim();
    let value = value.strip_suffix(';').unwrap_or(value).trim_end();
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    // In the form of a command, everything behind the sign is the value.
    let is_one = rest.starts_with('=') || !value.is_empty() && !value.contains([';', '{', '}']);
    (is_one && !value.contains('"')).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_apt_has_two_forms() {
        for text in ["A::B=c d", "A::B=\"c d\"", "A::B=c d;", "A::B \"c d\"", "A::B  \"c d\";", "A::B c d;"] {
            assert_eq!(apt_option(text), Some(("A::B", "c d")), "{text}");
        }
        assert_eq!(apt_option("A::List:: \"x\""), Some(("A::List::", "x")));
        assert_eq!(apt_option("A::Hook::=echo {a}; echo b"), Some(("A::Hook::", "echo {a}; echo b")));
        assert_eq!(apt_option("A="), Some(("A", "")));
        for text in ["", "=x", "A", "/etc/apt.conf", "#clear A;", "A = b", "A { B \"c\"; }", "A \"b\"; C \"d\";"] {
            assert_eq!(apt_option(text), None, "{text}");
        }
    }

    #[test]
    fn rates_are_bytes_per_second_unless_bits_are_said() {
        for (text, bytes) in [
            ("20M", 20_000_000),
            ("2.5MB", 2_500_000),
            ("512KiB", 524_288),
            ("100Mbit", 12_500_000),
            ("1 gbit/s", 125_000_000),
            ("4096", 4096),
        ] {
            assert_eq!(text.parse(), Ok(Rate(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_no_rate() {
        for text in [
            "",
            "fast",
            "-1M",
            "1.2.3M",
            "0",
            "1e9",
            "20X",
            "NaN",
            "inf",
            "99999999999999999999G",
            "20Mb",
            "20 mb/s",
            "4096b",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn percent_is_between_0_and_100() {
        assert_eq!("5%".parse::<Percent>().map(Percent::fraction), Ok(0.05));
        assert_eq!("100".parse::<Percent>().map(Percent::fraction), Ok(1.0));
        for text in ["101", "-1%", "x", "", "NaN", "inf"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
    }
}
