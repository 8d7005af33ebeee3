//! `fullbore mirror`: one archive, from many mirrors, into a directory.

pub mod commit;
pub mod filter;
pub mod plan;
pub mod records;
pub mod retention;
pub mod select;
pub mod standing;
pub mod state;
pub mod subtract;
