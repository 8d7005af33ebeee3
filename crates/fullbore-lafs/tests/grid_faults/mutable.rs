//! Mutable files on servers that misbehave: what is read is the newest version that can be, and who stood in the way of
//! another one is named.

use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair, RSA_PSS_SHA256, RsaKeyPair};
use bytes::Bytes;
use fullbore_lafs::mutable::{self, MutableError};
use fullbore_lafs::{Cap, Code, Mutable, Tree, base32};
use tokio::sync::mpsc;

use crate::server::{Fault, GbsServer, StoredShare};
use crate::world::{LIMIT, LONG, World};

/// Long beside what a busy machine takes for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Bytes of the fields that are signed and of the offsets behind them.
const HEADER: usize = 107;

/// A mutable file, whose owner can make any version of it.
struct File {
    key: RsaKeyPair,
    cap: Mutable,
}

fn tagged(tag: &str, value: &[u8]) -> [u8; 32] {
    let once = digest(&SHA256, &[format!("{}:{tag},", tag.len()).as_bytes(), value].concat());
    digest(&SHA256, once.as_ref()).as_ref().try_into().unwrap()
}

impl File {
    fn new() -> File {
        let key = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        let fingerprint = tagged("allmydata_mutable_pubkey_to_fingerprint_v1", &File::public(&key));
        let text = format!("URI:SSK-RO:{}:{}", base32::encode(&[7; 16]), base32::encode(&fingerprint));
        let Ok(Cap::Mutable(cap)) = Cap::parse(&text) else { panic!("{text}") };
        File { key, cap }
    }

    fn public(key: &RsaKeyPair) -> Vec<u8> {
        let der: PublicKeyX509Der<'_> = key.public_key().as_der().unwrap();
        der.as_ref().to_vec()
    }

    /// The shares of a version: two, of which so many are needed, of so many bytes.
    fn version(&self, sequence: u64, needed: u8, size: usize) -> Vec<Vec<u8>> {
        let data = vec![sequence as u8; size.next_multiple_of(needed.into())];
        let block = data.len() / usize::from(needed);
        let mut parity = vec![0; (2 - usize::from(needed)) * block];
        Code::new(needed.into(), 2).encode(&data, &mut parity, block);
        let blocks: Vec<&[u8]> = data.chunks(block).chain(parity.chunks(block)).collect();
        let leaves: Vec<[u8; 32]> = blocks.iter().map(|block| tagged("allmydata_encoded_subshare_v1", block)).collect();
        let all = Tree::new(&leaves);
        let mut signed = vec![0];
        signed.extend(sequence.to_be_bytes());
        signed.extend(all.root());
        signed.extend([9; 16]);
        signed.extend([needed, 2]);
        signed.extend((data.len() as u64).to_be_bytes());
        signed.extend((size as u64).to_be_bytes());
        let mut signature = vec![0; self.key.public_modulus_len()];
        self.key.sign(&RSA_PSS_SHA256, &SystemRandom::new(), &signed, &mut signature).unwrap();
        let public = File::public(&self.key);
        let share = |number: usize| {
            // The other leaf of the tree.
            let other = 1 - number;
            let proof = [&(1 + other as u16).to_be_bytes()[..], &leaves[other]].concat();
            let parts: [&[u8]; 6] = [&public, &signature, &proof, &leaves[number], blocks[number], &[5; 1220]];
            let mut at = HEADER;
            let mut offsets = Vec::new();
            for part in parts {
                offsets.push(at);
                at += part.len();
            }
            let mut bytes = signed.clone();
            offsets[1..5].iter().for_each(|at| bytes.extend((*at as u32).to_be_bytes()));
            [offsets[5], at].iter().for_each(|at| bytes.extend((*at as u64).to_be_bytes()));
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
            bytes
        };
        (0..2).map(share).collect()
    }

    /// Puts a share on a server, in the place of others of this number.
    fn put(&self, server: &GbsServer, number: u16, bytes: &[u8]) {
        let name = base32::encode(&self.cap.storage_index());
        server.state().shares.insert((name, number), StoredShare::whole(bytes.to_vec()));
    }

    /// Reads the file: how many bytes it has, and what was wrong.
    async fn read(&self, world: &World) -> (usize, Result<Vec<String>, MutableError>) {
        let (out, mut pieces) = mpsc::channel::<Bytes>(2);
        let collect = async {
            let mut bytes = 0;
            while let Some(piece) = pieces.recv().await {
                bytes += piece.len();
            }
            bytes
        };
        let read = async move { mutable::read(&world.grid, &self.cap, &out).await };
        tokio::time::timeout(LIMIT, async { tokio::join!(collect, read) }).await.expect("the read ends")
    }
}

