//! Writing to a connection that wraps another one.

/// Lets what is written to a wrapper go to the connection in its field as it is.
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
