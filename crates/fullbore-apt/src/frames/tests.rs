//! Frames and their tables, and files that lie about them.

use std::io::{Read as _, Write as _};

use fullbore_debian::compression::Reader;
use proptest::prelude::*;

use super::*;

const FORMS: [Form; 4] = [Form::Gz, Form::Xz, Form::Zst, Form::Lz4];

/// Lines that compress about as well as an index does, and some that do not.
fn text(lines: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut text = Vec::new();
    for line in 0..lines {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        writeln!(text, "usr/share/doc/package-{}/file-{:x} section/{line}", state >> 52, state >> 40).expect("memory");
    }
    text
}

fn write(form: Form, frames: &[&[u8]]) -> Vec<u8> {
    let mut encoder = Encoder::new(form, Level::Fast).expect("memory").expect("a form of frames");
    let mut container = Container::new(form);
    let mut file = container.head().to_vec();
    for text in frames {
        let before = file.len();
        let frame = encoder.encode(text, &mut file).expect("memory");
        assert_eq!(frame.size as usize, file.len() - before);
        container.add(frame);
    }
    file.extend_from_slice(&container.tail());
    file
}

fn layout(form: Form, content: &[u8]) -> Option<Layout> {
    let mut file = tempfile::tempfile().expect("a directory for temporaries");
    file.write_all(content).expect("written");
    Layout::of(&file, form).expect("read")
}

/// Reads frame by frame; none where the layout or a frame is not as we write it.
fn by_frames(form: Form, content: &[u8]) -> Option<Vec<u8>> {
    let layout = layout(form, content)?;
    let mut decoder = Decoder::new(form).expect("memory").expect("a form of frames");
    let (mut out, mut buffer, mut at) = (Vec::new(), Buffer::default(), layout.start as usize);
    for frame in &layout.frames {
        let end = at + frame.size as usize;
        decoder.decode(frame, &content[at..end], &mut buffer).ok()?;
        out.extend_from_slice(&buffer);
        at = end;
    }
    Some(out)
}

fn from_beginning(form: Form, content: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    Reader::open(form, content, 1 << 30)?.read_to_end(&mut out)?;
    Ok(out)
}

#[test]
fn frames_are_found_and_read_alone_and_from_the_beginning() {
    let content = text(12_000, 7);
    let noise: Vec<u8> = (0..FRAME_BYTES_MAX as u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
    let frames: Vec<&[u8]> = content.chunks(FRAME_BYTES).chain([&noise[..], b"end"]).collect();
    let whole = frames.concat();
    for form in FORMS {
        // Nothing comes of a frame without text in the midst of others.
        let with_empty = write(form, &[frames[0], b"", frames[1]]);
        assert_eq!(by_frames(form, &with_empty).expect("ours"), frames[..2].concat(), "{form}");
        let file = write(form, &frames);
        let layout = layout(form, &file).expect("ours");
        assert_eq!(layout.frames.len(), frames.len(), "{form}");
        for (frame, text) in layout.frames.iter().zip(&frames) {
            assert!(frame.plain.is_none_or(|plain| plain as usize == text.len()), "{form}");
            assert!((frame.size as usize) < text.len() + FRAME_OVERHEAD_BYTES, "{form}");
        }
        assert_eq!(by_frames(form, &file).expect("ours"), whole, "{form}");
        assert_eq!(from_beginning(form, &file).expect("a file of this form"), whole, "{form}");
    }
}

#[test]
fn files_without_text_are_read_as_empty() {
    for form in FORMS {
        let frames: &[&[u8]] = if Container::new(form).needs_a_frame() { &[b""] } else { &[] };
        let file = write(form, frames);
        assert_eq!(by_frames(form, &file), Some(Vec::new()), "{form}");
        assert_eq!(from_beginning(form, &file).expect("a file of this form"), b"", "{form}");
    }
}

#[test]
fn files_of_others_have_no_layout() {
    let content = text(20_000, 3);
    for form in FORMS {
        let mut file = Vec::new();
        match form {
            Form::Gz => {
                let mut encoder = flate2::write::GzEncoder::new(&mut file, flate2::Compression::fast());
                encoder.write_all(&content).expect("memory");
                encoder.finish().expect("memory");
            }
            Form::Xz => {
                let mut encoder = liblzma::write::XzEncoder::new(&mut file, 0);
                encoder.write_all(&content).expect("memory");
                encoder.finish().expect("memory");
            }
            Form::Zst => file = zstd::encode_all(&content[..], 1).expect("memory"),
            _ => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(&mut file);
                encoder.write_all(&content).expect("memory");
                encoder.finish().expect("memory");
            }
        }
        assert_eq!(layout(form, &file), None, "{form}");
        assert_eq!(layout(form, b""), None, "{form}");
    }
}

