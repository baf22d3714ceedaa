//! `gdsync devices`: the cards of every provider, and missing libraries.

use crate::cli::DevicesOptions;
use crate::failure::Failure;
use crate::{table, text};
use gdsync::Device;
use gdsync::verbs::{GidEntry, provider};
use gdsync_sys::VerbsApi;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) state: String,
    pub(crate) link: String,
    pub(crate) firmware: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) port: Port,
    provider: &'static str,
    lid: u16,
    gids: Vec<Identifier>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Identifier {
    index: u32,
    gid: String,
    kind: String,
    /// True if connections use this GID by default.
    chosen: bool,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Listing {
    #[serde(rename = "rows")]
    pub(crate) devices: Vec<Row>,
    /// Failed listings, with the remedy.
    pub(crate) notes: Vec<String>,
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
    text::print(options.json, &listing, || listing.tables())
}

impl Listing {
    fn tables(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .devices
            .iter()
            .map(|row| {
                let Port { device, port, state, link, firmware } = &row.port;
                let (port, lid) = (port.to_string(), format!("{:#06x}", row.lid));
                [device.as_str(), row.provider, &port, state, link, &lid, firmware]
                    .map(str::to_owned)
                    .to_vec()
            })
            .collect();
        let header = ["DEVICE", "PROVIDER", "PORT", "STATE", "LINK", "LID", "FIRMWARE"];
        let gids = table::of(&["DEVICE", "PORT", "INDEX", "KIND", "GID", ""], &gid_rows(self), &[]);
        let notes = self.notes.iter().map(|note| format!("{note}\n")).collect::<String>();
        format!("{}\n{gids}{notes}", table::of(&header, &rows, &["FIRMWARE", "LID"]))
    }
}

fn gid_rows(listing: &Listing) -> Vec<Vec<String>> {
    let rows = listing.devices.iter().flat_map(|row| row.gids.iter().map(move |gid| (row, gid)));
    rows.map(|(row, gid)| {
        vec![
            row.port.device.clone(),
            row.port.port.to_string(),
            gid.index.to_string(),
            gid.kind.clone(),
            gid.gid.clone(),
            if gid.chosen { "default".to_owned() } else { String::new() },
        ]
    })
    .collect()
}

/// Adds a provider's devices. A provider that fails becomes a note.
pub(crate) fn list(provider: &'static str, api: &'static VerbsApi, listing: &mut Listing) {
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
        let gids = device.gids(port.port)?;
        let chosen = device.choose_gid(port.port, None).ok();
        let identifier = |entry: &GidEntry| Identifier {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: entry.kind.to_string(),
            chosen: Some(entry) == chosen.as_ref(),
        };
        listing.devices.push(Row {
            port: Port {
                device: name.to_owned(),
                port: port.port,
                state: port.state.to_string(),
                link: port.link.to_string(),
                firmware: attributes.firmware.clone(),
            },
            provider,
            lid: port.lid,
            gids: gids.iter().map(identifier).collect(),
        });
    }
    Ok(())
}
