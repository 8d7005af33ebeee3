//! Sections of manual pages beside flags and examples: exit status, environment, files, other pages.

/// A section: its heading, some sentences, and terms with their meaning.
pub struct Section {
    pub heading: &'static str,
    pub about: &'static str,
    pub entries: &'static [(&'static str, &'static str)],
}

const EXIT_STATUS: Section = Section {
    heading: "EXIT STATUS",
    about: "",
    entries: &[
        ("0", "Done."),
        ("1", "Wrong usage or settings."),
        ("2", "Partial: some files are missing or wrong, or fullbore refused to delete."),
        ("3", "The network failed, or no server answered."),
        ("4", "A signature or a checksum is wrong."),
        ("5", "Stale: the archive is older than the local copy, or its Release has expired."),
        ("6", "Another run holds the lock, or another program changed an object meanwhile."),
        ("7", "The disk is full, read-only or failing, access was denied, or output was lost."),
        ("10", "Nothing changed. Only with --changed-exit."),
        ("24", "Some files of the source vanished before they were read; all others were copied. Only with copy."),
        ("130", "Interrupted by a signal. Run the command again to resume."),
    ],
};

/// `nosync` runs another program, and its exit status is that program's.
const EXIT_STATUS_OF_NOSYNC: Section = Section {
    heading: "EXIT STATUS",
    about: "nosync ends with the exit status of CMD, or by the signal that ended CMD. nosync itself adds these codes:",
    entries: &[
        ("2", "CMD succeeded, but programs that it started are still running."),
        ("7", "CMD succeeded, but the final sync failed."),
        ("125", "CMD did not run: the options are wrong, or nosync refused to run."),
        ("126", "CMD is not executable."),
        ("127", "CMD was not found."),
    ],
};

const FLAGS_IN_ENVIRONMENT: &str =
    "Each option can be set as a variable: --limit-rate is FULLBORE_LIMIT_RATE. Options override variables.";

const OF_ALL: [(&str, &str); 3] = [
    ("FULLBORE_LOG", "Log filter in the syntax of tracing, such as debug or fullbore_wire=trace. Lines go to stderr."),
    ("NO_COLOR", "If set and not empty: no colours."),
    ("SOURCE_DATE_EPOCH", "Time to write into reports, archives and images, in seconds since 1970."),
];

const PROXIES: [(&str, &str); 2] = [
    ("http_proxy, https_proxy, all_proxy", "Proxies for HTTP, for HTTPS, and for both."),
    ("no_proxy", "Hosts to reach without a proxy, comma-separated."),
];

const AUTHORITIES: (&str, &str) =
    ("SSL_CERT_FILE, SSL_CERT_DIR", "Certificate authorities (PEM) to trust instead of the system's.");

const ENVIRONMENT: Section = Section { heading: "ENVIRONMENT", about: FLAGS_IN_ENVIRONMENT, entries: &OF_ALL };

const ENVIRONMENT_OF_NETWORK: Section = Section {
    heading: "ENVIRONMENT",
    about: FLAGS_IN_ENVIRONMENT,
    entries: &[PROXIES[0], PROXIES[1], AUTHORITIES, OF_ALL[0], OF_ALL[1], OF_ALL[2]],
};

const ENVIRONMENT_OF_APT: Section = Section {
    heading: "ENVIRONMENT",
    about: FLAGS_IN_ENVIRONMENT,
    entries: &[
        ("APT_CONFIG", "Another configuration file of apt: see apt.conf(5)."),
        ("TMPDIR", "Directory for temporary files (default: /var/tmp)."),
        PROXIES[0],
        PROXIES[1],
        AUTHORITIES,
        OF_ALL[0],
        OF_ALL[1],
        OF_ALL[2],
    ],
};

const ENVIRONMENT_OF_STORES: Section = Section {
    heading: "ENVIRONMENT",
    about: FLAGS_IN_ENVIRONMENT,
    entries: &[
        ("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN", "Credentials for an S3 store."),
        ("AWS_PROFILE", "Section of the AWS files to read (default: default)."),
        ("AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE", "Paths of the AWS files."),
        ("AWS_REGION, AWS_DEFAULT_REGION", "Region of the bucket."),
        ("AWS_ENDPOINT_URL", "Address of the store, if it is not Amazon's."),
        ("AWS_CA_BUNDLE", "Certificates to trust, as --cacert."),
        (
            "AWS_REQUEST_CHECKSUM_CALCULATION, AWS_RESPONSE_CHECKSUM_VALIDATION",
            "when_required: send no checksums with uploads, or request none with downloads, respectively.",
        ),
        ("AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE", "Credentials by web identity."),
        (
            "AWS_CONTAINER_CREDENTIALS_FULL_URI, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "Credentials from the container's credential service.",
        ),
        ("FULLBORE_QUEUE_USER, FULLBORE_QUEUE_PASSWORD", "User and password for the queue, instead of --queue-creds."),
        ("TMPDIR", "Directory for the content of pipes, and for large files of a mirror (default: /var/tmp)."),
        ("XDG_STATE_HOME", "Base directory of state; fullbore uses fullbore/put below it (default: ~/.local/state)."),
        PROXIES[0],
        PROXIES[1],
        AUTHORITIES,
        OF_ALL[0],
        OF_ALL[1],
        OF_ALL[2],
    ],
};

