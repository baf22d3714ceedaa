//! Access between GPUs, the route that it takes, and the NUMA node of each GPU.

use super::libraries::Peer;
use super::machine::{Gpu, Machine};
use super::topology::{Class, classify};
use super::{Check, Question};
use serde::{Serialize, Serializer};
use std::fmt;

/// The route between two GPUs. Its JSON form is its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    NvLink,
    /// Over PCI Express, with the bridges that it crosses.
    Pci(Class),
}

impl Serialize for Route {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::NvLink => f.pad("NVLINK"),
            Route::Pci(class) => class.fmt(f),
        }
    }
}

/// Two GPUs that CUDA sees.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Pair {
    pub(super) gpus: [String; 2],
    /// True if the first accesses the second's memory, and vice versa; none if the driver does not tell.
    pub(super) access: [Option<bool>; 2],
    /// None if neither the driver nor sysfs tells.
    pub(super) way: Option<Route>,
    pub(super) numa: [Option<u32>; 2],
}

pub(super) fn pairs(machine: &Machine<'_>) -> Vec<Pair> {
    let Some(cuda) = machine.libraries.cuda.says() else { return Vec::new() };
    let nodes = machine.tree.text("/sys/devices/system/node/online").ok();
    let one_node = nodes.as_deref() == Some("0");
    let seen = &machine.gpus[..cuda.gpus.len().min(machine.gpus.len())];
    let says = |from: usize, to: usize| {
        let numbers = (cuda.gpus[from].ordinal, cuda.gpus[to].ordinal);
        cuda.peers.iter().find(|peer| (peer.from, peer.to) == numbers)
    };
    let pair = |(one, other): (usize, usize)| {
        pair([&seen[one], &seen[other]], [says(one, other), says(other, one)], one_node)
    };
    (0..seen.len()).flat_map(|one| (one + 1..seen.len()).map(move |other| (one, other))).map(pair).collect()
}

fn pair(gpus: [&Gpu; 2], says: [Option<&Peer>; 2], one_node: bool) -> Pair {
    let functions = gpus.map(|gpu| gpu.function.as_ref());
    let by_nvlink = says.iter().flatten().any(|peer| peer.access && peer.atomics);
    let on_bus = || match functions {
        [Some(one), Some(other)] => classify(one, other, one_node).0.ok(),
        _ => None,
    };
    Pair {
        gpus: gpus.map(|gpu| gpu.name.clone()),
        access: says.map(|peer| peer.map(|peer| peer.access)),
        way: if by_nvlink { Some(Route::NvLink) } else { on_bus().map(Route::Pci) },
        numa: functions.map(|function| function.and_then(|function| function.numa)),
    }
}

impl Pair {
    fn check(&self) -> Check {
        let [one, other] = &self.gpus;
        let question = Question::new(
            format!("{one} and {other}"),
            "with access, a stream of one waits for and writes words and queues in the memory of the other; without, they meet in host memory",
        );
        let way = match self.way {
            Some(Route::NvLink) => "by NVLink".to_owned(),
            Some(Route::Pci(class)) => format!("over PCI Express ({class})"),
            None => "by a way that sysfs does not show".to_owned(),
        };
        let nodes = match self.numa {
            [Some(one), Some(other)] if one == other => format!(", both at NUMA node {one}"),
            [Some(one), Some(other)] => format!(", at NUMA nodes {one} and {other}"),
            _ => String::new(),
        };
        let remedy = "nothing to do where words and queues lie in host memory; `nvidia-smi topo -p2p r` says why there is none: the chipset, a virtual machine that was not given the NVSwitches, or an IOMMU that is on";
        match self.access {
            [Some(true), Some(true)] => question.pass(format!("access both ways, {way}{nodes}")),
            [Some(false), Some(false)] => question.warn(format!("no access; {way}{nodes}"), remedy),
            [Some(there), Some(_)] => {
                let (from, to) = if there { (one, other) } else { (other, one) };
                question.warn(format!("{from} reaches {to}, not the other way round; {way}{nodes}"), remedy)
            }
            _ => question.skip("the driver does not say whether they have access to each other"),
        }
    }

    pub(super) fn mark(&self) -> String {
        match (self.access, self.way) {
            ([Some(true), Some(true)], Some(way)) => way.to_string(),
            ([Some(true), Some(true)], None) | ([None, _] | [_, None], _) => "?".to_owned(),
            _ => "none".to_owned(),
        }
    }
}

pub(super) fn checks(pairs: &[Pair]) -> Vec<Check> {
    pairs.iter().map(Pair::check).collect()
}

/// Checks the NUMA node of each GPU that CUDA sees.
pub(super) fn nodes(machine: &Machine<'_>) -> Vec<Check> {
    let seen = machine.libraries.cuda.says().map_or(0, |cuda| cuda.gpus.len());
    machine.gpus.iter().take(seen).map(|gpu| node(machine, gpu)).collect()
}

fn node(machine: &Machine<'_>, gpu: &Gpu) -> Check {
    let question = Question::new(
        format!("{} NUMA node", gpu.name),
        "host memory and threads of another node are farther: the words that a GPU polls cross the processors' link",
    );
    let Some(function) = &gpu.function else {
        return question.skip(format!("{} is not in /sys/bus/pci/devices", gpu.address));
    };
    match function.numa {
        None => question.skip("the firmware tells none, or the machine has one"),
        Some(node) => {
            let cpus = machine.tree.text(&format!("/sys/devices/system/node/node{node}/cpulist"));
            let cpus = cpus.map_or(String::new(), |list| {
                format!(": CPUs {list} (`numactl --cpunodebind={node} --membind={node}`)")
            });
            question.pass(format!("{node}{cpus}"))
        }
    }
}
