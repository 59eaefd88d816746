//! ENDPOINT, as a user may type it or a program compose it.

/// Parses any text as an ENDPOINT.
pub fn endpoint(data: &[u8]) {
    use probe_client::endpoint::Endpoint;
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Endpoint::parse(text) {
        Ok(Endpoint::Pid(pid)) => assert_eq!(text.parse(), Ok(pid)),
        Ok(Endpoint::Tcp(address)) => {
            let (host, port) = address.rsplit_once(':').unwrap_or_default();
            assert!(!host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0), "{text}");
        }
        Ok(Endpoint::Run(name)) => {
            assert!(!name.base.contains(['/', ':', '\0']) && !name.base.starts_with('.'), "{text}")
        }
        Ok(Endpoint::Socket(path) | Endpoint::Directory(path)) => assert!(!path.as_os_str().is_empty(), "{text}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
