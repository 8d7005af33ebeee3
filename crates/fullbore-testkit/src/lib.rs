//! fullbore-testkit.
