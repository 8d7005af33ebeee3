//! The fault list of `mirror`, item by item: the real program against an archive that lies, mirrors
//! that break, disks that fill up and runs that are killed. The codes of faults are those of
//! docs/design/0021-mirror-in-a-bucket.md.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fullbore_testkit::archive::Archive;
use fullbore_testkit::compression::Form;
use fullbore_testkit::digest::Digest;
use fullbore_testkit::faults::{self, SmallDisk};
use fullbore_testkit::forge::Forge;
use fullbore_testkit::random::Random;
use fullbore_testkit::server::{Fault, FaultRule, Life, PathMatch, Server};
use harness::{Mirror, common, lost, own_archive, published, stranger, tree, verified};

const PACKAGES: &str = "main/binary-amd64/Packages";

fn inrelease() -> PathMatch {
    PathMatch::Suffix("/InRelease".to_owned())
}

fn pool() -> PathMatch {
    PathMatch::Prefix("/pool/".to_owned())
}

/// A mirror of state 0, and a server of state 1.
fn updating(archive: &Archive) -> (Mirror, Server) {
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(archive);
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, archive, 0);
    server.switch_root(&archive.state(1).root);
    (mirror, server)
}

/// M1
#[test]
fn bytes_outside_the_signature_are_refused() {
    let (_directory, archive) = own_archive(|builder| builder);
    let (mirror, server) = updating(&archive);
    let before = mirror.tree();
    let forge = archive.forge(1, "trixie");
    let (good, release) = (forge.in_release().unwrap(), forge.release().unwrap());
    let stanza = "Origin: Evil\nCodename: trixie\n\n";
    let other = stranger();
    type Change<'a> = Box<dyn Fn(&Forge<'_>) + 'a>;
    // What is larger than any Release is not even received; all else is, and not believed.
    let cases: Vec<(&str, Change<'_>)> = vec![
        ("stanza before", Box::new(|forge| forge.prepend_unsigned(stanza).unwrap())),
        ("stanza behind", Box::new(|forge| forge.append_unsigned(stanza).unwrap())),
        ("second message", Box::new(|forge| forge.append_signed_by(&other, stanza).unwrap())),
        ("byte flipped", Box::new(|forge| forge.flip_signed_byte().unwrap())),
        ("NUL", Box::new(|forge| forge.nul().unwrap())),
        ("long first line", Box::new(|forge| forge.long_first_line(1 << 20).unwrap())),
        ("long armour header", Box::new(|forge| forge.long_armour_header(1 << 20).unwrap())),
        ("larger than any Release", Box::new(|forge| forge.long_first_line(64 << 20).unwrap())),
        ("SHA-1", Box::new(|forge| forge.weak_digest("SHA1").unwrap())),
    ];
    for (name, change) in cases {
        change(&forge);
        let ran = mirror.run(&[&server]);
        assert_eq!(ran.code, Some(if name == "larger than any Release" { 3 } else { 4 }), "{name}: {ran:?}");
        assert!(ran.stderr.contains("error: trixie: "), "{name}: {}", ran.stderr);
        assert_eq!(before, mirror.tree(), "{name}");
        forge.set_release(&release).unwrap();
        forge.set_in_release(&good).unwrap();
    }
    // OpenPGP hashes line ends as CR LF, so this text is the signed one for gpgv, apt and us.
    forge.crlf().unwrap();
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 1);
    let before = mirror.tree();
    forge.set_in_release(&good).unwrap();
    server.add_fault(FaultRule::always(inrelease(), Fault::Endless));
    let ran = mirror.run(&[&server]);
    assert_eq!(ran.code, Some(3), "endless: {ran:?}");
    assert_eq!(before, mirror.tree(), "endless");
    server.change(|behaviour| behaviour.faults.clear());
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 1);
}

/// M2
#[test]
fn a_fallback_mirror_with_another_key_is_refused() {
    let (_directory, forged) = own_archive(|builder| builder);
    let other = stranger();
    let forge = forged.forge(1, "trixie").signed_by(&other);
    forge.set_release(&forge.release().unwrap()).unwrap();
    let (mirror, server) = updating(common());
    let before = mirror.tree();
    let evil = Server::start(&forged.state(1).root).unwrap();
    server.live(Life::Refusing);
    mirror.run(&[&server, &evil]).exits(4).says("no mirror has its Release").says(&evil.url());
    assert_eq!(before, mirror.tree());
    // The same when there was nothing yet, and when only the detached signature is left.
    forge.remove_in_release().unwrap();
    mirror.run(&[&server, &evil]).exits(4);
    assert_eq!(before, mirror.tree());
    let empty = Mirror::new(common());
    empty.run(&[&server, &evil]).exits(4);
    assert!(empty.tree().is_empty(), "{:?}", empty.tree());
}

