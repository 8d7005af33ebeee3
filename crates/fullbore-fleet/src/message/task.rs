//! A task: files that one worker fetches and stores, or reads and stores, or a part of one large file.

use std::ops::Range;

use fullbore_debian::path::{self, PathError, PathFault};
use fullbore_digest::{Sha256, Sha256Hasher};
use serde::{Deserialize, Serialize};

use super::{MessageError, VERSION, Versioned, parse, shown};
use crate::names::{Class, RunId};
use crate::tasks::{FILE_BYTES_MAX, PACK_BYTES_MAX, PACK_FILES_MAX, XL_BYTES_MIN};

/// What a worker does with the files of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Fetch them from the mirrors of the run, verify and store them.
    Fetch,
    /// Read them below the root of the run, and store them.
    Put,
    /// Read a part of the only file below the root of the run, and send it into an upload that the planner has begun.
    Part(Part),
}

/// Names of the kinds in messages.
const FETCH: &str = "fetch";
const PUT: &str = "put";
const PART: &str = "part";

impl Kind {
    fn as_str(&self) -> &'static str {
        match self {
            Kind::Fetch => FETCH,
            Kind::Put => PUT,
            Kind::Part(_) => PART,
        }
    }
}

/// A part of a file that is uploaded in parts. All parts but the last have the same size, so number and size determine
/// its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Id of the upload, given by the store.
    pub upload: String,
    /// Number of the part, counted from 1.
    pub number: u32,
    /// Bytes of each part except the last.
    pub part_bytes: u64,
}

impl Part {
    /// The range of the part in a file of this size; empty beyond its end.
    pub fn range(&self, size: u64) -> Range<u64> {
        let start = u64::from(self.number.saturating_sub(1)).saturating_mul(self.part_bytes).min(size);
        start..start.saturating_add(self.part_bytes).min(size)
    }

    fn check(&self, items: &[Item]) -> Result<(), MessageError> {
        let is_printable = self.upload.bytes().all(|byte| byte.is_ascii_graphic());
        if !(1..=UPLOAD_BYTES_MAX).contains(&self.upload.len()) || !is_printable {
            return Err(MessageError::Upload { upload: shown(&self.upload) });
        }
        let [item] = items else { return Err(MessageError::Count { count: items.len() }) };
        if !(1..=PARTS_MAX).contains(&self.number) || self.range(item.size).is_empty() {
            return Err(MessageError::Bound { field: "part", value: u64::from(self.number) });
        }
        if !(PART_BYTES_MIN..=PART_BYTES_MAX).contains(&self.part_bytes) {
            return Err(MessageError::Bound { field: "size of a part", value: self.part_bytes });
        }
        Ok(())
    }
}

/// Most parts of an object, and least and most bytes of a part ("Amazon S3 multipart upload limits").
const PARTS_MAX: u32 = 10_000;
const PART_BYTES_MIN: u64 = 5 << 20;
const PART_BYTES_MAX: u64 = 5 << 30;

/// Longest id of an upload in bytes. Those of Amazon have about 130 letters.
const UPLOAD_BYTES_MAX: usize = 1024;

/// Longest ETag in a task, in bytes: an MD5 sum and a number of parts have 38 letters. A planner omits longer ones.
pub const TAG_BYTES_MAX: usize = 64;

/// Longest path of a file to put, in bytes: that of a key of S3.
const PUT_PATH_BYTES_MAX: usize = 1024;

/// Hexadecimal digits of a message id.
const ID_DIGITS: usize = 32;

/// Names that clients trust once they are signed.
const SIGNED_NAMES: [&str; 3] = ["InRelease", "Release", "Release.gpg"];

/// A file of a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// Path below the root of the mirror or of the files to put; [`Item::check`] checks it.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the content, from a signed index. For a file to put, the result of [`Item::version`].
    pub sha256: Sha256,
}

impl Item {
    /// Stands for the content of a file to put, which the planner has not read. A worker refuses a file that has
    /// changed since the planner saw it.
    pub fn version(size: u64, modified_s: i64, modified_ns: u32) -> Sha256 {
        Sha256::of(format!("{size} {modified_s} {modified_ns}").as_bytes())
    }

    /// Checks that a worker may receive this file in a task of this kind.
    ///
    /// # Errors
    /// [`MessageError::Path`] for a path outside the root, [`MessageError::Published`] for one that only the planner
    /// writes, [`MessageError::Size`] for a file that no store accepts.
    pub fn check_for(&self, kind: &Kind) -> Result<(), MessageError> {
        match kind {
            Kind::Fetch => self.check(),
            Kind::Put | Kind::Part(_) => self.check_to_put(),
        }
    }

    /// Files to put may have any names, but their paths must not lead out of the root.
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

