//! fullbore-engine.

pub mod digest;
pub mod files;
pub mod sys;
