//! fullbore-wire.
