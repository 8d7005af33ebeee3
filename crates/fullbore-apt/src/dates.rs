//! Which dates of a Release are accepted: the options of its source, and apt's configuration.

use fullbore_debian::release::Release;
use fullbore_debian::release_date::{DateCheck, MAX_FUTURE_S};
use fullbore_debian::sources_list::ArchiveSource;

use crate::acquire::Configuration;
use crate::signed_release::valid_until;

/// The date options of a source. As in apt, 0 seconds means that the option is not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DateOptions {
    check_valid_until: Option<bool>,
    check_date: Option<bool>,
    date_max_future_s: Option<u64>,
    valid_until_min_s: Option<u64>,
    valid_until_max_s: Option<u64>,
}

impl DateOptions {
    /// The options of a source.
    pub(crate) fn of(source: &ArchiveSource) -> DateOptions {
        let set = |seconds: Option<u64>| seconds.filter(|seconds| *seconds > 0);
        DateOptions {
            check_valid_until: source.check_valid_until,
            check_date: source.check_date,
            date_max_future_s: set(source.date_max_future_s),
            valid_until_min_s: set(source.valid_until_min_s),
            valid_until_max_s: set(source.valid_until_max_s),
        }
    }

    /// Adds the options of another entry of the same suite.
    ///
    /// # Errors
    /// Name of the first option for which apt, too, reports conflicting entries. Seconds that only the later entry sets
    /// are not a conflict.
    pub(crate) fn join(&mut self, other: &DateOptions) -> Result<(), &'static str> {
        for (name, own, other) in [
            ("Check-Valid-Until", self.check_valid_until, other.check_valid_until),
            ("Check-Date", self.check_date, other.check_date),
        ] {
            if own != other {
                return Err(name);
            }
        }
        for (name, own, other) in [
            ("Valid-Until-Max", &mut self.valid_until_max_s, other.valid_until_max_s),
            ("Valid-Until-Min", &mut self.valid_until_min_s, other.valid_until_min_s),
            ("Date-Max-Future", &mut self.date_max_future_s, other.date_max_future_s),
        ] {
            if own.is_some() && *own != other {
                return Err(name);
            }
            *own = other;
        }
        Ok(())
    }
}

/// The rules for the dates of one repository, at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DateRules<'a> {
    /// apt's configuration, for options that the source does not set.
    pub(crate) configuration: &'a Configuration,
    /// The options of the source.
    pub(crate) options: &'a DateOptions,
    /// The time of this machine, Unix seconds.
    pub(crate) now: i64,
}

impl DateRules<'_> {
    /// The check of `Date` for a Release with this `Label`.
    pub(crate) fn check(self, label: Option<&str>) -> DateCheck {
        let ahead = self.options.date_max_future_s.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX));
        let ahead = ahead.unwrap_or_else(|| self.number("Acquire::Max-FutureTime", label, MAX_FUTURE_S));
        DateCheck::new(self.now, self.checks_date(), ahead)
    }

    /// The check of `Date` for this Release; for none, that of a Release without a label.
    pub(crate) fn check_of(self, release: Option<&Release>) -> DateCheck {
        self.check(release.and_then(|release| release.label.as_deref()))
    }

    /// When a Release expires, Unix seconds; `None` if it never does, or if that is not checked.
    pub(crate) fn valid_until(self, release: &Release) -> Option<i64> {
        let checked = self.options.check_valid_until;
        let checked = checked.unwrap_or_else(|| self.configuration.bool("Acquire::Check-Valid-Until", true));
        if !checked || !self.checks_date() {
            return None;
        }
        let of_label = |key| u64::try_from(self.number(key, release.label.as_deref(), 0)).ok();
        let least = self.options.valid_until_min_s.or_else(|| of_label("Acquire::Min-ValidTime"));
        let most = self.options.valid_until_max_s.or_else(|| of_label("Acquire::Max-ValidTime"));
        valid_until(release, least, most)
    }

    fn checks_date(self) -> bool {
        self.options.check_date.unwrap_or_else(|| self.configuration.bool("Acquire::Check-Date", true))
    }

    /// A number for archives with this label (`KEY::LABEL`), else for all.
    fn number(self, key: &str, label: Option<&str>, default: i64) -> i64 {
        let all = self.configuration.number(key, default);
        label.map_or(all, |label| self.configuration.number(&format!("{key}::{label}"), all))
    }
}

#[cfg(test)]
mod tests {
    use fullbore_debian::signature::SignedText;
    use fullbore_debian::sources_list::parse_deb822;

