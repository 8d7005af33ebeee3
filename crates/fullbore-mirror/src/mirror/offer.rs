//! The signed `Release` of each suite: fetched, verified, compared with the mirrored one.
//!
//! A run follows the Releases of the origin. Only if the origin is unusable, it takes the newest validly signed Release
//! of the other mirrors.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use fullbore_apt::signed_release::{
    AlternateHosts, Answer, CachedRelease, Equivalence, HINT_ABSENT, HINT_ABSENT_FLAT, HINT_BUSY, HINT_CERTIFICATE,
    HINT_CREDENTIALS, HINT_ELSEWHERE, HINT_OTHER_AUTHORITY, HINT_REACH, HINT_TRUST, NO_RELEASE, NamedAnswers,
    ReceivedRelease, Refusal, ReleaseRequest, accept, check_suite, contradiction, get_hedged, no_verifier, receive,
    receive_all, remote_directory, valid_until,
};
use fullbore_debian::release::Release;
use fullbore_debian::release_date::{DateCheck, HINT_FUTURE};
use fullbore_debian::signature::{RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX, SignedText, Verifier};
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Kind as FileKind};
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::conditional::EntityTag;
use fullbore_wire::fetch::{Get, HeadSeen, Watch};
use fullbore_wire::hosts::HostId;
use fullbore_wire::url::without_credentials;

use super::cached_release::{DetachedRelease, EarlyChecks, cached_release};
use super::fingerprint::fingerprint;
use super::layout::{Layout, below, broken_links, layout, rival};
use super::local_release::LocalRelease;
use super::merge_sources::{Candidate, WantedSuite, join, wanted_suites};
use super::select::Selection;
use super::session::{Session, disk};
use super::state::{OWN_DIRECTORY, OfferedRelease, ReleaseChange, State, StateError, date};
use crate::settings::{Kind, MirrorSettings, SourceSpec};

/// Host number of the origin, the first `--from`.
const ORIGIN: HostId = 0;

/// Maximum wait for a busy origin if there are no other mirrors; the same as for files.
const ORIGIN_PATIENCE_ALONE: Duration = Duration::from_secs(300);

/// Maximum wait for a busy origin if there are other mirrors.
const ORIGIN_PATIENCE: Duration = Duration::from_secs(30);

/// Maximum wait for another mirror, and for side files, which a mirror need not have.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum wait for the side files of all suites after everything else has arrived.
const SIDE_FILES_WITHIN: Duration = Duration::from_secs(30);

/// A suite as the mirrors currently offer it.
pub(crate) struct OfferedSuite {
    /// Name of the suite, as requested.
    pub requested: String,
    /// Host that offers it: the origin, or a mirror in place of it.
    pub host: HostId,
    /// Directory of the suite on the mirrors, empty or with a slash at the end.
    pub remote: String,
    /// Parts to mirror: the union of these selections.
    pub selections: Vec<Selection>,
    /// Directory and links of the suite in the mirror.
    pub layout: Layout,
    /// The verified and parsed Release.
    pub release: Release,
    /// Whether the signature of the Release was verified.
    pub signed: bool,
    /// Change from the mirrored Release to this one.
    pub change: ReleaseChange,
    /// SHA-256 of the file that identifies this state of the suite.
    pub identity: Sha256,
    /// Fingerprint of the settings that decide which files are mirrored.
    pub fingerprint: Sha256,
    /// Whether the Release on disk is validly signed and differs from the recorded one.
    pub overtaken: bool,
    /// Whether a Release is on disk that the state does not record.
    pub is_found: bool,
    /// Signed files: name and content.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// `Last-Modified` of the origin in Unix seconds, for the next conditional request. If there is none, the date of
    /// the Release.
    pub modified: i64,
    /// `ETag` of the origin, for the next conditional request. It also detects an older file.
    pub tag: Option<EntityTag>,
    text: SignedText,
    verifier: Option<Verifier>,
}

/// Offered suites, and errors of unusable ones. An unusable suite does not stop the others.
pub(crate) struct Offers {
    /// Suites with a usable Release, after merging.
    pub suites: Vec<OfferedSuite>,
    /// Errors of the unusable suites, one for each.
    pub refused: Vec<CommandError>,
}

