//! The erasure code of zfec: n blocks, of which the first k are the data; any k of them restore it.
//!
//! The matrix is a Vandermonde matrix over the points 0, 1, 2, 4, 8, …, multiplied by the inverse of its top so that
//! the first k rows are the identity. All Tahoe-LAFS shares use it: another choice of points would be as good a code,
//! but incompatible.

use super::field::{Kernel, combine, inverse, multiply, power_of_two};

/// Bytes of all inputs processed at once: two thirds of a first-level cache of 48 KiB, all of one of 32 KiB. More is
/// hardly slower, less has more overhead. Measured on one machine only.
const WORKING_BYTES: usize = 32 << 10;

/// Least bytes of one block processed at once.
const PIECE_BYTES_MIN: usize = 512;

/// A systematic k-of-n Reed-Solomon code over GF(2^8).
#[derive(Debug, Clone)]
pub struct Code {
    needed: usize,
    total: usize,
    /// Rows k to n of the matrix, each of k factors.
    parity: Vec<u8>,
    kernel: Kernel,
}

/// Too few blocks, or blocks that do not belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Fewer different blocks than the code needs.
    #[error("{found} different blocks, but {needed} are needed")]
    TooFew {
        /// Number of different blocks given.
        found: usize,
        /// Number of blocks needed, k.
        needed: usize,
    },
    /// A block number that is not below n.
    #[error("no block has number {number}")]
    Number {
        /// The number given.
        number: usize,
    },
    /// Blocks of different lengths.
    #[error("blocks of different lengths")]
    Lengths,
}

impl Code {
    /// The k-of-n code, with the fastest kernel of this machine.
    ///
    /// # Panics
    /// Unless 1 ≤ needed ≤ total ≤ 256, as [`Encoding::new`](super::geometry::Encoding::new) checks.
    pub fn new(needed: u16, total: u16) -> Code {
        Code::with_kernel(needed, total, Kernel::best())
    }

    /// The k-of-n code with a given kernel, for tests and measurements.
    ///
    /// # Panics
    /// As [`Code::new`].
    pub fn with_kernel(needed: u16, total: u16, kernel: Kernel) -> Code {
        assert!(1 <= needed && needed <= total && total <= 256, "{needed} of {total} is no code");
        let (needed, total) = (usize::from(needed), usize::from(total));
        let row = |row: usize| -> Vec<u8> {
            match row {
                0 => (0..needed).map(|column| u8::from(column == 0)).collect(),
                _ => (0..needed).map(|column| power_of_two((row - 1) * column)).collect(),
            }
        };
        let top = invert((0..needed).flat_map(row).collect(), needed)
            .expect("a Vandermonde matrix of different points has an inverse");
        let parity = (needed..total).flat_map(|number| times(&row(number), &top, needed)).collect();
        Code { needed, total, parity, kernel }
    }

    /// Whether this is the code for these numbers.
    pub fn is(&self, needed: u16, total: u16) -> bool {
        (self.needed, self.total) == (usize::from(needed), usize::from(total))
    }

    /// Factors of the parity block with this number; `None` for the blocks that are data.
    pub(crate) fn parity_row(&self, number: usize) -> Option<&[u8]> {
        let index = number.checked_sub(self.needed)?;
        self.parity.get(index * self.needed..(index + 1) * self.needed)
    }

    /// Computes blocks k to n from blocks 0 to k.
    ///
    /// `data` holds k blocks of `block` bytes; `parity` has room for n − k blocks.
    ///
    /// # Panics
    /// If `data` or `parity` has another length.
    pub fn encode(&self, data: &[u8], parity: &mut [u8], block: usize) {
        assert_eq!(data.len(), self.needed * block, "k blocks of data");
        assert_eq!(parity.len(), (self.total - self.needed) * block, "room for n - k blocks");
        if block == 0 {
            return;
        }
        let inputs: Vec<&[u8]> = data.chunks_exact(block).collect();
        let rows = self.parity.chunks_exact(self.needed);
        self.combine_rows(rows.zip(parity.chunks_exact_mut(block)).collect(), &inputs, block);
    }