/// M3
#[test]
fn a_redirect_that_injects_is_not_followed() {
    let archive = common();
    let evil = Server::builder(&archive.state(0).root)
        .fault(FaultRule::always(PathMatch::Any, Fault::RedirectInjection))
        .start()
        .unwrap();
    let alone = Mirror::new(archive);
    // A redirect that cannot be followed is no answer: there is nothing whose signature could be wrong.
    alone.run(&[&evil]).exits(3);
    assert!(alone.tree().is_empty());
    let good = Server::start(&archive.state(0).root).unwrap();
    let both = Mirror::new(archive);
    both.run(&[&good, &evil]).exits(0);
    verified(&both.to, archive, 0);
}

/// M4
#[test]
fn not_modified_is_not_trusted() {
    let archive = common();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(archive);
    mirror.run(&[&server]).exits(0);
    let path = mirror.to.join("dists/trixie/InRelease");
    faults::flip_bit(&path, 200).unwrap();
    let altered = mirror.tree();
    server.add_fault(FaultRule::always(PathMatch::Any, Fault::NotModified));
    // The copy is not the signed one, so the question has no condition, and 304 is no answer to it.
    mirror.run(&[&server]).exits(3);
    assert_eq!(altered, mirror.tree());
    server.change(|behaviour| behaviour.faults.clear());
    server.take_log();
    mirror.run(&[&server]).exits(0);
    let asked = server.take_log();
    assert!(asked.iter().any(|entry| entry.path.ends_with("/InRelease") && entry.status == 200), "not fetched again");
    verified(&mirror.to, archive, 0);
}

#[test]
fn an_index_that_no_mirror_has_is_told_and_its_suite_stays() {
    let (_directory, archive) = own_archive(|builder| builder.contents(true));
    let (mirror, server) = updating(&archive);
    let before = mirror.tree();
    let contents: Vec<_> = archive.state(1).indexes.iter().filter(|index| index.path.contains("Contents-")).collect();
    assert!(!contents.is_empty());
    for index in contents {
        server.add_fault(FaultRule::always(PathMatch::Suffix(index.sha256.to_string()), Fault::Status(404)));
    }
    server.add_fault(FaultRule::always(PathMatch::Contains("/Contents-".into()), Fault::Status(404)));
    mirror.run(&[&server]).exits(2).says("/Contents-").says("no mirror has it");
    let release = "dists/trixie/InRelease";
    assert_eq!(before.get(release), mirror.tree().get(release));
    server.change(|behaviour| behaviour.faults.clear());
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 1);
}

/// M5
#[test]
fn changed_index_in_the_store_is_detected() {
    let archive = common();
    let (mirror, server) = updating(archive);
    server.switch_root(&archive.state(0).root);
    let mut changed = 0;
    for entry in std::fs::read_dir(mirror.to.join(".fullbore/index")).unwrap() {
        let path = entry.unwrap().path();
        let length = path.metadata().unwrap().len();
        if length > 0 {
            faults::flip_bit(&path, length / 2).unwrap();
            changed += 1;
        }
    }
    if changed == 0 {
        // No store is kept between runs: the indexes that are reused are the published ones.
        let index = mirror.to.join(format!("dists/trixie/{PACKAGES}.xz"));
        faults::flip_bit(&index, index.metadata().unwrap().len() / 2).unwrap();
    }
    // Other settings make a new plan out of the indexes that are here.
    mirror.run_with(&[&server], &["--exclude", "nothing-has-this-name"]).exits(0);
    verified(&mirror.to, archive, 0);
    server.switch_root(&archive.state(1).root);
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, archive, 1);
}

