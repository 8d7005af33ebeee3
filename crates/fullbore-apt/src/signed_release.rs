//! The signed `Release` of a suite: requested, received, verified.
//!
//! After an answer "not modified" the local copy is verified again (CVE-2014-0487). The caller compares the result with
//! its own state.

use std::fmt::Display;
use std::ops::Range;
use std::pin::pin;
use std::time::{Duration, Instant};

use fullbore_debian::release::{Release, if_modified_since};
use fullbore_debian::signature::{
    RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX, SignatureError, SignedText, Verifier, is_same_text,
};
use fullbore_engine::run::error::CommandError;
use fullbore_wire::answer::is_transient;
use fullbore_wire::conditional::EntityTag;
use fullbore_wire::fetch::{Fetcher, Get, GetError, Got, HeadSeen, Watch};
use fullbore_wire::hosts::HostId;
use tokio::task::JoinSet;

/// Requests for one file to a host that is busy or breaks the connection. A guess: the pauses between them cover a
/// restart or a busy moment, and a host that is down costs little time.
const TRIES: u32 = 4;

/// Delay before other hosts are asked, if the first sent no head. A guess.
const AT_ONCE: Duration = Duration::from_millis(10);

/// Other hosts asked for a file that one is slow to send. A guess: one of them is fast.
const OTHERS_ASKED: usize = 3;

/// Pause before the second request, without `Retry-After`; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(250);

/// A broken connection is retried within this time of the first request: a host that took longer was silent.
const BROKEN_WITHIN: Duration = Duration::from_secs(5);

/// Pauses of at least this length are logged as warnings.
const PAUSE_TOLD: Duration = Duration::from_secs(5);

/// The local copy of a signed file, for a conditional request.
pub struct CachedRelease {
    /// Name in the suite's directory: `InRelease`, `Release` or `Release.gpg`.
    pub name: &'static str,
    /// Bytes of the file, as received.
    pub content: Vec<u8>,
    /// Modification time in seconds since 1970.
    pub modified: i64,
    /// The `ETag` that the host sent for it.
    pub tag: Option<EntityTag>,
}

impl CachedRelease {
    /// Parses the copy, which was verified when it was received.
    pub fn release(&self) -> Option<Release> {
        Release::parse(&SignedText::trusted(&self.content).ok()?).ok()
    }

    /// The time for `If-Modified-Since`.
    fn if_modified_since(&self) -> i64 {
        if_modified_since(self.release().and_then(|release| release.date), self.modified)
    }
}

/// Name of the file, `Release` or `Release.gpg`, that contradicts an `InRelease`, and the reason. A missing signature
/// is not a contradiction.
pub fn contradiction(
    release: &[u8],
    signature: Option<&[u8]>,
    inrelease: &SignedText,
    verifier: Option<&Verifier>,
) -> Option<(&'static str, String)> {
    let is_same = is_same_text(release, inrelease);
    if !is_same {
        return Some(("Release", "says something else than the signed InRelease".to_owned()));
    }
    let error = verifier?.verify_detached(release, signature?).err()?;
    Some(("Release.gpg", error.to_string()))
}

/// The signed files of a suite, as received.
pub struct ReceivedRelease {
    /// Names and contents; the first identifies the suite's state.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// Value of `Last-Modified`, Unix seconds.
    pub modified: Option<i64>,
    /// The `ETag` that the host sent for the `InRelease`.
    pub tag: Option<EntityTag>,
    /// The signed text, which the verifier has accepted.
    pub text: SignedText,
    /// The parsed fields of `text`.
    pub release: Release,
}

