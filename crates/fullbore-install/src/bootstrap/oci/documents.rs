//! The JSON documents of an image: configuration, manifest, index and layout, as in the image-spec 1.1.
//!
//! The same root always gives the same documents: fields have a fixed order, and the only time comes from the settings.

use std::collections::BTreeMap;

use fullbore_digest::Sha256;
use serde::Serialize;

use super::facts::Facts;
use super::layer::Layer;
use super::platform::Platform;
use crate::inside::SEARCH_PATH;

const LAYOUT_VERSION: &str = "1.0.0";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIGURATION: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Keys of annotations and labels (annotations.md).
const CREATED: &str = "org.opencontainers.image.created";
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const TITLE: &str = "org.opencontainers.image.title";
const VERSION: &str = "org.opencontainers.image.version";

/// A file of an image layout: a JSON document or a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Document {
    /// Path relative to the layout directory.
    pub path: String,
    /// The bytes of the file.
    pub content: Vec<u8>,
}

/// Path of a blob in a layout.
pub(super) fn blob_path(digest: Sha256) -> String {
    format!("blobs/sha256/{digest}")
}

/// The documents of an image with this layer.
///
/// # Errors
/// [`serde_json::Error`] if a document cannot be written as JSON.
pub(super) fn documents(facts: &Facts, layer: &Layer) -> Result<[Document; 4], serde_json::Error> {
    let Facts { created, created_by, platform: Platform { architecture, variant }, .. } = facts;
    let (created, variant) = (created.as_str(), variant.as_deref());
    let known = [(TITLE, facts.title.as_deref()), (VERSION, facts.version.as_deref())];
    let labels: BTreeMap<_, _> = known.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    // Not a label: an image that is built on this one would inherit it.
    let annotations = labels.iter().map(|(key, value)| (*key, *value)).chain([(CREATED, created)]).collect();

    let configuration = Configuration {
        created,
        architecture,
        variant,
        os: "linux",
        config: Execution { env: [format!("PATH={SEARCH_PATH}")], cmd: &facts.command, labels },
        rootfs: RootFs { kind: "layers", diff_ids: [digest(layer.diff_id)] },
        history: [History { created, created_by }],
    };
    let configuration = serde_json::to_vec(&configuration)?;
    let manifest = Manifest {
        schema_version: 2,
        media_type: MANIFEST,
        config: Descriptor::of(CONFIGURATION, &configuration),
        layers: [Descriptor {
            media_type: LAYER,
            digest: digest(layer.digest),
            size: layer.size,
            platform: None,
            annotations: BTreeMap::new(),
        }],
        annotations,
    };
    let manifest = serde_json::to_vec(&manifest)?;
    let index = Index {
        schema_version: 2,
        media_type: INDEX,
        manifests: [Descriptor {
            platform: Some(PlatformOf { architecture, os: "linux", variant }),
            annotations: BTreeMap::from([(REF_NAME, facts.tag.as_str())]),
            ..Descriptor::of(MANIFEST, &manifest)
        }],
    };
    let layout = Layout { image_layout_version: LAYOUT_VERSION };
    Ok([
        Document { path: blob_path(Sha256::of(&configuration)), content: configuration },
        Document { path: blob_path(Sha256::of(&manifest)), content: manifest },
        Document { path: "index.json".to_owned(), content: serde_json::to_vec(&index)? },
        Document { path: "oci-layout".to_owned(), content: serde_json::to_vec(&layout)? },
    ])
}

fn digest(hash: Sha256) -> String {
    format!("sha256:{hash}")
}

