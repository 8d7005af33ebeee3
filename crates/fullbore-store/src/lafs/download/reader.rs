//! What one share of a file is being asked for, and what came of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::share::{Damage, Fetched, Proven, hashes_range, prove};
use crate::lafs::cap::Chk;
use crate::lafs::layout::{HEADER_BYTES_MAX, Layout};

/// Bytes of a share that is asked for as a whole, hashes included, where so few are expected.
pub(super) const WHOLE_BYTES: u64 = 1 << 20;

/// What a request was for.
#[derive(Debug, Clone)]
pub(super) enum What {
    /// All of a small share.
    Whole,
    Header,
    /// From where on.
    Hashes(u64),
    /// Blocks; offsets count from the first one.
    Data(Range<u64>),
}

/// A share that is being read.
#[derive(Debug)]
pub(super) struct Reader {
    pub share: u16,
    pub server: usize,
    /// It is of no use.
    pub failed: bool,
    /// Something was asked of it that others have answered long since. It may still answer.
    pub slow: bool,
    pub whole_asked: bool,
    header_asked: bool,
    header: Option<Layout>,
    hashes_asked: Option<u64>,
    hashes: Option<(u64, Bytes)>,
    pub proven: Option<Arc<Proven>>,
    /// By offset in the data.
    pub fetched: Fetched,
    /// Blocks that were asked for: where they begin, how many bytes, when.
    pub pending: BTreeMap<u64, (u64, Instant)>,
    /// Bytes of blocks that it sent.
    pub bytes: u64,
}

impl Reader {
    pub(super) fn new(share: u16, server: usize) -> Reader {
        Reader {
            share,
            server,
            failed: false,
            slow: false,
            whole_asked: false,
            header_asked: false,
            header: None,
            hashes_asked: None,
            hashes: None,
            proven: None,
            fetched: Fetched::default(),
            pending: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Nothing came of it yet.
    pub(super) fn is_untried(&self) -> bool {
        self.header.is_none() && self.bytes == 0
    }

    /// What is still to be asked for so that the share can be proven: what, from where in the share, how much.
    /// Without its header the hashes are taken to be where `usual` has them.
    ///
    /// # Errors
    /// When the header tells nonsense.
    pub(super) fn proof_wanted(&self, cap: &Chk, usual: &Layout) -> Result<Option<(What, u64, u64)>, Damage> {
        if self.proven.is_some() || self.whole_asked {
            return Ok(None);
        }
        if !self.header_asked {
            return Ok(Some((What::Header, 0, HEADER_BYTES_MAX)));
        }
        let (offset, length) = hashes_range(self.header.as_ref().unwrap_or(usual), cap)?;
        Ok((self.hashes_asked != Some(offset)).then_some((What::Hashes(offset), offset, length)))
    }

    /// A request was sent.
    pub(super) fn asked(&mut self, what: &What, now: Instant) {
        match what {
            What::Whole => {
                self.whole_asked = true;
                self.pending.insert(0, (WHOLE_BYTES, now));
            }
            What::Header => self.header_asked = true,
            What::Hashes(offset) => self.hashes_asked = Some(*offset),
            What::Data(range) => {
                self.pending.insert(range.start, (range.end - range.start, now));
            }
        }
    }

    /// Bytes came.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn received(&mut self, what: &What, bytes: Bytes, cap: &Chk) -> Result<(), Damage> {
        match what {
            What::Whole => {
                self.pending.clear();
                let layout = self.parse(&bytes)?;
                if layout.plaintext_tree - layout.data != cap.size.div_ceil(u64::from(cap.needed.max(1))) {
                    return Err("its header contradicts the size of the file".into());
                }
                if (bytes.len() as u64) < layout.crypttext_tree {
                    return Err("it is cut short".into());
                }
                let (data, hashes) = (layout.data as usize, layout.crypttext_tree as usize);
                let end = layout.plaintext_tree as usize;
                self.hashes = Some((layout.crypttext_tree, bytes.slice(hashes..)));
                self.came(0, bytes.slice(data..end));
                self.prove(cap)
            }
            What::Header => {
                self.parse(&bytes)?;
                self.prove(cap)
            }
            What::Hashes(offset) => {
                if self.hashes_asked == Some(*offset) {
                    self.hashes = Some((*offset, bytes));
                }
                self.prove(cap)
            }
            What::Data(range) => {
                self.pending.remove(&range.start);
                let length = (range.end - range.start) as usize;
                if bytes.len() < length {
                    return Err("it is cut short".into());
                }
                self.came(range.start, bytes.slice(..length));
                Ok(())
            }
        }
    }

    fn came(&mut self, offset: u64, bytes: Bytes) {
        self.slow = false;
        self.bytes += bytes.len() as u64;
        self.fetched.insert(offset, bytes);
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<Layout, Damage> {
        let layout = Layout::parse(bytes).map_err(|error| error.to_string())?;
        self.header = Some(layout);
        Ok(layout)
    }

    /// Proves the share once its header and its hashes are here.
    fn prove(&mut self, cap: &Chk) -> Result<(), Damage> {
        let (Some(layout), Some((offset, hashes))) = (self.header, &self.hashes) else { return Ok(()) };
        if self.proven.is_some() {
            return Ok(());
        }
        if layout.crypttext_tree != *offset {
            // They were asked for where they are not: segments of another size.
            self.hashes = None;
            return Ok(());
        }
        self.proven = Some(Arc::new(prove(cap, self.share, layout, hashes)?));
        self.hashes = None;
        Ok(())
    }

    /// Lets everything go.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        self.fetched.clear();
        self.pending.clear();
    }
}
