//! LZ4 frames, read up to their end mark.
//!
//! lz4_flex treats an end of input between two blocks as the end of the frame, and stops after one frame. To detect
//! truncated files, the input is watched here: a frame is complete only once its end mark was read. As with `lz4 -d`,
//! consecutive frames are one file. Blocks have at most 4 MiB, which limits the memory. Frames of the legacy kind
//! (blocks of 8 MiB, no end mark) are refused.

use std::io::{self, BufRead, Read};

use lz4_flex::frame::FrameDecoder;

pub(super) struct Lz4Decoder<R: BufRead> {
    frames: FrameDecoder<Watched<R>>,
    within_frame: bool,
}

impl<R: BufRead> Lz4Decoder<R> {
    pub(super) fn new(input: R) -> Self {
        let input = Watched { input, ended: false };
        // A file has at least one frame, so an empty file is truncated.
        Lz4Decoder { frames: FrameDecoder::new(input), within_frame: true }
    }

    pub(super) fn into_inner(self) -> R {
        self.frames.into_inner().input
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within_frame {
                if self.frames.get_mut().input.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                self.within_frame = true;
            }
            let count = self.frames.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            if self.frames.get_ref().ended {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "LZ4 frame without an end"));
            }
            self.within_frame = false;
        }
    }
}

/// Input that records whether a read met its end.
struct Watched<R> {
    input: R,
    ended: bool,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.ended |= count == 0 && !buffer.is_empty();
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn lz4(options: &[&str], content: &[u8]) -> Vec<u8> {
        let child = Command::new("lz4").args(options).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("lz4 does not run: apt-get install lz4");
        let mut input = child.stdin.take().expect("piped");
        let content = content.to_vec();
        let writer = std::thread::spawn(move || input.write_all(&content));
        let output = child.wait_with_output().expect("it ends");
        writer.join().expect("no panic").expect("it reads");
        output.stdout
    }

    fn read(file: &[u8]) -> io::Result<Vec<u8>> {
        let mut decoder = Lz4Decoder::new(file);
        let (mut out, mut buffer) = (Vec::new(), [0; 7001]);
        loop {
            match decoder.read(&mut buffer)? {
                0 => return Ok(out),
                count => out.extend_from_slice(&buffer[..count]),
            }
        }
    }

    #[test]
    fn whole_frames_of_the_lz4_program_are_read_and_cut_ones_refused() {
        let content: Vec<u8> =
            (0..40_000).flat_map(|i: u32| format!("line {}\n", i % 7919 * 31).into_bytes()).collect();
        for options in
            [&["-c"][..], &["-c", "-B4", "-BD", "-BX"], &["-c", "--content-size", "-9"], &["-c", "--no-frame-crc"]]
        {
            let file = lz4(options, &content);
            assert_eq!(read(&file).expect("whole"), content, "{options:?}");
            assert_eq!(read(&[&file[..], &file[..]].concat()).expect("two frames").len(), 2 * content.len());
            for cut in (0..file.len()).step_by(file.len() / 50).chain([1, 4, 5, 6, 7, 8, file.len() - 4]) {
                assert!(read(&file[..cut]).is_err(), "{options:?} cut to {cut} of {} bytes", file.len());
            }
        }
    }
}
