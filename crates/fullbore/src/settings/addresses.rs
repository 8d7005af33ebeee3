//! Addresses at places that do not take them: an error that names the right command, flag or spelling.
//!
//! Where a command takes a path, a name or an address of one kind, people type addresses of another kind: a URL for
//! a directory, `gs://` for S3, a bucket for ssh. Taken as a path or a host, such a word fails later and elsewhere.

use std::ffi::OsStr;
use std::fmt::Display;
use std::path::Path;

use fullbore_copy::run::is_remote;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::scheme;
use fullbore_s3::SCHEME;
use fullbore_wire::url::{public_part, shown};

/// Schemes of other stores, and other spellings of S3.
const OTHER_STORES: [&str; 16] = [
    "s3a", "s3n", "gs", "b2", "r2", "oss", "minio", "swift", "ceph", "az", "azure", "abfs", "abfss", "wasb", "wasbs",
    "s3",
];

/// Stores that rclone and others write as `s3:BUCKET/KEY`. Other names of stores are likelier to be hosts.
const STORES_LIKE_HOSTS: [&str; 2] = ["s3", "gs"];

/// What to use instead of a store without an interface for S3: for `put` and `get`.
const OTHER_TRANSFER: &str = "use a store that speaks S3, or a Tahoe-LAFS grid";
/// The same for a mirror.
const OTHER_MIRROR: &str = "use a local directory, or s3://BUCKET/PREFIX in a store that speaks S3";

/// An address for an error, and the part behind `://` or `s3:` for a hint. Neither holds a password.
struct Shown {
    text: String,
    rest: Option<String>,
}

impl Shown {
    fn new(text: &str) -> Shown {
        let part = public_part(text);
        // `s3:ID:SECRET@BUCKET`: the public part has lost the scheme.
        let rest = part.as_deref().filter(|part| part.contains("://") || !text.contains('@')).and_then(|part| {
            let (_, rest) = part.split_once("://").or_else(|| part.split_once(':'))?;
            Some(rest.to_owned())
        });
        Shown { text: shown(text), rest }
    }

    /// The path of a `file` address.
    fn path(&self) -> String {
        match &self.rest {
            Some(rest) => rest.trim_start_matches("localhost").to_owned(),
            None => "the path alone".to_owned(),
        }
    }

    /// The address of an object in a store that speaks S3.
    fn object(&self) -> String {
        let key = self.rest.as_deref().map(|rest| rest.trim_start_matches('/')).filter(|key| !key.is_empty());
        format!("{SCHEME}{}", key.unwrap_or("BUCKET/KEY"))
    }
}

/// Whether a scheme, in lower case, is that of an object store.
pub(super) fn is_of_a_store(scheme: &str) -> bool {
    OTHER_STORES.contains(&scheme)
}

/// The error for a path argument of `put` or `get` that is an address of another store, or a misspelt one of S3.
pub(super) fn not_of_a_store(text: &OsStr) -> Option<CommandError> {
    of_no_store(text, OTHER_TRANSFER)
}

/// The same for the address of an archive that `mirror` reads.
pub(super) fn not_of_an_archive(text: &OsStr) -> Option<CommandError> {
    of_no_store(text, "use an archive at an http:// or https:// address, or s3://BUCKET/PREFIX")
}