const ENVIRONMENT_OF_NOSYNC: Section = Section {
    heading: "ENVIRONMENT",
    about: "Options cannot be set as variables, because CMD would inherit these.",
    entries: &[OF_ALL[0], OF_ALL[1]],
};

const fn files(entries: &'static [(&'static str, &'static str)]) -> Section {
    Section { heading: "FILES", about: "", entries }
}

const SETTINGS_FILE: (&str, &str) = ("/etc/fullbore/mirror.toml", "Settings of mirrors: see fullbore-mirror.toml(5).");

const CREDENTIALS: (&str, &str) =
    ("/etc/apt/auth.conf, /etc/apt/auth.conf.d/", "Credentials for hosts: see apt_auth.conf(5).");

const FILES: Section = files(&[SETTINGS_FILE]);

const FILES_OF_MIRROR: Section = files(&[
    SETTINGS_FILE,
    (
        "DIR/.fullbore/",
        "State of the mirror in DIR. If it is lost, the next run reads all files, and does not fetch them again.",
    ),
    ("DIR/.fullbore/lock", "Held while a run works in DIR."),
    (".NAME.part", "An unfinished file, beside its final name. The next run resumes it."),
    ("DIR/snapshots/NAME/", "A snapshot made of hard links."),
    CREDENTIALS,
]);

const FILES_OF_CHECK: Section =
    files(&[("DIR/.fullbore/", "State of the mirror in DIR, if fullbore made it."), CREDENTIALS]);

const FILES_OF_UPDATE: Section = files(&[
    ("/etc/apt/sources.list, /etc/apt/sources.list.d/", "Sources of the indexes: see sources.list(5)."),
    ("/var/lib/apt/lists/", "The indexes, in apt's own directory."),
    CREDENTIALS,
]);

const FILES_OF_APT: Section = files(&[
    ("/etc/apt/apt.conf.d/90fullbore", "Makes apt run fullbore's methods. enable writes it, disable removes it."),
    ("/usr/lib/apt/methods/", "apt's own methods, which fullbore does not change."),
]);

const FILES_OF_COPY: Section = files(&[
    (".NAME.fullbore-part", "An unfinished file at the destination. The next run resumes it."),
    (".NAME.fullbore-blocks", "Journal of the blocks of a large unfinished file."),
    ("DIR/.fullbore-copy", "Present while a copy into DIR is not complete."),
]);

const FILES_OF_BOOTSTRAP: Section = files(&[
    ("ROOT/.fullbore-unfinished", "Present until the root is complete. Run the command again to start over."),
    (
        "ROOT/etc/apt/apt.conf.d/99fullbore, ROOT/etc/dpkg/dpkg.cfg.d/99fullbore",
        "Options of --aptopt and --dpkgopt. They are 99mmdebstrap if the program is called mmdebstrap.",
    ),
    ("/usr/share/keyrings/", "Archive keys that fullbore trusts by default."),
    CREDENTIALS,
]);

const FILES_OF_INSTALL: Section = files(&[
    ("/var/cache/apt/archives/", "Downloaded packages."),
    ("/var/lib/dpkg/", "dpkg's database, which fullbore locks and writes as dpkg does."),
]);

const FILES_OF_DIVERT: Section = files(&[(
    "/etc/apt/apt.conf.d/00fullbore-nosync",
    "Configures the wrapper for apt. --via apt-conf writes this file, divert off removes it.",
)]);

const FILES_OF_STORES: Section = files(&[
    ("~/.tahoe/", "Settings of a Tahoe-LAFS node: servers and convergence secret."),
    ("~/.aws/credentials, ~/.aws/config", "Credentials and settings for S3 stores."),
    ("~/.local/state/fullbore/put/", "Upload journals, and notes on unchanged files (mode 0600)."),
]);

