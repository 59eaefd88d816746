//! Forwards writes from a wrapper to the connection in it.

/// Implements `AsyncWrite` for a wrapper by the connection in its field.
macro_rules! forward_writes {
    ($wrapper:ident $(<$inner:ident>)? to $field:tt) => {
        impl $(<$inner: AsyncWrite + Unpin>)? AsyncWrite for $wrapper $(<$inner>)? {
            fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.$field).poll_write(cx, data)
            }
            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.$field).poll_flush(cx)
            }
            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.$field).poll_shutdown(cx)
            }
            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.$field).poll_write_vectored(cx, data)
            }
            fn is_write_vectored(&self) -> bool {
                self.$field.is_write_vectored()
            }
        }
    };
}

pub(super) use forward_writes;
