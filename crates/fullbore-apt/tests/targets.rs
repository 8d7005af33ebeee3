//! Index targets and file names, as the installed apt has them.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use fullbore_apt::acquire::Configuration;
use fullbore_apt::lists::file_name;
use fullbore_apt::lists::{Defaults, SourceType, targets};
use fullbore_apt::lists::{Locale, languages};
use fullbore_debian::sources_list::{parse_deb822, parse_one_line};

/// A private configuration: nothing of this machine's sources, lists or settings.
fn run(program: &str, dir: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .env("APT_CONFIG", dir.join("apt.conf"))
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|error| panic!("{program} (package apt): {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const KINDS: &str = r#"
Acquire::IndexTargets::deb::Contents-deb { MetaKey "$(COMPONENT)/Contents-$(ARCHITECTURE)"; flatMetaKey "Contents-$(ARCHITECTURE)";
  ShortDescription "Contents-$(ARCHITECTURE)"; Description "x"; PDiffs "true"; KeepCompressed "true"; DefaultEnabled "false"; Identifier "Contents-deb"; };
Acquire::IndexTargets::deb::DEP-11 { MetaKey "$(COMPONENT)/dep11/Components-$(NATIVE_ARCHITECTURE).yml"; ShortDescription "Components-$(NATIVE_ARCHITECTURE)";
  Description "x"; KeepCompressed "true"; KeepCompressedAs "gz"; };
Acquire::IndexTargets::deb::CNF { MetaKey "$(COMPONENT)/cnf/Commands-$(NATIVE_ARCHITECTURE)"; ShortDescription "Commands"; Description "x"; By-Hash "force"; };
Acquire::IndexTargets::deb-src::Contents-dsc { MetaKey "$(COMPONENT)/Contents-source"; ShortDescription "Contents-source"; Description "x"; DefaultEnabled "false";
  CompressionTypes "gz xz"; PDiffs "false"; };
"#;

/// The targets of these sources as apt and as we see them, one line each.
fn both(name: &str, sources: &str, settings: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::fs::create_dir_all(root.join("lists/partial")).unwrap();
    std::fs::create_dir(root.join("parts")).unwrap();
    for name in ["Translation-it", "Translation-ja.xz"] {
        std::fs::write(root.join(format!("lists/x_dists_y_main_i18n_{name}")), "").unwrap();
    }
    std::fs::write(root.join(name), sources).unwrap();
    let at = |name: &str| root.join(name).display().to_string();
    std::fs::write(
        root.join("apt.conf"),
        format!(
            "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"{}\";\nDir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"-\";\n\
             Dir::State::lists \"{}\";\nAPT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; \"i386\"; }};\n{KINDS}{settings}",
            at("parts"),
            at(name),
            at("lists")
        ),
    )
    .unwrap();
    let stanzas = run("apt-get", root, &["indextargets", "--no-release-info"]);
    let theirs = stanzas.split("\n\n").filter(|stanza| !stanza.is_empty()).map(|stanza| {
        let get = |name: &str| {
            let line = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().replace(&at("lists"), "")
        };
        format!(
            "{} {} {} {} opt={} keep={} [{}] [{}] pdiffs={} {} <{}|{}|{}>",
            get("Target-Of"),
            get("Created-By"),
            get("URI"),
            get("Filename"),
            get("Optional"),
            get("KeepCompressed"),
            get("KeepCompressedAs"),
            get("CompressionTypes"),
            get("PDiffs"),
            get("By-Hash"),
            get("Component"),
            get("Architecture"),
            get("Language"),
        )
    });
    let theirs = theirs.collect();

    let configuration = Configuration::from_dump(&run("apt-config", root, &Configuration::DUMP)).unwrap();
    let present: Vec<_> =
        std::fs::read_dir(root.join("lists")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let defaults = Defaults::new(&configuration, "none", languages(&configuration, &Locale::default(), &present));
    let parsed =
        if name.ends_with(".list") { parse_one_line(sources, "amd64") } else { parse_deb822(sources, "amd64") };
    let mut ours = BTreeSet::new();
    let yes = |value: bool| if value { "yes" } else { "no" };
    for source in parsed.unwrap() {
        for (kind, _) in
            [(SourceType::Deb, source.binary), (SourceType::DebSrc, source.source)].iter().filter(|(_, on)| *on)
        {
            for (uri, suite) in
                source.uris.iter().flat_map(|uri| source.suite_names.iter().map(move |suite| (uri, suite)))
            {
                for target in targets(&configuration, &defaults, &source, *kind, uri, suite) {
                    ours.insert(format!(
                        "{} {} {} /{} opt={} keep={} [{}] [{}] pdiffs={} {} <{}|{}|{}>",
                        kind.name(),
                        target.created_by,
                        target.uri(),
                        file_name(&target.uri()),
                        yes(target.optional),
                        yes(target.keep_compressed),
                        target.keep_compressed_as.join(" "),
                        target.compression_types.join(" "),
                        yes(target.pdiffs),
                        format!("{:?}", target.by_hash).to_lowercase().replace("announced", "yes"),
                        target.component.unwrap_or_default(),
                        target.architecture.unwrap_or_default(),
                        target.language.unwrap_or_default(),
                    ));
                }
            }
        }
    }
    (theirs, ours)
}

fn same(name: &str, sources: &str, settings: &str) {
    let (theirs, ours) = both(name, sources, settings);
    let only =
        |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).take(6).cloned().collect::<Vec<_>>().join("\n");
    assert!(theirs == ours, "only apt:\n{}\nonly we:\n{}", only(&theirs, &ours), only(&ours, &theirs));
    assert!(!theirs.is_empty());
}

#[test]
fn sources_of_a_plain_system_have_apts_targets() {
    let sources = "Types: deb deb-src\nURIs: http://mirror.example.org/debian\nSuites: bookworm bookworm-updates\nComponents: main contrib\n";
    same("a.sources", sources, "");
    same(
        "a.sources",
        sources,
        "Acquire::Languages { \"de\"; \"none\"; \"fr\"; };\nAcquire::GzipIndexes \"true\";\nAcquire::PDiffs \"false\";\n",
    );
    same(
        "a.sources",
        sources,
        "Acquire::Languages \"none\";\nAcquire::CompressionTypes::Order { \"gz\"; \"lz4\"; };\nAPT::Compressor::xz::Cost \"10\";\n",
    );
}

#[test]
fn options_of_a_source_change_targets_as_in_apt() {
    same(
        "a.sources",
        "Types: deb deb-src\nURIs: http://[::1]:8080/a_b/ https://u:p@h/x~y\nSuites: sid\nComponents: main\nArchitectures: i386 arm64\n\
         Languages: en de\nTargets-Add: Contents-deb\nPDiffs: no\nBy-Hash: no\n",
        "",
    );
    same(
        "a.list",
        "deb [arch-=i386 target=Packages,CNF lang+=fr by-hash=force] http://h/d sid main\n\
         deb-src [target+=Contents-dsc pdiffs=yes] http://h/d sid main contrib\n\
         deb [Contents-deb=yes DEP-11=no] http://h/e sid main\n",
        "",
    );
}

#[test]
fn flat_repositories_have_apts_targets() {
    same(
        "a.list",
        "deb http://h/flat ./\ndeb-src http://h/flat/ ./\ndeb http://h/other /\ndeb [Contents-deb=yes] http://h/third a/b/\n",
        "",
    );
}
