//! Options and commands of other tools that fullbore spells differently, with what to type instead.
//!
//! A newcomer types what rsync, debmirror, apt-mirror, s5cmd, rclone, the AWS tools, mmdebstrap or debootstrap take.
//! Where fullbore has the same under another name, or does it by default, the error says so. Options that fullbore
//! takes under the same name are not listed; a test holds the table against the definition of the commands.

use crate::settings::file::SECTION_KEYS;

/// One hint for several options of other tools.
struct Row {
    /// The commands of fullbore at which the options are typed.
    commands: &'static [&'static str],
    /// The options, with their hyphens.
    options: &'static [&'static str],
    /// What to do.
    hint: &'static str,
}

const fn row(commands: &'static [&'static str], options: &'static [&'static str], hint: &'static str) -> Row {
    Row { commands, options, hint }
}

const COPY: &[&str] = &["copy"];
const MIRROR: &[&str] = &["mirror"];
const PUT: &[&str] = &["put"];
const GET: &[&str] = &["get"];
const LS: &[&str] = &["ls"];
const TRANSFERS: &[&str] = &["put", "get"];
const STORES: &[&str] = &["put", "get", "ls"];
const BUCKETS: &[&str] = &["put", "get", "ls", "mirror", "check", "work"];
const BOOTSTRAP: &[&str] = &["bootstrap"];
const ARCHIVES: &[&str] = &["mirror", "update", "check", "bootstrap", "install"];

