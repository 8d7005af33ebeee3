//! The announcement of a run: the destination of its files, the mirrors that have them, and the budgets of connections.

use std::collections::BTreeMap;
use std::fmt;

use fullbore_debian::path;
use fullbore_wire::url::Url;
use serde::{Deserialize, Serialize};

use super::{MessageError, VERSION, Versioned, bounded, parse, shown};
use crate::names::RunId;

/// Most mirrors of a run. Large mirror lists have some dozens; each worker may connect to all of them.
const HOSTS_MAX: usize = 256;

/// Most connections of the whole fleet to one mirror.
const BUDGET_MAX: u32 = 1000;

/// Connections of the whole fleet to a mirror without its own budget: the default of a single machine.
const BUDGET_DEFAULT: u32 = 4;

/// Host name that stands for all mirrors without their own budget.
const OTHERS: &str = "*";

/// A bucket and a prefix of keys: `s3://bucket/prefix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorePlace {
    bucket: String,
    prefix: String,
}

impl fmt::Display for StorePlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        write!(formatter, "s3://{}{slash}{}", self.bucket, self.prefix)
    }
}

impl StorePlace {
    /// Reads `s3://BUCKET` or `s3://BUCKET/PREFIX`.
    ///
    /// # Errors
    /// [`MessageError::Destination`] for another scheme, characters that no bucket's name has, or a prefix with `..`,
    /// hidden or empty parts.
    pub fn parse(text: &str) -> Result<StorePlace, MessageError> {
        let refused = || MessageError::Destination { to: shown(text) };
        let rest = text.strip_prefix("s3://").ok_or_else(refused)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_bucket = (3..=255).contains(&bucket.len()) && bucket.bytes().all(is_allowed) && !bucket.contains("..");
        if !is_bucket || !(prefix.is_empty() || path::check(prefix).is_ok()) {
            return Err(refused());
        }
        Ok(StorePlace { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    /// Name of the bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Prefix of all keys, without a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether it is within a part of the mirror that only its planner publishes, or among fullbore's own files. Checks
    /// of a task's paths would have no effect there.
    fn is_of_planner(&self) -> bool {
        self.prefix.split('/').any(|part| matches!(part, "dists" | ".fullbore"))
    }

    /// Whether this place is `other`, or below it by whole parts: `s3://b/debian-old` is not below `s3://b/debian`.
    fn is_below(&self, other: &StorePlace) -> bool {
        let rest = self.prefix.strip_prefix(other.prefix.as_str());
        let is_part = |rest: &str| other.prefix.is_empty() || rest.is_empty() || rest.starts_with('/');
        self.bucket == other.bucket && rest.is_some_and(is_part)
    }
}

/// A place where a worker may store: one `--only` of its user, and the endpoint in the worker's own settings.
///
/// The endpoint matters, because a worker signs requests with its credentials. A forged run must not send them
/// elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// Bucket and prefix of the allowed keys.
    pub place: StorePlace,
    /// URL of the store; `None` for Amazon's.
    pub endpoint: Option<Url>,
}

impl Scope {
    /// Whether a run stores only within this scope.
    ///
    /// ```
    /// use fullbore_fleet::message::{Run, Scope, StorePlace};
    ///
    /// let scope = Scope { place: StorePlace::parse("s3://bucket/debian")?, endpoint: None };
    /// let run = br#"{"v":1,"id":"9c1f","kind":"mirror","to":"s3://bucket/ubuntu","hosts":["https://a/"],"round":1}"#;
    /// assert!(!scope.allows(&Run::parse(run)?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allows(&self, run: &Run) -> bool {
        let same = match (&self.endpoint, &run.endpoint) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => ours.same_origin(theirs) && ours.path() == theirs.path(),
            _ => false,
        };
        same && run.to.is_below(&self.place) && (run.put.is_some() || !run.to.is_of_planner())
    }
}

/// Connections of the whole fleet to each mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    by_host: BTreeMap<String, u32>,
}