/// M6
#[test]
fn unsigned_then_signed_run_reuses_nothing_unverified() {
    let archive = common();
    let (_directory, evil) = own_archive(|builder| builder);
    // The same archive, with another content under each name and indexes that say so.
    let forge = evil.forge(0, "trixie");
    for (path, file) in evil.state(0).select(|file| file.path.ends_with(".deb")) {
        let place = evil.state(0).root.join(path);
        let content = vec![b'E'; file.size as usize];
        std::fs::remove_file(&place).unwrap();
        std::fs::write(&place, &content).unwrap();
        for index in [PACKAGES, "main/binary-all/Packages"] {
            let text = forge.index(index).unwrap();
            forge.set_index(index, &text.replace(&file.sha256.to_string(), &Digest::of(&content).to_string())).unwrap();
        }
    }
    let text = forge.release().unwrap();
    let release = evil.state(0).root.join("dists/trixie");
    for name in ["InRelease", "Release.gpg"] {
        std::fs::remove_file(release.join(name)).unwrap();
    }
    // A date far off must not keep the signed state out either.
    let later: String = text
        .lines()
        .map(|line| {
            if line.starts_with("Date: ") {
                "Date: Fri, 01 Jan 2027 00:00:00 UTC\n".to_owned()
            } else {
                format!("{line}\n")
            }
        })
        .collect();
    std::fs::remove_file(release.join("Release")).unwrap();
    std::fs::write(release.join("Release"), later).unwrap();
    let bad = Server::start(&evil.state(0).root).unwrap();
    let mirror = Mirror::new(archive).suite("").no_keyring();
    let sources = mirror.to.with_extension("sources");
    let entry = format!(
        "Types: deb deb-src\nURIs: {}\nSuites: trixie\nComponents: main\nTrusted: yes\nCheck-Date: no\n",
        bad.url()
    );
    std::fs::write(&sources, entry).unwrap();
    mirror.run_with(&[], &["--sources", sources.to_str().unwrap()]).exits(0);
    let good = Server::start(&archive.state(0).root).unwrap();
    let mirror = mirror.suite("trixie").keyring(archive.key());
    mirror.run(&[&good]).exits(0);
    verified(&mirror.to, archive, 0);
}

/// M7
#[test]
fn hostile_names_reach_nothing_outside() {
    let (_directory, archive) = own_archive(|builder| builder);
    let (mirror, server) = updating(&archive);
    let outside = mirror.to.parent().unwrap().join("sentinel");
    std::fs::write(&outside, "untouched").unwrap();
    let forge = archive.forge(1, "trixie");
    // Files of one date and length are another state all the same.
    server.change(|behaviour| behaviour.validators = false);
    let (packages, release) = (forge.index(PACKAGES).unwrap(), forge.release().unwrap());
    let first = packages.lines().find(|line| line.starts_with("Filename: ")).unwrap().to_owned();
    let before = mirror.tree();
    let long = "x/".repeat(2048);
    for name in [
        "../sentinel",
        "pool/../../sentinel",
        outside.to_str().unwrap(),
        "pool/%2e%2e/%2e%2e/sentinel",
        "pool//sentinel",
        "pool/a\0b",
        "pool/a\u{1b}[31m",
        ".fullbore/lock",
        "dists/trixie/InRelease",
        &long,
    ] {
        forge.set_index(PACKAGES, &packages.replacen(&first, &format!("Filename: {name}"), 1)).unwrap();
        // The entry is left out, or the whole index where it has few; a path within the archive is not there.
        let ran = mirror.run(&[&server]);
        assert!(matches!(ran.code, Some(2 | 4)), "{name:?}: {ran:?}");
        assert!(!ran.stderr.contains('\u{1b}'), "a name reached the terminal as it is");
        assert!(lost(&before, &mirror.tree()).iter().all(|path| path.starts_with("dists/")), "{name:?}");
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "untouched", "{name:?}");
    }
    forge.set_index(PACKAGES, &packages).unwrap();
    for name in ["../../../sentinel", outside.to_str().unwrap(), "main/%2e%2e/Packages.xz", "main/../Packages.xz"] {
        forge.set_entry(name, 9, Digest::of(b"untouched")).unwrap();
        mirror.run(&[&server]).exits(0).says("of the Release is left out");
        assert!(lost(&before, &mirror.tree()).iter().all(|path| path.starts_with("dists/")), "{name:?}");
        forge.set_release(&release).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "untouched");

    // A parent that somebody made a link out of the mirror.
    let (mirror, server) = updating(&archive);
    let elsewhere = mirror.to.parent().unwrap().join("elsewhere");
    std::fs::rename(mirror.to.join("pool"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, mirror.to.join("pool")).unwrap();
    let before = tree(&elsewhere);
    forge.set_index(PACKAGES, &packages).unwrap();
    let ran = mirror.run(&[&server]);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.stderr.contains("symbolic link"), "{ran:?}");
    assert_eq!(before, tree(&elsewhere));
}

