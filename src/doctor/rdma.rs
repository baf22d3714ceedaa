//! rdma-core, the cards, what they can wait for, and the limit of locked memory.

use super::libraries::{Answer, Features, Verbs};
use super::machine::{Card, Machine};
use super::{Check, Question};
use super::{files, yes_or_no};
use crate::devices::Port;

const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "libmlx5.so.1"];
/// Installs them with either package manager.
const INSTALL: &str = "apt-get install -y ibverbs-providers || dnf install -y libibverbs";
/// `CAP_IPC_LOCK` (`linux/capability.h`).
pub(super) const IPC_LOCK: u32 = 14;

pub(super) fn checks(machine: &Machine<'_>) -> Vec<Check> {
    let mut checks = vec![software(machine), rdma_core(machine), devices(machine)];
    for card in &machine.cards {
        checks.push(firmware(machine, card));
        checks.extend(ports(machine, card));
        checks.extend(addresses(machine, card));
    }
    checks.push(locked_memory(machine));
    checks
}

fn describe(ports: &[Port]) -> String {
    let port = |port: &Port| format!("{} port {} {}, {}", port.device, port.port, port.state, port.link);
    ports.iter().map(port).collect::<Vec<_>>().join("; ")
}

fn software(machine: &Machine<'_>) -> Check {
    let question =
        Question::new("software card", "everything but speed can be tried on it, with nothing installed");
    match &machine.libraries.software {
        Answer::Says(ports) => question.pass(format!("{}: works here", describe(ports))),
        Answer::NotAsked => question.skip("not recorded with this tree"),
        Answer::Absent(reason) | Answer::Broken(reason) => {
            question.fail(reason.clone(), "correct or unset SOFTHCA_CHECKS, SOFTHCA_CLOCK, SOFTHCA_DEVICES, SOFTHCA_FAULTS, SOFTHCA_KEY, SOFTHCA_KEY_FILE, SOFTHCA_LIBERTIES, SOFTHCA_LISTEN, SOFTHCA_OBJECTS, SOFTHCA_PKEYS, SOFTHCA_SCHEDULE, SOFTHCA_STOPPED and SOFTHCA_WAITS: see docs/clusters.md, docs/liberties.md and docs/card-trigger.md")
        }
    }
}

fn rdma_core(machine: &Machine<'_>) -> Check {
    let question =
        Question::new("rdma-core", "libibverbs and libmlx5 open real cards; gdsync finds them at run time");
    let install = "apt-get install ibverbs-providers (Debian, Ubuntu); dnf install libibverbs (Fedora, RHEL)";
    match &machine.libraries.verbs {
        Answer::NotAsked => question.skip("not recorded with this tree"),
        Answer::Absent(reason) if machine.cards.is_empty() => {
            question.absent(super::without_remedy(reason), format!("only with a real card: {install}"))
        }
        Answer::Absent(reason) => question.fail(super::without_remedy(reason), install).fixed_by([INSTALL]),
        Answer::Broken(reason) => question
            .fail(super::without_remedy(reason), format!("a newer rdma-core: {install}"))
            .fixed_by([INSTALL]),
        Answer::Says(_) => {
            let maps = machine.tree.text("/proc/self/maps").unwrap_or_default();
            let release = |soname: &str| {
                let release = files::mapped_library(&maps, soname)
                    .and_then(|path| files::library_release(path, soname))
                    .unwrap_or("unknown");
                format!("{} of release {release}", soname.trim_end_matches(".so.1"))
            };
            question.pass(LIBRARIES.map(release).join(", "))
        }
    }
}

