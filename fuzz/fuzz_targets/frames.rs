//! Compressed files in frames: whatever their tables say, by frames comes what comes from the
//! beginning, or nothing.

#![no_main]

use std::fs::File;
use std::io::{Read, Write};

use fullbore_apt::frames::{Buffer, Container, Decoder, Encoder, Layout, Level};
use fullbore_debian::compression::{Form, Reader};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};

const FORMS: [Form; 4] = [Form::Gz, Form::Xz, Form::Zst, Form::Lz4];
const LIMIT_BYTES: u64 = 64 << 20;

/// A file of ours, of these texts.
fn ours(form: Form, texts: &[&[u8]]) -> Vec<u8> {
    let mut encoder = Encoder::new(form, Level::Fast).expect("memory").expect("a form of frames");
    let mut container = Container::new(form);
    let mut file = container.head().to_vec();
    for text in texts {
        container.add(encoder.encode(text, &mut file).expect("memory"));
    }
    file.extend_from_slice(&container.tail());
    file
}

fn by_frames(form: Form, content: &[u8]) -> Option<Vec<u8>> {
    let mut file = File::from(memfd_create("kept", MemfdFlags::CLOEXEC).expect("memory"));
    file.write_all(content).expect("memory");
    let layout = Layout::of(&file, form).expect("memory")?;
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

fuzz_target!(|input: (u8, Vec<&[u8]>, Vec<(u16, u8)>, &[u8])| {
    let (form, texts, changes, raw) = input;
    let form = FORMS[usize::from(form) % FORMS.len()];
    let mut file = if texts.is_empty() { raw.to_vec() } else { ours(form, &texts) };
    if changes.is_empty() && !texts.is_empty() {
        assert_eq!(by_frames(form, &file).expect("ours"), texts.concat());
    }
    for (at, value) in changes {
        let place = usize::from(at) % file.len().max(1);
        match file.get_mut(place) {
            Some(byte) => *byte = value,
            None => file.extend_from_slice(raw),
        }
    }
    if let Some(text) = by_frames(form, &file) {
        let mut whole = Vec::new();
        Reader::open(form, &file[..], LIMIT_BYTES)
            .and_then(|mut reader| reader.read_to_end(&mut whole))
            .expect("readable by frames");
        assert_eq!(whole, text);
    }
});
