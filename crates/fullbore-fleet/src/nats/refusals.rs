//! What the server refuses beside its answers.
//!
//! A request without permission gets no answer, and a user who may not log in any more gets no connection. The server
//! says either in a line that belongs to no request, which the client library passes on as an event.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{ClientError, ConnectErrorKind, Event, ServerError};

/// Time for which a server may refuse a user who was logged in. A server that starts may not know its accounts yet.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// Beginning of what the server says of a missing permission.
const NO_PERMISSION: &str = "permissions violation";

/// The refusals of one connection.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    /// Since when the server refuses this user.
    login: Option<Instant>,
    /// The last request without permission.
    permission: Option<(Instant, String)>,
}

impl Refusals {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event of the connection.
    pub(super) fn hear(&self, now: Instant, event: &Event) {
        let mut heard = self.heard();
        match event {
            Event::Connected => heard.login = None,
            Event::ClientError(ClientError::Other(text))
                if *text == ConnectErrorKind::AuthorizationViolation.to_string() =>
            {
                heard.login.get_or_insert(now);
            }
            Event::ServerError(ServerError::Other(text)) if text.to_lowercase().starts_with(NO_PERMISSION) => {
                heard.permission = Some((now, text.clone()));
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

    /// The permission that was missing since then.
    pub(super) fn permission(&self, since: Instant) -> Option<String> {
        self.heard().permission.as_ref().filter(|(at, _)| *at >= since).map(|(_, text)| text.clone())
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
    fn a_missing_permission_belongs_to_the_requests_before_it() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let said = "Permissions Violation for Publish to \"fb.9c1f.q.l\"";
        refusals.hear(now + REFUSED_MAX, &Event::ServerError(ServerError::Other(said.to_owned())));
        refusals.hear(now + REFUSED_MAX, &Event::ServerError(ServerError::Other("Slow Consumer".to_owned())));
        assert_eq!(refusals.permission(now).as_deref(), Some(said));
        assert_eq!(refusals.permission(now + 2 * REFUSED_MAX), None);
    }
}
