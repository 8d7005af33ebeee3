//! Layers of settings: what the flags say over a section over the defaults.

use super::file::{List, Section};
use crate::cli::MirrorArgs;

/// What the flags (and the environment through them) say, in the form of a section.
pub(super) fn flags(arguments: &MirrorArgs) -> Section {
    let set = |flag: bool| flag.then_some(true);
    Section {
        from: List(arguments.from.clone()),
        suite: List(arguments.suite.clone()),
        component: List(arguments.component.clone()),
        arch: List(arguments.arch.clone()),
        sources: arguments.sources.clone(),
        to: arguments.to.clone(),
        snapshot: arguments.snapshot.clone(),
        snapshot_full: set(arguments.snapshot_full),
        include: List(arguments.include.clone()),
        exclude: List(arguments.exclude.clone()),
        section: List(arguments.section.clone()),
        priority: List(arguments.priority.clone()),
        source_package: List(arguments.source_package.clone()),
        newest: arguments.newest,
        index_formats: List(arguments.index_formats.clone()),
        without: List(arguments.without.clone()),
        languages: List(arguments.languages.clone()),
        keyring: List(arguments.trust.keyring.clone()),
        trusted: None,
        cacert: arguments.trust.cacert.clone(),
        ignore_valid_until: set(arguments.ignore_valid_until),
        ignore_missing: set(arguments.ignore_missing),
        max_delete: arguments.max_delete,
        force_delete: set(arguments.force_delete),
        clean_foreign: set(arguments.clean_foreign),
        no_clean: set(arguments.no_clean),
        keep_generations: arguments.keep_generations,
        keep_hours: arguments.keep_hours,
        durability: arguments.durability,
        trace_host: arguments.trace_host.clone(),
        trace_info: List(arguments.trace_info.clone()),
        limit_rate: arguments.network.limit_rate,
        connections: arguments.network.connections,
        http1: set(arguments.network.http1),
        no_hedge: set(arguments.network.no_hedge),
        auth: arguments.network.auth.clone(),
        origin: arguments.origin.clone(),
        origin_only: set(arguments.origin_only),
        endpoint: arguments.store.endpoint.clone(),
        region: arguments.store.region.clone(),
        profile: arguments.store.profile.clone(),
        no_sign_request: set(arguments.no_sign_request),
        aliases: arguments.aliases,
        cache_control: arguments.cache_control.clone(),
        lock: arguments.lock,
        state: arguments.state.clone(),
        scratch: arguments.scratch.clone(),
        cache: arguments.cache.clone(),
        queue: arguments.queue.queue.clone(),
        queue_creds: arguments.queue.login.queue_creds.clone(),
        queue_nkey: arguments.queue.login.queue_nkey.clone(),
        queue_insecure: set(arguments.queue.login.queue_insecure),
        no_local: set(arguments.queue.no_local),
        require_workers: set(arguments.queue.require_workers),
        source: Vec::new(),
    }
}

impl Section {
    /// This section with everything replaced that the upper one says.
    pub(super) fn under(self, upper: Section) -> Section {
        // A section that names its archive by other means does not get the lower one's.
        let source = if !upper.source.is_empty() { upper.source } else { self.source };
        Section {
            from: upper.from.or(self.from),
            suite: upper.suite.or(self.suite),
            component: upper.component.or(self.component),
            arch: upper.arch.or(self.arch),
            sources: upper.sources.or(self.sources),
            to: upper.to.or(self.to),
            snapshot: upper.snapshot.or(self.snapshot),
            snapshot_full: upper.snapshot_full.or(self.snapshot_full),
            include: upper.include.or(self.include),
            exclude: upper.exclude.or(self.exclude),
            section: upper.section.or(self.section),
            priority: upper.priority.or(self.priority),
            source_package: upper.source_package.or(self.source_package),
            newest: upper.newest.or(self.newest),
            index_formats: upper.index_formats.or(self.index_formats),
            without: upper.without.or(self.without),
            languages: upper.languages.or(self.languages),
            keyring: upper.keyring.or(self.keyring),
            trusted: upper.trusted.or(self.trusted),
            cacert: upper.cacert.or(self.cacert),
            ignore_valid_until: upper.ignore_valid_until.or(self.ignore_valid_until),
            ignore_missing: upper.ignore_missing.or(self.ignore_missing),
            max_delete: upper.max_delete.or(self.max_delete),
            force_delete: upper.force_delete.or(self.force_delete),
            clean_foreign: upper.clean_foreign.or(self.clean_foreign),
            no_clean: upper.no_clean.or(self.no_clean),
            keep_generations: upper.keep_generations.or(self.keep_generations),
            keep_hours: upper.keep_hours.or(self.keep_hours),
            durability: upper.durability.or(self.durability),
            trace_host: upper.trace_host.or(self.trace_host),
            trace_info: upper.trace_info.or(self.trace_info),
            limit_rate: upper.limit_rate.or(self.limit_rate),
            connections: upper.connections.or(self.connections),
            http1: upper.http1.or(self.http1),
            no_hedge: upper.no_hedge.or(self.no_hedge),
            auth: upper.auth.or(self.auth),
            origin: upper.origin.or(self.origin),
            origin_only: upper.origin_only.or(self.origin_only),
            endpoint: upper.endpoint.or(self.endpoint),
            region: upper.region.or(self.region),
            profile: upper.profile.or(self.profile),
            no_sign_request: upper.no_sign_request.or(self.no_sign_request),
            aliases: upper.aliases.or(self.aliases),
            cache_control: upper.cache_control.or(self.cache_control),
            lock: upper.lock.or(self.lock),
            state: upper.state.or(self.state),
            scratch: upper.scratch.or(self.scratch),
            cache: upper.cache.or(self.cache),
            queue: upper.queue.or(self.queue),
            queue_creds: upper.queue_creds.or(self.queue_creds),
            queue_nkey: upper.queue_nkey.or(self.queue_nkey),
            queue_insecure: upper.queue_insecure.or(self.queue_insecure),
            no_local: upper.no_local.or(self.no_local),
            require_workers: upper.require_workers.or(self.require_workers),
            source,
        }
    }
}

impl<T> List<T> {
    pub(super) fn or(self, lower: List<T>) -> List<T> {
        if self.0.is_empty() { lower } else { self }
    }
}
