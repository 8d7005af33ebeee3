//! A copy that was cut off.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::{OTHER_BOOT, fullbore, lines, this_boot, unpack};

const JOURNAL: &str = "dst/.large.fullbore-blocks";
const MARKER: &str = "dst/.fullbore-copy";
const PART: &str = "dst/.large.fullbore-part";
/// The journal's head, and the checksum at its end.
const HEAD_BYTES: usize = 128;
const SUM_BYTES: usize = 4;
const RECORD_BYTES: usize = 48;
const BLOCK_BYTES: u64 = 1 << 20;
/// Time of the source's content, seconds since 1970: `COPIED_AT` of `make`.
const MODIFIED_S: u64 = 1_700_000_000;

fn sealed(bytes: &mut [u8]) {
    let at = bytes.len() - SUM_BYTES;
    let sum = blake3::hash(&bytes[..at]);
    bytes[at..].copy_from_slice(&sum.as_bytes()[..SUM_BYTES]);
}

/// Unpacks the unfinished copy and makes its source anew. A user's source is the very file that the journal names; ours
/// has another inode and change time, so that the journal's head is made to name it. Gives the blocks that are there.
fn left_behind(place: &Path, boot: &str) -> Vec<u64> {
    unpack("copy-unfinished", &place.join("dst"));
    fs::create_dir(place.join("src")).unwrap();
    let source = place.join("src/large");
    fs::write(&source, lines(12)).unwrap();
    let file = fs::File::options().write(true).open(&source).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED_S)).unwrap();
    let about = fs::metadata(&source).unwrap();
    let mut journal = fs::read(place.join(JOURNAL)).unwrap();
    let (head, records) = journal.split_at_mut(HEAD_BYTES);
    assert_eq!(head[36..44], MODIFIED_S.to_le_bytes(), "the fixture is in order");
    head[8..16].copy_from_slice(&about.dev().to_le_bytes());
    head[16..24].copy_from_slice(&about.ino().to_le_bytes());
    head[24..32].copy_from_slice(&about.ctime().to_le_bytes());
    head[32..36].copy_from_slice(&u32::try_from(about.ctime_nsec()).unwrap().to_le_bytes());
    head[56..92].copy_from_slice(boot.as_bytes());
    sealed(head);
    let blocks = records.chunks_exact(RECORD_BYTES).filter(|record| record[0] == 1);
    let blocks: Vec<u64> = blocks.map(|record| u64::from_le_bytes(record[4..12].try_into().unwrap())).collect();
    assert!(blocks.len() >= 3, "the fixture is in order");
    fs::write(place.join(JOURNAL), journal).unwrap();
    // On the user's machine the copy began before anything of it was written; here all is written just now, by a clock
    // that may be behind the one of the machine that made this.
    let marker = fs::read_to_string(place.join(MARKER)).unwrap();
    let (text, began) = marker.trim_end().rsplit_once(' ').unwrap();
    assert!(text.ends_with("\nbegan") && began.contains('.'), "the fixture is in order: {marker}");
    fs::write(place.join(MARKER), format!("{text} {MODIFIED_S}.000000000\n")).unwrap();
    blocks
}

/// Copies, and gives the bytes that were taken over and those that were written.
fn copied(place: &Path) -> (u64, u64) {
    let output = fullbore().args(["copy", "--json", "src/", "dst"]).current_dir(place).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let summary: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    let mut names: Vec<_> = fs::read_dir(place.join("dst")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["large"], "nothing is left of the copy");
    assert!(fs::read(place.join("dst/large")).unwrap() == lines(12));
    let number = |name: &str| summary["totals"][name].as_u64().unwrap_or_else(|| panic!("{name} in {summary}"));
    (number("resumed_bytes"), number("written_bytes"))
}

#[test]
fn a_copy_that_was_cut_off_is_gone_on_with() {
    for boot in [&this_boot(), OTHER_BOOT] {
        let place = tempfile::tempdir().unwrap();
        let blocks = left_behind(place.path(), boot).len() as u64;
        assert_eq!(copied(place.path()), (blocks * BLOCK_BYTES, (12 - blocks) * BLOCK_BYTES), "boot {boot}");
    }
}

/// What was not flushed to the disk is compared with the journal's hashes.
#[test]
fn a_block_that_did_not_reach_the_disk_comes_again() {
    use std::os::unix::fs::FileExt as _;
    let place = tempfile::tempdir().unwrap();
    let blocks = left_behind(place.path(), OTHER_BOOT);
    // Without its checkpoints: nothing of it was flushed.
    let mut journal = fs::read(place.path().join(JOURNAL)).unwrap();
    let records = journal.split_off(HEAD_BYTES);
    let of_blocks = records.chunks_exact(RECORD_BYTES).filter(|record| record[0] == 1);
    journal.extend(of_blocks.flatten());
    fs::write(place.path().join(JOURNAL), journal).unwrap();
    let part = fs::File::options().write(true).open(place.path().join(PART)).unwrap();
    part.write_all_at(b"lost", blocks[1] * BLOCK_BYTES + 5000).unwrap();
    assert_eq!(copied(place.path()).0, (blocks.len() as u64 - 1) * BLOCK_BYTES);
}