/// Fetches and verifies the Releases of all suites.
///
/// # Errors
/// A local error (`Disk`), `Interrupted`, or an error of [`join`]. If no suite is left, the first suite's error with
/// the messages of the others.
pub(crate) fn fetch(
    settings: &MirrorSettings,
    session: &Session,
    state: &State,
    now: i64,
    stop: &Stop,
    warn: &mut dyn FnMut(String),
) -> Result<Offers, CommandError> {
    let wanted_suites = wanted_suites(&settings.sources);
    let condition = |wanted_suite: &WantedSuite<'_>| {
        cached_release(
            session,
            state,
            wanted_suite.suite,
            &settings.origins[0],
            date_check(wanted_suite.sources[0], now),
        )
    };
    let conditions: Vec<Option<CachedRelease>> = wanted_suites.iter().map(condition).collect();
    let verifiers: Vec<Option<Verifier>> = wanted_suites
        .iter()
        .map(|wanted_suite| {
            wanted_suite.sources[0].signed_by.verifier(session.directories.work.path().join(OWN_DIRECTORY))
        })
        .collect();
    let early = EarlyChecks::begin(session, state, &wanted_suites, &conditions, &verifiers);
    let patience = if others(settings).is_empty() { ORIGIN_PATIENCE_ALONE } else { ORIGIN_PATIENCE };
    let requests = wanted_suites.iter().zip(&conditions).map(|(wanted_suite, cached)| ReleaseRequest {
        others: others(settings),
        ..request(session, ORIGIN, wanted_suite.suite, cached.as_ref(), patience)
    });
    let requests = requests.collect();
    let origin_answers = session.runtime.block_on(stop.or(receive_all(requests)))?;
    drop(early);
    let mut candidates = Vec::new();
    let mut refused = Vec::new();
    let asked = wanted_suites.iter().zip(&conditions).zip(verifiers);
    for (((wanted_suite, cached), verifier), answer) in asked.zip(origin_answers) {
        let offered = || {
            let (check, first) = (date_check(wanted_suite.sources[0], now), (answer, cached.as_ref()));
            let received =
                usable(settings, session, wanted_suite.suite, first, verifier.as_ref(), check, patience, stop, warn)?;
            candidate(settings, session, state, wanted_suite, received, verifier, now, stop, warn)
        };
        match offered() {
            Ok(candidate) => candidates.push(candidate),
            Err(error) => refused.push(of_suite(error)?),
        }
    }
    let mut suites = Vec::new();
    for candidate in join(candidates)? {
        match judge(settings, session, state, candidate, warn) {
            Ok(suite) => suites.push(suite),
            Err(error) => refused.push(of_suite(error)?),
        }
    }
    if suites.is_empty()
        && let Some(error) = together(std::mem::take(&mut refused))
    {
        // Unreachable hosts change nothing, which needs no mention.
        return Err(if error.kind == ErrorKind::Network { error } else { error.context(NOTHING_PUBLISHED) });
    }
    Ok(Offers { suites, refused })
}

/// Context of an error that ends a run before it publishes. Errors of single suites do not have it, because other
/// suites may be published.
pub(crate) const NOTHING_PUBLISHED: &str = "nothing was published or deleted";

/// Returns the error as a value if it concerns only one suite.
///
/// # Errors
///
/// The given error, if it is local and so ends the run (`Disk`, `Interrupted`, `Locked`, `Partial` or `Internal`).
pub(crate) fn of_suite(error: CommandError) -> Result<CommandError, CommandError> {
    match error.kind {
        ErrorKind::Network | ErrorKind::Stale | ErrorKind::Verification | ErrorKind::Usage => Ok(error),
        _ => Err(error),
    }
}

/// Combines errors: the first one, with the messages of the others as context.
pub(crate) fn together(errors: Vec<CommandError>) -> Option<CommandError> {
    let mut errors = errors.into_iter();
    let first = errors.next()?;
    Some(errors.fold(first, |first, other| first.context(format_args!("and {}", other.message))))
}

