//! Mutable files: read, verified and repaired; their content is never changed.
//!
//! [`survey`] asks all servers for their shares, and reads the head of each, which has the owner's signature. The
//! newest version with enough shares counts. [`MutableReader`] then reads the blocks of k shares, and checks each up to
//! the signed root; a damaged share is replaced by another. Directories are the usual content, so the code is made for
//! small files: it reads one group of segments after the other.

mod limit;
mod repair;
mod share;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::cap::{Key, Mutable, StorageIndex, first_half};
use crate::cipher::Cipher;
use crate::code::Code;
use crate::fault::{ShareFault, TooFewShares, read_bytes};
use crate::gbs::held_shares;
use crate::gbs::link::Link;
use crate::hash::{Hash, tagged_pair};
use crate::merkle::Tree;
use crate::upload::Grid;
use limit::Limit;
pub(crate) use repair::repair;
pub use share::{HEAD_BYTES, MutableHeader, MutableShareError, SaltedBlock, SignedShare};

/// Servers asked per file, in the file's order; as for immutable files.
pub(crate) const SERVERS_ASKED_MAX: usize = 1000;

/// Most shares of one file on one server whose heads are read. A longer list is not credible.
const SHARES_OF_A_SERVER_MAX: usize = 256;

/// Shares verified at once.
const SHARES_AT_ONCE: usize = 16;

/// Bytes of blocks requested from one share at once.
const GROUP_BYTES: u64 = 1 << 20;

/// A replaceable share is late if it takes this many times as long as others; as for immutable files.
const LATE_TIMES: u32 = 4;

/// Time to wait for servers that were late before, once the others have enough shares.
const GRACE: Duration = Duration::from_secs(1);

/// Why a mutable file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MutableError {
    /// No version has enough good shares.
    #[error(transparent)]
    TooFewShares(#[from] TooFewShares),
    /// The receiver of the content is gone.
    #[error("the receiver of the content has stopped")]
    Unwanted,
    /// The cap can only verify, not read.
    #[error("this cap can verify the file, not read it")]
    NoKey,
}

/// A share, and the server that has it.
#[derive(Debug, Clone)]
pub struct FoundShare {
    /// The share's signed header and proof.
    pub signed: Arc<SignedShare>,
    /// Position of the server in the order of the file.
    pub server: usize,
}

/// The shares of a mutable file on the servers of a grid. Servers are given by their position in the order of the file.
#[derive(Debug, Default)]
pub struct Survey {
    /// Positions in the grid of the servers asked, in the order of the file.
    pub order: Vec<usize>,
    /// Shares by version, the oldest first: the key is the signed header, which begins with the sequence number and the
    /// root.
    pub versions: BTreeMap<Vec<u8>, Vec<FoundShare>>,
    /// Shares that are damaged, or signed by another key: share, server, reason.
    pub damaged: Vec<(u16, usize, String)>,
    /// Shares that a server lists but did not send: share, server, reason. Nothing else is known of them.
    pub unread: Vec<(u16, usize, String)>,
    /// Servers that did not answer, and why.
    pub silent: Vec<(usize, String)>,
}

impl Survey {
    /// The shares of the newest version that has enough of them.
    pub fn best(&self) -> Option<&[FoundShare]> {
        let readable = |shares: &&Vec<FoundShare>| distinct(shares) >= usize::from(shares[0].signed.header.needed);
        self.versions.values().rev().find(readable).map(Vec::as_slice)
    }

    /// The best version, or else the one with most shares; `None` if there is none.
    pub fn best_or_largest(&self) -> Option<&[FoundShare]> {
        self.best().or_else(|| self.versions.values().max_by_key(|shares| distinct(shares)).map(Vec::as_slice))
    }

    /// One line for each share and server at fault.
    pub fn troubles(&self, grid: &Grid) -> Vec<String> {
        let name = |server: usize| grid.link(self.order[server]).name().to_owned();
        let shares = self.damaged.iter().chain(&self.unread);
        let shares = shares.map(|(share, server, why)| format!("share {share} on {}: {why}", name(*server)));
        shares.chain(self.silent.iter().map(|(server, why)| format!("{}: {why}", name(*server)))).collect()
    }

    /// One line for each version that is newer than this one, or differs from it under the same number.
    fn newer(&self, version: &[FoundShare]) -> Vec<String> {
        let Some(read) = version.first().map(|found| &found.signed.header) else { return Vec::new() };
        let newer = self.versions.range(read.signed[1..].to_vec()..).skip(1).map(|(_, shares)| {
            let MutableHeader { sequence, needed, .. } = &shares[0].signed.header;
            let which = if *sequence > read.sequence { "newer" } else { "another" };
            format!(
                "version {} is read; there is {which} version {sequence}, and {} of the {needed} shares that it needs were \
                 found",
                read.sequence,
                distinct(shares)
            )
        });
        newer.collect()
    }

