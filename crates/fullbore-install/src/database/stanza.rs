//! Stanzas of dpkg's status file: fields in dpkg's order, values in dpkg's form.

use super::relation;

/// Fields that dpkg knows, in the order in which it writes them (observed). All others follow, in the order of the
/// control file.
const ORDER: [&str; 32] = [
    "Package",
    "Essential",
    "Protected",
    "Status",
    "Priority",
    "Section",
    "Installed-Size",
    "Origin",
    "Maintainer",
    "Bugs",
    "Architecture",
    "Multi-Arch",
    "Source",
    "Version",
    "Config-Version",
    "Replaces",
    "Provides",
    "Depends",
    "Pre-Depends",
    "Recommends",
    "Suggests",
    "Breaks",
    "Conflicts",
    "Enhances",
    "Conffiles",
    "Filename",
    "Size",
    "MD5sum",
    "MSDOS-Filename",
    "Description",
    "Triggers-Pending",
    "Triggers-Awaited",
];

/// Relation fields, which dpkg parses and formats anew.
const RELATIONS: [&str; 9] =
    ["Replaces", "Provides", "Depends", "Pre-Depends", "Recommends", "Suggests", "Breaks", "Conflicts", "Enhances"];

/// Fields that a package must not contain, because dpkg keeps them itself or gives them another meaning.
const FOREIGN: [&str; 14] = [
    "Status",
    "Config-Version",
    "Conffiles",
    "Filename",
    "Size",
    "MD5sum",
    "MSDOS-Filename",
    "Triggers-Pending",
    "Triggers-Awaited",
    "Revision",
    "Package-Revision",
    "Package_Revision",
    "Recommended",
    "Optional",
];

/// Priorities that dpkg knows and writes in lower case.
const PRIORITIES: [&str; 5] = ["required", "important", "standard", "optional", "extra"];

/// A stanza: field names and values. A value has no leading space; its continuation lines begin with a newline and a
/// space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stanza {
    fields: Vec<(String, String)>,
}

impl Stanza {
    /// Parses one stanza and keeps its fields as they are.
    ///
    /// # Errors
    /// The reason, as a clause: the text begins with a continuation line, a line is not a field, or a field occurs
    /// twice.
    pub fn parse(text: &str) -> Result<Stanza, String> {
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in text.trim_end_matches('\n').split('\n') {
            if line.starts_with([' ', '\t']) {
                let (_, value) = fields.last_mut().ok_or("it begins with a continued line")?;
                value.push('\n');
                value.push_str(line);
                continue;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| format!("`{line}` is not a field"))?;
            if name.is_empty() || name.contains(char::is_whitespace) {
                return Err(format!("`{name}` is not a field name"));
            }
            if fields.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                return Err(format!("{name} occurs twice"));
            }
            fields.push((name.to_owned(), value.to_owned()));
        }
        for (_, value) in &mut fields {
            let trimmed = value.trim_start_matches([' ', '\t']).trim_end();
            *value = trimmed.to_owned();
        }
        Ok(Stanza { fields })
    }

    /// The stanza that dpkg writes for a freshly unpacked package with this control file.
    ///
    /// # Errors
    /// The reason why fullbore leaves the package to dpkg, as a clause: the control file has no single valid stanza,
    /// lacks a mandatory field, or has a field that only dpkg handles.
    pub fn unpacked(control: &str, conffiles: &[String]) -> Result<Stanza, String> {
        let control = control.trim_matches('\n');
        if control.contains("\n\n") || control.contains(['\r', '\0']) {
            return Err("its control file is not one stanza".to_owned());
        }
        let mut stanza = Stanza::parse(control).map_err(|what| format!("its control file: {what}"))?;
        for name in ["Package", "Version", "Architecture", "Maintainer", "Description"] {
            if stanza.get(name).is_none_or(str::is_empty) {
                return Err(format!("its control file has no {name}"));
            }
        }
        for name in FOREIGN {
            if stanza.get(name).is_some() {
                return Err(format!("its control file has {name}"));
            }
        }
        let mut failure = None;
        stanza.fields.retain_mut(|(name, value)| {
            if let Some(canonical) = ORDER.iter().find(|known| known.eq_ignore_ascii_case(name)) {
                *name = (*canonical).to_owned();
            }
            match normal_value(name, value) {
                Ok(Some(normal)) => {
                    *value = normal;
                    true
                }
                Ok(None) => false,
                Err(what) => {
                    failure.get_or_insert(what);
                    false
                }
            }
        });
        if let Some(what) = failure {
            return Err(what);
        }
        stanza.set("Status", Some("install ok unpacked".to_owned()));
        if !conffiles.is_empty() {
            let lines = conffiles.iter().map(|path| format!("\n {path} newconffile"));
            stanza.set("Conffiles", Some(lines.collect()));
        }
        stanza.sort();
        Ok(stanza)
    }

    /// Value of a field; names compare without case. `None` if the field is absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..])
    }

    /// Sets a field at its place in dpkg's order, or removes it.
    pub fn set(&mut self, name: &str, value: Option<String>) {
        match (self.fields.iter().position(|(known, _)| known == name), value) {
            (Some(at), Some(value)) => self.fields[at].1 = value,
            (Some(at), None) => {
                self.fields.remove(at);
            }
            (None, Some(value)) => {
                self.fields.push((name.to_owned(), value));
                self.sort();
            }
            (None, None) => {}
        }
    }

    /// Relations of a field; empty if the field is absent or cannot be parsed.
    pub fn relations(&self, name: &str) -> relation::Relations {
        self.get(name).and_then(relation::parse).unwrap_or_default()
    }

    /// Sorts the fields by dpkg's order. The sort is stable, so that unknown fields keep their order.
    fn sort(&mut self) {
        let place = |name: &str| ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len());
        self.fields.sort_by_key(|(name, _)| place(name));
    }

    /// Text of the stanza in the status file, with its final newline.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.fields {
            text.push_str(name);
            text.push(':');
            if !value.starts_with('\n') && !value.is_empty() {
                text.push(' ');
            }
            text.push_str(value);
            text.push('\n');
        }
        text
    }
}

