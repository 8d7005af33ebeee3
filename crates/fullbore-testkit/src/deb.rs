//! Tiny binary packages that dpkg and apt take: ar around two tar archives (deb(5)).

use std::io;

use crate::compression::Form;

/// Largest payload that is compressed: xz on random bytes gains nothing and costs time,
/// and an uncompressed `data.tar` is as good to dpkg.
const COMPRESS_BELOW: usize = 16 << 10;

/// A `.deb` with the given `control` file and one file `usr/share/PACKAGE/payload`.
/// Times inside are `time_unix_s`, owners root.
pub fn build(package: &str, control: &str, payload: &[u8], time_unix_s: i64) -> io::Result<Vec<u8>> {
    let mut control_tar = Tar::new(time_unix_s);
    control_tar.directory("./");
    control_tar.file("./control", control.as_bytes());
    let mut data_tar = Tar::new(time_unix_s);
    for directory in ["./", "./usr/", "./usr/share/", &format!("./usr/share/{package}/")] {
        data_tar.directory(directory);
    }
    data_tar.file(&format!("./usr/share/{package}/payload"), payload);

    let mut deb = b"!<arch>\n".to_vec();
    member(&mut deb, "debian-binary", b"2.0\n", time_unix_s);
    member(&mut deb, "control.tar.xz", &Form::Xz.compress(&control_tar.finish())?, time_unix_s);
    if payload.len() < COMPRESS_BELOW {
        member(&mut deb, "data.tar.xz", &Form::Xz.compress(&data_tar.finish())?, time_unix_s);
    } else {
        member(&mut deb, "data.tar", &data_tar.finish(), time_unix_s);
    }
    Ok(deb)
}

/// Appends an ar member (ar(5), the common format: 60 bytes of header, even length).
fn member(ar: &mut Vec<u8>, name: &str, bytes: &[u8], time: i64) {
    ar.extend_from_slice(
        format!("{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", bytes.len()).as_bytes(),
    );
    ar.extend_from_slice(bytes);
    if bytes.len() % 2 == 1 {
        ar.push(b'\n');
    }
}

/// A tar archive in memory, ustar format (POSIX.1-1988).
pub struct Tar {
    bytes: Vec<u8>,
    time: i64,
}

/// tar counts in blocks of this length.
const BLOCK_BYTES: usize = 512;

impl Tar {
    /// An empty archive whose members all have the given time.
    pub fn new(time_unix_s: i64) -> Tar {
        Tar { bytes: Vec::new(), time: time_unix_s }
    }

    /// Adds a directory; the name ends with a slash and has at most 99 bytes.
    pub fn directory(&mut self, name: &str) {
        self.header(name, 0o755, 0, b'5');
    }

    /// Adds a file; the name has at most 99 bytes.
    pub fn file(&mut self, name: &str, content: &[u8]) {
        self.header(name, 0o644, content.len(), b'0');
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    }

    /// The archive with its two empty blocks at the end.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK_BYTES, 0);
        self.bytes
    }

    fn header(&mut self, name: &str, mode: u32, size: usize, kind: u8) {
        let mut block = [0u8; BLOCK_BYTES];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &name.as_bytes()[..name.len().min(99)]);
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000\x000000000\x00");
        put(124, format!("{size:011o}").as_bytes());
        put(136, format!("{:011o}", self.time.max(0)).as_bytes());
        put(148, b"        ");
        put(156, &[kind]);
        put(257, b"ustar\x0000root");
        put(297, b"root");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&block);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn dpkg_deb_reads_it() {
        let control = "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: a\n";
        for length in [10, 40_000] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), build("a", control, &vec![7; length], 1_750_000_000).unwrap()).unwrap();
            let output = Command::new("dpkg-deb").arg("--contents").arg(file.path()).output();
            let output = output.expect("dpkg-deb does not run: apt-get install dpkg");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let listing = String::from_utf8_lossy(&output.stdout).to_string();
            assert!(listing.contains("./usr/share/a/payload") && listing.contains(&length.to_string()), "{listing}");
        }
    }
}
