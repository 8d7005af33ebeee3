//! Repairs mutable files: makes missing shares again, byte for byte, so that the version of the file stays the same.
//!
//! This needs the right to write: servers demand the write secret for every new share. It does not need the owner's
//! key: signature and encrypted key are the same in all shares. The proofs differ, so all shares are encoded again, and
//! their root must be the signed one.

use std::collections::{BTreeMap, BTreeSet};

use fullbore_engine::units;

use super::{FoundShare, MutableReader, SignedShare, Survey};
use crate::cap::{Key, Mutable, first_half};
use crate::cipher::Cipher;
use crate::code::Code;
use crate::gbs::{is_written, range_bytes};
use crate::hash::{Hash, tagged, tagged_pair};
use crate::merkle::Tree;
use crate::placement::{Candidate, place};
use crate::secrets::LeaseSecrets;
use crate::upload::Grid;

/// Longest share that is made again, in bytes: all of them are in memory at once.
const SHARE_BYTES_MAX: u64 = 64 << 20;

/// Makes shares of one version again; returns how many were sent. `shares` are the good ones.
pub(crate) async fn repair(
    grid: &Grid,
    cap: &Mutable,
    secrets: &LeaseSecrets,
    survey: &Survey,
    shares: &[FoundShare],
    reader: &mut MutableReader<'_>,
) -> Result<usize, String> {
    let Some(write_key) = cap.write_key() else {
        return Err("it takes the write cap of a mutable file to repair it".into());
    };
    let Some(first) = shares.first() else { return Err("too few shares are left".into()) };
    let header = &first.signed.header;
    if header.end() > SHARE_BYTES_MAX {
        return Err(format!("its shares have more than {}; use `tahoe check --repair`", units::bytes(SHARE_BYTES_MAX)));
    }
    let wanted = place(&candidates(survey, shares), header.total).send;
    if wanted.is_empty() {
        return Err("no server is left that could take shares".into());
    }
    let made = encode(reader, shares, &wanted).await?;
    let template = template(grid, cap, survey, shares, &write_key).await?;
    let mut sent = 0;
    let mut last = None;
    for (share, made) in made {
        let bytes = made.into_share(share, &first.signed, &template)?;
        // A wrong share could not be taken back; readers would find it.
        let proven =
            SignedShare::verify(share, &bytes[..bytes.len().min(super::HEAD_BYTES as usize)], &cap.fingerprint);
        proven.map_err(|error| format!("share {share} would not be right: {error}"))?;
        let server = survey.order[wanted[&share]];
        let link = grid.link(server);
        let seed = &grid.servers()[server].lease_seed;
        let index = cap.storage_index();
        let lease = secrets.lease(&index, seed);
        let call = link.requests().write_new_share(&index, share, bytes, &write_enabler(&write_key, seed), &lease);
        let answer = match link.call(call).await {
            Ok(reply) => is_written(&reply.answer).map_err(|error| error.to_string()),
            Err(error) => Err(error.reason),
        };
        match answer {
            Ok(true) => sent += 1,
            Ok(false) => last = Some(format!("share {share} on {}: another one is there", link.name())),
            Err(why) => last = Some(format!("share {share} on {}: {why}", link.name())),
        }
    }
    match last {
        Some(why) if sent == 0 => Err(why),
        _ => Ok(sent),
    }
}

/// The secret with which a server lets the owner write.
fn write_enabler(key: &Key, seed: &[u8]) -> Hash {
    let master = tagged(b"allmydata_mutable_writekey_to_write_enabler_master_v1", key);
    tagged_pair(b"allmydata_mutable_write_enabler_master_and_nodeid_to_write_enabler_v1", &master, seed)
}

/// A server is fit for a share unless it holds a damaged, unreadable or old one of the file, which would have to be
/// overwritten.
fn candidates(survey: &Survey, shares: &[FoundShare]) -> Vec<Candidate> {
    let mut holds: BTreeMap<usize, BTreeSet<u16>> = BTreeMap::new();
    for found in shares {
        holds.entry(found.server).or_default().insert(found.signed.share);
    }
    let is_good = |found: &FoundShare| holds.get(&found.server).is_some_and(|own| own.contains(&found.signed.share));
    let other = survey.versions.values().flatten().filter(|found| !is_good(found)).map(|found| found.server);
    let damaged = survey.damaged.iter().map(|(_, server, _)| *server);
    let unread = survey.unread.iter().map(|(_, server, _)| *server);
    let silent = survey.silent.iter().map(|(server, _)| *server);
    let unfit: BTreeSet<usize> = other.chain(damaged).chain(unread).chain(silent).collect();
    (0..survey.order.len())
        .map(|server| Candidate {
            writable: !unfit.contains(&server),
            holds: holds.get(&server).cloned().unwrap_or_default(),
        })
        .collect()
}

