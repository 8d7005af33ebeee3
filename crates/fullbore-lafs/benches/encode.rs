//! How fast one core encodes, every hash included: of the plaintext's bytes, not of the shares'.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use fullbore_lafs::{Code, Encoder, Encoding, Geometry, Kernel, convergent_key};
use std::sync::Arc;

use divan::counter::BytesCount;

const SIZE: usize = 32 << 20;

fn main() {
    divan::main();
}

fn plaintext() -> Vec<u8> {
    (0..SIZE as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8).collect()
}

/// Key, encryption, coding, trees: all that a convergent upload computes, but for TLS.
#[divan::bench(args = [(3, 10), (3, 5), (1, 1), (71, 255)])]
fn whole(bencher: divan::Bencher, (needed, total): (u16, u16)) {
    let data = plaintext();
    let geometry = Geometry::new(Encoding::new(needed, 1, total).unwrap(), SIZE as u64, 1 << 20).unwrap();
    let code = Arc::new(Code::new(needed, total));
    bencher.counter(BytesCount::new(SIZE)).bench_local(|| {
        let key = convergent_key(&geometry, b"secret", &data);
        let mut encoder = Encoder::new(geometry, key, Arc::clone(&code));
        for piece in data.chunks(geometry.segment_size as usize) {
            // As the uploader does it: room for all blocks from the beginning.
            let mut memory = vec![0; geometry.segment_memory() as usize];
            memory[..piece.len()].copy_from_slice(piece);
            let encoded = encoder.segment(memory, piece.len(), None).unwrap().encode();
            encoder.add(&encoded.hashes);
        }
        encoder.finish().unwrap()
    });
}

/// The erasure code alone, 3-of-10, by kernel.
#[divan::bench(args = Kernel::available())]
fn code(bencher: divan::Bencher, kernel: Kernel) {
    let code = Code::with_kernel(3, 10, kernel);
    let block = 349_526;
    let data = vec![0x5a; 3 * block];
    let mut parity = vec![0; 7 * block];
    bencher.counter(BytesCount::new(data.len())).bench_local(|| code.encode(&data, &mut parity, block));
}
