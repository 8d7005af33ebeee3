//! fullbore-debian.
