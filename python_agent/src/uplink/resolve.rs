//! Resolves a collector's host name, as seldom as possible.
//!
//! The C library's resolver reads the environment, which the program may be changing at that moment: before glibc 2.41 that reads
//! freed memory. Numeric addresses need no resolver.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::shared::{LOADER, lock};

/// How long the addresses of a host are used.
const GOOD: Duration = Duration::from_secs(60);
/// How long an error of the resolver is used: a name may be registered a moment after it is first asked for.
const GOOD_IF_NONE: Duration = Duration::from_secs(10);

/// The resolver's last answer, and its time.
#[derive(Debug, Default)]
pub struct ResolvedAddresses(Option<(Instant, Result<Vec<SocketAddr>, String>)>);

impl ResolvedAddresses {
    /// The addresses of `HOST:PORT`.
    ///
    /// # Errors
    /// The error of the resolver.
    pub async fn addresses(&mut self, host: &str) -> io::Result<Vec<SocketAddr>> {
        self.asking(host, Instant::now(), resolve).await
    }

    async fn asking(
        &mut self,
        host: &str,
        now: Instant,
        ask: impl AsyncFnOnce(&str) -> io::Result<Vec<SocketAddr>>,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let is_good = |at: Instant, good: bool| now.duration_since(at) < if good { GOOD } else { GOOD_IF_NONE };
        let known = self.0.as_ref().filter(|(at, answer)| is_good(*at, answer.is_ok()));
        let answer = match known {
            Some((_, answer)) => answer.clone(),
            None => {
                let answer = ask(host).await.map_err(|error| error.to_string());
                self.0 = Some((now, answer.clone()));
                answer
            }
        };
        answer.map_err(io::Error::other)
    }
}

/// Asks the resolver, whose modules the C library loads when it needs them.
async fn resolve(host: &str) -> io::Result<Vec<SocketAddr>> {
    let host = host.to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        let _loading = lock(&LOADER);
        host.to_socket_addrs().map(Iterator::collect)
    });
    asked.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_asked_for_once_a_minute() {
        let mut resolved = ResolvedAddresses::default();
        let address: SocketAddr = "192.0.2.1:7".parse().expect("an address");
        let (begun, mut asked) = (Instant::now(), 0);
        for second in 0..180 {
            let answer = resolved.asking("collector:7", begun + Duration::from_secs(second), async |_| {
                asked += 1;
                Ok(vec![address])
            });
            assert_eq!(answer.await.ok(), Some(vec![address]));
        }
        assert_eq!(asked, 3);
    }

    #[tokio::test]
    async fn a_name_that_is_not_there_yet_is_asked_for_sooner_and_a_number_never() {
        let mut resolved = ResolvedAddresses::default();
        let (begun, mut asked) = (Instant::now(), 0);
        for second in 0..60 {
            let none = resolved.asking("nowhere:7", begun + Duration::from_secs(second), async |_| {
                asked += 1;
                Err(io::Error::other("no such host"))
            });
            assert_eq!(none.await.map_err(|error| error.to_string()), Err("no such host".to_owned()));
        }
        assert_eq!(asked, 6);
        let never = resolved.asking("[::1]:7", begun, async |_| Err(io::Error::other("asked")));
        assert_eq!(never.await.map(|found| found.len()).ok(), Some(1));
    }
}
