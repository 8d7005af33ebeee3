//! The list of all crates in the programs (SBOM), as CycloneDX 1.6 in JSON.
//!
//! cargo's own tools know everything that it holds: `cargo tree` which crates are compiled in, `cargo metadata` their
//! licences, Cargo.lock their checksums. cargo-cyclonedx would be another tool to pin, and its file has a random serial
//! number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use fullbore_digest::Sha256;
use serde_json::{Value, json};

use super::target::Target;
use super::{Run, environment};
use crate::command::output;

/// Name and version: what tells crates of one program apart. All are from one registry or from this workspace.
type Crate = (String, String);

/// Writes the list into the output directory. Returns its name.
pub fn build(run_of: &Run) -> io::Result<String> {
    let compiled = compiled_crates(run_of)?;
    let mut command = run_of.environment.command(environment::cargo());
    let metadata = output(command.args(["metadata", "--locked", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let lock = fs::read_to_string(run_of.environment.root.join("Cargo.lock"))?;
    let lock: toml::Table = lock.parse().map_err(|error| io::Error::other(format!("Cargo.lock: {error}")))?;
    let date = jiff::Timestamp::from_second(run_of.environment.epoch_s as i64).map_err(io::Error::other)?;
    let list = list(&run_of.version, &date.to_string(), &compiled, &metadata, &checksums(&lock))?;
    let name = format!("fullbore-{}.cdx.json", run_of.version);
    let mut text = serde_json::to_string_pretty(&list)?;
    text.push('\n');
    fs::write(run_of.output.join(&name), text)?;
    Ok(name)
}

/// The crates that are compiled for any target, build scripts' crates included, tests' crates not.
fn compiled_crates(run_of: &Run) -> io::Result<BTreeSet<Crate>> {
    let mut compiled = BTreeSet::new();
    for target in Target::ALL {
        let mut command = run_of.environment.command(environment::cargo());
        command.args(["tree", "--locked", "--package", "fullbore", "--edges", "normal,build", "--target"]);
        let tree = output(command.args([target.triple(), "--prefix", "none", "--format", "{p}"]))?;
        compiled.extend(tree.lines().filter_map(crate_of_line));
    }
    Ok(compiled)
}

/// `zstd v0.14.0 (*)` is the version 0.14.0 of zstd.
fn crate_of_line(line: &str) -> Option<Crate> {
    let (name, rest) = line.split_once(" v")?;
    Some((name.to_owned(), rest.split(' ').next()?.to_owned()))
}

fn checksums(lock: &toml::Table) -> BTreeMap<Crate, String> {
    let packages = lock.get("package").and_then(|packages| packages.as_array());
    let text = |package: &toml::Value, key: &str| package.get(key)?.as_str().map(str::to_owned);
    let entry = |package| Some(((text(package, "name")?, text(package, "version")?), text(package, "checksum")?));
    packages.into_iter().flatten().filter_map(entry).collect()
}

fn list(
    version: &str,
    date: &str,
    compiled: &BTreeSet<Crate>,
    metadata: &Value,
    checksums: &BTreeMap<Crate, String>,
) -> io::Result<Value> {
    let mut by_id = BTreeMap::new();
    let mut components = BTreeMap::new();
    for package in array(&metadata["packages"]) {
        let named = (text(&package["name"]), text(&package["version"]));
        if compiled.contains(&named) {
            by_id.insert(text(&package["id"]), reference(&named));
            components.insert(reference(&named), component(package, &named, checksums.get(&named)));
        }
    }
    if let Some(missing) = compiled.iter().find(|named| !components.contains_key(&reference(named))) {
        return Err(io::Error::other(format!("cargo metadata does not know {} {}", missing.0, missing.1)));
    }
    let mut dependencies = BTreeMap::new();
    for node in array(&metadata["resolve"]["nodes"]) {
        if let Some(of) = by_id.get(&text(&node["id"])) {
            let used = array(&node["deps"]).iter().filter(|used| is_compiled_in(used));
            let used: BTreeSet<_> = used.filter_map(|used| by_id.get(&text(&used["pkg"]))).collect();
            dependencies.insert(of.clone(), json!({ "ref": of, "dependsOn": used }));
        }
    }
    let own = reference(&("fullbore".to_owned(), version.to_owned()));
    let mut program = components.remove(&own).ok_or_else(|| io::Error::other(format!("cargo does not know {own}")))?;
    program["type"] = json!("application");
    let mut list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "timestamp": date, "component": program },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies.into_values().collect::<Vec<_>>(),
    });
    // The same content has the same number: a UUID of version 8 (RFC 9562, 5.8) from its hash.
    list["serialNumber"] = json!(serial_number(&serde_json::to_vec(&list)?));
    Ok(list)
}

fn component(package: &Value, named: &Crate, checksum: Option<&String>) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(named),
        "name": named.0,
        "version": named.1,
        "purl": reference(named),
    });
    if let Some(licence) = package["license"].as_str() {
        // Older crates write a slash where SPDX has OR.
        let expression = licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if let Some(sum) = checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    if let Some(address) = package["repository"].as_str() {
        component["externalReferences"] = json!([{ "type": "vcs", "url": address }]);
    }
    component
}

/// A package URL. Versions may have a `+`, which is `%2B` there.
fn reference((name, version): &Crate) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

fn is_compiled_in(dependency: &Value) -> bool {
    array(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev")
}

fn serial_number(content: &[u8]) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::of(content).as_bytes()[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("urn:uuid:{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list_of(checksum: &str) -> Value {
        let metadata = json!({
            "packages": [
                { "id": "a", "name": "fullbore", "version": "1.0.0", "license": "MIT" },
                { "id": "b", "name": "zstd-sys", "version": "2.0.16+zstd.1.5.7", "license": "MIT/Apache-2.0" },
                { "id": "c", "name": "proptest", "version": "1.0.0" },
            ],
            "resolve": { "nodes": [
                { "id": "a", "deps": [
                    { "pkg": "b", "dep_kinds": [{ "kind": null }] },
                    { "pkg": "c", "dep_kinds": [{ "kind": "dev" }] },
                ] },
                { "id": "b", "deps": [] },
                { "id": "c", "deps": [] },
            ] },
        });
        let tree = "fullbore v1.0.0 (/clone/crates/fullbore)\nzstd-sys v2.0.16+zstd.1.5.7\nfullbore v1.0.0 (*)\n";
        let compiled = tree.lines().filter_map(crate_of_line).collect();
        let named = ("zstd-sys".to_owned(), "2.0.16+zstd.1.5.7".to_owned());
        list("1.0.0", "1970-01-01T00:00:00Z", &compiled, &metadata, &BTreeMap::from([(named, checksum.to_owned())]))
            .unwrap()
    }

    #[test]
    fn the_list_holds_compiled_crates_with_licence_and_checksum() {
        let list = list_of("aa");
        let zstd = "pkg:cargo/zstd-sys@2.0.16%2Bzstd.1.5.7";
        assert_eq!(list["metadata"]["component"]["type"], "application");
        assert_eq!(array(&list["components"]).len(), 1);
        let component = &list["components"][0];
        assert_eq!(component["purl"], zstd);
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(component["hashes"][0]["content"], "aa");
        assert_eq!(list["dependencies"][0]["dependsOn"], json!([zstd]));
    }

    #[test]
    fn the_serial_number_depends_on_the_content_alone() {
        assert_eq!(list_of("aa")["serialNumber"], list_of("aa")["serialNumber"]);
        assert_ne!(list_of("aa")["serialNumber"], list_of("bb")["serialNumber"]);
    }
}
