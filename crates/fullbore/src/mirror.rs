//! `fullbore mirror`: one archive, from many mirrors, into a directory.

pub mod adopt;
pub mod clean;
pub mod commit;
pub mod feed;
pub mod filter;
pub mod fingerprint;
pub mod foreign;
pub mod layout;
pub mod lock;
pub mod plan;
pub mod publish;
pub mod records;
pub mod retention;
pub mod room;
pub mod select;
pub mod snapshot;
pub mod standing;
pub mod state;
pub mod store;
pub mod subtract;
pub mod trace_files;

/// Makes the mirror.
pub fn run(
    settings: &crate::settings::MirrorSettings,
    _events: &mut dyn crate::events::Events,
) -> Result<crate::report::Report, crate::error::CommandError> {
    Err(crate::error::CommandError::new(
        crate::error::ErrorKind::Internal,
        format_args!("{}: mirror is not built in", settings.dir.display()),
    ))
}