impl Budgets {
    /// Budgets by `host` or `host:port`, as [`Url::host_and_port`] writes it; `*` stands for all others.
    ///
    /// # Errors
    /// [`MessageError::Bound`] for a budget above 1000.
    pub fn new(by_host: BTreeMap<String, u32>) -> Result<Budgets, MessageError> {
        if let Some(value) = by_host.values().find(|value| **value > BUDGET_MAX) {
            return Err(MessageError::Bound { field: "budget", value: u64::from(*value) });
        }
        if by_host.len() > HOSTS_MAX + 1 {
            return Err(MessageError::Bound { field: "budget", value: by_host.len() as u64 });
        }
        Ok(Budgets { by_host })
    }

    /// Budget of a mirror, given as [`Url::host_and_port`] writes it.
    pub fn of(&self, host_and_port: &str) -> u32 {
        let without_port = host_and_port.rsplit_once(':').map_or(host_and_port, |(host, _)| host);
        let find = |name: &str| self.by_host.get(name).copied();
        find(host_and_port).or_else(|| find(without_port)).or_else(|| find(OTHERS)).unwrap_or(BUDGET_DEFAULT)
    }
}

/// The files of a run that workers read themselves, from a directory that all machines have mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutSource {
    /// Absolute path of the directory on the planner's machine. Each worker's user configures where it is on that
    /// machine.
    pub root: String,
    /// Fields of all objects, such as `Cache-Control`.
    pub fields: Vec<(String, String)>,
    /// `Content-Type` of all objects; by default it follows from the name.
    pub content_type: Option<String>,
}

/// Most fields of objects in an announcement. There are five flags, and some metadata.
const FIELDS_MAX: usize = 64;

/// Most bytes of these fields, names and values together. S3 allows 2 KiB of metadata for an object, and the other
/// fields are short. So an announcement stays far below the size limit of a message.
const FIELDS_BYTES_MAX: usize = 16 << 10;

/// Longest path of a root in bytes: PATH_MAX of Linux.
const ROOT_BYTES_MAX: usize = 4096;

/// Longest value of a field in bytes: S3 allows 2 KiB of metadata for an object.
const VALUE_BYTES_MAX: usize = 2048;

/// Fields that a planner may set, in lower case. Any other field could change the effect of a signed request.
const FIELDS: [&str; 5] = [
    "cache-control",
    "x-amz-storage-class",
    "x-amz-acl",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id",
];

impl PutSource {
    fn check(&self) -> Result<(), MessageError> {
        let refused = |reason| Err(MessageError::Source { reason });
        let parts = self.root.split('/').skip(1);
        let is_path = parts.clone().all(|part| !matches!(part, "." | "..")) && !self.root.contains('\0');
        if !self.root.starts_with('/') || self.root.len() > ROOT_BYTES_MAX || !is_path {
            return refused("its directory is not an absolute path");
        }
        if self.fields.len() > FIELDS_MAX {
            return refused("their objects have more than 64 fields");
        }
        let bytes: usize = self.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > FIELDS_BYTES_MAX {
            return refused("the fields of their objects have more than 16 KiB");
        }
        let is_metadata = |name: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            name.strip_prefix("x-amz-meta-").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(allowed))
        };
        let values = self.fields.iter().map(|(_, value)| value).chain(&self.content_type);
        let is_value = |value: &String| {
            value.len() <= VALUE_BYTES_MAX
                && !value.is_empty()
                && value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        let is_name = |name: &String| {
            let name = name.to_ascii_lowercase();
            FIELDS.contains(&name.as_str()) || is_metadata(&name)
        };
        match (self.fields.iter().all(|(name, _)| is_name(name)), values.clone().all(is_value)) {
            (true, true) => Ok(()),
            (false, _) => refused("a field that is not for users"),
            (true, false) => refused("a field with an odd value"),
        }
    }
}

