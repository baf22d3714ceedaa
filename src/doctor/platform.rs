//! IOMMU and ACS, which affect traffic between devices.

use super::machine::Machine;
use super::parse::{self, Acs};
use super::topology::Path;
use super::{Check, Question};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

const GROUPS: &str = "/sys/kernel/iommu_groups";

pub(super) fn checks(machine: &Machine<'_>, paths: &[Path]) -> Vec<Check> {
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
        match machine.tree.bytes(&Machine::pci_file(bridge, "config")).map(|config| parse::acs(&config)) {
            Ok(Acs::None) => good += 1,
            Ok(Acs::Control(control)) => match parse::redirections(control)[..] {
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
