//! fullbore-engine.