/// A run, as its planner announces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Name of the run, which follows from its files.
    pub id: RunId,
    /// Bucket and prefix for the files.
    pub to: StorePlace,
    /// URL of the store; `None` for Amazon's.
    pub endpoint: Option<Url>,
    /// Region of the store, if it needs one.
    pub region: Option<String>,
    /// Mirrors that have the files; empty for a run of files to put.
    pub hosts: Vec<Url>,
    /// Limits of connections to each mirror, for the whole fleet.
    pub budgets: Budgets,
    /// Rate limit of the whole fleet in bytes per second; `None` for no limit.
    pub rate_bytes_per_s: Option<u64>,
    /// The planner's machine, for people.
    pub planner: String,
    /// The planner's version of fullbore, for people.
    pub fullbore: String,
    /// Number of the current round, from 1.
    pub round: u32,
    /// The files to put; `None` for a run that fetches the files of a mirror.
    pub put: Option<PutSource>,
}

/// Longest name of a region in bytes: that of a label of a host name (RFC 1035, section 2.3.4).
const REGION_BYTES_MAX: usize = 63;

/// Kind of a run whose files are fetched from mirrors.
const MIRROR: &str = "mirror";

/// Kind of a run whose files workers read.
const PUT: &str = "put";

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u32,
    id: RunId,
    kind: String,
    to: String,
    #[serde(default)]
    endpoint: Option<String>,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    budget: BTreeMap<String, u32>,
    #[serde(default)]
    rate: Option<u64>,
    #[serde(default)]
    planner: String,
    #[serde(default)]
    fullbore: String,
    round: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fields: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
}

impl Versioned for Wire {
    fn version(&self) -> u32 {
        self.v
    }
}

impl Run {
    /// Parses an announcement, and checks it.
    ///
    /// # Errors
    /// [`MessageError::TooLarge`], [`MessageError::Newer`] or [`MessageError::Json`] if it is not an announcement that
    /// this version can read. [`MessageError::Kind`] for an unknown kind of run; [`MessageError::Bound`] for a round,
    /// rate, budget or number of mirrors outside its bounds. [`MessageError::Destination`], [`MessageError::Url`],
    /// [`MessageError::Region`] or [`MessageError::Source`] for a value that is not valid.
    pub fn parse(bytes: &[u8]) -> Result<Run, MessageError> {
        let wire: Wire = parse(bytes)?;
        let is_put = match wire.kind.as_str() {
            MIRROR => false,
            PUT => true,
            other => return Err(MessageError::Kind { kind: shown(other) }),
        };
        if wire.round == 0 {
            return Err(MessageError::Bound { field: "round", value: 0 });
        }
        if wire.hosts.is_empty() != is_put || wire.hosts.len() > HOSTS_MAX {
            return Err(MessageError::Bound { field: "hosts", value: wire.hosts.len() as u64 });
        }
        if wire.rate == Some(0) {
            return Err(MessageError::Bound { field: "rate", value: 0 });
        }
        let put = if is_put {
            let root = wire.root.ok_or(MessageError::Source { reason: "no directory" })?;
            let source = PutSource { root, fields: wire.fields, content_type: wire.content_type };
            source.check()?;
            Some(source)
        } else {
            None
        };
        Ok(Run {
            id: wire.id,
            to: StorePlace::parse(&wire.to)?,
            endpoint: wire.endpoint.as_deref().map(url).transpose()?,
            region: wire.region.as_deref().map(region).transpose()?,
            hosts: wire.hosts.iter().map(|text| url(text)).collect::<Result<_, _>>()?,
            budgets: Budgets::new(wire.budget)?,
            rate_bytes_per_s: wire.rate,
            planner: bounded(&wire.planner),
            fullbore: bounded(&wire.fullbore),
            round: wire.round,
            put,
        })
    }