fn devices(machine: &Machine<'_>) -> Check {
    let question =
        Question::new("RDMA devices", "a real card needs its kernel driver, and libibverbs has to find it");
    if let Some(unread) = &machine.cards_unread {
        return question.skip(unread);
    }
    let listed: Vec<&str> = match machine.libraries.verbs.says() {
        Some(verbs) => verbs.ports.iter().map(|port| port.device.as_str()).collect(),
        None => Vec::new(),
    };
    let asked = machine.libraries.verbs.says().is_some();
    if machine.cards.is_empty() {
        let idle: Vec<&str> = machine.idle.iter().map(|function| function.address.as_str()).collect();
        if !idle.is_empty() {
            let seen = format!("none, though there are network functions of NVIDIA at {}", idle.join(", "));
            return question
                .fail(seen, "modprobe mlx5_ib; `dmesg | grep mlx5` says why it does not come up")
                .fixed_by(["modprobe mlx5_ib"]);
        }
        if !listed.is_empty() {
            let mut listed = listed;
            listed.dedup();
            return question
                .pass(format!("{}, which /sys does not show: as under `gdsync soft`", listed.join(", ")));
        }
        let remedy =
            "nothing to do without a card: use the software one (no --hca); with one, `modprobe mlx5_ib`";
        return question.absent("none", remedy);
    }
    let names: Vec<String> = machine
        .cards
        .iter()
        .map(|card| match &card.driver {
            Some(driver) => format!("{} ({driver})", card.name),
            None => card.name.clone(),
        })
        .collect();
    let seen = names.join(", ");
    let unlisted: Vec<&str> = machine
        .cards
        .iter()
        .map(|card| card.name.as_str())
        .filter(|name| asked && !listed.contains(name))
        .collect();
    if !unlisted.is_empty() {
        let notes = machine.libraries.verbs.says().map(|verbs| verbs.notes.join("; ")).unwrap_or_default();
        let seen = format!("{seen}, but libibverbs cannot open {} ({notes})", unlisted.join(", "));
        return question.fail(
            seen,
            "modprobe ib_uverbs, and see that /dev/infiniband/uverbs* can be read and written (in a container: pass --device=/dev/infiniband)",
        ).fixed_by(["modprobe ib_uverbs"]);
    }
    let mlx5 = |card: &Card| card.driver.as_deref() == Some("mlx5_core") || card.driver.is_none();
    if machine.cards.iter().any(mlx5) {
        question.pass(seen)
    } else {
        question.warn(seen, "none of them is driven by mlx5, whose doorbells gdsync rings: use another card, or the software one")
    }
}

fn firmware(machine: &Machine<'_>, card: &Card) -> Check {
    let question = Question::new(
        format!("{} firmware", card.name),
        "what vendors fix there: compare it with the newest for that board at network.nvidia.com/support/firmware",
    );
    let folder = format!("/sys/class/infiniband/{}", card.name);
    match machine.tree.text(&format!("{folder}/fw_ver")) {
        Ok(version) => {
            let detail = |file: &str| machine.tree.text(&format!("{folder}/{file}")).unwrap_or_default();
            let words = [version, detail("hca_type"), detail("board_id")];
            question
                .pass(words.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(", "))
        }
        Err(unread) => question.skip(unread),
    }
}

fn ports(machine: &Machine<'_>, card: &Card) -> Vec<Check> {
    let folder = format!("/sys/class/infiniband/{}/ports", card.name);
    let question = |port: &str| {
        Question::new(format!("{} port {port}", card.name), "only an ACTIVE port carries traffic")
    };
    let numbers = match machine.tree.names(&folder) {
        Ok(numbers) => numbers,
        Err(unread) => return vec![question("1").skip(unread)],
    };
    let check = |number: String| {
        let read = |file: &str| machine.tree.text(&format!("{folder}/{number}/{file}"));
        let question = question(&number);
        let state = match read("state") {
            Ok(state) => state,
            Err(unread) => return question.skip(unread),
        };
        let physical =
            read("phys_state").map_or_else(|_| String::new(), |text| files::state(&text).to_owned());
        let (link, rate) = (read("link_layer").unwrap_or_default(), read("rate").unwrap_or_default());
        let words = [files::state(&state), &physical, &link, &rate];
        let seen = words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(", ");
        let ethernet = link == "Ethernet";
        match (files::state(&state), physical.as_str()) {
            ("ACTIVE", _) => question.pass(seen),
            ("INIT" | "ARMED", _) if !ethernet => question
                .warn(
                    seen,
                    "run a subnet manager on the fabric: `systemctl start opensm`, or the switch's own",
                )
                .fixed_by(["systemctl start opensm"]),
            (_, "Disabled") if ethernet => {
                let up = format!("ip link set $(ls /sys/class/infiniband/{}/device/net) up", card.name);
                question.warn(seen, up.clone()).fixed_by([up])
            }
            _ => question
                .warn(seen, format!("check cable and switch; `ibstat {}` and `ip link` say more", card.name)),
        }
    };
    numbers.into_iter().map(check).collect()
}

