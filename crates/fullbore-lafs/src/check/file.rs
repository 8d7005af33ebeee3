//! Checks one file: finds its shares, verifies them, renews their leases, and makes missing shares again.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Buf, Bytes};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::share::ShareReader;
use crate::cap::{Cap, Mutable, StorageIndex, Verifier};
use crate::download::Downloader;
use crate::encode::Original;
use crate::fault::ShareFault;
use crate::gbs::{has_lease, held_shares};
use crate::geometry::Encoding;
use crate::mutable::{FoundShare, MutableReader, SERVERS_ASKED_MAX, Survey, distinct, repair, survey};
use crate::placement::happiness;
use crate::secrets::LeaseSecrets;
use crate::upload::produce::Pool;
use crate::upload::source::Source;
use crate::upload::{Grid, KnownShares, Uploader};

/// Shares verified at once; each holds about a megabyte of blocks in memory.
pub(super) const SHARES_AT_ONCE: usize = 64;

/// Files repaired at once.
pub(super) const REPAIRS_AT_ONCE: usize = 8;

/// Segments of ciphertext buffered between the download and the encoder.
const PIECES: usize = 4;

/// What to do with each file, and the means for it.
pub(super) struct Checker {
    pub grid: Arc<Grid>,
    pub downloader: Arc<Downloader>,
    pub pool: Pool,
    /// Read the shares and verify their blocks.
    pub verify: bool,
    /// The secrets that renew leases; `None`: do not renew.
    pub renew: Option<LeaseSecrets>,
    /// The secrets of the leases on new shares.
    pub lease: LeaseSecrets,
    /// Sends new shares; `None`: do not repair.
    pub uploader: Option<Uploader>,
    /// The node's encoding. Its `happy` applies to files that have the same k and n.
    pub encoding: Option<Encoding>,
    pub reading: Semaphore,
    pub repairing: Semaphore,
}

/// The state of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// Shares that a reader needs, k; 0 if no share of a mutable file was found, so that k is unknown.
    pub needed: u16,
    /// Shares that there should be, n.
    pub total: u16,
    /// Number of different good shares.
    pub shares: usize,
    /// Servers that hold good shares.
    pub servers: usize,
    /// Happiness: servers in the largest matching of servers and different shares.
    pub happiness: usize,
    /// Happiness that the node requires.
    pub happy: Option<u16>,
    /// Damaged shares, one line each.
    pub damaged: Vec<String>,
    /// Number of shares of older versions of a mutable file.
    pub old_shares: usize,
    /// Servers that did not say what they hold.
    pub silent: usize,
    /// Servers whose lease now lasts for another month. The next field has one line for each server that refused.
    pub leases: Option<usize>,
    pub lease_troubles: Vec<String>,
    /// Number of shares sent, or why the repair failed; `None` if there was none.
    pub repaired: Option<Result<usize, String>>,
}

impl Checked {
    /// Whether the file can be read.
    pub(super) fn is_recoverable(&self) -> bool {
        self.needed > 0 && self.shares >= usize::from(self.needed)
    }

    /// Whether all shares are there, on enough servers. Damaged copies beside good shares do no harm, and cannot be
    /// removed from here.
    pub(super) fn is_healthy(&self) -> bool {
        self.is_recoverable()
            && self.shares >= usize::from(self.total)
            && self.old_shares == 0
            && self.happy.is_none_or(|happy| self.happiness >= usize::from(happy))
    }

    /// Whether the servers' answers say too little: missing shares may be on servers that did not answer.
    pub(super) fn is_unknown(&self) -> bool {
        !self.is_recoverable() && self.silent > 0
    }
}

/// Good shares, by the server's position in the order of the file.
type Holders = BTreeMap<usize, BTreeSet<u16>>;

/// Shares that could not be verified, by share and position of the server in the order of the file.
type Faults = BTreeMap<(u16, usize), ShareFault>;

/// An entry of [`Faults`].
type PlacedFault = ((u16, usize), ShareFault);

/// What the servers hold of an immutable file.
#[derive(Default)]
struct Held {
    /// Positions in the grid of the servers asked, in the order of the file.
    order: Vec<usize>,
    holders: Holders,
    silent: BTreeSet<usize>,
}

