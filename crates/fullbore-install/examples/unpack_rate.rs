//! The unpacker alone, and the floor that it is measured against: `bench/unpack` runs both.
//!
//! ```text
//! unpack_rate unpack THREADS ROOT DEB...    as `fullbore bootstrap` unpacks; preinst scripts are not run
//! unpack_rate floor DIRECTORY DEB...        one thread: decode, make directories, open, write, close; no
//!                                           hash, no owner, mode or time, no renames, no database
//! ```

use std::collections::HashSet;
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use fullbore_debian::deb::{Proof, data};
use fullbore_debian::tar::{Entry, Kind, Reader};
use fullbore_engine::durability::Durability;
use fullbore_engine::stage::Ledger;
use fullbore_install::unpack::{Archive, Options, Root, Scripts, examine, unpack};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(|argument| &argument[..]).collect();
    match &words[..] {
        ["unpack", threads, root, debs @ ..] => ours(threads.parse()?, Path::new(root), debs),
        ["floor", directory, debs @ ..] => floor(Path::new(directory), debs),
        _ => Err("unpack THREADS ROOT DEB... | floor DIRECTORY DEB...".into()),
    }
}

fn ours(threads: usize, path: &Path, debs: &[&str]) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    fs::create_dir_all(path.join("var/lib/dpkg/info"))?;
    fs::write(path.join("var/lib/dpkg/status"), "")?;
    let root = Root::open(path)?;
    let mut archives = Vec::new();
    for deb in debs {
        let content = fs::metadata(deb)?.len();
        let archive = Archive::open(Path::new(deb))?;
        // With the hash known beforehand, as from an index.
        let sha256 = fs::read_to_string(format!("{deb}.sha256")).ok();
        archives.push(match sha256 {
            Some(text) => {
                archive.expecting(content, fullbore_engine::digest::Sha256::from_hex(text.trim().as_bytes())?)
            }
            None => archive,
        });
    }
    let examined = examine(&root, archives)?;
    for refused in &examined.refused {
        eprintln!("refused: {}", refused.refusal);
    }
    let opened = start.elapsed();
    let ledger = Ledger::new();
    let options = Options {
        threads,
        ledger: Some(&ledger),
        durability: Durability::None,
        scripts: Scripts::Later,
        ..Options::default()
    };
    let unpacked = unpack(&root, &examined.batch, options)?;
    for refused in &unpacked.refused {
        eprintln!("refused: {refused}");
    }
    println!(
        "{} packages, {} paths, {} bytes, opened {:.3} s, all {:.3} s",
        unpacked.packages.len(),
        unpacked.paths,
        unpacked.plain_bytes,
        opened.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn floor(directory: &Path, debs: &[&str]) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut bytes = 0;
    let mut made = HashSet::new();
    for deb in debs {
        let archive = Archive::open(Path::new(deb))?;
        let mut file = File::open(deb)?;
        file.seek(SeekFrom::Start(archive.data().offset))?;
        let mut reader =
            Reader::new(BufReader::with_capacity(256 << 10, data(file, archive.data(), 1, Proof::Checksums)?));
        let mut entry = Entry::default();
        while reader.next_entry(&mut entry)? {
            let path = directory.join(PathBuf::from(String::from_utf8_lossy(&entry.path).into_owned()));
            match entry.kind {
                // The other process may have made it.
                Kind::Directory if made.insert(path.clone()) => drop(fs::create_dir(&path)),
                Kind::File => {
                    let mut file = File::create(&path)?;
                    while let Some(chunk) = reader.chunk()? {
                        let count = file.write(chunk.bytes)?;
                        reader.consume(count);
                    }
                }
                Kind::Symlink => {
                    let _ = std::os::unix::fs::symlink(String::from_utf8_lossy(&entry.link).into_owned(), &path);
                }
                Kind::HardLink => {
                    let target = directory.join(String::from_utf8_lossy(&entry.link).into_owned());
                    let _ = fs::hard_link(target, &path);
                }
                _ => {}
            }
        }
        bytes += reader.offset();
    }
    println!("{} packages, {bytes} bytes, {:.3} s", debs.len(), start.elapsed().as_secs_f64());
    Ok(())
}