    /// Formats the announcement as a message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let StorePlace { bucket, prefix } = &self.to;
        let wire = Wire {
            v: VERSION,
            id: self.id.clone(),
            kind: if self.put.is_some() { PUT } else { MIRROR }.to_owned(),
            to: format!("s3://{bucket}/{prefix}"),
            endpoint: self.endpoint.as_ref().map(ToString::to_string),
            region: self.region.clone(),
            hosts: self.hosts.iter().map(ToString::to_string).collect(),
            budget: self.budgets.by_host.clone(),
            rate: self.rate_bytes_per_s,
            planner: self.planner.clone(),
            fullbore: self.fullbore.clone(),
            round: self.round,
            root: self.put.as_ref().map(|source| source.root.clone()),
            fields: self.put.as_ref().map(|source| source.fields.clone()).unwrap_or_default(),
            content_type: self.put.as_ref().and_then(|source| source.content_type.clone()),
        };
        serde_json::to_vec(&wire).expect("text and numbers have a form in JSON")
    }
}

/// Checks a region, which becomes a part of a host name.
fn region(text: &str) -> Result<String, MessageError> {
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    match (1..=REGION_BYTES_MAX).contains(&text.len()) && is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(MessageError::Region { region: shown(text) }),
    }
}

/// Parses an http or https URL; other schemes fail.
fn url(text: &str) -> Result<Url, MessageError> {
    Url::parse(text).map_err(|source| MessageError::Url { url: shown(text), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(to: &str, endpoint: &str, host: &str) -> String {
        format!(
            "{{\"v\":1,\"id\":\"9c1f\",\"kind\":\"mirror\",\"to\":\"{to}\",\"endpoint\":{endpoint},\"region\":\"eu-1\",\
             \"hosts\":[\"{host}\"],\"budget\":{{\"*\":3,\"a.example\":8}},\"rate\":null,\"date\":1763600000,\
             \"planner\":\"h1\",\"fullbore\":\"0.9.0\",\"round\":1}}"
        )
    }

    #[test]
    fn a_run_survives_the_way_through_its_message() {
        let run = Run::parse(text("s3://bucket/debian", "null", "https://a.example/debian").as_bytes()).unwrap();
        assert_eq!(Run::parse(&run.to_bytes()).unwrap(), run);
        let budgets = ["a.example", "a.example:443", "b.example:80"].map(|host| run.budgets.of(host));
        assert_eq!(budgets, [8, 8, 3]);
        assert_eq!(Budgets::new(BTreeMap::new()).unwrap().of("a:80"), 4);
    }

    /// F18
    #[test]
    fn a_hostile_run_is_refused() {
        for (to, endpoint, host) in [
            ("file:///etc", "null", "https://a/debian"),
            ("s3://", "null", "https://a/debian"),
            ("s3://b?/x", "null", "https://a/debian"),
            ("s3://bucket/../x", "null", "https://a/debian"),
            ("s3://bucket/.fullbore", "null", "https://a/debian"),
            ("s3://bucket/x", "null", "file:///etc/passwd"),
            ("s3://bucket/x", "null", "gopher://a/"),
            ("s3://bucket/x", "\"file:///etc\"", "https://a/debian"),
        ] {
            assert!(Run::parse(text(to, endpoint, host).as_bytes()).is_err(), "{to} {endpoint} {host}");
        }
        let many = format!("\"https://a/{}\"", "\",\"https://a/".repeat(256));
        let hosts = text("s3://bucket/x", "null", "H").replace("\"H\"", &many);
        assert!(matches!(Run::parse(hosts.as_bytes()), Err(MessageError::Bound { field: "hosts", .. })));
        for (from, to) in [("\"rate\":null", "\"rate\":0"), ("eu-1", "eu/1"), ("eu-1", "evil.example"), ("eu-1", "")] {
            let changed = text("s3://bucket/x", "null", "https://a/").replace(from, to);
            assert!(Run::parse(changed.as_bytes()).is_err(), "{to}");
        }
        let budget = text("s3://bucket/x", "null", "https://a/").replace("\"*\":3", "\"*\":4000000000");
        assert!(matches!(Run::parse(budget.as_bytes()), Err(MessageError::Bound { field: "budget", .. })));
    }

    /// F18
    #[test]
    fn a_hostile_run_of_files_to_put_is_refused() {
        let run = |root: &str, name: &str, value: &str| Run {
            hosts: Vec::new(),
            put: Some(PutSource {
                root: root.to_owned(),
                fields: vec![(name.to_owned(), value.to_owned())],
                content_type: Some("text/plain".to_owned()),
            }),
            ..Run::parse(text("s3://bucket/x", "null", "https://a/").as_bytes()).unwrap()
        };
        let good = run("/share/photos", "Cache-Control", "max-age=5");
        assert_eq!(Run::parse(&good.to_bytes()).unwrap(), good);
        for root in ["", "share", "/share/../etc", "/./x", "/a\0b"] {
            let hostile = run(root, "x-amz-meta-a", "b");
            assert!(matches!(Run::parse(&hostile.to_bytes()), Err(MessageError::Source { .. })), "{root:?}");
        }
        for (name, value) in [
            ("Host", "evil.example"),
            ("x-amz-copy-source", "/secret/key"),
            ("x-amz-acl", "a\r\nb: c"),
            ("x-amz-meta-", "a"),
        ] {
            let hostile = run("/share", name, value);
            assert!(matches!(Run::parse(&hostile.to_bytes()), Err(MessageError::Source { .. })), "{name}");
        }
        let fields = |count, bytes: usize| {
            let value = "v".repeat(bytes);
            let fields = (0..count).map(|number| (format!("x-amz-meta-{number}"), value.clone())).collect();
            let put = Some(PutSource { fields, ..good.put.clone().unwrap() });
            Run::parse(&Run { put, ..good.clone() }.to_bytes()).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!((fields(64, 100), fields(8, 2000)), (Ok(()), Ok(())));
        assert!(fields(65, 1).unwrap_err().contains("more than 64 fields"));
        assert!(fields(9, 2000).unwrap_err().contains("more than 16 KiB"));
        // One with mirrors too would be of both kinds.
        let both = Run { hosts: vec![Url::parse("https://a/").unwrap()], ..good };
        assert!(Run::parse(&both.to_bytes()).is_err());
    }

    /// F18
    #[test]
    fn a_worker_serves_only_its_own_buckets_and_stores() {
        let scope = |place: &str, endpoint: Option<&str>| Scope {
            place: StorePlace::parse(place).unwrap(),
            endpoint: endpoint.map(|text| Url::parse(text).unwrap()),
        };
        let run = |to: &str, endpoint: &str| Run::parse(text(to, endpoint, "https://a/debian").as_bytes()).unwrap();
        let amazon = scope("s3://bucket/debian", None);
        for to in ["s3://bucket/debian", "s3://bucket/debian/", "s3://bucket/debian/sid"] {
            assert!(amazon.allows(&run(to, "null")), "{to}");
        }
        for to in ["s3://bucket/debian-old", "s3://bucket/", "s3://bucket/ubuntu", "s3://bucket2/debian"] {
            assert!(!amazon.allows(&run(to, "null")), "{to}");
        }
        assert!(scope("s3://bucket", None).allows(&run("s3://bucket/any", "null")));
        // Tasks could write what only planners publish.
        for to in ["s3://bucket/debian/dists", "s3://bucket/debian/dists/sid"] {
            assert!(!amazon.allows(&run(to, "null")), "{to}");
        }
        assert!(amazon.allows(&run("s3://bucket/debian/dists-old", "null")));
        // Credentials go to the store that the worker's user names, and to no other.
        let foreign = run("s3://bucket/debian", "\"https://evil.example\"");
        assert!(!amazon.allows(&foreign));
        assert!(!scope("s3://bucket/debian", Some("https://store.example")).allows(&foreign));
        assert!(scope("s3://bucket/debian", Some("https://evil.example/")).allows(&foreign));
        assert!(!scope("s3://bucket/debian", Some("https://store.example")).allows(&run("s3://bucket/debian", "null")));
    }
}
