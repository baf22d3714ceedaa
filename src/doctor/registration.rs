//! Access to GPU memory by cards and the CPU: dma-bufs, peer memory, gdrdrv.

use super::files;
use super::libraries::Answer;
use super::machine::Machine;
use super::{Check, Question};

/// Linux 5.12 introduced registration of dma-bufs (`UVERBS_METHOD_REG_DMABUF_MR`).
const DMA_BUF_KERNEL: (u32, u32) = (5, 12);
/// Kernel modules for peer memory: that of NVIDIA's driver, and Mellanox's before it.
const MODULES: [(&str, &str); 2] =
    [("nvidia-peermem", "/sys/module/nvidia_peermem"), ("nv_peer_mem", "/sys/module/nv_peer_mem")];
/// The clients of `ib_core` in MLNX_OFED and DOCA; both modules are called `nv_mem`.
const CLIENTS: &str = "/sys/kernel/mm/memory_peers";

const MAKE_DEVICE: &str =
    "mknod /dev/gdrdrv c $(awk '$2==\"gdrdrv\"{print $1}' /proc/devices) 0 && chmod 666 /dev/gdrdrv";

/// The state of a method of access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Availability {
    Open,
    Closed,
    Unknown,
}

pub(super) fn checks(machine: &Machine<'_>) -> Vec<Check> {
    let (dma_buf, by_dma_buf) = dma_buf(machine);
    let (peer_memory, by_peer_memory) = peer_memory(machine, by_dma_buf);
    vec![dma_buf, peer_memory, either(machine, by_dma_buf, by_peer_memory), gdrdrv(machine)]
}

