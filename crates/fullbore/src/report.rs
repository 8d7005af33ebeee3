//! The report of a run as a page, as JSON, as a trace and as metrics.

pub mod html;
pub mod json;
pub mod parts;
pub mod perfetto;
pub mod prometheus;
#[cfg(test)]
mod sample;
mod svg;
pub mod time;