    /// Checks that a worker may receive this file of a mirror. Workers never write what the planner publishes: nothing
    /// below `dists`, and no signed file. They write no file of fullbore's own either, as the names of those start with
    /// a dot.
    ///
    /// # Errors
    /// [`MessageError::Path`] for a path outside the mirror, [`MessageError::Published`] for one that only the planner
    /// writes, [`MessageError::Size`] for a file that no store accepts.
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
    /// The work to do with the files.
    pub kind: Kind,
    /// The run that the task belongs to.
    pub run: RunId,
    /// Round of the run, from 1. A later round repeats what the store lacks.
    pub round: u32,
    /// The files: one, or a pack of small ones.
    pub items: Vec<Item>,
    /// For files to put, what each object may replace: an object with this ETag, or none if it is empty. `None` allows
    /// any object. An empty list stands for `None` everywhere.
    pub replaces: Vec<Option<String>>,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u32,
    run: RunId,
    round: u32,
    kind: String,
    items: Vec<(String, u64, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<(String, u32, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replaces: Vec<Option<String>>,
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
    (![FETCH, PUT, PART].contains(&kind.as_str())).then(|| MessageError::Kind { kind: shown(&kind) })
}

impl Task {
    /// Parses a task, and checks it.
    ///
    /// # Errors
    /// [`MessageError::Newer`] or [`MessageError::Kind`] for a task of a later version, which
    /// [`is_skew`](MessageError::is_skew) tells from a hostile message. [`MessageError::TooLarge`] or
    /// [`MessageError::Json`] if it is not a task; the other variants for a value that is not valid.
    pub fn parse(bytes: &[u8]) -> Result<Task, MessageError> {
        let wire = match parse::<Wire>(bytes) {
            Ok(wire) => wire,
            // A task of an unknown kind may have other items, and is not malformed.
            Err(MessageError::Json(error)) => return Err(unknown_kind(bytes).unwrap_or(MessageError::Json(error))),
            Err(error) => return Err(error),
        };
        let Wire { run, round, kind, items, part, replaces, .. } = wire;
        let kind = match (kind.as_str(), part) {
            (FETCH, _) => Kind::Fetch,
            (PUT, _) => Kind::Put,
            (PART, Some((upload, number, part_bytes))) => Kind::Part(Part { upload, number, part_bytes }),
            (PART, None) => return Err(MessageError::Bound { field: "part", value: 0 }),
            (other, _) => return Err(MessageError::Kind { kind: shown(other) }),
        };
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
            item.check_for(&kind)?;
            Ok(item)
        });
        let items: Vec<Item> = items.collect::<Result<_, _>>()?;
        if let Kind::Part(part) = &kind {
            part.check(&items)?;
        }
        let is_tag = |tag: &String| {
            tag.len() <= TAG_BYTES_MAX && tag.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"')
        };
        if !replaces.is_empty() && (replaces.len() != items.len() || !replaces.iter().flatten().all(is_tag)) {
            return Err(MessageError::Tags);
        }
        let task = Task { kind, run, round, items, replaces };
        // The sum cannot overflow: 64 files of bounded size. A pack is held in memory as a whole, so its size must be
        // one that a planner makes.
        if task.items.len() > 1 && task.bytes() > PACK_BYTES_MAX {
            return Err(MessageError::Size { bytes: task.bytes(), count: task.items.len() });
        }
        Ok(task)
    }

