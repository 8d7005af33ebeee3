//! Requests for tasks, by the protocol of JetStream (its ADR-13 and the reference of its API).

use std::time::Duration;

use async_nats::StatusCode;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use super::{NatsQueue, REQUEST_TIMEOUT};
use crate::queue::{Delivery, Held, QueueError};

impl NatsQueue {
    /// Requests tasks: those that wait now, or one within `wait`. Reads until the server reports the end, because a
    /// delivered task that nobody reads is held until it lapses.
    pub(super) async fn pull_once(
        &self,
        subject: String,
        max: usize,
        wait: Option<Duration>,
    ) -> Result<Vec<Held>, QueueError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        self.check_connection()?;
        let request = match wait {
            None => format!("{{\"batch\":{max},\"no_wait\":true}}"),
            Some(wait) => format!("{{\"batch\":{max},\"expires\":{}}}", wait.as_nanos()),
        };
        let lost = |error: &dyn std::error::Error| QueueError::Unreachable(error.to_string());
        let inbox = self.client.new_inbox();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(|error| lost(&error))?;
        let sent = self.client.publish_with_reply(subject, inbox, Bytes::from(request)).await;
        sent.map_err(|error| lost(&error))?;
        let deadline = Instant::now() + wait.unwrap_or_default() + REQUEST_TIMEOUT;
        let mut held = Vec::new();
        while held.len() < max {
            let Ok(Some(answer)) = timeout_at(deadline, answers.next()).await else {
                // The tasks that have arrived are ours all the same.
                let silent = QueueError::Unreachable("no answer to a request for tasks".to_owned());
                return if held.is_empty() { Err(silent) } else { Ok(held) };
            };
            match (answer.status, answer.reply) {
                (None, Some(reply)) => {
                    let delivery = Delivery(reply.to_string());
                    held.push(Held { message: answer.payload, deliveries: deliveries(&delivery), delivery });
                }
                // No task, or none within the time.
                (Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT), _) => break,
                (Some(StatusCode::NO_RESPONDERS | StatusCode::REQUEST_TERMINATED), _) => {
                    let why = answer.description.unwrap_or_else(|| "nobody answers for it".to_owned());
                    return if held.is_empty() { Err(QueueError::Missing(why)) } else { Ok(held) };
                }
                _ => {}
            }
        }
        Ok(held)
    }
}

/// Number of deliveries, from the reply subject. It has two forms: `$JS.ACK.STREAM.CONSUMER.DELIVERIES.…` with nine
/// parts, and `$JS.ACK.DOMAIN.ACCOUNT.STREAM.CONSUMER.DELIVERIES.…` with eleven or more.
fn deliveries(delivery: &Delivery) -> u32 {
    let parts: Vec<&str> = delivery.0.split('.').collect();
    let place = if parts.len() >= 11 { 6 } else { 4 };
    parts.get(place).and_then(|part| part.parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_deliveries_stands_in_the_reply_subject() {
        for (subject, number) in [
            ("$JS.ACK.FULLBORE.9c1f-l.3.17.2.1763600000000000000.5", 3),
            ("$JS.ACK._.acc.FULLBORE.9c1f-l.4.17.2.1763600000000000000.5.token", 4),
            ("$JS.ACK", 1),
            ("$JS.ACK.FULLBORE.9c1f-l.x.17.2.1.5", 1),
        ] {
            assert_eq!(deliveries(&Delivery(subject.to_owned())), number, "{subject}");
        }
    }
}
