//! The credentials file of a client over TCP: its token, and the certificate to expect.
//!
//! ```text
//! probe_5f0c…
//! pin sha256:9c41…
//! ```
//!
//! With a pin the client connects with TLS, and only to the collector with that certificate. `probe token make` writes the file.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Shortest token (bytes); a shorter one could be guessed.
const MIN_TOKEN_LENGTH: usize = 32;
/// Most bytes that are read of a file.
const MAX_FILE_BYTES: u64 = 4096;
/// The value of [`crate::env::PROBE_TLS_PIN`] that allows sending the token unencrypted.
pub const INSECURE: &str = "insecure-no-tls";

/// Why credentials can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialsProblem {
    /// Whether using them would be unsafe; otherwise the file is missing or not valid.
    pub denied: bool,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl fmt::Display for CredentialsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; hint: {}", self.message, self.hint)
    }
}

/// The token that a client sends and the pin that it expects. The token is in no message, log or error.
#[derive(Clone)]
pub struct Credentials {
    token: Arc<str>,
    pin: Option<CertificatePin>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("token", &"…").field("pin", &self.pin).finish()
    }
}

impl Credentials {
    /// Reads a file that belongs to this user or root and that no other user can read or write. The path may be a link to such a
    /// file, as secrets that an orchestrator mounts are.
    ///
    /// # Errors
    /// The file is missing, open to others, or holds no token.
    pub fn read(path: &Path) -> Result<Self, CredentialsProblem> {
        let problem = |denied, message: String, hint: &str| CredentialsProblem { denied, message, hint: hint.into() };
        let named = |what: &dyn fmt::Display| format!("{}: {what}", path.display());
        let make = "on the collector's machine: probe token make NAME --scope query -o FILE";
        let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| problem(false, named(&error), make))?;
        let metadata = file.metadata().map_err(|error| problem(false, named(&error), make))?;
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
        if !metadata.is_file() {
            return Err(problem(true, named(&"is no file"), make));
        }
        if owner != nix::unistd::geteuid().as_raw() && owner != 0 {
            return Err(problem(true, named(&format_args!("belongs to uid {owner}, not to you")), make));
        }
        if mode & 0o077 != 0 {
            let what = format_args!("can be read or written by others (mode {mode:04o})").to_string();
            return Err(problem(true, named(&what), &format!("chmod 0600 {}", path.display())));
        }
        let mut text = String::new();
        let read = file.take(MAX_FILE_BYTES).read_to_string(&mut text);
        read.map_err(|_| problem(false, named(&"is no text"), make))?;
        Self::parse(&text).map_err(|what| problem(false, named(&what), make))
    }

    /// Parses a file's text; the error says what is wrong and repeats none of the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let token = lines.next().unwrap_or_default();
        if token.len() < MIN_TOKEN_LENGTH || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!("has no token of at least {MIN_TOKEN_LENGTH} letters on its first line"));
        }
        let mut pin = None;
        for line in lines {
            let value = line.strip_prefix("pin ").ok_or("has a line beside the token and 'pin sha256:…'")?;
            pin = Some(value.trim().parse()?);
        }
        Ok(Self { token: token.into(), pin })
    }

    /// The file's text.
    pub fn text(token: &str, pin: Option<&CertificatePin>) -> String {
        pin.map_or_else(|| format!("{token}\n"), |pin| format!("{token}\npin {pin}\n"))
    }

    /// The value of the header `authorization`.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// How to connect to `HOST:PORT`. `variable` is the value of [`crate::env::PROBE_TLS_PIN`], and counts where the file has
    /// no pin.
    ///
    /// # Errors
    /// The token would be sent to another machine unencrypted, or the variable is no pin.
    pub fn way(&self, address: &str, variable: Option<&str>) -> Result<TcpSecurity, CredentialsProblem> {
        if let Some(pin) = &self.pin {
            return Ok(TcpSecurity::Tls(pin.clone()));
        }
        let variable = variable.filter(|value| !value.is_empty());
        match variable {
            Some(INSECURE) => Ok(TcpSecurity::Plain),
            Some(value) => value.parse().map(TcpSecurity::Tls).map_err(|what: String| CredentialsProblem {
                denied: false,
                message: format!("{} {what}", crate::env::PROBE_TLS_PIN),
                hint: "`probe serve` with TLS prints it: sha256: and 64 hexadecimal digits".into(),
            }),
            None if is_loopback(address) => Ok(TcpSecurity::Loopback),
            None => Err(CredentialsProblem {
                denied: true,
                message: format!(
                    "{address} is another machine, and no pin says which certificate it has: the token would be readable on the way"
                ),
                hint: format!(
                    "add the line 'pin sha256:…' that its `probe serve` prints to the token file, or set {}",
                    crate::env::PROBE_TLS_PIN
                ),
            }),
        }
    }
}

