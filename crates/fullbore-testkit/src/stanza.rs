//! What the indexes say about the packages of the model.

use std::fmt::Write;

use crate::{
    digest::Digest,
    model::{Binary, BinaryKind, SourcePackage},
};

const SECTIONS: &[&str] = &["admin", "devel", "doc", "fonts", "libs", "net", "python", "utils"];

/// Something that looks like an MD5 and is the same for the same text. Nothing checks these,
/// and a second hash over every file would slow the tests.
pub(crate) fn invented_md5(text: &str) -> String {
    Digest::of(text.as_bytes()).to_string()[..32].to_string()
}

pub(crate) fn section(package: &SourcePackage, component: &str) -> String {
    let section = SECTIONS[package.name.len() % SECTIONS.len()];
    if component == "main" { section.to_string() } else { format!("{component}/{section}") }
}

fn priority(place: usize) -> &'static str {
    match place % 17 {
        0 => "required",
        1 => "important",
        2 => "standard",
        _ => "optional",
    }
}

/// Name of a package that this one depends on, if any: always one with a lower place.
fn dependency(place: usize, installable: &[(usize, String)]) -> Option<&str> {
    if place.is_multiple_of(3) {
        return None;
    }
    let lower = installable.partition_point(|(other, _)| *other < place);
    let (_, name) = installable[..lower].get((place * 7) % lower.max(1))?;
    Some(name)
}

/// The part of a binary's stanza that is also its `control` file.
pub(crate) fn control(
    package: &SourcePackage,
    binary: &Binary,
    architecture: &str,
    installable: &[(usize, String)],
) -> String {
    let mut text = format!("Package: {}\n", binary.name);
    if binary.name != package.name {
        let _ = writeln!(text, "Source: {}", package.name);
    }
    let architecture = if binary.kind == BinaryKind::All { "all" } else { architecture };
    let _ = write!(
        text,
        "Version: {}\nInstalled-Size: {}\nMaintainer: Test Maintainers <maintainers@example.org>\nArchitecture: {architecture}\n",
        package.version(),
        binary.size / 1024 + 1,
    );
    if binary.kind != BinaryKind::Udeb
        && let Some(name) = dependency(binary.place, installable)
    {
        let _ = writeln!(text, "Depends: {name}");
    }
    if binary.kind == BinaryKind::All {
        text.push_str("Multi-Arch: foreign\n");
    }
    let _ = write!(
        text,
        "Homepage: https://example.org/{}\nSection: {}\nPriority: {}\nDescription: {}\n",
        package.name,
        section(package, &package.component),
        priority(binary.place),
        short_description(binary),
    );
    text
}

pub(crate) fn short_description(binary: &Binary) -> String {
    format!("package {} of the test archive", binary.name)
}

/// A stanza of `Packages`, empty line included.
pub(crate) fn packages(control: &str, binary: &Binary, path: &str, size: u64, sha256: Digest) -> String {
    let description_md5 = invented_md5(&short_description(binary));
    format!("{control}Description-md5: {description_md5}\nFilename: {path}\nSize: {size}\nSHA256: {sha256}\n\n")
}

/// A stanza of `Translation-en`.
pub(crate) fn translation(binary: &Binary) -> String {
    let short = short_description(binary);
    format!(
        "Package: {}\nDescription-md5: {}\nDescription-en: {short}\n It consists of random bytes and does nothing.\n .\n It does it well.\n\n",
        binary.name,
        invented_md5(&short),
    )
}

/// A stanza of `Sources`; `files` are name, size and digest in the order of the `.dsc`.
pub(crate) fn sources(
    package: &SourcePackage,
    directory: &str,
    files: &[(String, u64, Digest)],
    extra_source_only: bool,
) -> String {
    let binaries: Vec<&str> = package.binaries.iter().map(|binary| binary.name.as_str()).collect();
    let format = if package.revision.is_some() { "3.0 (quilt)" } else { "3.0 (native)" };
    let mut text = format!(
        "Package: {}\nBinary: {}\nVersion: {}\nMaintainer: Test Maintainers <maintainers@example.org>\nBuild-Depends: debhelper-compat (= 13)\nArchitecture: any all\nStandards-Version: 4.7.2\nFormat: {format}\nChecksums-Sha256:\n",
        package.name,
        binaries.join(", "),
        package.version(),
    );
    for (name, size, digest) in files {
        let _ = writeln!(text, " {digest} {size} {name}");
    }
    let section = section(package, &package.component);
    let _ = write!(text, "Homepage: https://example.org/{}\nPackage-List:\n", package.name);
    for name in &binaries {
        let _ = writeln!(text, " {name} deb {section} optional arch=any");
    }
    if extra_source_only {
        text.push_str("Extra-Source-Only: yes\n");
    }
    let _ = write!(text, "Directory: {directory}\nPriority: optional\nSection: {section}\n\n");
    text
}

/// Lines of `Contents`: path and `section/package`.
pub(crate) fn contents(package: &SourcePackage, binary: &Binary) -> Vec<String> {
    let section = section(package, &package.component);
    let name = &binary.name;
    let mut paths = vec![
        format!("usr/share/doc/{name}/changelog.Debian.gz"),
        format!("usr/share/doc/{name}/copyright"),
        format!("usr/share/{name}/data-{}", package.version()),
    ];
    paths.extend((0..binary.place % 20).map(|number| format!("usr/share/{name}/part {number:02}")));
    paths.into_iter().map(|path| format!("{path:<55} {section}/{name}\n")).collect()
}
