//! fullbore-wire.
pub mod dispatcher;
pub mod hosts;
pub mod queue;
pub mod rate;
