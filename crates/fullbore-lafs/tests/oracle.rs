//! Ours beside the stock code: the same caps, shares that are the same byte for byte, the same secrets of leases, the
//! same order of servers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "oracle/client.rs"]
mod client;

use fullbore_lafs::{
    Cap, Code, Encoding, Extension, Geometry, Layout, LeaseSecrets, convergent_key, encode_whole, proof_nodes,
};
use std::path::Path;
use std::sync::Arc;

use fullbore_engine::digest::Sha256;
use fullbore_lafs::base32;
use fullbore_lafs::servers::{Announcements, Server, permuted};
use serde_json::json;

use client::Oracle;

/// Bytes that look like chance and are always the same.
fn content(size: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn compare(oracle: &mut Oracle, dir: &Path, (needed, total): (u16, u16), size: usize, segment: u64, secret: &[u8]) {
    let data = content(size);
    let file = dir.join("file");
    std::fs::write(&file, &data).unwrap();
    let secret_hex = hex(secret);
    let answer = oracle.ask(&json!({"file": file, "k": needed, "n": total, "segment": segment, "secret": secret_hex}));
    let geometry = Geometry::new(Encoding::new(needed, 1, total).unwrap(), size as u64, segment).unwrap();
    let key = convergent_key(&geometry, secret, &data);
    let (cap, shares) = encode_whole(geometry, key, Arc::new(Code::new(needed, total)), &data).unwrap();
    let context = format!("{needed} of {total}, {size} bytes, segments of {segment}");
    assert_eq!(Cap::Chk(cap).to_text(), answer["cap"].as_str().unwrap(), "{context}");
    let sums: Vec<String> = shares.iter().map(|share| Sha256::of(share).to_hex().as_str().to_owned()).collect();
    assert_eq!(json!(sums), answer["shares"], "shares, {context}");
}

#[test]
fn caps_and_shares_are_those_of_the_stock_encoder() {
    matrix(1 << 20);
}

#[test]
fn caps_and_shares_are_the_stock_ones_with_old_segments_too() {
    matrix(128 << 10);
}

fn matrix(segment: u64) {
    let mut oracle = Oracle::start();
    let dir = tempfile::tempdir().unwrap();
    let secrets: [&[u8]; 2] = [b"", b"a secret of some bytes"];
    let whole = segment as usize;
    for code in [(1, 1), (1, 3), (2, 3), (3, 10), (71, 255), (101, 256)] {
        for size in [1, 55, 56, whole - 1, whole, whole + 1, 3 * whole + 777, (8 << 20) + 1] {
            // The secret goes into the key alone: one of the large ones will do.
            for secret in if size > 2 << 20 { &secrets[1..] } else { &secrets[..] } {
                compare(&mut oracle, dir.path(), code, size, segment, secret);
            }
        }
    }
}

#[test]
fn headers_of_huge_shares_are_those_of_the_stock_layout() {
    let mut oracle = Oracle::start();
    for (needed, total, size) in [(3, 10, 3 << 32), (3, 10, (3 << 32) - 1000), (1, 1, 1 << 40), (101, 256, 1 << 45)] {
        let geometry = Geometry::new(Encoding::new(needed, 1, total).unwrap(), size, 1 << 20).unwrap();
        let layout = Layout::new(&geometry);
        assert_eq!(layout.version, 2);
        let proof = proof_nodes(usize::from(total), 0).len();
        let numbers = [
            geometry.share_data(),
            geometry.block_size(),
            geometry.segments,
            proof as u64,
            Extension::length(geometry),
        ];
        let answer = oracle.ask(&json!({"header": numbers}));
        assert_eq!(answer["header"], json!(hex(&layout.header())));
    }
}

/// Servers whose seeds come from all that they may come from: a seed of 20 bytes as old nodes have it and of another
/// length, a key as the id, and ids that are none.
fn servers() -> (serde_json::Map<String, serde_json::Value>, Vec<Server>) {
    let pin = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    let mut announced = serde_json::Map::new();
    for number in 0..24_u8 {
        let bytes = content(1000)[usize::from(number) * 40..].to_vec();
        let id = match number % 4 {
            0 => format!("server-{number}"),
            1 => format!("v0-{}", base32::encode(&bytes[..20])),
            _ => format!("v0-{}", base32::encode(&bytes[..32])),
        };
        let mut ann = json!({
            "nickname": format!("s{number}"),
            "anonymous-storage-FURL": format!("pb://{}@tcp:h:{number}/x", base32::encode(&bytes[..20])),
            "anonymous-storage-NURLs": [format!("pb://{pin}@h:{}/swissnum#v=1", 1000 + u32::from(number))],
        });
        let length = [None, None, None, None, Some(20), Some(32), Some(7)][usize::from(number) % 7];
        if let Some(length) = length {
            ann["permutation-seed-base32"] = base32::encode(&bytes[1..=length]).into();
        }
        announced.insert(id, ann);
    }
    // JSON is YAML.
    let entries: serde_json::Map<_, _> = announced.iter().map(|(id, ann)| (id.clone(), json!({"ann": ann}))).collect();
    let mut announcements = Announcements::default();
    announcements.add_servers_yaml(&json!({"storage": entries}).to_string()).unwrap();
    let servers = announcements.servers();
    assert!(servers.unusable.is_empty(), "{:?}", servers.unusable);
    (announced, servers.usable)
}

#[test]
fn servers_are_in_the_order_of_the_stock_client() {
    let mut oracle = Oracle::start();
    let (announced, servers) = servers();
    let some: Vec<&str> = [3, 17, 8].iter().map(|&number: &usize| servers[number].id.as_str()).collect();
    for index in 0..20_u8 {
        let index = [index.wrapping_mul(37); 16];
        for preferred in [&[][..], &some] {
            let ask = json!({"servers": announced, "index": hex(&index), "preferred": preferred});
            let names: Vec<String> = preferred.iter().map(|id| (*id).to_owned()).collect();
            let order = permuted(&servers, &index, &names);
            let ids: Vec<&str> = order.into_iter().map(|number| servers[number].id.as_str()).collect();
            assert_eq!(oracle.ask(&ask)["order"], json!(ids));
        }
    }
}

#[test]
fn leases_have_the_secrets_of_the_stock_client() {
    let mut oracle = Oracle::start();
    let (announced, servers) = servers();
    for (number, secret) in [&b""[..], b"a node's secret", &[0xff; 32]].into_iter().enumerate() {
        let index = [number as u8; 16];
        for server in &servers {
            let ann = &announced[&server.id];
            let ask = json!({"lease": {"id": server.id, "ann": ann}, "secret": hex(secret), "index": hex(&index)});
            let lease = LeaseSecrets::new(secret).lease(&index, &server.lease_seed);
            let expected = json!({"renew": hex(&lease.renew), "cancel": hex(&lease.cancel)});
            assert_eq!(oracle.ask(&ask), expected, "{}", server.id);
        }
    }
}