/// M8
#[test]
fn a_decompression_bomb_takes_no_memory() {
    /// Far above what a plain index of this archive may have, quick to make and to tell.
    const PLAIN_BYTES: u64 = 192 << 20;
    for form in [Form::Gz, Form::Xz, Form::Zst] {
        let (_directory, archive) = own_archive(|builder| builder.forms(&[form]));
        let (mirror, server) = updating(&archive);
        let before = mirror.tree();
        let forge = archive.forge(1, "trixie");
        forge.set_index_form(&format!("{PACKAGES}{}", form.suffix()), &zeros(form, PLAIN_BYTES)).unwrap();
        let start = Instant::now();
        let ran = mirror.run(&[&server]).exits(4);
        assert!(start.elapsed() < Duration::from_secs(10), "{form:?}: {:?}", start.elapsed());
        let rss = ran.number("peak_rss_bytes");
        assert!(rss < 128 << 20, "{form:?}: {rss}");
        assert_eq!(before, mirror.tree(), "{form:?}");
        // The output is bounded even where the Release itself lies about the plain size.
        forge.set_entry(PACKAGES, PLAIN_BYTES, Digest::of(b"")).unwrap();
        let ran = mirror.run(&[&server]).exits(4);
        let rss = ran.number("peak_rss_bytes");
        assert!(rss < 128 << 20, "{form:?}: {rss}");
        assert_eq!(before, mirror.tree(), "{form:?}");
    }
}

