//! The kernels for x86-64, written with intrinsics. The speed of compiled loops over arrays varied by a factor of seven
//! with small changes of the code.
//!
//! In a function that is compiled for a feature, its intrinsics are safe. Only the call on a processor without the
//! features would be unsafe.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_extract_epi32, _mm256_or_si256, _mm256_permute2x128_si256,
    _mm256_ror_epi32, _mm256_set_epi32, _mm256_set_epi64x, _mm256_set1_epi32, _mm256_shuffle_epi8, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_ternarylogic_epi32, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::{AHEAD, Block, K, LANES, State};

/// Eight rounds, after which each variable has its name again.
macro_rules! eight_rounds {
    ($round:ident, $t:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
        $round!($t, $a, $b, $c, $d, $e, $f, $g, $h);
        $round!($t + 1, $h, $a, $b, $c, $d, $e, $f, $g);
        $round!($t + 2, $g, $h, $a, $b, $c, $d, $e, $f);
        $round!($t + 3, $f, $g, $h, $a, $b, $c, $d, $e);
        $round!($t + 4, $e, $f, $g, $h, $a, $b, $c, $d);
        $round!($t + 5, $d, $e, $f, $g, $h, $a, $b, $c);
        $round!($t + 6, $c, $d, $e, $f, $g, $h, $a, $b);
        $round!($t + 7, $b, $c, $d, $e, $f, $g, $h, $a);
    };
}

