//! What the demonstrations share: their archive, and the verification of a mirror of it.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use crate::archive::{Archive, ArchiveBuilder, ArchiveFile, SuiteSpec};
use crate::verify;

/// Suites that are mirrored.
pub const SUITES: &[&str] = &["trixie", "trixie-updates"];
/// Their components.
pub const COMPONENTS: &[&str] = &["main", "contrib"];
/// Their architectures.
pub const ARCHITECTURES: &[&str] = &["amd64", "all", "source"];

/// Prints a heading.
pub fn title(text: &str) {
    println!("\n== {text}\n");
}

/// Makes a signed archive in three states, in `directory/archive`.
///
/// # Errors
/// The directory cannot be written, or gpg does not sign.
pub fn make_archive(directory: &Path, megabytes: u64) -> Result<Archive, Box<dyn Error>> {
    let start = Instant::now();
    let archive = ArchiveBuilder::new(directory.join("archive"))
        .suites(vec![SuiteSpec::main("trixie", "stable"), SuiteSpec::updates("trixie-updates", "stable-updates")])
        .sources(220)
        .pool_bytes(megabytes * 1_000_000)
        .largest_file_bytes(megabytes * 1_000_000 / 10)
        .states(3)
        .churn(0.06)
        .build()?;
    println!(
        "A signed archive of {} files in three states, made in {:.1} s.",
        archive.state(1).select(|_| true).len(),
        start.elapsed().as_secs_f64()
    );
    Ok(archive)
}

/// The files of a state that a mirror of [`SUITES`] has, by path.
pub fn selection(archive: &Archive, state: usize) -> BTreeMap<&str, &ArchiveFile> {
    archive.state(state).selection(SUITES, COMPONENTS, ARCHITECTURES)
}

/// Reads every file of a mirror and compares it with what the archive's maker knows.
///
/// # Errors
/// A file is missing, wrong, or left over.
pub fn verify(archive: &Archive, state: usize, mirror: &Path) -> Result<(), Box<dyn Error>> {
    let wanted = selection(archive, state);
    let mut problems = verify::files(mirror, &wanted);
    for suite in SUITES {
        problems.extend(verify::suite(mirror, archive.state(state), suite));
    }
    problems.extend(verify::leftovers(mirror));
    if problems.is_empty() {
        let bytes: u64 = wanted.values().map(|file| file.size).sum();
        println!(
            "\nVerified apart from fullbore: {} files, {:.1} MB, all SHA-256 right.",
            wanted.len(),
            bytes as f64 / 1e6
        );
        return Ok(());
    }
    for problem in problems.iter().take(20) {
        eprintln!("{problem}");
    }
    Err(format!("{} files of the mirror are not as they should be", problems.len()).into())
}