impl Checker {
    /// Checks the file of a cap; `None` if the content is in the cap itself, where nothing can be wrong.
    pub(super) async fn check(&self, cap: &Cap) -> Option<Checked> {
        match cap {
            Cap::Literal(_) | Cap::LiteralDirectory(_) => None,
            Cap::Chk(chk) | Cap::Directory(chk) => Some(self.immutable(&chk.verifier()).await),
            Cap::Verifier(verifier) | Cap::DirectoryVerifier(verifier) => Some(self.immutable(verifier).await),
            Cap::Mutable(mutable) | Cap::MutableDirectory(mutable) => Some(self.mutable(mutable).await),
        }
    }

    async fn immutable(&self, cap: &Verifier) -> Checked {
        let (mut checked, held, damaged) = self.look(cap).await;
        if let Some(secrets) = &self.renew {
            let servers: Vec<usize> = held.holders.keys().map(|&position| held.order[position]).collect();
            self.lease(&cap.storage_index, secrets, &servers, &mut checked).await;
        }
        let Some(uploader) = self.uploader.as_ref().filter(|_| !checked.is_healthy()) else { return checked };
        let repaired = match checked.is_recoverable() {
            true => self.repair(uploader, cap, &held, &damaged).await,
            false => Err("too few shares are left".to_owned()),
        };
        if repaired.is_ok() {
            // The servers are asked again: their answers count, not what was sent.
            let (again, ..) = self.look(cap).await;
            let Checked { leases, lease_troubles, .. } = checked;
            // New shares come with the leases of a new file; the renewals counted before stay.
            checked = Checked { leases, lease_troubles, ..again };
        }
        Checked { repaired: Some(repaired), ..checked }
    }

    /// Finds the shares, and verifies them if that was asked for. Damaged shares do not count.
    async fn look(&self, cap: &Verifier) -> (Checked, Held, Faults) {
        let mut held = self.held(&cap.storage_index, cap.total).await;
        let mut damaged = match self.verify {
            true => self.verify(cap, &held).await,
            false => BTreeMap::new(),
        };
        for (share, position) in damaged.keys() {
            held.holders.entry(*position).or_default().remove(share);
        }
        damaged.retain(|(_, position), fault| {
            if !fault.is_damaged {
                held.silent.insert(*position);
            }
            fault.is_damaged
        });
        let shares: BTreeSet<u16> = held.holders.values().flatten().copied().collect();
        let encoding = self.encoding.filter(|own| (own.needed, own.total) == (cap.needed, cap.total));
        let name = |position: usize| self.grid.link(held.order[position]).name().to_owned();
        let checked = Checked {
            needed: cap.needed,
            total: cap.total,
            shares: shares.len(),
            servers: held.holders.values().filter(|shares| !shares.is_empty()).count(),
            happiness: happiness(&held.holders.values().cloned().collect::<Vec<_>>()),
            happy: encoding.map(|own| own.happy),
            damaged: damaged
                .iter()
                .map(|((share, position), fault)| format!("share {share} on {}: {}", name(*position), fault.why))
                .collect(),
            silent: held.silent.len(),
            ..Checked::default()
        };
        (checked, held, damaged)
    }

