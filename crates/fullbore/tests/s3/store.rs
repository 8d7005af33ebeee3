//! A store in this process that does what it is told to do wrong. It keeps objects in memory, notes every request, and
//! asks a script before it answers one. It shares no code with what it tests, and checks no signatures.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fullbore_testkit::digest::Digest;
use md5::{Digest as _, Md5};

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// Encoded, without the query.
    pub path: String,
    pub query: String,
    pub fields: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    pub fn is_put(&self) -> bool {
        self.method == "PUT"
    }
}

/// What goes wrong with a request.
#[derive(Debug, Clone)]
pub enum Fault {
    None,
    /// This answer, with these fields, instead.
    Answer(u16, &'static str, &'static str),
    /// The connection is reset before an answer.
    Reset,
    /// As `Reset`, after it was done.
    ResetAfter,
    /// The checksum in the answer is another.
    WrongChecksum,
    /// `If-None-Match` is ignored: what is there is replaced.
    Unconditional,
    /// No answer for so long.
    Stall(Duration),
    /// It is done, and then no answer for so long.
    DoneAndStall(Duration),
    /// Slowly.
    Delay(Duration),
    /// No answer until so many others were given.
    After(usize),
    /// Byte by byte, without an end.
    Drip,
    /// ETags have no quotes.
    BareEtags,
    /// ETags of 32 digits are not the MD5 of the content.
    OddEtags,
    /// Ranges have weak ETags, or none.
    WeakEtagsOfRanges,
    NoEtagsOfRanges,
    /// Ranges are ignored: all of the object is answered.
    NoRanges,
    /// The answer has no length, and the connection closes behind so many bytes of its body, as a proxy of HTTP/1.0 has it.
    CutWithoutLength(usize),
    /// The connection is reset behind so many bytes of the answer's body.
    ResetBehind(usize),
    /// It is done, and the answer has no body.
    EmptyAnswer,
    /// Listings are those of ListObjects, with pages of so many keys.
    ListingOne {
        page: usize,
        /// Whether `NextMarker` stands there.
        next_marker: bool,
        /// Whether a page begins with the marker itself.
        repeats: bool,
    },
    /// No answer until so many requests were on their way at once.
    Together(usize),
    /// Refused with a plea for less when more than so many are asked at once, and slowly otherwise.
    SlowAbove(usize, Duration),
}

/// Parts on a page of their listing: few, so that most listings have several pages.
const LISTED_PARTS: usize = 3;

/// The answer to a completion that names parts which the upload does not have.
const INVALID_PART: &str = "<Error><Code>InvalidPart</Code><Message>no such part</Message></Error>";

/// A plea for less.
pub const SLOW: &str = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";

type Script = Box<dyn FnMut(&Request) -> Fault + Send>;

/// An object, with the fields that it was put with.
#[derive(Debug, Clone, Default)]
pub struct Object {
    pub content: Vec<u8>,
    pub fields: BTreeMap<String, String>,
    pub checksum: String,
    /// Where it is not made from the checksum.
    pub etag: Option<String>,
    /// What answers have instead of the SHA-256.
    pub checksum_fields: Option<String>,
    /// The lengths of its parts, which `HEAD ?partNumber` tells; none: it describes the whole object.
    pub parts: Vec<usize>,
}

#[derive(Default)]
struct Kept {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<String, (String, BTreeMap<u32, Object>)>,
    /// When they were begun, seconds since 1970.
    initiated: BTreeMap<String, i64>,
    requests: Vec<Request>,
    uploads_begun: usize,
    only_md5: bool,
    one_etag: bool,
}

pub struct Store {
    pub url: String,
    kept: Arc<Mutex<Kept>>,
    script: Arc<Mutex<Script>>,
    pub at_once: Arc<AtomicUsize>,
    pub most_at_once: Arc<AtomicUsize>,
}