    /// Restores the k data blocks from any k different blocks and their numbers. More than k are accepted.
    ///
    /// # Errors
    /// [`DecodeError::TooFew`] for fewer than k different blocks; [`DecodeError::Number`] for a number that is not
    /// below n; [`DecodeError::Lengths`] for blocks of unequal length.
    pub fn decode(&self, blocks: &[(usize, &[u8])]) -> Result<Vec<u8>, DecodeError> {
        let mut known: Vec<Option<&[u8]>> = vec![None; self.total];
        for &(number, block) in blocks {
            *known.get_mut(number).ok_or(DecodeError::Number { number })? = Some(block);
        }
        let found = known.iter().flatten().count();
        if found < self.needed {
            return Err(DecodeError::TooFew { found, needed: self.needed });
        }
        let length = blocks[0].1.len();
        if blocks.iter().any(|(_, block)| block.len() != length) {
            return Err(DecodeError::Lengths);
        }
        let mut data = vec![0; self.needed * length];
        for (number, block) in known[..self.needed].iter().enumerate() {
            if let Some(block) = block {
                data[number * length..][..length].copy_from_slice(block);
            }
        }
        let missing: Vec<usize> = (0..self.needed).filter(|&number| known[number].is_none()).collect();
        if missing.is_empty() || length == 0 {
            return Ok(data);
        }
        // The data blocks that are there, and parity blocks in the place of the others.
        let used: Vec<(usize, &[u8])> = known
            .iter()
            .enumerate()
            .filter_map(|(number, block)| Some((number, (*block)?)))
            .take(self.needed)
            .collect();
        let rows = used.iter().flat_map(|&(number, _)| self.row(number)).collect();
        let inverse = invert(rows, self.needed).expect("any k rows of the matrix are independent");
        let inputs: Vec<&[u8]> = used.iter().map(|&(_, block)| block).collect();
        let outputs: Vec<(&[u8], &mut [u8])> = data
            .chunks_exact_mut(length)
            .enumerate()
            .filter(|(number, _)| missing.contains(number))
            .map(|(number, out)| (&inverse[number * self.needed..][..self.needed], out))
            .collect();
        self.combine_rows(outputs, &inputs, length);
        Ok(data)
    }

    /// All k factors of a block.
    fn row(&self, number: usize) -> Vec<u8> {
        match self.parity_row(number) {
            Some(row) => row.to_vec(),
            None => (0..self.needed).map(|column| u8::from(column == number)).collect(),
        }
    }

    /// Sums each row into its output, piece by piece, so that the inputs of a piece stay in the cache while all outputs
    /// are computed.
    fn combine_rows(&self, mut rows: Vec<(&[u8], &mut [u8])>, inputs: &[&[u8]], length: usize) {
        let piece = (WORKING_BYTES / self.needed).next_multiple_of(PIECE_BYTES_MIN);
        let mut pieces = Vec::with_capacity(inputs.len());
        for start in (0..length).step_by(piece) {
            let end = length.min(start + piece);
            pieces.clear();
            pieces.extend(inputs.iter().map(|input| &input[start..end]));
            for (factors, out) in &mut rows {
                combine(self.kernel, &mut out[start..end], factors, &pieces);
            }
        }
    }
}

/// Product of a row and a square matrix.
fn times(row: &[u8], matrix: &[u8], size: usize) -> Vec<u8> {
    let mut product = vec![0; size];
    for (&factor, line) in row.iter().zip(matrix.chunks_exact(size)) {
        product.iter_mut().zip(line).for_each(|(sum, &value)| *sum ^= multiply(factor, value));
    }
    product
}

