//! One file: where its shares are, whether these are good, leases on them, and shares that are made again.

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

/// Shares that are read to their ends at once: each has a megabyte of blocks in memory.
pub(super) const SHARES_AT_ONCE: usize = 64;

/// Files whose shares are made again at once.
pub(super) const REPAIRS_AT_ONCE: usize = 8;

/// Segments of ciphertext between the servers that have them and the encoder.
const PIECES: usize = 4;

/// What to do with each file, and by what means.
pub(super) struct Checker {
    pub grid: Arc<Grid>,
    pub downloader: Arc<Downloader>,
    pub pool: Pool,
    /// Read the shares.
    pub verify: bool,
    /// Renew leases by these secrets.
    pub renew: Option<LeaseSecrets>,
    /// For new shares.
    pub lease: LeaseSecrets,
    /// Makes shares again.
    pub uploader: Option<Uploader>,
    /// Of the node: files of this encoding are to be as happy as it wants.
    pub encoding: Option<Encoding>,
    pub reading: Semaphore,
    pub repairing: Semaphore,
}

/// What is known of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// Shares that a reader needs, k; 0: unknown, as no share of a mutable file was found.
    pub needed: u16,
    /// Shares that there should be, n.
    pub total: u16,
    /// Different good shares.
    pub shares: usize,
    /// Servers that hold some.
    pub servers: usize,
    /// Servers that hold different ones.
    pub happiness: usize,
    /// Happiness that the node wants.
    pub happy: Option<u16>,
    /// Shares that are damaged, one line each.
    pub damaged: Vec<String>,
    /// Shares of older versions of a mutable file.
    pub old_shares: usize,
    /// Servers that did not say what they have.
    pub silent: usize,
    /// Servers that have a lease for the next month now; those that refused one, a line each.
    pub leases: Option<usize>,
    pub lease_troubles: Vec<String>,
    /// Shares that were made again, or why not.
    pub repaired: Option<Result<usize, String>>,
}

impl Checked {
    /// The file can be read.
    pub(super) fn is_recoverable(&self) -> bool {
        self.needed > 0 && self.shares >= usize::from(self.needed)
    }

    /// All shares are there, and where they should be. Damaged ones beside them do no harm, and cannot be removed from here.
    pub(super) fn is_healthy(&self) -> bool {
        self.is_recoverable()
            && self.shares >= usize::from(self.total)
            && self.old_shares == 0
            && self.happy.is_none_or(|happy| self.happiness >= usize::from(happy))
    }

    /// Nothing can be said: shares that were not found may be on servers that did not answer.
    pub(super) fn is_unknown(&self) -> bool {
        !self.is_recoverable() && self.silent > 0
    }
}

/// Which good shares are where, by the position in the order of the file.
type Holders = BTreeMap<usize, BTreeSet<u16>>;

/// Shares that were not read to their ends: share, and position of the server in the order of the file.
type Faults = BTreeMap<(u16, usize), ShareFault>;

/// One of them.
type PlacedFault = ((u16, usize), ShareFault);

/// What the servers say of an immutable file.
#[derive(Default)]
struct Held {
    /// The grid's servers in the order of the file.
    order: Vec<usize>,
    holders: Holders,
    silent: BTreeSet<usize>,
}

impl Checker {
    /// Checks what a cap leads to; `None`: it is in the cap itself, and nothing can be wrong with it.
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
            // The servers are asked again: what they say counts.
            let (again, ..) = self.look(cap).await;
            let Checked { leases, lease_troubles, .. } = checked;
            // What the new shares have as leases are those that a new file gets.
            checked = Checked { leases, lease_troubles, ..again };
        }
        Checked { repaired: Some(repaired), ..checked }
    }

    /// Asks where shares are, and reads them if that is wanted. Damaged ones count as none.
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

    /// What every server says that it holds.
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

    /// Reads all shares to their ends. Those that are of no use: share and position, and why.
    async fn verify(&self, cap: &Verifier, held: &Held) -> Faults {
        let mut reading: Vec<Going<'_, Option<PlacedFault>>> = Vec::new();
        for (&position, shares) in &held.holders {
            for &share in shares {
                reading.push(Box::pin(async move {
                    // Nobody closes the semaphore.
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

    /// Renews the leases on the shares that these servers have of a file, or adds ours.
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

    /// Makes the shares again that are missing: how many were sent.
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
            // Servers do not take another share of a number that they have; those that are silent would only be waited for.
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
        // Without the ciphertext nothing can be sent, and its error says why.
        read.map_err(|error| error.to_string())?;
        sent.map(|stored| stored.shares.0).map_err(|error| error.to_string())
    }

    /// The block that the cap has the hash of, from the first share that has it.
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

    /// What is known of one version of a mutable file, and which of its shares are good.
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

/// One of several things that go on at once.
type Going<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Waits for all of these; gives what came of them, in their order.
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

/// What comes out of a channel, for the thread that encodes it.
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
        // The first waits for the second.
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
