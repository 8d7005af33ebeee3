//! Sums of products over blocks, by the best instructions that the processor has.
//!
//! Each output is computed from all inputs before the next one, some hundred bytes at a time in registers: the inputs
//! come from the nearest cache, the output is written once. Callers cut long blocks so that the inputs stay in the
//! cache (`code`).
//!
//! Unsafe code loads and stores vectors within slices, and calls functions compiled for features that the processor was
//! found to have.

#![allow(unsafe_code)]

use super::{PRODUCTS, Products};

/// A set of instructions for the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kernel {
    /// Two table look-ups per byte; works everywhere.
    Scalar,
    /// 16 bytes at once by shuffles.
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    /// 32 bytes at once by shuffles.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 32 bytes at once by the instruction for affine maps over bits.
    #[cfg(target_arch = "x86_64")]
    Gfni,
}

impl Kernel {
    /// All kernels that this processor can run, the best one last.
    pub fn available() -> Vec<Kernel> {
        let mut kernels = vec![Kernel::Scalar];
        kernels.extend(Kernel::vectors());
        kernels
    }

    #[cfg(target_arch = "x86_64")]
    fn vectors() -> impl Iterator<Item = Kernel> {
        use std::arch::is_x86_feature_detected as has;
        let (ssse3, avx2) = (has!("ssse3"), has!("avx2"));
        let found = [(Kernel::Ssse3, ssse3), (Kernel::Avx2, avx2), (Kernel::Gfni, avx2 && has!("gfni"))];
        found.into_iter().filter_map(|(kernel, is_there)| is_there.then_some(kernel))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn vectors() -> impl Iterator<Item = Kernel> {
        std::iter::empty()
    }

    /// The best kernel of this processor.
    pub fn best() -> Kernel {
        Kernel::available().pop().unwrap_or(Kernel::Scalar)
    }

    /// Bytes per step; the scalar kernel does the rest of a block.
    #[cfg(target_arch = "x86_64")]
    fn stride(self) -> usize {
        match self {
            Kernel::Scalar => 1,
            Kernel::Ssse3 => x86::SSSE3_BYTES,
            Kernel::Avx2 => x86::AVX2_BYTES,
            Kernel::Gfni => x86::GFNI_BYTES,
        }
    }
}

/// Sets `out` to the sum of each input multiplied by its factor.
///
/// # Panics
/// If there are not as many inputs as factors, if an input is not as long as `out`, or if `kernel` is not among
/// [`Kernel::available`].
pub(crate) fn combine(kernel: Kernel, out: &mut [u8], factors: &[u8], inputs: &[&[u8]]) {
    assert_eq!(factors.len(), inputs.len(), "a factor for each input");
    assert!(inputs.iter().all(|input| input.len() == out.len()), "inputs as long as the output");
    let tables = PRODUCTS.as_slice();
    let done = vectors(kernel, out, factors, inputs, tables);
    scalar(out, factors, inputs, tables, done);
}

/// Processes all whole vectors; returns the number of bytes done.
#[cfg(target_arch = "x86_64")]
fn vectors(kernel: Kernel, out: &mut [u8], factors: &[u8], inputs: &[&[u8]], tables: &[Products]) -> usize {
    if kernel == Kernel::Scalar {
        return 0;
    }
    assert!(has(kernel), "{kernel:?} is not available");
    let done = out.len() - out.len() % kernel.stride();
    // SAFETY: the processor has the feature (asserted above); `done` is a multiple of the function's
    // stride, at most the length of `out`, and all inputs are as long as `out` (asserted by `combine`);
    // `tables` has 256 entries.
    match kernel {
        Kernel::Scalar => {}
        Kernel::Ssse3 => unsafe { x86::ssse3(out, factors, inputs, tables, done) },
        Kernel::Avx2 => unsafe { x86::avx2(out, factors, inputs, tables, done) },
        Kernel::Gfni => unsafe { x86::gfni(out, factors, inputs, tables, done) },
    }
    done
}

#[cfg(target_arch = "x86_64")]
fn has(kernel: Kernel) -> bool {
    use std::arch::is_x86_feature_detected as has;
    match kernel {
        Kernel::Scalar => true,
        Kernel::Ssse3 => has!("ssse3"),
        Kernel::Avx2 => has!("avx2"),
        Kernel::Gfni => has!("avx2") && has!("gfni"),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors(_: Kernel, _: &mut [u8], _: &[u8], _: &[&[u8]], _: &[Products]) -> usize {
    0
}

/// Processes the bytes from `start` on, one by one.
fn scalar(out: &mut [u8], factors: &[u8], inputs: &[&[u8]], tables: &[Products], start: usize) {
    let out = &mut out[start..];
    out.fill(0);
    for (&factor, input) in factors.iter().zip(inputs) {
        let products = &tables[usize::from(factor)];
        for (sum, &byte) in out.iter_mut().zip(&input[start..]) {
            *sum ^= products.low[usize::from(byte & 15)] ^ products.high[usize::from(byte >> 4)];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Products;
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_setzero_si128, _mm_shuffle_epi8,
        _mm_srli_epi64, _mm_storeu_si128, _mm_xor_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
        _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_set1_epi64x, _mm256_setzero_si256,
        _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
    };

    /// Vectors in flight: enough to hide the latency of the instructions, few enough for the registers.
    const SHUFFLED: usize = 2;
    const MAPPED: usize = 4;
    pub(super) const SSSE3_BYTES: usize = SHUFFLED * 16;
    pub(super) const AVX2_BYTES: usize = SHUFFLED * 32;
    pub(super) const GFNI_BYTES: usize = MAPPED * 32;

    /// # Safety
    /// As `gfni`, with SSSE3.
    #[target_feature(enable = "ssse3")]
    pub(super) unsafe fn ssse3(out: &mut [u8], factors: &[u8], inputs: &[&[u8]], tables: &[Products], done: usize) {
        let mask = _mm_set1_epi8(15);
        for at in (0..done).step_by(SSSE3_BYTES) {
            let mut sums = [_mm_setzero_si128(); SHUFFLED];
            for (&factor, input) in factors.iter().zip(inputs) {
                let products = &tables[usize::from(factor)];
                // SAFETY: tables are 16 bytes; `at` + stride is at most `done`, which is within the input.
                unsafe {
                    let low = _mm_loadu_si128(products.low.as_ptr().cast::<__m128i>());
                    let high = _mm_loadu_si128(products.high.as_ptr().cast::<__m128i>());
                    for (number, sum) in sums.iter_mut().enumerate() {
                        let bytes = _mm_loadu_si128(input.as_ptr().add(at + 16 * number).cast::<__m128i>());
                        let lows = _mm_shuffle_epi8(low, _mm_and_si128(bytes, mask));
                        let highs = _mm_shuffle_epi8(high, _mm_and_si128(_mm_srli_epi64::<4>(bytes), mask));
                        *sum = _mm_xor_si128(*sum, _mm_xor_si128(lows, highs));
                    }
                }
            }
            for (number, sum) in sums.into_iter().enumerate() {
                // SAFETY: as above, for the output.
                unsafe { _mm_storeu_si128(out.as_mut_ptr().add(at + 16 * number).cast::<__m128i>(), sum) };
            }
        }
    }

    /// # Safety
    /// As `gfni`, with AVX2 alone.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(out: &mut [u8], factors: &[u8], inputs: &[&[u8]], tables: &[Products], done: usize) {
        let mask = _mm256_set1_epi8(15);
        for at in (0..done).step_by(AVX2_BYTES) {
            let mut sums = [_mm256_setzero_si256(); SHUFFLED];
            for (&factor, input) in factors.iter().zip(inputs) {
                let products = &tables[usize::from(factor)];
                // SAFETY: tables are 16 bytes; `at` + stride is at most `done`, which is within the input.
                unsafe {
                    let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(products.low.as_ptr().cast::<__m128i>()));
                    let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(products.high.as_ptr().cast::<__m128i>()));
                    for (number, sum) in sums.iter_mut().enumerate() {
                        let bytes = _mm256_loadu_si256(input.as_ptr().add(at + 32 * number).cast::<__m256i>());
                        let lows = _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, mask));
                        let highs = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), mask));
                        *sum = _mm256_xor_si256(*sum, _mm256_xor_si256(lows, highs));
                    }
                }
            }
            for (number, sum) in sums.into_iter().enumerate() {
                // SAFETY: as above, for the output.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at + 32 * number).cast::<__m256i>(), sum) };
            }
        }
    }

    /// # Safety
    /// The processor has GFNI and AVX2; `done` is a multiple of the stride and at most the length of `out`
    /// and of every input; `tables` has 256 entries.
    #[target_feature(enable = "avx2,gfni")]
    pub(super) unsafe fn gfni(out: &mut [u8], factors: &[u8], inputs: &[&[u8]], tables: &[Products], done: usize) {
        for at in (0..done).step_by(GFNI_BYTES) {
            let mut sums = [_mm256_setzero_si256(); MAPPED];
            for (&factor, input) in factors.iter().zip(inputs) {
                let map = _mm256_set1_epi64x(tables[usize::from(factor)].matrix as i64);
                for (number, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: `at` + stride is at most `done`, which is within the input.
                    let bytes = unsafe { _mm256_loadu_si256(input.as_ptr().add(at + 32 * number).cast::<__m256i>()) };
                    *sum = _mm256_xor_si256(*sum, _mm256_gf2p8affine_epi64_epi8::<0>(bytes, map));
                }
            }
            for (number, sum) in sums.into_iter().enumerate() {
                // SAFETY: as above, for the output.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at + 32 * number).cast::<__m256i>(), sum) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::multiply;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_kernels_agree_with_the_definition(
            length in 0_usize..700, factors in proptest::collection::vec(any::<u8>(), 0..9), seed: u8,
        ) {
            let data: Vec<Vec<u8>> = (0..factors.len())
                .map(|row| (0..length).map(|at| (at * 31 + row * 97 + usize::from(seed)) as u8).collect())
                .collect();
            let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let expected: Vec<u8> = (0..length)
                .map(|at| factors.iter().zip(&inputs).fold(0, |sum, (&f, input)| sum ^ multiply(f, input[at])))
                .collect();
            for kernel in Kernel::available() {
                let mut out = vec![0xaa; length];
                combine(kernel, &mut out, &factors, &inputs);
                prop_assert_eq!(&out, &expected, "{:?}", kernel);
            }
        }
    }
}
