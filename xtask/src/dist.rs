//! `cargo xtask dist`: makes all files of a release, the same bytes from the same commit.
//!
//! Programs, packages and the source tarball depend on the commit and on the versions of compilers and tools, and not on
//! the clone's path, the user, the time or the umask: every packer sets the modes of its files.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};

use environment::Environment;
use target::Target;
use tools::Tools;

mod binaries;
mod deb;
mod environment;
mod sbom;
mod source;
mod sums;
mod target;
mod tools;
mod udeb;

#[derive(Debug, Args)]
pub struct DistArguments {
    /// Directory for the files [default: target/dist]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Make only this kind of file (may be repeated); files of other kinds stay
    #[arg(long, value_name = "KIND")]
    only: Vec<Kind>,
    /// Build only for this architecture (may be repeated)
    #[arg(long, value_name = "ARCHITECTURE")]
    target: Vec<Target>,
}

#[derive(Debug, Args)]
pub struct StaticArguments {
    /// Architecture [default: that of this machine]
    #[arg(long, value_name = "ARCHITECTURE")]
    target: Option<Target>,
}

/// A kind of files of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Binaries,
    Deb,
    Udeb,
    Source,
    Sbom,
    Ci,
}

/// What all kinds need.
struct Run {
    environment: Environment,
    tools: Tools,
    output: PathBuf,
    version: String,
    maintainer: String,
}

impl Run {
    fn new(root: &Path, output: Option<PathBuf>) -> io::Result<Run> {
        let environment = Environment::new(root)?;
        let output = match output {
            Some(directory) => std::path::absolute(directory)?,
            None => environment.target_directory.join("dist"),
        };
        let workspace = manifest(&environment.root.join("Cargo.toml"))?;
        let package = manifest(&environment.root.join("crates/fullbore/Cargo.toml"))?;
        Ok(Run {
            tools: Tools::new(&environment.target_directory),
            version: value(&workspace, &["workspace", "package", "version"])?,
            maintainer: value(&package, &["package", "metadata", "deb", "maintainer"])?,
            environment,
            output,
        })
    }
}

/// Files of `packaging/ci` that jobs fetch beside the program.
const CI_FILES: [&str; 2] = ["apt-setup.sh", "gitlab.yml"];

fn copy_ci_file(run: &Run, name: &str) -> io::Result<String> {
    fs::copy(run.environment.root.join("packaging/ci").join(name), run.output.join(name))?;
    Ok(name.to_owned())
}

/// Makes the files and their checksums.
pub fn run(root: &Path, arguments: DistArguments) -> io::Result<()> {
    let run = Run::new(root, arguments.output)?;
    let is_whole = arguments.only.is_empty() && arguments.target.is_empty();
    let targets = if arguments.target.is_empty() { Target::ALL.to_vec() } else { arguments.target };
    let wants = |kind| arguments.only.is_empty() || arguments.only.contains(&kind);
    warn_of_changes(&run)?;
    fs::create_dir_all(&run.output)?;
    let mut made = BTreeSet::new();
    let mut make = |build: &dyn Fn() -> io::Result<String>| -> io::Result<()> {
        let began = Instant::now();
        let name = build()?;
        let bytes = fs::metadata(run.output.join(&name))?.len();
        println!("{name}: {bytes} bytes, {} s", began.elapsed().as_secs());
        made.insert(name);
        Ok(())
    };
    // What fails early comes first: programs take most of the time.
    if wants(Kind::Sbom) {
        make(&|| sbom::build(&run))?;
    }
    if wants(Kind::Source) {
        make(&|| source::build(&run))?;
    }
    if wants(Kind::Ci) {
        for name in CI_FILES {
            make(&|| copy_ci_file(&run, name))?;
        }
    }
    for target in targets {
        if wants(Kind::Binaries) {
            make(&|| binaries::publish(&run, target))?;
        }
        if wants(Kind::Deb) {
            make(&|| deb::build(&run, target))?;
        }
        if wants(Kind::Udeb) {
            make(&|| udeb::build(&run, target))?;
        }
    }
    for name in sums::listed(&run.output)? {
        if !run.output.join(&name).exists() {
            continue;
        }
        if !is_whole {
            made.insert(name);
        } else if !made.contains(&name) {
            // From an older version: a release must not contain it.
            fs::remove_file(run.output.join(&name))?;
        }
    }
    sums::write(&run.output, &made)?;
    println!("{}", run.output.join(sums::NAME).display());
    Ok(())
}

/// Builds the static program. Its path is the last line of output.
pub fn build_static(root: &Path, arguments: StaticArguments) -> io::Result<()> {
    let target = arguments.target.or_else(Target::of_this_machine).ok_or_else(|| {
        io::Error::other(format!("{}: releases have no such architecture; use --target", std::env::consts::ARCH))
    })?;
    let run = Run::new(root, None)?;
    println!("{}", binaries::build(&run, target)?.display());
    Ok(())
}

/// Builds the Debian package of this machine's architecture, or of others.
pub fn build_deb(root: &Path, mut arguments: DistArguments) -> io::Result<()> {
    arguments.only = vec![Kind::Deb];
    if arguments.target.is_empty() {
        arguments.target.extend(Target::of_this_machine());
    }
    run(root, arguments)
}

/// The source tarball holds the commit; programs hold what is in the directory.
fn warn_of_changes(run: &Run) -> io::Result<()> {
    if !run.environment.root.join(".git").exists() {
        return Ok(());
    }
    let mut command = run.environment.command("git");
    let changes = crate::command::output(command.args(["status", "--porcelain", "--untracked-files=no"]))?;
    if !changes.is_empty() {
        eprintln!("warning: these files have changes without a commit; do not publish the result\n{changes}");
    }
    Ok(())
}

fn manifest(path: &Path) -> io::Result<toml::Table> {
    fs::read_to_string(path)?.parse().map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

fn value(manifest: &toml::Table, keys: &[&str]) -> io::Result<String> {
    let (first, rest) = keys.split_first().expect("the callers name keys");
    let found = rest.iter().try_fold(manifest.get(*first), |table, key| Some(table?.get(*key)));
    match found.flatten().and_then(|value| value.as_str()) {
        Some(text) => Ok(text.to_owned()),
        None => Err(io::Error::other(format!("Cargo.toml has no {}", keys.join(".")))),
    }
}