    /// Number of different damaged shares that are not among these good ones.
    fn damaged_beside(&self, shares: &[FoundShare], bad: &[(u16, usize, ShareFault)]) -> usize {
        let is_bad = |found: &FoundShare| bad.iter().any(|bad| (bad.0, bad.1) == (found.signed.share, found.server));
        let good: BTreeSet<u16> =
            shares.iter().filter(|found| !is_bad(found)).map(|found| found.signed.share).collect();
        let read = bad.iter().filter(|(_, _, fault)| fault.is_damaged).map(|(share, ..)| *share);
        let damaged: BTreeSet<u16> = self.damaged.iter().map(|(share, ..)| *share).chain(read).collect();
        damaged.difference(&good).count()
    }

    /// Adds the shares of a server.
    fn add(&mut self, server: usize, heads: Result<Vec<Head>, String>) {
        let heads = match heads {
            Ok(heads) => heads,
            Err(why) => return self.silent.push((server, why)),
        };
        for (share, head) in heads {
            match head {
                Err(ShareFault { is_damaged: true, why }) => self.damaged.push((share, server, why)),
                Err(ShareFault { why, .. }) => self.unread.push((share, server, why)),
                Ok(signed) => {
                    let version = signed.header.signed[1..].to_vec();
                    let found = FoundShare { signed: Arc::new(signed), server };
                    self.versions.entry(version).or_default().push(found);
                }
            }
        }
    }
}

/// Number of different shares.
pub(crate) fn distinct(shares: &[FoundShare]) -> usize {
    shares.iter().map(|found| found.signed.share).collect::<BTreeSet<_>>().len()
}

/// Number of a share, and its signed head or its fault.
type Head = (u16, Result<SignedShare, ShareFault>);

/// Asks all servers for their shares of a file, and checks their signatures. A server that does not answer in time
/// counts as silent.
pub async fn survey(grid: &Arc<Grid>, cap: &Mutable) -> Survey {
    let index = cap.storage_index();
    let mut order = grid.order(&index);
    order.truncate(SERVERS_ASKED_MAX);
    let mut asked: JoinSet<(usize, Result<Vec<Head>, String>)> = JoinSet::new();
    for (position, &server) in order.iter().enumerate() {
        let (link, fingerprint) = (grid.link(server).clone(), cap.fingerprint);
        asked.spawn(async move { (position, heads(&link, &index, &fingerprint).await) });
    }
    let mut awaited: BTreeSet<usize> = (0..order.len()).collect();
    let mut survey = Survey { order, ..Survey::default() };
    let mut limit = Limit::new(grid, survey.order.iter().copied(), 0);
    let mut heard = Instant::now();
    loop {
        // A slow server is not waited for again with every file of a directory.
        let is_rest_late = awaited.iter().all(|&server| grid.is_late(survey.order[server]));
        let is_enough = is_rest_late && survey.best().is_some();
        let until = if is_enough { limit.until.min(heard + GRACE) } else { limit.until };
        let (server, heads) = match timeout_at(until, asked.join_next()).await {
            Ok(Some(Ok(answer))) => answer,
            Ok(Some(Err(_))) => continue,
            Ok(None) => break,
            Err(_) => {
                let is_awaited = |server| awaited.iter().any(|&position| survey.order[position] == server);
                if !is_enough && limit.renew(is_awaited) {
                    continue;
                }
                break;
            }
        };
        heard = Instant::now();
        awaited.remove(&server);
        grid.note_late(survey.order[server], false);
        survey.add(server, heads);
    }
    for server in awaited {
        grid.note_late(survey.order[server], true);
        survey.silent.push((server, LATE.to_owned()));
    }
    // Sorted, since answers come in any order: the same grid gives the same report.
    survey.versions.values_mut().for_each(|shares| shares.sort_by_key(|found| (found.signed.share, found.server)));
    survey.damaged.sort();
    survey.unread.sort();
    survey.silent.sort();
    survey
}

/// The fault of a late server or share.
const LATE: &str = "no complete answer within the time limit";

