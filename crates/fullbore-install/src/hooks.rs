//! Hooks: commands of the user between the steps of a bootstrap, as in mmdebstrap.
//!
//! A hook is a program with the root's directory as its argument, or a shell snippet with the directory as `$1`. Both
//! run outside of the root, except snippets that are to run in a chroot. Snippets that start with `upload`, `download`, `copy-in`, `copy-out`, `tar-in`, `tar-out`,
//! `sync-in` or `sync-out` move files in and out.

pub mod protocol;
pub mod tar_filter;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root::within;

/// Point of a bootstrap at which hooks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The root has directories and sources, and no package.
    Setup,
    /// The Essential packages are unpacked and not configured.
    Extract,
    /// The Essential packages are configured.
    Essential,
    /// All packages are configured.
    Customize,
}

impl Moment {
    /// Name of the moment, as in `--setup-hook`.
    pub fn name(self) -> &'static str {
        match self {
            Moment::Setup => "setup",
            Moment::Extract => "extract",
            Moment::Essential => "essential",
            Moment::Customize => "customize",
        }
    }

    /// All moments, in the order of a run.
    pub const ALL: [Moment; 4] = [Moment::Setup, Moment::Extract, Moment::Essential, Moment::Customize];
}

/// Place in which a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Outside of the root, on the host.
    Outside,
    /// In a chroot in the root.
    Chrooted,
}

/// A hook.
///
/// ```
/// use fullbore_install::hooks::{Form, Hook, Moment, Place};
///
/// let script = "copy-in motd /etc".to_owned();
/// let hook = Hook { moment: Moment::Customize, place: Place::Outside, script };
/// assert_eq!(hook.form(), Form::Moving("copy-in", vec!["motd".to_owned(), "/etc".to_owned()]));
/// assert!(hook.check().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// Moment of the bootstrap at which the hook runs.
    pub moment: Moment,
    /// Whether the hook runs in the root or outside.
    pub place: Place,
    /// Path of a program, or a shell snippet.
    pub script: String,
}