/// More blocks than their table may say, or fewer, or others.
#[test]
fn tables_that_lie_give_no_wrong_text() {
    let (one, two) = (text(4_000, 1), text(4_000, 2));
    for form in [Form::Gz, Form::Zst, Form::Xz] {
        let honest = write(form, &[&one, &two]);
        let found = layout(form, &honest).expect("ours");
        // As a table that says of both frames together that they are one.
        let joined = Frame {
            size: found.frames.iter().map(|frame| frame.size).sum(),
            plain: Some((one.len() + two.len()) as u32),
            padding: found.frames[1].padding,
        };
        let body = &honest[found.start as usize..found.start as usize + joined.size as usize];
        let mut decoder = Decoder::new(form).expect("memory").expect("a form of frames");
        let mut buffer = Buffer::default();
        match decoder.decode(&joined, body, &mut buffer) {
            Ok(()) => assert_eq!(*buffer, *[&one[..], &two].concat(), "{form}"),
            Err(_) => assert_ne!(form, Form::Zst, "two frames of zstd in one call are both read"),
        }
        // And one that gives a frame too little or too much text.
        for plain in [0, one.len() - 1, one.len() + 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1] {
            let frame = Frame { plain: Some(plain as u32), ..found.frames[0] };
            let body = &honest[found.start as usize..found.start as usize + frame.size as usize];
            assert!(decoder.decode(&frame, body, &mut buffer).is_err(), "{form}: {plain}");
        }
    }
}

fn change() -> impl Strategy<Value = (prop::sample::Index, u8, usize)> {
    // What, and how many bytes there are to be cut out or doubled.
    (any::<prop::sample::Index>(), any::<u8>(), prop_oneof![Just(0), 1..40_usize])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever is done to a file: by its frames comes what comes from its beginning, or nothing.
    #[test]
    fn damaged_files_give_the_same_or_nothing(
        form in prop::sample::select(&FORMS[..]),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let content = text(300, 5);
        let mut file = write(form, &[&content[..5_000], &content[5_000..5_007], b"", &content[5_007..]]);
        for (at, byte, length) in changes {
            let at = at.index(file.len());
            match (byte % 4, length) {
                (_, 0) => file[at] = byte,
                (0, _) => drop(file.drain(at..(at + length).min(file.len()))),
                (1, _) => file.truncate(at.max(1)),
                _ => {
                    let part = file[at..(at + length).min(file.len())].to_vec();
                    file.splice(at..at, part);
                }
            }
        }
        if let Some(text) = by_frames(form, &file) {
            prop_assert_eq!(from_beginning(form, &file).expect("readable by frames"), text);
        }
    }

    #[test]
    fn any_bytes_are_taken_or_left(form in prop::sample::select(&FORMS[..]), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = by_frames(form, &bytes);
        // Behind a good beginning, and before a good end.
        let good = write(form, &[b"text\n"]);
        let _ = by_frames(form, &[&good[..], &bytes].concat());
        let _ = by_frames(form, &[&bytes, &good[..]].concat());
    }
}