const FILES_OF_WORK: Section =
    files(&[("~/.aws/credentials, ~/.aws/config", "Credentials and settings for S3 stores."), CREDENTIALS]);

/// The sections of a page, in their order.
pub fn of(page: &str) -> Vec<Section> {
    let exit_status = if page == "fullbore-nosync" { EXIT_STATUS_OF_NOSYNC } else { EXIT_STATUS };
    let (environment, files) = match page.split('-').nth(1).unwrap_or_default() {
        "mirror" => (ENVIRONMENT_OF_NETWORK, Some(FILES_OF_MIRROR)),
        "check" => (ENVIRONMENT_OF_NETWORK, Some(FILES_OF_CHECK)),
        "update" => (ENVIRONMENT_OF_APT, Some(FILES_OF_UPDATE)),
        "apt" => (ENVIRONMENT, Some(FILES_OF_APT)),
        "copy" => (ENVIRONMENT, Some(FILES_OF_COPY)),
        "bootstrap" => (ENVIRONMENT_OF_APT, Some(FILES_OF_BOOTSTRAP)),
        "install" => (ENVIRONMENT_OF_APT, Some(FILES_OF_INSTALL)),
        "nosync" => (ENVIRONMENT_OF_NOSYNC, None),
        "divert" => (ENVIRONMENT, Some(FILES_OF_DIVERT)),
        "work" => (ENVIRONMENT_OF_STORES, Some(FILES_OF_WORK)),
        "put" | "get" | "ls" => (ENVIRONMENT_OF_STORES, Some(FILES_OF_STORES)),
        "" => (ENVIRONMENT_OF_NETWORK, Some(FILES)),
        _ => (ENVIRONMENT, None),
    };
    [Some(exit_status), Some(environment), files].into_iter().flatten().collect()
}

/// Examples of pages whose `--help` shows none.
pub fn examples(page: &str) -> &'static str {
    match page {
        "fullbore" => {
            "  Mirror a suite from two mirrors:
    fullbore mirror --from https://deb.example.org/debian --from https://ftp.example.org/debian \\
        --suite trixie --component main --arch amd64,all --to /srv/mirror/debian
  Copy a tree to another machine:
    fullbore copy /srv/data/ me@backup.example.org:/srv/data
  Make a Debian root:
    fullbore bootstrap trixie /srv/root https://deb.example.org/debian
  Upload a tree to an S3 store:
    fullbore put /srv/mirror/debian s3://my-bucket/debian"
        }
        "fullbore-pdiff-generate" => {
            "  Make a patch from one state of an index to the next:
    fullbore pdiff generate Packages.old Packages.new > patch"
        }
        "fullbore-pdiff-merge" => {
            "  Join patches into one with the same effect:
    fullbore pdiff merge 2026-01-01.gz 2026-01-02.gz > merged"
        }
        _ => "",
    }
}

/// Related pages.
pub fn see_also(page: &str) -> &'static [&'static str] {
    match page.split('-').nth(1).unwrap_or_default() {
        "" => &["fullbore-mirror.toml(5)"],
        "mirror" => &[
            "fullbore-check(1)",
            "fullbore-convert(1)",
            "fullbore-work(1)",
            "fullbore-mirror.toml(5)",
            "gpgv(1)",
            "sqv(1)",
        ],
        "work" => &["fullbore-mirror(1)"],
        "check" => &["fullbore-mirror(1)", "gpgv(1)", "sqv(1)"],
        "convert" => &["fullbore-mirror(1)", "fullbore-mirror.toml(5)"],
        "update" => &["fullbore-apt(1)", "apt-get(8)", "sources.list(5)", "apt.conf(5)"],
        "apt" => &["fullbore-update(1)", "apt.conf(5)"],
        "pdiff" => &["fullbore-update(1)", "ed(1)"],
        "copy" => &["fullbore-probe(1)", "rsync(1)", "ssh(1)"],
        "probe" => &["fullbore-copy(1)"],
        "bootstrap" => &["fullbore-install(1)", "mmdebstrap(1)", "sources.list(5)"],
        "install" => &["fullbore-bootstrap(1)", "fullbore-nosync(1)", "apt-get(8)", "dpkg(1)"],
        "nosync" => &["fullbore-divert(1)", "eatmydata(1)"],
        "divert" => &["fullbore-nosync(1)", "dpkg-divert(1)"],
        "put" => &["fullbore-get(1)", "fullbore-check(1)"],
        "get" => &["fullbore-put(1)", "fullbore-ls(1)"],
        "ls" => &["fullbore-get(1)", "fullbore-check(1)"],
        _ => &[],
    }
}