/// Returns a check for each port: of RoCE's GIDs on Ethernet, and of the default partition on InfiniBand.
fn addresses(machine: &Machine<'_>, card: &Card) -> Vec<Check> {
    let folder = format!("/sys/class/infiniband/{}/ports", card.name);
    let check = |number: String| {
        let port = format!("{folder}/{number}");
        let is_ethernet = machine.tree.text(&format!("{port}/link_layer")).ok()? == "Ethernet";
        Some(if is_ethernet {
            gids(machine, card, &number, &port)
        } else {
            partition(machine, card, &number, &port)
        })
    };
    machine.tree.names(&folder).unwrap_or_default().into_iter().filter_map(check).collect()
}

fn gids(machine: &Machine<'_>, card: &Card, number: &str, port: &str) -> Check {
    let question = Question::new(
        format!("{} port {number} GIDs", card.name),
        "RoCE v2 is what switches route; each of the interface's addresses gives a GID of it",
    );
    let indices = match machine.tree.names(&format!("{port}/gid_attrs/types")) {
        Ok(indices) => indices,
        Err(unread) => return question.skip(unread),
    };
    // Entries without a GID cannot be read.
    let kind = |index: &String| machine.tree.text(&format!("{port}/gid_attrs/types/{index}")).ok();
    let kinds: Vec<String> = indices.iter().filter_map(kind).collect();
    let of_version_2 = kinds.iter().filter(|kind| *kind == "RoCE v2").count();
    let seen = format!("{of_version_2} of {} by RoCE v2", kinds.len());
    if of_version_2 > 0 {
        return question.pass(seen);
    }
    question.warn(seen, format!("give the interface an address (`ip addr add ADDRESS/24 dev $(ls /sys/class/infiniband/{}/device/net)`); `show_gids` lists what it has", card.name))
}

/// Without the bit of membership, 15.
const DEFAULT_PARTITION: u32 = 0x7fff;

fn partition(machine: &Machine<'_>, card: &Card, number: &str, port: &str) -> Check {
    let question = Question::new(
        format!("{} port {number} partition", card.name),
        "connections take the partition key at index 0 unless a program names another; limited members do not reach each other",
    );
    let text = match machine.tree.text(&format!("{port}/pkeys/0")) {
        Ok(text) => text,
        Err(unread) => return question.skip(unread),
    };
    let key = text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    match key {
        Some(key) if key & 0x7fff == DEFAULT_PARTITION && key & 0x8000 != 0 => question.pass(format!("{text} at index 0, the default one, as a full member")),
        Some(key) if key & 0x7fff == DEFAULT_PARTITION => question.warn(
            format!("{text} at index 0: a limited member of the default partition, which reaches full members only"),
            "make the port a full member in the subnet manager's partitions.conf (`Default=0x7fff: ALL=full;`)",
        ),
        Some(_) => question.warn(
            format!("{text} at index 0, not the default partition"),
            "have both sides in it, or name the index of another (pkey_index); the subnet manager's partitions.conf decides the table",
        ),
        None => question.skip(format!("{text:?} is no partition key")),
    }
}

fn locked_memory(machine: &Machine<'_>) -> Check {
    let question = Question::new(
        "locked memory",
        "a real card's memory is locked: what is registered counts against this limit",
    );
    let limit = match machine.tree.text("/proc/self/limits") {
        Ok(text) => files::locked_memory(&text),
        Err(unread) => return question.skip(unread),
    };
    let Some(limit) = limit else {
        return question.skip("/proc/self/limits has no readable `Max locked memory`");
    };
    let Some(bytes) = limit else { return question.pass("unlimited") };
    let seen = crate::size::text(bytes);
    let status = machine.tree.text("/proc/self/status").unwrap_or_default();
    if files::has_capability(&status, IPC_LOCK) == Some(true) {
        return question.pass(format!("{seen}, which does not bind this process (CAP_IPC_LOCK)"));
    }
    if machine.cards.is_empty() {
        return question.skip(format!("{seen}, and no card that locks memory"));
    }
    question.warn(
        seen,
        "/etc/security/limits.d/rdma.conf: `* - memlock unlimited`, then log in again; for a service `LimitMEMLOCK=infinity`; for a container `--ulimit memlock=-1`",
    ).fixed_by(["echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf"])
}

