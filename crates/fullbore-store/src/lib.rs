//! Places that files are put to, other than a directory.
//!
//! [`lafs`] is a Tahoe-LAFS grid: encoding, placement, and the storage protocol. [`s3`] is a bucket: signed requests,
//! objects in parts. Nothing here prints, reads the environment or ends the process.

#![deny(unsafe_code)]

mod journal;
pub mod lafs;
pub mod s3;
mod stage;
pub mod unnamed;
pub mod verdict;

/// Returns when the run is to end.
pub async fn stopped(stop: &mut tokio::sync::watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // Nobody is left who could say so.
        std::future::pending::<()>().await;
    }
}

/// When a file was last written to; `None` where the file system keeps no times.
fn modified(file: &std::fs::File) -> Option<std::time::SystemTime> {
    file.metadata().and_then(|metadata| metadata.modified()).ok()
}
