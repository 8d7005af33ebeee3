//! The report as JSON: all of it, the course of time included.

use fullbore_engine::escape;
use fullbore_engine::run::report::Report;

/// The report as indented JSON with a newline at its end.
pub fn render(report: &Report) -> String {
    // Numbers, texts and lists only: serde_json cannot fail on them. Were it to, an empty object
    // is better than a run that ends in a panic after all its work.
    let text = serde_json::to_string_pretty(report).unwrap_or_else(|_| "{}".to_owned());
    format!("{}\n", escape::json(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn what_is_written_can_be_read() {
        let report = sample::report();
        let read: Report = serde_json::from_str(&render(&report)).unwrap();
        assert_eq!(read.summary, report.summary);
        assert_eq!(read.timeline.hosts, report.timeline.hosts);
    }

    #[test]
    fn hidden_characters_are_written_as_escapes() {
        let mut report = sample::report();
        report.summary.hosts[0].host = "\u{1b}\u{9b}\u{7f}\u{202e}\u{e0041}".into();
        let text = render(&report);
        assert!(!text.chars().any(|c| escape::is_hidden(c) && c != '\n'), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap().summary, report.summary);
    }

    #[test]
    fn a_report_of_an_older_version_can_be_read() {
        let read: Report = serde_json::from_str(r#"{"summary":{"dir":"/x","new_field":1}}"#).unwrap();
        assert_eq!(read.summary.dir, "/x");
    }
}
