//! Verifies one share of an immutable file from beginning to end, against the hashes that the cap vouches for.

use std::ops::Range;

use bytes::Bytes;

use crate::cap::{StorageIndex, Verifier};
use crate::download::share::{Proven, extension_range, hashes_range, prove, read_extension};
use crate::encode::block_leaves;
use crate::fault::{ShareFault, read_bytes};
use crate::gbs::link::Link;
use crate::layout::{HEADER_BYTES_MAX, Layout};
use crate::upload::produce::Pool;

/// Bytes of the first request: a small share comes with one request.
const FIRST_BYTES: u64 = 64 << 10;

/// Bytes of blocks per request.
const GROUP_BYTES: u64 = 1 << 20;

/// A share being read, with the beginning of its bytes.
pub(super) struct ShareReader<'a> {
    link: &'a Link,
    index: StorageIndex,
    share: u16,
    first: Bytes,
}

impl<'a> ShareReader<'a> {
    /// Fetches the beginning of a share.
    pub(super) async fn open(link: &'a Link, index: StorageIndex, share: u16) -> Result<ShareReader<'a>, ShareFault> {
        let mut reader = ShareReader { link, index, share, first: Bytes::new() };
        reader.first = reader.ask(0..FIRST_BYTES).await?;
        Ok(reader)
    }

    async fn ask(&self, range: Range<u64>) -> Result<Bytes, ShareFault> {
        let length = range.end.saturating_sub(range.start);
        let call = self.link.requests().read(&self.index, self.share, range.start, length);
        let reply = self.link.send(call, length).await?.reply().await?;
        read_bytes(&reply.answer)
    }

    /// Bytes of a range of the share; fewer at its end.
    async fn bytes(&self, range: Range<u64>) -> Result<Bytes, ShareFault> {
        // A shorter answer than the request means that the share ends there.
        let end =
            if (self.first.len() as u64) < FIRST_BYTES { range.end.min(self.first.len() as u64) } else { range.end };
        if end <= self.first.len() as u64 {
            let begin = range.start.min(end);
            return Ok(self.first.slice(begin as usize..end as usize));
        }
        self.ask(range).await
    }

    /// Proves the share's place in the file, and with it the hashes of its blocks.
    pub(super) async fn prove(&self, cap: &Verifier) -> Result<Proven, ShareFault> {
        let header = self.bytes(0..HEADER_BYTES_MAX).await?;
        let layout = Layout::parse(&header).map_err(ShareFault::damaged)?;
        let (offset, length) = match hashes_range(&layout, cap, None).map_err(ShareFault::damaged)? {
            Some(range) => range,
            None => {
                let (offset, length) = extension_range(&layout);
                let bytes = self.bytes(offset..offset.saturating_add(length)).await?;
                let (extension, _) = read_extension(cap, &layout, &bytes).map_err(ShareFault::damaged)?;
                let range = hashes_range(&layout, cap, Some(&extension)).map_err(ShareFault::damaged)?;
                range.ok_or_else(|| ShareFault::damaged("its hashes are missing"))?
            }
        };
        let hashes = self.bytes(offset..offset.saturating_add(length)).await?;
        prove(cap, self.share, layout, &hashes).map_err(ShareFault::damaged)
    }

    /// Reads every block, and compares it with its hash.
    pub(super) async fn verify(&self, cap: &Verifier, pool: &Pool) -> Result<(), ShareFault> {
        let proven = self.prove(cap).await?;
        let geometry = proven.extension.geometry;
        let block = geometry.block_size().max(1);
        let each = (GROUP_BYTES / block).max(1);
        let mut segment = 0;
        while segment < geometry.segments {
            let end = (segment + each).min(geometry.segments);
            let begin = proven.layout.data + segment * block;
            let length = (end - segment - 1) * block + geometry.block_len(end - 1);
            let bytes = self.bytes(begin..begin + length).await?;
            if (bytes.len() as u64) < length {
                return Err(ShareFault::damaged("it is cut short"));
            }
            let hashing = pool.run_async(move || {
                let blocks: Vec<&[u8]> = bytes.chunks(block as usize).collect();
                block_leaves(&blocks)
            });
            let leaves = hashing.await.map_err(|_| ShareFault::silent("it was not hashed"))?;
            for (number, leaf) in (segment..end).zip(&leaves) {
                if proven.blocks.leaf(number as usize) != Some(leaf) {
                    return Err(ShareFault::damaged(format_args!("block {number} is damaged")));
                }
            }
            segment = end;
        }
        Ok(())
    }
}
