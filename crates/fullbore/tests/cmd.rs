//! What the program prints: help texts and errors, compared with `tests/cmd/*.trycmd`.
//!
//! After a wanted change: `TRYCMD=overwrite cargo test -p fullbore --test cmd`.

#![allow(clippy::unwrap_used)]

#[test]
fn texts() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd").env("COLUMNS", "100").env("NO_COLOR", "1");
}
