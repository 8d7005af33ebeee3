//! Follows a Containerfile without an engine: each stage is a directory, and a step runs in it by chroot.
//!
//! It knows the instructions and options that ours use, and refuses all others, so that no line is passed over.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fullbore_testkit::process::clean_command;

use super::packages::well;

/// What a build gave: the last stage's directory, and how its program is called.
pub struct Image {
    pub root: PathBuf,
    entrypoint: Vec<String>,
    environment: Vec<String>,
}

/// A build: its context, its base images by name, its arguments, and where its stages are made.
pub struct Build<'a> {
    pub context: &'a Path,
    pub bases: &'a [(&'a str, &'a Path)],
    pub arguments: &'a [(&'a str, &'a str)],
    pub place: &'a Path,
}

impl Build<'_> {
    /// Follows all lines.
    pub fn run(&self, text: &str) -> Image {
        let (mut variables, mut stages) = (BTreeMap::new(), Vec::<(String, PathBuf)>::new());
        let mut image = Image { root: PathBuf::new(), entrypoint: Vec::new(), environment: Vec::new() };
        for line in logical_lines(text) {
            let (instruction, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let rest = rest.trim();
            match instruction {
                "ARG" => {
                    let (name, value) = rest.split_once('=').unwrap_or((rest, ""));
                    let given = self.arguments.iter().find(|(argument, _)| *argument == name);
                    variables.insert(name.to_owned(), given.map_or(value, |(_, value)| value).to_owned());
                }
                "FROM" => {
                    let words: Vec<String> = rest.split_whitespace().map(|word| expand(word, &variables)).collect();
                    let name = match &words[..] {
                        [_] => String::new(),
                        [_, word, name] if word == "AS" => name.clone(),
                        _ => panic!("{line}"),
                    };
                    let root = self.place.join(format!("stage-{}", stages.len()));
                    self.begin(&words[0], &stages, &root);
                    stages.push((name, root.clone()));
                    image = Image { root, entrypoint: Vec::new(), environment: Vec::new() };
                }
                "COPY" => self.copy(rest, &variables, &stages, &image.root),
                "RUN" => {
                    let arguments = variables.iter().map(|(name, value)| format!("{name}={value}"));
                    image.run_step(rest, &stages, &arguments.collect::<Vec<_>>());
                }
                "ENV" => image.environment.push(rest.to_owned()),
                "ENTRYPOINT" => image.entrypoint = serde_json::from_str(rest).unwrap(),
                "CMD" => drop(serde_json::from_str::<Vec<String>>(rest).unwrap()),
                _ => panic!("no such instruction: {line}"),
            }
        }
        assert!(image.root.exists(), "no stage");
        image
    }

    fn begin(&self, base: &str, stages: &[(String, PathBuf)], root: &Path) {
        if base == "scratch" {
            return fs::create_dir_all(root).unwrap();
        }
        let known = self.bases.iter().map(|(name, path)| (*name, *path));
        let known = known.chain(stages.iter().map(|(name, path)| (name.as_str(), path.as_path())));
        let (_, path) = { known }.find(|(name, _)| *name == base).unwrap_or_else(|| panic!("no image {base}"));
        well(clean_command("cp").arg("-a").arg(path).arg(root));
    }

    fn copy(&self, rest: &str, variables: &BTreeMap<String, String>, stages: &[(String, PathBuf)], root: &Path) {
        let (mut from, mut mode, mut paths) = (self.context.to_owned(), None, Vec::new());
        for word in rest.split_whitespace().map(|word| expand(word, variables)) {
            if let Some(name) = word.strip_prefix("--from=") {
                from = stages.iter().find(|(stage, _)| stage == name).unwrap().1.clone();
            } else if let Some(text) = word.strip_prefix("--chmod=") {
                mode = Some(u32::from_str_radix(text, 8).unwrap());
            } else {
                assert!(!word.starts_with("--"), "{word}");
                paths.push(word);
            }
        }
        let target = paths.pop().unwrap();
        for path in paths {
            let source = from.join(path.trim_start_matches('/'));
            let mut to = root.join(target.trim_start_matches('/'));
            if source.is_dir() {
                // The directory's content, with its links.
                fs::create_dir_all(&to).unwrap();
                well(clean_command("cp").arg("-a").arg(source.join(".")).arg(&to));
                continue;
            }
            if target.ends_with('/') {
                to.push(source.file_name().unwrap());
            }
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(&source, &to).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
            if let Some(mode) = mode {
                fs::set_permissions(&to, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    }
}

/// Mounts what every container has, even if the image has no such directory, and further directories; then runs a
/// command in the root. The image's PATH counts here as well, so chroot is named by its own.
const ENTER: &str = r#"
root=$1; shift
mkdir -p "$root/proc" "$root/dev" "$root/etc"
[ -e "$root/etc/hosts" ] || : >"$root/etc/hosts"
mount --bind /etc/hosts "$root/etc/hosts"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
shift
exec /usr/sbin/chroot "$root" "$@"
"#;

/// A directory that a command sees, and where.
pub type Mount = (PathBuf, String);

impl Image {
    /// A command in a mount namespace and root of its own, with its environment only. The network is this machine's.
    fn inside(&self, mounts: &[Mount], environment: &[String], words: &[&str]) -> Command {
        let mut command = clean_command("timeout");
        command.args(["600", "unshare", "--mount", "--propagation", "private", "env", "--ignore-environment"]);
        command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"]);
        command.args(&self.environment).args(environment).args(["/bin/sh", "-euc", ENTER, "sh"]).arg(&self.root);
        for (from, to) in mounts {
            command.arg(from).arg(to);
        }
        command.arg("--").args(words);
        command
    }

    fn run_step(&self, rest: &str, stages: &[(String, PathBuf)], variables: &[String]) {
        let (mut mounts, mut rest) = (Vec::new(), rest);
        while let Some(after) = rest.strip_prefix("--mount=") {
            let (options, text) = after.split_once(' ').unwrap();
            let option = |name: &str| options.split(',').find_map(|option| option.strip_prefix(&format!("{name}=")));
            let from = option("from").unwrap_or_else(|| panic!("{options}"));
            let stage = stages.iter().find(|(stage, _)| stage == from).unwrap_or_else(|| panic!("no stage {from}"));
            mounts.push((stage.1.clone(), option("target").unwrap().to_owned()));
            rest = text.trim();
        }
        well(&mut self.inside(&mounts, variables, &["sh", "-c", rest]));
        // An engine leaves no mount points either.
        for (_, target) in mounts {
            fs::remove_dir(self.root.join(target.trim_start_matches('/'))).unwrap();
        }
    }

    /// Runs its program with these arguments, as `docker run` does, with directories of this machine as volumes.
    pub fn start(&self, volumes: &[Mount], words: &[&str]) -> Output {
        let entrypoint: Vec<&str> = self.entrypoint.iter().map(String::as_str).collect();
        assert!(!entrypoint.is_empty());
        self.inside(volumes, &[], &[&entrypoint[..], words].concat()).output().unwrap()
    }

    /// Runs any command in it.
    pub fn execute(&self, words: &[&str]) -> Output {
        self.inside(&[], &[], words).output().unwrap()
    }
}

/// Lines without comments, those that end with a backslash joined.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_suffix('\\') {
            Some(part) => lines.last_mut().unwrap().push_str(part),
            None => {
                lines.last_mut().unwrap().push_str(line);
                lines.push(String::new());
            }
        }
    }
    lines.retain(|line| !line.trim().is_empty());
    lines
}

/// `${NAME}` and `$NAME` as a whole word.
fn expand(word: &str, variables: &BTreeMap<String, String>) -> String {
    let mut text = word.to_owned();
    for (name, value) in variables {
        text = text.replace(&format!("${{{name}}}"), value);
    }
    assert!(!text.contains('$'), "{word}");
    text
}
