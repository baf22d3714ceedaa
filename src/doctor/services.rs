//! How much memory the services that start programs may lock: what they start inherits it.

use super::check::{Check, Question};
use super::machine::Machine;
use super::parse;
use super::source::Tree;

/// Those that start other people's programs.
const SERVICES: [&str; 6] = ["containerd", "docker", "k3s", "kubelet", "pbs", "slurmd"];
/// Where units are, and what the administrator has put in their place or added, in systemd's order.
const UNITS: [&str; 3] = ["/lib/systemd/system", "/usr/lib/systemd/system", "/etc/systemd/system"];
/// The file of the manager, and the folder of its additions.
const MANAGER: &str = "/etc/systemd/system.conf";

/// A check of all services of this machine that start programs.
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
    let found: Vec<(&str, Option<String>)> = SERVICES
        .iter()
        .filter(|name| UNITS.iter().any(|folder| is_there(tree, folder, name)))
        .map(|name| (*name, of_service(tree, name).or_else(|| manager.clone())))
        .collect();
    if found.is_empty() {
        return question.skip(format!("none of {} is installed", SERVICES.join(", ")));
    }
    let is_unlimited = |limit: &Option<String>| limit.as_deref().is_some_and(parse::is_infinite);
    let say = |(name, limit): &(&str, Option<String>)| {
        format!("{name} {}", limit.as_deref().unwrap_or("systemd's default"))
    };
    let seen = found.iter().map(say).collect::<Vec<_>>().join(", ");
    let limited: Vec<&str> =
        found.iter().filter(|(_, limit)| !is_unlimited(limit)).map(|(name, _)| *name).collect();
    if limited.is_empty() {
        return question.pass(seen);
    }
    let commands = limited.iter().flat_map(|name| {
        let folder = format!("/etc/systemd/system/{name}.service.d");
        [
            format!("mkdir -p {folder}"),
            format!("printf '[Service]\\nLimitMEMLOCK=infinity\\n' > {folder}/memlock.conf"),
        ]
    });
    let restart = ["systemctl daemon-reload".to_owned(), format!("systemctl restart {}", limited.join(" "))];
    let remedy =
        format!("`LimitMEMLOCK=infinity` under [Service]: `systemctl edit {}`, then restart", limited[0]);
    question.warn(seen, remedy).fixed_by(commands.chain(restart))
}

fn is_there(tree: &Tree, folder: &str, name: &str) -> bool {
    tree.exists(&format!("{folder}/{name}.service")).unwrap_or(false)
}

/// What the unit's files say, if they do.
fn of_service(tree: &Tree, name: &str) -> Option<String> {
    // A unit of the administrator's replaces the one of the package; additions of both count.
    let unit = UNITS.iter().rev().find(|folder| is_there(tree, folder, name));
    let files: Vec<String> = unit.iter().map(|folder| format!("{folder}/{name}.service")).collect();
    let additions = UNITS.map(|folder| format!("{folder}/{name}.service.d"));
    setting(tree, &files, &additions, "LimitMEMLOCK")
}

/// The last value of a setting in files and then in the `.conf` files of folders.
fn setting(tree: &Tree, files: &[String], folders: &[String], key: &str) -> Option<String> {
    let added = folders.iter().flat_map(|folder| {
        let names = tree.names(folder).unwrap_or_default().into_iter();
        names.filter(|name| name.ends_with(".conf")).map(move |name| format!("{folder}/{name}"))
    });
    let texts = files.iter().cloned().chain(added).filter_map(|path| tree.text(&path).ok());
    let last = texts.filter_map(|text| parse::last_setting(&text, key).map(str::to_owned)).next_back();
    last.filter(|value| !value.is_empty())
}
