//! The GPUs and cards of a machine, and their places on its PCI buses.

use super::files::{Tree, Unread};
use super::libraries::Libraries;

const PCI: &str = "/sys/bus/pci/devices";
const INFINIBAND: &str = "/sys/class/infiniband";
const NVIDIA: &str = "0x10de";
const MELLANOX: &str = "0x15b3";

#[derive(Clone, Debug)]
pub(super) struct Function {
    /// For example `0000:3b:00.0`.
    pub(super) address: String,
    /// From the host bridge (`pci0000:00`) down to the function itself; empty if the link is unreadable.
    pub(super) path: Vec<String>,
    /// Its NUMA node; none if the firmware reports none.
    pub(super) numa: Option<u32>,
}

/// A GPU, found on a PCI bus or by CUDA.
#[derive(Clone, Debug)]
pub(super) struct Gpu {
    /// `GPU 0`, by CUDA's number; the PCI address if CUDA does not see it.
    pub(super) name: String,
    pub(super) address: String,
    /// None if sysfs does not have it.
    pub(super) function: Option<Function>,
}

#[derive(Clone, Debug)]
pub(super) struct Card {
    /// For example `mlx5_0`.
    pub(super) name: String,
    /// For example `mlx5_core`.
    pub(super) driver: Option<String>,
    pub(super) function: Option<Function>,
}

pub(super) struct Machine<'a> {
    pub(super) tree: &'a Tree,
    pub(super) libraries: &'a Libraries,
    pub(super) gpus: Vec<Gpu>,
    /// NVIDIA GPUs on the buses, visible to CUDA or not.
    pub(super) gpus_on_bus: Vec<Function>,
    pub(super) cards: Vec<Card>,
    /// Network functions of NVIDIA (Mellanox) on the buses that have no RDMA device.
    pub(super) idle: Vec<Function>,
    /// Why the PCI buses cannot be read.
    pub(super) pci_unread: Option<Unread>,
    /// Why RDMA devices cannot be read, if there are any.
    pub(super) cards_unread: Option<Unread>,
    /// True if the processor reports a hypervisor; none if that cannot be read.
    pub(super) virtual_machine: Option<bool>,
}

impl<'a> Machine<'a> {
    pub(super) fn survey(tree: &'a Tree, libraries: &'a Libraries) -> Self {
        let (addresses, pci_unread) = match tree.names(PCI) {
            Ok(names) => (names, None),
            Err(unread) => (Vec::new(), Some(unread)),
        };
        let is = |address: &str, file: &str, wanted: &[&str]| {
            let text = tree.text(&format!("{PCI}/{address}/{file}")).unwrap_or_default();
            wanted.iter().any(|wanted| text.starts_with(wanted))
        };
        let of = |vendor: &'static str, classes: &'static [&'static str]| {
            let wanted =
                move |address: &&String| is(address, "vendor", &[vendor]) && is(address, "class", classes);
            addresses.iter().filter(wanted).map(|address| function(tree, address)).collect::<Vec<_>>()
        };
        // Display controllers: VGA compatible and 3D ones.
        let gpus_on_bus = of(NVIDIA, &["0x0300", "0x0302"]);
        let (cards, cards_unread) = cards(tree);
        // Ethernet and InfiniBand controllers.
        let mut idle = of(MELLANOX, &["0x0200", "0x0207"]);
        idle.retain(|function| {
            let used =
                |card: &Card| card.function.as_ref().is_some_and(|used| used.address == function.address);
            !cards.iter().any(used)
        });
        let gpus = gpus(tree, libraries, &gpus_on_bus);
        let virtual_machine = virtual_machine(tree);
        Machine { tree, libraries, gpus, gpus_on_bus, cards, idle, pci_unread, cards_unread, virtual_machine }
    }

    pub(super) fn pci_file(address: &str, file: &str) -> String {
        format!("{PCI}/{address}/{file}")
    }
}

fn function(tree: &Tree, address: &str) -> Function {
    let target = tree.link(&format!("{PCI}/{address}")).unwrap_or_default();
    let mut path: Vec<String> =
        target.split('/').skip_while(|part| !part.starts_with("pci")).map(str::to_owned).collect();
    // A virtual bridge (VMD, or a hypervisor's) may be in between: parts before the last host bridge are no PCI path.
    if let Some(last) = path.iter().rposition(|part| part.starts_with("pci")) {
        path.drain(..last);
    }
    let numa = tree.text(&format!("{PCI}/{address}/numa_node")).ok().and_then(|node| node.parse().ok());
    Function { address: address.to_owned(), path, numa }
}

fn cards(tree: &Tree) -> (Vec<Card>, Option<Unread>) {
    let names = match tree.names(INFINIBAND) {
        Ok(names) => names,
        Err(unread) if unread.is_missing() => return (Vec::new(), None),
        Err(unread) => return (Vec::new(), Some(unread)),
    };
    let card = |name: String| {
        let device = format!("{INFINIBAND}/{name}/device");
        let address = tree.link_name(&device).ok();
        let on_bus = |address: &String| tree.exists(&format!("{PCI}/{address}")).unwrap_or(false);
        let function = address.filter(on_bus).map(|address| function(tree, &address));
        Card { driver: tree.link_name(&format!("{device}/driver")).ok(), function, name }
    };
    (names.into_iter().map(card).collect(), None)
}

/// Returns CUDA's GPUs in its order, then those found only on the buses.
fn gpus(tree: &Tree, libraries: &Libraries, on_bus: &[Function]) -> Vec<Gpu> {
    let known = libraries.cuda.says().map(|cuda| cuda.gpus.as_slice()).unwrap_or_default();
    let mut gpus: Vec<Gpu> = known
        .iter()
        .map(|gpu| {
            let there = tree.exists(&format!("{PCI}/{}", gpu.pci_address)).unwrap_or(false);
            Gpu {
                name: format!("GPU {}", gpu.ordinal),
                address: gpu.pci_address.clone(),
                function: there.then(|| function(tree, &gpu.pci_address)),
            }
        })
        .collect();
    for function in on_bus {
        if !gpus.iter().any(|gpu| gpu.address == function.address) {
            let address = function.address.clone();
            gpus.push(Gpu { name: address.clone(), address, function: Some(function.clone()) });
        }
    }
    gpus
}

/// On x86, `flags` contains `hypervisor` in a virtual machine.
fn virtual_machine(tree: &Tree) -> Option<bool> {
    let info = tree.text("/proc/cpuinfo").ok()?;
    let flags = super::files::field(&info, "flags", ':')?;
    Some(flags.split_whitespace().any(|flag| flag == "hypervisor"))
}
