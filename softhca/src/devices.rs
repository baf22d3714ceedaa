//! The devices that the environment configures.

use crate::card::LinkLayer;
pub use crate::card::MAX_DEVICES;
use crate::fabric::is_tcp;
use crate::setting::{self, SettingError};

/// Environment variable with this process's devices: a number of InfiniBand devices, 1 to 8, or a list of link layers
/// such as `ib,roce,ib`. Unset, there is one InfiniBand device. On a fabric of several hosts all devices are Ethernet.
pub const DEVICES_VARIABLE: &str = "SOFTHCA_DEVICES";

/// Returns the link layer of each device in [`DEVICES_VARIABLE`], or one InfiniBand device if it is not set.
///
/// # Errors
/// The variable is malformed.
pub fn devices_from_environment() -> Result<Vec<LinkLayer>, SettingError> {
    devices(setting::value(DEVICES_VARIABLE).as_deref()).map(on_fabric)
}

/// Adapts link layers to the fabric that the environment selects. On a fabric of several hosts all are
/// Ethernet, as cards find each other by GID there.
pub fn on_fabric(devices: Vec<LinkLayer>) -> Vec<LinkLayer> {
    if is_tcp() { vec![LinkLayer::Ethernet; devices.len()] } else { devices }
}

fn devices(value: Option<&str>) -> Result<Vec<LinkLayer>, SettingError> {
    let Some(value) = value else { return Ok(vec![LinkLayer::InfiniBand]) };
    parse(value).ok_or_else(|| {
        let allowed = format!(
            "it is neither a number from 1 to {MAX_DEVICES} nor a list of as many `ib` and `roce`, such as ib,roce"
        );
        SettingError::malformed(DEVICES_VARIABLE, value, allowed)
    })
}

/// Parses a value of [`DEVICES_VARIABLE`]; `None` if it is malformed.
pub fn parse(value: &str) -> Option<Vec<LinkLayer>> {
    let devices = match value.parse::<usize>() {
        Ok(count) if count <= MAX_DEVICES => vec![LinkLayer::InfiniBand; count],
        Ok(_) => return None,
        Err(_) => value.split(',').map(link_layer).collect::<Option<Vec<_>>>()?,
    };
    (1..=MAX_DEVICES).contains(&devices.len()).then_some(devices)
}

fn link_layer(name: &str) -> Option<LinkLayer> {
    match name.trim() {
        "ib" => Some(LinkLayer::InfiniBand),
        "roce" => Some(LinkLayer::Ethernet),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LinkLayer::{Ethernet, InfiniBand};

    #[test]
    fn numbers_and_lists_of_link_layers() {
        let devices = |value| devices(value).unwrap();
        assert_eq!(devices(None), [InfiniBand]);
        assert_eq!(devices(Some("3")), [InfiniBand; 3]);
        assert_eq!(devices(Some("ib,roce, ib")), [InfiniBand, Ethernet, InfiniBand]);
        assert_eq!(devices(Some("roce")), [Ethernet]);
        assert_eq!(devices(Some("8")).len(), 8);
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let long = ["ib"; 9].join(",");
        for bad in ["", "0", "9", "-1", "two", "1.5", "ib,", "ib,iwarp", "IB", &long, "99999999999999999999"]
        {
            let error = devices(Some(bad)).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("a number from 1 to 8"), "{error}");
        }
    }
}