#[derive(Serialize)]
struct Configuration<'a> {
    created: &'a str,
    architecture: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<&'a str>,
    os: &'a str,
    config: Execution<'a>,
    rootfs: RootFs,
    history: [History<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Execution<'a> {
    env: [String; 1],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    cmd: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct RootFs {
    #[serde(rename = "type")]
    kind: &'static str,
    diff_ids: [String; 1],
}

#[derive(Serialize)]
struct History<'a> {
    created: &'a str,
    created_by: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a> {
    schema_version: u32,
    media_type: &'a str,
    config: Descriptor<'a>,
    layers: [Descriptor<'a>; 1],
    annotations: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u32,
    media_type: &'a str,
    manifests: [Descriptor<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor<'a> {
    media_type: &'a str,
    digest: String,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    platform: Option<PlatformOf<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'a str, &'a str>,
}

impl<'a> Descriptor<'a> {
    fn of(media_type: &'a str, content: &[u8]) -> Descriptor<'a> {
        Descriptor {
            media_type,
            digest: digest(Sha256::of(content)),
            size: content.len() as u64,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }
}

#[derive(Serialize)]
struct PlatformOf<'a> {
    architecture: &'a str,
    os: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Layout<'a> {
    image_layout_version: &'a str,
}

/// Whether a text may be the name of an image in its layout (annotations.md, `org.opencontainers.image.ref.name`).
pub fn is_tag(text: &str) -> bool {
    text.split('/').all(|component| {
        let is_separator = |character: char| "-._:@+".contains(character);
        // `--` counts as one separator.
        let component = component.replace("--", "-");
        component.split(is_separator).all(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            created: "2023-11-14T22:13:20Z".to_owned(),
            created_by: "fullbore bootstrap --variant minbase \"trixie\"".to_owned(),
            platform: Platform::parse("armhf").unwrap(),
            tag: "trixie".to_owned(),
            command: vec!["bash".to_owned()],
            title: Some("Debian GNU/Linux 13 (trixie)".to_owned()),
            version: Some("13".to_owned()),
        }
    }

    const LAYER_OF_TEST: Layer = Layer { digest: Sha256([0xab; 32]), size: 1234, diff_id: Sha256([0xcd; 32]) };

    fn text(document: &Document) -> &str {
        std::str::from_utf8(&document.content).unwrap()
    }

    #[test]
    fn documents_are_written_as_the_specification_has_them() {
        let [configuration, manifest, index, layout] = documents(&facts(), &LAYER_OF_TEST).unwrap();
        assert_eq!(
            text(&configuration),
            concat!(
                r#"{"created":"2023-11-14T22:13:20Z","architecture":"arm","variant":"v7","os":"linux","#,
                r#""config":{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"#,
                r#""Cmd":["bash"],"Labels":{"org.opencontainers.image.title":"Debian GNU/Linux 13 (trixie)","#,
                r#""org.opencontainers.image.version":"13"}},"rootfs":{"type":"layers","diff_ids":["#,
                r#""sha256:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"]},"#,
                r#""history":[{"created":"2023-11-14T22:13:20Z","#,
                r#""created_by":"fullbore bootstrap --variant minbase \"trixie\""}]}"#,
            )
        );
        let size = configuration.content.len();
        let hash = Sha256::of(&configuration.content);
        assert_eq!(configuration.path, format!("blobs/sha256/{hash}"));
        assert_eq!(
            text(&manifest),
            format!(
                concat!(
                    r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","#,
                    r#""config":{{"mediaType":"application/vnd.oci.image.config.v1+json","#,
                    r#""digest":"sha256:{}","size":{}}},"#,
                    r#""layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","#,
                    r#""digest":"sha256:abababababababababababababababababababababababababababababababab","#,
                    r#""size":1234}}],"annotations":{{"#,
                    r#""org.opencontainers.image.created":"2023-11-14T22:13:20Z","#,
                    r#""org.opencontainers.image.title":"Debian GNU/Linux 13 (trixie)","#,
                    r#""org.opencontainers.image.version":"13"}}}}"#,
                ),
                hash, size
            )
        );
        assert_eq!(manifest.path, format!("blobs/sha256/{}", Sha256::of(&manifest.content)));
        assert_eq!(
            text(&index),
            format!(
                concat!(
                    r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","#,
                    r#""manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","#,
                    r#""digest":"sha256:{}","size":{},"#,
                    r#""platform":{{"architecture":"arm","os":"linux","variant":"v7"}},"#,
                    r#""annotations":{{"org.opencontainers.image.ref.name":"trixie"}}}}]}}"#,
                ),
                Sha256::of(&manifest.content),
                manifest.content.len()
            )
        );
        assert_eq!(index.path, "index.json");
        assert_eq!((layout.path.as_str(), text(&layout)), ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#));
    }

    #[test]
    fn unknown_facts_are_left_out() {
        let platform = Platform::parse("amd64").unwrap();
        let facts = Facts { platform, title: None, version: None, command: Vec::new(), ..facts() };
        let [configuration, manifest, index, _] = documents(&facts, &LAYER_OF_TEST).unwrap();
        for key in ["\"variant\"", "Cmd", "Labels", "image.title", "image.version"] {
            for document in [&configuration, &manifest, &index] {
                assert!(!text(document).contains(key), "{key}: {}", text(document));
            }
        }
    }

    #[test]
    fn names_of_images_follow_the_grammar() {
        let right = ["trixie", "stable-backports", "example.org/base:trixie", "a--b", "v1.0", "a@sha256:0", "A/b_c+d"];
        assert_eq!(right.iter().find(|text| !is_tag(text)), None);
        let wrong = ["", "-a", "a-", "a---b", "a..b", "a//b", "/a", "a/", "a b", "a~b", "ü"];
        assert_eq!(wrong.iter().find(|text| is_tag(text)), None);
    }
}
