//! The addresses of a collector beside its own socket: `--listen unix:PATH` or `--listen HOST:PORT`.

use std::ffi::OsString;
use std::net::ToSocketAddrs;
use std::path::PathBuf;

use probe_collector::auth::TcpProtection;
use probe_collector::{Collector, CollectorOptions, disk_limit, memory_limit};
use probe_common::error::Result;
use probe_common::paths::ListenAddress;

use super::report;

/// Options of every command that is a collector.
#[derive(Debug, PartialEq, clap::Args)]
pub(super) struct ListenOptions {
    /// Also listen here, in addition to the run's own socket (TCP needs tokens: probe token make)
    #[arg(long, value_name = "unix:PATH|HOST:PORT", value_parser = parse)]
    listen: Vec<ListenAddress>,
    /// Encrypt TCP with a self-signed certificate, made once and kept. Clients check it by the pin that is printed
    #[arg(long, conflicts_with_all = ["tls_cert", "insecure_no_tls"])]
    tls_self_signed: bool,
    /// Encrypt TCP with this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "insecure_no_tls")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM, mode 0600)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Send tokens and all data over the network unencrypted, so that anyone on the path can read them
    #[arg(long)]
    insecure_no_tls: bool,
    /// Run snippets that arrive over TCP with a token of scope eval, in processes started with PROBE_EVAL=tcp
    #[arg(long)]
    allow_eval: bool,
}

impl ListenOptions {
    /// The options of a collector.
    pub(super) fn options(self, run: String, command: String) -> Result<CollectorOptions> {
        let memory = memory_limit()?;
        let disk = disk_limit()?;
        let protection = match (self.tls_cert, self.tls_key) {
            (Some(certificate), Some(key)) => TcpProtection::Files { certificate, key },
            _ if self.tls_self_signed => TcpProtection::SelfSigned,
            _ if self.insecure_no_tls => TcpProtection::InsecureNoTls,
            _ => TcpProtection::Loopback,
        };
        let (listen, allow_eval) = (self.listen, self.allow_eval);
        Ok(CollectorOptions {
            run,
            command,
            resume: false,
            may_rename: false,
            listen,
            memory,
            disk,
            protection,
            allow_eval,
        })
    }
}

impl ListenOptions {
    /// The words of a command line that parse to these options.
    pub(super) fn to_arguments(&self) -> Vec<OsString> {
        let listen = self.listen.iter().flat_map(|listen| ["--listen".into(), listen.to_string().into()]);
        let files = [("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key)];
        let files = files.into_iter().filter_map(|(option, file)| Some([option.into(), file.as_ref()?.into()]));
        let switches = [
            ("--tls-self-signed", self.tls_self_signed),
            ("--insecure-no-tls", self.insecure_no_tls),
            ("--allow-eval", self.allow_eval),
        ];
        let switches = switches.into_iter().filter(|(_, on)| *on).map(|(option, _)| option.into());
        listen.chain(files.flatten()).chain(switches).collect()
    }
}

/// Prints the pin, which clients over TCP need.
pub(super) fn say_pin(collector: &Collector) {
    if let Some(pin) = collector.pin() {
        report::note(format_args!("TCP is encrypted; clients need the pin: {pin}"));
    }
}

fn parse(text: &str) -> Result<ListenAddress, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() {
            Err("unix: is followed by a path".into())
        } else {
            Ok(ListenAddress::Unix(path.into()))
        };
    }
    let mut addresses =
        text.to_socket_addrs().map_err(|error| format!("{error}; write it like 127.0.0.1:7777 or unix:/run/x.sock"))?;
    addresses.next().map(ListenAddress::Tcp).ok_or_else(|| "that host has no address".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        listening: ListenOptions,
    }

    fn parsed(words: &[OsString]) -> ListenOptions {
        Line::parse_from([OsString::from("probe")].iter().chain(words)).listening
    }

    #[test]
    fn a_collector_is_told_what_its_launcher_was() {
        let lines: [&[&str]; 4] = [
            &[],
            &["--listen", "unix:/a b", "--listen", "127.0.0.1:7777", "--tls-self-signed"],
            &["--listen", "[::1]:7777", "--insecure-no-tls", "--allow-eval"],
            &["--listen", "127.0.0.1:0", "--tls-cert", "a.pem", "--tls-key", "b.pem"],
        ];
        for line in lines {
            let given = parsed(&line.iter().map(OsString::from).collect::<Vec<_>>());
            assert_eq!(given.to_arguments(), line.iter().map(OsString::from).collect::<Vec<_>>());
            assert_eq!(parsed(&given.to_arguments()), given);
        }
    }

    #[test]
    fn addresses_and_paths_are_told_apart() {
        assert_eq!(parse("unix:/x"), Ok(ListenAddress::Unix("/x".into())));
        assert_eq!(parse("127.0.0.1:80"), Ok(ListenAddress::Tcp(([127, 0, 0, 1], 80).into())));
        assert!(["unix:", "/x", "80", "127.0.0.1", "127.0.0.1:99999"].iter().all(|text| parse(text).is_err()));
    }
}
