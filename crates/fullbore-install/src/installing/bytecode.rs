//! Compiles Python modules on all cores before dpkg configures their packages one by one.
//!
//! The postinst of a package runs `py3compile -p PACKAGE`. fullbore runs this for several packages in parallel as soon
//! as they are unpacked, and the postinst then finds its files up to date. Without this the postinst writes the same
//! files.

use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;

use rustix::fs::FileType;

use super::log::Log;
use crate::inside::RootCommands;
use crate::root::Root;
use crate::unpack::UnpackedPackage;

/// The compiler and its interpreter, relative to the root.
const COMPILER: &str = "usr/bin/py3compile";
const INTERPRETER: &str = "usr/bin/python3";

/// Minimum size of the modules of a package, in bytes: starting Python takes as long as compiling 100 to 200 kB.
const WORTH_BYTES: u64 = 256 << 10;

/// Maximum number of lines of a file list. The largest packages of Debian have 100,000.
const LINES_MAX: usize = 200_000;

/// Compiles the modules of these packages on all cores. Failures are ignored: the postinst repeats them.
pub(crate) fn compile(inside: &RootCommands<'_>, log: &Log, packages: &[UnpackedPackage]) {
    let Ok(root) = &Root::open(inside.root()) else { return };
    if root.leads_to(COMPILER) != Some(FileType::RegularFile) || root.kind(INTERPRETER).is_none() {
        return;
    }
    let mut wanted: Vec<(u64, String)> = packages.iter().filter_map(|package| wanted(root, package)).collect();
    wanted.retain(|(bytes, _)| *bytes >= WORTH_BYTES);
    if wanted.len() < 2 {
        return;
    }
    // The last one, the largest, is taken first.
    wanted.sort();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(wanted.len());
    let wanted = Mutex::new(wanted);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = wanted.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    let Some((_, package)) = next else { break };
                    let mut command = inside.script(Path::new("/").join(COMPILER));
                    // Modules that the compiler imports belong to other packages.
                    command.args(["-p", &package]).env("PYTHONDONTWRITEBYTECODE", "1");
                    let _ = log.run(&mut command, "py3compile");
                }
            });
        }
    });
}

/// Size of the modules in bytes, and the name of the package in the call of py3compile; `None` if the postinst calls
/// it in another way.
fn wanted(root: &Root, package: &UnpackedPackage) -> Option<(u64, String)> {
    let labels = [package.name.clone(), format!("{}:{}", package.name, package.architecture)];
    let info = |label: &String, kind: &str| {
        let content = root.read(&format!("var/lib/dpkg/info/{label}.{kind}")).ok()??;
        String::from_utf8(content).ok()
    };
    let (label, list) = labels.iter().find_map(|label| Some((label, info(label, "list")?)))?;
    let script = info(label, "postinst")?;
    let name = compiled(&script)?;
    let modules = list.lines().take(LINES_MAX).filter(|line| line.ends_with(".py"));
    Some((modules.filter_map(|path| root.size_bytes(path)).sum(), name.to_owned()))
}

/// Package of a line `py3compile -p PACKAGE`, if it is the only line with py3compile.
fn compiled(script: &str) -> Option<&str> {
    let mut lines = script.lines().map(str::trim).filter(|line| line.starts_with("py3compile "));
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let name = line.strip_prefix("py3compile -p ")?.trim();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "+-.:".contains(c);
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plain_call_is_done_ahead() {
        let script = "#!/bin/sh\nif command -v py3compile >/dev/null 2>&1; then\n\tpy3compile -p python3-scipy:amd64 \nfi\n\
                      if command -v pypy3compile >/dev/null 2>&1; then\n\tpypy3compile -p python3-scipy:amd64  || true\nfi\n";
        assert_eq!(compiled(script), Some("python3-scipy:amd64"));
        assert_eq!(compiled("py3compile -p python3-minimal /usr/share/python3/"), None);
        assert_eq!(compiled("py3compile -p x\npy3compile -p x /usr/share/x"), None);
        assert_eq!(compiled("true"), None);
    }
}