fn dma_buf(machine: &Machine<'_>) -> (Check, Availability) {
    let question = Question::new(
        "dma-buf",
        "the way to register GPU memory with a card that needs no extra kernel module",
    );
    let (mut good, mut missing, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    let mut remedies = Vec::new();
    match machine.tree.text("/proc/sys/kernel/osrelease") {
        Ok(release) => match files::kernel_release(&release) {
            Some(version) if version >= DMA_BUF_KERNEL => good.push(format!("Linux {release}")),
            Some(_) => {
                missing.push(format!("Linux {release} is older than 5.12"));
                remedies.push("boot Linux 5.12 or newer");
            }
            None => unknown.push(format!("{release:?} is no kernel release")),
        },
        Err(unread) => unknown.push(unread.to_string()),
    }
    match &machine.libraries.cuda {
        Answer::Says(cuda) if !cuda.gpus.is_empty() => {
            for gpu in &cuda.gpus {
                let name = format!("GPU {}", gpu.ordinal);
                if gpu.dma_buf {
                    good.push(name);
                } else {
                    missing.push(format!("the driver makes none of {name}"));
                    remedies.push("install the driver's open kernel modules (nvidia-open)");
                }
            }
        }
        Answer::Says(_) | Answer::Absent(_) => unknown.push("no GPU".to_owned()),
        Answer::Broken(_) => unknown.push("CUDA does not work".to_owned()),
        Answer::NotAsked => unknown.push("CUDA was not asked".to_owned()),
    }
    match &machine.libraries.verbs {
        Answer::Says(verbs) if verbs.dma_buf => good.push("ibv_reg_dmabuf_mr".to_owned()),
        Answer::Says(_) => {
            missing.push("libibverbs has no ibv_reg_dmabuf_mr".to_owned());
            remedies.push("install rdma-core 34 or newer");
        }
        Answer::Absent(_) => unknown.push("no libibverbs".to_owned()),
        Answer::Broken(_) => unknown.push("libibverbs does not work".to_owned()),
        Answer::NotAsked => unknown.push("libibverbs was not asked".to_owned()),
    }
    remedies.dedup();
    if !missing.is_empty() {
        return (question.warn(missing.join("; "), remedies.join("; ")), Availability::Closed);
    }
    if !unknown.is_empty() {
        return (question.skip(unknown.join("; ")), Availability::Unknown);
    }
    (question.pass(good.join(", ")), Availability::Open)
}

fn peer_memory(machine: &Machine<'_>, dma_buf: Availability) -> (Check, Availability) {
    let question = Question::new(
        "peer memory",
        "the other way to register GPU memory with a card: for proprietary kernel modules, and old kernels",
    );
    if let Err(unread) = machine.tree.names("/sys/module") {
        return (question.skip(unread), Availability::Unknown);
    }
    let loaded = MODULES.iter().find(|(_, path)| machine.tree.exists(path).unwrap_or(false));
    let Some((module, path)) = loaded else {
        let seen = "neither nvidia-peermem nor nv_peer_mem is loaded";
        return if dma_buf == Availability::Open {
            (question.pass(format!("{seen}, and need not be: dma-bufs work")), Availability::Closed)
        } else if machine.gpus.is_empty() || machine.cards.is_empty() {
            (question.skip(format!("{seen}, and there is no pair of GPU and card")), Availability::Closed)
        } else {
            (
                question.warn(seen, "modprobe nvidia-peermem").fixed_by(["modprobe nvidia-peermem"]),
                Availability::Closed,
            )
        };
    };
    let version = machine.tree.text(&format!("{path}/version"));
    let seen = version.map_or_else(|_| (*module).to_owned(), |version| format!("{module} {version}"));
    match machine.tree.names(CLIENTS) {
        Ok(clients) if clients.iter().any(|client| client.starts_with("nv_mem")) => {
            let seen = format!("{seen}, known to ib_core as {}", clients.join(", "));
            if dma_buf != Availability::Open {
                return (question.pass(seen), Availability::Open);
            }
            let unload = format!("modprobe -r {module}");
            let remedy = format!(
                "one way is enough: `{unload}`, unless a program needs it; one that registers GPU addresses with ibv_reg_mr goes through it, others by dma-bufs"
            );
            (question.warn(format!("{seen}, beside dma-bufs"), remedy).fixed_by([unload]), Availability::Open)
        }
        Ok(clients) => {
            let seen = format!(
                "{seen}, but ib_core knows {}",
                if clients.is_empty() { "none" } else { "others only" }
            );
            let reload = format!("modprobe -r {module} && modprobe {module}");
            let remedy = format!("reload it after ib_core: `{reload}`");
            (question.warn(seen, remedy).fixed_by([reload]), Availability::Closed)
        }
        // Some ib_core with peer memory do not list clients.
        Err(_) => (
            question.pass(format!("{seen} is loaded; whether ib_core knows it is not shown")),
            Availability::Unknown,
        ),
    }
}

fn either(machine: &Machine<'_>, dma_buf: Availability, peer_memory: Availability) -> Check {
    let question = Question::new("GPU memory for cards", "without it messages pass through host memory");
    if machine.gpus.is_empty() || machine.cards.is_empty() {
        let seen = "there is no pair of GPU and card; the software card copies from and to GPU memory itself";
        return question.skip(seen);
    }
    match (dma_buf, peer_memory) {
        (Availability::Open, _) => question.pass("by dma-buf"),
        (_, Availability::Open) => question.pass("by peer memory"),
        (Availability::Closed, Availability::Closed) => question
            .fail(
                "neither by dma-buf nor by peer memory",
                "install the driver's open kernel modules (nvidia-open), or `modprobe nvidia-peermem`",
            )
            .fixed_by(["modprobe nvidia-peermem"]),
        _ => question.skip("whether dma-buf or peer memory work is not known"),
    }
}

fn gdrdrv(machine: &Machine<'_>) -> Check {
    let question = Question::new(
        "gdrdrv",
        "it maps GPU memory for the CPU (gdrcopy), which reads and writes small pieces far faster than cuMemcpy",
    );
    let version = machine.tree.text("/sys/module/gdrdrv/version");
    let named = || version.as_ref().map_or_else(|_| "of unknown version".to_owned(), String::clone);
    let loaded = machine.tree.exists("/sys/module/gdrdrv");
    match (machine.tree.exists("/dev/gdrdrv"), loaded) {
        (Ok(true), _) => question.pass(named()),
        (Ok(false), Ok(true)) => question.warn(
            format!("{} is loaded, but there is no /dev/gdrdrv", named()),
            MAKE_DEVICE,
        ).fixed_by([MAKE_DEVICE]),
        (Ok(false), _) if machine.gpus.is_empty() => question.skip("not loaded, and no GPU to map memory of"),
        (Ok(false), _) => question.warn(
            "not loaded",
            "install gdrcopy's kernel module (Debian, Ubuntu: gdrdrv-dkms of NVIDIA's repository), then `modprobe gdrdrv`",
        ).fixed_by(["apt-get install -y gdrdrv-dkms", "modprobe gdrdrv"]),
        (Err(unread), _) => question.skip(unread),
    }
}
