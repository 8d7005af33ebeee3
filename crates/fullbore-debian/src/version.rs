//! Version comparison of Debian policy 5.6.12 and dpkg.
//!
//! `[epoch:]upstream[-revision]`: epochs are compared as numbers, then upstream version and revision as alternating
//! runs of non-digits and digits. `~` sorts before the end of the text, and letters sort before all other characters.

use std::cmp::Ordering;

/// The three parts of a version. Any text is accepted, because dpkg compares versions that policy forbids as well.
#[derive(Debug, Clone, Copy)]
pub struct Version<'a> {
    /// Text before the first colon; `0` if there is none.
    pub epoch: &'a str,
    /// Text between the epoch and the last hyphen.
    pub upstream: &'a str,
    /// Text after the last hyphen; empty if there is none, which equals `0`.
    pub revision: &'a str,
}

impl<'a> Version<'a> {
    /// Splits a version; surrounding white space does not count.
    pub fn split(text: &'a str) -> Self {
        let text = text.trim();
        let (epoch, rest) = text.split_once(':').unwrap_or(("0", text));
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        Version { epoch, upstream, revision }
    }
}

/// Compares two versions like `dpkg --compare-versions`.
///
/// ```
/// use std::cmp::Ordering;
///
/// use fullbore_debian::version;
///
/// assert_eq!(version::compare("2.10-3", "1:1.0"), Ordering::Less);
/// assert_eq!(version::compare("1.0~rc1", "1.0"), Ordering::Less);
/// ```
pub fn compare(left: &str, right: &str) -> Ordering {
    compare_parts(&Version::split(left), &Version::split(right))
}

fn compare_parts(left: &Version<'_>, right: &Version<'_>) -> Ordering {
    // The algorithm below compares digits of any length, so the epoch is not parsed to an integer.
    compare_text(left.epoch.as_bytes(), right.epoch.as_bytes())
        .then_with(|| compare_text(left.upstream.as_bytes(), right.upstream.as_bytes()))
        .then_with(|| compare_text(left.revision.as_bytes(), right.revision.as_bytes()))
}

/// dpkg's `verrevcmp`: compares a run of non-digits by [`weight`], then a run of digits, and so on.
fn compare_text(mut left: &[u8], mut right: &[u8]) -> Ordering {
    while !left.is_empty() || !right.is_empty() {
        while starts_with_other(left) || starts_with_other(right) {
            let order = weight(left).cmp(&weight(right));
            if order != Ordering::Equal {
                return order;
            }
            left = left.get(1..).unwrap_or_default();
            right = right.get(1..).unwrap_or_default();
        }
        let (left_digits, left_rest) = digits(left);
        let (right_digits, right_rest) = digits(right);
        let order = left_digits.len().cmp(&right_digits.len()).then_with(|| left_digits.cmp(right_digits));
        if order != Ordering::Equal {
            return order;
        }
        (left, right) = (left_rest, right_rest);
    }
    Ordering::Equal
}

fn starts_with_other(text: &[u8]) -> bool {
    text.first().is_some_and(|byte| !byte.is_ascii_digit())
}

/// Order: `~`, then the end (or a digit), then letters, then all other characters.
fn weight(text: &[u8]) -> i32 {
    match text.first() {
        Some(b'~') => -1,
        None => 0,
        Some(byte) if byte.is_ascii_digit() => 0,
        Some(byte) if byte.is_ascii_alphabetic() => i32::from(*byte),
        Some(byte) => i32::from(*byte) + 256,
    }
}

/// The digits at the front without leading zeros, and the rest of the text.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().take_while(|&&byte| byte == b'0').count();
    (&digits[zeros..], rest)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    #[test]
    fn examples_of_policy_are_in_its_order() {
        // Policy 5.6.12: "~~", "~~a", "~", the empty part, "a" in this order.
        let ordered = ["1~~", "1~~a", "1~", "1", "1a", "1+", "1.1", "1:0"];
        for pair in ordered.windows(2) {
            assert_eq!(compare(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(compare(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
    }

    #[test]
    fn versions_equal_in_value_are_equal_whatever_their_text() {
        for (left, right) in [("1.0", "1.00"), ("0:1", "1"), ("1-0", "1"), ("1.2-03", "1.2-3"), ("00:1", "0:1")] {
            assert_eq!(compare(left, right), Ordering::Equal, "{left} {right}");
        }
        assert_eq!(compare("1", "99999999999999999999999999999999999999999"), Ordering::Less);
    }

    const VERSION: &str = "([0-9]:)?[0-9]{1,2}[0-9a-b.+~]{0,5}(-[0-9a-b.+~]{1,4})?";

    proptest! {
        #[test]
        fn order_is_total(a in VERSION, b in VERSION, c in VERSION) {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            prop_assert_eq!(compare(&a, &a), Ordering::Equal);
            if compare(&a, &b) != Ordering::Greater && compare(&b, &c) != Ordering::Greater {
                prop_assert_ne!(compare(&a, &c), Ordering::Greater);
            }
        }

        #[test]
        fn arbitrary_input_never_panics(a in "\\PC{0,20}", b in "\\PC{0,20}") {
            compare(&a, &b);
        }
    }

    /// The same answers as dpkg's own, for pairs that are close to each other.
    #[test]
    fn agrees_with_dpkg() {
        let mut runner = TestRunner::deterministic();
        let strategy = (VERSION, VERSION);
        for _ in 0..300 {
            let (left, mut right) = strategy.new_tree(&mut runner).expect("a pair").current();
            if left.len() % 2 == 0 {
                // A small change to the same text finds more than two strangers do.
                right = format!("{left}{}", &right[right.len() - 1..]);
            }
            let relation = match compare(&left, &right) {
                Ordering::Less => "lt",
                Ordering::Equal => "eq",
                Ordering::Greater => "gt",
            };
            let output = Command::new("dpkg")
                .args(["--compare-versions", &left, relation, &right])
                .output()
                .expect("dpkg does not run: this test compares with it (Debian package dpkg)");
            if output.stderr.is_empty() {
                assert!(output.status.success(), "{left} {relation} {right}");
            }
        }
    }
}