    use super::*;

    const DATE: i64 = 1_700_000_000;

    fn options(more: &str) -> DateOptions {
        let text = format!("Types: deb\nURIs: http://h\nSuites: s\nComponents: main\n{more}");
        DateOptions::of(&parse_deb822(&text, "amd64").unwrap()[0])
    }

    fn until(settings: &str, source: &str, told_s: Option<i64>) -> Option<i64> {
        let time = |unix_s| fullbore_debian::date::format(unix_s);
        let told = told_s.map_or_else(String::new, |after| format!("Valid-Until: {}\n", time(DATE + after)));
        let entry = format!("SHA256:\n {} 0 main/binary-all/Packages\n", "0".repeat(64));
        let text = format!("Label: Some Label\nDate: {}\n{told}{entry}", time(DATE));
        let release = Release::parse(&SignedText::trusted(text.as_bytes()).unwrap()).unwrap();
        let configuration = Configuration::from_dump(settings).unwrap();
        let options = options(source);
        let rules = DateRules { configuration: &configuration, options: &options, now: DATE };
        rules.valid_until(&release).map(|until| until - DATE)
    }

    #[test]
    fn a_release_expires_by_source_label_and_configuration_as_in_apt() {
        let max_of = |label: &str| format!("Acquire::Max-ValidTime=50\nAcquire::Max-ValidTime::{label}=20\n");
        for (settings, source, told, expected) in [
            ("", "", None, None),
            ("", "", Some(100), Some(100)),
            (max_of("Some%20Label").as_str(), "", Some(100), Some(20)),
            (&max_of("Other"), "", Some(100), Some(50)),
            ("Acquire::Max-ValidTime=50\nAcquire::Max-ValidTime::Some%20Label=0\n", "", Some(100), Some(100)),
            (&max_of("Some%20Label"), "Valid-Until-Max: 30\n", None, Some(30)),
            (&max_of("Some%20Label"), "Valid-Until-Max: 0\n", None, Some(20)),
            ("Acquire::Min-ValidTime::Some%20Label=300\n", "", Some(100), Some(300)),
            ("Acquire::Min-ValidTime=300\n", "", None, None),
            ("Acquire::Min-ValidTime=300\n", "Valid-Until-Max: 30\n", None, Some(30)),
            ("", "Valid-Until-Min: 300\nValid-Until-Max: 200\n", Some(100), Some(200)),
            ("Acquire::Check-Valid-Until=false\n", "", Some(100), None),
            ("Acquire::Check-Valid-Until=false\n", "Check-Valid-Until: yes\n", Some(100), Some(100)),
            ("", "Check-Valid-Until: no\n", Some(100), None),
            ("Acquire::Check-Date=false\n", "Check-Valid-Until: yes\n", Some(100), None),
        ] {
            assert_eq!(until(settings, source, told), expected, "{settings}{source}{told:?}");
        }
    }

    #[test]
    fn a_label_may_be_further_ahead_of_the_clock() {
        let configuration = Configuration::from_dump("Acquire::Max-FutureTime::L=100\n").unwrap();
        let rules = DateRules { configuration: &configuration, options: &options(""), now: DATE };
        assert!(rules.check(Some("L")).future(Some(DATE + 100)).is_none());
        assert!(rules.check(None).future(Some(DATE + 100)).is_some());
    }

    #[test]
    fn entries_of_one_suite_conflict_as_in_apt() {
        for (first, second, conflict) in [
            ("", "", None),
            ("Check-Valid-Until: no\n", "Check-Valid-Until: no\n", None),
            ("Check-Valid-Until: no\n", "Check-Valid-Until: yes\n", Some("Check-Valid-Until")),
            ("", "Check-Valid-Until: yes\n", Some("Check-Valid-Until")),
            ("Check-Date: no\n", "", Some("Check-Date")),
            ("Valid-Until-Max: 5\n", "", Some("Valid-Until-Max")),
            ("", "Valid-Until-Max: 5\n", None),
            ("Valid-Until-Max: 0\n", "Valid-Until-Max: 5\n", None),
            ("Valid-Until-Min: 5\n", "Valid-Until-Min: 6\n", Some("Valid-Until-Min")),
            ("Date-Max-Future: 5\n", "Date-Max-Future: 6\n", Some("Date-Max-Future")),
        ] {
            let mut own = options(first);
            assert_eq!(own.join(&options(second)).err(), conflict, "{first} {second}");
        }
    }
}
