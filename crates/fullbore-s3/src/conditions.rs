//! Whether a store keeps to `If-None-Match: *`, which puts an object only where there is none.
//!
//! A store that does not know the condition answers 200 and replaces what is there, so that an answer of 200 says nothing
//! about it. The condition is relied on when the store has refused by it (412), or is Amazon's, which keeps to it by its
//! documentation ("Conditional writes", since August 2024).
//!
//! The first objects themselves cannot show it: where the condition is ignored, what was there is replaced, with its
//! metadata, before anybody knows. Nor is it remembered for later runs, when another store may answer at the address.

use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const ASKED: u8 = 1;
const KEPT: u8 = 2;
const IGNORED: u8 = 3;

/// What is known of it.
#[derive(Debug, Default)]
pub struct Conditions(AtomicU8);

impl Conditions {
    /// Of a store that is Amazon's, or another one.
    pub fn of(is_default: bool) -> Conditions {
        Conditions(AtomicU8::new(if is_default { KEPT } else { UNKNOWN }))
    }

    /// The store keeps to it.
    pub fn are_kept(&self) -> bool {
        self.0.load(Ordering::Relaxed) == KEPT
    }

    /// Whether somebody is to find out; says so once.
    pub fn ask_once(&self) -> bool {
        self.0.compare_exchange(UNKNOWN, ASKED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// It refused by it.
    pub fn refused(&self) {
        // One that ignored it once is not relied on.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known| (known != IGNORED).then_some(KEPT));
    }

    /// It does not know it.
    pub fn ignored(&self) {
        self.0.store(IGNORED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_what_is_believed() {
        let conditions = Conditions::of(false);
        assert!(!conditions.are_kept());
        assert!(conditions.ask_once() && !conditions.ask_once());
        conditions.refused();
        assert!(conditions.are_kept() && !conditions.ask_once());
        conditions.ignored();
        conditions.refused();
        assert!(!conditions.are_kept());
        assert!(Conditions::of(true).are_kept());
    }
}
