//! Decides which packages can be unpacked with exactly the result of dpkg.

use std::collections::{HashMap, HashSet};

use super::{Archive, Batch, PlannedPackage, Refusal, Root};
use crate::database::relation::{Relation, Relations};
use crate::database::{DIRECTORY, Database, DatabaseError, Directive, Record, Stanza, State};

/// Maximum length of a control file's name that dpkg accepts, in bytes.
const CONTROL_NAME_BYTES_MAX: usize = 50;

/// Programs that change where dpkg puts files of other packages, and with which owner and mode.
const PLACE_PROGRAMS: [&str; 2] = ["dpkg-divert", "dpkg-statoverride"];

/// Scripts of an installed version that dpkg runs when it unpacks another one.
const OLD_SCRIPTS: [&str; 2] = ["prerm", "postrm"];

/// Result of [`examine`]: packages to unpack, and packages left to dpkg.
#[derive(Debug, Default)]
pub struct Examined {
    /// Packages that [`super::unpack`] can unpack together.
    pub batch: Batch,
    /// Packages left to dpkg, in the given order. They are not verified: call [`Archive::verify`] before dpkg gets
    /// them.
    pub refused: Vec<Refused>,
}

/// A package that fullbore leaves to dpkg.
#[derive(Debug)]
pub struct Refused {
    /// The package that fullbore does not unpack.
    pub archive: Archive,
    /// Why fullbore does not unpack this package.
    pub refusal: Refusal,
    /// Whether the package only waits for an earlier package that dpkg unpacks. It can be examined again after that.
    pub waits: bool,
}

/// Checks which packages can be unpacked with exactly the result of dpkg, by their control files, the database of the
/// root, and the packages before them. [`super::unpack`] finds refusals that depend on the files.
///
/// Packages after one that is left to dpkg are unpacked before it. For files of one name, dpkg compares the packages in
/// either order. But if a script of the one may divert files, the packages after it wait: dpkg would not compare them
/// with the owner of the diversion, and would overwrite their files.
///
/// Dependencies are not checked: the caller is responsible for the order, including `Pre-Depends`.
///
/// # Errors
/// [`DatabaseError`] if the database of the root cannot be read.
pub fn examine(root: &Root, archives: Vec<Archive>) -> Result<Examined, DatabaseError> {
    examine_each(root, archives, true)
}

/// Like [`examine`]; packages wait for earlier ones only with `waits`.
pub(crate) fn examine_each(root: &Root, archives: Vec<Archive>, waits: bool) -> Result<Examined, DatabaseError> {
    let database = Database::read(root)?;
    let mut present = RelationIndex::default();
    for record in database.records().filter(|record| record.is_present()) {
        present.add(&record.stanza);
    }
    let mut examined = Examined::default();
    let mut names = HashSet::new();
    let mut awaited: Option<String> = None;
    let mut is_waiting = false;
    for archive in archives {
        let waiting = |archive: Archive, awaited: &str| {
            let reason = format!("it comes after {awaited}, whose scripts may divert files or override modes");
            let refusal = Refusal { package: archive.name().to_owned(), reason };
            Refused { archive, refusal, waits: true }
        };
        if let Some(awaited) = awaited.as_ref().filter(|_| is_waiting) {
            examined.refused.push(waiting(archive, awaited));
            continue;
        }
        match (plan(&database, &present, &names, archive), &awaited) {
            // Packages wait only from here on. Those that dpkg gets in any case go with the earlier package.
            (Ok(planned), Some(awaited)) => {
                is_waiting = true;
                examined.refused.push(waiting(planned.archive, awaited));
            }
            (Ok(planned), None) => {
                names.insert(planned.archive.name().to_owned());
                present.add(&planned.stanza);
                examined.batch.packages.push(planned);
            }
            (Err(refused), _) => {
                if waits && awaited.is_none() && may_change_places(root, &database, &refused.archive)? {
                    awaited = Some(refused.archive.name().to_owned());
                }
                examined.refused.push(*refused);
            }
        }
    }
    Ok(examined)
}