/// Form of a hook, which determines how it is run.
#[derive(Debug, PartialEq, Eq)]
pub enum Form<'a> {
    /// A program, with the root as its argument.
    Program(&'a str),
    /// A snippet for `sh -c`, with the root as `$1`.
    Snippet(&'a str),
    /// A command that moves files: its word and its arguments.
    Moving(&'a str, Vec<String>),
    /// A snippet for `sh -c` in the root.
    Chrooted(&'a str),
}

/// Creates the commands of hooks.
pub trait Starter {
    /// Command for a program outside of the root.
    fn outside(&self, program: &str) -> Command;
    /// Command for a program in the root.
    fn inside(&self, program: &str) -> Command;
}

/// Owner of files that a hook copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// The owner of the original.
    Preserved,
    /// Root: in a user namespace other owners appear as nobody, and root is the user outside of it.
    Root,
}

/// Options of tar for archives without times of the current run.
pub const PLAIN_TAR: [&str; 4] = [
    "--numeric-owner",
    "--xattrs",
    "--format=pax",
    "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
];

/// First words of commands that move files.
const MOVING: [&str; 8] = ["copy-in", "copy-out", "tar-in", "tar-out", "upload", "download", "sync-in", "sync-out"];

impl Hook {
    /// Kind of the hook: a command that moves files; a program, if there is one or the text has no special character
    /// of the shell; otherwise a snippet.
    pub fn form(&self) -> Form<'_> {
        if self.place == Place::Chrooted {
            return Form::Chrooted(&self.script);
        }
        if let Some((word, rest)) = self.script.split_once(' ')
            && MOVING.contains(&word)
        {
            return Form::Moving(word, words(rest));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
        let is_program =
            fs::metadata(&self.script).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        if is_program || self.script.bytes().all(is_plain) {
            Form::Program(&self.script)
        } else {
            Form::Snippet(&self.script)
        }
    }

    /// Checks the arguments of commands that move files.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if an argument is missing or superfluous.
    pub fn check(&self) -> io::Result<()> {
        match self.form() {
            Form::Moving(word, arguments) => paths(word, &arguments).map(|_| ()),
            Form::Program(_) | Form::Snippet(_) | Form::Chrooted(_) => Ok(()),
        }
    }

    /// Commands of the hook, in order.
    ///
    /// # Errors
    /// The errors of [`Hook::check`], and `ELOOP` if a path of the root leads through a loop of links.
    pub fn commands(&self, root: &Path, owners: Ownership, starter: &dyn Starter) -> io::Result<Vec<Command>> {
        match self.form() {
            Form::Program(program) => {
                // env starts a script without `#!` by the shell, as mmdebstrap does.
                let mut command = starter.outside("env");
                command.arg(program).arg(root);
                Ok(vec![command])
            }
            Form::Snippet(text) => {
                let mut command = starter.outside("sh");
                command.args(["-c", text, "exec"]).arg(root);
                Ok(vec![command])
            }
            Form::Chrooted(text) => {
                let mut command = starter.inside("sh");
                command.args(["-c", text]);
                Ok(vec![command])
            }
            Form::Moving(word, arguments) => {
                moving(word, &arguments, root, owners, &|program| starter.outside(program))
            }
        }
    }
}

/// Hooks of a directory, and warnings about its other files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OfDirectory {
    /// Programs whose names start with the name of a moment, sorted by name.
    pub hooks: Vec<Hook>,
    /// Warnings about files that look like hooks and are not.
    pub warnings: Vec<String>,
}

/// Finds the hooks of a directory.
///
/// # Errors
/// The directory does not exist or cannot be read.
pub fn of_directory(directory: &Path) -> io::Result<OfDirectory> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.sort();
    let mut found = OfDirectory::default();
    for file in files {
        let Some(status) = fs::metadata(&file).ok().filter(fs::Metadata::is_file) else { continue };
        let (Some(path), Some(name)) = (file.to_str(), file.file_name().and_then(|name| name.to_str())) else {
            continue;
        };
        let is_program = status.permissions().mode() & 0o111 != 0;
        match Moment::ALL.into_iter().find(|moment| name.starts_with(moment.name())) {
            Some(moment) if is_program => {
                found.hooks.push(Hook { moment, place: Place::Outside, script: path.to_owned() });
            }
            Some(_) => found.warnings.push(format!("{path}: named like a hook, but not executable")),
            None if is_program => found.warnings.push(format!(
                "{path}: not a hook, because its name does not begin with setup, extract, essential or customize"
            )),
            None => {}
        }
    }
    if found.hooks.is_empty() {
        found.warnings.push(format!("{}: no executable hook in it", directory.display()));
    }
    Ok(found)
}

/// Splits arguments into the destination and the sources.
fn paths<'a>(word: &str, arguments: &'a [String]) -> io::Result<(&'a String, &'a [String])> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{word}: {what}"));
    let Some((last, others)) = arguments.split_last().filter(|(_, others)| !others.is_empty()) else {
        return Err(wrong("needs a source and a destination"));
    };
    if !word.starts_with("copy-") && others.len() != 1 {
        return Err(wrong("takes two paths"));
    }
    Ok((last, others))
}

