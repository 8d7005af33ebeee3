//! Writes that go on as they are to what lies below: a socket's, a stream's.

/// `AsyncWrite` for a type whose bytes go to another writer, which the closure-like second half names.
/// Writers that are used here take many slices at once, so the type does.
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
