//! apt's sources for a suite whose archive nobody has named: with updates and security fixes, as mmdebstrap has it.
//!
//! A stable release is not complete without them. Which suites have them, and where, is what
//! `get_sourceslist_by_suite` of mmdebstrap says. The archive of this machine's apt goes before the distribution's own
//! addresses if it is one of that distribution: it is the near one.

/// Where Debian is.
const DEBIAN: &str = "http://deb.debian.org/debian";
const DEBIAN_SECURITY: &str = "http://security.debian.org/debian-security";

/// Keyrings of the archives, in their packages.
const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const UBUNTU_KEYRING: &str = "/usr/share/keyrings/ubuntu-archive-keyring.gpg";

/// Where Ubuntu is, for the architectures of its main archive and for others.
const UBUNTU: &str = "http://archive.ubuntu.com/ubuntu";
const UBUNTU_SECURITY: &str = "http://security.ubuntu.com/ubuntu";
const UBUNTU_PORTS: &str = "http://ports.ubuntu.com/ubuntu-ports";
const UBUNTU_ARCHITECTURES: [&str; 2] = ["amd64", "i386"];

/// Debian's releases whose security fixes are in `SUITE/updates`: those before bullseye
/// (https://lists.debian.org/87r26wqr2a.fsf@43-1.org).
const BEFORE_BULLSEYE: [&str; 11] =
    ["potato", "woody", "sarge", "etch", "lenny", "squeeze", "wheezy", "jessie", "stretch", "buster", "slink"];

/// Later ones, and names of whatever release is the stable one. `/usr/share/distro-info` has those that are to come.
const DEBIAN_RELEASES: [&str; 8] =
    ["stable", "oldstable", "oldoldstable", "bullseye", "bookworm", "trixie", "forky", "duke"];

/// Suites of Debian that are complete by themselves.
const DEBIAN_ALONE: [&str; 5] = ["testing", "unstable", "sid", "experimental", "rc-buggy"];

/// Ubuntu's long-term releases and some between, as mmdebstrap and debootstrap know them.
const UBUNTU_RELEASES: [&str; 14] = [
    "trusty", "xenial", "zesty", "artful", "bionic", "cosmic", "focal", "jammy", "noble", "mantic", "lunar", "kinetic",
    "oracular", "plucky",
];

/// Suites that stand beside a release.
const BESIDE: [&str; 5] = ["-updates", "-security", "/updates", "-backports", "-proposed-updates"];

/// Releases that the package distro-info-data names: the text of its two files.
#[derive(Debug, Clone, Default)]
pub struct Releases {
    /// `debian.csv`.
    pub debian: String,
    /// `ubuntu.csv`.
    pub ubuntu: String,
}

/// A source of this machine's apt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its address.
    pub uri: String,
    /// Its suite.
    pub suite: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Debian,
    Ubuntu,
}

impl Releases {
    /// Whose a suite is; `None` for one that nobody knows.
    fn distribution(&self, suite: &str) -> Option<Distribution> {
        let suite = BESIDE.iter().find_map(|end| suite.strip_suffix(end)).unwrap_or(suite);
        let names = |text: &str| {
            let mut series = text.lines().skip(1).filter_map(|line| line.split(',').nth(2));
            series.any(|name| name == suite)
        };
        let is_of = |lists: &[&[&str]]| lists.iter().any(|list| list.contains(&suite));
        if is_of(&[&BEFORE_BULLSEYE, &DEBIAN_RELEASES, &DEBIAN_ALONE]) || names(&self.debian) {
            Some(Distribution::Debian)
        } else if is_of(&[&UBUNTU_RELEASES]) || names(&self.ubuntu) {
            Some(Distribution::Ubuntu)
        } else {
            None
        }
    }

    /// Whether a release of Debian has its security fixes in `SUITE/updates`.
    fn is_before_bullseye(&self, suite: &str) -> bool {
        let mut lines = self.debian.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
        let version = lines.find_map(|cells| (cells.get(2) == Some(&suite)).then(|| cells[0].parse::<f32>().ok())?);
        BEFORE_BULLSEYE.contains(&suite) || version.is_some_and(|version| version < 11.0)
    }