fn of_no_store(text: &OsStr, instead_of_azure: &str) -> Option<CommandError> {
    let written = text.to_string_lossy();
    if written.starts_with(SCHEME) {
        return None;
    }
    let address = Shown::new(&written);
    let (shown, object) = (&address.text, address.object());
    let wrong =
        |what: &dyn Display, hint: &dyn Display| Some(CommandError::usage(format_args!("{shown}: {what}")).hint(hint));
    if let Some((scheme, _)) = scheme(text) {
        let other = |store: &str, endpoint: &str| {
            wrong(
                &format_args!("not an address of an S3 store; {store} has an interface for S3"),
                &format_args!("use {object} with --endpoint {endpoint}"),
            )
        };
        return match scheme.as_str() {
            "s3" | "s3a" | "s3n" => {
                wrong(&format_args!("addresses begin with {SCHEME}"), &format_args!("use {object}"))
            }
            "gs" => other("Google Cloud Storage", "https://storage.googleapis.com"),
            "b2" => other("Backblaze B2", "https://s3.REGION.backblazeb2.com"),
            "r2" => other("Cloudflare R2", "https://ACCOUNT.r2.cloudflarestorage.com"),
            "oss" => other("Alibaba Cloud OSS", "https://oss-REGION.aliyuncs.com"),
            "minio" | "swift" | "ceph" => other("this store", "URL"),
            "az" | "azure" | "abfs" | "abfss" | "wasb" | "wasbs" => {
                wrong(&"Azure Blob Storage has no interface for S3", &instead_of_azure)
            }
            "http" | "https" => wrong(
                &"an object is named by its bucket, not by a URL",
                &format_args!("use {SCHEME}BUCKET/KEY, with --endpoint URL for a store other than Amazon's"),
            ),
            "file" => wrong(&"a file is named by its path", &format_args!("use {}", address.path())),
            _ => wrong(&"not an address of a store", &format_args!("use {SCHEME}BUCKET/KEY")),
        };
    }
    // `s3:/bucket` and `s3:bucket`: one or both slashes forgotten. A file of such a name is written ./s3:name.
    let lacks_slashes = written.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("s3:"));
    match lacks_slashes {
        true => wrong(&format_args!("addresses begin with {SCHEME}"), &format_args!("use {object}")),
        false => None,
    }
}

/// The error for a source of `put` into a bucket that is an address: it sends local files.
pub(super) fn not_a_local_source(text: &OsStr) -> Option<CommandError> {
    scheme(text)?;
    let written = text.to_string_lossy();
    let address = Shown::new(&written);
    let shown = &address.text;
    let error = CommandError::usage(format_args!("{shown}: an address, and put sends local files and directories"));
    Some(if written.starts_with(SCHEME) {
        error.hint(format_args!("fetch it first with `fullbore get -o FILE {}`", address.object()))
    } else {
        error.hint("download it first, or write ./ before a path that looks like an address")
    })
}

/// The error for a destination of `get` that is an address: it writes local files.
pub(super) fn not_a_local_output(text: &OsStr) -> Option<CommandError> {
    scheme(text)?;
    let shown = shown(&text.to_string_lossy());
    Some(
        CommandError::usage(format_args!("-o {shown}: an address, and get writes local files"))
            .hint("name a local file or directory with -o, and upload it with `fullbore put`"),
    )
}

/// The error for a place of a mirror that is neither a local directory nor a bucket: a value of `--to` or `--state`, or
/// an argument of `check`. `hint` says where an address of the web belongs.
pub(super) fn not_of_a_mirror(text: &OsStr, hint: &dyn Display) -> Option<CommandError> {
    no_place_of_a_mirror(text, Path::new(text).exists(), hint)
}

fn no_place_of_a_mirror(text: &OsStr, exists: bool, hint: &dyn Display) -> Option<CommandError> {
    const ELSEWHERE: &str = "run fullbore on that machine, or copy the tree with `fullbore copy`";
    const OF_ANOTHER_MACHINE: &str = "another machine, and a local directory or a bucket is expected";
    let written = text.to_string_lossy();
    if written.starts_with(SCHEME) {
        return None;
    }
    let address = Shown::new(&written);
    let shown = &address.text;
    let wrong = |what: &str, hint: &dyn Display| Some(CommandError::usage(format_args!("{shown}: {what}")).hint(hint));
    if let Some((scheme, _)) = scheme(text) {
        return match scheme.as_str() {
            "ssh" | "sftp" | "scp" | "rsync" => wrong(OF_ANOTHER_MACHINE, &ELSEWHERE),
            other if other == "file" || is_of_a_store(other) => of_no_store(text, OTHER_MIRROR),
            _ => wrong("an address, and a directory or a bucket is expected", hint),
        };
    }
    // A local directory may be called so; one that is missing is likelier to be elsewhere.
    if exists {
        return None;
    }
    let local = match written.contains('@') {
        true => "write ./ before the name of a local directory".to_owned(),
        false => format!("write ./{written} for a local directory of this name"),
    };
    if of_no_store(text, OTHER_MIRROR).is_some() {
        let what = format!("addresses begin with {SCHEME}");
        return wrong(&what, &format_args!("use {}; {local}", address.object()));
    }
    if is_remote(text) {
        return wrong(OF_ANOTHER_MACHINE, &format_args!("{ELSEWHERE}; {local}"));
    }
    None
}

