//! What the archive offers: for each suite the signed `Release`, verified and judged.
//!
//! All of a run comes from the origin's word. Only if the origin cannot be reached, the newest
//! validly signed one of the others counts. An answer "not modified" is believed no further
//! than the copy on disk verifies again (CVE-2014-0487).

use std::path::Path;

use fullbore_debian::release::Release;
use fullbore_debian::signature::{RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX, SignatureError, SignedText, Verifier};
use fullbore_engine::digest::Sha256;
use fullbore_wire::conditional::EntityTag;
use fullbore_wire::fetch::{Fetcher, Get, GetError, Got, Watch};
use fullbore_wire::hosts::HostId;

use super::fingerprint::fingerprint;
use super::layout::{Layout, layout};
use super::select::{Selection, check_suite};
use super::session::{Session, disk};
use super::state::{Novelty, OWN_DIRECTORY, Offer, State, StateError};
use crate::error::{CommandError, ErrorKind};
use crate::settings::{MirrorSettings, SignedBy, SourceSpec};

/// Times a side file is asked for. Few: a mirror without them is still a mirror.
const SIDE_FILE_TRIES: u32 = 3;

/// A suite as it is offered now.
pub struct Offered {
    /// The name asked for.
    pub requested: String,
    /// Its directory on the mirrors, with a slash at its end or empty.
    pub remote: String,
    /// What is taken from it.
    pub selection: Selection,
    /// Its place here.
    pub layout: Layout,
    /// The verified Release.
    pub release: Release,
    /// Whether a signature was checked.
    pub signed: bool,
    /// What it means for what is here.
    pub novelty: Novelty,
    /// Hash of the file that identifies this state of the suite.
    pub identity: Sha256,
    /// Settings that decide which files are mirrored.
    pub fingerprint: Sha256,
    /// The files themselves: name and content.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// When the origin says it last changed, Unix seconds: what makes the next request conditional.
    /// Where it does not say, the Release's own date, which is never too late.
    pub modified: i64,
    /// The origin's tag for it, for the same purpose. A tag notices an older file as well.
    pub tag: Option<EntityTag>,
    text: SignedText,
    verifier: Option<Verifier>,
}

