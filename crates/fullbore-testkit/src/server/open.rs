//! The connections of a server that are open, as its clients see it.

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

/// Open connections.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    sockets: Vec<(u64, Arc<Socket>)>,
    /// Most at a time.
    pub(super) most: u64,
}

impl OpenConnections {
    /// Adds one, and tells how many there are. Those that the client has closed do not count, even if this server has not
    /// come to notice it: a client that opens a connection for one that it has closed has one, however busy the machine is.
    pub(super) fn add(&mut self, id: u64, socket: Arc<Socket>) -> u64 {
        let mut others: Vec<PollFd<'_>> =
            self.sockets.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::RDHUP)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_closed = |other: &PollFd<'_>| {
            other.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        };
        let closed = match poll(&mut others, Some(&now)) {
            Ok(_) => others.iter().filter(|other| is_closed(other)).count(),
            Err(_) => 0,
        };
        self.sockets.push((id, socket));
        let open = (self.sockets.len() - closed) as u64;
        self.most = self.most.max(open);
        open
    }

    /// The server has closed one.
    pub(super) fn remove(&mut self, id: u64) {
        self.sockets.retain(|(other, _)| *other != id);
    }

    /// How many the server has not closed.
    pub(super) fn count(&self) -> u64 {
        self.sockets.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_that_the_client_has_closed_is_not_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let take = || Arc::new(Socket::from(listener.accept().unwrap().0));
        let mut open = OpenConnections::default();
        let clients = [connect(), connect()];
        assert_eq!((open.add(1, take()), open.add(2, take())), (1, 2));
        let [first, _second] = clients;
        // What was not read does not hide the end.
        std::io::Write::write_all(&mut &first, b"unread").unwrap();
        drop(first);
        let _third = connect();
        assert_eq!((open.add(3, take()), open.most, open.count()), (2, 2, 3));
        open.remove(1);
        let _fourth = connect();
        assert_eq!((open.add(4, take()), open.most, open.count()), (3, 3, 3));
    }
}
