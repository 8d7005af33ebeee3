//! Suites, codenames, components and architectures that differ from the directories, or are missing.

use super::OddArchive;
use super::draft::Draft;

pub(super) const ALL: &[OddArchive] = &[
    OddArchive::usual("suite-below-its-name", below_its_name).suite("bionic/snapshots/5.12"),
    OddArchive::usual("suite-of-another-name", another_name),
    OddArchive::usual("suite-unnamed", unnamed),
    OddArchive::usual("codename-below", codename_below).suite("wheezy"),
    OddArchive::usual("components-of-another-name", |draft| draft.set("Components", "testing")),
    OddArchive::usual("components-missing", |draft| draft.unset("Components")),
    OddArchive::usual("components-with-directory", |draft| draft.set("Components", "updates/main")),
    OddArchive::usual("components-below", components_below).components("updates/main"),
    OddArchive::usual("components-one-absent", |_| ()).components("main zoom"),
    OddArchive::usual("components-only-absent", |_| ()).components("zoom"),
    OddArchive::usual("components-listed-and-absent", listed_and_absent).components("main contrib"),
    OddArchive::usual("components-of-the-version", of_the_version).components("11"),
    OddArchive::usual("architectures-missing", |draft| draft.unset("Architectures")),
    OddArchive::usual("architectures-of-another", |draft| draft.set("Architectures", "arm64")),
    OddArchive::usual("architectures-one-absent", |_| ()).architectures("amd64 i386"),
    OddArchive::usual("architectures-listed-and-absent", architecture_listed).architectures("amd64 i386"),
    OddArchive::usual("architectures-with-all", with_all),
    OddArchive::usual("architectures-in-two-lines", in_two_lines),
    OddArchive::usual("fields-unknown", unknown_fields),
    OddArchive::usual("not-automatic", not_automatic),
    OddArchive::usual("suite-empty", |draft| draft.stanzas.clear()),
];

/// The suite of the directory above (Debian/apt#79: mono).
fn below_its_name(draft: &mut Draft) {
    draft.set("Suite", "bionic");
    draft.set("Codename", "bionic");
}

/// A suite of another name (debiancn/repo#147, drakkan/sftpgo#2090).
fn another_name(draft: &mut Draft) {
    draft.set("Suite", "buster");
    draft.set("Codename", "buster");
}

/// Neither suite nor codename (emqx/emqx#2640, mark-kubacki/apt-image#5).
fn unnamed(draft: &mut Draft) {
    draft.unset("Suite");
    draft.unset("Codename");
}

/// The codename is a path below the suite (aptly-dev/aptly#110).
fn codename_below(draft: &mut Draft) {
    draft.unset("Suite");
    draft.set("Codename", "wheezy/updates");
}

/// The directory of the component has two levels.
fn components_below(draft: &mut Draft) {
    draft.index = "updates/main/binary-amd64/Packages".to_owned();
    draft.set("Components", "updates/main");
}

/// A component without an index (eLvErDe/hwraid#20, collectd/collectd#2264).
fn listed_and_absent(draft: &mut Draft) {
    draft.set("Components", "main contrib");
}

/// A component that is a number (apt-mirror/apt-mirror#119: PostgreSQL).
fn of_the_version(draft: &mut Draft) {
    draft.index = "11/binary-amd64/Packages".to_owned();
    draft.set("Components", "main 11");
}

/// An architecture without an index (aptly-dev/aptly#250, lizardfs/lizardfs#485).
fn architecture_listed(draft: &mut Draft) {
    draft.set("Architectures", "amd64 i386");
}

/// Packages of `all` in an index of their own, which is empty (pulp/pulp_deb#612).
fn with_all(draft: &mut Draft) {
    draft.set("Architectures", "all amd64");
    draft.publish("main/binary-all/Packages", b"");
}

/// A list that is broken into two lines (sysown/proxysql#5683).
fn in_two_lines(draft: &mut Draft) {
    draft.edit_release = |text| text.replace("Architectures: amd64", "Architectures: amd64\narm64").into_bytes();
}

/// Fields of a vendor.
fn unknown_fields(draft: &mut Draft) {
    draft.set("X-Vendor", "yes");
    draft.set("Changelogs", "no");
    draft.set("Description", &"a long story ".repeat(2_000));
}

/// Packages that nothing installs by itself.
fn not_automatic(draft: &mut Draft) {
    draft.set("NotAutomatic", "yes");
    draft.set("ButAutomaticUpgrades", "yes");
}
