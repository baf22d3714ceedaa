//! Reports of this machine's libraries, CUDA's driver API and libibverbs; a recorded tree has them in a file.

use super::files::Tree;
use crate::devices::{self, Listing, Port};
use crate::failure::Failure;
use gdsync::cuda::{self, Consistency, CudaError, DriverError, WritesOrdering};
use gdsync::verbs::{CardWaits, OpenError, provider};
use gdsync::{Device, Error};
use gdsync_sys::VerbsApi;
use gdsync_sys::system::LoadError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const RECORDED: &str = "/libraries.json";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer<T> {
    /// Unknown: the recorded tree has no record of it.
    #[default]
    NotAsked,
    /// The library or device is not on this machine.
    Absent(String),
    /// It exists, but does not work.
    Broken(String),
    Says(T),
}

impl<T> Answer<T> {
    pub(super) fn says(&self) -> Option<&T> {
        match self {
            Answer::Says(said) => Some(said),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Libraries {
    pub(super) cuda: Answer<Cuda>,
    pub(super) verbs: Answer<Verbs>,
    pub(super) software: Answer<Vec<Port>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cuda {
    /// As `cuDriverGetVersion` returns it.
    pub(super) version: u32,
    pub(super) gpus: Vec<Gpu>,
    /// Access between GPUs, as far as the driver tells.
    #[serde(default)]
    pub(super) peers: Vec<Peer>,
}

/// Access of one GPU's streams to another's memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Peer {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) access: bool,
    /// True if atomic operations on that memory are atomic, as over NVLink.
    pub(super) atomics: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Gpu {
    pub(super) ordinal: u32,
    pub(super) name: String,
    pub(super) pci_address: String,
    pub(super) ops_64_bit: bool,
    pub(super) wait_nor: bool,
    pub(super) flush_remote_writes: bool,
    pub(super) writes_ordering: String,
    /// How a card's writes become visible: `ordered`, `flushed`, `impossible`.
    pub(super) consistency: String,
    pub(super) dma_buf: bool,
    /// True if processes share the GPU by MPS; none if the driver does not tell.
    #[serde(default)]
    pub(super) mps: Option<bool>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Verbs {
    /// True if libibverbs has `ibv_reg_dmabuf_mr`.
    pub(super) dma_buf: bool,
    pub(super) ports: Vec<Port>,
    #[serde(default)]
    pub(super) waits: BTreeMap<String, Answer<Waits>>,
    /// Failed queries.
    #[serde(default)]
    pub(super) notes: Vec<String>,
}

/// The objects that a card can wait for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Waits {
    /// Words of memory.
    pub(super) data: bool,
    pub(super) queues: bool,
    /// Further features of its firmware; none in older records.
    #[serde(default)]
    pub(super) more: Option<Features>,
}

/// Features of a card's firmware that gdsync uses on request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Features {
    pub(super) time: bool,
    /// Completion queues may ignore overruns.
    pub(super) ignore_overrun: bool,
    /// Maximum number of queue pairs that one store rings, without a doorbell record.
    pub(super) recordless: u32,
}

impl Libraries {
    pub(super) fn ask() -> Self {
        Libraries { cuda: ask_cuda(), verbs: ask_verbs(), software: ask_software() }
    }

    /// Reads a recorded tree's file; empty if there is none.
    pub(super) fn recorded(tree: &Tree) -> Result<Self, Failure> {
        match tree.text(RECORDED) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| format!("{RECORDED}: {error}").into()),
            Err(unread) if unread.is_missing() => Ok(Libraries::default()),
            Err(unread) => Err(unread.to_string().into()),
        }
    }
}

fn ask_cuda() -> Answer<Cuda> {
    let answer = || -> Result<Cuda, CudaError> {
        let count = cuda::device_count()?;
        let gpus: Result<_, _> = (0..count).map(gpu).collect();
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let peers = pairs.filter(|(from, to)| from != to).filter_map(peer).collect();
        Ok(Cuda { version: cuda::driver_version()?, gpus: gpus?, peers })
    };
    // `CUDA_ERROR_NO_DEVICE`: cuInit returns it if there is a driver but no GPU.
    const NO_DEVICE: u32 = 100;
    match answer() {
        Ok(cuda) => Answer::Says(cuda),
        Err(error @ CudaError::Driver(DriverError::NoDriver | DriverError::Call { code: NO_DEVICE, .. })) => {
            Answer::Absent(error.to_string())
        }
        Err(error) => Answer::Broken(error.to_string()),
    }
}

fn gpu(ordinal: u32) -> Result<Gpu, CudaError> {
    let description = cuda::describe(ordinal)?;
    let capabilities = description.capabilities;
    let ordering = match capabilities.writes_ordering {
        WritesOrdering::None => "none",
        WritesOrdering::Owner => "owner",
        WritesOrdering::AllDevices => "all devices",
    };
    let consistency = match capabilities.consistency() {
        Consistency::Ordered => "ordered",
        Consistency::Flushed => "flushed",
        Consistency::Impossible => "impossible",
    };
    Ok(Gpu {
        ordinal,
        name: description.name,
        pci_address: description.pci_address,
        ops_64_bit: capabilities.ops_64_bit,
        wait_nor: capabilities.wait_nor,
        flush_remote_writes: capabilities.flush_remote_writes,
        writes_ordering: ordering.to_owned(),
        consistency: consistency.to_owned(),
        dma_buf: capabilities.dma_buf,
        mps: capabilities.mps,
    })
}

fn peer((from, to): (u32, u32)) -> Option<Peer> {
    let says = cuda::peer_capabilities(from, to).ok()?;
    Some(Peer { from, to, access: says.access, atomics: says.atomics })
}

fn ask_verbs() -> Answer<Verbs> {
    match provider::system() {
        Ok(api) => {
            let listing = list("system", api);
            Answer::Says(Verbs {
                dma_buf: api.reg_dmabuf_mr.is_some(),
                ports: ports(&listing),
                waits: ports(&listing)
                    .into_iter()
                    .map(|port| (port.device.clone(), waits(api, &port.device)))
                    .collect(),
                notes: listing.notes,
            })
        }
        Err(error @ Error::Open(OpenError::Load(LoadError::Library { .. }))) => {
            Answer::Absent(error.to_string())
        }
        Err(error) => Answer::Broken(error.to_string()),
    }
}

fn waits(api: &'static VerbsApi, device: &str) -> Answer<Waits> {
    match Device::open(api, Some(device)).and_then(|device| device.card_waits()) {
        Ok(waits) => {
            let CardWaits { data, time, queues, ignore_overrun, recordless, .. } = waits;
            Answer::Says(Waits { data, queues, more: Some(Features { time, ignore_overrun, recordless }) })
        }
        Err(error) => Answer::Broken(error.to_string()),
    }
}

fn ask_software() -> Answer<Vec<Port>> {
    let listing = list("software", provider::software());
    match listing.notes.first() {
        Some(note) => Answer::Broken(note.clone()),
        None => Answer::Says(ports(&listing)),
    }
}

fn list(provider: &'static str, api: &'static VerbsApi) -> Listing {
    let mut listing = Listing::default();
    devices::list(provider, api, &mut listing);
    listing
}

fn ports(listing: &Listing) -> Vec<Port> {
    listing.devices.iter().map(|row| row.port.clone()).collect()
}