fn moving(
    word: &str,
    arguments: &[String],
    root: &Path,
    owners: Ownership,
    start: &dyn Fn(&str) -> Command,
) -> io::Result<Vec<Command>> {
    let (last, others) = paths(word, arguments)?;
    let inside = |path: &str| {
        let found = within(root, Path::new(path))?;
        // A path with a slash at its end must be a directory.
        Ok::<_, io::Error>(if path.ends_with('/') { found.join("") } else { found })
    };
    // A link is copied as a link.
    let itself = |path: &str| match (Path::new(path).parent(), Path::new(path).file_name()) {
        (Some(parent), Some(name)) => Ok(within(root, parent)?.join(name)),
        _ => inside(path),
    };
    let archive = || {
        let mut copy = start("cp");
        copy.arg("--archive").args((owners == Ownership::Root).then_some("--no-preserve=ownership"));
        copy
    };
    let is_in = matches!(word, "upload" | "copy-in" | "sync-in");
    let ends = |other: &String| {
        Ok::<_, io::Error>(match word {
            _ if is_in => (PathBuf::from(other), inside(last)?),
            "copy-out" => (itself(other)?, PathBuf::from(last)),
            _ => (inside(other)?, PathBuf::from(last)),
        })
    };
    let mut commands = Vec::new();
    match word {
        "upload" | "download" => {
            let (from, to) = ends(&others[0])?;
            let mut copy = start("cp");
            copy.args(["--no-preserve=all", "--dereference", "--"]).arg(from).arg(to);
            commands.push(copy);
        }
        "copy-in" | "copy-out" => {
            for other in others {
                let (from, to) = ends(other)?;
                let mut copy = archive();
                copy.arg("--").arg(from).arg(to);
                commands.push(copy);
            }
        }
        "sync-in" | "sync-out" => {
            let (from, to) = ends(&others[0])?;
            let mut copy = archive();
            copy.args(["--update", "--"]).arg(from.join(".")).arg(to);
            commands.push(copy);
        }
        "tar-in" => {
            let mut tar = start("tar");
            tar.args(["--xattrs", "--xattrs-include=*", "--numeric-owner", "--extract", "--file"]);
            tar.arg(&others[0]).arg("--directory").arg(inside(last)?);
            commands.push(tar);
        }
        _ => {
            let from = itself(&others[0])?;
            let (Some(directory), Some(name)) = (from.parent(), from.file_name()) else {
                let what = format!("{word}: needs a path inside the root");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            };
            let mut tar = start("tar");
            tar.args(PLAIN_TAR).args(["--create", "--file"]).arg(last);
            tar.arg("--directory").arg(directory).arg(name);
            commands.push(tar);
        }
    }
    Ok(commands)
}

