//! Packages that these tests build, packages of dpkg-deb, and files that are no packages.

use std::io::{Read as _, Write as _};
use std::process::Command;

use super::*;

fn ar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = ar::MAGIC.to_vec();
    for (name, content) in members {
        bytes.extend_from_slice(&ar::header(name, content.len() as u64).expect("fits"));
        bytes.extend_from_slice(content);
        if content.len() % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    bytes
}

/// A tar of one directory `./` and the given files, by the real tar.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, content) in files {
        std::fs::write(directory.path().join(name), content).expect("a file");
    }
    let output = Command::new("tar").arg("-C").arg(directory.path()).args(["-cf", "-", "."]).output();
    output.expect("tar does not run: apt-get install tar").stdout
}

const CONTROL: &[u8] = b"Package: a\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n";

fn read(bytes: &[u8]) -> Result<Package, DebError> {
    Package::read(bytes)
}

#[test]
fn members_are_read_in_their_order_only() {
    let control = tar(&[("control", CONTROL), ("postinst", b"#!/bin/sh\n")]);
    let sound = ar(&[
        ("debian-binary", b"2.0\n"),
        ("_x", b"1"),
        ("control.tar", &control),
        ("_y", b""),
        ("data.tar.zst", b"zz"),
    ]);
    let package = read(&sound).expect("sound");
    assert_eq!(package.control.stanza(), CONTROL);
    assert_eq!(package.control.file("postinst").expect("there").mode & 0o777, 0o644);
    assert_eq!((package.data.bytes, package.data.compression), (2, Compression::Zstd));
    assert_eq!(&sound[package.data.offset as usize..], b"zz");
    for members in [
        &[("debian-binary", &b"2.0\n"[..])][..],
        &[("control.tar", &control[..]), ("debian-binary", b"2.0\n")],
        &[("debian-binary", b"2.0\n"), ("data.tar", b""), ("control.tar", &control)],
        &[("debian-binary", b"2.0\n"), ("control.tar", &control)],
        &[("debian-binary", b"2.0\n"), ("control.tar", &control), ("other", b"")],
        &[("debian-binary", b"2.0\n"), ("control.tar.bz2", &control), ("data.tar", b"")],
        &[("debian-binary", b"2.0\n"), ("control.tar", &control), ("data.tar.rar", b"")],
        &[("debian-binary", b"3.0\n"), ("control.tar", &control), ("data.tar", b"")],
        &[("debian-binary", b"2.0"), ("control.tar", &control), ("data.tar", b"")],
        &[("debian-binary", b"2.0\n"), ("control.tar.gz", &control), ("data.tar", b"")],
    ] {
        assert!(read(&ar(members)).is_err(), "{:?}", members.iter().map(|(name, _)| name).collect::<Vec<_>>());
    }
}

#[test]
fn control_members_are_plain_names() {
    let outer = |control: &[u8]| ar(&[("debian-binary", b"2.0\n"), ("control.tar", control), ("data.tar", b"")]);
    assert!(read(&outer(&tar(&[("control", CONTROL)]))).is_ok());
    let error = read(&outer(&tar(&[("postinst", b"")]))).expect_err("no control");
    assert!(error.to_string().contains("no `control`"), "{error}");
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("control"), CONTROL).expect("a file");
    for name in ["../../etc/evil", "sub/x", "a b", "x:y"] {
        let rename = format!("s,^control,{name},");
        let output = Command::new("tar")
            .arg("-C")
            .arg(directory.path())
            .args(["-P", "-cf", "-", "--transform", &rename, "control"])
            .output()
            .expect("tar does not run: apt-get install tar");
        let error = read(&outer(&output.stdout)).expect_err(name);
        assert!(error.to_string().contains("not a name"), "{name}: {error}");
    }
    std::os::unix::fs::symlink("/etc/passwd", directory.path().join("postinst")).expect("a link");
    let output = Command::new("tar").arg("-C").arg(directory.path()).args(["-cf", "-", "."]).output().expect("tar");
    assert!(read(&outer(&output.stdout)).expect_err("a link").to_string().contains("only regular files"));
}

