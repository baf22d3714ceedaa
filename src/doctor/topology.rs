//! PCI Express: the path between each GPU and each card, and IOMMU and ACS, which affect traffic on it.

use super::files::{self, Acs};
use super::machine::{Card, Function, Gpu, Machine};
use super::{Check, Question};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::{fmt, io};

/// The links that a path crosses, nearest first, in the terms of `nvidia-smi topo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Class {
    /// At most one PCI Express switch.
    Pix,
    /// Several switches, but no host bridge.
    Pxb,
    /// A host bridge: through the processor.
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    /// The link between NUMA nodes.
    Sys,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_uppercase())
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Path {
    pub(super) gpu: String,
    pub(super) gpu_address: String,
    pub(super) card: String,
    pub(super) card_address: Option<String>,
    pub(super) class: Option<Class>,
    pub(super) unknown: Option<String>,
    /// Addresses of the path's bridges below the common part, if it crosses no host bridge.
    pub(super) bridges: Vec<String>,
}

pub(super) fn paths(machine: &Machine<'_>) -> Vec<Path> {
    let nodes = machine.tree.text("/sys/devices/system/node/online").ok();
    let one_node = nodes.as_deref() == Some("0");
    let pairs = machine.gpus.iter().flat_map(|gpu| machine.cards.iter().map(move |card| (gpu, card)));
    pairs.map(|(gpu, card)| path(gpu, card, one_node)).collect()
}

fn path(gpu: &Gpu, card: &Card, one_node: bool) -> Path {
    let (class, bridges) = match (&gpu.function, &card.function) {
        (Some(gpu), Some(card)) => classify(gpu, card, one_node),
        (None, _) => (Err(format!("{} is not in /sys/bus/pci/devices", gpu.address)), Vec::new()),
        (_, None) => (Err(format!("{} has no PCI function in /sys", card.name)), Vec::new()),
    };
    let (class, unknown) = match class {
        Ok(class) => (Some(class), None),
        Err(reason) => (None, Some(reason)),
    };
    Path {
        gpu: gpu.name.clone(),
        gpu_address: gpu.address.clone(),
        card: card.name.clone(),
        card_address: card.function.as_ref().map(|function| function.address.clone()),
        class,
        unknown,
        bridges,
    }
}

/// Returns a path's class, or why it is unknown, and the bridges below the common part.
pub(super) fn classify(
    one: &Function,
    other: &Function,
    one_node: bool,
) -> (Result<Class, String>, Vec<String>) {
    let (Some((last, above)), Some((other_last, other_above))) =
        (one.path.split_last(), other.path.split_last())
    else {
        let place = if one.path.is_empty() { &one.address } else { &other.address };
        return (Err(format!("the place of {place} in /sys cannot be read")), Vec::new());
    };
    if above.first() != other_above.first() || above.is_empty() {
        let class =
            match (one.numa, other.numa) {
                (Some(one), Some(other)) if one == other => Ok(Class::Node),
                (Some(_), Some(_)) => Ok(Class::Sys),
                _ if one_node => Ok(Class::Node),
                _ => Err("they have host bridges of their own, whose NUMA nodes the firmware does not tell"
                    .to_owned()),
            };
        return (class, Vec::new());
    }
    let common = above.iter().zip(other_above).take_while(|(one, other)| one == other).count();
    // Functions of one device share all bridges and cross nothing.
    let same_device = || last.split('.').next() == other_last.split('.').next();
    if common == 1 && !(above.len() == 1 && other_above.len() == 1 && same_device()) {
        return (Ok(Class::Phb), Vec::new());
    }
    let (below, other_below) = (&above[common..], &other_above[common..]);
    let bridges = below.iter().chain(other_below).cloned().collect();
    let class = if below.len() <= 1 && other_below.len() <= 1 { Class::Pix } else { Class::Pxb };
    (Ok(class), bridges)
}

pub(super) fn checks(machine: &Machine<'_>, paths: &[Path]) -> Vec<Check> {
    let question = |gpu: &str| {
        Question::new(
            format!("{gpu} nearest card"),
            "a switch carries messages between GPU and card at full speed; processors, and links between them, often at a part of it",
        )
    };
    if let Some(unread) = &machine.pci_unread {
        return vec![question("GPU").skip(unread)];
    }
    if machine.gpus.is_empty() || machine.cards.is_empty() {
        let lacks = match (machine.gpus.is_empty(), machine.cards.is_empty()) {
            (true, true) => "neither GPU nor card",
            (true, false) => "no GPU",
            _ => "no card",
        };
        return vec![question("GPU").skip(lacks)];
    }
    let view = if machine.virtual_machine == Some(true) { ", as this virtual machine shows it" } else { "" };
    let nearest = |gpu: &Gpu| {
        let of_gpu = || paths.iter().filter(|path| path.gpu == gpu.name);
        let question = question(&gpu.name);
        let Some(class) = of_gpu().filter_map(|path| path.class).min() else {
            let reasons: Vec<&str> = of_gpu().filter_map(|path| path.unknown.as_deref()).collect();
            return question.skip(reasons.first().copied().unwrap_or("unknown"));
        };
        let cards: Vec<&str> =
            of_gpu().filter(|path| path.class == Some(class)).map(|path| path.card.as_str()).collect();
        let first = cards.first().copied().unwrap_or_default();
        let seen = format!("{} ({class}{view})", cards.join(", "));
        match class {
            Class::Pix | Class::Pxb => question.pass(seen),
            Class::Phb => question.warn(
                seen,
                format!("use --hca {first}; for full speed put card and GPU under one PCI Express switch"),
            ),
            Class::Node | Class::Sys => question.warn(
                seen,
                format!("use --hca {first} until there is a card in a slot of the GPU's own root port or switch; `nvidia-smi topo -m` shows the slots"),
            ),
        }
    };
    machine.gpus.iter().map(nearest).collect()
}

