//! Settings of the process (channels, capabilities, limits), and the commands that repair findings.

use super::{Said, doctor, topologies, tree};

/// Returns a correct machine, with some lines of its description replaced.
fn with(changes: &[(&str, &str)]) -> super::Tree {
    let description = changes.iter().fold(topologies::DGX.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    tree(&description, topologies::DGX_LIBRARIES)
}

#[test]
fn too_few_channels_are_told_with_what_they_block() {
    let environment = |setting: &str| {
        let tree = tree(topologies::DGX, topologies::DGX_LIBRARIES);
        tree.file("/proc/self/environ", format!("HOME=/root\0CUDA_DEVICE_MAX_CONNECTIONS={setting}\0A=1\0"));
        Said::of(&tree)
    };
    environment("32").has("channels of a GPU", "pass", "32, the most", "");
    environment("1").has(
        "channels of a GPU",
        "warn",
        "a stream that waits blocks every other one",
        "=32 before",
    );
    environment("4").has("channels of a GPU", "warn", "with more than 4 streams", "=32 before");
    for wrong in ["0", "33", "many", ""] {
        environment(wrong).has("channels of a GPU", "warn", "is no number from 1 to 32", "=32 before");
    }
    let none = Said::of(&tree(topologies::NOTHING, topologies::NOTHING_LIBRARIES));
    none.has("channels of a GPU", "skip", "no GPU", "");
}

#[test]
fn an_mps_daemon_that_serves_nothing_is_told() {
    let libraries = topologies::DGX_LIBRARIES.replacen("\"mps\": true", "\"mps\": false", 1);
    let tree = tree(topologies::DGX, &libraries);
    tree.file("/tmp/nvidia-mps/control", "");
    Said::of(&tree).has("GPU 0 among processes", "warn", "has been started in /tmp/nvidia-mps", "echo quit");
    tree.file("/proc/self/environ", "CUDA_MPS_PIPE_DIRECTORY=/run/mps\0");
    Said::of(&tree).has("GPU 0 among processes", "warn", "take turns", "nvidia-cuda-mps-control -d");
}

#[test]
fn a_container_is_told_with_what_it_lacks() {
    let container = ("/proc/1/cgroup = 0::/init.scope", "/proc/1/cgroup = 0::/kubepods/pod1");
    let devices = with(&[container]);
    let seen = "one with no capability, without /dev/infiniband";
    Said::of(&devices).has("container", "warn", seen, "--device=/dev/infiniband");
    devices.file("/dev/infiniband/uverbs0", "");
    // Nothing else is needed: memory is unlimited, and registers may be mapped.
    Said::of(&devices).has("container", "pass", "that are needed", "");
    let limited = (
        "locked memory         unlimited            unlimited",
        "locked memory         65536                65536    ",
    );
    let unmapped = ("PeerMappingOverride=1;", "");
    let marked = ("/proc/1/cgroup = 0::/init.scope\\n", "/.dockerenv = \\n\n/dev/infiniband/uverbs0 = \\n");
    let said = Said::of(&with(&[marked, limited, unmapped]));
    said.has(
        "container",
        "warn",
        "without CAP_IPC_LOCK and without CAP_SYS_ADMIN",
        "--cap-add=IPC_LOCK --ulimit memlock=-1",
    );
    // With all capabilities.
    let all = ("CapEff: 0000000000000000", "CapEff: 000001ffffffffff");
    let seen = "one with 41 capabilities, with the devices and capabilities that are needed";
    Said::of(&with(&[marked, limited, unmapped, all])).has("container", "pass", seen, "");
    let one = ("CapEff: 0000000000000000", "CapEff: 0000000000004000\\nNoNewPrivs: 1");
    let said = Said::of(&with(&[marked, limited, unmapped, one]));
    said.has("container", "warn", "one with 1 capability and no new privileges, without CAP_SYS_ADMIN", "");
    let nothing = tree(topologies::NOTHING, topologies::NOTHING_LIBRARIES);
    nothing.file("/run/.containerenv", "");
    Said::of(&nothing).has("container", "pass", "one with no capability, without GPU and card", "");
}

#[test]
fn services_hand_their_limit_on() {
    let name = "locked memory of services";
    let limit = "LimitMEMLOCK=infinity\\n";
    let said = |changes: &[(&str, &str)]| Said::of(&with(changes));
    said(&[(limit, "")]).has(name, "warn", "slurmd systemd's default", "systemctl edit slurmd");
    said(&[(limit, "LimitMEMLOCK=64M\\n")]).has(name, "warn", "slurmd 64M", "LimitMEMLOCK=infinity");
    said(&[(limit, "LimitMEMLOCK=infinity:infinity\\n")]).has(name, "pass", "slurmd infinity", "");
    // The manager's default applies if the unit has none.
    let manager = ("#DefaultLimitMEMLOCK=8M", "DefaultLimitMEMLOCK=infinity");
    let seen = "slurmd infinity; DefaultLimitMEMLOCK=infinity, this process: unlimited";
    said(&[(limit, ""), manager]).has(name, "pass", seen, "");
    let less = [manager, ("locked memory         unlimited", "locked memory         65536")];
    said(&less).has(name, "pass", "slurmd infinity; DefaultLimitMEMLOCK=infinity, this process: 64 KiB", "");
    said(&[manager, ("/proc/self/limits = ", "/proc/self/others = ")]).has(
        name,
        "pass",
        "process: unknown",
        "",
    );
    // The administrator's additions come last, and an empty value resets earlier ones.
    let machine = with(&[]);
    machine.file("/etc/systemd/system/slurmd.service.d/10-memory.conf", "[Service]\nLimitMEMLOCK=1G\n");
    machine.file("/etc/systemd/system/slurmd.service.d/notes.txt", "LimitMEMLOCK=infinity\n");
    machine.file("/lib/systemd/system/docker.service", "[Service]\n");
    Said::of(&machine).has(name, "warn", "docker systemd's default, slurmd 1G", "docker");
    machine.file("/etc/systemd/system/slurmd.service.d/20-back.conf", "[Service]\nLimitMEMLOCK=\n");
    Said::of(&machine).has(name, "warn", "slurmd systemd's default", "");
    // A unit that replaces the package's.
    machine.file("/etc/systemd/system/slurmd.service.d/20-back.conf", "");
    machine.file("/etc/systemd/system/slurmd.service.d/10-memory.conf", "");
    machine.file("/etc/systemd/system/slurmd.service", "[Service]\nLimitMEMLOCK=2G\n");
    Said::of(&machine).has(name, "warn", "slurmd 2G", "");
    // A running process has the limits of its start.
    let started = |bytes: &str, changes: &[(&str, &str)]| {
        let machine = with(changes);
        machine.file("/proc/41/comm", "other\n");
        machine.file("/proc/42/comm", "slurmd\n");
        machine.file(
            "/proc/42/limits",
            format!("Max locked memory         {bytes}              {bytes}              bytes\n"),
        );
        Said::of(&machine)
    };
    let stale = "slurmd infinity (its process: 64 KiB)";
    started("65536", &[]).has(
        name,
        "warn",
        stale,
        "changed since it was started: `systemctl restart slurmd`",
    );
    started("unlimited", &[]).has(name, "pass", "slurmd infinity", "");
    let lucky = "slurmd 64M (its process: unlimited)";
    started("unlimited", &[(limit, "LimitMEMLOCK=64M\\n")]).has(name, "warn", lucky, "systemctl edit slurmd");
    let without = said(&[("slurmd.service", "other.service")]);
    without.has(name, "skip", "none of containerd, docker", "");
}

#[test]
fn what_would_mend_a_machine_is_printed_and_not_done() {
    let fix = |tree: &super::Tree| {
        let output = doctor(&["--fix", "--root", tree.root().to_str().unwrap()]);
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    };
    let (script, code) = fix(&with(&[]));
    assert!(script.ends_with("\n# Nothing to mend.\n") && code == Some(0), "{script}");

    let machine = super::Tree::build(topologies::TWO_SOCKETS);
    let (script, code) = fix(&machine);
    assert_eq!(code, Some(1), "GPU memory cannot be registered there");
    for command in [
        "modprobe nvidia-peermem",
        "echo 'options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\"' > /etc/modprobe.d/gdsync.conf",
        "echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf",
        "ip link set $(ls /sys/class/infiniband/mlx5_0/device/net) up",
    ] {
        assert!(script.lines().any(|line| line == command), "{command}:\n{script}");
    }
    // Every finding is included, as a comment; the rest is valid shell.
    let said = Said::of(&machine);
    for check in
        said.checks().into_iter().filter(|check| check["status"] == "warn" || check["status"] == "fail")
    {
        let name = check["name"].as_str().unwrap();
        assert!(script.lines().any(|line| line.starts_with('#') && line.contains(name)), "{name}:\n{script}");
    }
    let file = machine.at("/fix");
    std::fs::write(&file, &script).unwrap();
    let checked = std::process::Command::new("sh").arg("-n").arg(&file).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(!machine.at("/etc/modprobe.d/gdsync.conf").exists());
    // JSON has the commands of each check.
    let commands =
        said.checks().into_iter().find(|check| check["name"] == "locked memory").unwrap()["commands"].clone();
    assert_eq!(
        commands,
        serde_json::json!(["echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf"])
    );
}
