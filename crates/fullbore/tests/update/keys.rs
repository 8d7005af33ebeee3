//! Which keys may sign the Release of a source, beside apt.

use super::*;

/// A directory with these keyrings, and settings that make it the default.
fn trusted(directory: &Path, keyrings: &[(&str, Vec<u8>)]) -> String {
    let parts = directory.join("trusted.gpg.d");
    std::fs::create_dir_all(&parts).unwrap();
    for (name, content) in keyrings {
        std::fs::write(parts.join(name), content).unwrap();
    }
    format!("Dir::Etc::trusted \"/dev/null\";\nDir::Etc::trustedparts \"{}\";\n", parts.display())
}

fn without_signed_by(lists: &Lists) {
    let text = std::fs::read_to_string(lists.at("a.sources")).unwrap();
    let kept: String =
        text.lines().filter(|line| !line.starts_with("Signed-By")).map(|line| format!("{line}\n")).collect();
    std::fs::write(lists.at("a.sources"), kept).unwrap();
}

/// Both update, and must be of one mind, also about the files.
#[track_caller]
fn both(ours: &Lists, theirs: &Lists, what: &str) -> Ran {
    let ran = ours.update(&[]);
    let by_apt = theirs.apt("apt-get", &["update"]);
    let told = String::from_utf8_lossy(&by_apt.stderr);
    assert_eq!(ran.code == Some(0), by_apt.status.success(), "{what}: {ran:?} {told}");
    let ours: Vec<_> = ours.content().into_iter().filter(|(name, _)| !name.ends_with("_Index")).collect();
    let theirs: Vec<_> = theirs.content().into_iter().filter(|(name, _)| !name.ends_with("_Index")).collect();
    assert!(ours == theirs, "{what}");
    ran
}

#[test]
fn the_previous_release_names_who_may_sign_the_next() {
    let (one, two) = (signer(), stranger());
    let later = jiff::Timestamp::now().as_second() + 86_400;
    let (mine, other) = (one.fingerprint().to_owned(), two.fingerprint().to_owned());
    let both_keys = format!("{mine}, {other}");
    for (named, valid_until, settings, own_keys, code) in [
        (&mine, Some(later), "", false, 4),
        (&both_keys, Some(later), "", false, 0),
        (&mine, None, "", false, 0),
        (&mine, None, "Acquire::Max-ValidTime \"999999999\";", false, 4),
        (&mine, Some(later), "Acquire::Check-Valid-Until \"false\";", false, 0),
        (&"DEADBEEF".to_owned(), Some(later), "", false, 0),
        (&mine, Some(later), "", true, 0),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let archive = archive(&directory.path().join("archive"), false);
        let keyrings = [("one.gpg", one.public_key().unwrap()), ("two.gpg", two.public_key().unwrap())];
        let settings = trusted(directory.path(), &keyrings) + settings;
        let server = Server::start(&archive.state(0).root).unwrap();
        let forge = archive.forge(0, "trixie");
        forge.set_field("Signed-By", named).unwrap();
        if let Some(until) = valid_until {
            forge.valid_until(until).unwrap();
        }
        let next = archive.forge(1, "trixie").signed_by(&two);
        next.set_release(&next.release().unwrap()).unwrap();
        let (ours, theirs) = (Lists::new(&server, &archive, &settings), Lists::new(&server, &archive, &settings));
        for lists in [&ours, &theirs] {
            without_signed_by(lists);
            if own_keys {
                let text = std::fs::read_to_string(lists.at("a.sources")).unwrap();
                std::fs::write(lists.at("a.sources"), format!("{text}Signed-By: {both_keys}\n")).unwrap();
            }
        }
        let what = format!("{named} {valid_until:?} {settings} {own_keys}");
        assert_eq!(both(&ours, &theirs, &what).code, Some(0), "{what}");
        server.switch_root(&archive.state(1).root);
        let ran = both(&ours, &theirs, &what);
        assert_eq!(ran.code, Some(code), "{what} {ran:?}");
        if code == 4 {
            ran.says("the local Release names the keys that may sign the next one");
        }
    }
}

#[test]
fn a_damaged_default_keyring_leaves_the_others_in_force() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&directory.path().join("archive"), false);
    let server = Server::start(&archive.state(0).root).unwrap();
    let key = signer().public_key().unwrap();
    for (name, content) in [
        ("a.gpg", Vec::new()),
        ("a.gpg", b"key".to_vec()),
        ("a.asc", b"-----BEGIN PGP MESSAGE-----\n".to_vec()),
        ("z.asc", b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n".to_vec()),
    ] {
        let _ = std::fs::remove_dir_all(directory.path().join("trusted.gpg.d"));
        let settings = trusted(directory.path(), &[(name, content), ("key.gpg", key.clone())]);
        let (ours, theirs) = (Lists::new(&server, &archive, &settings), Lists::new(&server, &archive, &settings));
        [&ours, &theirs].into_iter().for_each(without_signed_by);
        let ran = both(&ours, &theirs, name);
        ran.exits(0).says(name).says("its keys are ignored");
    }
    // A keyring that a source names is another matter.
    let damaged = directory.path().join("damaged.gpg");
    std::fs::write(&damaged, "").unwrap();
    let lists = Lists::new(&server, &archive, "");
    without_signed_by(&lists);
    let text = std::fs::read_to_string(lists.at("a.sources")).unwrap();
    std::fs::write(lists.at("a.sources"), format!("{text}Signed-By: {}\n", damaged.display())).unwrap();
    lists.update(&[]).exits(4).says("is empty");
    std::fs::write(&damaged, stranger().public_key().unwrap()).unwrap();
    lists.update(&[]).exits(4).says("hint: add the archive's key to the keyring that `Signed-By` of its source names");
}
