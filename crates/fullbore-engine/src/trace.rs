//! A file of spans for ui.perfetto.dev (Chrome's JSON trace format).
//!
//! Off unless the user asks for it. A span is a name on a lane (a thread, a
//! connection) with begin and end; spans go to the file as they end, so memory
//! does not grow, and the file has a bound. Format: "Trace Event Format",
//! complete events (`ph: X`, microseconds) and thread names (`ph: M`).

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::json;

/// Spans written at most; later ones are counted and dropped. At about 120
/// bytes each the file stays below 250 MB, which the viewer still opens (a guess).
const SPANS: u64 = 2_000_000;

/// The trace of a run, or nothing. Clones write to the same file.
#[derive(Clone, Default)]
pub struct Trace {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    origin: Instant,
    next_lane: AtomicU32,
    limit: u64,
    output: Mutex<Output>,
}

struct Output {
    to: Box<dyn Write + Send>,
    written: u64,
    dropped: u64,
    failed: Option<io::Error>,
    ended: bool,
}

impl fmt::Debug for Trace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Trace").field("on", &self.shared.is_some()).finish()
    }
}

impl Trace {
    /// A trace that writes nothing.
    pub fn off() -> Trace {
        Trace::default()
    }

    /// A trace into `to`, usually a buffered file.
    pub fn to(to: impl Write + Send + 'static) -> Trace {
        Trace::with_limit(to, SPANS)
    }

    fn with_limit(to: impl Write + Send + 'static, limit: u64) -> Trace {
        let output = Output { to: Box::new(to), written: 0, dropped: 0, failed: None, ended: false };
        let shared = Shared { origin: Instant::now(), next_lane: AtomicU32::new(1), limit, output: Mutex::new(output) };
        Trace { shared: Some(Arc::new(shared)) }
    }

    /// A lane of the picture: a thread, a connection, a file.
    pub fn lane(&self, name: &str) -> Lane {
        let number = self.shared.as_ref().map_or(0, |shared| {
            let number = shared.next_lane.fetch_add(1, Ordering::Relaxed);
            let event = json!({"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": name}});
            shared.lock().write(&event);
            number
        });
        Lane { trace: self.clone(), number }
    }

    /// Ends the file. The number of spans dropped because of the bound, or the
    /// first error in writing.
    pub fn finish(&self) -> io::Result<u64> {
        let Some(shared) = &self.shared else {
            return Ok(0);
        };
        let mut output = shared.lock();
        output.end();
        match output.failed.take() {
            Some(error) => Err(error),
            None => Ok(output.dropped),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Output {
    fn write(&mut self, event: &serde_json::Value) {
        if self.failed.is_some() || self.ended {
            return;
        }
        let before = if self.written == 0 { "[\n" } else { ",\n" };
        self.failed = write!(self.to, "{before}{event}").err();
        self.written += 1;
    }

    fn end(&mut self) {
        if self.failed.is_none() && !self.ended {
            let before = if self.written == 0 { "[" } else { "" };
            self.failed = write!(self.to, "{before}\n]\n").and_then(|()| self.to.flush()).err();
        }
        self.ended = true;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.lock().end();
    }
}

/// Where spans are drawn, one below the other.
#[derive(Clone, Debug)]
pub struct Lane {
    trace: Trace,
    number: u32,
}

impl Lane {
    /// Begins a span that ends when the guard is dropped. The name is made
    /// only if the trace is on.
    pub fn span<S: Into<String>>(&self, name: impl FnOnce() -> S) -> Span<'_> {
        let begun = self.trace.shared.is_some().then(|| (name().into(), Instant::now()));
        Span { lane: self, begun }
    }
}

/// A span under way.
#[derive(Debug)]
#[must_use = "the span ends when the guard is dropped"]
pub struct Span<'a> {
    lane: &'a Lane,
    begun: Option<(String, Instant)>,
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        let (Some(shared), Some((name, begun))) = (&self.lane.trace.shared, self.begun.take()) else {
            return;
        };
        let start_us = begun.saturating_duration_since(shared.origin).as_nanos() as f64 / 1000.0;
        let length_us = begun.elapsed().as_nanos() as f64 / 1000.0;
        let event =
            json!({"ph": "X", "name": name, "pid": 1, "tid": self.lane.number, "ts": start_us, "dur": length_us});
        let mut output = shared.lock();
        if output.written >= shared.limit {
            output.dropped += 1;
        } else {
            output.write(&event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic holds it").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Memory {
        fn events(&self) -> Vec<serde_json::Value> {
            serde_json::from_slice(&self.0.lock().expect("no panic holds it")).expect("a JSON array")
        }
    }

    #[test]
    fn spans_and_lane_names_make_a_json_array() {
        let memory = Memory::default();
        let trace = Trace::to(memory.clone());
        let lane = trace.lane("connection 1 \"quoted\"");
        drop(lane.span(|| "GET /pool/a.deb"));
        assert_eq!(trace.finish().expect("memory takes all"), 0);
        let events = memory.events();
        assert_eq!(events[0]["args"]["name"], "connection 1 \"quoted\"");
        assert_eq!(events[1]["name"], "GET /pool/a.deb");
        assert_eq!(events[1]["tid"], events[0]["tid"]);
    }

    #[test]
    fn the_file_has_a_bound_and_ends_well_when_dropped() {
        let memory = Memory::default();
        let trace = Trace::with_limit(memory.clone(), 3);
        let lane = trace.lane("a");
        for _ in 0..10 {
            drop(lane.span(|| "x"));
        }
        drop((lane, trace));
        assert_eq!(memory.events().len(), 3);
    }

    #[test]
    fn a_trace_that_is_off_makes_no_names() {
        let trace = Trace::off();
        drop(trace.lane("a").span(|| -> String { unreachable!("names are made only when on") }));
        assert_eq!(trace.finish().expect("nothing to write"), 0);
    }
}
