//! Orders messages about files that come whole from one host, by the order of APT's requests.
//!
//! The files come over one connection, one after the other; only their tasks run in any order. APT shows its user these
//! messages, and two runs should look alike. A file's messages wait until each earlier file has begun or is answered.

use std::collections::VecDeque;

use crate::acquire::Message;

/// Number of a task.
pub(super) type TaskId = u64;

/// A requested file.
#[derive(Debug)]
struct Waiting {
    task: TaskId,
    held: Vec<Message>,
    /// Whether APT got a message about it.
    is_begun: bool,
    is_ended: bool,
}

/// The files of one host.
#[derive(Debug, Default)]
pub(super) struct InOrder {
    waiting: VecDeque<Waiting>,
}

impl InOrder {
    /// Adds a requested file.
    pub(super) fn add(&mut self, task: TaskId) {
        self.waiting.push_back(Waiting { task, held: Vec::new(), is_begun: false, is_ended: false });
    }

    /// Adds messages about a file; `is_ended` if they are its last ones. Returns all messages that may be sent now,
    /// about this file and others.
    pub(super) fn told(&mut self, task: TaskId, messages: Vec<Message>, is_ended: bool) -> Vec<Message> {
        let Some(own) = self.waiting.iter_mut().find(|waiting| waiting.task == task) else { return messages };
        own.held.extend(messages);
        own.is_begun = true;
        own.is_ended |= is_ended;
        let mut now = Vec::new();
        for waiting in &mut self.waiting {
            now.append(&mut waiting.held);
            if !waiting.is_begun {
                break;
            }
        }
        self.waiting.retain(|waiting| !waiting.is_ended || !waiting.held.is_empty());
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(code: u16) -> Vec<Message> {
        vec![Message::new(code, "")]
    }

    fn codes(messages: Vec<Message>) -> Vec<u16> {
        messages.into_iter().map(|message| message.code).collect()
    }

    #[test]
    fn answers_wait_for_those_before_them_and_no_longer() {
        let mut order = InOrder::default();
        (1..=4).for_each(|task| order.add(task));
        assert_eq!(codes(order.told(2, message(402), true)), [0; 0]);
        assert_eq!(codes(order.told(4, message(404), true)), [0; 0]);
        assert_eq!(codes(order.told(1, message(201), false)), [201, 402], "the first has begun");
        assert_eq!(codes(order.told(3, message(203), false)), [203, 404]);
        assert_eq!(codes(order.told(3, message(303), true)), [303]);
        assert_eq!(codes(order.told(1, message(301), true)), [301]);
        assert!(order.waiting.is_empty());
        assert_eq!(codes(order.told(9, message(409), true)), [409], "of a set of mirrors nothing waits");
    }
}