    /// Addresses and suites for a release, if it is known whose it is.
    fn whole(&self, suite: &str, architecture: &str, here: &[Known]) -> Option<Vec<(String, String)>> {
        let distribution = self.distribution(suite)?;
        let is_security = |known: &&Known| known.suite.ends_with("-security") || known.suite.ends_with("/updates");
        let of_it = || here.iter().filter(|known| self.distribution(&known.suite) == Some(distribution));
        let (archive, fixes) = match distribution {
            Distribution::Debian => (DEBIAN, DEBIAN_SECURITY),
            Distribution::Ubuntu if UBUNTU_ARCHITECTURES.contains(&architecture) => (UBUNTU, UBUNTU_SECURITY),
            Distribution::Ubuntu => (UBUNTU_PORTS, UBUNTU_PORTS),
        };
        let near = of_it().find(|known| !is_security(known)).map_or(archive, |known| &known.uri);
        let near_fixes = of_it().find(is_security).map_or(fixes, |known| &known.uri);
        let mut sources = vec![(near.to_owned(), suite.to_owned())];
        if DEBIAN_ALONE.contains(&suite) || BESIDE.iter().any(|end| suite.ends_with(end)) {
            return Some(sources);
        }
        sources.push((near.to_owned(), format!("{suite}-updates")));
        let is_old = distribution == Distribution::Debian && self.is_before_bullseye(suite);
        sources.push((near_fixes.to_owned(), format!("{suite}{}", if is_old { "/updates" } else { "-security" })));
        Some(sources)
    }

    /// The keyring of the archive that a suite is of, for a machine whose apt trusts no key at all.
    pub fn keyring(&self, suite: &str) -> Option<&'static str> {
        self.distribution(suite).map(|distribution| match distribution {
            Distribution::Debian => DEBIAN_KEYRING,
            Distribution::Ubuntu => UBUNTU_KEYRING,
        })
    }

    /// Lines of sources for a suite, on a machine whose apt has those of `here`. `None` if it has none, and nobody knows
    /// whose suite it is.
    ///
    /// What this machine's apt has of the suite is taken as it is: its owner has chosen it.
    ///
    /// `options` stand in each line behind `deb`.
    pub fn sources(
        &self,
        suite: &str,
        architecture: &str,
        (components, options): (&str, &str),
        here: &[Known],
    ) -> Option<Vec<String>> {
        let is_of_suite =
            |known: &&Known| known.suite == suite || known.suite.strip_prefix(suite).is_some_and(is_beside);
        let own: Vec<&Known> = here.iter().filter(is_of_suite).collect();
        let has_itself = own.iter().any(|known| known.suite == suite);
        let chosen = if has_itself {
            own.into_iter().map(|known| (known.uri.clone(), known.suite.clone())).collect()
        } else if let Some(whole) = self.whole(suite, architecture, here) {
            whole
        } else {
            vec![(here.first()?.uri.clone(), suite.to_owned())]
        };
        Some(chosen.into_iter().map(|(uri, suite)| format!("deb {options}{uri} {suite} {components}\n")).collect())
    }
}

