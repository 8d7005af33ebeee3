//! A task: files that one worker fetches and stores, or reads and stores.

use fullbore_debian::path::{self, PathError, PathFault};
use fullbore_digest::{Sha256, Sha256Hasher};
use serde::{Deserialize, Serialize};

use super::{MessageError, VERSION, Versioned, parse, shown};
use crate::names::{Class, RunId};
use crate::tasks::{FILE_BYTES_MAX, PACK_BYTES_MAX, PACK_FILES_MAX, XL_BYTES_MIN};

/// What a worker does with the files of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Fetch them from the mirrors of the run, verify and store them.
    Fetch,
    /// Read them below the root of the run, and store them.
    Put,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Fetch, Kind::Put];

    /// The kind in messages.
    fn as_str(self) -> &'static str {
        match self {
            Kind::Fetch => "fetch",
            Kind::Put => "put",
        }
    }

    fn of(text: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// Longest path of a file to put: that of a key of S3.
const PUT_PATH_BYTES_MAX: usize = 1024;

/// Hexadecimal digits of a message id.
const ID_DIGITS: usize = 32;

/// Names that clients trust once they are signed.
const SIGNED_NAMES: [&str; 3] = ["InRelease", "Release", "Release.gpg"];

/// A file of a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// Path below the root of the mirror or of the files to put, checked by [`Item::check`].
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Hash of the content, from a signed index. Of a file to put: [`Item::version`].
    pub sha256: Sha256,
}

impl Item {
    /// Stands for the content of a file to put, which the planner has not read. A worker refuses a file that has changed
    /// since the planner saw it.
    pub fn version(size: u64, modified_s: i64, modified_ns: u32) -> Sha256 {
        Sha256::of(format!("{size} {modified_s} {modified_ns}").as_bytes())
    }

    /// Whether a worker may be given this file.
    ///
    /// # Errors
    /// The reason: a path outside the root, a published path, or a size that no store takes.
    pub fn check_for(&self, kind: Kind) -> Result<(), MessageError> {
        match kind {
            Kind::Fetch => self.check(),
            Kind::Put => self.check_to_put(),
        }
    }

    /// Files that people put have any names; only the parts of the path must not lead out of the root.
    fn check_to_put(&self) -> Result<(), MessageError> {
        let fault = match self.path.as_str() {
            "" => Some(PathFault::Empty),
            path if path.len() > PUT_PATH_BYTES_MAX => Some(PathFault::TooLong),
            path if path.starts_with('/') => Some(PathFault::Absolute),
            path if path.contains('\0') => Some(PathFault::Control),
            path => path.split('/').find_map(|part| match part {
                "" => Some(PathFault::EmptyPart),
                "." | ".." => Some(PathFault::Dots),
                _ => None,
            }),
        };
        if let Some(fault) = fault {
            return Err(MessageError::Path(PathError { shown: shown(&self.path), fault }));
        }
        if self.size > FILE_BYTES_MAX {
            return Err(MessageError::Size { bytes: self.size, count: 1 });
        }
        Ok(())
    }

    /// Whether a worker may be given this file of a mirror. Workers never write what the planner publishes: nothing below
    /// `dists`, and no signed file. They write no file of fullbore's own either, because its names start with a dot.
    ///
    /// # Errors
    /// The reason: a path outside the mirror, a published path, or a size that no store takes.
    pub fn check(&self) -> Result<(), MessageError> {
        path::check(&self.path).map_err(|fault| MessageError::Path(PathError { shown: shown(&self.path), fault }))?;
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        if self.path == "dists" || self.path.starts_with("dists/") || SIGNED_NAMES.contains(&name) {
            return Err(MessageError::Published { path: shown(&self.path) });
        }
        if self.size > FILE_BYTES_MAX {
            return Err(MessageError::Size { bytes: self.size, count: 1 });
        }
        Ok(())
    }
}

/// Files that one worker fetches or reads, and stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// What to do with them.
    pub kind: Kind,
    /// The run.
    pub run: RunId,
    /// Round of the run, from 1. A later round repeats what the store lacks.
    pub round: u32,
    /// The files: one, or a pack of small ones.
    pub items: Vec<Item>,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u32,
    run: RunId,
    round: u32,
    kind: String,
    items: Vec<(String, u64, String)>,
}

impl Versioned for Wire {
    fn version(&self) -> u32 {
        self.v
    }
}

fn unknown_kind(bytes: &[u8]) -> Option<MessageError> {
    #[derive(Deserialize)]
    struct OnlyKind {
        kind: String,
    }
    let OnlyKind { kind } = serde_json::from_slice(bytes).ok()?;
    Kind::of(&kind).is_none().then(|| MessageError::Kind { kind: shown(&kind) })
}

