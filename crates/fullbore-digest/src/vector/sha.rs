//! Two streams with the processor's SHA instructions (Intel SDM, volume 2: SHA256RNDS2, SHA256MSG1, SHA256MSG2).
//!
//! Each of these instructions waits for the previous one of the same stream; the instructions of the second stream fill
//! that time.

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_extract_epi32, _mm_set_epi32, _mm_set_epi64x, _mm_sha256msg1_epu32,
    _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8, _mm_shuffle_epi32,
};

use sha2::block_api::compress256;

use super::{Block, K, State};

/// The eight variables, in the order of the instructions.
#[derive(Clone, Copy)]
struct Variables {
    abef: __m128i,
    cdgh: __m128i,
}

/// Sixteen words of a block's schedule; the next to be replaced comes first.
type Words = [__m128i; 4];

/// Compresses the first `count` blocks of each stream, two streams at a time.
#[target_feature(enable = "sha,ssse3,sse4.1")]
pub(super) fn lanes(states: &mut [State], data: &[&[Block]], count: usize) {
    for (states, data) in states.chunks_mut(2).zip(data.chunks(2)) {
        match (states, data) {
            ([one, other], [first, second]) => pair([one, other], &first[..count], &second[..count]),
            (states, data) => {
                states.iter_mut().zip(data).for_each(|(state, blocks)| compress256(state, &blocks[..count]));
            }
        }
    }
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
fn pair(states: [&mut State; 2], first: &[Block], second: &[Block]) {
    let [one, other] = states;
    let mut both = [variables(one), variables(other)];
    for (first, second) in first.iter().zip(second) {
        let before = both;
        let mut words = [load(first), load(second)];
        // Written without a loop, because array elements are in registers only if the indexes are constants.
        macro_rules! fours {
            ($($t:literal)*) => {
                $(for stream in 0..2 {
                    if $t >= 4 {
                        extend(&mut words[stream], $t % 4);
                    }
                    four_rounds(&mut both[stream], words[stream][$t % 4], $t);
                })*
            };
        }
        fours!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        for (now, before) in both.iter_mut().zip(before) {
            now.abef = _mm_add_epi32(now.abef, before.abef);
            now.cdgh = _mm_add_epi32(now.cdgh, before.cdgh);
        }
    }
    *one = state(both[0]);
    *other = state(both[1]);
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
#[inline]
fn variables(state: &State) -> Variables {
    let [a, b, c, d, e, f, g, h] = state.map(u32::cast_signed);
    Variables { abef: _mm_set_epi32(a, b, e, f), cdgh: _mm_set_epi32(c, d, g, h) }
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
#[inline]
fn state(Variables { abef, cdgh }: Variables) -> State {
    [
        _mm_extract_epi32::<3>(abef),
        _mm_extract_epi32::<2>(abef),
        _mm_extract_epi32::<3>(cdgh),
        _mm_extract_epi32::<2>(cdgh),
        _mm_extract_epi32::<1>(abef),
        _mm_extract_epi32::<0>(abef),
        _mm_extract_epi32::<1>(cdgh),
        _mm_extract_epi32::<0>(cdgh),
    ]
    .map(i32::cast_unsigned)
}

/// Loads a block's words, big-endian.
#[target_feature(enable = "sha,ssse3,sse4.1")]
#[inline]
fn load(block: &Block) -> Words {
    let order = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
    let (parts, _) = block.as_chunks::<8>();
    let part = |index: usize| i64::from_le_bytes(parts[index]);
    let mut words = [order; 4];
    for (index, four) in words.iter_mut().enumerate() {
        *four = _mm_shuffle_epi8(_mm_set_epi64x(part(2 * index + 1), part(2 * index)), order);
    }
    words
}

/// Computes the next four words of the schedule in place of the oldest (FIPS 180-4, 6.2.2, step 1).
#[target_feature(enable = "sha,ssse3,sse4.1")]
#[inline]
fn extend(words: &mut Words, at: usize) {
    let [next, last] = [words[(at + 1) % 4], words[(at + 3) % 4]];
    let seven_before = _mm_alignr_epi8::<4>(last, words[(at + 2) % 4]);
    let sum = _mm_add_epi32(_mm_sha256msg1_epu32(words[at], next), seven_before);
    words[at] = _mm_sha256msg2_epu32(sum, last);
}

/// Rounds `4 * t` to `4 * t + 3` (step 3).
#[target_feature(enable = "sha,ssse3,sse4.1")]
#[inline]
fn four_rounds(variables: &mut Variables, words: __m128i, t: usize) {
    let k = |index: usize| K[4 * t + index].cast_signed();
    let sums = _mm_add_epi32(words, _mm_set_epi32(k(3), k(2), k(1), k(0)));
    let Variables { abef, cdgh } = *variables;
    // After two rounds, the former ABEF is CDGH.
    let two = _mm_sha256rnds2_epu32(cdgh, abef, sums);
    *variables = Variables { cdgh: two, abef: _mm_sha256rnds2_epu32(abef, two, _mm_shuffle_epi32::<0x0e>(sums)) };
}
