//! The indexes of a suite that are not about packages' fields: AppStream data, command names,
//! installer images.

use std::{fmt::Write, io};

use crate::{
    compression::Form,
    deb::Tar,
    digest::Digest,
    model::{BinaryKind, SourcePackage},
    random,
};

/// `dep11/Components-ARCH.yml`: a header document and one document per third package.
pub(crate) fn components(suite: &str, component: &str, packages: &[&SourcePackage]) -> String {
    let mut text = format!("---\nFile: DEP-11\nVersion: '1.0'\nOrigin: test-{suite}-{component}\nPriority: 10\n");
    for package in packages.iter().step_by(3) {
        let name = &package.name;
        let _ = write!(
            text,
            "---\nType: desktop-application\nID: org.example.{name}\nPackage: {name}\nName:\n  C: {name}\nIcon:\n  cached:\n  - name: {name}.png\n    width: 48\n    height: 48\n"
        );
    }
    text
}

/// `dep11/icons-48x48.tar`: random bytes under icon names.
pub(crate) fn icons(seed: u64, packages: &[&SourcePackage], time_unix_s: i64) -> Vec<u8> {
    let mut tar = Tar::new(time_unix_s);
    for package in packages.iter().step_by(3) {
        let name = format!("{}.png", package.name);
        tar.file(&name, &random::content_vec(seed, &name, 900));
    }
    tar.finish()
}

/// `cnf/Commands-ARCH`, what command-not-found reads.
pub(crate) fn commands(suite: &str, component: &str, architecture: &str, packages: &[&SourcePackage]) -> String {
    let mut text = format!("suite: {suite}\ncomponent: {component}\narch: {architecture}\n\n");
    for binary in packages.iter().flat_map(|package| &package.binaries) {
        if binary.kind != BinaryKind::Udeb {
            let _ = write!(text, "name: {0}\nversion: 1\ncommands: {0}\n\n", binary.name);
        }
    }
    text
}

/// Installer images as (path below `images/`, bytes), `SHA256SUMS` last.
pub(crate) fn installer_images(seed: u64, generation: &str, scale_bytes: u64) -> Vec<(String, Vec<u8>)> {
    let sizes = [
        ("MANIFEST", 1_100),
        ("cdrom/initrd.gz", scale_bytes / 3),
        ("cdrom/vmlinuz", scale_bytes / 5),
        ("netboot/debian-installer/amd64/boot-screens/f1.txt", 700),
        ("netboot/mini.iso", scale_bytes),
        ("netboot/netboot.tar.gz", scale_bytes / 2),
    ];
    let mut sums = String::new();
    let mut images = Vec::new();
    for (path, size) in sizes {
        let bytes = random::content_vec(seed, &format!("{generation}/{path}"), size);
        let _ = writeln!(sums, "{}  ./{path}", Digest::of(&bytes));
        images.push((path.to_string(), bytes));
    }
    images.push(("SHA256SUMS".to_string(), sums.into_bytes()));
    images
}

/// A file in several forms: (name, bytes), the plain one first.
pub(crate) fn in_forms(name: &str, bytes: Vec<u8>, forms: &[Form]) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::with_capacity(forms.len() + 1);
    for form in forms.iter().filter(|form| **form != Form::Plain) {
        files.push((format!("{name}{}", form.suffix()), form.compress(&bytes)?));
    }
    files.insert(0, (name.to_string(), bytes));
    Ok(files)
}
