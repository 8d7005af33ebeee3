//! A mirror that misbehaves.