/// The Release of the origin, or of another mirror if the origin is unusable.
#[allow(clippy::too_many_arguments)]
fn usable(
    settings: &MirrorSettings,
    session: &Session,
    suite: &str,
    (answer, cached): (Answer, Option<&CachedRelease>),
    verifier: Option<&Verifier>,
    check: DateCheck,
    patience: Duration,
    stop: &Stop,
    warn: &mut dyn FnMut(String),
) -> Result<(ReceivedRelease, HostId), CommandError> {
    let accepted = match accept(answer, cached, verifier) {
        // The local copy or an answer was altered: the origin alone is asked, without a condition.
        Err(Refusal::Verification(..)) if cached.is_some() || !others(settings).is_empty() => {
            let again = receive(request(session, ORIGIN, suite, None, patience));
            let again = session.runtime.block_on(stop.or(again))?;
            accept(again, None, verifier)
        }
        other => other,
    };
    match accepted {
        Ok(received) => Ok((received, ORIGIN)),
        Err(Refusal::Verification(why, hint)) => Err(unverified(&shown(settings, ORIGIN), suite, &why, hint)),
        Err(Refusal::Local(why)) => Err(unwritable(suite, &why)),
        Err(Refusal::NoVerifier(why)) => Err(no_verifier(suite, why)),
        Err(Refusal::Unavailable(why, hint)) => {
            newest_of_others(settings, session, suite, verifier, (&why, hint), check, stop, warn)
        }
    }
}

fn request<'a>(
    session: &'a Session,
    host: HostId,
    suite: &str,
    cached: Option<&'a CachedRelease>,
    patience: Duration,
) -> ReleaseRequest<'a> {
    let directory = remote_directory(suite);
    let head_seen = HeadSeen::default();
    ReleaseRequest { fetcher: &session.site.fetcher, host, directory, cached, patience, others: 0..0, head_seen }
}

/// Host numbers of the other mirrors.
fn others(settings: &MirrorSettings) -> Range<HostId> {
    if settings.origin_only { 1..1 } else { 1..settings.origins.len() as HostId }
}

/// Address of a host, without credentials.
fn shown(settings: &MirrorSettings, host: HostId) -> String {
    without_credentials(&settings.origins[usize::from(host)])
}

/// Error if this machine cannot check a signature, probably because the disk is full.
fn unwritable(suite: &str, why: &str) -> CommandError {
    CommandError::new(ErrorKind::Disk, format_args!("{suite}: the signature cannot be checked: {why}"))
        .context(NOTHING_PUBLISHED)
        .hint("repair this and run again; the published mirror is intact")
}