impl Task {
    /// Reads a message.
    ///
    /// # Errors
    /// See [`MessageError`]; [`is_skew`](MessageError::is_skew) tells a later version from a hostile message.
    pub fn parse(bytes: &[u8]) -> Result<Task, MessageError> {
        let wire = match parse::<Wire>(bytes) {
            Ok(wire) => wire,
            // Another kind may have other items, and is no broken message.
            Err(MessageError::Json(error)) => return Err(unknown_kind(bytes).unwrap_or(MessageError::Json(error))),
            Err(error) => return Err(error),
        };
        let kind = Kind::of(&wire.kind).ok_or_else(|| MessageError::Kind { kind: shown(&wire.kind) })?;
        let Wire { run, round, items, .. } = wire;
        if round == 0 {
            return Err(MessageError::Bound { field: "round", value: 0 });
        }
        if items.is_empty() || items.len() > PACK_FILES_MAX {
            return Err(MessageError::Count { count: items.len() });
        }
        let items = items.into_iter().map(|(path, size, hash)| {
            let Ok(sha256) = Sha256::from_hex(hash.as_bytes()) else {
                return Err(MessageError::Hash { path: shown(&path) });
            };
            let item = Item { path, size, sha256 };
            item.check_for(kind)?;
            Ok(item)
        });
        let task = Task { kind, run, round, items: items.collect::<Result<_, _>>()? };
        // No overflow: 64 files of bounded size. A pack is held whole in memory, so its size must be the planner's.
        if task.items.len() > 1 && task.bytes() > PACK_BYTES_MAX {
            return Err(MessageError::Size { bytes: task.bytes(), count: task.items.len() });
        }
        Ok(task)
    }