/// Why a host's Release cannot be used.
pub enum Refusal {
    /// Unreachable, or missing there: reason and hint.
    Unavailable(String, &'static str),
    /// An invalid signature or Release: reason and hint.
    Verification(String, Option<&'static str>),
    /// A local error, such as a full disk; the Release was not checked.
    Local(String),
    /// No program that verifies signatures can be run; the Release was not checked.
    NoVerifier(String),
}

/// Answers with the names of the requested files.
pub type NamedAnswers = Vec<(&'static str, Got)>;

/// The directory of a suite below the mirror's address; a slash at the end of the name means a flat repository.
///
/// ```
/// use fullbore_apt::signed_release::remote_directory;
///
/// assert_eq!(remote_directory("trixie"), "dists/trixie/");
/// assert_eq!(remote_directory("./deb/"), "deb/");
/// ```
pub fn remote_directory(suite: &str) -> String {
    match suite {
        "./" | "/" => String::new(),
        flat if flat.ends_with('/') => flat.trim_start_matches("./").to_owned(),
        suite => format!("dists/{suite}/"),
    }
}

/// When a Release expires, Unix seconds: its `Valid-Until`, but not before `Valid-Until-Min`, and never after
/// `Valid-Until-Max`, in seconds after its `Date` (sources.list(5)). As in apt, the maximum takes precedence, and 0
/// seconds mean no limit.
pub fn valid_until(release: &Release, min_s: Option<u64>, max_s: Option<u64>) -> Option<i64> {
    let after = |limit_s: Option<u64>| {
        let limit_s = limit_s.filter(|limit_s| *limit_s > 0);
        limit_s.zip(release.date).map(|(limit_s, date)| date.saturating_add(i64::try_from(limit_s).unwrap_or(i64::MAX)))
    };
    let told = release.valid_until.map(|told| after(min_s).map_or(told, |least| told.max(least)));
    match (told, after(max_s)) {
        (Some(told), Some(most)) => Some(told.min(most)),
        (told, most) => told.or(most),
    }
}

/// The answers of one host to the requests for a Release, or why there are none.
pub type Answer = Result<NamedAnswers, GetError>;

/// A request for the Release of a suite.
pub struct ReleaseRequest<'a> {
    /// Sends the requests, and knows the hosts.
    pub fetcher: &'a Fetcher,
    /// Number of the host to ask.
    pub host: HostId,
    /// The directory of the `Release` below the mirror's address, with `/` at its end or empty.
    pub directory: String,
    /// The local copy, for a conditional request.
    pub cached: Option<&'a CachedRelease>,
    /// Longest wait for a busy host.
    pub patience: Duration,
    /// Hosts that may send the same file if this one is slow.
    pub others: Range<HostId>,
    /// Receives the head of the answer for `InRelease`.
    pub head_seen: HeadSeen,
}

/// Requests the signed files of all these suites at once.
pub async fn receive_all(requests: Vec<ReleaseRequest<'_>>) -> Vec<Answer> {
    all(requests.into_iter().map(receive).collect()).await
}

/// Waits for all futures concurrently, and returns their results in order.
pub async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    // The first poll queues a request, so all are sent together.
    let mut asked: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        for (slot, result) in asked.iter_mut().zip(&mut done) {
            if let Some(future) = slot
                && let std::task::Poll::Ready(answer) = future.as_mut().poll(context)
            {
                *result = Some(answer);
                *slot = None;
            }
        }
        if asked.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Requests `InRelease`; if there is none, `Release` and `Release.gpg`. A busy host does not count as one without
/// `InRelease`.
pub async fn receive(request: ReleaseRequest<'_>) -> Answer {
    let ReleaseRequest { fetcher, host, directory, cached, patience, others, head_seen } = request;
    let watch = fetcher.watch();
    let cached_before = cached;
    let get = |name: &str, limit: usize, cached: Option<&CachedRelease>| {
        let get = Get {
            path: format!("{directory}{name}"),
            limit_bytes: limit as u64,
            if_none_match: cached.and_then(|cached| cached.tag.clone()),
            // The `ETag` alone, which is exact: nginx would also require the time to match.
            if_modified_since: cached.filter(|cached| cached.tag.is_none()).map(CachedRelease::if_modified_since),
            head_seen: (name == "InRelease").then(|| head_seen.clone()),
            ..Get::default()
        };
        // Without a local copy the other hosts are needed for files anyway.
        let others =
            AlternateHosts { hosts: others.clone(), alike: Equivalence::SameHead, at_once: cached_before.is_none() };
        get_hedged(&watch, host, others, get, patience)
    };
    let inrelease = get("InRelease", RELEASE_BYTES_MAX, cached).await?;
    if !matches!(inrelease.head.status, 403 | 404 | 410) {
        return Ok(vec![("InRelease", inrelease)]);
    }
    let release = get("Release", RELEASE_BYTES_MAX, None).await?;
    let signature = get("Release.gpg", SIGNATURE_BYTES_MAX, None).await?;
    Ok(vec![("InRelease", inrelease), ("Release", release), ("Release.gpg", signature)])
}

/// Other hosts that may send a file instead of the first one.
pub struct AlternateHosts {
    /// Numbers of the hosts that may answer instead.
    pub hosts: Range<HostId>,
    /// Which of their answers count as the requested file.
    pub alike: Equivalence,
    /// Ask them after a short delay, even without a head of the first host.
    pub at_once: bool,
}

/// Which answer of another host is equivalent to the requested file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equivalence {
    /// One with the time and length in the first host's head, which decides what is newest.
    SameHead,
    /// Any file, because its content is known.
    Any,
}

/// Requests a file from one host, and from some others if its body is slow to follow the head. The first equivalent
/// answer wins; the signature is checked later.
///
/// # Errors
/// [`GetError`] of the first host, if no other host has an equivalent file by then.
pub async fn get_hedged(
    watch: &Watch,
    host: HostId,
    others: AlternateHosts,
    get: Get,
    patience: Duration,
) -> Result<Got, GetError> {
    let AlternateHosts { hosts, alike, at_once } = others;
    let seen = get.head_seen.clone().unwrap_or_default();
    let for_others = Get { if_none_match: None, if_modified_since: None, head_seen: None, ..get.clone() };
    let get = Get { head_seen: Some(seen.clone()), ..get };
    let mut own = pin!(get_with_retries(watch, host, get, patience));
    let others: Vec<HostId> = hosts.filter(|other| *other != host).take(OTHERS_ASKED).collect();
    if others.is_empty() {
        return own.await;
    }
    tokio::select! {
        biased;
        got = &mut own => return got,
        () = seen.lingers() => {}
        () = tokio::time::sleep(AT_ONCE), if at_once => {}
    }
    let mut asking = JoinSet::new();
    for other in others {
        let (watch, get) = (watch.clone(), for_others.clone());
        asking.spawn(async move { watch.get(other, get).await });
    }
    let mut answers: Vec<Got> = Vec::new();
    loop {
        let is_alike = |got: &Got| match alike {
            Equivalence::SameHead => seen.is_same_as(got),
            Equivalence::Any => got.head.status == 200,
        };
        if let Some(position) = answers.iter().position(is_alike) {
            let got = answers.swap_remove(position);
            return Ok(match alike {
                // The next run asks the first host again, which does not know the other's `ETag`.
                Equivalence::SameHead => Got { head: seen.head().unwrap_or_else(|| got.head.clone()), ..got },
                Equivalence::Any => got,
            });
        }
        tokio::select! {
            biased;
            got = &mut own => return got,
            Some(ended) = asking.join_next() => answers.extend(ended.ok().and_then(Result::ok)),
            () = seen.comes(), if seen.head().is_none() => {}
        }
    }
}

/// Requests a file from one host, with retries if it is busy or breaks the connection. No pause ends later than `patience`
/// after the first request.
///
/// # Errors
/// [`GetError`] of the last try. A busy host is not an error: its answer is returned after the last try.
pub(crate) async fn get_with_retries(
    watch: &Watch,
    host: HostId,
    get: Get,
    patience: Duration,
) -> Result<Got, GetError> {
    let began = Instant::now();
    let mut pause = PAUSE_FIRST;
    for _ in 1..TRIES {
        let got = watch.get(host, get.clone()).await;
        let wait = match &got {
            Ok(got) if is_transient(got.head.status) => requested_pause(got).map_or(pause, |told| told.max(pause)),
            Err(GetError::Unreachable { .. }) if began.elapsed() < BROKEN_WITHIN => pause,
            _ => return got,
        };
        if began.elapsed() + wait > patience {
            return got;
        }
        let names = watch.names();
        let name = names.get(usize::from(host)).map_or("", String::as_str);
        if wait >= PAUSE_TOLD {
            tracing::warn!("{name} is busy and asks for a pause of {} s", wait.as_secs());
        }
        let why = got.as_ref().map_or_else(ToString::to_string, |got| format!("status {}", got.head.status));
        tracing::info!("{name}: {}: {why}; retrying after {} ms", get.path, wait.as_millis());
        tokio::time::sleep(wait).await;
        pause *= 2;
    }
    watch.get(host, get).await
}

/// The pause of `Retry-After`.
fn requested_pause(got: &Got) -> Option<Duration> {
    let told = got.head.retry_after?;
    let now = jiff::Timestamp::now().as_second();
    Some(Duration::from_secs(told.delay_s(got.head.date, now)))
}

/// Verifies the received files. Without a verifier they are trusted.
///
/// # Errors
/// [`Refusal`] if no file arrived, or if the files have no valid signature of the verifier's keyrings.
pub fn accept(
    answer: Answer,
    cached: Option<&CachedRelease>,
    verifier: Option<&Verifier>,
) -> Result<ReceivedRelease, Refusal> {
    let answer = answer.map_err(|error| match error {
        // The caller's message names the host.
        GetError::Unreachable { reason, .. } | GetError::Final { reason, .. } => {
            Refusal::Unavailable(reason, HINT_REACH)
        }
        GetError::Untrusted { reason, unknown_issuer: true, .. } => Refusal::Unavailable(reason, HINT_TRUST),
        GetError::Untrusted { reason, .. } => Refusal::Unavailable(reason, HINT_CERTIFICATE),
        GetError::Denied { denial, .. } => Refusal::Unavailable(denial.why, denial.hint),
        other @ GetError::TooLarge { .. } => Refusal::Unavailable(other.to_string(), HINT_ABSENT),
    })?;
    let mut files: Vec<(&'static str, Vec<u8>)> = Vec::new();
    let mut statuses = Vec::new();
    let mut denied: Vec<(&str, String)> = Vec::new();
    let mut busy = false;
    let mut absent = HINT_ABSENT;
    let mut modified = None;
    let mut tag = None;
    for (name, got) in answer {
        match (got.head.status, cached) {
            (200, _) => {
                modified = modified.or(got.head.last_modified);
                if name == "InRelease" {
                    tag = got.head.etag;
                }
                files.push((name, got.body));
            }
            // "Not modified", but an older file than the local one (M10).
            (304, Some(cached)) if got.head.last_modified.is_some_and(|modified| modified < cached.modified) => {
                return Err(Refusal::Verification(
                    format!("{name}: not modified, and older than the local copy"),
                    None,
                ));
            }
            (304, Some(cached)) => {
                modified = Some(cached.modified);
                tag = cached.tag.clone();
                files.push((cached.name, cached.content.clone()));
            }
            (status, _) if is_transient(status) => {
                busy = true;
                let pause = requested_pause(&got).map(|told| format!(", asks for a pause of {} s", told.as_secs()));
                statuses.push(format!("{name}: {status}{}", pause.unwrap_or_default()));
            }
            (status, _) => {
                if status == 401 {
                    absent = HINT_CREDENTIALS;
                }
                if let Some(denial) = got.denial {
                    absent = denial.hint;
                    denied.push((name, denial.why));
                    continue;
                }
                let to = got.head.location.filter(|_| (300..400).contains(&status));
                statuses.push(match to {
                    Some(to) => {
                        absent = HINT_ELSEWHERE;
                        // A query may contain credentials.
                        format!("{name}: {status} to {}, not followed", to.split('?').next().unwrap_or_default())
                    }
                    None => format!("{name}: {status}"),
                });
            }
        }
    }
    // A store sends a whole sentence for each, often the same.
    for same in denied.chunk_by(|one, other| one.1 == other.1) {
        let names: Vec<&str> = same.iter().map(|(name, _)| *name).collect();
        statuses.push(format!("{}: {}", names.join(", "), same[0].1));
    }
    if busy {
        return Err(Refusal::Unavailable(statuses.join(", "), HINT_BUSY));
    }
    let find = |wanted: &str| files.iter().find(|(name, _)| *name == wanted).map(|(_, content)| content.as_slice());
    let bad = |error: SignatureError| match &error {
        SignatureError::Scratch { .. } => Refusal::Local(error.to_string()),
        missing if missing.is_missing_program() => Refusal::NoVerifier(error.to_string()),
        other => Refusal::Verification(other.to_string(), hint_of(other)),
    };
    let text = match (find("InRelease"), find("Release"), find("Release.gpg"), verifier) {
        (Some(inrelease), _, _, Some(verifier)) => verifier.verify_inrelease(inrelease).map_err(bad)?,
        (Some(inrelease), _, _, None) => SignedText::trusted(inrelease).map_err(bad)?,
        (None, Some(release), Some(signature), Some(verifier)) => {
            verifier.verify_detached(release, signature).map_err(bad)?
        }
        (None, Some(release), _, None) => SignedText::trusted(release).map_err(bad)?,
        (None, Some(_), None, Some(_)) => {
            let why = "Release has no signature (no InRelease, no Release.gpg)".to_owned();
            return Err(Refusal::Verification(why, Some(HINT_UNSIGNED)));
        }
        (None, None, _, _) => return Err(Refusal::Unavailable(statuses.join(", "), absent)),
    };
    let release = Release::parse(&text).map_err(|error| Refusal::Verification(error.to_string(), None))?;
    Ok(ReceivedRelease { files, modified, tag, text, release })
}

fn hint_of(error: &SignatureError) -> Option<&'static str> {
    match error {
        SignatureError::NoPublicKey { .. } | SignatureError::NoKeyring => Some(HINT_KEYRING),
        SignatureError::NotClearsigned { .. } => Some("check the address: the answer looks like a login or error page"),
        SignatureError::Expired { .. } => Some("update the keyring, or the archive is no longer maintained"),
        SignatureError::Keybox { .. } => Some(
            "write its keys to a file that sqv can read, with gpg --no-default-keyring --keyring KEYBOX --export, or \
             install gpgv",
        ),
        SignatureError::OtherKey { primary_only: true, .. } => {
            Some("if Signed-By means a subkey, name its primary key without `!`, or install gpgv: sqv names no subkeys")
        }
        _ => None,
    }
}

/// The Release of another suite than the requested one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("requested suite {requested:?}, but the Release is of suite {suite:?}, codename {codename:?}")]
pub struct WrongSuite {
    /// The suite that was requested.
    pub requested: String,
    /// `Suite` of the received Release.
    pub suite: String,
    /// `Codename` of the received Release.
    pub codename: String,
}

/// The error if no program that verifies signatures can be run; `subject` is the suite or directory.
pub fn no_verifier(subject: impl Display, why: impl Display) -> CommandError {
    CommandError::usage(format_args!("{subject}: {why}")).hint("install gpgv or sqv: apt-get install gpgv")
}

/// Checks that a Release is of the requested suite, so that nobody can serve another suite in its place. As in apt, the
/// part after the last slash of the request does not count (`buster/updates`), and a Release without both names passes.
///
/// # Errors
/// [`WrongSuite`] if neither `Suite` nor `Codename` of the Release is the requested name.
pub fn check_suite(requested: &str, release: &Release) -> Result<(), WrongSuite> {
    let names = [release.suite.as_deref(), release.codename.as_deref()];
    let trimmed = requested.trim_end_matches('/');
    let short = trimmed.rsplit_once('/').map_or(trimmed, |(short, _)| short);
    let known = |name: &str| names.contains(&Some(name));
    if requested.ends_with('/') || known(trimmed) || known(short) || names == [None, None] {
        return Ok(());
    }
    let text = |name: Option<&str>| name.unwrap_or_default().to_owned();
    Err(WrongSuite { requested: requested.to_owned(), suite: text(names[0]), codename: text(names[1]) })
}

/// The server has no such suite.
pub const HINT_ABSENT: &str = "check the address and the name of the suite: FROM/dists/SUITE/InRelease must exist";
/// Context of an error about a trusted source without a `Release`, which apt would take.
pub const NO_RELEASE: &str =
    "an archive without a Release is refused, also if it is trusted: nothing says which files belong to it";
/// The server has no such flat repository.
pub const HINT_ABSENT_FLAT: &str =
    "check the address and the name of the suite: a flat repository must have FROM/SUITE/InRelease";
/// The server sends a redirect that is not followed.
pub const HINT_ELSEWHERE: &str = "a redirect is not followed from https to http, in a circle or more than five times: \
     name the address that it leads to, if that has all of the archive";
/// The server is overloaded or out of order.
pub const HINT_BUSY: &str = "the mirror is overloaded or out of order for the moment: run again later, or name another \
     mirror in its place";
/// The key of the archive is not in the keyrings.
pub const HINT_KEYRING: &str =
    "pass the archive's keyring with --keyring (Debian's is in the package debian-archive-keyring)";
/// The archive has no signatures.
pub const HINT_UNSIGNED: &str =
    "for an archive without signatures, set `Trusted: yes` in apt's sources, or `trusted = true` in mirror.toml";
/// Hint for a server that requires credentials.
pub const HINT_CREDENTIALS: &str = "the mirror asks for credentials: put them into apt's auth.conf (or another file, \
     named with --auth), which this user must be able to read; for a plain http address its entry must begin with `machine http://HOST`";
/// The certificate of the server is not issued by the authority of `--cacert`.
pub const HINT_OTHER_AUTHORITY: &str =
    "--cacert must name the authority that issued the server's certificate, or that certificate itself";
pub use fullbore_wire::run::hints::{CERTIFICATE as HINT_CERTIFICATE, REACH as HINT_REACH, TRUST as HINT_TRUST};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_of_another_suite_is_refused() {
        let text = b"Origin: Debian\nSuite: stable\nCodename: trixie\nDate: Sat, 09 Aug 2025 09:12:00 UTC\nSHA256:\n \
            e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0 main/binary-all/Packages\n";
        let release = Release::parse(&SignedText::trusted(text).unwrap()).unwrap();
        for right in ["stable", "trixie", "stable/updates"] {
            assert_eq!(check_suite(right, &release), Ok(()), "{right}");
        }
        assert_eq!(
            check_suite("bookworm", &release).unwrap_err().to_string(),
            "requested suite \"bookworm\", but the Release is of suite \"stable\", codename \"trixie\""
        );
    }
}