/// The parts of a share that differ from those of other shares.
struct Made {
    data: Vec<u8>,
    tree: Tree,
    proof: Vec<(u16, Hash)>,
}

/// Encodes all shares again, and keeps the wanted ones.
async fn encode(
    reader: &mut MutableReader<'_>,
    shares: &[FoundShare],
    wanted: &BTreeMap<u16, usize>,
) -> Result<BTreeMap<u16, Made>, String> {
    let header = shares[0].signed.header.clone();
    let code = Code::new(header.needed, header.total);
    let total = usize::from(header.total);
    let mut leaves: Vec<Vec<Hash>> = vec![Vec::new(); total];
    let mut data: BTreeMap<u16, Vec<u8>> = wanted.keys().map(|share| (*share, Vec::new())).collect();
    for group in MutableReader::groups(&header) {
        let segments = reader.ciphertext(shares, &code, &group).await.map_err(|error| error.to_string())?;
        for (segment, (salt, pieces)) in group.zip(segments) {
            let block = header.block_len(segment) as usize;
            let mut parity = vec![0; (total - usize::from(header.needed)) * block];
            code.encode(&pieces, &mut parity, block);
            for (share, bytes) in (0_u16..).zip(pieces.chunks_exact(block).chain(parity.chunks_exact(block))) {
                leaves[usize::from(share)].push(header.block_leaf(&salt, bytes));
                if let Some(data) = data.get_mut(&share) {
                    if header.is_mdmf {
                        data.extend_from_slice(&salt);
                    }
                    data.extend_from_slice(bytes);
                }
            }
        }
    }
    let trees: Vec<Tree> = leaves.iter().map(|leaves| Tree::new(leaves)).collect();
    let roots: Vec<Hash> = trees.iter().map(|tree| *tree.root()).collect();
    let all = Tree::new(&roots);
    if *all.root() != header.root {
        return Err("the shares would not have the hashes that are signed".into());
    }
    let made = data.into_iter().map(|(share, data)| {
        let number = usize::from(share);
        (share, Made { data, tree: trees[number].clone(), proof: all.proof(number) })
    });
    Ok(made.collect())
}

/// The bytes of a good share that has the owner's encrypted key.
async fn template(
    grid: &Grid,
    cap: &Mutable,
    survey: &Survey,
    shares: &[FoundShare],
    write_key: &Key,
) -> Result<Vec<u8>, String> {
    let mut last = "no share has the owner's key".to_owned();
    for found in shares {
        let link = grid.link(survey.order[found.server]);
        let header = &found.signed.header;
        let call = link.requests().read_mutable(&cap.storage_index(), found.signed.share, 0, header.end());
        let bytes = match link.call(call).await {
            Ok(reply) => range_bytes(&reply.answer).map_err(|error| error.to_string()),
            Err(error) => Err(error.reason),
        };
        let is_whole = |bytes: &[u8]| {
            let range = header.private_key();
            let Some(encrypted) = bytes.get(range.start as usize..range.end as usize) else { return false };
            let mut key = encrypted.to_vec();
            Cipher::at(write_key, 0).apply(&mut key);
            bytes.len() as u64 == header.end()
                && first_half(&tagged(b"allmydata_mutable_privkey_to_writekey_v1", &key)) == *write_key
        };
        match bytes {
            Ok(bytes) if is_whole(&bytes) => return Ok(bytes.to_vec()),
            Ok(_) => {}
            Err(why) => last = format!("share {} on {}: {why}", found.signed.share, link.name()),
        }
    }
    Err(last)
}

impl Made {
    /// The new share: a copy of another one, with its own parts replaced.
    fn into_share(self, share: u16, other: &SignedShare, template: &[u8]) -> Result<Vec<u8>, String> {
        let header = &other.header;
        let mut bytes = template.to_vec();
        // Without the leaf, as the stock client writes it.
        let own = usize::from(header.total).next_power_of_two() - 1 + usize::from(share);
        let mut nodes: Vec<(u16, Hash)> =
            self.proof.into_iter().filter(|(node, _)| usize::from(*node) != own).collect();
        nodes.sort_unstable();
        let proof: Vec<u8> = nodes.iter().flat_map(|(node, hash)| [&node.to_be_bytes()[..], hash].concat()).collect();
        let all = 0..header.segments;
        let mut parts = vec![(header.proof_range(), proof)];
        // The tree over no blocks is the same in all shares.
        if header.segments > 0 {
            parts.push((header.block_tree_range(), self.tree.nodes().concat()));
            parts.push((header.blocks_range(&all), self.data));
        }
        for (range, part) in parts {
            let room = bytes.get_mut(range.start as usize..range.end as usize).filter(|room| room.len() == part.len());
            room.ok_or("its shares have a layout of their own; use `tahoe check --repair`")?.copy_from_slice(&part);
        }
        Ok(bytes)
    }
}
