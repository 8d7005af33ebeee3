//! How much memory a list may take that a peer fills, and that has to be kept whole.
//!
//! Some lists grow with a tree or a bucket, so no constant can bound them, but this machine's memory can. A peer that
//! lists without an end is left before it takes that memory away from others.

/// The share of this machine's memory that such a list may take: one part of so many. A guess; half of a million files in
/// flight of a copy, with their attributes, take 200 MB.
const MEMORY_SHARE: u64 = 4;

/// What it may take at least, in bytes: a machine with less than 4 GiB swaps before it refuses an honest peer.
const LEAST_BYTES: u64 = 1 << 30;

/// What a place in a map or list costs beside its key and value, in bytes: a guess, with what the allocator adds.
pub const PLACE_BYTES: u64 = 64;

/// The bytes that one such list may take.
pub fn list_bytes_max() -> u64 {
    let memory = rustix::system::sysinfo();
    #[allow(clippy::unnecessary_cast, reason = "32 bits on some machines")]
    let total = (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit.max(1)));
    (total / MEMORY_SHARE).max(LEAST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_may_take_a_part_of_the_memory() {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let total_bytes = total.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        assert!(list_bytes_max() >= LEAST_BYTES && list_bytes_max() <= LEAST_BYTES.max(total_bytes / 2));
    }
}