/// Splits words like a shell, with quotes and backslashes and without expansion.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (_, '\\') => word.get_or_insert_default().extend(characters.next()),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::process::Stdio;

    use super::*;

    fn hook(script: &str) -> Hook {
        Hook { moment: Moment::Customize, place: Place::Outside, script: script.to_owned() }
    }

    struct Plain;

    impl Starter for Plain {
        fn outside(&self, program: &str) -> Command {
            Command::new(program)
        }

        fn inside(&self, program: &str) -> Command {
            Command::new(program)
        }
    }

    #[test]
    fn a_hook_is_a_program_a_snippet_or_a_move() {
        assert_eq!(hook("/bin/true").form(), Form::Program("/bin/true"));
        assert_eq!(hook("./not-there.sh").form(), Form::Program("./not-there.sh"));
        assert_eq!(hook("chroot \"$1\" true").form(), Form::Snippet("chroot \"$1\" true"));
        let moved = vec!["a b".to_owned(), "/etc".to_owned()];
        assert_eq!(hook("copy-in 'a b' /etc").form(), Form::Moving("copy-in", moved));
    }

    #[test]
    fn what_moves_files_says_which_and_where_to() {
        for right in ["copy-in a b /etc", "tar-in a.tar /", "upload a /b", "true", "copy-in"] {
            assert!(hook(right).check().is_ok(), "{right}");
        }
        for wrong in ["copy-in a", "tar-in a.tar", "upload a b /c", "sync-out /a"] {
            assert!(hook(wrong).check().is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_are_split_as_by_a_shell() {
        assert_eq!(words(r#"a "b c" 'd\e' f\ g ''"#), ["a", "b c", r"d\e", "f g", ""]);
    }

    #[test]
    fn files_are_uploaded_into_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (root, file) = (dir.path().join("root"), dir.path().join("file"));
        fs::create_dir(&root).unwrap();
        fs::write(&file, "text").unwrap();
        let hook = hook(&format!("upload {} /copy", file.display()));
        run(&hook, &root, Ownership::Preserved);
        assert_eq!(fs::read_to_string(root.join("copy")).unwrap(), "text");
        let alone = ["x".to_owned()];
        assert!(
            super::moving("upload", &alone, &root, Ownership::Preserved, &|program| Command::new(program)).is_err()
        );
    }

    fn run(hook: &Hook, root: &Path, owners: Ownership) {
        for mut command in hook.commands(root, owners, &Plain).unwrap() {
            assert!(command.status().unwrap().success(), "{command:?}");
        }
    }

    #[test]
    fn links_of_the_root_lead_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (root, host) = (dir.path().join("root"), dir.path().join("host"));
        // The same path inside and outside, to which links of the root lead.
        let inner = root.join(host.strip_prefix("/").unwrap());
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir(&host).unwrap();
        fs::write(host.join("file"), "host's").unwrap();
        fs::write(inner.join("file"), "root's").unwrap();
        let links = [("var/run", ""), ("bin/editor", "file"), ("bin/far", "../../../../../../../../../file")];
        for (name, target) in links {
            let link = root.join(name);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let target = if target.starts_with('.') { PathBuf::from(target) } else { host.join(target) };
            std::os::unix::fs::symlink(target, link).unwrap();
        }
        let file = dir.path().join("file");
        run(&hook(&format!("download /bin/editor {}", file.display())), &root, Ownership::Preserved);
        assert_eq!(fs::read_to_string(&file).unwrap(), "root's");
        fs::write(&file, "new").unwrap();
        for (to, there) in
            [("/var/run/new", inner.join("new")), ("bin/editor", inner.join("file")), ("/bin/far", root.join("file"))]
        {
            run(&hook(&format!("upload {} {to}", file.display())), &root, Ownership::Preserved);
            assert_eq!(fs::read_to_string(there).unwrap(), "new", "{to}");
        }
        run(&hook(&format!("copy-in {} /var/run", file.display())), &root, Ownership::Preserved);
        assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "new");
        assert_eq!(fs::read_dir(&host).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(host.join("file")).unwrap(), "host's");
        let out = dir.path().join("out");
        run(&hook(&format!("copy-out /bin/editor {}", out.display())), &root, Ownership::Preserved);
        assert_eq!(fs::read_link(out).unwrap(), host.join("file"));
        let hook = hook(&format!("upload {} /none/", file.display()));
        for mut command in hook.commands(&root, Ownership::Preserved, &Plain).unwrap() {
            assert!(!command.stderr(Stdio::null()).status().unwrap().success());
        }
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        assert!(within(&root, Path::new("/loop/x")).is_err());
    }

    #[test]
    fn in_a_user_namespace_copies_are_roots() {
        assert!(rustix::process::geteuid().is_root(), "gives files away: run as root (script/test does)");
        let dir = tempfile::tempdir().unwrap();
        let (root, file) = (dir.path().join("root"), dir.path().join("file"));
        fs::create_dir(&root).unwrap();
        fs::write(&file, "text").unwrap();
        std::os::unix::fs::chown(&file, Some(1000), Some(1000)).unwrap();
        for (owners, expected) in [(Ownership::Preserved, (1000, 1000)), (Ownership::Root, (0, 0))] {
            run(&hook(&format!("copy-in {} /", file.display())), &root, owners);
            let copied = fs::metadata(root.join("file")).unwrap();
            assert_eq!((copied.uid(), copied.gid()), expected);
            fs::remove_file(root.join("file")).unwrap();
        }
    }

    #[test]
    fn a_directory_has_hooks_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("setup10.sh", 0o755), ("customize", 0o755), ("setup20", 0o644), ("other", 0o755)] {
            let path = dir.path().join(name);
            fs::write(&path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let found = of_directory(dir.path()).unwrap();
        let moments: Vec<_> = found.hooks.iter().map(|hook| hook.moment).collect();
        assert_eq!(moments, [Moment::Customize, Moment::Setup]);
        assert!(found.warnings.len() == 2 && found.warnings[0].contains("other: not a hook"), "{:?}", found.warnings);
        let none = tempfile::tempdir().unwrap();
        assert_eq!(of_directory(none.path()).unwrap().warnings.len(), 1);
    }
}
