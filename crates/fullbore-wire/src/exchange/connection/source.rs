//! Request bodies that are read from their source piece by piece, as the socket accepts them.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::task::JoinHandle;

use super::super::{ReadAt, Service};
use super::{Connection, OUTGOING_BYTES};

/// Number of bytes read from a source at once.
const PIECE_BYTES: u64 = 512 << 10;

/// A body that is read from its source while it is sent.
pub(super) struct SourceBody {
    pub tag: u64,
    pub source: Arc<dyn ReadAt>,
    pub offset: u64,
    pub remaining: u64,
    pub reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl<S: Service> Connection<'_, S> {
    /// Starts reading the next piece of a source if there is room for it.
    pub(super) fn read_source(&mut self) {
        let room = self.http.outgoing().len() < OUTGOING_BYTES;
        let Some(body) = self.source_body.as_mut().filter(|body| room && body.reading.is_none()) else { return };
        let (source, offset) = (Arc::clone(&body.source), body.offset);
        let length = body.remaining.min(PIECE_BYTES) as usize;
        body.reading = Some(tokio::task::spawn_blocking(move || {
            let mut piece = BytesMut::zeroed(length);
            source.read_exact_at(&mut piece, offset)?;
            Ok(piece.freeze())
        }));
    }

    /// Queues a piece that was read.
    pub(super) fn source_read(&mut self, piece: io::Result<Bytes>) -> Result<(), String> {
        let Some(body) = &mut self.source_body else { return Ok(()) };
        let piece = piece.map_err(|error| format!("cannot read the file: {error}"))?;
        let (tag, length) = (body.tag, piece.len() as u64);
        body.reading = None;
        body.offset += length;
        body.remaining -= length;
        let done = body.remaining == 0;
        self.queued_bytes += length;
        if done {
            self.source_body = None;
        }
        // The server may have answered before it had the whole body; then the rest is not sent.
        match self.http.body(tag, piece).and_then(|()| if done { self.http.body_end(tag) } else { Ok(()) }) {
            Ok(()) => Ok(()),
            Err(_) if self.http.is_closing() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Waits for the piece being read; never returns if there is none.
pub(super) async fn piece(reading: Option<&mut JoinHandle<io::Result<Bytes>>>) -> io::Result<Bytes> {
    match reading {
        Some(reading) => reading.await.unwrap_or_else(|error| Err(io::Error::other(error))),
        None => std::future::pending().await,
    }
}
