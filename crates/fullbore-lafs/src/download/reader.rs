//! One share of a file: what was requested of it, and what has arrived.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::share::{Damage, Fetched, Proven, extension_range, hashes_range, prove, read_extension};
use crate::cap::Verifier;
use crate::extension::Extension;
use crate::layout::{HEADER_BYTES_MAX, Layout};

/// Bytes requested beyond the expected length when a share is read as a whole: enough for the hashes of some hundred
/// segments. Some servers allocate all of it for each request.
pub(super) const WHOLE_MORE_BYTES: u64 = 256 << 10;

/// The part of a share that a request is for.
#[derive(Debug, Clone)]
pub(super) enum ShareSection {
    /// All of a small share.
    Whole,
    Header,
    /// The URI extension block alone, if the header claims more hashes than are credible.
    Extension,
    /// All hashes, from this offset in the share on.
    Hashes(u64),
    /// Blocks; offsets count from the first block.
    Data(Range<u64>),
}

/// A share being read from a server.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub share: u16,
    pub server: usize,
    /// Its position among the readers, which decides the parts of its turn.
    pub position: u64,
    /// Whether the parts of its turn were requested.
    pub had_turn: bool,
    /// Whether the share is not used any more.
    pub failed: bool,
    /// Whether a request takes much longer than others do. It may still be answered.
    pub slow: bool,
    pub whole_asked: bool,
    header_asked: bool,
    header: Option<Layout>,
    extension_asked: bool,
    extension: Option<Extension>,
    hashes_asked: Option<u64>,
    hashes: Option<(u64, Bytes)>,
    pub proven: Option<Arc<Proven>>,
    /// Received blocks, by offset in the data.
    pub fetched: Fetched,
    /// Blocks requested and not yet received: by offset, length in bytes and time of the request.
    pub pending: BTreeMap<u64, (u64, Instant)>,
    /// When the header or the hashes were requested, while they are awaited.
    proof_asked: Option<Instant>,
    /// Bytes of blocks received.
    pub bytes: u64,
}

impl Reader {
    pub(super) fn new(share: u16, server: usize, position: u64) -> Reader {
        Reader { share, server, position, ..Reader::default() }
    }

    /// Whether nothing has arrived from it.
    pub(super) fn is_untried(&self) -> bool {
        self.header.is_none() && self.bytes == 0
    }

    /// The next request for proving the share: section, offset in the share, length. Without its header the hashes are
    /// expected where `usual` has them.
    ///
    /// # Errors
    /// If the header claims more hashes than the file can have, or the cap's numbers describe no file: the reason in
    /// words.
    pub(super) fn proof_wanted(
        &self,
        cap: &Verifier,
        usual: &Layout,
    ) -> Result<Option<(ShareSection, u64, u64)>, Damage> {
        if self.proven.is_some() || self.whole_asked {
            return Ok(None);
        }
        if !self.header_asked {
            return Ok(Some((ShareSection::Header, 0, HEADER_BYTES_MAX)));
        }
        let layout = self.header.as_ref().unwrap_or(usual);
        let Some((offset, length)) = hashes_range(layout, cap, self.extension.as_ref())? else {
            let (offset, length) = extension_range(layout);
            return Ok((!self.extension_asked).then_some((ShareSection::Extension, offset, length)));
        };
        Ok((self.hashes_asked != Some(offset)).then_some((ShareSection::Hashes(offset), offset, length)))
    }

    /// Bytes of blocks requested or received.
    #[cfg(test)]
    pub(super) fn asked_bytes(&self) -> u64 {
        self.bytes + self.pending.values().map(|pending| pending.0).sum::<u64>()
    }

