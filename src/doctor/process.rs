//! Conditions of this process (GPU channels, restrictions of a container), and the locked-memory limit of services that start
//! programs: these inherit it.

use super::files::Tree;
use super::machine::Machine;
use super::{Check, Question, driver, files, rdma};

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
    let Some(value) = files::variable(&environment, VARIABLE) else {
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
    let capabilities = match files::capabilities(status) {
        None => return String::new(),
        Some(0) => "no capability".to_owned(),
        Some(set) => match set.count_ones() {
            1 => "1 capability".to_owned(),
            count => format!("{count} capabilities"),
        },
    };
    let never_more = files::field(status, "NoNewPrivs", ':') == Some("1");
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
    let lacks = |number| files::has_capability(&status, number) == Some(false);
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

/// Services that start users' programs, and the names of their processes.
const SERVICES: [(&str, &str); 6] = [
    ("containerd", "containerd"),
    ("docker", "dockerd"),
    ("k3s", "k3s-server"),
    ("kubelet", "kubelet"),
    ("pbs", "pbs_mom"),
    ("slurmd", "slurmd"),
];
/// Folders of units, and of the administrator's replacements and additions, in systemd's order.
const UNITS: [&str; 3] = ["/lib/systemd/system", "/usr/lib/systemd/system", "/etc/systemd/system"];
/// The manager's file, and the folder of its additions.
const MANAGER: &str = "/etc/systemd/system.conf";

pub(super) fn services(machine: &Machine<'_>) -> Check {
    let question = Question::new(
        "locked memory of services",
        "a job inherits the limit of the service that starts it, whatever /etc/security/limits.d says",
    );
    let tree = machine.tree;
    if machine.cards.is_empty() {
        return question.skip("no card that locks memory");
    }
    if let Err(unread) = tree.names("/etc/systemd/system") {
        return question.skip(unread);
    }
    let manager = unit_setting(tree, &[MANAGER.to_owned()], &[format!("{MANAGER}.d")], "DefaultLimitMEMLOCK");
    let is_installed = |name: &str| UNITS.iter().any(|folder| is_there(tree, folder, name));
    let of = |(name, process)| Service {
        name,
        limit: of_service(tree, name).or_else(|| manager.clone()),
        running: running(tree, process),
    };
    let found: Vec<Service> = SERVICES.into_iter().filter(|(name, _)| is_installed(name)).map(of).collect();
    if found.is_empty() {
        let names = SERVICES.map(|(name, _)| name).join(", ");
        return question.skip(format!("none of {names} is installed"));
    }
    let default = manager.as_ref().map(|limit| {
        let own = tree.text("/proc/self/limits").ok().and_then(|text| files::locked_memory(&text));
        let own = own.map_or_else(|| "unknown".to_owned(), describe);
        format!("; DefaultLimitMEMLOCK={limit}, this process: {own}")
    });
    let services = found.iter().map(Service::describe).collect::<Vec<_>>().join(", ");
    let seen = services + default.as_deref().unwrap_or_default();
    let names = |wanted: &dyn Fn(&Service) -> bool| {
        found.iter().filter(|service| wanted(service)).map(|service| service.name).collect::<Vec<_>>()
    };
    let limited = names(&|service| !service.is_unlimited());
    let wrong = names(&|service| !service.is_unlimited() || service.is_stale());
    let Some(first) = wrong.first() else { return question.pass(seen) };
    let remedy = match limited.first() {
        Some(name) => {
            format!("`LimitMEMLOCK=infinity` under [Service]: `systemctl edit {name}`, then restart")
        }
        None => format!("its unit has been changed since it was started: `systemctl restart {first}`"),
    };
    let commands = limited.iter().flat_map(|name| {
        let folder = format!("/etc/systemd/system/{name}.service.d");
        [
            format!("mkdir -p {folder}"),
            format!("printf '[Service]\\nLimitMEMLOCK=infinity\\n' > {folder}/memlock.conf"),
        ]
    });
    let restart = ["systemctl daemon-reload".to_owned(), format!("systemctl restart {}", wrong.join(" "))];
    question.warn(seen, remedy).fixed_by(commands.chain(restart))
}

struct Service {
    name: &'static str,
    /// The limit set by its unit or the manager.
    limit: Option<String>,
    /// Its process's limit in bytes; `Some(None)` if unlimited.
    running: Option<Option<u64>>,
}

impl Service {
    fn is_unlimited(&self) -> bool {
        self.limit.as_deref().is_some_and(files::is_infinite)
    }

    /// True if the running process has another limit than the next one will have.
    fn is_stale(&self) -> bool {
        self.is_unlimited() && matches!(self.running, Some(Some(_)))
    }

    fn describe(&self) -> String {
        let Service { name, limit, running } = self;
        let limit = limit.as_deref().unwrap_or("systemd's default");
        match running {
            Some(running) if running.is_some() || !self.is_unlimited() => {
                format!("{name} {limit} (its process: {})", describe(*running))
            }
            _ => format!("{name} {limit}"),
        }
    }
}

fn describe(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), crate::size::text)
}