/// Inverts a square matrix by elimination; `None` if it is singular.
fn invert(mut matrix: Vec<u8>, size: usize) -> Option<Vec<u8>> {
    let mut inverted = vec![0; size * size];
    (0..size).for_each(|index| inverted[index * size + index] = 1);
    for column in 0..size {
        let pivot = (column..size).find(|row| matrix[row * size + column] != 0)?;
        for table in [&mut matrix, &mut inverted] {
            for index in 0..size {
                table.swap(pivot * size + index, column * size + index);
            }
        }
        let scale = inverse(matrix[column * size + column])?;
        for table in [&mut matrix, &mut inverted] {
            table[column * size..][..size].iter_mut().for_each(|value| *value = multiply(*value, scale));
        }
        for row in (0..size).filter(|&row| row != column) {
            let factor = matrix[row * size + column];
            if factor == 0 {
                continue;
            }
            for table in [&mut matrix, &mut inverted] {
                for index in 0..size {
                    let step = multiply(factor, table[column * size + index]);
                    table[row * size + index] ^= step;
                }
            }
        }
    }
    Some(inverted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parity_rows_of_3_of_10_are_the_published_ones() {
        let code = Code::new(3, 10);
        let rows: Vec<&[u8]> = (3..10).map(|number| code.parity_row(number).unwrap()).collect();
        let published: [[u8; 3]; 7] =
            [[15, 8, 6], [45, 48, 28], [153, 224, 120], [11, 231, 237], [137, 59, 179], [70, 241, 182], [186, 217, 98]];
        assert_eq!(rows, published.iter().map(|row| &row[..]).collect::<Vec<_>>());
        assert_eq!((code.parity_row(2), code.parity_row(10)), (None, None));
    }

    #[test]
    fn decoding_says_what_is_missing() {
        let code = Code::new(2, 3);
        let (a, b): (&[u8], &[u8]) = (b"ab", b"c");
        assert_eq!(code.decode(&[(0, a), (0, a)]), Err(DecodeError::TooFew { found: 1, needed: 2 }));
        assert_eq!(code.decode(&[(0, a), (3, a)]), Err(DecodeError::Number { number: 3 }));
        assert_eq!(code.decode(&[(0, a), (1, b)]), Err(DecodeError::Lengths));
        assert_eq!(code.decode(&[]), Err(DecodeError::TooFew { found: 0, needed: 2 }));
    }

    #[test]
    fn the_largest_code_is_decoded_from_its_last_blocks() {
        let code = Code::new(101, 256);
        let data: Vec<u8> = (0..101 * 7).map(|i| (i * 7 % 251) as u8).collect();
        let mut parity = vec![0; 155 * 7];
        code.encode(&data, &mut parity, 7);
        let last: Vec<(usize, &[u8])> = (155..256).map(|number| (number, &parity[(number - 101) * 7..][..7])).collect();
        assert_eq!(code.decode(&last).unwrap(), data);
    }

    proptest! {
        #[test]
        fn any_k_blocks_give_the_data_back(
            needed in 1_u16..12, more in 0_u16..12, block in 0_usize..300, seed: u64,
        ) {
            let total = needed + more;
            let data: Vec<u8> =
                (0..usize::from(needed) * block).map(|i| (i as u64 ^ seed).wrapping_mul(0x9e37_79b9) as u8).collect();
            let mut order: Vec<usize> = (0..usize::from(total)).collect();
            // Shuffles by the seed.
            for index in (1..order.len()).rev() {
                order.swap(index, (seed.rotate_left(index as u32 * 5) % (index as u64 + 1)) as usize);
            }
            for kernel in Kernel::available() {
                let code = Code::with_kernel(needed, total, kernel);
                let mut parity = vec![0; usize::from(more) * block];
                code.encode(&data, &mut parity, block);
                let all: Vec<u8> = [&data[..], &parity[..]].concat();
                let some: Vec<(usize, &[u8])> =
                    order[..usize::from(needed)].iter().map(|&number| (number, &all[number * block..][..block])).collect();
                prop_assert_eq!(&code.decode(&some).unwrap(), &data);
            }
        }
    }
}