impl Store {
    /// Starts one whose requests go by this script.
    pub fn start(script: impl FnMut(&Request) -> Fault + Send + 'static) -> Store {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let store = Store {
            url: format!("http://{}", listener.local_addr().unwrap()),
            kept: Arc::default(),
            script: Arc::new(Mutex::new(Box::new(script))),
            at_once: Arc::default(),
            most_at_once: Arc::default(),
        };
        let (kept, script) = (Arc::clone(&store.kept), Arc::clone(&store.script));
        let (now, most) = (Arc::clone(&store.at_once), Arc::clone(&store.most_at_once));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, script) = (Arc::clone(&kept), Arc::clone(&script));
                let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                std::thread::spawn(move || serve(stream, &kept, &script, &now, &most));
            }
        });
        store
    }

    /// Changes what goes wrong.
    pub fn script(&self, script: impl FnMut(&Request) -> Fault + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    pub fn object(&self, key: &str) -> Option<Object> {
        self.kept.lock().unwrap().objects.get(key).cloned()
    }

    pub fn keys(&self) -> Vec<String> {
        self.kept.lock().unwrap().objects.keys().cloned().collect()
    }

    pub fn put(&self, key: &str, content: &[u8]) {
        let object = Object { content: content.to_vec(), checksum: checksum(content), ..Object::default() };
        self.kept.lock().unwrap().objects.insert(key.to_owned(), object);
    }

    pub fn remove(&self, key: &str) {
        self.kept.lock().unwrap().objects.remove(key);
    }

    /// From now on it has no SHA-256 sums: ETags are MD5, and of objects in parts what is made from theirs.
    pub fn has_only_md5(&self) {
        self.kept.lock().unwrap().only_md5 = true;
    }

    /// From now on answers to uploads and listings have the ETag that HEAD gives, as those of most stores.
    pub fn has_one_etag(&self) {
        self.kept.lock().unwrap().one_etag = true;
    }

    /// An object with all of its fields.
    pub fn put_object(&self, key: &str, object: Object) {
        self.kept.lock().unwrap().objects.insert(key.to_owned(), object);
    }

    pub fn open_uploads(&self) -> usize {
        self.kept.lock().unwrap().uploads.len()
    }

    /// The ids of open uploads.
    pub fn upload_ids(&self) -> Vec<String> {
        self.kept.lock().unwrap().uploads.keys().cloned().collect()
    }

    /// An upload of somebody else.
    pub fn begin_upload(&self, key: &str, id: &str, initiated_s: i64) {
        let mut kept = self.kept.lock().unwrap();
        kept.uploads.insert(id.to_owned(), (key.to_owned(), BTreeMap::new()));
        kept.initiated.insert(id.to_owned(), initiated_s);
    }

    pub fn uploads_begun(&self) -> usize {
        self.kept.lock().unwrap().uploads_begun
    }

    /// All requests since the last time.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.kept.lock().unwrap().requests)
    }
}