/// Reads the heads of a server's shares.
async fn heads(link: &Link, index: &StorageIndex, fingerprint: &Hash) -> Result<Vec<Head>, String> {
    let reply = link.call(link.requests().mutable_shares(index)).await.map_err(|error| error.reason)?;
    let held = held_shares(&reply.answer).map_err(|error| error.to_string())?;
    let mut reading = Vec::new();
    for share in held.into_iter().take(SHARES_OF_A_SERVER_MAX) {
        let call = link.requests().read_mutable(index, share, 0, HEAD_BYTES);
        reading.push((share, link.send(call, HEAD_BYTES).await));
    }
    let mut heads = Vec::new();
    for (share, pending) in reading {
        let reply = match pending {
            Ok(pending) => pending.reply().await,
            Err(error) => Err(error),
        };
        let head = match reply {
            Ok(reply) => read_bytes(&reply.answer)
                .and_then(|bytes| SignedShare::verify(share, &bytes, fingerprint).map_err(ShareFault::damaged)),
            // The server was given up: the blocks of the shares found so far could not be read either.
            Err(error) if link.given_up().is_some() => return Err(error.reason),
            // An unreadable share says nothing of the others.
            Err(error) => Err(error.into()),
        };
        heads.push((share, head));
    }
    Ok(heads)
}

/// Reads and checks the blocks of the shares of one version.
#[derive(Debug)]
pub struct MutableReader<'a> {
    grid: &'a Arc<Grid>,
    order: &'a [usize],
    survey: &'a Survey,
    index: StorageIndex,
    /// Proven trees over the blocks of shares, by share and server.
    trees: BTreeMap<(u16, usize), Tree>,
    /// Late shares, instead of which others were read.
    late: BTreeSet<(u16, usize)>,
    /// Shares that failed, and why.
    pub(crate) bad: Vec<(u16, usize, ShareFault)>,
}

/// Salt and block of each segment of a group.
type Blocks = Vec<([u8; 16], Bytes)>;

