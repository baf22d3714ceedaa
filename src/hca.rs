//! `--hca NAME[:PORT]`: a card of either provider.

use crate::failure::Failure;
use gdsync::Device;
use gdsync::verbs::{DEFAULT_PORT, provider};
use gdsync_sys::VerbsApi;
use serde::{Deserialize, Serialize};

const SOFTWARE: &str = "softhca";

/// A card and one of its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hca {
    name: String,
    pub port: u8,
}

impl std::fmt::Display for Hca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// Parses a card's name, optionally followed by a colon and a port number.
pub fn parse(text: &str) -> Result<Hca, String> {
    let (name, port) = match text.split_once(':') {
        None => (text, Some(DEFAULT_PORT)),
        Some((name, port)) => (name, port.parse().ok().filter(|port| *port != 0)),
    };
    match port {
        Some(port) if !name.is_empty() => Ok(Hca { name: name.to_owned(), port }),
        _ => Err(format!("{text} is no NAME or NAME:PORT, such as mlx5_0 or mlx5_0:1")),
    }
}

/// True if the card is a software card of this process.
pub fn is_software(hca: Option<&Hca>) -> bool {
    hca.is_none_or(|hca| hca.name.starts_with(SOFTWARE))
}

/// Opens the card; without a name, the first software card.
pub fn open(hca: Option<&Hca>) -> Result<(Device, u8), Failure> {
    let Some(Hca { name, port }) = hca else { return Ok((Device::software()?, DEFAULT_PORT)) };
    let api = if is_software(hca) { provider::software() } else { provider::system()? };
    Ok((Device::open(api, Some(name))?, *port))
}

/// Returns the system's libraries and the named card; without a name, the first one is meant.
pub fn system(hca: Option<&Hca>) -> Result<(&'static VerbsApi, Option<&str>, u8), Failure> {
    if let Some(hca) = hca.filter(|hca| is_software(Some(hca))) {
        return Err(
            format!("{} is a software card: name one of the system's, such as mlx5_0", hca.name).into()
        );
    }
    let port = hca.map_or(DEFAULT_PORT, |hca| hca.port);
    Ok((provider::system()?, hca.map(|hca| hca.name.as_str()), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_follow_the_name() {
        let hca = |name: &str, port| Ok(Hca { name: name.to_owned(), port });
        assert_eq!(parse("mlx5_0"), hca("mlx5_0", 1));
        assert_eq!(parse("mlx5_bond_0:2"), hca("mlx5_bond_0", 2));
        assert_eq!(parse(&parse("softhca0:3").unwrap().to_string()), hca("softhca0", 3));
        for bad in ["", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:x", "mlx5_0:1:1"] {
            assert!(parse(bad).unwrap_err().contains("NAME:PORT"), "{bad}");
        }
    }
}
