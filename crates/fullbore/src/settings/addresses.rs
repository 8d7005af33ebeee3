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

/// Schemes of other stores, and other spellings of S3.
const OTHER_STORES: [&str; 16] = [
    "s3a", "s3n", "gs", "b2", "r2", "oss", "minio", "swift", "ceph", "az", "azure", "abfs", "abfss", "wasb", "wasbs",
    "s3",
];

/// Stores that rclone and others write as `s3:BUCKET/KEY`. Other names of stores are likelier to be hosts.
const STORES_LIKE_HOSTS: [&str; 2] = ["s3", "gs"];

/// Whether a scheme, in lower case, is that of an object store.
pub(super) fn is_of_a_store(scheme: &str) -> bool {
    OTHER_STORES.contains(&scheme)
}

/// The error for a path argument of `put` or `get` that is an address of another store, or a misspelt one of S3.
pub(super) fn not_of_a_store(text: &OsStr) -> Option<CommandError> {
    let shown = text.to_string_lossy();
    let wrong =
        |what: &dyn Display, hint: &dyn Display| Some(CommandError::usage(format_args!("{shown}: {what}")).hint(hint));
    if shown.starts_with(SCHEME) {
        return None;
    }
    if let Some((scheme, rest)) = scheme(text) {
        let other = |store: &str, endpoint: &str| {
            wrong(
                &format_args!("not an address of an S3 store; {store} has an interface for S3"),
                &format_args!("use {SCHEME}{rest} with --endpoint {endpoint}"),
            )
        };
        return match scheme.as_str() {
            "s3" | "s3a" | "s3n" => {
                wrong(&format_args!("addresses begin with {SCHEME}"), &format_args!("use {SCHEME}{rest}"))
            }
            "gs" => other("Google Cloud Storage", "https://storage.googleapis.com"),
            "b2" => other("Backblaze B2", "https://s3.REGION.backblazeb2.com"),
            "r2" => other("Cloudflare R2", "https://ACCOUNT.r2.cloudflarestorage.com"),
            "oss" => other("Alibaba Cloud OSS", "https://oss-REGION.aliyuncs.com"),
            "minio" | "swift" | "ceph" => other("this store", "URL"),
            "az" | "azure" | "abfs" | "abfss" | "wasb" | "wasbs" => wrong(
                &"Azure Blob Storage has no interface for S3",
                &"use a store that speaks S3, or a Tahoe-LAFS grid",
            ),
            "http" | "https" => wrong(
                &"an object is named by its bucket, not by a URL",
                &format_args!("use {SCHEME}BUCKET/KEY, with --endpoint URL for a store other than Amazon's"),
            ),
            "file" => {
                wrong(&"a file is named by its path", &format_args!("use {}", rest.trim_start_matches("localhost")))
            }
            _ => wrong(&"not an address of a store", &format_args!("use {SCHEME}BUCKET/KEY")),
        };
    }
    // `s3:/bucket` and `s3:bucket`: one or both slashes forgotten. A file of such a name is written ./s3:name.
    let rest =
        shown.get(..3).filter(|start| start.eq_ignore_ascii_case("s3:")).map(|_| shown[3..].trim_start_matches('/'));
    match rest {
        Some(rest) => wrong(&format_args!("addresses begin with {SCHEME}"), &format_args!("use {SCHEME}{rest}")),
        None => None,
    }
}

/// The error for a source of `put` into a bucket that is an address: it sends local files.
pub(super) fn not_a_local_source(text: &OsStr) -> Option<CommandError> {
    scheme(text)?;
    let shown = text.to_string_lossy();
    let error = CommandError::usage(format_args!("{shown}: an address, and put sends local files and directories"));
    Some(if shown.starts_with(SCHEME) {
        error.hint(format_args!("fetch it first with `fullbore get -o FILE {shown}`"))
    } else {
        error.hint("download it first, or write ./ before a path that looks like an address")
    })
}

/// The error for a destination of `get` that is an address: it writes local files.
pub(super) fn not_a_local_output(text: &OsStr) -> Option<CommandError> {
    scheme(text)?;
    Some(
        CommandError::usage(format_args!("-o {}: an address, and get writes local files", text.to_string_lossy()))
            .hint("name a local file or directory with -o, and upload it with `fullbore put`"),
    )
}

