//! `gdsync devices`: cards of every provider, and what is missing.

use crate::cli::DevicesOptions;
use crate::{Failure, text};
use gdsync::{Device, provider};
use gdsync_sys::VerbsApi;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Debug, Serialize)]
struct Row {
    device: String,
    provider: &'static str,
    port: u8,
    state: String,
    link: &'static str,
    lid: u16,
    gid: String,
    firmware: String,
}

#[derive(Debug, Default, Serialize)]
struct Listing {
    devices: Vec<Row>,
    /// What could not be listed, and what to do about it.
    notes: Vec<String>,
}

pub(crate) fn run(options: &DevicesOptions) -> Result<(), Failure> {
    let mut listing = Listing::default();
    list("software", provider::software(), &mut listing);
    match provider::system() {
        Ok(api) => {
            let before = listing.devices.len();
            list("system", api, &mut listing);
            if listing.devices.len() == before && listing.notes.is_empty() {
                listing
                    .notes
                    .push("system: libibverbs and libmlx5 are here, but they find no device".to_owned());
            }
        }
        Err(error) => listing.notes.push(format!("system: {error}")),
    }
    let mut out = io::stdout().lock();
    if options.json {
        writeln!(out, "{}", serde_json::to_string(&listing)?)?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = listing
        .devices
        .iter()
        .map(|row| {
            vec![
                row.device.clone(),
                row.provider.to_owned(),
                row.port.to_string(),
                row.state.clone(),
                row.link.to_owned(),
                format!("{:#06x}", row.lid),
                row.gid.clone(),
                row.firmware.clone(),
            ]
        })
        .collect();
    let header = ["DEVICE", "PROVIDER", "PORT", "STATE", "LINK", "LID", "GID", "FIRMWARE"];
    write!(out, "{}", text::table(&header, &rows))?;
    for note in &listing.notes {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

/// Adds a provider's devices; one that cannot be asked becomes a note.
fn list(provider: &'static str, api: &'static VerbsApi, listing: &mut Listing) {
    match Device::names(api) {
        Ok(names) => {
            for name in names {
                if let Err(error) = describe(provider, api, &name, listing) {
                    listing.notes.push(format!("{provider}: {name}: {error}"));
                }
            }
        }
        Err(error) => listing.notes.push(format!("{provider}: {error}")),
    }
}

fn describe(
    provider: &'static str,
    api: &'static VerbsApi,
    name: &str,
    listing: &mut Listing,
) -> Result<(), gdsync::Error> {
    let device = Device::open(api, Some(name))?;
    let attributes = device.attributes()?;
    for port in 1..=attributes.ports {
        let port = device.port(port)?;
        listing.devices.push(Row {
            device: name.to_owned(),
            provider,
            port: port.port,
            state: port.state.to_string(),
            link: if port.ethernet { "Ethernet" } else { "InfiniBand" },
            lid: port.lid,
            gid: port.gid.to_string(),
            firmware: attributes.firmware.clone(),
        });
    }
    Ok(())
}
