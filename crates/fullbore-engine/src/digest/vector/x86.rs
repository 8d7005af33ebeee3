//! The kernels for x86-64, with intrinsics: what the compiler makes of loops over arrays
//! varied seven-fold with the way they were written.
//!
//! Within a function compiled for a feature its intrinsics are safe; nothing here is unsafe
//! but to be called on a processor without the features.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_extract_epi32, _mm256_or_si256, _mm256_ror_epi32,
    _mm256_set_epi32, _mm256_set1_epi32, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_ternarylogic_epi32,
    _mm256_xor_si256,
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

        /// Word `t` of each block, big-endian.
        #[target_feature(enable = $features)]
        #[inline]
        fn load(blocks: [&Block; LANES], t: usize) -> __m256i {
            let word = |lane: usize| {
                let (words, _) = blocks[lane].as_chunks::<4>();
                i32::from_be_bytes(words[t])
            };
            let (w0, w1, w2, w3) = (word(0), word(1), word(2), word(3));
            let (w4, w5, w6, w7) = (word(4), word(5), word(6), word(7));
            _mm256_set_epi32(w7, w6, w5, w4, w3, w2, w1, w0)
        }

        /// The next sixteen words of the schedules (FIPS 180-4, 6.2.2, step 1).
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

        /// The first `count` blocks of up to eight streams, one per lane; idle lanes do
        /// again what the last one does.
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
                let mut words = [_mm256_set1_epi32(0); 16];
                for (t, word) in words.iter_mut().enumerate() {
                    *word = load(blocks, t);
                }
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

        /// Groups of blocks of one stream: their schedules side by side, then the rounds
        /// block after block.
        #[target_feature(enable = $features)]
        pub(in super::super) fn ahead(state: &mut State, groups: &[[Block; AHEAD]]) {
            let mut schedule = [[0; AHEAD]; 64];
            for group in groups {
                let [b0, b1, b2, b3, b4, b5, b6, b7] = group;
                let blocks = [b0, b1, b2, b3, b4, b5, b6, b7];
                let mut words = [_mm256_set1_epi32(0); 16];
                for (t, word) in words.iter_mut().enumerate() {
                    *word = load(blocks, t);
                }
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

    // The numbers are truth tables: output for inputs 111 down to 000.
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

/// The 64 rounds of one block, whose words (with the constants added) are one column.
#[inline(always)]
fn rounds(state: &mut State, words: &[[u32; AHEAD]; 64], column: usize) {
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    let mut t = 0;
    while t < 64 {
        macro_rules! round {
            ($i:expr, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident, $g:ident, $h:ident) => {
                let big1 = $e.rotate_right(6) ^ $e.rotate_right(11) ^ $e.rotate_right(25);
                // The halves have no bit in common: an addition, to be reordered at will.
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