    /// Asks every server for its shares.
    async fn held(&self, index: &StorageIndex, total: u16) -> Held {
        let mut order = self.grid.order(index);
        order.truncate(SERVERS_ASKED_MAX);
        let mut asked = JoinSet::new();
        for (position, &server) in order.iter().enumerate() {
            let link = self.grid.link(server).clone();
            let call = link.requests().shares(index);
            asked.spawn(async move {
                let reply = link.call(call).await.map_err(|error| error.reason);
                (position, reply.and_then(|reply| held_shares(&reply.answer).map_err(|error| error.to_string())))
            });
        }
        let mut held = Held { order, ..Held::default() };
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((position, Ok(mut shares))) => {
                    shares.retain(|share| *share < total);
                    if !shares.is_empty() {
                        held.holders.insert(position, shares);
                    }
                }
                Ok((position, Err(_))) => _ = held.silent.insert(position),
                Err(_) => {}
            }
        }
        held
    }

    /// Verifies all shares; returns those that failed, and why.
    async fn verify(&self, cap: &Verifier, held: &Held) -> Faults {
        let mut reading: Vec<Going<'_, Option<PlacedFault>>> = Vec::new();
        for (&position, shares) in &held.holders {
            for &share in shares {
                reading.push(Box::pin(async move {
                    // The semaphore is never closed.
                    let _turn = self.reading.acquire().await;
                    let link = self.grid.link(held.order[position]);
                    let read = async {
                        ShareReader::open(link, cap.storage_index, share).await?.verify(cap, &self.pool).await
                    };
                    read.await.err().map(|fault| ((share, position), fault))
                }));
            }
        }
        all(reading).await.into_iter().flatten().collect()
    }

    /// Renews the leases on the file's shares on these servers, or adds a lease.
    async fn lease(&self, index: &StorageIndex, secrets: &LeaseSecrets, servers: &[usize], checked: &mut Checked) {
        let mut asking: Vec<Going<'_, Result<bool, String>>> = Vec::new();
        for &server in servers {
            asking.push(Box::pin(async move {
                let link = self.grid.link(server);
                let lease = secrets.lease(index, &self.grid.servers()[server].lease_seed);
                let reply = link.call(link.requests().renew_lease(index, &lease)).await.map_err(|error| error.reason);
                reply
                    .and_then(|reply| has_lease(&reply.answer).map_err(|error| error.to_string()))
                    .map_err(|why| format!("lease on {}: {why}", link.name()))
            }));
        }
        let mut renewed = 0;
        for answer in all(asking).await {
            match answer {
                Ok(has) => renewed += usize::from(has),
                Err(trouble) => checked.lease_troubles.push(trouble),
            }
        }
        checked.leases = Some(renewed);
    }

    /// Makes the missing shares again; returns how many were sent.
    async fn repair(
        &self,
        uploader: &Uploader,
        cap: &Verifier,
        held: &Held,
        damaged: &Faults,
    ) -> Result<usize, String> {
        let _turn = self.repairing.acquire().await;
        let original = Arc::new(self.original(cap, held).await?);
        let at = |position: &usize| held.order[*position];
        let known = KnownShares {
            index: cap.storage_index,
            holds: held.holders.iter().map(|(position, shares)| (at(position), shares.clone())).collect(),
            // A server keeps the damaged share it has and takes no other of that number. Silent servers would only be
            // waited for.
            unfit: damaged.keys().map(|(_, position)| at(position)).chain(held.silent.iter().map(at)).collect(),
        };
        let (out, pieces) = mpsc::channel(PIECES);
        let source = Source::stream(Pipe { pieces, piece: Bytes::new() });
        let reading = async {
            let read = self.downloader.ciphertext(cap, &out).await;
            drop(out);
            read
        };
        let (read, sent) = tokio::join!(reading, uploader.repair(source, original, &known));
        // Without the ciphertext nothing can be sent; the download's error tells the cause.
        read.map_err(|error| error.to_string())?;
        sent.map(|stored| stored.shares.0).map_err(|error| error.to_string())
    }

    /// The URI extension block with the hash in the cap, from the first share that has it.
    async fn original(&self, cap: &Verifier, held: &Held) -> Result<Original, String> {
        let mut last = "no share has a good URI extension block".to_owned();
        for (&position, shares) in &held.holders {
            for &share in shares {
                let link = self.grid.link(held.order[position]);
                let proven = async { ShareReader::open(link, cap.storage_index, share).await?.prove(cap).await };
                match proven.await {
                    Ok(proven) => return Ok(Original { block: proven.block, extension: proven.extension }),
                    Err(fault) => last = format!("share {share} on {}: {}", link.name(), fault.why),
                }
            }
        }
        Err(last)
    }

    async fn mutable(&self, cap: &Mutable) -> Checked {
        let found = survey(&self.grid, cap).await;
        let shares = found.best_or_largest().unwrap_or_default();
        let mut reader = MutableReader::new(&self.grid, &found, cap.storage_index());
        let (mut checked, good) = self.look_at(&found, shares, &mut reader).await;
        if let Some(secrets) = &self.renew {
            let all = found.versions.values().flatten().map(|share| found.order[share.server]);
            let servers: BTreeSet<usize> = all.collect();
            let servers: Vec<usize> = servers.into_iter().collect();
            self.lease(&cap.storage_index(), secrets, &servers, &mut checked).await;
        }
        if self.uploader.is_none() || checked.is_healthy() {
            return checked;
        }
        let repaired = {
            let _turn = self.repairing.acquire().await;
            match checked.is_recoverable() {
                true => repair(&self.grid, cap, &self.lease, &found, &good, &mut reader).await,
                false => Err("too few shares are left".to_owned()),
            }
        };
        if repaired.is_ok() {
            let found = survey(&self.grid, cap).await;
            let shares = found.best_or_largest().unwrap_or_default();
            let mut reader = MutableReader::new(&self.grid, &found, cap.storage_index());
            let (again, _) = self.look_at(&found, shares, &mut reader).await;
            let Checked { leases, lease_troubles, .. } = checked;
            checked = Checked { leases, lease_troubles, ..again };
        }
        Checked { repaired: Some(repaired), ..checked }
    }

    /// The state of one version of a mutable file, and its good shares.
    async fn look_at(
        &self,
        found: &Survey,
        shares: &[FoundShare],
        reader: &mut MutableReader<'_>,
    ) -> (Checked, Vec<FoundShare>) {
        if self.verify {
            let _turn = self.reading.acquire().await;
            reader.verify(shares).await;
        }
        let is_good = |share: u16, server: usize| !reader.bad.iter().any(|bad| (bad.0, bad.1) == (share, server));
        let mut good = shares.to_vec();
        good.retain(|found| is_good(found.signed.share, found.server));
        let mut holders = Holders::new();
        for found in &good {
            holders.entry(found.server).or_default().insert(found.signed.share);
        }
        let header = shares.first().map(|found| &found.signed.header);
        let read = reader.bad.iter().filter(|(_, _, fault)| fault.is_damaged);
        let read = read.map(|(share, server, fault)| (share, server, &fault.why));
        let damaged = found.damaged.iter().map(|(share, server, why)| (share, server, why)).chain(read);
        let silent: BTreeSet<usize> = found
            .silent
            .iter()
            .map(|(server, _)| *server)
            .chain(found.unread.iter().map(|(_, server, _)| *server))
            .chain(reader.bad.iter().filter(|(_, _, fault)| !fault.is_damaged).map(|(_, server, _)| *server))
            .collect();
        let name = |server: usize| self.grid.link(found.order[server]).name().to_owned();
        let checked = Checked {
            needed: header.map_or(0, |header| header.needed),
            total: header.map_or(0, |header| header.total),
            shares: distinct(&good),
            servers: holders.len(),
            happiness: happiness(&holders.values().cloned().collect::<Vec<_>>()),
            damaged: damaged.map(|(share, server, why)| format!("share {share} on {}: {why}", name(*server))).collect(),
            old_shares: found.versions.values().map(Vec::len).sum::<usize>() - shares.len(),
            silent: silent.len(),
            ..Checked::default()
        };
        (checked, good)
    }
}