    /// The message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let items = self.items.iter().map(|item| (item.path.clone(), item.size, item.sha256.to_string()));
        let (run, kind) = (self.run.clone(), self.kind.as_str().to_owned());
        let wire = Wire { v: VERSION, run, round: self.round, kind, items: items.collect() };
        serde_json::to_vec(&wire).expect("text and numbers have a form in JSON")
    }

    /// Id by which the queue recognises a repeated publication. The round is a part of it: a queue drops a message
    /// whose id it has seen within an hour, even if that one was acknowledged, so requeued work needs another id.
    pub fn id(&self) -> String {
        let mut hasher = Sha256Hasher::new();
        hasher.update(format!("{}\0{}\0", self.run, self.round).as_bytes());
        for item in &self.items {
            hasher.update(item.path.as_bytes());
            hasher.update(format!("\0{}\0{}\n", item.size, item.sha256).as_bytes());
        }
        let mut id = hasher.finish().to_string();
        id.truncate(ID_DIGITS);
        id
    }

    /// Sum of the sizes.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| item.size).sum()
    }

    /// Class of the task.
    pub fn class(&self) -> Class {
        if self.bytes() >= XL_BYTES_MIN { Class::Xl } else { Class::Large }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash() -> String {
        Sha256::of(b"content").to_string()
    }

    fn item(path: &str, size: u64) -> Item {
        Item { path: path.to_owned(), size, sha256: Sha256::of(b"content") }
    }

    fn task(items: Vec<Item>) -> Task {
        Task { kind: Kind::Fetch, run: RunId::parse("9c1f").unwrap(), round: 1, items }
    }

    #[test]
    fn a_task_survives_the_way_through_its_message() {
        let task = task(vec![item("pool/main/h/hello/hello_2.10-5_amd64.deb", 53_092), item("pool/a\"ü_1:2.deb", 0)]);
        assert_eq!(Task::parse(&task.to_bytes()).unwrap(), task);
        assert_eq!(task.id().len(), 32);
        let written = String::from_utf8(task.to_bytes()).unwrap();
        assert!(
            written.starts_with("{\"v\":1,\"run\":\"9c1f\",\"round\":1,\"kind\":\"fetch\",\"items\":[["),
            "{written}"
        );
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let text = format!(
            "{{\"v\":1,\"run\":\"a\",\"round\":1,\"kind\":\"fetch\",\"later\":{{}},\"items\":[[\"pool/a\",1,\"{}\"]]}}",
            hash()
        );
        assert_eq!(Task::parse(text.as_bytes()).unwrap().items, vec![item("pool/a", 1)]);
    }

    #[test]
    fn the_id_names_the_content_and_the_round() {
        let first = task(vec![item("pool/a", 1), item("pool/b", 2)]);
        let mut other = first.clone();
        assert_eq!(first.id(), other.id());
        other.round = 2;
        assert_ne!(first.id(), other.id());
        // A path cannot imitate the next field.
        assert_ne!(task(vec![item("pool/a1", 1)]).id(), task(vec![item("pool/a", 11)]).id());
    }

    /// F18
    #[test]
    fn a_hostile_task_is_refused() {
        let message = |version: u64, round: u64, items: &str| {
            format!("{{\"v\":{version},\"run\":\"a\",\"round\":{round},\"kind\":\"fetch\",\"items\":[{items}]}}")
        };
        let one = |path: &str, size: u64| format!("[\"{path}\",{size},\"{}\"]", hash());
        let refused = |text: String| Task::parse(text.as_bytes()).expect_err(&text);
        for path in [
            "",
            "../x",
            "pool/../../etc/passwd",
            "/etc/passwd",
            ".fullbore/state",
            "pool/.x.part",
            "pool//x",
            "pool/%2e%2e/x",
            "pool\\\\x",
            "pool/\\u0000x",
            "pool/\\nx",
        ] {
            assert!(matches!(refused(message(1, 1, &one(path, 1))), MessageError::Path(_)), "{path}");
        }
        for path in
            ["dists/sid/InRelease", "dists/sid/main/binary-amd64/Packages.xz", "dists", "InRelease", "x/Release"]
        {
            assert!(matches!(refused(message(1, 1, &one(path, 1))), MessageError::Published { .. }), "{path}");
        }
        let pack = [one("pool/a", 5_000_000_000), one("pool/b", 5_000_000_000)].join(",");
        assert!(matches!(refused(message(1, 1, &pack)), MessageError::Size { count: 2, .. }));
        assert!(matches!(refused(message(1, 1, &one("pool/a", u64::MAX))), MessageError::Size { count: 1, .. }));
        let many = vec![one("pool/a", 1); 65].join(",");
        assert!(matches!(refused(message(1, 1, &many)), MessageError::Count { count: 65 }));
        assert!(matches!(refused(message(1, 1, "")), MessageError::Count { count: 0 }));
        assert!(matches!(refused(message(1, 1, "[\"pool/a\",1,\"00\"]")), MessageError::Hash { .. }));
        assert!(matches!(refused(message(1, 0, &one("pool/a", 1))), MessageError::Bound { .. }));
        let long = format!("{}{}", message(1, 1, &one("pool/a", 1)), " ".repeat(64 << 10));
        assert!(matches!(refused(long), MessageError::TooLarge { .. }));
        assert!(matches!(refused("[".repeat(60_000)), MessageError::Json(_)));
        for text in ["", "null", "{}", "{\"v\":1}", "{\"v\":-1}", "{\"v\":1,\"run\":\"a.b\",\"kind\":\"fetch\"}"] {
            assert!(!refused(text.to_owned()).is_skew(), "{text}");
        }
    }

    #[test]
    fn files_to_put_have_any_names_below_their_root() {
        let put = |path: &str| Task { kind: Kind::Put, ..task(vec![item(path, 5)]) };
        for path in [".hidden", "dists/sid/InRelease", "a b/\u{e4}\n", "x/..y", "Release"] {
            assert_eq!(Task::parse(&put(path).to_bytes()).unwrap(), put(path), "{path:?}");
        }
        for path in ["", "/etc/passwd", "..", "a/../b", "a//b", "a/.", "a\0b", &"a".repeat(1025)] {
            assert!(matches!(Task::parse(&put(path).to_bytes()), Err(MessageError::Path(_))), "{path:?}");
        }
        assert_ne!(Item::version(5, 1, 0), Item::version(5, 1, 1));
    }

    /// F15
    #[test]
    fn a_task_of_a_later_version_is_no_hostile_one() {
        let later = Task::parse(b"{\"v\":2,\"what\":\"else\"}").expect_err("later");
        assert!(later.is_skew(), "{later}");
        let kind = Task::parse(b"{\"v\":1,\"kind\":\"part\",\"run\":\"a\",\"upload\":\"x\"}").expect_err("kind");
        assert!(kind.is_skew(), "{kind}");
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Task::parse(&bytes);
        }

        #[test]
        fn a_parsed_path_stays_inside(path in "[a./%2eE~+:]{0,24}", size in 0..=8_000_000_u64) {
            let text = task(vec![item(&path, size)]).to_bytes();
            if let Ok(task) = Task::parse(&text) {
                prop_assert!(task.items[0].path.split('/').all(|part| !part.is_empty() && !part.starts_with('.')));
                prop_assert_eq!(task.to_bytes(), text);
            }
        }
    }
}