/// M8: an index that can be read, and goes on.
#[test]
fn an_index_that_never_ends_is_stopped_at_its_announced_size() {
    for form in [Form::Gz, Form::Xz, Form::Zst] {
        let (_directory, archive) = own_archive(|builder| builder.forms(&[form]));
        let (mirror, server) = updating(&archive);
        let before = mirror.tree();
        let forge = archive.forge(1, "trixie");
        let text = forge.index(PACKAGES).unwrap();
        let one = text.split("\n\n").next().unwrap();
        let endless = compressed(form, &format!("yes '{one}\n' | head -c {}", 24 << 20));
        forge.set_index_form(&format!("{PACKAGES}{}", form.suffix()), &endless).unwrap();
        let limit = format!("content exceeds the announced {} bytes", text.len());
        mirror.run(&[&server]).exits(4).says(&limit);
        // The Release does not tell the plain size: a guess from the compressed one counts.
        let release = forge.release().unwrap();
        let lines = release.lines().filter(|line| !line.ends_with(&format!(" {PACKAGES}")));
        forge.set_release(&lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        let ran = mirror.run(&[&server]).exits(4).says("content exceeds the announced ");
        assert!(!ran.stderr.contains(&limit), "{}", ran.stderr);
        assert_eq!(before, mirror.tree(), "{form:?}");
    }
}

/// So many zeros, compressed.
fn zeros(form: Form, bytes: u64) -> Vec<u8> {
    compressed(form, &format!("head -c {bytes} /dev/zero"))
}

/// What a command of the shell writes, compressed.
fn compressed(form: Form, command: &str) -> Vec<u8> {
    let program = match form {
        Form::Xz => ("xz", "xz-utils"),
        Form::Zst => ("zstd", "zstd"),
        _ => ("gzip", "gzip"),
    };
    harness::need(program.0, program.1);
    let pipe = format!("{command} | {} -1", program.0);
    let output = Command::new("sh").args(["-c", &pipe]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// M9
#[test]
fn drips_and_endless_bodies_cost_little_time() {
    /// What a bad mirror may cost beside a good one.
    const COST: Duration = Duration::from_secs(2);
    /// What it may cost on a machine that has something else to do, too: less than the 30 s of a drip that
    /// is waited for.
    const COST_AT_MOST: Duration = Duration::from_secs(15);
    /// The good one may be done before the bad one was asked for anything: that is no try.
    const TRIES: usize = 3;
    const TRIES_AT_MOST: usize = 8;
    // Large and slow enough that the bad one is given work before the good one is done.
    let (_directory, archive) = own_archive(|builder| builder.states(1).pool_bytes(12_000_000));
    let archive = &archive;
    let good =
        Server::builder(&archive.state(0).root).behaviour(|b| b.rate_bytes_per_s = Some(12_000_000)).start().unwrap();
    let start = Instant::now();
    Mirror::new(archive).run(&[&good]).exits(0);
    let alone = start.elapsed();
    let cases = [
        ("1 byte/s", pool(), Fault::Drip(1)),
        ("22 kB/s", pool(), Fault::Drip(22_000)),
        ("2 kB/s, indexes too", PathMatch::Any, Fault::Drip(2_000)),
        ("endless", pool(), Fault::Endless),
        ("stall", pool(), Fault::Stall),
    ];
    for (name, paths, fault) in cases {
        let bad = Server::builder(&archive.state(0).root).fault(FaultRule::always(paths, fault)).start().unwrap();
        let run = || {
            let mirror = Mirror::new(archive);
            let start = Instant::now();
            mirror.run(&[&good, &bad]).exits(0);
            let took = start.elapsed();
            let asked = bad.take_log().iter().any(|entry| !entry.path.ends_with("Release"));
            verified(&mirror.to, archive, 0);
            (asked, took)
        };
        let mut tries = Vec::new();
        for _ in 0..TRIES_AT_MOST {
            let (asked, took) = run();
            tries.extend(asked.then_some(took));
            if tries.len() >= TRIES && tries.iter().any(|took| *took < alone + COST) {
                break;
            }
        }
        assert!(tries.iter().any(|took| *took < alone + COST), "{name}: {alone:?}, then {tries:?}");
        assert!(tries.iter().all(|took| *took < alone + COST_AT_MOST), "{name}: {alone:?}, then {tries:?}");
    }
}

/// M10
#[test]
fn a_rollback_and_an_expired_release_are_refused() {
    let (_directory, archive) = own_archive(|builder| builder);
    let (mirror, server) = updating(&archive);
    mirror.run(&[&server]).exits(0);
    let before = mirror.tree();
    server.switch_root(&archive.state(0).root);
    // The file is not modified since the date of ours: it is older. Its tag shows it, or its own date;
    // without both it is sent.
    for (tags, validators) in [(true, true), (false, true), (false, false)] {
        server.change(|behaviour| (behaviour.tags, behaviour.validators) = (tags, validators));
        mirror.run(&[&server]).exits(5).says("nothing was published or deleted").says("hint:");
        assert_eq!(before, mirror.tree());
    }
    // Where nothing shows it, nothing older is taken either: what is here stays.
    server.add_fault(FaultRule::always(inrelease(), Fault::NotModified));
    mirror.run(&[&server]).exits(0);
    assert_eq!(before, mirror.tree());
    server.change(|behaviour| behaviour.faults.clear());
    // Valid-Until passed.
    let forge = archive.forge(1, "trixie");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    forge.valid_until(now - 3600).unwrap();
    server.switch_root(&archive.state(1).root);
    mirror.run(&[&server]).exits(5).says("valid until").says("nothing was published").says("--ignore-valid-until");
    assert_eq!(before, mirror.tree());
    mirror.run_with(&[&server], &["--ignore-valid-until"]).exits(0).says("accepted although valid only until");
    verified(&mirror.to, &archive, 1);
}

/// M10: the tree itself tells how new it is: one of another program, or one whose state was lost.
#[test]
fn a_rollback_is_refused_without_a_state_too() {
    let (_directory, archive) = own_archive(|builder| builder);
    let (mirror, server) = updating(&archive);
    mirror.run(&[&server]).exits(0);
    let before = mirror.tree();
    server.switch_root(&archive.state(0).root);
    std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    let refused = || mirror.run(&[&server]).exits(5).says("older than the one mirrored");
    refused().says("nothing was published or deleted");
    assert_eq!(before, mirror.tree());
    // The same where only the detached signature is left.
    let suite = mirror.to.join("dists/trixie");
    std::fs::remove_file(suite.join("InRelease")).unwrap();
    refused();
    // What is not validly signed forbids nothing.
    faults::flip_bit(&suite.join("Release"), 200).unwrap();
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 0);
}

/// M10
#[test]
fn an_expired_release_is_refused_behind_not_modified_too() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    archive.forge(0, "trixie").valid_until(now - 1).unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run_with(&[&server], &["--ignore-valid-until"]).exits(0);
    let before = mirror.tree();
    server.take_log();
    mirror.run(&[&server]).exits(5).says("valid until");
    assert_eq!(before, mirror.tree());
    assert_eq!(server.take_log().iter().map(|entry| entry.status).collect::<Vec<_>>(), [304]);
    mirror.run_with(&[&server], &["--ignore-valid-until"]).exits(0);
}

/// M11
#[test]
fn mirrors_at_two_states_publish_one_of_them() {
    for by_hash in [true, false] {
        let (_directory, archive) = own_archive(|builder| builder.by_hash(by_hash));
        let roots = [&archive.state(0).root, &archive.state(1).root];
        let old = Server::start(roots[0]).unwrap();
        let new = Server::start(roots[1]).unwrap();
        let mirror = Mirror::new(&archive);
        mirror.run(&[&new, &old]).exits(0);
        verified(&mirror.to, &archive, 1);
        let mirror = Mirror::new(&archive);
        mirror.run(&[&old, &new]).exits(0);
        verified(&mirror.to, &archive, 0);
        mirror.run(&[&new, &old]).exits(0);
        verified(&mirror.to, &archive, 1);
        // The InRelease of one state and everything else of the other: this state or nothing.
        let mixed = Server::builder(roots[0])
            .fault(FaultRule::always(inrelease(), Fault::From(roots[1].clone())))
            .start()
            .unwrap();
        let mirror = Mirror::new(&archive);
        let ran = mirror.run(&[&mixed]);
        assert!(matches!(ran.code, Some(2..=4)), "{ran:?}");
        assert_eq!(published(&mirror.to, &archive), None);
    }
}

/// M12
#[test]
fn odd_but_complete_answers_make_a_complete_mirror() {
    let archive = common();
    let root = &archive.state(0).root;
    let servers = [
        ("permuted", Server::builder(root).behaviour(|b| b.permute = true)),
        ("HTTP/1.0", Server::builder(root).fault(FaultRule::always(PathMatch::Any, Fault::Http10))),
        ("announced close after 3", Server::builder(root).behaviour(|b| b.requests_per_connection = Some(3))),
        (
            "sudden close after 3",
            Server::builder(root).behaviour(|b| {
                b.requests_per_connection = Some(3);
                b.announce_close = false;
            }),
        ),
        ("chunked", Server::builder(root).fault(FaultRule::always(PathMatch::Any, Fault::Chunked))),
        ("until close", Server::builder(root).fault(FaultRule::always(PathMatch::Any, Fault::UntilClose))),
    ];
    for (name, builder) in servers {
        let server = builder.start().unwrap();
        let mirror = Mirror::new(archive);
        let ran = mirror.run(&[&server]);
        assert_eq!(ran.code, Some(0), "{name}: {ran:?}");
        let missing = fullbore_testkit::verify::suite(&mirror.to, archive.state(0), "trixie");
        assert!(missing.is_empty(), "{name}: {missing:?}\n{ran:?}");
        verified(&mirror.to, archive, 0);
        if name.contains("after 3") {
            assert_eq!(ran.report["summary"]["hosts"][0]["strikes"], 0, "{name}: a clean close is no fault");
        }
    }
}

/// M13
#[test]
fn a_run_killed_at_any_time_leaves_a_complete_state() {
    const KILLS: usize = 15;
    let (_directory, archive) = own_archive(|builder| builder.pool_bytes(3_000_000).churn(0.9));
    let (mirror, server) = updating(&archive);
    server.change(|behaviour| behaviour.delay = Duration::from_millis(5));
    let base = mirror.to.with_extension("base");
    let copy = |from: &Path, to: &Path| {
        let _ = std::fs::remove_dir_all(to);
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    copy(&mirror.to, &base);
    let start = Instant::now();
    mirror.run(&[&server]).exits(0);
    let whole = start.elapsed();
    copy(&base, &mirror.to);
    let mut random = Random::new(13, "kills");
    let mut finished = 0;
    for _ in 0..KILLS {
        let killed = faults::kill_at_random(&mut mirror.command(&[&server], &[]), &mut random, whole).unwrap();
        let state = published(&mirror.to, &archive).expect("a state was published before");
        // Both complete: the old files stay for clients that read the old indexes.
        harness::holds(&mirror.to, &archive.state(0).select(|file| file.suite == "trixie"));
        let problems = fullbore_testkit::verify::suite(&mirror.to, archive.state(state), "trixie");
        // Index files may already be the next state's, under their by-hash names the old ones remain.
        let wrong: Vec<_> =
            problems.iter().filter(|problem| !by_hash_remains(&mirror.to, &archive, state, problem)).collect();
        assert!(wrong.is_empty(), "state {state} after {:?}: {wrong:#?}", killed.ran);
        if state == 1 {
            harness::holds(&mirror.to, &archive.state(1).select(|file| file.suite == "trixie"));
        }
        if killed.finished.is_some() {
            finished += 1;
            copy(&base, &mirror.to);
        }
    }
    assert!(finished < KILLS, "no run was killed");
    server.take_log();
    let ran = mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 1);
    assert!(ran.number("totals.received_bytes") <= ran.number("totals.needed_bytes") + (4 << 20), "{ran:?}");
}

/// Whether an index that differs from the published InRelease is there by its hash, where apt reads it.
fn by_hash_remains(
    mirror: &Path,
    archive: &Archive,
    state: usize,
    problem: &fullbore_testkit::verify::Problem,
) -> bool {
    use fullbore_testkit::verify::Problem::{Missing, Wrong};
    let (Wrong(path) | Missing(path)) = problem else { return false };
    let name = path.trim_start_matches("dists/trixie/");
    // Release and Release.gpg come just before InRelease.
    matches!(name, "Release" | "Release.gpg")
        || archive.state(state).indexes.iter().filter(|index| index.path == name).any(|index| {
            let directory = mirror.join(path).parent().unwrap().join("by-hash/SHA256");
            directory.join(index.sha256.to_string()).exists()
        })
}

/// M14
#[test]
fn a_full_disk_keeps_the_old_state() {
    assert!(
        faults::can_mount(),
        "no small disk can be mounted: run as root (script/test does), or allow user namespaces"
    );
    let (_directory, archive) = own_archive(|builder| builder.pool_bytes(12_000_000).churn(1.0));
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    let on = |disk: &SmallDisk, from: &[&Server]| {
        let mut command = disk.command(env!("CARGO_BIN_EXE_fullbore"));
        command.args(
            mirror.arguments(from, &["--to", disk.inner_path().join("m").to_str().unwrap()]).into_iter().fold(
                Vec::new(),
                |mut all: Vec<String>, argument| {
                    // Our own --to replaces the first.
                    if all.last().is_some_and(|last| last == "--to") && argument == mirror.to.to_str().unwrap() {
                        all.pop();
                    } else {
                        all.push(argument);
                    }
                    all
                },
            ),
        );
        command
    };
    // Too small from the start: refused before the first body.
    let small = SmallDisk::new(10 << 20, 0).unwrap();
    let ran = mirror.finish(on(&small, &[&server])).exits(7).says(" left: ").says("the run needs").says("hint:");
    assert!(ran.stderr.contains("nothing was fetched"), "{}", ran.stderr);
    assert!(server.take_log().iter().all(|entry| !entry.path.starts_with("/pool/")), "a body was fetched");
    let few = SmallDisk::new(100 << 20, 60).unwrap();
    mirror.finish(on(&few, &[&server])).exits(7).says("inodes left");

    // Full in the middle of an update.
    let disk = SmallDisk::new(64 << 20, 0).unwrap();
    mirror.finish(on(&disk, &[&server])).exits(0);
    let before = tree(&disk.path().join("m"));
    server.switch_root(&archive.state(1).root);
    server.change(|behaviour| behaviour.rate_bytes_per_s = Some(4_000_000));
    server.take_log();
    let ran = std::thread::scope(|scope| {
        let run = scope.spawn(|| mirror.finish(on(&disk, &[&server])));
        while !run.is_finished() && !server.log().iter().any(|entry| entry.path.starts_with("/pool/")) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The run writes too, so that the last of it may not fit.
        let _ = disk.fill_but(64 << 10);
        run.join().unwrap()
    });
    ran.exits(7).says("hint:");
    let after = tree(&disk.path().join("m"));
    assert!(lost(&before, &after).is_empty(), "{:?}", lost(&before, &after));
    assert_eq!(published(&disk.path().join("m"), &archive), Some(0));
    // Without one free block a signature cannot even be checked, which is no bad signature.
    disk.fill_but(0).unwrap();
    mirror.finish(on(&disk, &[&server])).exits(7);
    assert_eq!(published(&disk.path().join("m"), &archive), Some(0));
    // With room again it goes on.
    std::fs::remove_file(disk.path().join("filler")).unwrap();
    mirror.finish(on(&disk, &[&server])).exits(0);
    verified(&disk.path().join("m"), &archive, 1);
}

/// M15
#[test]
fn a_suddenly_empty_upstream_deletes_nothing() {
    let (_directory, archive) = own_archive(|builder| builder.sources(20));
    let (mirror, server) = updating(&archive);
    let before = mirror.tree();
    let forge = archive.forge(1, "trixie");
    for index in [PACKAGES, "main/source/Sources"] {
        forge.set_index(index, "").unwrap();
    }
    for index in archive.state(1).indexes.iter().filter(|index| index.path.ends_with("binary-all/Packages.xz")) {
        forge.set_index(index.path.trim_end_matches(".xz"), "").unwrap();
    }
    let soon = ["--keep-generations", "0", "--keep-hours", "0"];
    let ran = mirror.run_with(&[&server], &soon);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let ran = ran.says("refused to delete").says("--force-delete");
    assert_eq!(ran.number("totals.deleted_files"), 0);
    let pool = |tree: &harness::Tree| tree.keys().filter(|path| path.starts_with("pool/")).count();
    assert_eq!(pool(&before), pool(&mirror.tree()), "files were deleted");
    mirror.run_with(&[&server], &[&soon[..], &["--force-delete"]].concat()).exits(0);
    assert_eq!(pool(&mirror.tree()), 0, "--force-delete deletes");
}

/// M16
#[test]
fn second_run_is_locked_out() {
    let archive = common();
    let server =
        Server::builder(&archive.state(0).root).fault(FaultRule::always(inrelease(), Fault::Hang)).start().unwrap();
    let good = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(archive);
    let mut first = mirror.command(&[&server], &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    asked_for_something(&server);
    let second = mirror.run(&[&good]).exits(6).says(&format!("process {}", first.id()));
    assert_eq!(second.stdout, "");
    assert!(mirror.tree().is_empty());
    first.kill().unwrap();
    first.wait().unwrap();
    // The file of the killed run is still there and locks nothing.
    assert!(mirror.to.join(".fullbore/lock").exists());
    mirror.run(&[&good]).exits(0);
    verified(&mirror.to, archive, 0);
}

#[test]
fn an_interrupt_is_heard_while_the_release_is_awaited() {
    let archive = common();
    let mirror = Mirror::new(archive);
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::HUP] {
        let hangs = FaultRule::always(inrelease(), Fault::Hang);
        let server = Server::builder(&archive.state(0).root).fault(hangs).start().unwrap();
        let mut run = mirror.command(&[&server], &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        asked_for_something(&server);
        let process = rustix::process::Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap();
        rustix::process::kill_process(process, signal).unwrap();
        // Nobody answers: without the interrupt this were a failure of the network.
        assert_eq!(run.wait().unwrap().code(), Some(130));
    }
}

/// A dry run keeps nothing, and one that was interrupted has no plan to show.
#[test]
fn a_dry_run_that_is_interrupted_shows_no_plan() {
    let archive = common();
    let hangs = FaultRule::always(PathMatch::Contains("/binary-amd64/".to_owned()), Fault::Hang);
    let server = Server::builder(&archive.state(0).root).fault(hangs).start().unwrap();
    let mirror = Mirror::new(archive);
    let mut run = mirror.command(&[&server], &["--dry-run"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while !server.log().iter().any(|entry| entry.path.contains("/source/")) {
        assert!(began.elapsed() < Duration::from_secs(60), "no index is asked for");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Time for the index to arrive; too little of it and there is less to be told wrongly.
    std::thread::sleep(Duration::from_millis(300));
    let process = rustix::process::Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()), (Some(130), ""), "{said}");
    assert!(said.contains("a dry run changes nothing") && !said.contains("is kept"), "{said}");
}

/// Waits until a program that was started has come so far.
fn asked_for_something(server: &Server) {
    let began = Instant::now();
    while server.counters().requests == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is asked for");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// M17
#[test]
fn mirrored_files_have_their_sums_for_sha256sum() {
    harness::need("sha256sum", "coreutils");
    let archive = common();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(archive);
    mirror.run(&[&server]).exits(0);
    let mut list = String::new();
    for (path, file) in archive.state(0).select(|file| file.suite == "trixie") {
        list.push_str(&format!("{}  {path}\n", file.sha256));
    }
    for index in archive.state(0).indexes.iter().filter(|index| index.present) {
        list.push_str(&format!("{}  dists/trixie/{}\n", index.sha256, index.path));
    }
    let file = mirror.to.with_extension("sha256");
    std::fs::write(&file, list).unwrap();
    let output = Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet"])
        .arg(&file)
        .current_dir(&mirror.to)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
