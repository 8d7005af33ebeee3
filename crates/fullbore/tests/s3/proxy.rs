//! A proxy before a real store, which counts requests and does wrong with some of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What becomes of a request.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// It is passed on after so long.
    Pass(Duration),
    /// The client is killed before it is passed on.
    Kill,
    /// It is passed on, and its answer is not.
    LoseAnswer,
    /// This status is answered instead.
    Answer(u16),
    /// This status, with the error of a store of this name.
    Refuse(u16, &'static str),
    /// It is passed on; if it has a field whose name begins so, it is taken for done instead.
    Ignore(&'static str),
    /// It asks for a listing, and gets the first page of one again and again.
    SamePage,
}

impl Action {
    pub fn now() -> Action {
        Action::Pass(Duration::ZERO)
    }

    pub fn late() -> Action {
        Action::Pass(Duration::from_millis(100))
    }
}

type Script = dyn FnMut(usize, &str) -> Action + Send;

pub struct Proxy {
    pub url: String,
    client: Arc<AtomicU32>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Asks the script about each request: its number, from 1, and its first line.
    pub fn start(store: &str, script: impl FnMut(usize, &str) -> Action + Send + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let store = store.trim_start_matches("http://").to_owned();
        let script: Arc<Mutex<Box<Script>>> = Arc::new(Mutex::new(Box::new(script)));
        let (client, lines) = (Arc::<AtomicU32>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (count, page) = (Arc::default(), Arc::default());
        let proxy = Proxy { url, client: client.clone(), lines: lines.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (store, script) = (store.clone(), script.clone());
                let (client, lines, count, page) =
                    (client.clone(), lines.clone(), Arc::clone(&count), Arc::clone(&page));
                std::thread::spawn(move || {
                    // Either side may close whenever it likes.
                    let _ = serve(stream, &store, &script, &client, &lines, &count, &page);
                });
            }
        });
        proxy
    }

    /// The process to kill.
    pub fn kills(&self, client: u32) {
        self.client.store(client, Ordering::SeqCst);
    }

    /// The first lines of all requests so far.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

fn serve(
    stream: TcpStream,
    store: &str,
    script: &Mutex<Box<Script>>,
    client: &AtomicU32,
    lines: &Mutex<Vec<String>>,
    count: &AtomicUsize,
    page: &Mutex<Vec<u8>>,
) -> Option<()> {
    let mut from = BufReader::new(stream);
    let mut to = BufReader::new(TcpStream::connect(store).ok()?);
    loop {
        let mut head = read_head(&mut from)?;
        let body = read_body(&mut from, &head)?;
        let line = head.lines().next()?.to_owned();
        lines.lock().unwrap().push(line.clone());
        let action = {
            let mut script = script.lock().unwrap();
            script(count.fetch_add(1, Ordering::SeqCst) + 1, &line)
        };
        match action {
            Action::Pass(after) => std::thread::sleep(after),
            Action::Kill => {
                while client.load(Ordering::SeqCst) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let pid = rustix::process::Pid::from_raw(i32::try_from(client.load(Ordering::SeqCst)).unwrap());
                let _ = rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL);
                return None;
            }
            Action::Answer(status) => {
                let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
                from.get_mut().write_all(answer.as_bytes()).ok()?;
                continue;
            }
            Action::Refuse(status, code) => {
                let error = format!("<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>");
                let date = httpdate::fmt_http_date(std::time::SystemTime::now());
                let length = error.len();
                let answer = format!("HTTP/1.1 {status} X\r\nDate: {date}\r\nContent-Length: {length}\r\n\r\n{error}");
                from.get_mut().write_all(answer.as_bytes()).ok()?;
                continue;
            }
            Action::Ignore(condition) => {
                let is_condition = |line: &str| line.to_ascii_lowercase().starts_with(condition);
                if head.lines().any(is_condition) {
                    let answer =
                        "HTTP/1.1 200 X\r\nETag: \"0123456789abcdef0123456789abcdef\"\r\nContent-Length: 0\r\n\r\n";
                    from.get_mut().write_all(answer.as_bytes()).ok()?;
                    continue;
                }
            }
            Action::SamePage | Action::LoseAnswer => {}
        }
        // The token of a page that the store has never given.
        if matches!(action, Action::SamePage) && line.contains("continuation-token=") {
            from.get_mut().write_all(&page.lock().unwrap()).ok()?;
            continue;
        }
        // Its answer has a length then.
        head = head.replace("Accept-Encoding: gzip\r\n", "");
        to.get_mut().write_all(head.as_bytes()).ok()?;
        to.get_mut().write_all(&body).ok()?;
        let answer_head = read_head(&mut to)?;
        let status: u16 = answer_head.split(' ').nth(1)?.parse().ok()?;
        let has_body = !line.starts_with("HEAD ") && !matches!(status, 204 | 304);
        let answer_body = if has_body { read_body(&mut to, &answer_head)? } else { Vec::new() };
        if matches!(action, Action::LoseAnswer) {
            return None;
        }
        let mut answer = [answer_head.as_bytes(), &answer_body].concat();
        if matches!(action, Action::SamePage) {
            let listed = String::from_utf8_lossy(&answer_body).replace(
                "<IsTruncated>false</IsTruncated>",
                "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>",
            );
            answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{listed}", listed.len()).into_bytes();
            page.lock().unwrap().clone_from(&answer);
        }
        from.get_mut().write_all(&answer).ok()?;
    }
}

fn read_head(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    loop {
        let before = head.len();
        stream.read_line(&mut head).ok().filter(|count| *count > 0)?;
        if head.len() - before <= 2 && before > 0 {
            return Some(head);
        }
    }
}

fn read_body(stream: &mut BufReader<TcpStream>, head: &str) -> Option<Vec<u8>> {
    let field = |name: &str| {
        let of = |line: &str| {
            Some(line.split_once(':').filter(|(field, _)| field.eq_ignore_ascii_case(name))?.1.trim().to_owned())
        };
        head.lines().find_map(of)
    };
    if field("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        // Passed on as it came, chunks and all.
        let mut body = Vec::new();
        loop {
            let at = body.len();
            stream.read_until(b'\n', &mut body).ok()?;
            let size = usize::from_str_radix(String::from_utf8_lossy(&body[at..]).trim(), 16).ok()?;
            let begin = body.len();
            body.resize(begin + size + 2, 0);
            stream.read_exact(&mut body[begin..]).ok()?;
            if size == 0 {
                return Some(body);
            }
        }
    }
    let length: usize = field("content-length").map_or(Some(0), |value| value.parse().ok())?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}
