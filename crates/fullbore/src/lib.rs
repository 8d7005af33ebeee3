//! The fullbore program, as a library.