    /// Formats the task as a message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let items = self.items.iter().map(|item| (item.path.clone(), item.size, item.sha256.to_string()));
        let part = match &self.kind {
            Kind::Part(Part { upload, number, part_bytes }) => Some((upload.clone(), *number, *part_bytes)),
            Kind::Fetch | Kind::Put => None,
        };
        let (run, kind) = (self.run.clone(), self.kind.as_str().to_owned());
        let (items, replaces) = (items.collect(), self.replaces.clone());
        let wire = Wire { v: VERSION, run, round: self.round, kind, items, part, replaces };
        serde_json::to_vec(&wire).expect("text and numbers have a form in JSON")
    }

    /// Id by which the queue recognises a repeated publication. It includes the round: a queue drops a message whose id
    /// it has seen within an hour, even if that one was acknowledged. So requeued work needs another id.
    pub fn id(&self) -> String {
        let mut hasher = Sha256Hasher::new();
        hasher.update(format!("{}\0{}\0", self.run, self.round).as_bytes());
        for item in &self.items {
            hasher.update(item.path.as_bytes());
            hasher.update(format!("\0{}\0{}\n", item.size, item.sha256).as_bytes());
        }
        if let Kind::Part(Part { upload, number, part_bytes }) = &self.kind {
            hasher.update(format!("{upload}\0{number}\0{part_bytes}").as_bytes());
        }
        let mut id = hasher.finish().to_string();
        id.truncate(ID_DIGITS);
        id
    }

    /// Bytes that a worker transfers for one file.
    pub fn bytes_of(&self, item: &Item) -> u64 {
        match &self.kind {
            Kind::Fetch | Kind::Put => item.size,
            Kind::Part(part) => {
                let range = part.range(item.size);
                range.end - range.start
            }
        }
    }

    /// Bytes that a worker transfers for the task.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| self.bytes_of(item)).sum()
    }

    /// Class of the task. Parts are always of one class, as a worker sends several at once, whatever their size.
    pub fn class(&self) -> Class {
        let is_xl = !matches!(self.kind, Kind::Part(_)) && self.bytes() >= XL_BYTES_MIN;
        if is_xl { Class::Xl } else { Class::Large }
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
        Task { kind: Kind::Fetch, run: RunId::parse("9c1f").unwrap(), round: 1, items, replaces: Vec::new() }
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

    fn part(upload: &str, number: u32, part_bytes: u64, size: u64) -> Task {
        let part = Part { upload: upload.to_owned(), number, part_bytes };
        Task { kind: Kind::Part(part), ..task(vec![item("share/film", size)]) }
    }

    #[test]
    fn a_part_is_counted_by_its_own_bytes() {
        let last = part("2~x/y+z=", 3, 8 << 20, (16 << 20) + 5);
        assert_eq!(Task::parse(&last.to_bytes()).unwrap(), last);
        assert_eq!((last.bytes(), last.class()), (5, Class::Large));
        assert_eq!(part("u", 1, 5 << 30, 1 << 40).class(), Class::Large, "a worker sends several at once");
        let ids = [part("u", 1, 8 << 20, 1 << 30), part("u", 2, 8 << 20, 1 << 30), part("v", 1, 8 << 20, 1 << 30)];
        let ids: std::collections::BTreeSet<String> = ids.iter().map(Task::id).collect();
        assert_eq!(ids.len(), 3);
    }

    /// F18
    #[test]
    fn a_hostile_part_is_refused() {
        let long = "u".repeat(1025);
        for hostile in [
            part("", 1, 8 << 20, 1 << 30),
            part(&long, 1, 8 << 20, 1 << 30),
            part("a b", 1, 8 << 20, 1 << 30),
            part("a\r\nb", 1, 8 << 20, 1 << 30),
            part("u", 0, 8 << 20, 1 << 30),
            part("u", 10_001, 8 << 20, 1 << 40),
            part("u", 129, 8 << 20, 1 << 30),
            part("u", u32::MAX, u64::MAX, u64::MAX),
            part("u", 1, (5 << 20) - 1, 1 << 30),
            part("u", 1, (5 << 30) + 1, 1 << 40),
            part("u", 1, 8 << 20, 0),
            Task { items: vec![item("a", 9 << 20); 2], ..part("u", 1, 8 << 20, 0) },
            Task { items: vec![item("../a", 9 << 20)], ..part("u", 1, 8 << 20, 0) },
        ] {
            assert!(Task::parse(&hostile.to_bytes()).is_err_and(|error| !error.is_skew()), "{hostile:?}");
        }
        let without = part("u", 1, 8 << 20, 1 << 30).to_bytes();
        let without = String::from_utf8(without).unwrap().replace("\"part\":[", "\"other\":[");
        assert!(matches!(Task::parse(without.as_bytes()), Err(MessageError::Bound { field: "part", .. })));
    }

    #[test]
    fn objects_to_replace_go_with_their_files() {
        let items = vec![item("a", 1), item("b", 2), item("c", 3)];
        let tags = |tags: &[Option<&str>]| Task {
            kind: Kind::Put,
            replaces: tags.iter().map(|tag| tag.map(str::to_owned)).collect(),
            ..task(items.clone())
        };
        let good = tags(&[None, Some(""), Some("9b2cf535f27731c974343645a3985328-17")]);
        assert_eq!(Task::parse(&good.to_bytes()).unwrap(), good);
        let long = "e".repeat(TAG_BYTES_MAX + 1);
        for hostile in [tags(&[Some("")]), tags(&[None, None, Some("a\"b")]), tags(&[None, None, Some(&long)])] {
            assert!(matches!(Task::parse(&hostile.to_bytes()), Err(MessageError::Tags)), "{hostile:?}");
        }
    }

    /// F15
    #[test]
    fn a_task_of_a_later_version_is_no_hostile_one() {
        let later = Task::parse(b"{\"v\":2,\"what\":\"else\"}").expect_err("later");
        assert!(later.is_skew(), "{later}");
        let kind = Task::parse(b"{\"v\":1,\"kind\":\"copy\",\"run\":\"a\",\"upload\":\"x\"}").expect_err("kind");
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