/// One of several futures that run at once.
type Going<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs all futures at once; returns their results in order.
async fn all<T>(going: Vec<Going<'_, T>>) -> Vec<T> {
    let mut going: Vec<(Going<'_, T>, Option<T>)> = going.into_iter().map(|one| (one, None)).collect();
    poll_fn(|context| {
        let mut is_ready = true;
        for (one, output) in going.iter_mut().filter(|(_, output)| output.is_none()) {
            match one.as_mut().poll(context) {
                Poll::Ready(done) => *output = Some(done),
                Poll::Pending => is_ready = false,
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    going.into_iter().filter_map(|(_, output)| output).collect()
}

/// Reads from a channel, for the thread that encodes.
struct Pipe {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = self.piece.len().min(into.len());
        self.piece.copy_to_slice(&mut into[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_keep_the_order_of_the_questions() {
        // The first future waits for the second.
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let first: Going<'_, u8> = Box::pin(async { receiver.await.unwrap() });
        let second: Going<'_, u8> = Box::pin(async {
            sender.send(1).unwrap();
            2
        });
        assert_eq!(all(vec![first, second]).await, [1, 2]);
    }

    #[test]
    fn health_is_what_the_node_wants() {
        let good = Checked { needed: 3, total: 10, shares: 10, servers: 10, happiness: 10, ..Checked::default() };
        assert!(good.is_healthy());
        assert!(!Checked { shares: 9, ..good.clone() }.is_healthy());
        assert!(!Checked { happy: Some(7), happiness: 6, ..good.clone() }.is_healthy());
        assert!(Checked { happy: Some(7), happiness: 7, ..good.clone() }.is_healthy());
        assert!(Checked { damaged: vec!["a second copy".into()], ..good.clone() }.is_healthy());
        assert!(!Checked { old_shares: 1, ..good.clone() }.is_healthy());
        let lost = Checked { shares: 2, silent: 1, ..good };
        assert!(!lost.is_recoverable() && lost.is_unknown());
        assert!(!Checked::default().is_recoverable(), "nothing was found of a mutable file");
    }
}