/// The signed files of a suite, as received.
struct Received {
    files: Vec<(&'static str, Vec<u8>)>,
    modified: Option<i64>,
    tag: Option<EntityTag>,
    text: SignedText,
    release: Release,
}

/// Why a suite could not be had from a host.
enum Refusal {
    /// The host cannot be reached, or does not have it: why, and what may help.
    Unavailable(String, &'static str),
    /// What it sent is not to be believed.
    Verification(String, Option<&'static str>),
}

/// Fetches and judges all suites of a run. Warnings are for the user.
pub fn fetch(
    settings: &MirrorSettings,
    session: &Session,
    state: &State,
    now: i64,
    warn: &mut dyn FnMut(String),
) -> Result<Vec<Offered>, CommandError> {
    let wanted: Vec<(&SourceSpec, &String)> =
        settings.sources.iter().flat_map(|source| source.suites.iter().map(move |suite| (source, suite))).collect();
    let verifiers: Vec<Option<Verifier>> =
        settings.sources.iter().map(|source| verifier(source, session.places.work.path())).collect();
    let place =
        |source: &SourceSpec| settings.sources.iter().position(|other| std::ptr::eq(other, source)).unwrap_or(0);
    let conditions: Vec<Option<Kept>> =
        wanted.iter().map(|(_, suite)| kept(session, state, suite, &settings.origins[0])).collect();
    let origin_answers = session.runtime.block_on(receive_all(&session.fetcher, 0, &wanted, &conditions));
    let mut offered = Vec::new();
    for (((source, suite), kept), answer) in wanted.iter().zip(&conditions).zip(origin_answers) {
        let verifier = &verifiers[place(source)];
        let accepted = match accept(answer, kept.as_ref(), verifier.as_ref()) {
            // Our own copy was altered, or the answer was: asked again without a condition.
            Err(Refusal::Verification(..)) if kept.is_some() => {
                let again = session.runtime.block_on(receive(&session.fetcher, 0, suite, None));
                accept(again, None, verifier.as_ref())
            }
            other => other,
        };
        let received = match accepted {
            Ok(received) => received,
            Err(Refusal::Verification(why, hint)) => return Err(unverified(&settings.origins[0], suite, &why, hint)),
            Err(Refusal::Unavailable(why, hint)) => {
                newest_of_others(settings, session, suite, verifier.as_ref(), (&why, hint), warn)?
            }
        };
        offered.push(judge(settings, session, state, source, suite, received, verifier.clone(), now, warn)?);
    }
    Ok(offered)
}

/// What is here of a suite already: the copy of its signed file, and what makes a request conditional.
struct Kept {
    name: &'static str,
    content: Vec<u8>,
    modified: i64,
    tag: Option<EntityTag>,
}

fn kept(session: &Session, state: &State, suite: &str, origin: &str) -> Option<Kept> {
    let record = state.header.suites.iter().find(|record| record.requested == suite && !record.retired)?;
    let slash = if record.directory.is_empty() { "" } else { "/" };
    let path = format!("{}{slash}InRelease", record.directory);
    let status = session.root.stat(&path).ok().flatten()?;
    let content = session.root.read(&path, RELEASE_BYTES_MAX as u64).ok().flatten()?;
    // A tag means something only to the host that gave it.
    let tag = record.tag.as_deref().filter(|_| record.origins.first().is_some_and(|of| of == origin));
    let tag = tag.and_then(EntityTag::parse);
    (Sha256::of(&content) == record.inrelease).then_some(Kept {
        name: "InRelease",
        content,
        modified: status.mtime,
        tag,
    })
}

/// The directory of a suite on a mirror: a name ending in a slash is a flat repository.
fn remote_directory(suite: &str) -> String {
    match suite {
        "./" | "/" => String::new(),
        flat if flat.ends_with('/') => flat.trim_start_matches("./").to_owned(),
        suite => format!("dists/{suite}/"),
    }
}

type Answer = Result<NamedAnswers, GetError>;

/// Asks one host for the signed files of all suites at once.
async fn receive_all(
    fetcher: &Fetcher,
    host: HostId,
    wanted: &[(&SourceSpec, &String)],
    kept: &[Option<Kept>],
) -> Vec<Answer> {
    let mut answers = Vec::new();
    let asked: Vec<_> = wanted
        .iter()
        .zip(kept)
        .map(|((_, suite), kept)| Box::pin(receive(fetcher, host, suite, kept.as_ref())))
        .collect();
    // Every request is queued by its first poll, so that all go out together.
    let mut asked: Vec<_> = asked.into_iter().map(Some).collect();
    let mut done: Vec<Option<Answer>> = asked.iter().map(|_| None).collect();
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
    answers.extend(done.into_iter().flatten());
    answers
}

/// Asks for `InRelease`; where there is none, for `Release` and `Release.gpg`.
async fn receive(fetcher: &Fetcher, host: HostId, suite: &str, kept: Option<&Kept>) -> Answer {
    let directory = remote_directory(suite);
    let get = |name: &str, limit: usize, kept: Option<&Kept>| Get {
        path: format!("{directory}{name}"),
        limit_bytes: limit as u64,
        if_none_match: kept.and_then(|kept| kept.tag.clone()),
        if_modified_since: kept.map(|kept| kept.modified),
        head_only: false,
    };
    let inrelease = fetcher.get(host, get("InRelease", RELEASE_BYTES_MAX, kept)).await?;
    if matches!(inrelease.head.status, 200 | 304) {
        return Ok(vec![("InRelease", inrelease)]);
    }
    let release = fetcher.get(host, get("Release", RELEASE_BYTES_MAX, None)).await?;
    let signature = fetcher.get(host, get("Release.gpg", SIGNATURE_BYTES_MAX, None)).await?;
    Ok(vec![("InRelease", inrelease), ("Release", release), ("Release.gpg", signature)])
}

/// Verifies what came. Without a verifier the source is trusted as it is.
fn accept(answer: Answer, kept: Option<&Kept>, verifier: Option<&Verifier>) -> Result<Received, Refusal> {
    let answer = answer.map_err(|error| match error {
        // The line in front of it names the host.
        GetError::Unreachable { reason, .. } => Refusal::Unavailable(reason, HINT_REACH),
        GetError::Untrusted { reason, .. } => Refusal::Unavailable(reason, HINT_TRUST),
        other @ GetError::TooLarge { .. } => Refusal::Unavailable(other.to_string(), HINT_ABSENT),
    })?;
    let mut files: Vec<(&'static str, Vec<u8>)> = Vec::new();
    let mut statuses = Vec::new();
    let mut modified = None;
    let mut tag = None;
    for (name, got) in answer {
        match (got.head.status, kept) {
            (200, _) => {
                modified = modified.or(got.head.last_modified);
                if name == "InRelease" {
                    tag = got.head.etag;
                }
                files.push((name, got.body));
            }
            // Nothing newer than ours, but what it has is not ours: it may be an older one (M10).
            (304, Some(kept)) if got.head.last_modified.is_some_and(|modified| modified < kept.modified) => {
                return Err(Refusal::Verification(format!("{name}: not modified, and older than the one here"), None));
            }
            (304, Some(kept)) => {
                modified = Some(kept.modified);
                tag = kept.tag.clone();
                files.push((kept.name, kept.content.clone()));
            }
            (status, _) => statuses.push(format!("{name}: {status}")),
        }
    }
    let find = |wanted: &str| files.iter().find(|(name, _)| *name == wanted).map(|(_, content)| content.as_slice());
    let bad = |error: SignatureError| {
        let hint = hint_of(&error);
        Refusal::Verification(error.to_string(), hint)
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
            return Err(Refusal::Verification(why, Some("a source without signatures needs `Trusted: yes`")));
        }
        (None, None, _, _) => return Err(Refusal::Unavailable(statuses.join(", "), HINT_ABSENT)),
    };
    let release = Release::parse(&text).map_err(|error| Refusal::Verification(error.to_string(), None))?;
    Ok(Received { files, modified, tag, text, release })
}

fn hint_of(error: &SignatureError) -> Option<&'static str> {
    match error {
        SignatureError::NoPublicKey { .. } | SignatureError::NoKeyring => {
            Some("give the archive's keyring with --keyring (Debian's is in the package debian-archive-keyring)")
        }
        SignatureError::NotClearsigned { .. } => {
            Some("this looks like a login page or an error page: check the address")
        }
        SignatureError::GpgvMissing { .. } => Some("install gpgv: apt-get install gpgv"),
        SignatureError::Expired { .. } => Some("update the keyring, or the archive is no longer maintained"),
        _ => None,
    }
}

fn unverified(origin: &str, suite: &str, why: &str, hint: Option<&'static str>) -> CommandError {
    let error = CommandError::new(ErrorKind::Verification, format_args!("{suite}: {why}"))
        .context(format_args!("from {origin}"))
        .context("nothing was published or deleted");
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// The origin cannot be reached: the newest valid Release of the other mirrors.
fn newest_of_others(
    settings: &MirrorSettings,
    session: &Session,
    suite: &str,
    verifier: Option<&Verifier>,
    (why, hint): (&str, &'static str),
    warn: &mut dyn FnMut(String),
) -> Result<Received, CommandError> {
    let others = if settings.origin_only { 0 } else { settings.origins.len() };
    let mut best: Option<(Received, usize)> = None;
    let mut refusals = vec![format!("{}: {why}", settings.origins[0])];
    let mut hints = vec![hint];
    let mut doubts = 0;
    for host in 1..others {
        let answer = session.runtime.block_on(receive(&session.fetcher, host as HostId, suite, None));
        match accept(answer, None, verifier) {
            Ok(received) => {
                let newer = best.as_ref().is_none_or(|(best, _)| received.release.date > best.release.date);
                if newer {
                    // The next run asks the origin again, which knows nothing of this host's tag.
                    best = Some((Received { tag: None, ..received }, host));
                }
            }
            Err(Refusal::Unavailable(why, hint)) => {
                refusals.push(format!("{}: {why}", settings.origins[host]));
                hints.push(hint);
            }
            Err(Refusal::Verification(why, _)) => {
                doubts += 1;
                refusals.push(format!("{}: {why}", settings.origins[host]));
            }
        }
    }
    if let Some((received, host)) = best {
        warn(format!(
            "{suite}: the origin {} cannot be used ({why}); this run follows {}",
            settings.origins[0], settings.origins[host]
        ));
        return Ok(received);
    }
    let kind = if doubts > 0 { ErrorKind::Verification } else { ErrorKind::Network };
    let mut error = CommandError::new(kind, format_args!("{suite}: no mirror has its Release"));
    for refusal in refusals {
        error = error.context(refusal);
    }
    // One that answered tells more than those that did not.
    let order = [HINT_ABSENT, HINT_TRUST, HINT_REACH];
    let hint = order.into_iter().find(|hint| hints.contains(hint));
    Err(error.hint(hint.unwrap_or(HINT_ABSENT)))
}

const HINT_ABSENT: &str = "check the address and the name of the suite: FROM/dists/SUITE/InRelease must exist";
const HINT_TRUST: &str = "a certificate authority of your own is named with --cacert FILE";
const HINT_REACH: &str =
    "check the address and the network; a proxy is named by http_proxy and https_proxy in the environment";

#[allow(clippy::too_many_arguments)]
fn judge(
    settings: &MirrorSettings,
    session: &Session,
    state: &State,
    source: &SourceSpec,
    suite: &str,
    received: Received,
    verifier: Option<Verifier>,
    now: i64,
    warn: &mut dyn FnMut(String),
) -> Result<Offered, CommandError> {
    let Received { files, modified, tag, text, release } = received;
    check_suite(suite, &release).map_err(CommandError::usage)?;
    let until = valid_until(source, &release).filter(|until| *until < now);
    if let Some(until) = until.filter(|_| source.check_valid_until) {
        if !settings.ignore_valid_until {
            return Err(CommandError::new(
                ErrorKind::Stale,
                format_args!("{suite}: the Release was valid until {}", date(until)),
            )
            .context(format_args!("from {}", settings.origins[0]))
            .hint("the mirror may be stuck; for an archive that is no longer updated use --ignore-valid-until"));
        }
        warn(format!("{suite}: accepted although valid only until {}", date(until)));
    }
    let selection = Selection {
        flat: suite.ends_with('/'),
        components: source.components.clone(),
        architectures: source.architectures.clone(),
        binaries: source.binaries,
        sources: source.sources,
        without: settings.without.clone(),
        languages: settings.languages.clone(),
        formats: settings.index_formats.clone(),
    };
    let place = layout(suite, &release, &session.root, state).map_err(|error| disk(&error))?;
    let identity = files.first().map_or(Sha256::EMPTY, |(_, content)| Sha256::of(content));
    let fingerprint = fingerprint(&selection, &settings.filters);
    let offer = Offer {
        directory: &place.directory,
        inrelease: identity,
        date: release.date.unwrap_or_default(),
        signed: text.is_verified(),
        fingerprint,
    };
    let mut novelty = state.judge(&offer, false).map_err(|error| state_error(&error))?;
    if novelty == Novelty::Unchanged && !stands(session, &place.directory, &files)? {
        warn(format!("{suite}: the published {} is not the one that was put there; it is put there again", files[0].0));
        novelty = Novelty::Unfinished;
    }
    let date_of_release = release.date.unwrap_or_default();
    Ok(Offered {
        requested: suite.to_owned(),
        remote: remote_directory(suite),
        selection,
        layout: place,
        signed: text.is_verified(),
        release,
        novelty,
        identity,
        fingerprint,
        files,
        modified: modified.unwrap_or(date_of_release),
        tag,
        text,
        verifier,
    })
}

/// Whether the file that identifies the suite lies in its place as it was published (M4).
fn stands(session: &Session, directory: &str, files: &[(&'static str, Vec<u8>)]) -> Result<bool, CommandError> {
    let Some((name, content)) = files.first() else { return Ok(true) };
    let slash = if directory.is_empty() { "" } else { "/" };
    let path = format!("{directory}{slash}{name}");
    let published = session.root.read(&path, RELEASE_BYTES_MAX as u64).map_err(|error| disk(&error))?;
    Ok(published.is_some_and(|published| published == *content))
}

/// `Release` and `Release.gpg` of suites that have an `InRelease`: for clients and mirrors that do not
/// know it. Asked for beside the indexes, so that they cost no time.
pub struct SideFiles(Vec<Option<tokio::task::JoinHandle<NamedAnswers>>>);

/// Answers with the names of the files asked for.
type NamedAnswers = Vec<(&'static str, Got)>;

/// Asks the origin for them.
pub fn ask_for_side_files(session: &Session, offers: &[Offered]) -> SideFiles {
    let ask = |offer: &Offered| {
        let missing = offer.files.iter().all(|(name, _)| *name == "InRelease");
        missing.then(|| {
            let (watch, directory) = (session.fetcher.watch(), offer.remote.clone());
            session.runtime.spawn(side_files(watch, directory))
        })
    };
    SideFiles(offers.iter().map(ask).collect())
}

async fn side_files(watch: Watch, directory: String) -> NamedAnswers {
    let mut files = Vec::new();
    for (name, limit) in [("Release", RELEASE_BYTES_MAX), ("Release.gpg", SIGNATURE_BYTES_MAX)] {
        let get = Get {
            path: format!("{directory}{name}"),
            limit_bytes: limit as u64,
            if_none_match: None,
            if_modified_since: None,
            head_only: false,
        };
        let mut got = watch.get(0, get.clone()).await;
        for _ in 1..SIDE_FILE_TRIES {
            if got.is_err() {
                got = watch.get(0, get.clone()).await;
            }
        }
        match got {
            Ok(got) if got.head.status == 200 => files.push((name, got)),
            _ => break,
        }
    }
    files
}

/// Takes those that say the same as the `InRelease` and are signed as well; others would contradict it.
/// Wrong or missing ones are asked for once more: a host that answers in the wrong order is known by now.
pub fn take_side_files(side: SideFiles, session: &Session, offers: &mut [Offered]) {
    for (offer, asked) in offers.iter_mut().zip(side.0) {
        let Some(asked) = asked else { continue };
        let mut files = session.runtime.block_on(asked).unwrap_or_default();
        if !fits(offer, &files) {
            files = session.runtime.block_on(side_files(session.fetcher.watch(), offer.remote.clone()));
        }
        if fits(offer, &files) {
            offer.files.extend(files.into_iter().map(|(name, got)| (name, got.body)));
        }
    }
}

/// Whether these are the side files of this `InRelease`.
fn fits(offer: &Offered, files: &NamedAnswers) -> bool {
    let content = |wanted: &str| files.iter().find(|(name, _)| *name == wanted).map(|(_, got)| &got.body);
    let (Some(release), signature) = (content("Release"), content("Release.gpg")) else { return false };
    let same = std::str::from_utf8(release).is_ok_and(|text| text.trim_end() == offer.text.as_str().trim_end());
    let signed = match (&offer.verifier, signature) {
        (Some(verifier), Some(signature)) => verifier.verify_detached(release, signature).is_ok(),
        (Some(_), None) => false,
        (None, _) => true,
    };
    same && signed
}

/// A state that refuses, with the kind it is of.
pub fn state_error(error: &StateError) -> CommandError {
    match error {
        StateError::Older { .. } => CommandError::new(ErrorKind::Stale, error)
            .context("nothing was published or deleted")
            .hint("this mirror is behind; another origin may be up to date"),
        StateError::Conflict { .. } => CommandError::new(ErrorKind::Verification, error),
        StateError::Newer { .. } => CommandError::usage(error),
        other => disk(other),
    }
}

fn verifier(source: &SourceSpec, dir: &Path) -> Option<Verifier> {
    match &source.signed_by {
        SignedBy::Trusted => None,
        SignedBy::Keys { keys, fingerprints } => {
            let verifier = Verifier::new(dir.join(OWN_DIRECTORY), keys.clone());
            Some(verifier.with_fingerprints(fingerprints.clone()))
        }
    }
}

/// When a Release ends, by itself and by what the source says (sources.list(5)).
fn valid_until(source: &SourceSpec, release: &Release) -> Option<i64> {
    let after = |limit_s: Option<u64>| {
        limit_s.zip(release.date).map(|(limit_s, date)| date.saturating_add(i64::try_from(limit_s).unwrap_or(i64::MAX)))
    };
    let until = match (release.valid_until, after(source.valid_until_max_s)) {
        (Some(told), Some(most)) => Some(told.min(most)),
        (told, most) => told.or(most),
    };
    until.map(|until| after(source.valid_until_min_s).map_or(until, |least| until.max(least)))
}

fn date(unix_s: i64) -> String {
    jiff::Timestamp::from_second(unix_s).map_or_else(|_| unix_s.to_string(), |time| time.to_string())
}