/// What dpkg-deb builds is read, with every compressor that it has; several xz blocks as well.
#[test]
fn packages_of_dpkg_deb_are_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let tree = directory.path().join("tree");
    std::fs::create_dir_all(tree.join("DEBIAN")).expect("directories");
    std::fs::write(tree.join("DEBIAN/control"), [CONTROL, b"Depends: b\n"].concat()).expect("control");
    let mut state = 1_u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Half of it compresses.
        if state & 0x8000_0000 == 0 { b'a' } else { (state >> 16) as u8 }
    })
    .take(3 << 20)
    .collect();
    std::fs::write(tree.join("file"), &noise).expect("a file");
    for compressor in ["xz", "gzip", "zstd", "none"] {
        let deb = directory.path().join("a.deb");
        let output = Command::new("dpkg-deb")
            .args(["--root-owner-group", &format!("-Z{compressor}"), "-z1", "--build"])
            .args([&tree, &deb])
            .output()
            .expect("dpkg-deb does not run: apt-get install dpkg");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let bytes = std::fs::read(&deb).expect("built");
        let expected = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&deb).output().expect("dpkg-deb").stdout;
        let package = read(&bytes).expect("sound");
        for (threads, proof) in [(1, Proof::Checksums), (1, Proof::HashOfPacked), (2, Proof::Checksums)] {
            let mut plain = Vec::new();
            let mut reader = data(&bytes[package.data.offset as usize..], package.data, threads, proof).expect("opens");
            reader.read_to_end(&mut plain).expect("sound");
            assert!(plain == expected, "{compressor} with {threads} threads");
            let behind = reader.finish().expect("sound");
            assert_eq!(behind.len() as u64, bytes.len() as u64 - package.data.offset - package.data.bytes);
            let cut = &bytes[package.data.offset as usize..][..package.data.bytes as usize - 1];
            let mut reader = data(cut, package.data, threads, proof).expect("opens");
            let read = reader.read_to_end(&mut plain);
            assert!(read.is_err() || reader.finish().is_err(), "{compressor} cut by a byte");
        }
    }
}

#[test]
fn xz_of_several_blocks_is_read_by_any_number_of_threads() {
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
    let stream = liblzma::stream::MtStreamBuilder::new().threads(2).block_size(1 << 20).preset(0).encoder();
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream.expect("an encoder"));
    encoder.write_all(&content).expect("memory");
    let packed = encoder.finish().expect("memory");
    let bytes = packed.len() as u64;
    assert_eq!(blocks_of_xz(&packed[..64], bytes), Some(true));
    let place = DataMember { offset: 0, bytes, compression: Compression::Xz };
    for threads in [1, 2, 4] {
        let mut plain = Vec::new();
        data(&packed[..], place, threads, Proof::Checksums).expect("opens").read_to_end(&mut plain).expect("sound");
        assert!(plain == content, "{threads}");
        let cut = DataMember { bytes: bytes - 20, ..place };
        data(&packed[..], cut, threads, Proof::Checksums).expect("opens").read_to_end(&mut plain).expect_err("cut");
    }
    let single = liblzma::encode_all(&content[..], 0).expect("memory");
    assert_ne!(blocks_of_xz(&single[..64], single.len() as u64), Some(true));
    assert_eq!(blocks_of_xz(b"", 0), None);
}

/// `data.tar.lzma` is what old packages have.
#[test]
fn members_in_lzma_alone_are_read() {
    let content = b"some text ".repeat(1000);
    let options = liblzma::stream::LzmaOptions::new_preset(1).expect("preset");
    let stream = liblzma::stream::Stream::new_lzma_encoder(&options).expect("an encoder");
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(&content).expect("memory");
    let packed = encoder.finish().expect("memory");
    let place = DataMember { offset: 0, bytes: packed.len() as u64, compression: Compression::Lzma };
    let mut plain = Vec::new();
    data(&packed[..], place, 1, Proof::Checksums).expect("opens").read_to_end(&mut plain).expect("sound");
    assert_eq!(plain, content);
}