/// The store of an address such as `s3:BUCKET/KEY`, as rclone writes it. `s3:./PATH` is a path at a host.
///
/// `s3:/BUCKET/KEY` is a common slip, `gs:/PATH` is not: it is left to ssh.
fn store_like_a_host(text: &str) -> Option<&str> {
    let (host, rest) = text.split_once(':')?;
    let store = STORES_LIKE_HOSTS.iter().find(|store| host.eq_ignore_ascii_case(store))?;
    // `s3://` has a scheme, and `s3::` names an rsync daemon; both have errors of their own.
    let is_slip = *store == "s3" && (rest.is_empty() || rest.starts_with('/') && !rest.starts_with("//"));
    let bucket = rest.split('/').next().unwrap_or_default();
    let is_bucket = bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    // Credentials may stand before a bucket; ssh would show them.
    let is_place = rest.starts_with(|first: char| first.is_ascii_alphanumeric()) && (is_bucket || rest.contains('@'));
    (is_slip || is_place).then_some(host)
}

/// The error for an argument of `copy` or `probe` that is an address: they take paths and `HOST:PATH`.
pub(super) fn not_of_a_tree(text: &OsStr) -> Option<CommandError> {
    const NO_STORE: &str = "an object store, and copy moves trees between file systems";
    let written = text.to_string_lossy();
    let address = Shown::new(&written);
    let shown = &address.text;
    let wrong = |what: &str, hint: &dyn Display| Some(CommandError::usage(format_args!("{shown}: {what}")).hint(hint));
    let object = address.object();
    let instead = format!("use `fullbore put SRC {object}` or `fullbore get {object}`");
    if let Some(host) = store_like_a_host(&written) {
        let path = if written.contains('@') { "PATH" } else { &written[host.len() + 1..] };
        return wrong(NO_STORE, &instead)
            .map(|error| error.hint(format_args!("write USER@{host}:{path} for an ssh host with the name {host}")));
    }
    let (scheme, rest) = scheme(text)?;
    match scheme.as_str() {
        // The daemon of rsync has an error of its own.
        "rsync" => None,
        "s3" | "gs" | "az" | "b2" | "r2" => wrong(NO_STORE, &instead),
        "http" | "https" | "ftp" => wrong(
            "a URL, and copy moves trees between file systems",
            &"use `fullbore mirror --from URL` for a Debian archive",
        ),
        "ssh" | "sftp" | "scp" => {
            // A user name without a password is no secret, and ssh needs it.
            let (user, _) = rest.split_once('@').unwrap_or_default();
            let is_name = !user.is_empty() && !user.contains([':', '/']);
            let user = if is_name { format!("{user}@") } else { String::new() };
            let place = address.rest.as_deref().unwrap_or("HOST/PATH");
            let (host, path) = place.split_once('/').unwrap_or((place, ""));
            wrong("another machine is named as HOST:PATH", &format_args!("use {user}{host}:/{path}"))
        }
        "file" => wrong("a file is named by its path", &format_args!("use {}", address.path())),
        _ => wrong("not a path, and not HOST:PATH", &"write ./ before a path that looks like an address"),
    }
}

/// The error for an argument that is an address where a name of a section or a directory is expected.
pub(super) fn not_a_name(text: &OsStr, what: &str, hint: &dyn Display) -> Option<CommandError> {
    scheme(text)?;
    let shown = shown(&text.to_string_lossy());
    Some(CommandError::usage(format_args!("{shown}: an address, and {what} is expected")).hint(hint))
}

