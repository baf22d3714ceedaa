//! The locked-memory limit of services that start programs: these inherit it.

use super::machine::Machine;
use super::parse;
use super::source::Tree;
use super::{Check, Question};

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

pub(super) fn check(machine: &Machine<'_>) -> Check {
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
    let manager = setting(tree, &[MANAGER.to_owned()], &[format!("{MANAGER}.d")], "DefaultLimitMEMLOCK");
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
        let own = tree.text("/proc/self/limits").ok().and_then(|text| parse::locked_memory(&text));
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
        self.limit.as_deref().is_some_and(parse::is_infinite)
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
    parse::locked_memory(&limits)
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
    setting(tree, &files, &additions, "LimitMEMLOCK")
}

/// Returns a setting's last value in `files`, and then in the `.conf` files of `folders`.
fn setting(tree: &Tree, files: &[String], folders: &[String], key: &str) -> Option<String> {
    let added = folders.iter().flat_map(|folder| {
        let names = tree.names(folder).unwrap_or_default().into_iter();
        names.filter(|name| name.ends_with(".conf")).map(move |name| format!("{folder}/{name}"))
    });
    let texts = files.iter().cloned().chain(added).filter_map(|path| tree.text(&path).ok());
    let last = texts.filter_map(|text| parse::last_setting(&text, key).map(str::to_owned)).next_back();
    last.filter(|value| !value.is_empty())
}