/// How a client connects over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TcpSecurity {
    /// Unencrypted, readable by all on the network's path.
    Plain,
    /// Unencrypted, within this machine, to a process of this user or root.
    Loopback,
    /// TLS, only to a server with this certificate.
    Tls(CertificatePin),
}

/// Whether `HOST:PORT` is this machine, by its text: a name is not looked up, since the answer cannot be trusted.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// SHA-256 of a certificate, as `openssl x509 -noout -fingerprint -sha256` prints it too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePin(pub [u8; 32]);

impl fmt::Display for CertificatePin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for CertificatePin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "has a pin that is not sha256: and 64 hexadecimal digits".to_owned();
        let digits: String = text.strip_prefix("sha256:").ok_or_else(wrong)?.chars().filter(|c| *c != ':').collect();
        if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TOKEN: &str = "probe_0123456789abcdef0123456789abcdef";

    #[test]
    fn only_a_file_that_nobody_else_can_open_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, TOKEN).unwrap();
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = Credentials::read(&path);
            assert_eq!(read.is_ok(), fine, "{mode:o}: {read:?}");
            assert!(fine || read.unwrap_err().denied, "{mode:o}");
        }
        assert!(Credentials::read(directory.path()).unwrap_err().denied);
        assert!(!Credentials::read(&directory.path().join("absent")).unwrap_err().denied);
    }

    #[test]
    fn a_file_has_a_token_and_perhaps_a_pin() {
        let pin = CertificatePin([0xab; 32]);
        let read = Credentials::parse(&Credentials::text(TOKEN, Some(&pin))).unwrap();
        assert_eq!((read.authorization(), read.pin.clone()), (format!("Bearer {TOKEN}"), Some(pin)));
        assert!(!format!("{read:?}").contains("0123"), "{read:?}");
        assert_eq!(Credentials::parse(&format!("\n {TOKEN} \n\n")).unwrap().pin, None);
        for text in
            ["", "short", "0123456789abcdef 0123456789abcdef", &format!("{TOKEN}\nmore"), &format!("{TOKEN}\npin x")]
        {
            let error = Credentials::parse(text).unwrap_err();
            assert!(text.is_empty() || !error.contains("0123"), "an error shows no secret: {error}");
        }
    }

    #[test]
    fn pins_are_read_as_openssl_writes_them_too() {
        let pin = CertificatePin([0x0f; 32]);
        assert_eq!(pin.to_string().parse(), Ok(pin.clone()));
        assert_eq!(format!("sha256:{}", ["0F"; 32].join(":")).parse(), Ok(pin));
        for wrong in
            ["", "sha256:", "0f0f", &format!("sha256:{}", "0".repeat(63)), &format!("sha256:{}é", "0".repeat(62))]
        {
            assert!(wrong.parse::<CertificatePin>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_leaves_this_machine_only_over_tls_or_where_that_is_asked_for() {
        let pin = CertificatePin([7; 32]);
        let plain = Credentials::parse(TOKEN).unwrap();
        let pinned = Credentials::parse(&Credentials::text(TOKEN, Some(&pin))).unwrap();
        let text = pin.to_string();
        for near in ["127.0.0.1:7", "[::1]:7", "localhost:7", "127.9.9.9:7"] {
            assert_eq!(plain.way(near, None), Ok(TcpSecurity::Loopback), "{near}");
        }
        for far in ["10.0.0.1:7", "node1:7", "[fe80::1]:7", "localhost.evil.example:7"] {
            assert!(plain.way(far, None).unwrap_err().denied, "{far}");
            assert!(plain.way(far, Some("")).unwrap_err().denied, "{far}");
            assert_eq!(plain.way(far, Some(INSECURE)), Ok(TcpSecurity::Plain));
            assert_eq!(plain.way(far, Some(&text)), Ok(TcpSecurity::Tls(pin.clone())));
        }
        assert!(!plain.way("node1:7", Some("yes")).unwrap_err().denied);
        assert_eq!(pinned.way("127.0.0.1:7", Some(INSECURE)), Ok(TcpSecurity::Tls(pin)), "the file decides");
    }
}
