//! Memory limit for a list that a peer fills and that must be kept whole.
//!
//! Some lists grow with a tree or a bucket, so no constant can bound them, but this machine's memory can. A run leaves
//! a peer that lists without end, before the list takes memory away from other programs.

/// Divisor of this machine's memory: such a list may take a fourth. A guess; half of a million files in flight of a
/// copy, with their attributes, take 200 MB.
const MEMORY_SHARE: u64 = 4;

/// The limit is at least this, in bytes: a machine with less than 4 GiB swaps before it refuses an honest peer.
const LEAST_BYTES: u64 = 1 << 30;

/// Overhead of an entry in a map or list beside its key and value, in bytes. A guess that includes the allocator's
/// share.
pub const PLACE_BYTES: u64 = 64;

/// Maximum size of one such list, in bytes.
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
