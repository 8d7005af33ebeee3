//! The source tarball: the commit, and all crates that it depends on, so that it builds without network.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use liblzma::stream::{Check, MtStreamBuilder};
use liblzma::write::XzEncoder;

use super::{Run, environment};
use crate::command::run;

/// Settings of the compressor. With the size of blocks fixed, the number of threads does not change the result.
const PRESET: u32 = 6;
const BLOCK_BYTES: u64 = 24 << 20;
const THREADS_MAX: u32 = 8;

/// What cargo needs to know about the directory. `cargo vendor` prints the same, but nothing with --quiet.
const SETTINGS: &str = r#"
# Crates come from the directory vendor; no network is needed.
[source.crates-io]
replace-with = "vendored-sources"

[source.vendored-sources]
directory = "vendor"
"#;

/// Packs the commit and its crates into the output directory. Returns the tarball's name.
pub fn build(run_of: &Run) -> io::Result<String> {
    let environment = &run_of.environment;
    let folder = format!("fullbore-{}", run_of.version);
    let work = environment.target_directory.join("dist-source");
    match fs::remove_dir_all(&work) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir_all(&work)?;
    let archive = work.join("commit.tar");
    let prefix = format!("--prefix={folder}/");
    run(environment.command("git").args(["archive", "--format=tar", &prefix, "--output"]).arg(&archive).arg("HEAD"))?;
    run(Command::new("tar").arg("-C").arg(&work).arg("-xf").arg(&archive))?;
    vendor(run_of, &work.join(&folder))?;
    let name = format!("{folder}-vendored.tar.xz");
    pack(run_of, &work, &folder, &run_of.output.join(&name))?;
    fs::remove_dir_all(&work)?;
    Ok(name)
}

/// Puts the crates into `vendor`, and has cargo use them.
fn vendor(run_of: &Run, tree: &Path) -> io::Result<()> {
    let mut command = run_of.environment.command(environment::cargo());
    command.current_dir(tree).args(["vendor", "--locked", "--quiet", "--versioned-dirs", "vendor"]);
    run(command.stdout(Stdio::null()))?;
    let mut file = File::options().append(true).open(tree.join(".cargo/config.toml"))?;
    file.write_all(SETTINGS.as_bytes())
}

/// Names in order, one time, no owner, modes without the umask: the same tree gives the same bytes.
fn pack(run_of: &Run, work: &Path, folder: &str, into: &Path) -> io::Result<()> {
    let environment = &run_of.environment;
    let mut tar = environment.command("tar");
    tar.current_dir(work)
        .args(["--sort=name", "--format=gnu", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go=u,go-w"])
        .arg(format!("--mtime=@{}", environment.epoch_s))
        .args(["-cf", "-", folder])
        .stdout(Stdio::piped());
    let mut packing = tar.spawn()?;
    let mut entries = packing.stdout.take().expect("its output was asked for as a pipe");
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32).min(THREADS_MAX);
    let stream = MtStreamBuilder::new()
        .preset(PRESET)
        .check(Check::Crc64)
        .block_size(BLOCK_BYTES)
        .threads(threads)
        .encoder()
        .map_err(io::Error::other)?;
    let mut compressor = XzEncoder::new_stream(File::create(into)?, stream);
    io::copy(&mut entries, &mut compressor)?;
    compressor.finish()?;
    match packing.wait()?.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{}: tar failed", into.display()))),
    }
}
