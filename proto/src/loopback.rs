//! Asks the kernel which user owns the other end of a connection within this machine.
//!
//! On loopback nothing is encrypted without a pin, and after a collector has ended, any user of the machine may listen at its
//! port. So a client checks the owner before it sends a token.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;

/// The hint where the owner of the other end is not this user, or not known.
const HINT: &str = "a pin says which collector is meant: probe serve --tls-self-signed prints one for the token file";

/// Fails where the other end of `stream` belongs neither to this user nor to root, or where its owner is not known.
///
/// # Errors
/// `PermissionDenied`, and those of the file system.
pub fn check_owner(stream: &TcpStream) -> io::Result<()> {
    check(stream, nix::unistd::geteuid().as_raw())
}

fn check(stream: &TcpStream, me: u32) -> io::Result<()> {
    let [here, there] = [stream.local_addr()?, stream.peer_addr()?].map(canonical);
    // The tables of this thread's network namespace; an IPv6 socket may be the other end of an IPv4 address.
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let text: String = tables.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    let denied = |what: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{what}; {HINT}")));
    match owner(&text, here, there) {
        Some(uid) if uid == me || uid == 0 => Ok(()),
        Some(uid) => {
            denied(format!("the listener at {there} belongs to uid {uid}, not to you, and would get the token"))
        }
        None => denied(format!("the owner of the listener at {there} is not known")),
    }
}

/// The uid of the socket at `there`, by the text of /proc/net/tcp: of the connection from `here`, or until that is accepted,
/// of the listening socket.
fn owner(text: &str, here: SocketAddr, there: SocketAddr) -> Option<u32> {
    let sockets: Vec<SocketEntry> = text.lines().filter_map(SocketEntry::parse).collect();
    let taken = sockets.iter().find(|socket| socket.is_taken && (socket.local, socket.remote) == (there, here));
    let listening = |ip: IpAddr| {
        let local = SocketAddr::new(ip, there.port());
        sockets.iter().find(move |socket| socket.listens && socket.local == local)
    };
    // In the order of the kernel: a socket for exactly this address comes first.
    let [any_v4, any_v6] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let any_v4 = || if there.is_ipv4() { listening(any_v4) } else { None };
    let found = taken.or_else(|| listening(there.ip())).or_else(any_v4).or_else(|| listening(any_v6));
    found.map(|socket| socket.uid)
}

/// A line of /proc/net/tcp.
#[derive(Debug)]
struct SocketEntry {
    local: SocketAddr,
    remote: SocketAddr,
    listens: bool,
    uid: u32,
    /// Whether a process has the socket. Until a connection is accepted, the kernel reports uid 0.
    is_taken: bool,
}

impl SocketEntry {
    fn parse(line: &str) -> Option<Self> {
        /// TCP_LISTEN.
        const LISTEN: &str = "0A";
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, local, remote, state, _, _, _, uid, _, inode, ..] = fields[..] else { return None };
        Some(Self {
            local: address(local)?,
            remote: address(remote)?,
            listens: state == LISTEN,
            uid: uid.parse().ok()?,
            is_taken: inode != "0",
        })
    }
}

/// Parses an address: `0100007F:1F90` is 127.0.0.1:8080 on a little-endian machine, in words of four bytes in its byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |index: usize| u32::from_str_radix(ip.get(8 * index..8 * index + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip: IpAddr = match ip.len() {
        8 => word(0)?.into(),
        32 => {
            let mut bytes = [0; 16];
            for (index, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(index)?);
            }
            bytes.into()
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

/// The address as IPv4 where it is an IPv4 address in IPv6 form, and without a scope.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn line(local: &str, remote: &str, state: &str, uid: u32, inode: u32) -> String {
        format!(
            "   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  {uid:>4}        0 {inode} 1 0\n"
        )
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_connection_s_own_other_end_counts_before_what_listens() {
        let here = "127.0.0.1:40000".parse().unwrap();
        let there = "127.0.0.1:8080".parse().unwrap();
        const AT: &str = "0100007F:1F90";
        const FROM: &str = "0100007F:9C40";
        const MAPPED: &str = "0000000000000000FFFF00000100007F";
        const NOBODY: &str = "00000000:0000";
        let v6 = |port: &str| format!("{:0>32}:{port}", "");
        let exact = line(AT, NOBODY, "0A", 1000, 7);
        let any = line("00000000:1F90", NOBODY, "0A", 1001, 8);
        let any_v6 = line(&v6("1F90"), &v6("0000"), "0A", 1002, 9);
        let waiting = line(AT, FROM, "01", 0, 0);
        let taken = line(AT, FROM, "01", 1003, 10);
        let taken_v6 = line(&format!("{MAPPED}:1F90"), &format!("{MAPPED}:9C40"), "01", 1004, 11);
        let others = line(FROM, AT, "01", 1, 12) + &line("0100007F:1F91", NOBODY, "0A", 2, 13);
        for (lines, uid) in [
            (vec![&others], None),
            (vec![&others, &waiting], None),
            (vec![&others, &waiting, &exact], Some(1000)),
            (vec![&any, &exact], Some(1000)),
            (vec![&any_v6, &any], Some(1001)),
            (vec![&any_v6, &waiting], Some(1002)),
            (vec![&exact, &taken], Some(1003)),
            (vec![&exact, &taken_v6], Some(1004)),
        ] {
            let text = format!("{HEAD}{}", lines.into_iter().map(String::as_str).collect::<String>());
            assert_eq!(owner(&text, here, there), uid, "{text}");
        }
        let local = "[::1]:8080".parse().unwrap();
        assert_eq!(owner(&any, "[::1]:4".parse().unwrap(), local), None, "that is IPv4");
        assert_eq!(owner(&any_v6, "[::1]:4".parse().unwrap(), local), Some(1002));
    }

    #[tokio::test]
    async fn this_machine_s_own_sockets_are_found() {
        let me = nix::unistd::geteuid().as_raw();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        check_owner(&stream).unwrap();
        let _accepted = listener.accept().await.unwrap();
        check_owner(&stream).unwrap();
        drop(listener);
        check_owner(&stream).unwrap();
        if me != 0 {
            let error = check(&stream, me + 1).unwrap_err();
            assert!(error.to_string().contains(&format!("belongs to uid {me}, not to you")), "{error}");
        }
    }
}