/// Whether a script that dpkg runs when it unpacks this package may divert files or override owners and modes.
fn may_change_places(root: &Root, database: &Database, archive: &Archive) -> Result<bool, DatabaseError> {
    if place_program(archive.control().content("preinst")).is_some() {
        return Ok(true);
    }
    for record in database.named(archive.name()).filter(|record| record.is_present()) {
        for script in OLD_SCRIPTS {
            let text = root.read(&format!("{DIRECTORY}/info/{}.{script}", record.label()))?;
            if place_program(&text.unwrap_or_default()).is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The program of [`PLACE_PROGRAMS`] that a script calls. Many scripts contain an example of a diversion in a comment.
fn place_program(script: &[u8]) -> Option<&'static str> {
    let calls = |line: &[u8], program: &str| {
        !line.trim_ascii_start().starts_with(b"#") && memchr::memmem::find(line, program.as_bytes()).is_some()
    };
    let lines = || script.split(|byte| *byte == b'\n');
    PLACE_PROGRAMS.into_iter().find(|program| lines().any(|line| calls(line, program)))
}

fn plan(
    database: &Database,
    present: &RelationIndex,
    names: &HashSet<String>,
    archive: Archive,
) -> Result<PlannedPackage, Box<Refused>> {
    let checked = check(database, present, names, &archive);
    match checked {
        Ok((stanza, conffiles, directives)) => {
            let conffiles = conffiles.into_iter().map(String::into_bytes).collect();
            Ok(PlannedPackage { archive, stanza, conffiles, directives })
        }
        Err(reason) => {
            let refusal = Refusal { package: archive.name().to_owned(), reason };
            Err(Box::new(Refused { archive, refusal, waits: false }))
        }
    }
}

type Checked = (Stanza, Vec<String>, Vec<Directive>);

fn check(
    database: &Database,
    present: &RelationIndex,
    names: &HashSet<String>,
    archive: &Archive,
) -> Result<Checked, String> {
    let name = archive.name();
    if names.contains(name) {
        return Err("it is requested twice".to_owned());
    }
    if let Some(record) = database.named(name).next() {
        return Err(known(record, archive));
    }
    let control = archive.control();
    let text = std::str::from_utf8(control.stanza()).map_err(|_| "its control file is not UTF-8".to_owned())?;
    let conffiles = conffiles(control.content("conffiles"))?;
    let stanza = Stanza::unpacked(text, &conffiles)?;
    check_architecture(database, archive.architecture())?;
    for file in &control.files {
        if file.name == "list" || file.name.len() > CONTROL_NAME_BYTES_MAX {
            return Err(format!("it has an unknown control file {}", file.name));
        }
    }
    let directives = Directive::parse(control.content("triggers"))?;
    if let Some(program) = place_program(control.content("preinst")) {
        return Err(format!("its preinst calls {program}"));
    }
    present.check(&stanza)?;
    Ok((stanza, conffiles, directives))
}

/// Reason why a package known to the root is left to dpkg.
fn known(record: &Record, archive: &Archive) -> String {
    match record.state {
        State::NotInstalled => "dpkg keeps a selection for it".to_owned(),
        State::ConfigFiles => "its old configuration files are still installed".to_owned(),
        _ if record.architecture() != archive.architecture() => {
            format!("it is installed for {}", record.architecture())
        }
        State::HalfInstalled => "it is half installed".to_owned(),
        _ => match fullbore_debian::version::compare(record.version(), archive.version()) {
            std::cmp::Ordering::Less => format!("it is an upgrade from {}", record.version()),
            std::cmp::Ordering::Equal => "it is installed in this version".to_owned(),
            std::cmp::Ordering::Greater => format!("it is a downgrade from {}", record.version()),
        },
    }
}

fn check_architecture(database: &Database, architecture: &str) -> Result<(), String> {
    let known = || database.foreign_architectures().iter().any(|known| known == architecture);
    match database.native_architecture() {
        Some(native) if architecture != "all" && architecture != native && !known() => {
            Err(format!("it is for {architecture}, and the root for {native}"))
        }
        // Before dpkg is installed, the root has no architecture.
        _ => Ok(()),
    }
}

/// Parses absolute paths, one per line.
fn conffiles(text: &[u8]) -> Result<Vec<String>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "its conffiles are not UTF-8".to_owned())?;
    let mut conffiles: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let normal = line.starts_with('/')
            && !line.contains(char::is_whitespace)
            && line[1..].split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !normal || conffiles.iter().any(|known| known == line) {
            return Err(format!("its conffiles: `{line}`"));
        }
        conffiles.push(line.to_owned());
    }
    Ok(conffiles)
}

/// Index of installed and planned packages, for `Conflicts` and `Breaks`.
#[derive(Default)]
struct RelationIndex {
    /// Packages by the names that they provide, including their own.
    provided: HashMap<String, Vec<(String, Relation)>>,
    /// `Conflicts` and `Breaks` of packages, by the named package.
    unwanted: HashMap<String, Vec<(String, Relation)>>,
}

impl RelationIndex {
    fn add(&mut self, stanza: &Stanza) {
        let name = stanza.get("Package").unwrap_or_default();
        for provided in provisions(stanza) {
            self.provided.entry(provided.name.clone()).or_default().push((name.to_owned(), provided));
        }
        for unwanted in unwanted(stanza).into_iter().flatten() {
            self.unwanted.entry(unwanted.name.clone()).or_default().push((name.to_owned(), unwanted));
        }
    }

    fn check(&self, stanza: &Stanza) -> Result<(), String> {
        let name = stanza.get("Package").unwrap_or_default();
        for unwanted in unwanted(stanza).into_iter().flatten() {
            for (other, provided) in self.provided.get(&unwanted.name).into_iter().flatten() {
                if other != name && unwanted.provided_by(provided) {
                    return Err(format!("it conflicts with {other} ({unwanted})"));
                }
            }
        }
        for provided in provisions(stanza) {
            for (other, unwanted) in self.unwanted.get(&provided.name).into_iter().flatten() {
                if other != name && unwanted.provided_by(&provided) {
                    return Err(format!("{other} conflicts with it ({unwanted})"));
                }
            }
        }
        Ok(())
    }
}

/// Names of a package with versions: its own, and those that it provides.
fn provisions(stanza: &Stanza) -> Vec<Relation> {
    let own = Relation {
        name: stanza.get("Package").unwrap_or_default().to_owned(),
        architecture: None,
        version: Some((
            crate::database::relation::Operator::Equal,
            stanza.get("Version").unwrap_or_default().to_owned(),
        )),
    };
    std::iter::once(own).chain(stanza.relations("Provides").into_iter().flatten()).collect()
}

fn unwanted(stanza: &Stanza) -> Relations {
    let mut unwanted = stanza.relations("Conflicts");
    unwanted.extend(stanza.relations("Breaks"));
    unwanted
}
