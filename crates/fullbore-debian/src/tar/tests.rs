//! Hand-written headers, archives of the real tar, and malicious archives.

use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;

/// A block as POSIX.1-1988 has it; `edit` may put into it what it likes before the checksum is made.
fn header(name: &str, kind: u8, size: u64, edit: impl FnOnce(&mut [u8; BLOCK_BYTES])) -> Vec<u8> {
    let mut block = [0; BLOCK_BYTES];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\x000000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000012\0");
    put(156, &[kind]);
    put(257, b"ustar\x0000root");
    put(297, b"root");
    edit(&mut block);
    seal(&mut block);
    block.to_vec()
}

fn seal(block: &mut [u8; BLOCK_BYTES]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn padded(content: &[u8]) -> Vec<u8> {
    let mut bytes = content.to_vec();
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes
}

fn file(name: &str, content: &[u8]) -> Vec<u8> {
    [header(name, b'0', content.len() as u64, |_| ()), padded(content)].concat()
}

fn pax(kind: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut text = Vec::new();
    for (key, value) in records {
        let rest = 3 + key.len() + value.len();
        // The length counts its own digits.
        let length = (1..6).map(|digits| rest + digits).find(|sum| sum.to_string().len() == sum - rest).unwrap();
        text.extend_from_slice(format!("{length} {key}=").as_bytes());
        text.extend_from_slice(value);
        text.push(b'\n');
    }
    [header("pax", kind, text.len() as u64, |_| ()), padded(&text)].concat()
}

/// All entries with their content; holes are zeros.
fn read(bytes: &[u8], buffer: usize) -> Result<Vec<(Entry, Vec<u8>)>, TarError> {
    let mut reader = Reader::new(io::BufReader::with_capacity(buffer, bytes));
    let mut entries = Vec::new();
    let mut entry = Entry::default();
    while reader.next_entry(&mut entry)? {
        assert!(entry.size < 1 << 30 || entry.sparse, "only sound archives here, or small ones");
        let mut content = Vec::new();
        while let Some(chunk) = reader.chunk()? {
            if chunk.offset > 1 << 24 {
                break;
            }
            content.resize(chunk.offset as usize, 0);
            content.extend_from_slice(chunk.bytes);
            let count = chunk.bytes.len();
            reader.consume(count);
        }
        if entry.size < 1 << 24 {
            content.resize(entry.size as usize, 0);
        }
        entries.push((entry.clone(), content));
    }
    Ok(entries)
}

fn first(bytes: &[u8]) -> Entry {
    read(bytes, 4096).expect("sound").remove(0).0
}

fn error(bytes: &[u8]) -> String {
    read(bytes, 4096).expect_err("not sound").to_string()
}

#[test]
fn fields_of_a_header_are_read() {
    let bytes = header("dev", b'4', 0, |block| {
        block[100..108].copy_from_slice(b"0006755\0");
        block[108..116].copy_from_slice(b"0001750\0");
        block[265..273].copy_from_slice(b"somebody");
        block[329..337].copy_from_slice(b"0000010\0");
        block[337..345].copy_from_slice(b"0000003\0");
        block[345..348].copy_from_slice(b"pre");
    });
    let entry = first(&bytes);
    assert_eq!((entry.kind, entry.mode, entry.uid, entry.gid), (Kind::BlockDevice, 0o6755, 1000, 0));
    assert_eq!((&entry.path[..], &entry.user[..], entry.device), (&b"pre/dev"[..], &b"somebody"[..], (8, 3)));
    assert_eq!((entry.mtime_s, entry.format), (10, Format::Ustar));
}

#[test]
fn numbers_in_base_256_are_read_and_bounded() {
    let bytes = header("x", b'0', 0, |block| {
        block[136..148].copy_from_slice(&[0xff, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0]);
        block[108..116].copy_from_slice(&[0x80, 0, 0, 0, 0, 0x0f, 0x42, 0x40]);
    });
    let entry = first(&bytes);
    assert_eq!((entry.mtime_s, entry.uid), (-256, 1_000_000));
    for (at, field) in [(108, [0xff; 8]), (108, [0x80, 255, 0, 0, 0, 0, 0, 0]), (100, *b"00006448")] {
        assert!(
            error(&header("x", b'0', 0, |block| block[at..at + 8].copy_from_slice(&field))).contains("is not a number")
        );
    }
}

#[test]
fn long_names_of_gnu_tar_are_read_and_bounded() {
    let name = "d/".repeat(120) + "x";
    let text = name.clone() + "\0";
    let bytes = [
        header("././@LongLink", b'K', 2, |_| ()),
        padded(b"t\0"),
        header("././@LongLink", b'L', text.len() as u64, |_| ()),
        padded(text.as_bytes()),
        header("cut", b'2', 0, |_| ()),
        file("next", b"1"),
    ]
    .concat();
    let entries = read(&bytes, 64).expect("sound");
    assert_eq!((&entries[0].0.path[..], &entries[0].0.link[..]), (name.as_bytes(), &b"t"[..]));
    assert_eq!((&entries[1].0.path[..], &entries[1].1[..]), (&b"next"[..], &b"1"[..]));
    assert!(error(&bytes[..1024 + 512]).contains("ends early"));
    let endless = header("x", b'L', 1 << 20, |_| ());
    assert!(error(&endless).contains("longer than any file needs"));
}

#[test]
fn pax_records_count_for_their_entry() {
    let bytes = [
        pax(b'g', &[("uid", b"7"), ("comment", b"x")]),
        pax(
            b'x',
            &[
                ("path", b"long/name"),
                ("mtime", b"-1.5"),
                ("size", b"3"),
                ("gid", b"99"),
                ("uname", b"u"),
                ("SCHILY.xattr.user.a", b"b=\0\n"),
                ("SCHILY.xattr.security.capability", b"\x01\0"),
            ],
        ),
        header("short", b'0', 0, |_| ()),
        padded(b"abc"),
        file("plain", b""),
    ]
    .concat();
    let entries = read(&bytes, 700).expect("sound");
    let (entry, content) = &entries[0];
    assert_eq!((&entry.path[..], &content[..], entry.size), (&b"long/name"[..], &b"abc"[..], 3));
    assert_eq!((entry.mtime_s, entry.mtime_ns, entry.uid, entry.gid), (-2, 500_000_000, 7, 99));
    assert_eq!(entry.attributes[0], (b"user.a".to_vec(), b"b=\0\n".to_vec()));
    assert_eq!(entry.attributes.len(), 2);
    assert_eq!((entries[1].0.uid, entries[1].0.attributes.len(), entries[1].0.pax), (7, 0, true));
}

/// CVE-2025-62518: a size in a pax header stands over the one in the header, else what is content
/// to one reader is an archive to another.
#[test]
fn the_size_of_a_pax_header_counts() {
    let inner = file("smuggled", b"evil");
    let bytes =
        [pax(b'x', &[("size", inner.len().to_string().as_bytes())]), header("outer", b'0', 0, |_| ()), inner].concat();
    let entries = read(&bytes, 4096).expect("sound");
    assert_eq!(entries.len(), 1);
    assert_eq!(&entries[0].0.path[..], b"outer");
}

#[test]
fn what_readers_take_in_different_ways_is_an_error() {
    for kind in [b'1', b'2', b'3', b'4', b'5', b'6'] {
        assert!(error(&[header("x", kind, 5, |_| ()), padded(b"12345")].concat()).contains("content"), "{kind}");
    }
    assert!(error(&[header("x/", b'0', 5, |_| ()), padded(b"12345")].concat()).contains("content"));
    assert!(
        error(&[pax(b'x', &[("size", b"1")]), header("x", b'5', 0, |_| ()), padded(b"1")].concat()).contains("content")
    );
    assert!(error(&header("x", b'D', 0, |_| ())).contains("unknown type `D`"));
    assert!(error(&pax(b'x', &[("size", b"-1")])[..]).contains("ends early"));
    let lone = [pax(b'x', &[("size", b"x")]), file("a", b"")].concat();
    assert!(error(&lone).contains("pax size"));
    for record in [&b"5 a=b\n"[..], b"99 a=b\n", b"6 ab=\n\n", b" a=b\n", b"7 a=b\n", b"x a=b\n", b"4 =\n"] {
        let bytes = [header("pax", b'x', record.len() as u64, |_| ()), padded(record), file("a", b"")].concat();
        assert!(error(&bytes).contains("pax record"), "{}", record.escape_ascii());
    }
}

#[test]
fn damaged_and_cut_archives_are_errors() {
    assert!(error(&[header("x", b'x', 2 << 20, |_| ()), vec![0; 2 << 20]].concat()).contains("longer than any"));
    assert!(error(&header("x", b'0', 8 << 30, |_| ())[..100]).contains("ends early"));
    let mut bytes = file("x", b"abc");
    bytes.truncate(513);
    assert!(error(&bytes).contains("ends early"));
    let mut bytes = file("x", b"abc");
    bytes[0] = b'y';
    assert!(error(&bytes).contains("checksum"));
    assert!(error(&header("", b'0', 0, |_| ())).contains("no name"));
}

#[test]
fn the_end_is_a_block_of_zeros_or_the_end() {
    let mut bytes = file("x", b"abc");
    assert_eq!(read(&bytes, 4096).expect("sound").len(), 1);
    bytes.extend_from_slice(&[0; BLOCK_BYTES]);
    bytes.extend_from_slice(&file("behind", b""));
    assert_eq!(read(&bytes, 4096).expect("sound").len(), 1);
}

#[test]
fn directories_of_old_archives_end_in_a_slash() {
    let entry = first(&header("d/", b'\0', 0, |block| block[257..263].fill(0)));
    assert_eq!((entry.kind, &entry.path[..], entry.format), (Kind::Directory, &b"d"[..], Format::Old));
}

/// Every form in which GNU tar writes a file with holes reads as the same file.
#[test]
fn sparse_files_of_gnu_tar_are_read_in_every_form() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut expected = vec![0; 3 << 20];
    for at in (0..12_usize).map(|i| i * 260_000) {
        expected[at..at + 5].copy_from_slice(b"data!");
    }
    let mut sparse = std::fs::File::create(directory.path().join("s")).expect("a file");
    for at in (0..12_usize).map(|i| i * 260_000) {
        io::Seek::seek(&mut sparse, io::SeekFrom::Start(at as u64)).expect("seek");
        sparse.write_all(b"data!").expect("write");
    }
    sparse.set_len(3 << 20).expect("length");
    for form in [
        &["--format=gnu"][..],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
    ] {
        let output = Command::new("tar").arg("-C").arg(directory.path()).args(form).args(["-Scf", "-", "s"]).output();
        let output = output.expect("tar does not run: apt-get install tar");
        assert!(output.stdout.len() < 1 << 20, "tar did not look for holes");
        for buffer in [512, 700, 1 << 16] {
            let entries = read(&output.stdout, buffer).expect("sound");
            assert_eq!(entries.len(), 1);
            assert_eq!(entries[0].0.path, b"s", "{form:?}");
            assert!(entries[0].0.sparse && entries[0].1 == expected, "{form:?}");
        }
    }
}

