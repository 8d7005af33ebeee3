//! Refusals that the server sends separately from its answers.
//!
//! A request without permission gets no answer, and a user who may no longer log in gets no connection. The server
//! reports both in a line that belongs to no request; the client library passes it on as an event.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{ClientError, ConnectErrorKind, Event, ServerError};

/// Time for which a server may refuse a user who was logged in. A starting server may not know its accounts yet.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// Most missing permissions that are remembered. A guess above the number of subjects that one worker uses at the same
/// time.
const PERMISSIONS_MAX: usize = 16;

/// Prefix of the inboxes of planners and workers.
const INBOX: &str = "_INBOX";

/// Start of the server's text about a missing permission.
const NO_PERMISSION: &str = "permissions violation";

/// The refusals of one connection.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    /// Since when the server refuses this user.
    login: Option<Instant>,
    /// The last requests without permission, each text once.
    permissions: VecDeque<(Instant, String)>,
}

impl Refusals {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event of the connection.
    pub(super) fn hear(&self, now: Instant, event: &Event) {
        let mut heard = self.heard();
        match event {
            Event::Connected => heard.login = None,
            Event::ClientError(ClientError::Other(text))
                if *text == ConnectErrorKind::AuthorizationViolation.to_string() =>
            {
                heard.login.get_or_insert(now);
            }
            // Any other failure to connect means that the server or the path to it is down, not that it refuses the
            // user.
            Event::ClientError(ClientError::Other(_)) => heard.login = None,
            Event::ServerError(ServerError::Other(text)) if text.to_lowercase().starts_with(NO_PERMISSION) => {
                heard.permissions.retain(|(_, known)| known != text);
                if heard.permissions.len() >= PERMISSIONS_MAX {
                    heard.permissions.pop_front();
                }
                heard.permissions.push_back((now, text.clone()));
            }
            _ => {}
        }
    }

    /// Why this user is not connected, if the server has refused the credentials for long.
    pub(super) fn login(&self, now: Instant) -> Option<String> {
        let since = self.heard().login?;
        let is_final = now.saturating_duration_since(since) >= REFUSED_MAX;
        is_final.then(|| "the server does not accept the credentials any more".to_owned())
    }

    /// The permission that has been missing since `since`, for a request that uses subjects with these prefixes and an
    /// inbox.
    pub(super) fn permission(&self, since: Instant, subjects: &[&str]) -> Option<String> {
        // The server says: Permissions Violation for Publish to "fb.9c1f.q.l".
        let concerns = |text: &str| {
            let said = text.split('"').nth(1).unwrap_or_default();
            said.starts_with(INBOX) || subjects.iter().any(|subject| said.starts_with(subject))
        };
        let heard = self.heard();
        let missing = heard.permissions.iter().rev().find(|(at, text)| *at >= since && concerns(text));
        missing.map(|(_, text)| text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Event {
        Event::ClientError(ClientError::Other(ConnectErrorKind::AuthorizationViolation.to_string()))
    }

    #[test]
    fn credentials_that_are_refused_for_long_are_given_up() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        refusals.hear(now, &Event::Disconnected);
        refusals.hear(now, &Event::ClientError(ClientError::Other("timed out".to_owned())));
        assert_eq!(refusals.login(now + REFUSED_MAX), None);
        refusals.hear(now, &refused());
        refusals.hear(now + REFUSED_MAX / 2, &refused());
        assert_eq!(refusals.login(now + REFUSED_MAX / 2), None);
        assert!(refusals.login(now + REFUSED_MAX).is_some());
        refusals.hear(now, &Event::Connected);
        assert_eq!(refusals.login(now + REFUSED_MAX), None);
    }

    #[test]
    fn a_refusal_before_a_loss_of_the_server_is_forgotten() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        refusals.hear(now, &refused());
        refusals.hear(now, &Event::ClientError(ClientError::Other(ConnectErrorKind::Io.to_string())));
        assert_eq!(refusals.login(now + REFUSED_MAX), None);
        refusals.hear(now + REFUSED_MAX, &refused());
        assert_eq!(refusals.login(now + REFUSED_MAX), None);
        assert!(refusals.login(now + 2 * REFUSED_MAX).is_some());
    }

    #[test]
    fn a_missing_permission_belongs_to_the_requests_before_it() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let said = "Permissions Violation for Publish to \"fb.9c1f.q.l\"";
        refusals.hear(now + REFUSED_MAX, &Event::ServerError(ServerError::Other(said.to_owned())));
        refusals.hear(now + REFUSED_MAX, &Event::ServerError(ServerError::Other("Slow Consumer".to_owned())));
        assert_eq!(refusals.permission(now, &["fb.9c1f.q."]).as_deref(), Some(said));
        assert_eq!(refusals.permission(now + 2 * REFUSED_MAX, &["fb.9c1f.q."]), None);
        assert_eq!(refusals.permission(now, &["$JS.API.", "fb.9c1f.stat."]), None, "a request for something else");
        let inbox = "Permissions Violation for Subscription to \"_INBOX_w.x\"";
        refusals.hear(now + REFUSED_MAX, &Event::ServerError(ServerError::Other(inbox.to_owned())));
        assert_eq!(refusals.permission(now, &["$JS.API."]).as_deref(), Some(inbox));
    }

    #[test]
    fn few_missing_permissions_are_remembered() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for number in 0..=PERMISSIONS_MAX {
            let said = format!("Permissions Violation for Publish to \"fb.{number}.fault\"");
            refusals.hear(now, &Event::ServerError(ServerError::Other(said)));
        }
        assert_eq!(refusals.heard().permissions.len(), PERMISSIONS_MAX);
        assert_eq!(refusals.permission(now, &["fb.0."]), None);
    }
}