/// Two servers: the first has version 1 of ten bytes, the second version 2 of twenty.
async fn two_versions(file: &File, fault: Fault) -> Vec<GbsServer> {
    let servers = World::new(&[Fault::None, fault], LONG).await.servers;
    file.put(&servers[0], 0, &file.version(1, 1, 10)[0]);
    file.put(&servers[1], 0, &file.version(2, 1, 20)[0]);
    servers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_version_is_read_only_with_a_warning() {
    let file = File::new();
    let (bytes, result) = file.read(&World::of(two_versions(&file, Fault::None).await, LONG)).await;
    assert_eq!((bytes, result.unwrap()), (20, Vec::new()), "the newest one, and nothing is wrong");
    // The server of the newer one does not give its share.
    let servers = two_versions(&file, Fault::Refuses { share: 0 }).await;
    let (bytes, result) = file.read(&World::of(servers, LONG)).await;
    let troubles = result.unwrap().join("\n");
    assert!(bytes == 10 && troubles.contains("share 0 on s1 (") && troubles.contains("500"), "{troubles}");
    // It is down.
    let mut servers = two_versions(&file, Fault::None).await;
    let pin = servers[1].nurl.split_once('@').unwrap().0.to_owned();
    servers[1].nurl = format!("{pin}@127.0.0.1:1/swissnum#v=1");
    let (bytes, result) = file.read(&World::of(servers, LONG)).await;
    let troubles = result.unwrap().join("\n");
    assert!(bytes == 10 && troubles.starts_with("s1 ("), "{troubles}");
    // It has too few shares of the newer one.
    let servers = two_versions(&file, Fault::None).await;
    file.put(&servers[1], 0, &file.version(2, 2, 20)[0]);
    let (bytes, result) = file.read(&World::of(servers, LONG)).await;
    let troubles = result.unwrap().join("\n");
    assert!(bytes == 10 && troubles.contains("newer version 2, and 1 of the 2 shares"), "{troubles}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_share_hides_no_other_of_its_server() {
    let file = File::new();
    let world = World::new(&[Fault::Refuses { share: 0 }], LONG).await;
    for (number, share) in (0..).zip(file.version(1, 1, 10)) {
        file.put(&world.servers[0], number, &share);
    }
    let (bytes, result) = file.read(&world).await;
    let troubles = result.unwrap();
    assert!(bytes == 10 && troubles.len() == 1 && troubles[0].contains("share 0 on s0 ("), "{troubles:?}");
    // It is not damaged, for all that is known.
    let survey = mutable::survey(&world.grid, &file.cap).await;
    assert_eq!((survey.damaged.len(), survey.unread.len(), survey.silent.len()), (0, 1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_byte_by_byte_is_waited_for_once() {
    let file = File::new();
    let world = World::of(two_versions(&file, Fault::DripsReads).await, PATIENCE);
    let mut lasted = Vec::new();
    for _ in 0..2 {
        let begun = Instant::now();
        let (bytes, result) = file.read(&world).await;
        let troubles = result.unwrap().join("\n");
        assert!(bytes == 10 && troubles.contains("s1 ("), "{troubles}");
        lasted.push(begun.elapsed());
    }
    assert!(lasted[0] < PATIENCE * 6 && lasted[1] < PATIENCE, "{lasted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_come_byte_by_byte_are_read_elsewhere() {
    let file = File::new();
    let servers = World::new(&[Fault::None; 2], LONG).await.servers;
    let share = file.version(1, 1, 10)[0].clone();
    servers.iter().for_each(|server| file.put(server, 0, &share));
    // The one whose share is read first.
    let order = World::of(servers.clone(), LONG).grid.order(&file.cap.storage_index());
    servers[order[0]].state().fault = Fault::DripsBlocks;
    let world = World::of(servers, PATIENCE);
    let begun = Instant::now();
    let (bytes, result) = file.read(&world).await;
    let troubles = result.unwrap().join("\n");
    assert!(bytes == 10 && troubles.contains(&format!("share 0 on s{} (", order[0])), "{troubles}");
    assert!(begun.elapsed() < PATIENCE * 6, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_alone_is_told_from_silence() {
    let file = File::new();
    for (fault, is_damage) in [(Fault::None, true), (Fault::Refuses { share: 0 }, false)] {
        let servers = two_versions(&file, fault).await;
        let mut damaged = file.version(1, 1, 10)[0].clone();
        // A byte of the root, which is signed.
        damaged[20] ^= 1;
        servers.iter().for_each(|server| file.put(server, 0, &damaged));
        let (_, result) = file.read(&World::of(servers, LONG)).await;
        let MutableError::TooFewShares(few) = result.unwrap_err() else { panic!("{fault:?}") };
        assert_eq!((few.found, few.is_damage()), (0, is_damage), "{fault:?}: {few:?}");
    }
}