const ROWS: &[Row] = &[
    // rsync(1), rclone copy
    row(
        COPY,
        &["--append", "--append-verify", "--inplace"],
        "leave it out; an interrupted copy resumes, and only changed blocks are sent",
    ),
    row(COPY, &["--compare-dest", "--copy-dest"], "use --link-dest; equal files become hard links"),
    row(COPY, &["--list-only"], "use --dry-run with an empty DST, or -i"),
    row(COPY, &["--out-format", "--log-format", "--log-file-format"], "use -i, or --json for a program"),
    row(COPY, &["--atimes", "-U", "--crtimes", "-N"], "leave it out; access and creation times are not kept"),
    row(COPY, &["--skip-compress"], "leave it out; data that does not get smaller is sent as it is"),
    row(COPY, &["--checksum-choice", "--cc", "--checksum-seed"], "use --checksum; copy chooses the function itself"),
    row(COPY, &["--safe-links", "--copy-unsafe-links", "-k", "--copy-dirlinks"], "use --copy-links, or --exclude"),
    row(COPY, &["-K", "--keep-dirlinks"], "leave it out; links at the destination are never followed"),
    row(COPY, &["-m", "--prune-empty-dirs"], "leave it out; empty directories are kept"),
    row(COPY, &["--force"], "use --delete; it removes directories that are in the way of files"),
    row(COPY, &["-d", "--dirs"], "use --files-from; without -r it copies directories without their contents"),
    row(COPY, &["-T", "--temp-dir"], "leave it out; unfinished files are beside their names"),
    row(COPY, &["--modify-window", "-@"], "leave it out; times are compared as exactly as the destination keeps them"),
    row(COPY, &["--daemon", "--password-file", "--address"], "use ssh; fullbore does not support rsync daemons"),
    row(COPY, &["--filter", "-f", "-F", "-C", "--cvs-exclude"], "use --exclude and --include"),
    row(COPY, &["--transfers", "--multi-thread-streams", "--checkers"], "use --streams for the number of connections"),
    row(COPY, &["--limit-rate"], "use --bwlimit RATE, as for rsync"),
    row(COPY, &["--no-links", "--no-l"], "use --exclude; symbolic links are copied, with --copy-links as files"),
    row(
        COPY,
        &["--no-times", "--no-t", "-J", "--omit-link-times"],
        "leave it out; times are always kept, and --omit-dir-times excepts those of directories",
    ),
    row(COPY, &["--no-D", "--no-devices"], "use --no-specials"),
    row(COPY, &["--no-whole-file", "--no-W"], "leave it out; only changed blocks of a file are sent"),
    row(COPY, &["-M", "--remote-option"], "leave it out; options are for both ends"),
    row(COPY, &["-B", "--block-size"], "leave it out; copy chooses the size of blocks"),
    row(COPY, &["-4", "--ipv4", "-6", "--ipv6"], "set AddressFamily in ssh_config, or pass ssh its own option with -e"),
    row(COPY, &["--delay-updates"], "leave it out; each file gets its name when it is complete"),
    row(COPY, &["--iconv"], "leave it out; fullbore converts no names and copies them byte for byte"),
    row(
        COPY,
        &["--ignore-missing-args", "--delete-missing-args"],
        "leave it out; other sources are copied, and the exit code tells of missing ones",
    ),
    row(COPY, &["--preallocate"], "leave it out; fullbore has no such option"),
    // debmirror(1)
    row(MIRROR, &["--dist", "-d", "--dists"], "use --suite"),
    row(
        MIRROR,
        &["--host", "-h", "--root", "-r", "--method", "-e"],
        "use --from URL, such as --from https://HOST/debian",
    ),
    row(
        MIRROR,
        &["--source", "--nosource"],
        "use --arch; `source` is one of its values, and all are mirrored by default",
    ),
    row(MIRROR, &["--architecture", "--architectures", "-a", "--defaultarch", "--default-arch"], "use --arch"),
    row(MIRROR, &["--components", "-s"], "use --component; debmirror calls components sections"),
    row(MIRROR, &["--i18n"], "use --languages"),
    row(
        MIRROR,
        &["--getcontents", "--_contents", "--diff"],
        "leave it out; use --without to omit Contents files or pdiffs",
    ),
    row(
        MIRROR,
        &["--cleanup", "--nocleanup", "--postcleanup", "--precleanup"],
        "leave it out; old files go after publishing, and --no-clean keeps them",
    ),
    row(
        MIRROR,
        &["--no-check-gpg", "--check-gpg", "--ignore-release-gpg", "--allow-unauthenticated"],
        "leave it out; for an unsigned archive, set `trusted = true` in mirror.toml",
    ),
    row(
        &["check"],
        &["--no-check-gpg", "--check-gpg", "--ignore-release-gpg", "--allow-unauthenticated"],
        "leave it out; check accepts unsigned suites that were mirrored with `trusted = true`",
    ),
    row(
        &["update", "bootstrap", "install"],
        &["--no-check-gpg", "--check-gpg", "--ignore-release-gpg", "--allow-unauthenticated"],
        "leave it out; for an unsigned archive, add [trusted=yes] to its sources line",
    ),
    row(MIRROR, &["--exclude-deb-section", "--include-deb-section"], "use --section"),
    row(MIRROR, &["--limit-priority"], "use --priority"),
    row(MIRROR, &["--exclude-field", "--include-field"], "use --include, --exclude or --source-package"),
    row(
        MIRROR,
        &["--max-batch", "--rsync-batch", "--rsync-options", "--rsync-extra"],
        "leave it out; mirror uses HTTP",
    ),
    row(
        MIRROR,
        &["--user", "-u", "--passwd", "--auth_no_challenge", "--auth-no-challenge"],
        "use --auth FILE, a file in the form of apt's auth.conf",
    ),
    row(
        ARCHIVES,
        &["--proxy", "-p", "--use_proxy", "--use-proxy"],
        "set http_proxy and https_proxy in the environment",
    ),
    row(MIRROR, &["--config-file"], "use --config; `fullbore convert` makes such a file from debmirror's"),
    row(
        MIRROR,
        &["--progress", "-P", "--no-progress"],
        "leave it out; progress is shown on a terminal, and -q turns it off",
    ),
    row(MIRROR, &["--ignore-small-errors"], "use --ignore-missing to publish without files that no mirror has"),
    row(MIRROR, &["--ignore-missing-release"], "leave it out; everything is verified from the signed Release"),
    row(MIRROR, &["--timeout"], "leave it out; a stalled mirror's files are fetched from the others"),
    row(
        MIRROR,
        &["--delete"],
        "leave it out; mirror deletes what the archive no longer names, and --no-clean keeps it",
    ),
    row(MIRROR, &["--checksums"], "run `fullbore check`, which reads and verifies all files"),
    row(MIRROR, &["--state-cache-days"], "leave it out; fullbore records the files that it wrote"),
    row(MIRROR, &["--debmarshal"], "use --snapshot NAME, which keeps a state"),
    row(
        MIRROR,
        &["--di-dist", "--di-arch"],
        "leave it out; installer images come with suites and architectures, and --without installer omits them",
    ),
    row(MIRROR, &["--skippackages"], "leave it out; unchanged indexes are not fetched again"),
    row(
        MIRROR,
        &["--omit-suite-symlinks", "--allow-dist-rename"],
        "leave it out; the link from suite to codename is always made",
    ),
    row(MIRROR, &["--debug"], "use -vv"),
    // apt-mirror, apt-mirror2: options and the settings of mirror.list
    row(MIRROR, &["--nthreads", "--threads", "-j", "--jobs"], "use --connections for the connections to each host"),
    row(MIRROR, &["--base-path", "--base_path", "--mirror-path", "--mirror_path"], "use --to DIR"),
    row(
        MIRROR,
        &["--clean", "--_autoclean", "--autoclean", "--cleanscript"],
        "leave it out; mirror deletes what the archive no longer names",
    ),
    row(
        MIRROR,
        &["--limit_rate", "--bwlimit", "--rate-limit"],
        "use --limit-rate RATE; it is for all connections together",
    ),
    row(MIRROR, &["--unlink", "--_tilde"], "leave it out; fullbore needs no such setting"),
    row(
        MIRROR,
        &["--wipe-size-ratio", "--wipe_size_ratio", "--wipe-count-ratio", "--wipe_count_ratio"],
        "use --max-delete PERCENT",
    ),
    row(
        MIRROR,
        &["--run-postmirror", "--run_postmirror", "--postmirror-script", "--postmirror_script"],
        "run the script after fullbore; with --changed-exit, exit code 10 means that nothing changed",
    ),
    // s5cmd, rclone, aws s3
    row(BUCKETS, &["--endpoint-url", "--s3-endpoint"], "use --endpoint URL"),
    row(BUCKETS, &["--source-region", "--destination-region", "--s3-region"], "use --region"),
    row(
        STORES,
        &[
            "--numworkers",
            "--concurrency",
            "-c",
            "--transfers",
            "--checkers",
            "--s3-upload-concurrency",
            "--max-concurrent-requests",
        ],
        "use --connections",
    ),
    row(
        STORES,
        &["--part-size", "-p", "--s3-chunk-size", "--multipart-chunksize", "--multi-thread-streams", "--buffer-size"],
        "leave it out; fullbore chooses the size of parts and of buffers",
    ),
    row(
        BUCKETS,
        &[
            "--no-verify-ssl",
            "--no-check-certificate",
            "--no_check_certificate",
            "--disable-ssl-verification",
            "--ca-bundle",
        ],
        "use --cacert FILE; certificates are always verified",
    ),
    row(PUT, &["-n"], "use --dry-run to upload nothing; objects with equal content are skipped anyway"),
    row(
        PUT,
        &[
            "--no-clobber",
            "--if-size-differ",
            "-s",
            "--if-source-newer",
            "-u",
            "--size-only",
            "--ignore-existing",
            "--update",
            "--exact-timestamps",
            "--no-traverse",
            "--fast-list",
        ],
        "leave it out; objects with equal content are skipped, and --overwrite uploads them again",
    ),
    row(PUT, &["-R"], "leave it out; directories are sent with everything in them"),
    row(PUT, &["--dryrun"], "use --dry-run"),
    row(PUT, &["--follow-symlinks", "-L", "--links"], "use --copy-links"),
    row(PUT, &["--no-follow-symlinks"], "leave it out; links are followed only with --copy-links"),
    row(PUT, &["--s3-acl"], "use --acl"),
    row(PUT, &["--s3-storage-class"], "use --storage-class"),
    row(PUT, &["--no-guess-mime-type", "--guess-mime-type"], "use --content-type"),
    row(TRANSFERS, &["--bwlimit", "--rate-limit"], "use --limit-rate RATE, such as 20M or 100Mbit"),
    row(TRANSFERS, &["--filter", "--filter-from"], "use --exclude and --include"),
    row(
        TRANSFERS,
        &["--max-size", "--min-size", "--max-age", "--min-age"],
        "leave it out; choose files by name with --exclude, --include or --files-from",
    ),
    row(
        PUT,
        &["--content-encoding", "--content-disposition", "--content-language", "--expires"],
        "leave it out; of these fields put sets only --content-type, --cache-control and --metadata",
    ),
    row(PUT, &["--tagging"], "leave it out; fullbore sets no tags: add them with a tool of the store"),
    row(PUT, &["--ignore-times", "-I"], "use --overwrite to upload all files"),
    row(PUT, &["--flatten", "-f"], "name the files instead of their directory; keys then have no directories"),
    row(PUT, &["--raw"], "leave it out; put takes a * in a name as it is"),
    row(GET, &["--dryrun", "--dry-run"], "leave it out; get has no trial run, but `fullbore ls` lists the objects"),
    row(
        GET,
        &["-n"],
        "leave it out; files with equal content are skipped, and `fullbore ls` shows what there is to download",
    ),
    row(GET, &["--delete"], "download into an empty directory; get deletes no local files"),
    row(
        GET,
        &[
            "--no-clobber",
            "--if-size-differ",
            "-s",
            "--if-source-newer",
            "-u",
            "--size-only",
            "--ignore-existing",
            "--update",
            "--exact-timestamps",
            "--no-traverse",
            "--fast-list",
        ],
        "leave it out; files with equal content are skipped, and others are replaced",
    ),
    row(
        GET,
        &["--checksum"],
        "leave it out; downloads are verified, and --require-checksum refuses objects without a checksum",
    ),
    row(LS, &["--human-readable", "-H", "--humanize"], "leave it out; sizes are printed in bytes"),
    row(LS, &["--summarize"], "use --json; its last line has the number of files and the sum of their sizes"),
    row(LS, &["-e", "--etag"], "leave it out; ls shows no ETags: use a tool of the store"),
    row(LS, &["-l", "--long"], "leave it out; sizes and times are always shown"),
    row(PUT, &["--delete-after", "--delete-during", "--delete-before"], "use --delete; it deletes after the upload"),
    row(PUT, &["--expected-size"], "leave it out for S3; use --size for a grid"),
    row(PUT, &["--sse-kms-key-id", "--s3-server-side-encryption"], "use --sse"),
    row(
        STORES,
        &["--retry-count", "--retries", "--low-level-retries", "--max-attempts"],
        "leave it out; failed requests are retried, and --timeout says how long a server may be silent",
    ),
    row(STORES, &["--contimeout", "--cli-read-timeout", "--cli-connect-timeout"], "use --timeout SECONDS"),
    row(STORES, &["--credentials-file", "--config"], "set AWS_SHARED_CREDENTIALS_FILE or AWS_CONFIG_FILE"),
    row(BUCKETS, &["--s3-profile"], "use --profile"),
    row(
        STORES,
        &["--show-progress", "--progress", "-P", "--no-progress"],
        "leave it out; progress is shown on a terminal, and -q turns it off",
    ),
    row(STORES, &["--only-show-errors", "--silent"], "use -q"),
    row(STORES, &["--log", "--log-level", "--debug", "-vv"], "use -v, -vv or FULLBORE_LOG"),
    row(STORES, &["--stat", "--stats", "--output-format"], "use --report FILE or --json"),
    // mmdebstrap(1), debootstrap(8)
    row(BOOTSTRAP, &["-a"], "use --arch"),
    row(BOOTSTRAP, &["--make-tarball"], "name a target that ends with .tar, or use --format tar"),
    row(BOOTSTRAP, &["--extra-suites"], "give a sources.list as the mirror argument"),
    row(BOOTSTRAP, &["--cache-dir"], "use several mirrors, or a mirror made by `fullbore mirror`"),
    row(BOOTSTRAP, &["--certificate", "--ca-certificate"], "use --cacert FILE"),
    // docker build, podman build
    row(BOOTSTRAP, &["--tag", "-t"], "use --oci-tag NAME with --format oci"),
    row(BOOTSTRAP, &["--platform"], "use --arch, such as --arch arm64"),
    // apt-get(8)
    row(&["install"], &["--assume-yes", "--force-yes"], "use --yes"),
    row(&["install"], &["--no-install-recommends"], "use --aptopt APT::Install-Recommends=false"),
    row(
        &["install"],
        &["-t", "--target-release"],
        "use --aptopt, such as --aptopt APT::Default-Release=trixie-backports",
    ),
];