impl<'a> MutableReader<'a> {
    /// A reader for the shares of a survey.
    pub fn new(grid: &'a Arc<Grid>, survey: &'a Survey, index: StorageIndex) -> MutableReader<'a> {
        MutableReader {
            grid,
            order: &survey.order,
            survey,
            index,
            trees: BTreeMap::new(),
            late: BTreeSet::new(),
            bad: Vec::new(),
        }
    }

    fn is_late(&self, found: &FoundShare) -> bool {
        self.late.contains(&(found.signed.share, found.server))
    }

    fn is_good(&self, found: &FoundShare) -> bool {
        !self.bad.iter().any(|(share, server, _)| (*share, *server) == (found.signed.share, found.server))
    }

    /// Groups of segments whose blocks are requested at once.
    fn groups(header: &MutableHeader) -> impl Iterator<Item = Range<u64>> + use<> {
        let each = (GROUP_BYTES / header.block_len(0).max(1)).max(1);
        let segments = header.segments;
        (0..segments).step_by(each as usize).map(move |first| first..(first + each).min(segments))
    }

    /// Reads every block of these shares, and records those that fail.
    pub async fn verify(&mut self, shares: &[FoundShare]) {
        let Some(first) = shares.first() else { return };
        for group in Self::groups(&first.signed.header) {
            let good: Vec<FoundShare> = shares.iter().filter(|found| self.is_good(found)).cloned().collect();
            for some in good.chunks(SHARES_AT_ONCE) {
                self.blocks(some, &group, false).await;
            }
        }
    }

    /// Reads the file into `out`.
    ///
    /// # Errors
    /// [`MutableError::TooFewShares`] if fewer than k of the shares are good; [`MutableError::Unwanted`] if the
    /// receiver is gone. Bytes sent before an error are verified.
    pub async fn read(
        &mut self,
        shares: &[FoundShare],
        key: &Key,
        out: &mpsc::Sender<Bytes>,
    ) -> Result<(), MutableError> {
        let Some(first) = shares.first() else { return Ok(()) };
        let header = first.signed.header.clone();
        let code = Code::new(header.needed, header.total);
        for group in Self::groups(&header) {
            for (segment, (salt, mut data)) in group.clone().zip(self.ciphertext(shares, &code, &group).await?) {
                data.truncate(header.segment_len(segment) as usize);
                let key = first_half(&tagged_pair(b"allmydata_mutable_readkey_to_datakey_v1", &salt, key));
                Cipher::at(&key, 0).apply(&mut data);
                out.send(data.into()).await.map_err(|_| MutableError::Unwanted)?;
            }
        }
        Ok(())
    }

    /// Salt and k blocks of ciphertext of each segment of a group, from any good shares.
    async fn ciphertext(
        &mut self,
        shares: &[FoundShare],
        code: &Code,
        group: &Range<u64>,
    ) -> Result<Vec<([u8; 16], Vec<u8>)>, MutableError> {
        let k = shares.first().map_or(0, |found| found.signed.header.needed);
        let needed = usize::from(k);
        let mut here: BTreeMap<u16, Blocks> = BTreeMap::new();
        let too_few = |reader: &Self, found: usize| TooFewShares {
            found,
            needed: k,
            asked: reader.order.len(),
            damaged: reader.survey.damaged_beside(shares, &reader.bad),
            troubles: reader.troubles(),
        };
        while here.len() < needed {
            // Any k shares will do: late ones come last, and are waited for only if there are no others.
            let mut by_haste: Vec<&FoundShare> = shares.iter().collect();
            by_haste.sort_by_key(|found| (self.is_late(found), self.grid.is_late(self.order[found.server])));
            let mut chosen: BTreeMap<u16, FoundShare> = BTreeMap::new();
            for &found in by_haste.iter().filter(|found| self.is_good(found)) {
                if here.len() + chosen.len() < needed && !here.contains_key(&found.signed.share) {
                    chosen.entry(found.signed.share).or_insert_with(|| found.clone());
                }
            }
            if chosen.is_empty() {
                return Err(too_few(self, here.len()).into());
            }
            let is_other = |found: &&&FoundShare| {
                self.is_good(found) && !self.is_late(found) && !here.contains_key(&found.signed.share)
            };
            let is_replaceable = !chosen.values().any(|found| self.is_late(found))
                && by_haste.iter().filter(is_other).count() > chosen.len();
            here.extend(self.blocks(&chosen.into_values().collect::<Vec<_>>(), group, is_replaceable).await);
        }
        let mut segments = Vec::new();
        for position in 0..(group.end - group.start) as usize {
            let some: Vec<(usize, &[u8])> =
                here.iter().map(|(share, blocks)| (usize::from(*share), &blocks[position].1[..])).collect();
            let salt = here.values().next().map(|blocks| blocks[position].0).unwrap_or_default();
            let data = code.decode(&some).map_err(|_| too_few(self, here.len()))?;
            segments.push((salt, data));
        }
        Ok(segments)
    }

    /// One line for each share that failed, or was late.
    pub fn troubles(&self) -> Vec<String> {
        let name = |server: usize| self.grid.link(self.order[server]).name().to_owned();
        let bad = self.bad.iter().map(|(share, server, fault)| (*share, *server, &*fault.why));
        let is_bad = |place: &(u16, usize)| self.bad.iter().any(|(share, server, _)| (*share, *server) == *place);
        let late = self.late.iter().filter(|place| !is_bad(place)).map(|(share, server)| (*share, *server, LATE));
        bad.chain(late).map(|(share, server, why)| format!("share {share} on {}: {why}", name(server))).collect()
    }

    /// The checked blocks of these shares. Shares that fail, or are late, are recorded. If other shares could replace
    /// them, the time limit is shorter.
    async fn blocks(
        &mut self,
        shares: &[FoundShare],
        group: &Range<u64>,
        is_replaceable: bool,
    ) -> BTreeMap<u16, Blocks> {
        let mut reading = JoinSet::new();
        for found in shares {
            let (found, group, index) = (found.clone(), group.clone(), self.index);
            let link = self.grid.link(self.order[found.server]).clone();
            let tree = self.trees.get(&(found.signed.share, found.server)).cloned();
            reading.spawn(async move {
                let blocks = checked_blocks(&link, &index, &found.signed, tree, &group).await;
                (found, blocks)
            });
        }
        let mut here = BTreeMap::new();
        let mut awaited: BTreeSet<(u16, usize)> =
            shares.iter().map(|found| (found.signed.share, found.server)).collect();
        let length = |range: Range<u64>| range.end - range.start;
        let headers = shares.iter().map(|found| &found.signed.header);
        let bytes: u64 =
            headers.map(|header| length(header.blocks_range(group)) + length(header.block_tree_range())).sum();
        let servers = shares.iter().map(|found| self.order[found.server]);
        let mut limit = Limit::new(self.grid, servers, bytes);
        let (begun, mut late) = (Instant::now(), None);
        loop {
            let until = late.map_or(limit.until, |late| limit.until.min(late));
            let (found, blocks) = match timeout_at(until, reading.join_next()).await {
                Ok(Some(Ok(read))) => read,
                Ok(Some(Err(_))) => continue,
                Ok(None) => break,
                Err(_) => {
                    let is_awaited = |server| awaited.iter().any(|(_, position)| self.order[*position] == server);
                    if late.is_none_or(|late| late > Instant::now()) && limit.renew(is_awaited) {
                        continue;
                    }
                    break;
                }
            };
            let place = (found.signed.share, found.server);
            awaited.remove(&place);
            if blocks.is_ok() && is_replaceable {
                late = Some(begun + (begun.elapsed() * LATE_TIMES).max(self.grid.patience()));
            }
            match blocks {
                Ok((tree, blocks)) => {
                    self.trees.insert(place, tree);
                    here.insert(found.signed.share, blocks);
                }
                Err(fault) => self.bad.push((place.0, place.1, fault)),
            }
        }
        for (share, server) in awaited {
            self.grid.note_late(self.order[server], true);
            match is_replaceable {
                true => _ = self.late.insert((share, server)),
                false => self.bad.push((share, server, ShareFault::silent(LATE))),
            }
        }
        here
    }
}