pub(super) fn is_locked_memory_limited(machine: &Machine<'_>) -> Option<bool> {
    let text = machine.tree.text("/proc/self/limits").ok()?;
    files::locked_memory(&text).map(|limit| limit.is_some())
}

/// Returns a check for each card that the libraries or the buses show.
pub(super) fn waits(machine: &Machine<'_>) -> Vec<Check> {
    let verbs = machine.libraries.verbs.says();
    let mut names: Vec<&str> = machine.cards.iter().map(|card| card.name.as_str()).collect();
    let listed = verbs.iter().flat_map(|verbs| verbs.waits.keys().map(String::as_str));
    names.extend(listed.filter(|name| machine.cards.iter().all(|card| card.name != *name)));
    names.into_iter().map(|name| waits_of(name, verbs)).collect()
}

fn waits_of(name: &str, verbs: Option<&Verbs>) -> Check {
    let question = Question::new(
        format!("{name} waits"),
        "one word of a stream releases sends to any number of peers, and one tells of their completions; without it the stream rings and waits for each, which takes a GPU longer with each peer, and registers have to be mapped for that",
    );
    let answer = verbs.and_then(|verbs| verbs.waits.get(name));
    let Some(verbs) = verbs else { return question.skip("libibverbs does not say") };
    let waits = match answer {
        Some(Answer::Says(waits)) => waits,
        Some(Answer::Absent(reason) | Answer::Broken(reason)) => return question.skip(reason),
        Some(Answer::NotAsked) | None => return question.skip("libibverbs does not say"),
    };
    let firmware = verbs.ports.iter().find(|port| port.device == name).map(|port| &port.firmware);
    let firmware = firmware.map_or_else(String::new, |version| format!(", firmware {version}"));
    let more = waits.more.as_ref().map_or_else(String::new, features);
    let seen = format!(
        "for words (wait_on_data) {}, for completion queues (cd) {}{firmware}{more}",
        yes_or_no(waits.data),
        yes_or_no(waits.queues)
    );
    if waits.data && waits.queues {
        return question.pass(seen);
    }
    let ways = match waits.data {
        false => {
            "doorbells work: map the card's registers (root, or PeerMappingOverride=1), else a thread of the CPU rings"
        }
        true => "sends need nothing (`--doorbells card`); the stream waits for each completion queue itself",
    };
    let remedy = match firmware_of_able_cards(verbs, name) {
        true => {
            "its card can, so update its firmware (`mlxfwmanager --online -u`), or turn the feature on (`mlxconfig`)"
        }
        false => "a ConnectX-7 or newer, with the newest firmware, can",
    };
    question.warn(seen, format!("{remedy}; {ways}"))
}

/// The first numbers of the firmware of ConnectX-7, BlueField-3 and ConnectX-8, which can wait for words.
const ABLE: [&str; 3] = ["28", "32", "40"];

fn firmware_of_able_cards(verbs: &Verbs, name: &str) -> bool {
    let port = verbs.ports.iter().find(|port| port.device == name);
    port.and_then(|port| port.firmware.split('.').next()).is_some_and(|first| ABLE.contains(&first))
}

fn features(more: &Features) -> String {
    let recordless = match more.recordless {
        0 => "none".to_owned(),
        most => format!("up to {most}"),
    };
    format!(
        "; for a time (wait_on_time) {}, queues that ignore overruns (cq_oi) {}, queue pairs without doorbell records {recordless}",
        yes_or_no(more.time),
        yes_or_no(more.ignore_overrun)
    )
}
