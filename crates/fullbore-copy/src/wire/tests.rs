use proptest::prelude::*;

use super::*;
use crate::entry::{Entry, Identity, Kind, Time};

fn frame(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    let payload = encode(message, &mut bytes).to_vec();
    bytes.extend_from_slice(&payload);
    bytes
}

/// Feeds bytes in pieces of these lengths, over and over.
fn decode(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Message>, WireError> {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    let (mut rest, mut turn) = (bytes, 0);
    while !rest.is_empty() {
        let space = decoder.space();
        let count = space.len().min(rest.len()).min(pieces[turn % pieces.len()].max(1));
        space[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        turn += 1;
        messages.extend(decoder.filled(count)?);
    }
    assert!(decoder.is_between_frames() || messages.is_empty() || !bytes.is_empty());
    Ok(messages)
}

fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanoseconds)| Time { seconds, nanoseconds })
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(1..=255_u8, 1..40).prop_filter("a name", |name| crate::entry::is_name(name))
}

fn entry() -> impl Strategy<Value = Entry> {
    let numbers = (0..0o10000_u32, any::<u32>(), any::<u32>(), 0..=FILE_BYTES, any::<bool>(), any::<Option<u64>>());
    let xattrs = proptest::collection::btree_map(name(), proptest::collection::vec(any::<u8>(), 0..50), 0..3);
    (name(), 0..7_u8, numbers, time(), (any::<u64>(), any::<u64>(), time()), xattrs).prop_map(
        |(name, kind, (mode, user, group, size, sparse, link_group), modified, (device, inode, changed), xattrs)| {
            let kinds =
                [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Character, Kind::Block];
            let kind = kinds[usize::from(kind)];
            let file = kind == Kind::File;
            Entry {
                mode,
                user,
                group,
                modified,
                size: if file { size } else { 0 },
                stored: (file && sparse).then_some(size / 2),
                identity: if kind == Kind::Directory {
                    Identity::default()
                } else {
                    Identity { device, inode, changed }
                },
                link_group: link_group.filter(|_| kind != Kind::Directory),
                target: if kind == Kind::Symlink { name.clone() } else { Vec::new() },
                device: if kind.is_device() { (user, group) } else { (0, 0) },
                xattrs: xattrs.into_iter().collect(),
                ..Entry::plain(&name, kind)
            }
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let path = || proptest::collection::vec(name(), 0..4).prop_map(|names| names.join(&b'/'));
    prop_oneof![
        (0..u64::MAX / 2, path(), any::<bool>(), any::<bool>(), proptest::collection::vec(entry(), 0..5)).prop_map(
            |(first, directory, complete, more, entries)| Message::List(List {
                first,
                directory,
                complete,
                more,
                entries
            })
        ),
        (any::<u64>(), any::<u64>()).prop_map(|(entries, errors)| Message::Listed { entries, errors }),
        (path(), any::<bool>()).prop_map(|(directory, beneath)| Message::Unlisted { directory, beneath }),
        any::<u64>().prop_map(|sequence| Message::Acknowledge { sequence }),
        (proptest::collection::vec(any::<u64>(), 0..9), any::<bool>())
            .prop_map(|(ids, last)| Message::Visible { ids, last }),
        (any::<u64>(), 0..(1_u64 << 40), proptest::collection::vec(any::<[u8; 32]>(), 0..=BASIS_HASHES), any::<bool>())
            .prop_map(|(id, first, hashes, last)| Message::Basis(Basis { id, first, hashes, last })),
        any::<u64>().prop_map(|count| Message::Removed { count }),
        path().prop_map(|path| Message::Made { path }),
        path().prop_map(|path| Message::Item { letters: b">f.st......".to_vec(), path }),
        (path(), any::<[u8; 32]>()).prop_map(|(path, hash)| Message::Hashed { path, hash }),
        (any::<u64>(), any::<u64>()).prop_map(|(sequence, id)| Message::Identical { sequence, id }),
        (any::<u64>(), any::<u64>()).prop_map(|(sequence, id)| Message::Differs { sequence, id }),
        (any::<u64>(), any::<u64>()).prop_map(|(sequence, id)| Message::Same {
            sequence,
            id,
            run: Run { first: 7, count: 2 }
        }),
        proptest::collection::btree_set(0..1000_u64, 0..9).prop_map(|ids| Message::Answer(Answer {
            through: 1000,
            wanted: ids
                .into_iter()
                .map(|id| Wanted {
                    id,
                    have: vec![Run { first: id, count: 3 }],
                    compare: id % 2 == 0,
                    same_size: id % 3 == 0,
                })
                .collect(),
        })),
        (path(), 0..ProblemKind::ALL.len()).prop_map(|(path, kind)| Message::Problem(Problem {
            kind: ProblemKind::ALL[kind],
            path,
            text: "no".to_owned()
        })),
        (any::<u64>(), any::<[u8; 32]>(), proptest::collection::vec((any::<u64>(), 0..100_u32), 0..9)).prop_map(
            |(sequence, hash, files)| {
                let files: Vec<Packed> = files.into_iter().map(|(id, length)| Packed { id, length }).collect();
                let length = files.iter().map(|file| file.length as usize).sum();
                Message::Pack(Pack { sequence, hash, files, compressed: false, payload: Payload::new(vec![7; length]) })
            }
        ),
        (any::<u64>(), any::<u64>(), any::<[u8; 32]>(), 0..2000_u32).prop_map(|(sequence, id, hash, length)| {
            Message::Block(Block {
                sequence,
                id,
                index: 5,
                hash,
                length,
                segments: Vec::new(),
                compressed: false,
                payload: Payload::new(vec![9; length as usize]),
            })
        }),
        Just(Message::Holes { sequence: 9, id: 4, run: Run { first: 1, count: 1 << 20 } }),
        Just(Message::Account { account: Account { files: 3, sync_us: u64::MAX, ..Account::default() }, last: true }),
        (proptest::collection::vec(path(), 0..5), any::<bool>()).prop_map(|(mut paths, more)| {
            paths.iter_mut().step_by(2).for_each(|path| path.push(b'/'));
            Message::Paths { paths, more }
        }),
        proptest::collection::vec(any::<u8>(), 0..50).prop_map(Message::Way),
        Just(Message::Switch),
        any::<u64>().prop_map(|bytes_per_s| Message::Limit { bytes_per_s }),
        any::<u64>().prop_map(|records| Message::Finish { records }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_however_it_is_cut(
        messages in proptest::collection::vec(message(), 1..6),
        pieces in proptest::collection::vec(1..3000_usize, 1..8),
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(frame).collect();
        prop_assert_eq!(decode(&bytes, &pieces).unwrap(), messages);
    }

    /// As the fuzz target `copy`, for machines without a fuzzer; `PROPTEST_CASES=1000000` makes it as thorough.
    #[test]
    fn any_body_of_any_kind_is_refused_or_gives_a_message_within_the_bounds(
        kind in 0..40_u8,
        // Small numbers are counts, lengths and flags that make sense.
        body in proptest::collection::vec(prop_oneof![3 => 0..4_u8, 1 => any::<u8>()], 0..120),
    ) {
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend_from_slice(&body);
        for message in decode(&bytes, &[7, 4096]).unwrap_or_default() {
            prop_assert_eq!(decode(&frame(&message), &[4096]).unwrap(), vec![message]);
        }
        if let Some(contents) = crate::receiver::journal::parse(&bytes) {
            prop_assert!(contents.whole_bytes <= bytes.len());
        }
    }

    #[test]
    fn a_changed_byte_is_refused_or_gives_a_message_within_the_bounds(
        message in message(), at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let mut bytes = frame(&message);
        let at = at.index(bytes.len());
        bytes[at] = value;
        for message in decode(&bytes, &[4096]).unwrap_or_default() {
            // Whatever is accepted is what an honest sender could have written.
            prop_assert_eq!(decode(&frame(&message), &[4096]).unwrap(), vec![message]);
        }
    }
}

fn list(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let entries = vec![Entry { name: name.to_vec(), ..Entry::plain(b"x", Kind::File) }];
    frame(&Message::List(List { first: 0, directory: directory.to_vec(), complete: true, more: false, entries }))
}

#[test]
fn names_that_lead_outside_do_not_pass() {
    assert!(decode(&list(b"a", b"b"), &[100]).is_ok());
    for (directory, name) in [
        (&b"a"[..], &b".."[..]),
        (b"a", b"b/c"),
        (b"a", b""),
        (b"..", b"b"),
        (b"/etc", b"b"),
        (b"a//b", b"c"),
        (b"", b""),
    ] {
        assert!(decode(&list(directory, name), &[100]).is_err(), "{directory:?} {name:?}");
    }
}

#[test]
fn a_claimed_length_takes_no_memory() {
    let mut decoder = Decoder::new();
    decoder.space().copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 2]);
    assert_eq!(decoder.filled(5), Err(WireError::TooLong { kind: 2, length: 0xffff_ffff }));
    let mut decoder = Decoder::new();
    decoder.space().copy_from_slice(&[1, 0, 0, 0, 99]);
    assert_eq!(decoder.filled(5), Err(WireError::UnknownKind(99)));
}

#[test]
fn blocks_cover_a_file() {
    for size in [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, HUGE_BYTES, HUGE_BYTES + 1] {
        let count = blocks(size);
        assert_eq!((0..count.min(3)).map(|index| block_len(size, index)).sum::<u64>(), size.min(3 * block_bytes(size)));
        assert_eq!(block_len(size, count), 0);
    }
    assert_eq!(block_len(100, u64::MAX), 0);
}

#[test]
fn what_a_message_may_count_has_its_own_bound() {
    let visible = |count| frame(&Message::Visible { ids: vec![0; count], last: false });
    let wanted = |count: usize| {
        let wanted = |id| Wanted { id, have: Vec::new(), compare: false, same_size: false };
        frame(&Message::Answer(Answer { through: u64::MAX, wanted: (0..count as u64).map(wanted).collect() }))
    };
    for (frame, most) in [(&visible as &dyn Fn(usize) -> Vec<u8>, VISIBLE_IDS), (&wanted, LIST_ENTRIES)] {
        assert!(decode(&frame(most), &[usize::MAX]).is_ok());
        assert!(decode(&frame(most + 1), &[usize::MAX]).is_err());
    }
}