/// The same kernels for two sets of features, which differ in four operations.
macro_rules! kernels {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        #[inline]
        fn add(x: __m256i, y: __m256i) -> __m256i {
            _mm256_add_epi32(x, y)
        }

        /// Loads the sixteen words of each block, big-endian: vector `t` has word `t` of all blocks.
        #[target_feature(enable = $features)]
        #[inline]
        fn load(blocks: [&Block; LANES]) -> [__m256i; 16] {
            let mut words = [_mm256_set1_epi32(0); 16];
            for half in 0..2 {
                let mut rows = [_mm256_set1_epi32(0); LANES];
                for (row, block) in rows.iter_mut().zip(blocks) {
                    let (parts, _) = block.as_chunks::<8>();
                    let part = |index: usize| i64::from_le_bytes(parts[4 * half + index]);
                    *row = swap_bytes(_mm256_set_epi64x(part(3), part(2), part(1), part(0)));
                }
                words[8 * half..][..8].copy_from_slice(&transpose(rows));
            }
            words
        }

        /// Swaps the order of bytes in each word.
        #[target_feature(enable = $features)]
        #[inline]
        fn swap_bytes(v: __m256i) -> __m256i {
            let order = _mm256_set_epi64x(
                0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203, 0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203,
            );
            _mm256_shuffle_epi8(v, order)
        }

        /// Transposes eight rows of eight words.
        #[target_feature(enable = $features)]
        #[inline]
        fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
            let pairs: [__m256i; 8] = [
                _mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[0], r[1]),
                _mm256_unpacklo_epi32(r[2], r[3]), _mm256_unpackhi_epi32(r[2], r[3]),
                _mm256_unpacklo_epi32(r[4], r[5]), _mm256_unpackhi_epi32(r[4], r[5]),
                _mm256_unpacklo_epi32(r[6], r[7]), _mm256_unpackhi_epi32(r[6], r[7]),
            ];
            let low = fours(pairs[0], pairs[1], pairs[2], pairs[3]);
            let high = fours(pairs[4], pairs[5], pairs[6], pairs[7]);
            let mut columns = low;
            let mut rest = low;
            for (index, (low, high)) in low.into_iter().zip(high).enumerate() {
                columns[index] = _mm256_permute2x128_si256::<0x20>(low, high);
                rest[index] = _mm256_permute2x128_si256::<0x31>(low, high);
            }
            let [c0, c1, c2, c3] = columns;
            let [c4, c5, c6, c7] = rest;
            [c0, c1, c2, c3, c4, c5, c6, c7]
        }

        /// Puts words `i` and `i + 4` of four rows into vector `i`, from rows interleaved in pairs.
        #[target_feature(enable = $features)]
        #[inline]
        fn fours(low01: __m256i, high01: __m256i, low23: __m256i, high23: __m256i) -> [__m256i; 4] {
            [
                _mm256_unpacklo_epi64(low01, low23),
                _mm256_unpackhi_epi64(low01, low23),
                _mm256_unpacklo_epi64(high01, high23),
                _mm256_unpackhi_epi64(high01, high23),
            ]
        }

        /// Computes the next sixteen words of the schedules (FIPS 180-4, 6.2.2, step 1).
        #[target_feature(enable = $features)]
        #[inline]
        fn extend(words: &mut [__m256i; 16]) {
            for t in 0..16 {
                let early = words[(t + 1) & 15];
                let late = words[(t + 14) & 15];
                let small0 = xor3(
                    rotate::<7, 25>(early),
                    rotate::<18, 14>(early),
                    _mm256_srli_epi32::<3>(early),
                );
                let small1 = xor3(
                    rotate::<17, 15>(late),
                    rotate::<19, 13>(late),
                    _mm256_srli_epi32::<10>(late),
                );
                words[t] = add(add(words[t], small0), add(words[(t + 9) & 15], small1));
            }
        }

        /// Compresses the first `count` blocks of up to eight streams, one per lane; idle lanes repeat the last one's
        /// work.
        #[target_feature(enable = $features)]
        pub(in super::super) fn lanes(states: &mut [State], data: &[&[Block]], count: usize) {
            let last = data.len() - 1;
            let data: [&[Block]; LANES] = std::array::from_fn(|lane| &data[lane.min(last)][..count]);
            let mut state = [_mm256_set1_epi32(0); 8];
            for (word, vector) in state.iter_mut().enumerate() {
                let of = |lane: usize| states[lane.min(last)][word].cast_signed();
                *vector = _mm256_set_epi32(
                    of(7), of(6), of(5), of(4), of(3), of(2), of(1), of(0),
                );
            }
            for index in 0..count {
                let mut blocks = [&data[0][index]; LANES];
                for lane in 1..LANES {
                    blocks[lane] = &data[lane][index];
                }
                let mut words = load(blocks);
                let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
                let mut t = 0;
                while t < 64 {
                    if t > 0 {
                        extend(&mut words);
                    }
                    macro_rules! round {
                        ($i:expr, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident, $g:ident, $h:ident) => {
                            let big1 = xor3(rotate::<6, 26>($e), rotate::<11, 21>($e), rotate::<25, 7>($e));
                            let constant = _mm256_set1_epi32(K[t + $i].cast_signed());
                            let known = add(add($h, constant), words[$i]);
                            let first = add(add(known, big1), choose($e, $f, $g));
                            let big0 = xor3(rotate::<2, 30>($a), rotate::<13, 19>($a), rotate::<22, 10>($a));
                            $d = add($d, first);
                            $h = add(add(first, big0), majority($a, $b, $c));
                        };
                    }
                    eight_rounds!(round, 0, a b c d e f g h);
                    eight_rounds!(round, 8, a b c d e f g h);
                    t += 16;
                }
                for (word, new) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
                    *word = add(*word, new);
                }
            }
            for (word, vector) in state.into_iter().enumerate() {
                let values = split(vector);
                for (lane, state) in states.iter_mut().enumerate() {
                    state[word] = values[lane];
                }
            }
        }

        /// Compresses groups of blocks of one stream: their schedules at once, then the rounds block by block.
        #[target_feature(enable = $features)]
        pub(in super::super) fn ahead(state: &mut State, groups: &[[Block; AHEAD]]) {
            let mut schedule = [[0; AHEAD]; 64];
            for group in groups {
                let [b0, b1, b2, b3, b4, b5, b6, b7] = group;
                let blocks = [b0, b1, b2, b3, b4, b5, b6, b7];
                let mut words = load(blocks);
                let mut t = 0;
                while t < 64 {
                    if t > 0 {
                        extend(&mut words);
                    }
                    for (i, word) in words.iter().enumerate() {
                        let constant = _mm256_set1_epi32(K[t + i].cast_signed());
                        schedule[t + i] = split(add(*word, constant));
                    }
                    t += 16;
                }
                for column in 0..AHEAD {
                    super::rounds(state, &schedule, column);
                }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn split(v: __m256i) -> [u32; 8] {
            [
                _mm256_extract_epi32::<0>(v).cast_unsigned(),
                _mm256_extract_epi32::<1>(v).cast_unsigned(),
                _mm256_extract_epi32::<2>(v).cast_unsigned(),
                _mm256_extract_epi32::<3>(v).cast_unsigned(),
                _mm256_extract_epi32::<4>(v).cast_unsigned(),
                _mm256_extract_epi32::<5>(v).cast_unsigned(),
                _mm256_extract_epi32::<6>(v).cast_unsigned(),
                _mm256_extract_epi32::<7>(v).cast_unsigned(),
            ]
        }
    };
}

