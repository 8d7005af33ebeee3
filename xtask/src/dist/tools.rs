//! The tools that build releases, with their versions. Other versions may make other bytes, so this is the only place that
//! names versions. The tools are installed below target/tools, once for each version.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;

/// Cross-compiles with zig's C compiler and linker. From PyPI, because wheels need no compiling.
const ZIGBUILD: Wheel = Wheel {
    name: "cargo-zigbuild",
    version: "0.24.1",
    sha256: &[
        "238a1ab54a95053a4eadc34775c81f795a8ad75f80bfed63f3f445f518102375",
        "07c5e3dcddf208500462ec927c556bb306cca2b533b0abe29446bffb63767b85",
    ],
};

/// zig itself: clang, lld and musl for all targets.
const ZIG: Wheel = Wheel {
    name: "ziglang",
    version: "0.15.2",
    sha256: &[
        "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130",
        "edc0aa60ec964a4cf462d40f68d7de242ddf37fd9a80f2afaee6397059463230",
    ],
};

const CARGO_DEB: &str = "3.8.0";

/// A package of PyPI: its version, and the checksums of its wheels for the machines that build releases.
struct Wheel {
    name: &'static str,
    version: &'static str,
    sha256: &'static [&'static str],
}

/// Directories of installed tools, to be put in front of PATH.
pub struct Tools {
    directory: PathBuf,
}

impl Tools {
    pub fn new(target_directory: &Path) -> Tools {
        Tools { directory: target_directory.join("tools") }
    }

    /// Installs cargo-zigbuild and zig, unless they are there. Returns the directory of their programs.
    pub fn zigbuild(&self) -> io::Result<PathBuf> {
        let directory = self.directory.join(format!("zigbuild-{}-{}", ZIGBUILD.version, ZIG.version));
        let complete = directory.join("complete");
        if !complete.exists() {
            eprintln!("installing cargo-zigbuild {} and zig {}", ZIGBUILD.version, ZIG.version);
            fs::create_dir_all(&directory)?;
            let requirements = directory.join("requirements.txt");
            fs::write(&requirements, ZIGBUILD.requirement() + &ZIG.requirement())?;
            let python = Command::new("python3").args(["-m", "venv"]).arg(&directory).status();
            if !python.is_ok_and(|status| status.success()) {
                return Err(io::Error::other(format!(
                    "cannot make a Python environment in {}; install the packages python3 and python3-venv",
                    directory.display()
                )));
            }
            run(Command::new(directory.join("bin/pip"))
                .args(["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--requirement"])
                .arg(&requirements))?;
            // Written last: an interrupted installation starts again.
            fs::write(complete, "")?;
        }
        Ok(directory.join("bin"))
    }

    /// Installs cargo-deb, unless this version is there. Returns the program.
    pub fn cargo_deb(&self) -> io::Result<PathBuf> {
        let directory = self.directory.join(format!("cargo-deb-{CARGO_DEB}"));
        let program = directory.join("bin/cargo-deb");
        if program.exists() {
            return Ok(program);
        }
        // One that is installed already saves minutes of compiling.
        if let Ok(found) = Command::new("cargo-deb").arg("--version").output()
            && String::from_utf8_lossy(&found.stdout).trim().trim_start_matches("cargo-deb ") == CARGO_DEB
        {
            return Ok(PathBuf::from("cargo-deb"));
        }
        eprintln!("installing cargo-deb {CARGO_DEB}");
        run(Command::new(super::environment::cargo())
            .args(["install", "--locked", "--quiet", "cargo-deb", "--version", CARGO_DEB, "--root"])
            .arg(&directory))?;
        Ok(program)
    }
}

impl Wheel {
    /// A line of pip's requirements file.
    fn requirement(&self) -> String {
        let sums: String = self.sha256.iter().map(|sum| format!(" --hash=sha256:{sum}")).collect();
        format!("{}=={}{sums}\n", self.name, self.version)
    }
}
