//! Sizes of files whose index has none: `SHA256SUMS` of installer images lists only hashes, and every download needs a
//! bound.
//!
//! First a HEAD request. If its answer has no length (chunked encoding, caches), a request for the first byte, whose
//! `Content-Range` has the size. A host without ranges sends the whole file, which is counted.

use std::time::Duration;

use fullbore_engine::run::Stop;
use fullbore_engine::run::error::CommandError;
use fullbore_wire::fetch::{Get, Piece, Watch};
use fullbore_wire::hosts::HostId;
use fullbore_wire::range::ContentRange;

use super::session::Session;

/// Sizes requested at once; an archive has some hundred installer images.
const ASKED_AT_ONCE: usize = 64;

/// Largest file that is counted, in bytes: more than any installer image below `dists/` has.
const COUNTED_BYTES_MAX: u64 = 1 << 30;

/// Requests for a body per host: a broken transfer is not resumed.
const BODY_TRIES: usize = 2;

/// Timeout for the head and for each piece of a counted file; the same as for a fetch.
const PATIENCE: Duration = Duration::from_secs(10);

/// The sizes of these files, in their order; `None` where no host reports one.
pub fn learn(paths: Vec<String>, session: &Session, stop: &Stop) -> Result<Vec<Option<u64>>, CommandError> {
    let mut learned = vec![None; paths.len()];
    let paths: Vec<(usize, String)> = paths.into_iter().enumerate().collect();
    for group in paths.chunks(ASKED_AT_ONCE) {
        let answers = session.runtime.block_on(stop.or(async {
            let mut asked = tokio::task::JoinSet::new();
            for (position, path) in group.iter().cloned() {
                let watch = session.site.fetcher.watch();
                asked.spawn(async move { (position, on_some_host(&watch, &path).await) });
            }
            asked.join_all().await
        }))?;
        answers.into_iter().for_each(|(position, size)| learned[position] = size);
    }
    Ok(learned)
}

async fn on_some_host(watch: &Watch, path: &str) -> Option<u64> {
    let hosts = watch.names().len() as HostId;
    for host in 0..hosts {
        let get = Get { path: path.to_owned(), head_only: true, ..Get::default() };
        if let Ok(got) = watch.get(host, get).await
            && got.head.status == 200
            && let Some(length) = got.head.content_length
        {
            return Some(length);
        }
    }
    for host in (0..hosts).flat_map(|host| [host; BODY_TRIES]) {
        if let Some(size) = by_body(watch, host, path).await {
            return Some(size);
        }
    }
    None
}

/// The size by a request for the first byte.
async fn by_body(watch: &Watch, host: HostId, path: &str) -> Option<u64> {
    let get = Get {
        path: path.to_owned(),
        limit_bytes: COUNTED_BYTES_MAX,
        fields: vec![("Range".to_owned(), "bytes=0-0".to_owned())],
        ..Get::default()
    };
    let mut streamed = watch.stream(host, get, PATIENCE).await.ok()?;
    match (streamed.head.status, streamed.head.content_range, streamed.head.content_length) {
        (206, Some(ContentRange::Bytes { complete, .. }), _) => return complete,
        // There is no first byte.
        (416, Some(ContentRange::Unsatisfied { complete }), _) => return Some(complete),
        (200, _, Some(length)) => return Some(length),
        (200, _, None) => {}
        _ => return None,
    }
    let mut counted = 0;
    loop {
        match tokio::time::timeout(PATIENCE, streamed.body.recv()).await.ok()?? {
            Ok(Piece::Data(data)) => counted += data.len() as u64,
            Ok(Piece::End) => return Some(counted),
            Err(_) => return None,
        }
    }
}