/// The error for a place of a mirror that is neither a local directory nor a bucket: a value of `--to` or `--state`, or
/// an argument of `check`. `hint` says where an address of the web belongs.
pub(super) fn not_of_a_mirror(text: &OsStr, hint: &dyn Display) -> Option<CommandError> {
    let shown = text.to_string_lossy();
    if shown.starts_with(SCHEME) {
        return None;
    }
    let wrong = |what: &str, hint: &dyn Display| CommandError::usage(format_args!("{shown}: {what}")).hint(hint);
    let of_another_machine = || {
        wrong(
            "another machine, and a local directory or a bucket is expected",
            &"run fullbore on that machine, or copy the tree with `fullbore copy`",
        )
    };
    match scheme(text) {
        Some((scheme, _)) => match scheme.as_str() {
            "ssh" | "sftp" | "scp" | "rsync" => Some(of_another_machine()),
            other if other == "file" || is_of_a_store(other) => not_of_a_store(text),
            _ => Some(wrong("an address, and a directory or a bucket is expected", hint)),
        },
        None => not_of_a_store(text).or_else(|| {
            // A local directory may be called so; one that is missing is likelier to be another machine's.
            (is_remote(text) && !Path::new(text).exists())
                .then(|| of_another_machine().hint(format_args!("write ./{shown} for a local directory of this name")))
        }),
    }
}

/// The bucket and key of an address such as `s3:BUCKET/KEY`, as rclone writes it. `s3:./PATH` is a path at a host.
fn store_like_a_host(text: &str) -> Option<(&str, &str)> {
    let (host, rest) = text.split_once(':')?;
    let is_store = STORES_LIKE_HOSTS.iter().any(|store| host.eq_ignore_ascii_case(store));
    // `s3://` has a scheme, and `s3::` names an rsync daemon; both have errors of their own.
    (is_store && !["//", ":", "./"].iter().any(|start| rest.starts_with(start))).then_some((host, rest))
}

/// The error for an argument of `copy` or `probe` that is an address: they take paths and `HOST:PATH`.
pub(super) fn not_of_a_tree(text: &OsStr) -> Option<CommandError> {
    const NO_STORE: &str = "an object store, and copy moves trees between file systems";
    let shown = text.to_string_lossy();
    let wrong = |what: &str, hint: &dyn Display| Some(CommandError::usage(format_args!("{shown}: {what}")).hint(hint));
    let instead = |key: &str| format!("use `fullbore put SRC {SCHEME}{key}` or `fullbore get {SCHEME}{key}`");
    if let Some((host, rest)) = store_like_a_host(&shown) {
        let key = rest.trim_start_matches('/');
        let key = if key.is_empty() { "BUCKET/KEY" } else { key };
        return wrong(NO_STORE, &instead(key))
            .map(|error| error.hint(format_args!("write USER@{shown} for an ssh host with the name {host}")));
    }
    let (scheme, rest) = scheme(text)?;
    match scheme.as_str() {
        // The daemon of rsync has an error of its own.
        "rsync" => None,
        "s3" | "gs" | "az" | "b2" | "r2" => wrong(NO_STORE, &instead(&rest)),
        "http" | "https" | "ftp" => wrong(
            "a URL, and copy moves trees between file systems",
            &"use `fullbore mirror --from URL` for a Debian archive",
        ),
        "ssh" | "sftp" | "scp" => {
            let (host, path) = rest.split_once('/').unwrap_or((&rest, ""));
            wrong("another machine is named as HOST:PATH", &format_args!("use {host}:/{path}"))
        }
        "file" => wrong("a file is named by its path", &format_args!("use {}", rest.trim_start_matches("localhost"))),
        _ => wrong("not a path, and not HOST:PATH", &"write ./ before a path that looks like an address"),
    }
}

/// The error for an argument that is an address where a name of a section or a directory is expected.
pub(super) fn not_a_name(text: &OsStr, what: &str, hint: &dyn Display) -> Option<CommandError> {
    scheme(text)?;
    Some(CommandError::usage(format_args!("{}: an address, and {what} is expected", text.to_string_lossy())).hint(hint))
}

/// The error for the path of a file where a name of a section is expected.
pub(super) fn file_for_name(text: &str) -> Option<CommandError> {
    if !text.contains('/') && !text.ends_with(".toml") {
        return None;
    }
    let error =
        CommandError::usage(format_args!("{text}: a path, and the name of a mirror in the settings file is expected"));
    Some(if text.ends_with(".list") || text.ends_with(".sources") {
        error.hint(format_args!("use --sources {text}, or `fullbore convert {text}` for a file of apt-mirror"))
    } else if text.ends_with(".toml") {
        error.hint(format_args!("use --config {text}"))
    } else {
        error.hint(format_args!("use --to {text} for the directory, and --from URL for the archive"))
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
        for text in ["me@s3:/x", "me@s3:x", "s3:./x", "s3::module", "s3.example.org:/x"] {
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
    }

    #[test]
    fn text_that_is_no_utf_8_is_read_as_well() {
        assert!(not_of_a_store(OsStr::from_bytes(b"\xff://x")).is_none());
        assert!(not_of_a_store(OsStr::from_bytes(b"s3\xc3://x")).is_none());
        assert!(not_of_a_store(OsStr::from_bytes(b"\xc3\xa4\xc3\xa4")).is_none());
    }
}