fn md5(content: &[u8]) -> String {
    Md5::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The ETag in the place of this one where ETags are odd.
fn odd_etag(etag: &str) -> String {
    md5(format!("salt {etag}").as_bytes())
}

pub fn checksum(content: &[u8]) -> String {
    STANDARD.encode(Digest::of(content).0)
}

fn serve(stream: TcpStream, kept: &Mutex<Kept>, script: &Mutex<Script>, now: &AtomicUsize, most: &AtomicUsize) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream) {
        let together = now.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(together, Ordering::SeqCst);
        let mut obeyed = request.clone();
        let fault = (script.lock().unwrap())(&request);
        let (mut after, mut wrong, mut bare) = (false, false, false);
        let (mut odd, mut empty, mut etags_of_ranges, mut listing) = (false, false, None, None);
        let mut stall = Duration::ZERO;
        let (mut reset_behind, mut cut_behind) = (None, None);
        let fault = match fault {
            Fault::SlowAbove(most, _) if together > most => Fault::Answer(503, "", SLOW),
            Fault::SlowAbove(_, time) => Fault::Delay(time),
            fault => fault,
        };
        match fault {
            Fault::Answer(status, fields, body) => {
                now.fetch_sub(1, Ordering::SeqCst);
                let is_head = request.method == "HEAD";
                kept.lock().unwrap().requests.push(request);
                answer(&mut stream, status, fields, body.as_bytes(), is_head);
                continue;
            }
            Fault::Reset => {
                now.fetch_sub(1, Ordering::SeqCst);
                kept.lock().unwrap().requests.push(request);
                return;
            }
            Fault::Drip => {
                let _ = stream.get_mut().write_all(b"HTTP/1.1 200 X\r\nX: ");
                while stream.get_mut().write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(100));
                }
                return;
            }
            Fault::BareEtags => bare = true,
            Fault::OddEtags => odd = true,
            Fault::EmptyAnswer => empty = true,
            Fault::NoRanges => {
                obeyed.fields.remove("range");
            }
            Fault::ResetBehind(bytes) => reset_behind = Some(bytes),
            Fault::CutWithoutLength(bytes) => cut_behind = Some(bytes),
            Fault::WeakEtagsOfRanges => etags_of_ranges = Some("ETag: W/\""),
            Fault::NoEtagsOfRanges => etags_of_ranges = Some("X: \""),
            Fault::ListingOne { page, next_marker, repeats } => listing = Some((page, next_marker, repeats)),
            Fault::ResetAfter => after = true,
            Fault::WrongChecksum => wrong = true,
            Fault::Unconditional => {
                obeyed.fields.remove("if-none-match");
            }
            Fault::DoneAndStall(time) => stall = time,
            Fault::Stall(time) | Fault::Delay(time) => std::thread::sleep(time),
            Fault::After(count) => {
                while kept.lock().unwrap().requests.len() < count {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            Fault::Together(count) => {
                while most.load(Ordering::SeqCst) < count {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            Fault::SlowAbove(..) | Fault::None => {}
        }
        let (status, mut fields, mut body) = act(&mut kept.lock().unwrap(), &obeyed, wrong);
        if bare {
            fields.retain(|character| character != '"');
        }
        if odd && let Some((before, etag)) = fields.clone().split_once("ETag: \"") {
            let (etag, behind) = etag.split_once('"').unwrap();
            fields = format!("{before}ETag: \"{}\"{behind}", odd_etag(etag));
        }
        if let Some(begin) = etags_of_ranges.filter(|_| status == 206) {
            fields = fields.replace("ETag: \"", begin);
        }
        if empty {
            body.clear();
        }
        let is_listing = obeyed.method == "GET" && obeyed.query.contains("prefix=") && status == 200;
        if let Some((page, next_marker, repeats)) = listing.filter(|_| is_listing) {
            let marker = parameter(&obeyed.query, "marker").map(decode);
            body = listing_one(&body, page, marker.as_deref(), next_marker, repeats);
        }
        let is_head = request.method == "HEAD";
        kept.lock().unwrap().requests.push(request);
        now.fetch_sub(1, Ordering::SeqCst);
        if after {
            return;
        }
        std::thread::sleep(stall);
        if let Some(bytes) = reset_behind.filter(|bytes| *bytes < body.len()) {
            fields.push_str(&format!("Content-Length: {}\r\n", body.len()));
            answer(&mut stream, status, &fields, &body[..bytes], is_head);
            return;
        }
        if let Some(bytes) = cut_behind.filter(|_| !is_head) {
            // The name of the field is enough for `answer` to write no length.
            fields.push_str("X-No-Content-Length: 1\r\nConnection: close\r\n");
            answer(&mut stream, status, &fields, &body[..bytes.min(body.len())], is_head);
            return;
        }
        answer(&mut stream, status, &fields, &body, is_head);
    }
}

/// A page of a listing as ListObjects has it, cut out of a whole one.
fn listing_one(whole: &[u8], page: usize, marker: Option<&str>, next_marker: bool, repeats: bool) -> Vec<u8> {
    let whole = String::from_utf8(whole.to_vec()).unwrap();
    let entries = whole.split("<Contents>").skip(1).map(|entry| entry.split("</Contents>").next().unwrap());
    let key = |entry: &str| entry.split("<Key>").nth(1).unwrap().split("</Key>").next().unwrap().to_owned();
    let follows =
        |entry: &&str| marker.is_none_or(|marker| key(entry).as_str() > marker || repeats && key(entry) == marker);
    let rest: Vec<&str> = entries.filter(follows).collect();
    let is_truncated = rest.len() > page;
    let mut body = format!("<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
    for entry in rest.iter().take(page) {
        body.push_str(&format!("<Contents>{entry}</Contents>"));
    }
    if next_marker && is_truncated {
        body.push_str(&format!("<NextMarker>{}</NextMarker>", key(rest[page - 1])));
    }
    body.push_str("</ListBucketResult>");
    body.into_bytes()
}

fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let mut fields = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        fields.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length: usize = fields.get("content-length").map_or(0, |value| value.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Request { method, path, query, fields, body })
}

fn answer(stream: &mut BufReader<TcpStream>, status: u16, fields: &str, body: &[u8], is_head: bool) {
    let length =
        if fields.contains("Content-Length") { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let mut bytes = format!("HTTP/1.1 {status} X\r\n{fields}{length}\r\n").into_bytes();
    if !is_head {
        bytes.extend_from_slice(body);
    }
    let _ = stream.get_mut().write_all(&bytes);
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits: String = rest.by_ref().take(2).map(char::from).collect();
            bytes.push(u8::from_str_radix(&digits, 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn encode(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

fn unix_now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// The ETag of an object by its checksum: it tells contents apart, and is no MD5.
fn etag_of(checksum: &str) -> String {
    checksum.replace('/', "_")
}

/// The ETag of a part: it tells contents apart, too.
fn etag_of_part(content: &[u8], only_md5: bool) -> String {
    if only_md5 { md5(content) } else { etag_of(&checksum(content)) }
}

/// Numbers and ETags of the parts that a completion names.
fn named_parts(completion: &[u8]) -> Vec<(u32, String)> {
    let text = String::from_utf8(completion.to_vec()).unwrap();
    let within = |part: &str, name: &str| {
        let begin = part.split(&format!("<{name}>")).nth(1).unwrap_or_default();
        begin.split(&format!("</{name}>")).next().unwrap_or_default().to_owned()
    };
    let part = |part: &str| {
        let etag = within(part, "ETag").replace("&quot;", "").replace('"', "");
        (within(part, "PartNumber").parse().unwrap_or(0), etag)
    };
    text.split("<Part>").skip(1).map(part).collect()
}

/// Whether an upload has each part of a completion, by the ETag that was told of it, and they are in order.
fn has_parts(parts: &BTreeMap<u32, Object>, named: &[(u32, String)], only_md5: bool) -> bool {
    let is_there = |(number, told): &(u32, String)| {
        parts.get(number).is_some_and(|part| {
            let etag = etag_of_part(&part.content, only_md5);
            *told == etag || *told == odd_etag(&etag)
        })
    };
    !named.is_empty() && named.iter().all(is_there) && named.is_sorted_by(|one, next| one.0 < next.0)
}

/// Status, fields and body of a request that goes well.
fn act(kept: &mut Kept, request: &Request, wrong: bool) -> (u16, String, Vec<u8>) {
    let path = request.path.trim_start_matches('/');
    let (_, key) = path.split_once('/').unwrap_or((path, ""));
    let key = decode(key);
    let sum = |content: &[u8]| if wrong { checksum(b"other") } else { checksum(content) };
    let none = |status| (status, String::new(), Vec::new());
    let only_md5 = kept.only_md5;
    let sum_field = |sum: &str| if only_md5 { String::new() } else { format!("x-amz-checksum-sha256: {sum}\r\n") };
    let upload = parameter(&request.query, "uploadId").map(decode);
    match (request.method.as_str(), upload) {
        ("PUT", Some(upload)) => {
            let Some((_, parts)) = kept.uploads.get_mut(&upload) else { return none(404) };
            let number = parameter(&request.query, "partNumber").unwrap().parse().unwrap();
            let etag = etag_of_part(&request.body, only_md5);
            let fields = format!("ETag: \"{etag}\"\r\n{}", sum_field(&sum(&request.body)));
            parts.insert(number, Object { content: request.body.clone(), ..Object::default() });
            (200, fields, Vec::new())
        }
        ("POST", Some(upload)) => {
            let Some((_, parts)) = kept.uploads.get(&upload) else { return none(404) };
            let named = named_parts(&request.body);
            if !has_parts(parts, &named, only_md5) {
                return (400, String::new(), INVALID_PART.as_bytes().to_vec());
            }
            let (key, mut parts) = kept.uploads.remove(&upload).unwrap();
            // Parts that are not named are no parts of the object.
            parts.retain(|number, _| named.iter().any(|(named, _)| named == number));
            let mut object = Object { fields: request.fields.clone(), ..Object::default() };
            let (mut sums, mut md5s) = (Vec::new(), Vec::new());
            object.parts = parts.values().map(|part| part.content.len()).collect();
            for part in parts.values() {
                object.content.extend_from_slice(&part.content);
                sums.extend_from_slice(&Digest::of(&part.content).0);
                md5s.extend_from_slice(&Md5::digest(&part.content));
            }
            object.checksum = format!("{}-{}", checksum(&sums), parts.len());
            object.etag = only_md5.then(|| format!("{}-{}", md5(&md5s), parts.len()));
            let body = match only_md5 {
                true => "<R><ETag>\"x-1\"</ETag></R>".to_owned(),
                false => {
                    let etag = if kept.one_etag { etag_of(&object.checksum) } else { "x-1".to_owned() };
                    format!("<R><ETag>\"{etag}\"</ETag><ChecksumSHA256>{}</ChecksumSHA256></R>", object.checksum)
                }
            };
            kept.objects.insert(key, object);
            (200, String::new(), body.into_bytes())
        }
        ("GET", Some(upload)) => {
            let Some((_, parts)) = kept.uploads.get(&upload) else { return none(404) };
            let marker = parameter(&request.query, "part-number-marker").map_or(0, |marker| marker.parse().unwrap());
            let page: Vec<_> = parts.range(marker + 1..).take(LISTED_PARTS).collect();
            let last = page.last().map_or(marker, |(number, _)| **number);
            let is_truncated = parts.range(last + 1..).next().is_some();
            let mut body = format!("<ListPartsResult><IsTruncated>{is_truncated}</IsTruncated>");
            body.push_str(&format!("<NextPartNumberMarker>{last}</NextPartNumberMarker>"));
            for (number, part) in page {
                let etag = etag_of_part(&part.content, only_md5);
                let sum = if only_md5 { String::new() } else { checksum(&part.content) };
                body.push_str(&format!(
                    "<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag><Size>{}</Size>\
                     <ChecksumSHA256>{sum}</ChecksumSHA256></Part>",
                    part.content.len()
                ));
            }
            body.push_str("</ListPartsResult>");
            (200, String::new(), body.into_bytes())
        }
        ("DELETE", Some(upload)) => {
            let was_there = kept.uploads.remove(&upload).is_some();
            none(if was_there { 204 } else { 404 })
        }
        ("POST", None) if request.query.starts_with("uploads") => {
            kept.uploads_begun += 1;
            let id = format!("id/{}+", kept.uploads_begun);
            kept.uploads.insert(id.clone(), (key, BTreeMap::new()));
            kept.initiated.insert(id.clone(), unix_now());
            (200, String::new(), format!("<R><UploadId>{id}</UploadId></R>").into_bytes())
        }
        ("POST", None) => {
            let text = String::from_utf8(request.body.clone()).unwrap();
            for part in text.split("<Key>").skip(1) {
                kept.objects.remove(part.split("</Key>").next().unwrap());
            }
            (200, String::new(), b"<DeleteResult/>".to_vec())
        }
        ("PUT", None) => {
            if request.field("if-none-match") == "*" && kept.objects.contains_key(&key) {
                return none(412);
            }
            if let Some(wanted) = request.fields.get("if-match").filter(|_| kept.one_etag) {
                let there = kept.objects.get(&key).map(|object| etag_of(&object.checksum));
                if there.is_none_or(|there| format!("\"{there}\"") != *wanted) {
                    return none(412);
                }
            }
            let etag = if kept.one_etag { etag_of(&checksum(&request.body)) } else { "e".to_owned() };
            let fields = format!("ETag: \"{etag}\"\r\n{}", sum_field(&sum(&request.body)));
            let object = Object {
                content: request.body.clone(),
                fields: request.fields.clone(),
                checksum: checksum(&request.body),
                etag: only_md5.then(|| md5(&request.body)),
                ..Object::default()
            };
            kept.objects.insert(key, object);
            (200, fields, Vec::new())
        }
        ("GET", None) if key.is_empty() && parameter(&request.query, "uploads").is_some() => {
            let prefix = parameter(&request.query, "prefix").map(decode).unwrap_or_default();
            let mut body = String::from("<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>");
            for (id, (key, _)) in kept.uploads.iter().filter(|(_, (key, _))| key.starts_with(&prefix)) {
                let time = jiff::Timestamp::from_second(kept.initiated[id]).unwrap();
                body.push_str(&format!(
                    "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{time}</Initiated></Upload>"
                ));
            }
            body.push_str("</ListMultipartUploadsResult>");
            let date = jiff::Timestamp::from_second(unix_now()).unwrap().strftime("%a, %d %b %Y %H:%M:%S GMT");
            (200, format!("Date: {date}\r\n"), body.into_bytes())
        }
        ("GET", None) if key.is_empty() => {
            let prefix = parameter(&request.query, "prefix").map(decode).unwrap_or_default();
            let delimiter = parameter(&request.query, "delimiter").map(decode).unwrap_or_default();
            let is_encoded = parameter(&request.query, "encoding-type").is_some();
            let mut body = String::from("<ListBucketResult><IsTruncated>false</IsTruncated>");
            if is_encoded {
                body.push_str("<EncodingType>url</EncodingType>");
            }
            let shown = |key: &str| if is_encoded { encode(key) } else { key.to_owned() };
            let mut prefixes = std::collections::BTreeSet::new();
            for (key, object) in kept.objects.iter().filter(|(key, _)| key.starts_with(&prefix)) {
                let rest = &key[prefix.len()..];
                if let Some(at) = rest.find('/').filter(|_| delimiter == "/") {
                    prefixes.insert(&key[..=prefix.len() + at]);
                    continue;
                }
                let etag = if kept.one_etag { etag_of(&object.checksum) } else { "opaque".to_owned() };
                body.push_str(&format!(
                    "<Contents><Key>{}</Key><LastModified>2024-02-03T04:05:06.000Z</LastModified><Size>{}</Size>\
                     <ETag>\"{etag}\"</ETag></Contents>",
                    shown(key),
                    object.content.len()
                ));
            }
            for prefix in prefixes {
                body.push_str(&format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", shown(prefix)));
            }
            body.push_str("</ListBucketResult>");
            (200, String::new(), body.into_bytes())
        }
        ("GET" | "HEAD", None) => {
            let Some(object) = kept.objects.get(&key) else { return none(404) };
            let content = &object.content;
            let sum = if kept.one_etag { object.checksum.clone() } else { checksum(content) };
            let etag = object.etag.clone().unwrap_or_else(|| etag_of(&sum));
            let kept_fields = object.fields.iter().filter(|(name, _)| name.starts_with("x-amz-meta-"));
            let metadata: String = kept_fields.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let last_modified = "Last-Modified: Sat, 03 Feb 2024 04:05:06 GMT\r\n";
            let etag = format!("ETag: \"{etag}\"\r\n{last_modified}{metadata}");
            if request.fields.get("if-match").is_some_and(|wanted| !etag.contains(wanted)) {
                return none(412);
            }
            let sums = || object.checksum_fields.clone().unwrap_or_else(|| sum_field(&object.checksum));
            if request.method == "HEAD" {
                let number = parameter(&request.query, "partNumber").map(|number| number.parse::<usize>().unwrap());
                if let Some(number) = number.filter(|_| !object.parts.is_empty()) {
                    let Some(length) = object.parts.get(number - 1) else { return none(416) };
                    let first: usize = object.parts[..number - 1].iter().sum();
                    let (last, size, count) = (first + length - 1, content.len(), object.parts.len());
                    let range = format!("Content-Range: bytes {first}-{last}/{size}\r\nContent-Length: {length}\r\n");
                    return (206, format!("{etag}{range}x-amz-mp-parts-count: {count}\r\n"), Vec::new());
                }
                let fields = format!("{etag}Content-Length: {}\r\n{}", content.len(), sums());
                return (200, fields, Vec::new());
            }
            let Some(range) = request.field("range").strip_prefix("bytes=") else {
                // Checksums of the whole are told with the whole.
                let sums = if request.field("x-amz-checksum-mode").is_empty() { String::new() } else { sums() };
                return (200, format!("{etag}{sums}"), content.clone());
            };
            let (first, last) = range.split_once('-').unwrap();
            let first: usize = first.parse().unwrap();
            if first >= content.len() {
                return none(416);
            }
            let last = last.parse::<usize>().unwrap().min(content.len() - 1);
            let fields = format!("{etag}Content-Range: bytes {first}-{last}/{}\r\n", content.len());
            (206, fields, content[first..=last].to_vec())
        }
        ("DELETE", None) => {
            kept.objects.remove(&key);
            none(204)
        }
        _ => none(405),
    }
}