const GROUPS: &str = "/sys/kernel/iommu_groups";

pub(super) fn platform_checks(machine: &Machine<'_>, paths: &[Path]) -> Vec<Check> {
    vec![iommu(machine), acs(machine, paths)]
}

fn iommu(machine: &Machine<'_>) -> Check {
    let question = Question::new(
        "IOMMU",
        "one that translates sends traffic between GPU and card through the processor, or blocks it",
    );
    let units = match machine.tree.names("/sys/class/iommu") {
        Ok(units) => units,
        // A kernel without IOMMU support lacks this class, but has others.
        Err(unread) if unread.is_missing() && machine.tree.names("/sys/class").is_ok() => Vec::new(),
        Err(unread) => return question.skip(unread),
    };
    let line = machine.tree.text("/proc/cmdline").unwrap_or_default();
    let options: Vec<&str> = line.split_whitespace().filter(|word| word.contains("iommu")).collect();
    let asked = if options.is_empty() { String::new() } else { format!(" (kernel: {})", options.join(" ")) };
    if units.is_empty() {
        let hidden = match machine.virtual_machine {
            Some(true) => "; the hypervisor's, if there is one, cannot be seen from here",
            _ => "",
        };
        return question.pass(format!("none in use{asked}{hidden}"));
    }
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let gpus = machine.gpus.iter().filter_map(|gpu| gpu.function.as_ref());
    let cards = machine.cards.iter().filter_map(|card| card.function.as_ref());
    for function in gpus.chain(cards) {
        let group = machine.tree.link_name(&Machine::pci_file(&function.address, "iommu_group"));
        let kind = match group {
            Ok(group) => machine
                .tree
                .text(&format!("{GROUPS}/{group}/type"))
                .unwrap_or_else(|unread| format!("unknown, as {unread}")),
            Err(unread) if unread.is_missing() => "no group".to_owned(),
            Err(unread) => format!("unknown, as {unread}"),
        };
        let addresses = types.entry(kind).or_default();
        if !addresses.contains(&function.address) {
            addresses.push(function.address.clone());
        }
    }
    let mode = |(kind, addresses): (&String, &Vec<String>)| format!("{kind} for {}", addresses.join(", "));
    let modes = types.iter().map(mode).collect::<Vec<_>>().join("; ");
    let seen = format!("{}{asked}: {modes}", units.join(", "));
    if types.is_empty() {
        return question
            .skip(format!("{}{asked}; no GPU or card whose mode it could have", units.join(", ")));
    }
    if types.keys().any(|kind| kind.starts_with("DMA") || kind == "blocked") {
        let remedy = "add `iommu=pt` to GRUB_CMDLINE_LINUX in /etc/default/grub, `update-grub`, reboot; or switch it off in the firmware (VT-d, AMD-Vi)";
        return question.warn(seen, remedy).fixed_by([
            "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub",
            "update-grub",
            "reboot",
        ]);
    }
    if types.keys().all(|kind| kind == "identity" || kind == "no group") {
        return question.pass(seen);
    }
    question.skip(seen)
}

