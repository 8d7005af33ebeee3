//! Files made from the program: the schema of `--json`, manual pages, completions.

use std::fs;
use std::io;
use std::path::Path;

const NOTE: &str = "; run `cargo xtask docs`";

/// The schema of a line of `--json`, which is kept in the repository.
const SCHEMA: &str = "docs/reference/events.schema.json";

/// What packages need besides the program; not kept in the repository.
const GENERATED: &str = "packaging/generated";

/// What a line of `--json` may be (JSON Schema, draft 2020-12).
fn schema() -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_string_pretty(&schemars::schema_for!(fullbore_engine::run::Event))?;
    text.push('\n');
    Ok(text.into_bytes())
}

/// Writes all files.
pub fn write(root: &Path) -> io::Result<()> {
    put(&root.join(SCHEMA), &schema()?)?;
    write_packaged(root)
}

/// Writes the files for packages, in the place of older ones.
pub fn write_packaged(root: &Path) -> io::Result<()> {
    let generated = root.join(GENERATED);
    match fs::remove_dir_all(&generated) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for (name, text) in fullbore::manual::packaged_files() {
        put(&generated.join(name), &text)?;
    }
    Ok(())
}

fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text)
}

/// Fails if the schema is not what the types say now.
pub fn check(root: &Path) -> io::Result<()> {
    match fs::read(root.join(SCHEMA)).ok() == Some(schema()?) {
        true => Ok(()),
        false => Err(io::Error::other(format!("{SCHEMA} is out of date{NOTE}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_schema_is_up_to_date() {
        check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    }
}