    /// When the oldest unanswered request was sent.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.1).chain(self.proof_asked).min()
    }

    /// Records that a request was sent.
    pub(super) fn asked(&mut self, what: &ShareSection, now: Instant) {
        match what {
            ShareSection::Whole => {
                self.whole_asked = true;
                self.pending.insert(0, (WHOLE_MORE_BYTES, now));
            }
            ShareSection::Header => {
                self.header_asked = true;
                self.proof_asked = Some(now);
            }
            ShareSection::Extension => {
                self.extension_asked = true;
                self.proof_asked = Some(now);
            }
            ShareSection::Hashes(offset) => {
                self.hashes_asked = Some(*offset);
                self.proof_asked = Some(now);
            }
            ShareSection::Data(range) => {
                self.pending.insert(range.start, (range.end - range.start, now));
            }
        }
    }

    /// Takes the bytes of an answer.
    ///
    /// # Errors
    /// In words: the bytes end too early; the header is malformed or contradicts the file's size; or the share cannot
    /// be proven.
    pub(super) fn received(&mut self, what: &ShareSection, bytes: Bytes, cap: &Verifier) -> Result<(), Damage> {
        match what {
            ShareSection::Whole => {
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
                self.store(0, bytes.slice(data..end));
                self.prove(cap)
            }
            ShareSection::Header => {
                self.parse(&bytes)?;
                self.prove(cap)
            }
            ShareSection::Extension => {
                let Some(layout) = self.header else { return Ok(()) };
                self.extension = Some(read_extension(cap, &layout, &bytes)?.0);
                self.proof_asked = None;
                Ok(())
            }
            ShareSection::Hashes(offset) => {
                if self.hashes_asked == Some(*offset) {
                    self.hashes = Some((*offset, bytes));
                }
                self.prove(cap)
            }
            ShareSection::Data(range) => {
                self.pending.remove(&range.start);
                let length = (range.end - range.start) as usize;
                if bytes.len() < length {
                    return Err("it is cut short".into());
                }
                self.store(range.start, bytes.slice(..length));
                Ok(())
            }
        }
    }

    fn store(&mut self, offset: u64, bytes: Bytes) {
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
    fn prove(&mut self, cap: &Verifier) -> Result<(), Damage> {
        let (Some(layout), Some((offset, hashes))) = (self.header, &self.hashes) else { return Ok(()) };
        if self.proven.is_some() {
            return Ok(());
        }
        if layout.crypttext_tree != *offset {
            // Segments of another size: the hashes were requested from the wrong place.
            self.hashes = None;
            self.proof_asked = None;
            return Ok(());
        }
        self.proven = Some(Arc::new(prove(cap, self.share, layout, hashes)?));
        self.hashes = None;
        self.proof_asked = None;
        self.slow = false;
        Ok(())
    }

    /// Drops the share and its bytes.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        self.fetched.clear();
        self.pending.clear();
        self.proof_asked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::encode::encode_whole;
    use crate::geometry::{Encoding, Geometry};
    use proptest::prelude::*;

    /// A file of 1000 bytes, 2 of 3, in segments of 300.
    fn file() -> (Verifier, Vec<Vec<u8>>) {
        let geometry = Geometry::new(Encoding::new(2, 1, 3).unwrap(), 1000, 300).unwrap();
        let plaintext: Vec<u8> = (0..1000_u32).map(|i| i as u8).collect();
        let (cap, shares) = encode_whole(geometry, [3; 16], Arc::new(Code::new(2, 3)), &plaintext).unwrap();
        (cap.verifier(), shares)
    }

    #[test]
    fn a_share_is_proven_whole_or_by_its_parts() {
        let (cap, shares) = file();
        let layout = Layout::parse(&shares[1]).unwrap();
        let share = Bytes::copy_from_slice(&shares[1]);
        let mut whole = Reader::new(1, 0, 0);
        whole.asked(&ShareSection::Whole, Instant::now());
        whole.received(&ShareSection::Whole, share.clone(), &cap).unwrap();
        assert!(whole.proven.is_some() && whole.pending.is_empty());
        let mut parts = Reader::new(1, 0, 0);
        let now = Instant::now();
        // The hashes are first requested from where segments of the usual size have them.
        let usual = Layout::new(&Geometry::new(Encoding::new(2, 1, 3).unwrap(), 1000, 1 << 20).unwrap());
        for _ in 0..3 {
            let Some((what, from, length)) = parts.proof_wanted(&cap, &usual).unwrap() else { break };
            parts.asked(&what, now);
            let to = (from + length).min(share.len() as u64);
            parts.received(&what, share.slice(from.min(to) as usize..to as usize), &cap).unwrap();
        }
        assert!(parts.proven.is_some(), "after the header, the hashes where they are not, and where they are");
        parts.received(&ShareSection::Data(10..20), share.slice(layout.data as usize + 10..), &cap).unwrap();
        assert_eq!(parts.fetched.get(0, 21), None);
        assert_eq!(parts.fetched.get(10, 10), whole.fetched.get(10, 10));
        assert_eq!(parts.fetched.get(15, 6), None, "no more is kept than was asked for");
        assert!(parts.received(&ShareSection::Data(20..30), Bytes::from_static(b"short"), &cap).is_err());
        let other = Reader::new(2, 0, 0).received(&ShareSection::Whole, share, &cap);
        assert!(other.is_err(), "the share of another number");
    }

    #[test]
    fn hashes_are_fetched_as_far_as_the_cap_vouches_for_them() {
        // Segments so small that their hashes exceed what a header alone may claim.
        let encoding = Encoding::new(2, 1, 3).unwrap();
        let geometry = Geometry::new(encoding, 5_000_000, 500).unwrap();
        let code = Arc::new(Code::new(2, 3));
        let (cap, shares) = encode_whole(geometry, [3; 16], code, &vec![7; 5_000_000]).unwrap();
        let (cap, share) = (cap.verifier(), Bytes::copy_from_slice(&shares[0]));
        let usual = Layout::new(&Geometry::new(encoding, 5_000_000, 1 << 20).unwrap());
        let part = |from: u64, length: u64| {
            let end = (from + length).min(share.len() as u64);
            share.slice(from.min(end) as usize..end as usize)
        };
        let mut reader = Reader::new(0, 0, 0);
        let mut asked = Vec::new();
        while let Some((what, from, length)) = reader.proof_wanted(&cap, &usual).unwrap() {
            asked.push(length);
            reader.asked(&what, Instant::now());
            reader.received(&what, part(from, length), &cap).unwrap();
        }
        assert!(reader.proven.is_some() && asked.len() == 3, "{asked:?}");
        assert!(asked[1] <= 17 << 10 && asked[2] > 2_000_000, "{asked:?}");
        // A header that claims a gap of another megabyte, in a share with another file's block.
        let mut layout = Layout::parse(&share).unwrap();
        layout.extension += 1 << 20;
        let mut liar = Reader::new(0, 0, 0);
        liar.asked(&ShareSection::Header, Instant::now());
        liar.received(&ShareSection::Header, layout.header().into(), &cap).unwrap();
        assert!(liar.proof_wanted(&cap, &usual).is_err(), "more than half of its data");
        liar.received(&ShareSection::Header, part(0, HEADER_BYTES_MAX), &cap).unwrap();
        let (what, ..) = liar.proof_wanted(&cap, &usual).unwrap().unwrap();
        assert!(liar.received(&what, Bytes::from(vec![0; 20 << 10]), &cap).is_err());
    }

    #[test]
    fn a_header_alone_makes_no_more_than_its_slack_be_fetched() {
        // A file of ten gigabytes, whose trees have half a megabyte each.
        let (cap, _) = file();
        let cap = Verifier { size: 10 << 30, ..cap };
        let usual = Layout::new(&Geometry::new(Encoding::new(2, 1, 3).unwrap(), 10 << 30, 1 << 20).unwrap());
        for claimed in [2 << 20, 1 << 30, 2 << 30] {
            let mut layout = usual;
            layout.version = 2;
            layout.extension += claimed;
            let mut reader = Reader::new(0, 0, 0);
            reader.asked(&ShareSection::Header, Instant::now());
            reader.received(&ShareSection::Header, layout.header().into(), &cap).unwrap();
            let (what, _, length) = reader.proof_wanted(&cap, &usual).unwrap().unwrap();
            assert!(matches!(what, ShareSection::Extension) && length <= 17 << 10, "{claimed}: {length}");
        }
    }

    proptest! {
        #[test]
        fn no_share_makes_the_reader_panic(at in 0_usize..2000, bytes in proptest::collection::vec(any::<u8>(), 0..80), cut in 0_usize..3000) {
            let (cap, shares) = file();
            let mut share = shares[0].clone();
            for (offset, byte) in bytes.iter().enumerate() {
                if let Some(position) = share.get_mut(at + offset) {
                    *position = *byte;
                }
            }
            share.truncate(cut.max(1));
            let share = Bytes::from(share);
            for what in [ShareSection::Whole, ShareSection::Header, ShareSection::Hashes(0), ShareSection::Data(5..400)] {
                let mut reader = Reader::new(0, 0, 0);
                reader.asked(&ShareSection::Hashes(0), Instant::now());
                let _ = reader.received(&ShareSection::Header, share.clone(), &cap);
                let _ = reader.received(&what, share.clone(), &cap);
            }
        }
    }
}