pub(super) mod avx2 {
    use super::*;

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    fn rotate<const RIGHT: i32, const LEFT: i32>(x: __m256i) -> __m256i {
        _mm256_or_si256(_mm256_srli_epi32::<RIGHT>(x), _mm256_slli_epi32::<LEFT>(x))
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    fn xor3(x: __m256i, y: __m256i, z: __m256i) -> __m256i {
        _mm256_xor_si256(x, _mm256_xor_si256(y, z))
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    fn choose(x: __m256i, y: __m256i, z: __m256i) -> __m256i {
        _mm256_xor_si256(_mm256_and_si256(x, _mm256_xor_si256(y, z)), z)
    }

    #[target_feature(enable = "avx2,bmi1,bmi2")]
    #[inline]
    fn majority(x: __m256i, y: __m256i, z: __m256i) -> __m256i {
        _mm256_or_si256(_mm256_and_si256(x, y), _mm256_and_si256(z, _mm256_or_si256(x, y)))
    }

    kernels!("avx2,bmi1,bmi2");
}

pub(super) mod avx512 {
    use super::*;

    #[target_feature(enable = "avx512f,avx512vl,avx2,bmi1,bmi2")]
    #[inline]
    fn rotate<const RIGHT: i32, const LEFT: i32>(x: __m256i) -> __m256i {
        _mm256_ror_epi32::<RIGHT>(x)
    }

    // The numbers are truth tables: the outputs for inputs 111 to 000.
    #[target_feature(enable = "avx512f,avx512vl,avx2,bmi1,bmi2")]
    #[inline]
    fn xor3(x: __m256i, y: __m256i, z: __m256i) -> __m256i {
        _mm256_ternarylogic_epi32::<0b1001_0110>(x, y, z)
    }

    #[target_feature(enable = "avx512f,avx512vl,avx2,bmi1,bmi2")]
    #[inline]
    fn choose(x: __m256i, y: __m256i, z: __m256i) -> __m256i {
        _mm256_ternarylogic_epi32::<0b1100_1010>(x, y, z)
    }

    #[target_feature(enable = "avx512f,avx512vl,avx2,bmi1,bmi2")]
    #[inline]
    fn majority(x: __m256i, y: __m256i, z: __m256i) -> __m256i {
        _mm256_ternarylogic_epi32::<0b1110_1000>(x, y, z)
    }

    kernels!("avx512f,avx512vl,avx2,bmi1,bmi2");
}

/// Computes the 64 rounds of one block, whose words (with the constants added) are one column.
#[inline(always)]
fn rounds(state: &mut State, words: &[[u32; AHEAD]; 64], column: usize) {
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    let mut t = 0;
    while t < 64 {
        macro_rules! round {
            ($i:expr, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident, $g:ident, $h:ident) => {
                let big1 = $e.rotate_right(6) ^ $e.rotate_right(11) ^ $e.rotate_right(25);
                // The halves have no bit in common, so an addition is correct, and the compiler can reorder it.
                let choice = ($e & $f).wrapping_add(!$e & $g);
                let word = words[t + $i][column];
                let first = $h.wrapping_add(word).wrapping_add(big1).wrapping_add(choice);
                let big0 = $a.rotate_right(2) ^ $a.rotate_right(13) ^ $a.rotate_right(22);
                let majority = ($a & ($b ^ $c)) ^ ($b & $c);
                $d = $d.wrapping_add(first);
                $h = first.wrapping_add(big0).wrapping_add(majority);
            };
        }
        eight_rounds!(round, 0, a b c d e f g h);
        t += 8;
    }
    for (word, new) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(new);
    }
}
