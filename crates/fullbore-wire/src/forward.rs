//! Forwards writes unchanged to the writer below: a socket or a stream.

/// Implements `AsyncWrite` for a type by forwarding to another writer, which the closure-like second half names. All
/// writers used here accept vectored writes, so the type does too.
macro_rules! writes_go_to {
    ($type:ty, |$outer:ident| $inner:expr) => {
        impl tokio::io::AsyncWrite for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let $outer = self.get_mut();
                std::pin::Pin::new($inner).poll_write(cx, buf)
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bufs: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let $outer = self.get_mut();
                std::pin::Pin::new($inner).poll_write_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let $outer = self.get_mut();
                std::pin::Pin::new($inner).poll_flush(cx)
            }

            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let $outer = self.get_mut();
                std::pin::Pin::new($inner).poll_shutdown(cx)
            }
        }
    };
}

pub(crate) use writes_go_to;
