//! `Date` and `Valid-Until` in other forms than APT writes.

use super::OddArchive;
use super::draft::Draft;

pub(super) const ALL: &[OddArchive] = &[
    OddArchive::usual("date-west-of-utc", west_of_utc),
    OddArchive::usual("date-east-of-utc", east_of_utc),
    OddArchive::usual("date-zone-name", zone_name),
    OddArchive::usual("date-iso", iso),
    OddArchive::usual("date-american", american),
    OddArchive::usual("date-chinese", chinese),
    OddArchive::usual("date-asctime", asctime),
    OddArchive::usual("date-rfc850", rfc850),
    OddArchive::usual("date-missing", missing),
    OddArchive::usual("date-empty", empty),
    OddArchive::usual("date-two-digit-year", two_digit_year),
    OddArchive::usual("valid-until-unreadable", valid_until_unreadable),
    OddArchive::usual("valid-until-zone", valid_until_zone),
    OddArchive::usual("valid-until-past", valid_until_past),
];

/// A zone behind UTC (osquery/osquery#3000).
fn west_of_utc(draft: &mut Draft) {
    draft.set("Date", "Sun, 15 Jun 2025 07:06:40 -0800");
}

/// A zone ahead of UTC (OpenNebula/one#6776, typora/typora-issues#356).
fn east_of_utc(draft: &mut Draft) {
    draft.set("Date", "Sun, 15 Jun 2025 17:06:40 +0200");
}

/// A zone by its name (RFC 5322, section 4.3).
fn zone_name(draft: &mut Draft) {
    draft.set("Date", "Sun, 15 Jun 2025 11:06:40 EDT");
}

/// As `date` of a database prints it (dnbert/prm#71).
fn iso(draft: &mut Draft) {
    draft.set("Date", "2025-06-15 15:06:40 UTC");
}

/// Month before day (artipie/artipie#1365).
fn american(draft: &mut Draft) {
    draft.set("Date", "Sun, Jun 15 2025 15:06:40 +0000");
}

/// Names of another language (typora/typora-issues#3116).
fn chinese(draft: &mut Draft) {
    draft.set("Date", "日, 15 6月 2025 15:06:40 UTC");
}

/// The form of asctime(3), which APT reads.
fn asctime(draft: &mut Draft) {
    draft.set("Date", "Sun Jun 15 15:06:40 2025");
}

/// The form of RFC 850, which APT reads.
fn rfc850(draft: &mut Draft) {
    draft.set("Date", "Sunday, 15-Jun-25 15:06:40 GMT");
}

/// No date (osquery/osquery#2058, sensu/sensu#1485, inventage/nexus-apt-plugin#18).
fn missing(draft: &mut Draft) {
    draft.unset("Date");
}

/// An empty date, as a template without its variable writes it.
fn empty(draft: &mut Draft) {
    draft.set("Date", "");
}

/// A year of two digits (RFC 822).
fn two_digit_year(draft: &mut Draft) {
    draft.set("Date", "Sun, 15 Jun 25 15:06:40 UTC");
}

/// An end that is no date (sensu/sensu#1528).
fn valid_until_unreadable(draft: &mut Draft) {
    draft.set("Valid-Until", "next year");
}

/// An end with a zone.
fn valid_until_zone(draft: &mut Draft) {
    draft.set("Valid-Until", "Thu, 15 Jun 2045 17:06:40 +0200");
}

/// Expired.
fn valid_until_past(draft: &mut Draft) {
    draft.set("Valid-Until", "Mon, 16 Jun 2025 15:06:40 UTC");
}
