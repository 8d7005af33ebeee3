//! Sizes of files without a size in their index: `SHA256SUMS` of installer images has only hashes, and every download
//! needs a limit.
//!
//! First a HEAD request is sent. If the answer has no length (chunked encoding, caches), a request for the first byte
//! follows, whose `Content-Range` has the size. A host without ranges sends the whole file, which is then counted.

use std::time::Duration;

use fullbore_engine::run::Stop;
use fullbore_engine::run::error::CommandError;
use fullbore_wire::fetch::{Get, Piece, Watch};
use fullbore_wire::hosts::HostId;
use fullbore_wire::range::ContentRange;

use super::session::Session;

/// Number of sizes requested in parallel. An archive has some hundred installer images.
const ASKED_AT_ONCE: usize = 64;

/// Maximum number of bytes that are counted; no installer image below `dists/` is larger.
const COUNTED_BYTES_MAX: u64 = 1 << 30;

/// Number of requests for a body per host: a broken transfer is not resumed.
const BODY_TRIES: usize = 2;

/// Host that sent the indexes.
const ORIGIN: HostId = 0;

/// HTTP statuses of a host that does not have a file, or does not give it to this client.
const MISSING: [u16; 3] = [403, 404, 410];

/// Timeout for the header and for each piece of a counted file, as in a fetch.
const PATIENCE: Duration = Duration::from_secs(10);

/// Size of a file, as hosts reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Size in bytes.
    Size(u64),
    /// The origin does not have the file, and no other host has it.
    Absent,
    /// No host reported a size, and the origin did not say that the file is absent.
    Nothing,
}

impl Told {
    /// Size in bytes, if a host reported one.
    pub(crate) fn size(self) -> Option<u64> {
        if let Told::Size(size) = self { Some(size) } else { None }
    }
}

/// A file whose size is requested.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    /// Path of the file on the hosts.
    pub path: String,
    /// Sizes that were reported before, and that turned out to belong to other content.
    pub wrong: Vec<u64>,
}

/// Requests the sizes of these files; returns the answers in their order. The first size that is not known to be wrong
/// counts.
///
/// # Errors
///
/// `Interrupted` if a signal arrived. Failures of hosts are in the result.
pub(crate) fn learn(files: Vec<Asked>, session: &Session, stop: &Stop) -> Result<Vec<Told>, CommandError> {
    let mut learned = vec![Told::Nothing; files.len()];
    let files: Vec<(usize, Asked)> = files.into_iter().enumerate().collect();
    for group in files.chunks(ASKED_AT_ONCE) {
        let answers = session.runtime.block_on(stop.or(async {
            let mut asked = tokio::task::JoinSet::new();
            for (position, file) in group.iter().cloned() {
                let watch = session.site.fetcher.watch();
                asked.spawn(async move { (position, on_some_host(&watch, &file).await) });
            }
            asked.join_all().await
        }))?;
        answers.into_iter().for_each(|(position, told)| learned[position] = told);
    }
    Ok(learned)
}

async fn on_some_host(watch: &Watch, file: &Asked) -> Told {
    let hosts = watch.names().len() as HostId;
    let is_new = |size: &u64| !file.wrong.contains(size);
    let mut silent = Vec::new();
    for host in 0..hosts {
        let get = Get { path: file.path.clone(), head_only: true, ..Get::default() };
        match watch.get(host, get).await {
            Ok(got) if got.head.status == 200 && got.head.content_length.is_some() => {
                if let Some(size) = got.head.content_length.filter(is_new) {
                    return Told::Size(size);
                }
            }
            _ => silent.push(host),
        }
    }
    let mut is_absent = false;
    for host in silent {
        let mut told = Told::Nothing;
        for _ in 0..BODY_TRIES {
            told = by_body(watch, host, &file.path).await;
            if told != Told::Nothing {
                break;
            }
        }
        match told {
            Told::Size(size) if is_new(&size) => return told,
            // The index is from the origin, so its answer counts most.
            _ => is_absent |= host == ORIGIN && told == Told::Absent,
        }
    }
    if is_absent { Told::Absent } else { Told::Nothing }
}

/// Determines the size by a request for the first byte.
async fn by_body(watch: &Watch, host: HostId, path: &str) -> Told {
    let get = Get {
        path: path.to_owned(),
        limit_bytes: COUNTED_BYTES_MAX,
        fields: vec![("Range".to_owned(), "bytes=0-0".to_owned())],
        ..Get::default()
    };
    let Ok(mut streamed) = watch.stream(host, get, PATIENCE).await else { return Told::Nothing };
    match (streamed.head.status, streamed.head.content_range, streamed.head.content_length) {
        (206, Some(ContentRange::Bytes { complete, .. }), _) => return complete.map_or(Told::Nothing, Told::Size),
        // The file is empty, so it has no first byte.
        (416, Some(ContentRange::Unsatisfied { complete }), _) => return Told::Size(complete),
        (200, _, Some(length)) => return Told::Size(length),
        (200, _, None) => {}
        (status, ..) => return if MISSING.contains(&status) { Told::Absent } else { Told::Nothing },
    }
    let mut counted = 0;
    loop {
        match tokio::time::timeout(PATIENCE, streamed.body.recv()).await {
            Ok(Some(Ok(Piece::Data(data)))) => counted += data.len() as u64,
            Ok(Some(Ok(Piece::End))) => return Told::Size(counted),
            _ => return Told::Nothing,
        }
    }
}