/// A value in dpkg's form; `None` for fields that dpkg leaves out.
fn normal_value(name: &str, value: &str) -> Result<Option<String>, String> {
    if RELATIONS.contains(&name) {
        let relations = relation::parse(value).ok_or_else(|| format!("its {name} is not as dpkg wants it"))?;
        return Ok((!relations.is_empty()).then(|| relation::display(&relations)));
    }
    match name {
        "Package" if !relation::is_package_name(value) => Err(format!("`{value}` is not a package name")),
        "Version" => match relation::normal_version(value) {
            Some(version) => Ok(Some(version)),
            None => Err(format!("`{value}` is not a version")),
        },
        "Essential" | "Protected" => match value {
            "yes" => Ok(Some(value.to_owned())),
            "no" => Ok(None),
            _ => Err(format!("its {name} is neither yes nor no")),
        },
        "Multi-Arch" => match value {
            "same" | "foreign" | "allowed" => Ok(Some(value.to_owned())),
            "no" => Ok(None),
            _ => Err("its Multi-Arch is unknown".to_owned()),
        },
        "Priority" => {
            let known = PRIORITIES.iter().find(|known| known.eq_ignore_ascii_case(value));
            Ok(Some(known.map_or(value, |known| known).to_owned()))
        }
        // dpkg drops known fields without a value and keeps unknown ones.
        _ if value.is_empty() && ORDER.contains(&name) => Ok(None),
        _ => Ok(Some(value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: &str = "Package: a\nVersion: 0:1.0-1\nArchitecture: all\nX-Own: kept\nMaintainer:  M <m@example.org> \n\
        Depends: b(>=1),c|d\nEssential: no\nMulti-Arch: foreign\nPriority: Optional\nDescription: short\n long\n .\n more\n";

    #[test]
    fn fields_are_in_dpkgs_order_and_form() {
        let stanza = Stanza::unpacked(CONTROL, &["/etc/a".to_owned()]).expect("sound");
        assert_eq!(
            stanza.text(),
            "Package: a\nStatus: install ok unpacked\nPriority: optional\nMaintainer: M <m@example.org>\n\
            Architecture: all\nMulti-Arch: foreign\nVersion: 1.0-1\nDepends: b (>= 1), c | d\nConffiles:\n /etc/a newconffile\n\
            Description: short\n long\n .\n more\nX-Own: kept\n"
        );
        assert_eq!(Stanza::parse(&stanza.text()), Ok(stanza));
    }

    #[test]
    fn what_is_not_plain_is_left_to_dpkg() {
        for (from, to) in [
            ("Package: a", "Package: A!"),
            ("Version: 0:1.0-1", "Version: one"),
            ("X-Own: kept", "Status: install ok installed"),
            ("Depends: b(>=1),c|d", "Depends: b (> 1)"),
            ("Maintainer:  M <m@example.org> \n", ""),
            ("X-Own: kept", "package: b"),
            ("Essential: no", "Essential: perhaps"),
            ("X-Own: kept", "X-Own"),
        ] {
            let control = CONTROL.replace(from, to);
            assert_ne!(control, CONTROL);
            assert!(Stanza::unpacked(&control, &[]).is_err(), "{to}");
        }
    }
}