/// What to do instead of a command of another tool, or of a name that fullbore has not.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["cp", "rsync", "scp", "mv"], "use `fullbore copy` for files, `fullbore put` and `get` for S3 stores"),
    (&["sync"], "use `fullbore mirror` for archives, `copy` for trees, `put --delete` for S3 stores"),
    (&["clone", "debmirror", "apt-mirror", "ftpsync", "download"], "use `fullbore mirror`"),
    (&["upload"], "use `fullbore put`"),
    (&["cat"], "use `fullbore get`; it writes to stdout"),
    (&["debootstrap", "mmdebstrap", "create"], "use `fullbore bootstrap`"),
    (&["verify", "fsck", "audit"], "use `fullbore check`"),
    (
        &["upgrade", "dist-upgrade", "full-upgrade", "remove", "purge", "autoremove"],
        "use apt; `fullbore apt enable` makes it fetch with fullbore's methods, `fullbore nosync` runs it without syncs",
    ),
    (&["eatmydata"], "use `fullbore nosync`"),
    (&["bench", "benchmark", "speedtest"], "use `fullbore probe`"),
    (&["rm", "mb", "rb", "du"], "use a tool of the store; fullbore only puts, gets and lists"),
    (&["deep-check"], "use `fullbore check`; it walks directories by itself"),
];