/// The error for the path of a file where a name of a section is expected.
pub(super) fn file_for_name(text: &str) -> Option<CommandError> {
    if !text.contains('/') && !text.ends_with(".toml") {
        return None;
    }
    // `me:secret@host/debian` looks like a path.
    let shown = if text.contains('@') { "…" } else { text };
    let error =
        CommandError::usage(format_args!("{shown}: a path, and the name of a mirror in the settings file is expected"));
    Some(if text.ends_with(".list") || text.ends_with(".sources") {
        error.hint(format_args!("use --sources {shown}, or `fullbore convert {shown}` for a file of apt-mirror"))
    } else if text.ends_with(".toml") {
        error.hint(format_args!("use --config {shown}"))
    } else {
        error.hint(format_args!("use --to {shown} for the directory, and --from URL for the archive"))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn paths_and_right_addresses_pass() {
        for text in ["x", "./s3:x", "dir/s3:/x", "s3", "s3://bucket/key", "-", "URI:CHK:x"] {
            assert!(not_of_a_store(OsStr::new(text)).is_none(), "{text}");
        }
        for text in ["x", "host:/x", "me@host:x", "./http://x", "rsync://host/module", "s3", "s3/x:y", "./s3:x"] {
            assert!(not_of_a_tree(OsStr::new(text)).is_none(), "{text}");
        }
        for text in [
            "me@s3:/x",
            "me@S3:/srv/x",
            "me@s3:x",
            "s3:./x",
            "s3:./a@b",
            "s3:~/x",
            "s3::module",
            "s3.example.org:/x",
            "gs:/srv",
            "GS:/srv",
            "gs:",
            "gs:../x",
        ] {
            assert!(not_of_a_tree(OsStr::new(text)).is_none(), "{text}: an ssh host");
        }
        for text in ["/srv/m", "m", "./host:/srv", "s3://bucket/prefix", "a/b:c"] {
            assert!(not_of_a_mirror(OsStr::new(text), &"").is_none(), "{text}");
            assert!(text.starts_with("s3") || not_a_local_output(OsStr::new(text)).is_none(), "{text}");
        }
        for text in ["debian", "mirror.debian"] {
            assert!(file_for_name(text).is_none() && not_a_name(OsStr::new(text), "a name", &"").is_none(), "{text}");
        }
    }

    #[test]
    fn a_misspelt_bucket_is_spelt_right_in_the_hint() {
        for text in ["S3://b/k", "s3:/b/k", "s3:b/k", "S3:b/k", "s3a://b/k"] {
            assert_eq!(not_of_a_store(OsStr::new(text)).unwrap().hints, ["use s3://b/k"], "{text}");
        }
        let ssh = not_of_a_tree(OsStr::new("ssh://me@host/srv/x")).unwrap();
        assert_eq!(ssh.hints, ["use me@host:/srv/x"]);
        let file = not_of_a_tree(OsStr::new("file:///srv/x")).unwrap();
        assert_eq!(file.hints, ["use /srv/x"]);
    }

    #[test]
    fn a_bucket_as_rclone_writes_it_is_no_ssh_host() {
        for (text, key) in [
            ("s3:bucket/key", "bucket/key"),
            ("S3:bucket/key", "bucket/key"),
            ("s3:/bucket/key", "bucket/key"),
            ("S3:/srv", "srv"),
            ("gs:bucket/key", "bucket/key"),
            ("s3:", "BUCKET/KEY"),
        ] {
            let hints = not_of_a_tree(OsStr::new(text)).unwrap().hints;
            assert_eq!(hints[0], format!("use `fullbore put SRC s3://{key}` or `fullbore get s3://{key}`"), "{text}");
            assert!(hints[1].starts_with(&format!("write USER@{text} for an ssh host")), "{text}: {hints:?}");
        }
    }

    #[test]
    fn a_place_of_a_mirror_is_a_directory_or_a_bucket() {
        for (text, message, hint) in [
            ("s3:/b/x", "addresses begin with s3://", "use s3://b/x"),
            ("S3://b/x", "addresses begin with s3://", "use s3://b/x"),
            ("gs://b/x", "not an address of an S3 store", "--endpoint https://storage.googleapis.com"),
            ("file:///srv/m", "named by its path", "use /srv/m"),
            ("https://host/debian", "a directory or a bucket is expected", "name it with --from"),
            ("host:/srv/m", "another machine", "fullbore copy"),
            ("ssh://host/srv/m", "another machine", "fullbore copy"),
        ] {
            let error = not_of_a_mirror(OsStr::new(text), &"name it with --from").unwrap();
            assert!(error.message.contains(message), "{text}: {error}");
            assert!(error.hints[0].contains(hint), "{text}: {error}");
        }
        assert!(not_a_local_output(OsStr::new("s3://b/x")).is_some());
        for text in ["s3:mirror", "s3:/b/x", "host:mirror"] {
            let error = not_of_a_mirror(OsStr::new(text), &"").unwrap();
            assert_eq!(error.hints.len(), 1, "{text}: {error}");
            assert!(error.hints[0].contains(&format!("write ./{text} for a local directory")), "{text}: {error}");
        }
        let azure = |error: Option<CommandError>| error.unwrap().hints.remove(0);
        assert!(azure(not_of_a_mirror(OsStr::new("az://b/x"), &"")).starts_with("use a local directory, or s3://"));
        assert!(azure(not_of_a_store(OsStr::new("az://b/x"))).contains("Tahoe-LAFS"));
        assert!(azure(not_of_an_archive(OsStr::new("az://b/x"))).contains("https://"));
    }

    #[test]
    fn an_existing_directory_is_a_path_whatever_its_name() {
        for name in ["s3:mirror", "S3:/b/x", "host:mirror", "me@host:/srv"] {
            assert!(no_place_of_a_mirror(OsStr::new(name), true, &"").is_none(), "{name}");
            assert!(no_place_of_a_mirror(OsStr::new(name), false, &"").is_some(), "{name}");
        }
    }

    #[test]
    fn no_error_shows_a_password() {
        for text in [
            "https://me:secret@h/x",
            "https://me:secret/x@h/x",
            "https://me:x/secret@h/x",
            "s3a://AKIA:secret@b/k",
            "s3a://AKIA:x/secret@b/k",
            "S3://AKIA:x/secret@b/k",
            "minio://AKIA:secret/x@b",
            "s3:AKIA:secret@b",
            "s3:AKIA:secret/x@b",
            "s3:/AKIA:x/secret@b",
            "gs:AKIA:secret@b",
            "file://me:x/secret@h/x",
            "ssh://me:secret@h/x",
            "ssh://me:x/secret@h/x",
            "az://me:secret@h/x",
            "me:secret/x@h",
            "me:x/secret@h",
        ] {
            let word = OsStr::new(text);
            let errors = [
                not_of_a_store(word),
                not_of_an_archive(word),
                not_a_local_source(word),
                not_a_local_output(word),
                not_of_a_mirror(word, &""),
                not_of_a_tree(word),
                not_a_name(word, "a name", &""),
                file_for_name(text),
            ];
            for error in errors.into_iter().flatten() {
                assert!(!error.to_string().contains("secret"), "{text}: {error}");
            }
        }
        let upload = not_a_local_source(OsStr::new("s3://AKIA:x/secret@b/k")).unwrap();
        assert!(!upload.to_string().contains("secret"), "{upload}");
    }

    #[test]
    fn text_that_is_no_utf_8_is_read_as_well() {
        assert!(not_of_a_store(OsStr::from_bytes(b"\xff://x")).is_none());
        assert!(not_of_a_store(OsStr::from_bytes(b"s3\xc3://x")).is_none());
        assert!(not_of_a_store(OsStr::from_bytes(b"\xc3\xa4\xc3\xa4")).is_none());
    }
}
