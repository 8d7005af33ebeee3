//! The tables of the page: suites, plan, totals.

use std::fmt::Write;

use fullbore_engine::run::report::{SuiteState, Summary};
use fullbore_engine::units;

use super::escape;
use crate::report::time;

/// All of them.
pub(super) fn tables(page: &mut String, summary: &Summary) {
    suites(page, summary);
    page.push_str("<div class=\"columns\">\n");
    let (plan, totals) = (&summary.plan, &summary.totals);
    counted(
        page,
        "Plan",
        &[
            ("named by the signed indexes", Some(plan.wanted_files), Some(plan.wanted_bytes)),
            ("to fetch", Some(plan.fetch_files), Some(plan.fetch_bytes)),
            ("to delete", Some(plan.delete_files), Some(plan.delete_bytes)),
            ("free on the file system (inodes)", Some(plan.free_inodes), Some(plan.free_bytes)),
        ],
    );
    counted(
        page,
        "Totals",
        &[
            ("verified and written", Some(totals.files), Some(totals.written_bytes)),
            ("needed", None, Some(totals.needed_bytes)),
            ("received", None, Some(totals.received_bytes)),
            ("thrown away", None, Some(totals.wasted_bytes)),
            ("used from an interrupted run", None, Some(totals.resumed_bytes)),
            ("present before", Some(totals.kept_files), Some(totals.kept_bytes)),
            ("read again", Some(totals.checked_files), Some(totals.checked_bytes)),
            ("deleted", Some(totals.deleted_files), Some(totals.deleted_bytes)),
            ("missing or wrong", Some(totals.missing_files), None),
            ("fetched a second time", Some(totals.retried_files), None),
            ("requests asked of a second host", Some(totals.hedged_requests), None),
        ],
    );
    page.push_str("</div>\n");
}

/// A table of files and bytes; lines of zeros are left out.
fn counted(page: &mut String, name: &str, lines: &[(&str, Option<u64>, Option<u64>)]) {
    let _ = write!(
        page,
        "<section><div class=\"head\"><h2>{name}</h2></div><div class=\"scroll\"><table><thead><tr><th></th>\
         <th class=\"n\">number</th><th class=\"n\">bytes</th></tr></thead><tbody>"
    );
    for (what, number, bytes) in lines {
        if number.unwrap_or(0) == 0 && bytes.unwrap_or(0) == 0 {
            continue;
        }
        let _ = write!(
            page,
            "<tr><th>{what}</th><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            number.map(units::count).unwrap_or_default(),
            bytes.map(units::bytes).unwrap_or_default()
        );
    }
    page.push_str("</tbody></table></div></section>\n");
}

fn suites(page: &mut String, summary: &Summary) {
    if summary.suites.is_empty() {
        return;
    }
    page.push_str(
        "<section><div class=\"head\"><h2>Suites</h2></div><div class=\"scroll\"><table><thead><tr><th>suite</th>\
         <th>codename</th><th>version</th><th>of</th><th>valid until</th><th></th></tr></thead><tbody>",
    );
    for suite in &summary.suites {
        let (class, state) = match suite.state {
            SuiteState::Published => ("good", "published"),
            SuiteState::Unchanged => ("good", "unchanged"),
            SuiteState::NotPublished => ("bad", "not published"),
        };
        let _ = write!(
            page,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\"><span class=\"chip {class}\">\
             {state}</span></td></tr>",
            escape(&suite.suite),
            escape(&suite.codename),
            escape(suite.version.as_deref().unwrap_or("–")),
            if suite.date_unix_s == 0 { "undated".to_owned() } else { time::text(suite.date_unix_s) },
            suite.valid_until_unix_s.map_or_else(|| "–".to_owned(), time::text)
        );
    }
    page.push_str("</tbody></table></div></section>\n");
}