/// Returns the limit of the first process of this name, if there is one and its limits are readable.
fn running(tree: &Tree, process: &str) -> Option<Option<u64>> {
    let names = tree.names("/proc").ok()?;
    let mut processes = names.iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let named = |pid: &&String| tree.text(&format!("/proc/{pid}/comm")).is_ok_and(|name| name == process);
    let limits = tree.text(&format!("/proc/{}/limits", processes.find(named)?)).ok()?;
    files::locked_memory(&limits)
}

fn is_there(tree: &Tree, folder: &str, name: &str) -> bool {
    tree.exists(&format!("{folder}/{name}.service")).unwrap_or(false)
}

/// Returns the limit in the unit's files, if set.
fn of_service(tree: &Tree, name: &str) -> Option<String> {
    // The administrator's unit replaces the package's; additions of both apply.
    let unit = UNITS.iter().rev().find(|folder| is_there(tree, folder, name));
    let files: Vec<String> = unit.iter().map(|folder| format!("{folder}/{name}.service")).collect();
    let additions = UNITS.map(|folder| format!("{folder}/{name}.service.d"));
    unit_setting(tree, &files, &additions, "LimitMEMLOCK")
}

/// Returns a setting's last value in `files`, and then in the `.conf` files of `folders`.
fn unit_setting(tree: &Tree, files: &[String], folders: &[String], key: &str) -> Option<String> {
    let added = folders.iter().flat_map(|folder| {
        let names = tree.names(folder).unwrap_or_default().into_iter();
        names.filter(|name| name.ends_with(".conf")).map(move |name| format!("{folder}/{name}"))
    });
    let texts = files.iter().cloned().chain(added).filter_map(|path| tree.text(&path).ok());
    let last = texts.filter_map(|text| files::last_setting(&text, key).map(str::to_owned)).next_back();
    last.filter(|value| !value.is_empty())
}

/// The files of control groups, version 2.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// Fewer contexts or objects than these stop a job of a few ranks.
const LEAST_HANDLES: u64 = 8;
const LEAST_OBJECTS: u64 = 4096;

/// Returns the check of the group's limits of RDMA contexts and objects (Linux' `Documentation/admin-guide/cgroup-v2.rst`); none without such
/// a group.
pub(super) fn control_group(machine: &Machine<'_>) -> Option<Check> {
    let question = Question::new(
        "RDMA control group",
        "a pod's group limits how many contexts a card gives it, and how many queues, regions and other objects",
    );
    let own = machine.tree.text("/proc/self/cgroup").ok()?;
    let group = own.lines().find_map(|line| line.strip_prefix("0::"))?.trim_end_matches('/');
    let limits = machine.tree.text(&format!("{CONTROL_GROUPS}{group}/rdma.max")).ok()?;
    let is_low = |word: &str| {
        let (name, most) = word.split_once('=')?;
        let least = match name {
            "hca_handle" => LEAST_HANDLES,
            "hca_object" => LEAST_OBJECTS,
            _ => return None,
        };
        most.parse::<u64>().ok().filter(|most| *most < least)
    };
    if limits.is_empty() {
        return Some(question.pass("no limits"));
    }
    let seen = limits.lines().collect::<Vec<_>>().join("; ");
    Some(match limits.split_whitespace().filter_map(is_low).next() {
        None => question.pass(seen),
        Some(_) => question.warn(
            seen,
            format!("raise them in rdma.max of the group ({group}/rdma.max), or in what starts the pod; `max` is no limit"),
        ),
    })
}
