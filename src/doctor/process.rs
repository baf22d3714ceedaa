//! Conditions of this process: GPU channels, and the restrictions of a container.

use super::machine::Machine;
use super::{Check, Question};
use super::{driver, parse, rdma};

/// Channels that the driver gives a process by default, and at most.
const DEFAULT_CHANNELS: u32 = 8;
const MOST_CHANNELS: u32 = 32;

pub(super) fn channels(machine: &Machine<'_>) -> Check {
    const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    let question = Question::new(
        "channels of a GPU",
        "streams that share a channel go on one after the other: behind one that waits for a card, another stands still, and two that wait for each other hang",
    );
    if machine.gpus.is_empty() {
        return question.skip("no GPU");
    }
    let environment = match machine.tree.bytes("/proc/self/environ") {
        Ok(environment) => environment,
        Err(unread) => return question.skip(unread),
    };
    let Some(value) = parse::variable(&environment, VARIABLE) else {
        return question.pass(format!(
            "{VARIABLE} is not set: {DEFAULT_CHANNELS}, and {MOST_CHANNELS} for gdsync's own commands; a program with more streams that wait sets it itself"
        ));
    };
    let seen = match value.trim().parse::<u32>() {
        Ok(MOST_CHANNELS) => return question.pass(format!("{MOST_CHANNELS}, the most")),
        Ok(1) => format!("{VARIABLE}=1: a stream that waits blocks every other one"),
        Ok(count @ 2..MOST_CHANNELS) => {
            format!("{VARIABLE}={count}: with more than {count} streams that wait, one blocks another")
        }
        _ => format!("{VARIABLE}={value} is no number from 1 to {MOST_CHANNELS}"),
    };
    let remedy = format!(
        "set {VARIABLE}={MOST_CHANNELS} before the program's first call of CUDA; gdsync's own commands do so where it is not set"
    );
    question.warn(seen, remedy).fixed_by([format!("export {VARIABLE}={MOST_CHANNELS}")])
}

/// Marker files of container runtimes, and words in the control groups of process 1.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];
const GROUPS: [&str; 5] = ["docker", "kubepods", "containerd", "libpod", "lxc"];

/// Describes the capabilities of a container's process, as far as known.
fn privileges(status: &str) -> String {
    let capabilities = match parse::capabilities(status) {
        None => return String::new(),
        Some(0) => "no capability".to_owned(),
        Some(set) => match set.count_ones() {
            1 => "1 capability".to_owned(),
            count => format!("{count} capabilities"),
        },
    };
    let never_more = parse::field(status, "NoNewPrivs", ':') == Some("1");
    format!(" with {capabilities}{}", if never_more { " and no new privileges" } else { "" })
}

pub(super) fn container(machine: &Machine<'_>) -> Check {
    let question = Question::new(
        "container",
        "a container has no devices, capabilities and limits but those that it is started with",
    );
    let marked = MARKS.iter().any(|path| machine.tree.exists(path).unwrap_or(false));
    let groups = machine.tree.text("/proc/1/cgroup");
    let named = groups.as_ref().is_ok_and(|text| GROUPS.iter().any(|group| text.contains(group)));
    if !marked && !named {
        return match groups {
            Ok(_) => question.pass("none that shows itself"),
            Err(unread) => question.skip(unread),
        };
    }
    let status = machine.tree.text("/proc/self/status").unwrap_or_default();
    let privileges = privileges(&status);
    let lacks = |number| parse::has_capability(&status, number) == Some(false);
    let (has_cards, has_gpus) = (!machine.cards.is_empty(), !machine.gpus.is_empty());
    let mut missing = Vec::new();
    if has_cards && !machine.tree.exists("/dev/infiniband").unwrap_or(true) {
        missing.push(("/dev/infiniband", "--device=/dev/infiniband"));
    }
    if has_cards && lacks(rdma::IPC_LOCK) && rdma::is_locked_memory_limited(machine) == Some(true) {
        missing.push(("CAP_IPC_LOCK", "--cap-add=IPC_LOCK --ulimit memlock=-1"));
    }
    if has_cards && has_gpus && lacks(driver::SYS_ADMIN) && driver::peer_mapping_override(machine) != Some(1)
    {
        missing.push((
            "CAP_SYS_ADMIN, and PeerMappingOverride=1 in its place",
            "--cap-add=SYS_ADMIN (or set PeerMappingOverride=1 on the host)",
        ));
    }
    if missing.is_empty() {
        let seen = match (has_cards, has_gpus) {
            (false, false) => "without GPU and card",
            _ => "with the devices and capabilities that are needed",
        };
        return question.pass(format!("one{privileges}, {seen}"));
    }
    let (names, options): (Vec<&str>, Vec<&str>) = missing.into_iter().unzip();
    question.warn(
        format!("one{privileges}, without {}", names.join(" and without ")),
        format!(
            "start it with {}; in Kubernetes, securityContext.capabilities.add and a device plugin",
            options.join(" ")
        ),
    )
}