#[test]
fn sparse_maps_that_lie_are_refused() {
    let map = |map: &[u8], size: &[u8]| {
        let records = [("GNU.sparse.map", map), ("GNU.sparse.size", size)];
        [pax(b'x', &records), header("s", b'0', 4, |_| ()), padded(b"abcd")].concat()
    };
    assert_eq!(read(&map(b"1,2,5,2", b"9"), 512).expect("sound")[0].1, b"\0ab\0\0cd\0\0");
    for (wrong, size) in [
        (&b"5,2,1,2"[..], &b"9"[..]),
        (b"1,2,5,2", b"6"),
        (b"1,2,5,3", b"9"),
        (b"1,2,5", b"9"),
        (b"1,18446744073709551615,5,2", b"9"),
        (b"0,4", b"99999999999999999999"),
    ] {
        assert!(error(&map(wrong, size)).contains("sparse"), "{}", wrong.escape_ascii());
    }
}

/// Names, targets and contents as tar writes them, in each of its formats.
fn tar_of(format: &str, files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, content) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::fs::write(path, content).expect("a file");
    }
    let mut child = Command::new("tar")
        .arg("-C")
        .arg(directory.path())
        .args([&format!("--format={format}"), "-cf", "-", "--null", "-T", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("tar does not run: apt-get install tar");
    let mut names = child.stdin.take().expect("piped");
    for (name, _) in files {
        names.write_all(name.as_bytes()).and_then(|()| names.write_all(b"\0")).expect("tar reads");
    }
    drop(names);
    child.wait_with_output().expect("tar ends").stdout
}

#[test]
fn headers_without_end_are_refused() {
    let record: &[(&str, &[u8])] = &[("comment", b"x")];
    let twice = [pax(b'x', record), pax(b'x', record), file("a", b"")].concat();
    assert!(error(&twice).contains("two pax headers"));
    let in_turn = [pax(b'x', record), file("a", b""), pax(b'x', record), file("b", b"")].concat();
    assert_eq!(read(&in_turn, 4096).expect("sound").len(), 2);
    let small: &[(&str, &[u8])] = &[("a", &b""[..]); 200];
    assert_eq!(first(&[pax(b'g', small), file("a", b"")].concat()).path, b"a");
    assert!(error(&[pax(b'g', small), pax(b'g', small), file("a", b"")].concat()).contains("more global headers"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_tar_writes_is_read(
        files in prop::collection::btree_map("([a-z]{1,40}/){0,9}[a-z]{1,120}X", prop::collection::vec(any::<u8>(), 0..2000), 1..5),
        buffer in 1usize..3000,
    ) {
        let files: Vec<_> = files.into_iter().collect();
        for format in ["gnu", "pax", "ustar"] {
            if format == "ustar" && files.iter().any(|(name, _)| name.len() > 90) {
                continue;
            }
            let entries = read(&tar_of(format, &files), buffer).expect("sound");
            let got: Vec<_> = entries
                .into_iter()
                .map(|(entry, content)| (String::from_utf8(entry.path).expect("ours"), content))
                .collect();
            prop_assert_eq!(&got, &files, "{}", format);
        }
    }
}

proptest! {
    /// Whatever the bytes, and however they are cut into reads: no panic, and the same entries.
    #[test]
    fn arbitrary_input_never_panics(
        mut blocks in prop::collection::vec(any::<[u8; 24]>(), 0..6),
        kinds in prop::collection::vec(prop::sample::select(b"0125LKxgS7".to_vec()), 6),
        size in 0u64..1400,
        buffer in 1usize..600,
    ) {
        let mut bytes = Vec::new();
        for (at, noise) in blocks.iter_mut().enumerate() {
            bytes.extend_from_slice(&header("x", kinds[at], size, |block| {
                let place = usize::from(noise[0]) * 2 % (BLOCK_BYTES - 24);
                block[place..place + 23].copy_from_slice(&noise[1..]);
            }));
            bytes.extend_from_slice(&noise.repeat(40)[..BLOCK_BYTES]);
        }
        let one = read(&bytes, 1 << 16);
        let other = read(&bytes, buffer);
        match (one, other) {
            (Ok(one), Ok(other)) => prop_assert_eq!(one, other),
            (Err(one), Err(other)) => prop_assert_eq!(one.to_string(), other.to_string()),
            (one, other) => prop_assert!(false, "{:?} {:?}", one, other),
        }
    }
}
