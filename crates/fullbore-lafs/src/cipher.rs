//! AES-128 in counter mode, which encrypts content. The counter of a key is zero at the content's beginning.

use aws_lc_rs::cipher::{AES_128, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;

use crate::cap::Key;

/// Length of a block of AES in bytes.
const BLOCK: usize = 16;

/// Encrypts and decrypts content, which is the same in counter mode.
#[derive(Debug)]
pub(crate) struct Cipher {
    key: EncryptingKey,
    /// Offset of the next byte.
    position: u64,
}

impl Cipher {
    /// Starts at an offset in the content.
    pub(crate) fn at(key: &Key, position: u64) -> Cipher {
        let key = UnboundCipherKey::new(&AES_128, key).and_then(EncryptingKey::ctr);
        Cipher { key: key.expect("every key of 16 bytes is one"), position }
    }

    /// Encrypts or decrypts the next bytes.
    pub(crate) fn apply(&mut self, data: &mut [u8]) {
        let number = self.position / BLOCK as u64;
        let begun = (self.position % BLOCK as u64) as usize;
        self.position += data.len() as u64;
        if begun == 0 {
            return self.blocks(number, data);
        }
        // The rest of a block that was begun.
        let (rest, others) = data.split_at_mut(data.len().min(BLOCK - begun));
        let mut block = [0; BLOCK];
        block[begun..begun + rest.len()].copy_from_slice(rest);
        self.blocks(number, &mut block);
        rest.copy_from_slice(&block[begun..begun + rest.len()]);
        self.blocks(number + 1, others);
    }

    /// The same for bytes from the beginning of a block.
    fn blocks(&self, number: u64, data: &mut [u8]) {
        let counter = EncryptionContext::Iv128(FixedLength::from(u128::from(number).to_be_bytes()));
        self.key.less_safe_encrypt(data, counter).expect("any counter and length will do");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `openssl enc -aes-128-ctr -K 000102030405060708090a0b0c0d0e0f -iv 00000000000000000000000000000000`, of zeros.
    #[test]
    fn the_first_blocks_are_those_of_openssl() {
        let key = std::array::from_fn(|at| at as u8);
        let mut data = [0; 20];
        Cipher::at(&key, 0).apply(&mut data);
        let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "c6a13b37878f5b826f4f8162a1c8d87973461395");
    }

    proptest! {
        #[test]
        fn any_part_is_as_in_the_whole(length in 0_usize..200, cuts in prop::collection::vec(0_usize..200, 0..6)) {
            let key = [7; 16];
            let mut whole = vec![1; length];
            Cipher::at(&key, 0).apply(&mut whole);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(length)).chain([0, length]).collect();
            cuts.sort_unstable();
            let (mut on, mut parts) = (Cipher::at(&key, 0), Vec::new());
            for ends in cuts.windows(2) {
                let mut part = vec![1; ends[1] - ends[0]];
                on.apply(&mut part);
                parts.extend_from_slice(&part);
                Cipher::at(&key, ends[0] as u64).apply(&mut part);
                prop_assert!(part.iter().all(|byte| *byte == 1), "what is decrypted at {} is the plaintext", ends[0]);
            }
            prop_assert_eq!(parts, whole);
        }
    }
}