/// What to type instead of this option at this command, if another tool has it.
pub(super) fn for_option(command: &str, option: &str) -> Option<&'static str> {
    ROWS.iter().find(|row| row.commands.contains(&command) && row.options.contains(&option)).map(|row| row.hint)
}

/// What to write in the settings file instead of this key of a mirror, if another tool has an option or a setting of
/// this name. Keys are flags without their hyphens; flags that are no keys keep them.
pub(crate) fn for_key(key: &str) -> Option<String> {
    let names = [format!("--{key}"), format!("--{}", key.replace('_', "-"))];
    let hint = names.iter().find_map(|name| for_option("mirror", name))?;
    let as_key = |word: &'static str| {
        let key = word.strip_prefix("--").filter(|rest| SECTION_KEYS.contains(&rest.trim_end_matches(ends_word)));
        key.unwrap_or(word)
    };
    Some(hint.split_inclusive(ends_word).map(as_key).collect())
}

/// Whether a character of a hint ends an option.
fn ends_word(c: char) -> bool {
    c.is_whitespace() || ",;'`=".contains(c)
}

/// What to type instead of this command.
pub(super) fn for_command(command: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(names, _)| names.contains(&command)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The long and short options of a command, with their hyphens.
    fn options_of(command: &str) -> Vec<String> {
        let definition = super::super::command();
        let command = definition.find_subcommand(command).unwrap();
        let long =
            command.get_arguments().flat_map(|argument| argument.get_long_and_visible_aliases().unwrap_or_default());
        let hidden = command.get_arguments().flat_map(|argument| argument.get_all_aliases().unwrap_or_default());
        let short = command.get_arguments().filter_map(clap::Arg::get_short);
        long.chain(hidden).map(|name| format!("--{name}")).chain(short.map(|letter| format!("-{letter}"))).collect()
    }

    #[test]
    fn hints_name_options_that_exist_for_options_that_do_not() {
        for row in ROWS {
            for command in row.commands {
                let ours = options_of(command);
                for option in row.options {
                    assert!(!ours.iter().any(|name| name == option), "{command} takes {option}");
                }
                for word in row.hint.split(ends_word) {
                    let is_option = word.starts_with('-') && word.len() > 1;
                    assert!(!is_option || word == "-vv" || ours.iter().any(|name| name == word), "{command}: {word}");
                }
            }
        }
    }

    /// Options that the guide for newcomers lists, and others that people type.
    #[test]
    fn options_of_other_tools_have_hints() {
        for (command, options) in [
            ("copy", "--no-links --no-times --no-D --no-whole-file -J -M -B -4 -6 --delay-updates --iconv"),
            (
                "copy",
                "--ignore-missing-args --preallocate --compare-dest --copy-dest --safe-links -U -N --filter -F -C",
            ),
            ("mirror", "-s --checksums --state-cache-days --debmarshal --di-dist --di-arch --skippackages --debug"),
            ("mirror", "--omit-suite-symlinks --disable-ssl-verification --endpoint-url --limit_rate --_autoclean"),
            (
                "mirror",
                "--unlink --use_proxy --no_check_certificate --run_postmirror --postmirror_script --defaultarch",
            ),
            ("check", "--endpoint-url --no-verify-ssl"),
            ("work", "--endpoint-url --no-verify-ssl"),
            ("ls", "--endpoint-url --human-readable --summarize -H -e -l"),
            ("get", "--dryrun --dry-run -n --delete --size-only --exact-timestamps --no-clobber -u --ignore-existing"),
            ("get", "--bwlimit --checksum --filter --max-size --endpoint-url"),
            ("put", "--content-encoding --content-disposition --expires --filter --max-size --ignore-times --flatten"),
            ("put", "--raw --tagging --endpoint-url --dryrun -n"),
        ] {
            for option in options.split(' ') {
                assert!(for_option(command, option).is_some(), "{command} {option}");
            }
        }
    }

    #[test]
    fn hints_for_the_settings_file_name_its_keys_without_hyphens() {
        assert_eq!(for_key("dist").as_deref(), Some("use suite"));
        assert!(for_key("limit_rate").is_some_and(|hint| hint.starts_with("use limit-rate RATE")));
        assert!(for_key("nthreads").is_some_and(|hint| hint.starts_with("use connections")));
        assert!(for_key("run_postmirror").is_some_and(|hint| hint.contains("with --changed-exit, exit code 10")));
        assert!(for_key("config-file").is_some_and(|hint| hint.starts_with("use --config;")));
        assert_eq!(for_key("debug").as_deref(), Some("use -vv"));
        assert!(for_key("i18n").is_some_and(|hint| hint == "use languages"));
        assert!(for_key("exclude-field").is_some_and(|hint| hint == "use include, exclude or source-package"));
        assert_eq!(for_key("frobnicate"), None);
    }

    #[test]
    fn no_option_has_two_hints() {
        for (i, row) in ROWS.iter().enumerate() {
            for other in &ROWS[i + 1..] {
                let common = row.options.iter().find(|option| other.options.contains(option));
                let command = row.commands.iter().find(|command| other.commands.contains(command));
                assert!(common.is_none() || command.is_none(), "{common:?} of {command:?}");
            }
        }
    }

    #[test]
    fn no_command_of_ours_is_called_another_tools() {
        let definition = super::super::command();
        for (names, hint) in COMMANDS {
            assert!(names.iter().all(|name| definition.find_subcommand(name).is_none()), "{hint}");
        }
    }
}