fn acs(machine: &Machine<'_>, paths: &[Path]) -> Check {
    let question = Question::new(
        "ACS",
        "a bridge whose ACS redirects sends traffic between GPU and card up to the processor, though a switch could carry it",
    );
    if paths.is_empty() {
        return question.skip("no pair of GPU and card whose bridges could be looked at");
    }
    let bridges: BTreeSet<&String> = paths.iter().flat_map(|path| &path.bridges).collect();
    if bridges.is_empty() {
        return match paths.iter().find_map(|path| path.unknown.as_ref()) {
            Some(reason) => question.skip(reason),
            None => question
                .pass("no bridge between GPUs and cards: all of that goes through the processor anyway"),
        };
    }
    let (mut good, mut redirecting, mut unknown) = (0u64, Vec::new(), Vec::new());
    for bridge in bridges {
        match machine.tree.bytes(&Machine::pci_file(bridge, "config")).map(|config| files::acs(&config)) {
            Ok(Acs::None) => good += 1,
            Ok(Acs::Control(control)) => match files::redirections(control)[..] {
                [] => good += 1,
                ref names => redirecting.push((bridge, names.join(", "))),
            },
            Ok(Acs::Unreadable(bytes)) => {
                unknown.push(format!("{bridge} (only {bytes} bytes of its configuration)"))
            }
            Err(unread) if unread.kind == io::ErrorKind::PermissionDenied => {
                unknown.push(format!("{bridge} (permission denied)"));
            }
            Err(unread) => unknown.push(format!("{bridge} ({unread})")),
        }
    }
    let unread = unknown.join(", ");
    if !redirecting.is_empty() {
        let names: Vec<String> =
            redirecting.iter().map(|(bridge, bits)| format!("{bridge} ({bits})")).collect();
        let commands: Vec<String> =
            redirecting.iter().map(|(bridge, _)| format!("setpci -s {bridge} ECAP_ACS+0x6.w=0000")).collect();
        let also = if unknown.is_empty() { String::new() } else { format!("; unreadable: {unread}") };
        let remedy =
            format!("as root, at every boot: {}; or switch ACS off in the firmware", commands.join(" && "));
        return question.warn(format!("redirected by {}{also}", names.join(", ")), remedy).fixed_by(commands);
    }
    if !unknown.is_empty() {
        let remedy = "run `gdsync doctor` as root: others see 64 bytes of a bridge's configuration only";
        return question.unknown(format!("unknown of {unread}"), remedy);
    }
    question.pass(format!(
        "{} between GPUs and cards, none of which redirects",
        crate::text::count(good, "bridge")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn function(path: &[&str], numa: Option<u32>) -> Function {
        let path: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        Function { address: path.last().cloned().unwrap_or_default(), path, numa }
    }

    fn class(one: &[&str], other: &[&str]) -> Class {
        classify(&function(one, Some(0)), &function(other, Some(0)), false).0.unwrap()
    }

    #[test]
    fn paths_are_named_by_what_they_cross() {
        let (root, up) = ("0000:00:01.0", "0000:01:00.0");
        let gpu = ["pci0000:00", root, up, "0000:02:00.0", "0000:03:00.0"];
        let near = ["pci0000:00", root, up, "0000:02:01.0", "0000:04:00.0"];
        let behind = ["pci0000:00", root, up, "0000:02:02.0", "0000:05:00.0", "0000:06:00.0", "0000:07:00.0"];
        assert_eq!(class(&gpu, &near), Class::Pix);
        assert_eq!(class(&gpu, &behind), Class::Pxb);
        assert_eq!(class(&gpu, &["pci0000:00", "0000:00:02.0", "0000:08:00.0"]), Class::Phb);
        assert_eq!(class(&["pci0000:00", "0000:00:05.0"], &["pci0000:00", "0000:00:06.0"]), Class::Phb);
        assert_eq!(class(&["pci0000:00", "0000:00:05.0"], &["pci0000:00", "0000:00:05.1"]), Class::Pix);
        assert_eq!(class(&gpu, &["pci0000:80", "0000:80:01.0", "0000:81:00.0"]), Class::Node);
        let (_, bridges) = classify(&function(&gpu, None), &function(&behind, None), false);
        assert_eq!(bridges, ["0000:02:00.0", "0000:02:02.0", "0000:05:00.0", "0000:06:00.0"]);
    }

    #[test]
    fn nodes_that_are_not_told_are_not_guessed() {
        let (one, other) = (["pci0000:00", "0000:00:05.0"], ["pci0001:00", "0001:00:05.0"]);
        let classify = |numa: [Option<u32>; 2], one_node| {
            classify(&function(&one, numa[0]), &function(&other, numa[1]), one_node).0
        };
        assert_eq!(classify([Some(0), Some(1)], false), Ok(Class::Sys));
        assert_eq!(classify([None, None], true), Ok(Class::Node));
        assert!(classify([None, Some(0)], false).unwrap_err().contains("NUMA"));
        let nowhere = Function { address: "0000:09:00.0".to_owned(), path: Vec::new(), numa: None };
        let (unknown, _) = super::classify(&nowhere, &function(&one, None), true);
        assert!(unknown.unwrap_err().contains("0000:09:00.0"));
    }

    proptest! {
        /// Both ends see the same path; bridges are named only if no host bridge is crossed.
        #[test]
        fn a_path_has_no_direction(
            one in prop::collection::vec(0u32..3, 0..5),
            other in prop::collection::vec(0u32..3, 0..5),
            numa in (prop::option::of(0u32..2), prop::option::of(0u32..2)),
        ) {
            let path = |steps: &[u32]| -> Vec<String> { steps.iter().map(|step| format!("0000:00:0{step}.0")).collect() };
            let function = |steps: &[u32], numa| Function { address: "0000:00:00.0".to_owned(), path: path(steps), numa };
            let (one, other) = (function(&one, numa.0), function(&other, numa.1));
            let (there, bridges) = classify(&one, &other, false);
            let (back, others) = classify(&other, &one, false);
            prop_assert_eq!(there.clone().ok(), back.ok());
            prop_assert_eq!(bridges.len(), others.len());
            if !matches!(there, Ok(Class::Pix | Class::Pxb)) {
                prop_assert!(bridges.is_empty());
            }
        }
    }
}
