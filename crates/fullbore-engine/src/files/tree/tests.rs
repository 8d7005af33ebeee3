use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

fn writer() -> (tempfile::TempDir, TreeWriter) {
    let place = tempfile::tempdir().unwrap();
    let writer = TreeWriter::create(&place.path().join("out"), ".fullbore").unwrap();
    (place, writer)
}

/// Writes one entry, and gives it its name.
fn write(writer: &TreeWriter, path: &str, content: &str) -> Result<(), FileError> {
    let mut file = writer.begin(path, content.len() as u64)?;
    file.start_over()?;
    writer.write(&mut file, 0, content.as_bytes())?;
    writer.finish(file, content.len() as u64, None)?;
    writer.commit().into_iter().try_for_each(|committed| committed.result)
}

/// All that is below a directory, links not followed.
fn everything(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        found.push(entry.path().to_str().unwrap().to_owned());
        if entry.file_type().unwrap().is_dir() {
            found.extend(everything(&entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn hostile_names_reached_files_outside_the_directory() {
    let (place, writer) = writer();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("outside")).unwrap();
    fs::write(at("outside/file"), "precious").unwrap();
    symlink("../outside", at("out/link")).unwrap();
    symlink("../outside/file", at("out/file")).unwrap();
    symlink(at("nowhere"), at("out/dangling")).unwrap();
    fs::create_dir(at("out/directory")).unwrap();
    let before = everything(place.path());
    let (long_name, deep) = ("x".repeat(256), "d/".repeat(70) + "x");
    for path in [
        "../outside/file",
        "a/../../outside/file",
        "/etc/passwd",
        "//etc/passwd",
        "..",
        ".",
        "",
        "a//b",
        "a/",
        "a\0b",
        "link/file",
        ".FullBore/state",
        "link/new",
        "file",
        "file/below",
        "dangling",
        "directory",
        ".fullbore/state",
        "a/.fullbore/state",
        ".a.part",
        &long_name,
        &deep,
    ] {
        let written = write(&writer, path, "hostile");
        assert!(written.is_err(), "{path:?} was written");
    }
    assert_eq!(fs::read_to_string(at("outside/file")).unwrap(), "precious");
    assert_eq!(everything(place.path()), before);
    for path in ["a\nb\u{1b}[2J", "..a", "a..", " ", "~", "CON", "a\\b", "-rf", "\u{202e}gpj", &"x".repeat(255)] {
        write(&writer, path, "fine").unwrap();
        assert_eq!(fs::read_to_string(at("out").join(path)).unwrap(), "fine", "{path:?}");
    }
    write(&writer, "b", "a file").unwrap();
    assert!(write(&writer, "b/c", "below a file").is_err());
    assert!(write(&writer, "directory", "").is_err());
}

#[test]
fn a_link_that_comes_before_the_name_was_replaced() {
    let (place, writer) = writer();
    let file = writer.begin("a", 0).unwrap();
    writer.finish(file, 0, None).unwrap();
    symlink("../outside", place.path().join("out/a")).unwrap();
    assert!(matches!(&writer.commit()[..], [Committed { result: Err(FileError::Symlink { .. }), .. }]));
    assert!(fs::symlink_metadata(place.path().join("out/a")).unwrap().is_symlink());
}

#[test]
fn a_replaced_file_keeps_its_mode_and_gets_its_time() {
    let (place, writer) = writer();
    let path = place.path().join("out/d/a");
    write(&writer, "d/a", "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let mut file = writer.begin("d/a", 3).unwrap();
    writer.write(&mut file, 0, b"new").unwrap();
    let mtime = Mtime { unix_s: -5, nanoseconds: 123_456_789 };
    writer.finish(file, 3, Some(mtime)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old", "until it is committed");
    assert!(writer.commit().into_iter().all(|one| one.result.is_ok()) && writer.commit().is_empty());
    let is = fs::metadata(&path).unwrap();
    assert_eq!((is.mode() & 0o777, is.mtime(), is.mtime_nsec()), (0o640, -5, 123_456_789));
    writer.set_directory_mtime("d", Mtime { unix_s: 7, nanoseconds: 0 }).unwrap();
    assert_eq!(fs::metadata(place.path().join("out/d")).unwrap().mtime(), 7);
    writer.create_directory("e/f").unwrap();
    assert!(place.path().join("out/e/f").is_dir());
    assert!(writer.create_directory("d/a").is_err() && writer.create_directory("../x").is_err());
}

#[test]
fn new_content_of_a_private_file_was_readable_until_it_had_its_name() {
    let (place, writer) = writer();
    let mode = |name: &str| place.path().join("out").join(name).metadata().unwrap().mode() & 0o777;
    write(&writer, "secret", "old").unwrap();
    for (old, meanwhile) in [(0o600, 0o600), (0o440, 0o640)] {
        fs::set_permissions(place.path().join("out/secret"), fs::Permissions::from_mode(old)).unwrap();
        let mut file = writer.begin("secret", 3).unwrap();
        writer.write(&mut file, 0, b"new").unwrap();
        assert_eq!(mode(".secret.part"), meanwhile);
        writer.finish(file, 3, None).unwrap();
        writer.commit().into_iter().try_for_each(|committed| committed.result).unwrap();
        assert_eq!(mode("secret"), old);
    }
}

#[test]
fn what_a_killed_run_left_is_taken_up_by_one_process_alone() {
    let (place, writer) = writer();
    let mut file = writer.begin("a", 2 << 20).unwrap();
    writer.write(&mut file, 0, &[7; 100_000]).unwrap();
    let other = TreeWriter::create(&place.path().join("out"), "").unwrap();
    assert!(matches!(other.begin("a", 2 << 20), Err(FileError::Busy { .. })));
    drop(file);
    let file = other.begin("a", 2 << 20).unwrap();
    assert_eq!(file.resumed_bytes, 100_000);
    let mut content = [0; 10];
    assert_eq!((file.reader().unwrap().read_at(99_990, &mut content).unwrap(), content), (10, [7; 10]));
    other.finish(file, 50_000, None).unwrap();
    other.commit();
    assert_eq!(fs::metadata(place.path().join("out/a")).unwrap().len(), 50_000);
    assert_eq!(everything(&place.path().join("out")).len(), 1);
    // A link in the place of an unfinished file is replaced, not written through.
    fs::write(place.path().join("victim"), "precious").unwrap();
    symlink("../victim", place.path().join("out/.b.part")).unwrap();
    fs::hard_link(place.path().join("victim"), place.path().join("out/.c.part")).unwrap();
    write(&writer, "b", "x").unwrap();
    write(&writer, "c", "y").unwrap();
    assert_eq!(fs::read_to_string(place.path().join("victim")).unwrap(), "precious");
}

#[test]
fn two_entries_met_in_one_file_where_case_is_not_told_apart() {
    let (place, mut writer) = writer();
    assert!(writer.entries.is_none(), "temporary directories tell it apart");
    writer.entries = Some(Mutex::default());
    write(&writer, "A", "one").unwrap();
    // What such a file system makes of `a`: another name of the same file.
    fs::hard_link(place.path().join("out/A"), place.path().join("out/a")).unwrap();
    assert!(write(&writer, "a", "two").unwrap_err().to_string().contains("does not tell"));
    let (_, status) = writer.existing("a").unwrap().unwrap();
    assert!(writer.keep("a", &status).is_err());
    write(&writer, "A2", "two").unwrap();
    assert_eq!(fs::read_to_string(place.path().join("out/A")).unwrap(), "one");
}
