//! Changes of the target of requests: the bucket's region, its place in the URL, and other servers of the store.

use std::sync::{Arc, PoisonError, RwLock};

use fullbore_wire::connect::Endpoint;
use fullbore_wire::exchange;

use super::store::Store;
use super::{Call, Client, Tries, redirect};
use crate::address::{Bucket, is_region};

impl Client {
    /// Follows a redirect, for this request or for all; false if it must not be followed.
    pub(super) fn redirect(
        &self,
        call: &Call,
        status: u16,
        location: &str,
        asked: &Arc<Bucket>,
        tries: &mut Tries,
    ) -> bool {
        let sent = match &tries.target {
            Some(target) => target.to_string(),
            None => {
                let is_sent = |feature| !tries.without.contains(&feature) && !self.dialect().lacks(feature);
                redirect::sent(call, &call.query_for(is_sent), asked)
            }
        };
        let found = match redirect::follow(location, asked, &sent) {
            Ok(found) => found,
            Err(error) => {
                tracing::info!(%error, "redirect not followed");
                return false;
            }
        };
        let redirect::Redirect { bucket, target } = found;
        let is_at_first = tries.server.is_none() && tries.target.is_none();
        if target.is_none() && is_at_first && self.is_signpost(status, &bucket.endpoint) {
            let mut current = self.exchange.bucket.write().unwrap_or_else(PoisonError::into_inner);
            // Another request may have moved the bucket before.
            if Arc::ptr_eq(&current, asked) {
                tracing::info!(host = bucket.host, "the store is at another address");
                *current = Arc::new(bucket);
            }
            return true;
        }
        // A target that was redirected from stays, unless this one differs from it, too.
        if target.is_some() {
            tries.target = target;
        }
        tries.server = self.server_at(bucket);
        tries.server.is_some()
    }

    /// Returns to the store's own address from a server that cannot be reached; false if the request was not
    /// redirected.
    pub(super) fn leave_server(&self, tries: &mut Tries) -> bool {
        let Some(server) = tries.server.take() else { return false };
        tries.target = None;
        let mut servers = self.redirected.lock().unwrap_or_else(PoisonError::into_inner);
        servers.remove(&server.bucket().endpoint);
        true
    }

    /// Whether the store's own address only redirects to this server.
    fn is_signpost(&self, status: u16, to: &Endpoint) -> bool {
        if redirect::is_permanent(status) {
            return true;
        }
        let mut signpost = self.exchange.signpost.lock().unwrap_or_else(PoisonError::into_inner);
        let count = match &mut *signpost {
            Some((endpoint, count)) if endpoint == to => {
                *count += 1;
                *count
            }
            // Earlier redirects led elsewhere: the address belongs to a server that knows who has what.
            Some((endpoint, count)) => {
                (*endpoint, *count) = (to.clone(), 0);
                0
            }
            None => {
                *signpost = Some((to.clone(), 1));
                1
            }
        };
        count >= redirect::SIGNPOST_REDIRECTS && self.exchange.last_success().is_none()
    }

    /// The client of another server of the store.
    fn server_at(&self, bucket: Bucket) -> Option<exchange::Client<Store>> {
        let mut servers = self.redirected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = servers.get(&bucket.endpoint) {
            return Some(server.clone());
        }
        if servers.len() >= redirect::SERVERS_MAX {
            tracing::info!(host = bucket.host, "redirects to more servers than fullbore connects to");
            return None;
        }
        tracing::info!(host = bucket.host, "requests are redirected");
        let endpoint = bucket.endpoint.clone();
        let store = Store { bucket: RwLock::new(Arc::new(bucket)), common: Arc::clone(&self.exchange.common) };
        let server = self.exchange.beside(store);
        servers.insert(endpoint, server.clone());
        Some(server)
    }

    /// Switches to virtual-hosted style for good; false if it is in use already, or not possible.
    pub(super) fn move_to_virtual_host(&self, asked: &Bucket) -> bool {
        let mut bucket = self.exchange.bucket.write().unwrap_or_else(PoisonError::into_inner);
        if bucket.host != asked.host {
            // A concurrent request has learned it before.
            return true;
        }
        let Some(moved) = bucket.as_virtual_host() else { return false };
        tracing::info!(host = moved.host, "the store wants the bucket in the host name");
        *bucket = Arc::new(moved);
        true
    }

    /// Switches to another region for good; false if it is the one that was asked.
    pub(super) fn move_to(&self, region: Option<&str>, asked: &Bucket) -> bool {
        let Some(region) = region.filter(|region| *region != asked.region && is_region(region)) else { return false };
        let mut bucket = self.exchange.bucket.write().unwrap_or_else(PoisonError::into_inner);
        if bucket.region == region {
            // A concurrent request has learned it before.
            return true;
        }
        let Some(moved) = bucket.in_region(region) else { return false };
        tracing::info!(region, "the bucket is in another region");
        *bucket = Arc::new(moved);
        true
    }
}