/// Reads and checks the blocks of a group of segments of one share; without a tree over its blocks, reads that first.
async fn checked_blocks(
    link: &Link,
    index: &StorageIndex,
    signed: &SignedShare,
    tree: Option<Tree>,
    group: &Range<u64>,
) -> Result<(Tree, Blocks), ShareFault> {
    let read = async |range: Range<u64>| -> Result<Bytes, ShareFault> {
        let length = range.end - range.start;
        let call = link.requests().read_mutable(index, signed.share, range.start, length);
        let reply = link.send(call, length).await?.reply().await?;
        read_bytes(&reply.answer)
    };
    let header = &signed.header;
    let tree = match tree {
        Some(tree) => Some(tree),
        None if header.is_mdmf => {
            let stored = read(header.block_tree_range()).await?;
            Some(signed.block_tree(&stored).map_err(ShareFault::damaged)?)
        }
        None => None,
    };
    let bytes = read(header.blocks_range(group)).await?;
    let blocks = header.split(group, &bytes).map_err(ShareFault::damaged)?;
    let tree = match (tree, blocks.first()) {
        (Some(tree), _) => tree,
        (None, Some((_, block))) => signed.tree_of(block).map_err(ShareFault::damaged)?,
        (None, None) => return Err(ShareFault::damaged("it has no block")),
    };
    for (segment, (salt, block)) in group.clone().zip(&blocks) {
        signed.check(&tree, segment, salt, block).map_err(ShareFault::damaged)?;
    }
    let blocks = blocks.into_iter().map(|(salt, block)| (salt, bytes.slice_ref(block))).collect();
    Ok((tree, blocks))
}

/// Reads the newest version of a mutable file into `out`. Returns the faults of shares and servers, one line each.
///
/// # Errors
/// [`MutableError::NoKey`] if the cap can only verify; [`MutableError::TooFewShares`] if no version has enough good
/// shares; [`MutableError::Unwanted`] if the receiver is gone.
pub async fn read(grid: &Arc<Grid>, cap: &Mutable, out: &mpsc::Sender<Bytes>) -> Result<Vec<String>, MutableError> {
    let key = cap.read_key().ok_or(MutableError::NoKey)?;
    let survey = survey(grid, cap).await;
    let Some(shares) = survey.best() else {
        let largest = survey.best_or_largest();
        // Without any version k is unknown: the shares that were not read may be enough.
        let is_unknown = largest.is_none() && !(survey.silent.is_empty() && survey.unread.is_empty());
        let damaged = if is_unknown { 0 } else { survey.damaged_beside(largest.unwrap_or_default(), &[]) };
        return Err(MutableError::from(TooFewShares {
            found: largest.map_or(0, distinct),
            needed: largest.map_or(1, |shares| shares[0].signed.header.needed),
            asked: survey.order.len(),
            damaged,
            troubles: survey.troubles(grid).into_iter().chain(grid.not_used()).collect(),
        }));
    };
    // A silent server may have a newer version.
    let mut troubles = survey.newer(shares);
    troubles.extend(survey.troubles(grid));
    let mut reader = MutableReader::new(grid, &survey, cap.storage_index());
    match reader.read(shares, &key, out).await {
        Ok(()) => troubles.extend(reader.troubles()),
        Err(MutableError::TooFewShares(few)) => {
            troubles.extend(few.troubles);
            troubles.extend(grid.not_used());
            return Err(TooFewShares { troubles, ..few }.into());
        }
        Err(error) => return Err(error),
    }
    Ok(troubles)
}
