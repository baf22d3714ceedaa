//! The options of a measurement between two sides that say where the other side is.

use clap::Args;
use std::fmt;
use std::num::NonZeroU16;

/// TCP port of the server without another: perftest's.
const DEFAULT_PORT: u16 = 18515;

/// Where the other side is.
#[derive(Clone, Debug, Default, Args)]
pub struct Hosts {
    /// Measure with the same command and --server on this host. The server does what the options here say, but for
    /// --hca, --gid-index, --liberties and the number of --gpu, which each side has for itself
    #[arg(value_name = "HOST[:PORT]", value_parser = address, conflicts_with_all = ["server", "procs"])]
    pub host: Option<Address>,
    /// Wait for one client, which is the same command with HOST, measure with it as its options say, and end. What the
    /// client decides cannot be given here
    #[arg(long)]
    pub server: bool,
    /// Where the server waits; port 0 is one that is free [default: all addresses of this host]
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = address, requires = "server")]
    pub listen: Option<Address>,
    /// TCP port of the server, on either side [default: 18515]
    #[arg(short, long, value_name = "N", value_parser = port, allow_hyphen_values = true)]
    pub port: Option<NonZeroU16>,
}

impl Hosts {
    /// Whether there are two sides that are started each by itself.
    pub fn are_named(&self) -> bool {
        self.server || self.host.is_some()
    }

    /// The port of an address, or of the server where it has none.
    pub fn port_of(&self, address: Option<&Address>) -> u16 {
        let own = address.and_then(|address| address.port);
        own.or(self.port.map(NonZeroU16::get)).unwrap_or(DEFAULT_PORT)
    }

    /// What does not go together.
    pub(super) fn conflict(&self) -> Option<String> {
        let address = self.host.as_ref().or(self.listen.as_ref());
        match (address, self.port) {
            (_, Some(port)) if !self.are_named() => {
                Some(format!("--port {port} is that of a server: give HOST, or --server"))
            }
            (Some(address @ Address { port: Some(_), .. }), Some(port)) => {
                Some(format!("{address} and --port {port} both name a port: give one"))
            }
            _ if self.host.as_ref().is_some_and(|host| host.port == Some(0)) => {
                Some("the port of HOST is 0: give that of the server, which it has printed".to_owned())
            }
            _ => None,
        }
    }
}

/// The name or address of a host, and maybe a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: Option<u16>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { host, port } = self;
        match port {
            Some(port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Some(port) => write!(f, "{host}:{port}"),
            None => f.write_str(host),
        }
    }
}

/// `HOST`, `HOST:PORT`, `[IPv6]`, `[IPv6]:PORT`, or an IPv6 address without a port.
pub(super) fn address(text: &str) -> Result<Address, String> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or(""))),
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.map(|port| port.parse().ok().filter(|_| digits(port)));
    let is_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "[]/".contains(c));
    match number {
        Some(None) => Err(format!("the port of {text} is not a number up to 65535")),
        _ if !is_host => {
            Err(format!("{text} names no host: give a name or an address, such as node7 or node7:18515"))
        }
        number => Ok(Address { host: host.to_owned(), port: number.flatten() }),
    }
}

fn port(text: &str) -> Result<NonZeroU16, String> {
    text.parse().map_err(|_| format!("{text} is not a port from 1 to 65535"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_maybe_a_port() {
        for (text, host, port) in [
            ("node7", "node7", None),
            ("node7:99", "node7", Some(99)),
            ("10.0.0.1:0", "10.0.0.1", Some(0)),
            ("fe80::1", "fe80::1", None),
            ("[::1]", "::1", None),
            ("[::1]:99", "::1", Some(99)),
        ] {
            let read = address(text).unwrap();
            assert_eq!((read.host.as_str(), read.port), (host, port), "{text}");
            assert_eq!(address(&read.to_string()).unwrap(), read, "{text}");
        }
        for text in ["", ":99", "a b", "/etc", "[]:1", "[::1"] {
            assert!(address(text).unwrap_err().contains("names no host"), "{text}");
        }
        for text in ["node7:", "node7:x", "node7:65536", "node7:+1", "[::1]99", "[::1]:"] {
            assert!(address(text).unwrap_err().contains("is not a number up to 65535"), "{text}");
        }
    }
}