fn unverified(origin: &str, suite: &str, why: &str, hint: Option<&'static str>) -> CommandError {
    let error = CommandError::new(ErrorKind::Verification, format_args!("{suite}: {why}"))
        .context(format_args!("from {origin}"));
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Newest valid Release of the other mirrors, and its host. A Release dated in the future counts only if there is no
/// other.
#[allow(clippy::too_many_arguments)]
fn newest_of_others(
    settings: &MirrorSettings,
    session: &Session,
    suite: &str,
    verifier: Option<&Verifier>,
    (why, hint): (&str, &'static str),
    check: DateCheck,
    stop: &Stop,
    warn: &mut dyn FnMut(String),
) -> Result<(ReceivedRelease, HostId), CommandError> {
    let mut best: Option<(ReceivedRelease, HostId)> = None;
    let mut refusals = vec![format!("{}: {why}", shown(settings, ORIGIN))];
    let mut hints = vec![hint];
    let mut doubts = 0;
    for host in others(settings) {
        let answer = receive(request(session, host, suite, None, PATIENCE));
        let answer = session.runtime.block_on(stop.or(answer))?;
        match accept(answer, None, verifier) {
            // Without a date, nothing shows whether it is newer than the origin's.
            Ok(received) if received.release.date.is_none() => {
                refusals.push(format!(
                    "{}: its Release has no usable Date, and it is not the origin",
                    shown(settings, host)
                ));
            }
            Ok(received) => {
                let rank = |received: &ReceivedRelease| check.rank(received.release.date);
                let newer = best.as_ref().is_none_or(|(best, _)| rank(&received) > rank(best));
                if newer {
                    // The next run asks the origin again, where the tag of this host has no meaning.
                    best = Some((ReceivedRelease { tag: None, ..received }, host));
                }
            }
            Err(Refusal::Unavailable(why, hint)) => {
                refusals.push(format!("{}: {why}", shown(settings, host)));
                hints.push(hint);
            }
            Err(Refusal::Verification(why, _)) => {
                doubts += 1;
                refusals.push(format!("{}: {why}", shown(settings, host)));
            }
            Err(Refusal::Local(why)) => return Err(unwritable(suite, &why)),
            Err(Refusal::NoVerifier(why)) => return Err(no_verifier(suite, why)),
        }
    }
    if let Some((received, host)) = best {
        warn(format!(
            "{suite}: cannot use the origin {} ({why}); this run uses {} instead",
            shown(settings, ORIGIN),
            shown(settings, host)
        ));
        return Ok((received, host));
    }
    let kind = if doubts > 0 { ErrorKind::Verification } else { ErrorKind::Network };
    let mut error = CommandError::new(kind, format_args!("{suite}: no mirror has its Release"));
    for refusal in refusals {
        error = error.context(refusal);
    }
    // An answer says more than an unreachable host.
    let order = [HINT_CREDENTIALS, HINT_ELSEWHERE, HINT_BUSY, HINT_ABSENT, HINT_TRUST, HINT_CERTIFICATE, HINT_REACH];
    // Hints of a store concern its own address.
    let of_stores: BTreeSet<&str> = hints.iter().copied().filter(|hint| !order.contains(hint)).collect();
    if !of_stores.is_empty() {
        return Err(of_stores.into_iter().fold(error, CommandError::hint));
    }
    let hint = order.into_iter().find(|hint| hints.contains(hint)).map(|hint| match hint {
        HINT_TRUST if settings.network.ca_file.is_some() => HINT_OTHER_AUTHORITY,
        HINT_ABSENT if suite.ends_with('/') => HINT_ABSENT_FLAT,
        other => other,
    });
    let hint = hint.unwrap_or(HINT_ABSENT);
    if verifier.is_none() && matches!(hint, HINT_ABSENT | HINT_ABSENT_FLAT) {
        error = error.context(NO_RELEASE);
    }
    let error = error.hint(hint);
    let is_absent = hint == HINT_ABSENT && !suite.ends_with('/');
    let flat = if suite == "." { "./".to_owned() } else { format!("{suite}/") };
    Err(if is_absent {
        error.hint(format_args!("if this is a flat repository (no dists/), end its name with a slash: --suite {flat}"))
    } else {
        error
    })
}

/// The date check of a source.
fn date_check(source: &SourceSpec, now: i64) -> DateCheck {
    DateCheck::new(now, source.check_date, source.max_future_s)
}

/// The received suite with its directory and selections. An error if it is dated in the future or has expired.
#[allow(clippy::too_many_arguments)]
fn candidate(
    settings: &MirrorSettings,
    session: &Session,
    state: &State,
    wanted_suite: &WantedSuite<'_>,
    (received, host): (ReceivedRelease, HostId),
    verifier: Option<Verifier>,
    now: i64,
    stop: &Stop,
    warn: &mut dyn FnMut(String),
) -> Result<Candidate, CommandError> {
    let (suite, source, release) = (wanted_suite.suite, wanted_suite.sources[0], &received.release);
    let from = || format!("from {}", shown(settings, host));
    let is_of_another = check_suite(suite, release).err();
    if let Some(error) = &is_of_another {
        // Some archives give all their suites the same name. But no server may replace a present suite by another one.
        if names_itself(session, state, suite).map_err(|error| disk(&error))? {
            return Err(CommandError::usage(error)
                .context(from())
                .context("the Release that is here is of the requested suite")
                .hint(
                    "pass one of its names with --suite, or choose another mirror: this one serves a different suite",
                ));
        }
        warn(format!("{suite}: {error}; it is published as {suite}"));
    }
    release.notes.iter().for_each(|note| warn(format!("{suite}: {note}")));
    let check = date_check(source, now);
    if let Some(future) = check.future(release.date) {
        return Err(CommandError::new(ErrorKind::Stale, format_args!("{suite}: {future}"))
            .context(from())
            .hint(HINT_FUTURE));
    }
    let until = valid_until(release, source.valid_until_min_s, source.valid_until_max_s).filter(|until| *until < now);
    if let Some(until) = until.filter(|_| source.check_valid_until) {
        if !settings.ignore_valid_until {
            return Err(CommandError::new(
                ErrorKind::Stale,
                format_args!("{suite}: the Release was valid until {}", date(until)),
            )
            .context(from())
            .hint("the mirror may be stuck; for an archive that is no longer updated use --ignore-valid-until"));
        }
        warn(format!("{suite}: accepted although valid only until {}", date(until)));
    }
    let selection = |source: &&SourceSpec| {
        let own = source.languages.as_ref().filter(|_| settings.languages.is_empty());
        let no_language = own.is_some_and(Vec::is_empty);
        Selection {
            flat: suite.ends_with('/'),
            components: source.components.clone(),
            architectures: source.architectures.clone(),
            binaries: source.binaries,
            sources: source.sources,
            without: settings.without.iter().copied().chain(no_language.then_some(Kind::Translations)).collect(),
            languages: own.unwrap_or(&settings.languages).clone(),
            formats: settings.index_formats.clone(),
            skips_absent: source.skips_absent,
        }
    };
    let taken = match rival(suite, release, state, session.tree.links_are_copies()) {
        Some(rival) => still_claims(session, host, rival, release, verifier.as_ref(), stop)?,
        None => false,
    };
    let layout = match is_of_another {
        Some(_) => Layout::as_requested(suite),
        None => layout(suite, release, taken, &*session.tree).map_err(|error| disk(&error))?,
    };
    let selections = wanted_suite.sources.iter().map(selection).collect();
    Ok(Candidate { requested: suite.to_owned(), host, selections, layout, received, verifier, check })
}

/// Whether the mirrored Release of this request has the requested name.
fn names_itself(session: &Session, state: &State, requested: &str) -> Result<bool, FileError> {
    let mut records = state.header.suites.iter().filter(|suite| !suite.retired);
    let Some(record) = records.find(|suite| suite.requested == requested) else { return Ok(false) };
    let here = LocalRelease::read(&*session.tree, &record.directory)?;
    Ok(here.and_then(|here| here.release()).is_some_and(|release| check_suite(requested, &release).is_ok()))
}

/// Whether the suite requested as `rival` still has the codename of this Release; true if that cannot be determined.
fn still_claims(
    session: &Session,
    host: HostId,
    rival: &str,
    release: &Release,
    verifier: Option<&Verifier>,
    stop: &Stop,
) -> Result<bool, CommandError> {
    let answer = session.runtime.block_on(stop.or(receive(request(session, host, rival, None, PATIENCE))))?;
    Ok(accept(answer, None, verifier).map_or(true, |received| received.release.codename == release.codename))
}

/// Compares a candidate with the mirrored suite.
fn judge(
    settings: &MirrorSettings,
    session: &Session,
    state: &State,
    candidate: Candidate,
    warn: &mut dyn FnMut(String),
) -> Result<OfferedSuite, CommandError> {
    let identity = candidate.identity();
    let Candidate { requested: suite, host, selections, layout, received, verifier, check } = candidate;
    let ReceivedRelease { files, modified, tag, text, release } = received;
    let fingerprint = fingerprint(&selections, &settings.filters);
    let unrecorded = unrecorded(session, state, &layout.directory)?;
    let is_recorded = state.suite(&layout.directory).is_some();
    // If a run was killed while it published, the log explains the difference.
    let is_found = unrecorded.is_some() && !(is_recorded && state.marked);
    let date = |here: LocalRelease| here.date(&*session.tree, verifier.as_ref()).map_err(|error| disk(&error));
    let here = unrecorded.map(date).transpose()?.flatten();
    let overtaken = here.is_some() && is_recorded && !state.marked;
    if overtaken {
        warn(format!("{suite}: the Release on disk is not the recorded one; files are read again"));
    }
    let offer = OfferedRelease {
        directory: &layout.directory,
        inrelease: identity,
        date: release.date.unwrap_or_default(),
        signed: text.is_verified(),
        fingerprint,
        here,
        successor: successor(session, state, &suite, &layout.directory, text.is_verified())?,
        check,
    };
    let refused = |error: StateError| {
        let from = matches!(error, StateError::Older { .. }).then(|| format!("from {}", shown(settings, host)));
        from.into_iter().fold(CommandError::from(error), CommandError::context)
    };
    if let Some(future) = state.judge_date(&offer).map_err(refused)? {
        warn(format!("{suite}: the offered Release replaces the mirrored one: {future}"));
    }
    let mut change = state.judge(&offer).map_err(refused)?;
    if change == ReleaseChange::Unchanged {
        for name in altered(session, state, &layout.directory, &files, &text, verifier.as_ref())? {
            warn(format!("{suite}: the published {name} was changed; it is restored"));
            change = ReleaseChange::Unfinished;
        }
    }
    let links = broken_links(&*session.tree, &state.header.suites).map_err(|error| disk(&error))?;
    for link in links.iter().filter(|lost| lost.directory == layout.directory).map(|lost| lost.link) {
        let there = session.tree.stat(link).map_err(|error| disk(&error))?;
        if there.is_some_and(|status| status.kind == FileKind::Directory) {
            warn(format!("{suite}: {link} is another program's directory now; it stays, and is not an alias any more"));
        } else if change == ReleaseChange::Unchanged || change == ReleaseChange::Unfinished {
            warn(format!("{suite}: the published {link} was changed; it is restored"));
        } else {
            continue;
        }
        if change == ReleaseChange::Unchanged {
            change = ReleaseChange::Unfinished;
        }
    }
    let date_of_release = release.date.unwrap_or_default();
    Ok(OfferedSuite {
        remote: remote_directory(&suite),
        requested: suite,
        host,
        selections,
        layout,
        signed: text.is_verified(),
        release,
        change,
        identity,
        fingerprint,
        overtaken,
        is_found,
        files,
        modified: modified.unwrap_or(date_of_release),
        tag,
        text,
        verifier,
    })
}

/// Latest `Date` of suites in other directories that were mirrored under the same requested name. Unsigned suites do
/// not count if the offer is signed.
fn successor(
    session: &Session,
    state: &State,
    requested: &str,
    directory: &str,
    signed: bool,
) -> Result<Option<i64>, CommandError> {
    let mut latest = None;
    for suite in &state.header.suites {
        let is_of_name = suite.requested == requested && suite.directory != directory;
        if !is_of_name || suite.retired || (signed && !suite.signed) {
            continue;
        }
        if LocalRelease::read(&*session.tree, &suite.directory).map_err(|error| disk(&error))?.is_some() {
            latest = latest.max(Some(suite.date));
        }
    }
    Ok(latest)
}

/// The Release on disk, if the state records another one or none.
fn unrecorded(session: &Session, state: &State, directory: &str) -> Result<Option<LocalRelease>, CommandError> {
    let here = LocalRelease::read(&*session.tree, directory).map_err(|error| disk(&error))?;
    let recorded = state.suite(directory).map(|suite| suite.inrelease);
    Ok(here.filter(|here| recorded != Some(here.identity())))
}

/// Names of the signed files on disk that differ from the published ones (M4).
fn altered(
    session: &Session,
    state: &State,
    directory: &str,
    files: &[(&'static str, Vec<u8>)],
    text: &SignedText,
    verifier: Option<&Verifier>,
) -> Result<Vec<&'static str>, CommandError> {
    let mut altered = Vec::new();
    for (name, content) in files {
        let here = session.tree.read(&below(directory, name), RELEASE_BYTES_MAX as u64);
        if here.map_err(|error| disk(&error))?.as_ref() != Some(content) {
            altered.push(*name);
        }
    }
    // With an `InRelease` alone, the two files for older clients were not requested yet.
    if files.iter().all(|(name, _)| *name == "InRelease") {
        let DetachedRelease { release, signature } =
            DetachedRelease::read(&*session.tree, directory).map_err(|error| disk(&error))?;
        altered.extend(match release {
            Some(release) => contradiction(&release, signature.as_deref(), text, verifier)
                .map(|(name, _)| name)
                .or_else(|| (verifier.is_some() && signature.is_none()).then_some("Release.gpg")),
            // If both are missing, the state tells whether they were published.
            None => (signature.is_some() || state.has_record(&session.own, &below(directory, "Release")))
                .then_some("Release"),
        });
    }
    Ok(altered)
}

/// Requests in flight for `Release` and `Release.gpg` of suites with an `InRelease`, which old clients do not know.
/// They run in parallel with the indexes and take no extra time.
pub(crate) struct SideFiles(Vec<Option<tokio::task::JoinHandle<NamedAnswers>>>);

/// Requests the side files from the hosts that sent the `InRelease`.
pub(crate) fn ask_for_side_files(settings: &MirrorSettings, session: &Session, offers: &[OfferedSuite]) -> SideFiles {
    let ask = |offer: &OfferedSuite| {
        let missing = offer.files.iter().all(|(name, _)| *name == "InRelease");
        let files = || side_files(session.site.fetcher.watch(), offer.host, others(settings), offer.remote.clone());
        missing.then(|| session.runtime.spawn(files()))
    };
    SideFiles(offers.iter().map(ask).collect())
}

async fn side_files(watch: Watch, host: HostId, others: Range<HostId>, directory: String) -> NamedAnswers {
    let ask = |name: &str, limit: usize| {
        let get = Get { path: format!("{directory}{name}"), limit_bytes: limit as u64, ..Get::default() };
        let others = AlternateHosts { hosts: others.clone(), alike: Equivalence::Any, at_once: true };
        get_hedged(&watch, host, others, get, PATIENCE)
    };
    let (release, signature) = (ask("Release", RELEASE_BYTES_MAX), ask("Release.gpg", SIGNATURE_BYTES_MAX));
    // A single host is asked one by one: it may answer in the wrong order.
    let asked = match others.is_empty() {
        true => (release.await, signature.await),
        false => tokio::join!(release, signature),
    };
    let answers = [("Release", asked.0), ("Release.gpg", asked.1)].into_iter();
    let good = answers.filter_map(|(name, got)| got.ok().filter(|got| got.head.status == 200).map(|got| (name, got)));
    good.collect()
}

/// Accepts side files that have the text of the `InRelease` and a valid signature. Missing or wrong ones are requested
/// once more, because a host that answers in the wrong order is known by now. After the time limit a suite has none.
///
/// # Errors
///
/// `Interrupted` if a signal arrived, `Disk` if the side files on disk cannot be read.
pub(crate) fn take_side_files(
    side: SideFiles,
    session: &Session,
    stop: &Stop,
    offers: &mut [OfferedSuite],
) -> Result<(), CommandError> {
    let until = Instant::now() + SIDE_FILES_WITHIN;
    for (offer, asked) in offers.iter_mut().zip(side.0) {
        let Some(asked) = asked else { continue };
        let mut files = NamedAnswers::new();
        let take = async {
            files = asked.await.unwrap_or_default();
            if !fits(offer, &files) {
                files = side_files(session.site.fetcher.watch(), offer.host, 0..0, offer.remote.clone()).await;
            }
        };
        let in_time = async { tokio::time::timeout_at(until.into(), take).await.is_ok() };
        session.runtime.block_on(stop.or(in_time))?;
        if fits(offer, &files) {
            offer.files.extend(files.into_iter().map(|(name, got)| (name, got.body)));
        } else {
            // Side files on disk stay if they belong to this Release.
            let detached =
                DetachedRelease::read(&*session.tree, &offer.layout.directory).map_err(|error| disk(&error))?;
            offer.files.extend(detached.of(&offer.text, offer.verifier.as_ref()));
        }
    }
    Ok(())
}

/// Whether these are the side files of this `InRelease`.
fn fits(offer: &OfferedSuite, files: &NamedAnswers) -> bool {
    let content = |wanted: &str| files.iter().find(|(name, _)| *name == wanted).map(|(_, got)| &got.body);
    let (Some(release), signature) = (content("Release"), content("Release.gpg")) else { return false };
    let verifier = offer.verifier.as_ref();
    let is_signed = verifier.is_none() || signature.is_some();
    is_signed && contradiction(release, signature.map(|signature| &signature[..]), &offer.text, verifier).is_none()
}
