//! SHA-256's compression function for several streams, and for processors without SHA instructions.
//!
//! With SHA instructions, and on other architectures, the sha2 crate hashes a single stream; two streams at once take
//! little longer than one. Many servers do not have these instructions (Intel before Ice Lake), and there a core at 2.5
//! GHz hashes one stream at about 180 MB/s.
//!
//! AVX2 or AVX-512 help in two ways. For one stream, the message schedules of eight blocks are computed at once, since
//! they do not depend on the state (about 330 MB/s). Several streams are hashed at once, one per vector lane (about 780
//! MB/s with four, 1,550 MB/s with eight). These are CPU times on a Xeon of 2.5 GHz, where OpenSSL's assembly does 340
//! MB/s, measured with the example `hash_rate` of fullbore-engine.
//!
//! The only unsafe code is the call of a function that was compiled for processor features, after a check that the
//! processor has them.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod sha;
#[cfg(target_arch = "x86_64")]
mod x86;

use sha2::block_api::compress256;

/// A block of 64 bytes, the unit of the hash.
pub(super) type Block = [u8; 64];
/// The eight words that pass from block to block.
pub(super) type State = [u32; 8];

/// Maximum number of streams in parallel.
pub(super) const LANES: usize = 8;
/// Number of blocks whose message schedule is computed in parallel.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 8;

/// Implementation for a set of processor features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    /// The sha2 crate.
    Library,
    /// SHA instructions: the sha2 crate for one stream, two streams in parallel.
    #[cfg(target_arch = "x86_64")]
    Sha,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with rotation and ternary logic, on 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Tier {
    /// Detects the processor; the standard library caches the result.
    pub(super) fn of_this_machine() -> Tier {
        // The kernels are slow without optimisation; the library is optimised even then.
        if cfg!(debug_assertions) { Tier::Library } else { Tier::best() }
    }

    #[cfg(target_arch = "x86_64")]
    fn best() -> Tier {
        use std::arch::is_x86_feature_detected as has;
        if has!("sha") && has!("ssse3") && has!("sse4.1") {
            Tier::Sha
        } else if has!("avx2") && has!("bmi1") && has!("bmi2") {
            if has!("avx512f") && has!("avx512vl") { Tier::Avx512 } else { Tier::Avx2 }
        } else {
            Tier::Library
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn best() -> Tier {
        Tier::Library
    }

    /// Minimum number of streams to hash in parallel; fewer are faster in turn.
    pub(super) fn worthwhile_lanes(self) -> usize {
        match self {
            Tier::Library => usize::MAX,
            #[cfg(target_arch = "x86_64")]
            Tier::Sha => 2,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => 4,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => 3,
        }
    }

    /// Number of streams to hash in parallel, out of `streams`.
    pub(super) fn lanes(self, streams: usize) -> usize {
        match self {
            // In pairs: the last stream of an odd number would be hashed alone, so it shares its pair as long as
            // another stream is longer.
            #[cfg(target_arch = "x86_64")]
            Tier::Sha => streams.min(LANES) & !1,
            _ => streams.min(LANES),
        }
    }
}

/// Adds blocks of one stream.
pub(super) fn compress(tier: Tier, state: &mut State, blocks: &[Block]) {
    match tier {
        Tier::Library => compress256(state, blocks),
        #[cfg(target_arch = "x86_64")]
        Tier::Sha => compress256(state, blocks),
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 | Tier::Avx512 => {
            let (groups, rest) = blocks.as_chunks::<AHEAD>();
            if !groups.is_empty() {
                // SAFETY: a tier is chosen only if the processor has its features.
                match tier {
                    Tier::Avx512 => unsafe { x86::avx512::ahead(state, groups) },
                    _ => unsafe { x86::avx2::ahead(state, groups) },
                }
            }
            compress256(state, rest);
        }
    }
}

/// Adds the first `count` blocks of up to [`LANES`] streams in parallel.
pub(super) fn compress_lanes(tier: Tier, states: &mut [State], data: &[&[Block]], count: usize) {
    assert!(states.len() == data.len() && (1..=LANES).contains(&data.len()));
    match tier {
        Tier::Library => {
            for (state, blocks) in states.iter_mut().zip(data) {
                compress256(state, &blocks[..count]);
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the tier is chosen only if the processor has these features.
        Tier::Sha => unsafe { sha::lanes(states, data, count) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Tier::Avx2 => unsafe { x86::avx2::lanes(states, data, count) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Tier::Avx512 => unsafe { x86::avx512::lanes(states, data, count) },
    }
}

/// The round constants (FIPS 180-4, 4.2.2).
#[cfg(target_arch = "x86_64")]
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
];

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every way that this machine can go, whatever it would choose.
    pub(crate) fn tiers() -> Vec<Tier> {
        #[allow(unused_mut)]
        let mut tiers = vec![Tier::Library];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("sha") && has!("ssse3") && has!("sse4.1") {
                tiers.push(Tier::Sha);
            }
            if has!("avx2") && has!("bmi1") && has!("bmi2") {
                tiers.push(Tier::Avx2);
                if has!("avx512f") && has!("avx512vl") {
                    tiers.push(Tier::Avx512);
                }
            }
        }
        tiers
    }

    fn blocks(seed: u8, count: usize) -> Vec<Block> {
        (0..count).map(|i| std::array::from_fn(|j| (i * 31 + j * 7 + usize::from(seed) * 13) as u8)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// M17: every way gives what the library gives, for any state and any lengths.
        #[test]
        fn every_way_gives_the_same(
            start: [u32; 8],
            seed: u8,
            count in 0_usize..20,
            lanes in 1_usize..=LANES,
        ) {
            for tier in tiers() {
                let data = blocks(seed, count);
                let (mut mine, mut theirs) = (start, start);
                compress(tier, &mut mine, &data);
                compress256(&mut theirs, &data);
                prop_assert_eq!(mine, theirs, "{:?}", tier);

                let data: Vec<Vec<Block>> =
                    (0..lanes).map(|lane| blocks(seed ^ lane as u8, count + lane)).collect();
                let slices: Vec<&[Block]> = data.iter().map(Vec::as_slice).collect();
                let mut mine: Vec<State> =
                    (0..lanes).map(|lane| start.map(|word| word ^ lane as u32)).collect();
                let mut theirs = mine.clone();
                compress_lanes(tier, &mut mine, &slices, count);
                for (state, blocks) in theirs.iter_mut().zip(&slices) {
                    compress256(state, &blocks[..count]);
                }
                prop_assert_eq!(mine, theirs, "{:?}", tier);
            }
        }
    }
}