/// Whether a suite's name goes on as that of one beside it.
fn is_beside(rest: &str) -> bool {
    rest.starts_with('-') || rest == "/updates"
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    fn releases() -> Releases {
        let read = |name| fs::read_to_string(format!("/usr/share/distro-info/{name}.csv")).unwrap_or_default();
        Releases { debian: read("debian"), ubuntu: read("ubuntu") }
    }

    fn known(text: &str) -> Vec<Known> {
        let line = |line: &str| line.split_once(' ').map(|(uri, suite)| Known { uri: uri.into(), suite: suite.into() });
        text.lines().filter_map(line).collect()
    }

    fn sources(suite: &str, here: &str) -> String {
        let lines = Releases::default().sources(suite, "amd64", ("main", ""), &known(here));
        lines.map(|lines| lines.concat().replace("deb ", "").replace(" main", "")).unwrap_or_default()
    }

    /// mmdebstrap's own functions, run as they are.
    const MMDEBSTRAP: &str = r#"
        use POSIX; use List::Util qw(any none);
        sub debug {} sub error { die @_ }
        open my $fh, '<', '/usr/bin/mmdebstrap' or die; my $text = do { local $/; <$fh> };
        foreach my $name ('parse_distro_info', 'get_suite_by_vendor', 'get_sourceslist_by_suite') {
            my ($sub) = $text =~ /^(sub \Q$name\E \{.*?^\}\n)/ms or die $name; eval $sub; die $@ if $@;
        }
        my %vendor = get_suite_by_vendor();
        foreach my $suite (@ARGV) { print get_sourceslist_by_suite($suite, 'amd64', '', 'main', \%vendor), "\n"; }
    "#;

    #[test]
    fn a_suite_without_an_address_has_mmdebstraps_sources() {
        let suites = [
            "stable", "testing", "unstable", "sid", "jessie", "stretch", "buster", "bullseye", "bookworm", "trixie",
            "forky", "trusty", "xenial", "bionic", "focal", "jammy", "noble",
        ];
        let theirs = Command::new("perl").args(["-e", MMDEBSTRAP]).args(suites).output().unwrap();
        assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
        let text = String::from_utf8(theirs.stdout).unwrap();
        let theirs: Vec<&str> = text.split_terminator("\n\n").map(|lines| lines.trim_end()).collect();
        assert_eq!(theirs.len(), suites.len());
        for (suite, theirs) in suites.iter().zip(theirs) {
            let ours = releases().sources(suite, "amd64", ("main", ""), &[]).unwrap().concat();
            assert_eq!(ours.trim_end(), theirs, "{suite}");
        }
    }

    #[test]
    fn bootstrap_without_an_address_has_updates_and_security() {
        let near = "http://near.example/debian bookworm\nhttp://near.example/debian bookworm-updates\n\
                    http://near.example/security bookworm-security\n";
        for (suite, here, expected) in [
            (
                "stable",
                near,
                "http://near.example/debian stable\nhttp://near.example/debian stable-updates\n\
                 http://near.example/security stable-security\n",
            ),
            ("bookworm", near, near),
            // Its owner has left them out.
            ("bookworm", "http://near.example/debian bookworm\n", "http://near.example/debian bookworm\n"),
            // The archive of security fixes is not the archive.
            (
                "trixie",
                "http://near.example/security bookworm-security\n",
                "http://deb.debian.org/debian trixie\nhttp://deb.debian.org/debian trixie-updates\n\
                 http://near.example/security trixie-security\n",
            ),
            // Another distribution's machine, or one with private packages alone.
            (
                "stable",
                "http://archive.ubuntu.com/ubuntu noble\n",
                "http://deb.debian.org/debian stable\nhttp://deb.debian.org/debian stable-updates\n\
                 http://security.debian.org/debian-security stable-security\n",
            ),
            (
                "oldstable",
                "http://packages.example/own main\n",
                "http://deb.debian.org/debian oldstable\nhttp://deb.debian.org/debian oldstable-updates\n\
                 http://security.debian.org/debian-security oldstable-security\n",
            ),
            ("sid", near, "http://near.example/debian sid\n"),
            ("experimental", near, "http://near.example/debian experimental\n"),
            (
                "buster",
                "",
                "http://deb.debian.org/debian buster\nhttp://deb.debian.org/debian buster-updates\n\
                 http://security.debian.org/debian-security buster/updates\n",
            ),
            ("stable-backports", near, "http://near.example/debian stable-backports\n"),
            // A suite of somebody's own.
            ("crafted", "http://packages.example/own main\n", "http://packages.example/own crafted\n"),
            ("crafted", "", ""),
        ] {
            assert_eq!(sources(suite, here), expected, "{suite} on {here:?}");
        }
    }

    #[test]
    fn ubuntu_for_other_architectures_is_at_its_ports() {
        let lines = Releases::default().sources("noble", "arm64", ("main", ""), &[]).unwrap();
        assert!(lines.len() == 3 && lines.iter().all(|line| line.contains("ports.ubuntu.com")), "{lines:?}");
    }
}
