//! The NVIDIA driver, CUDA, and each GPU's support for streams.

use super::libraries::{Answer, Gpu};
use super::machine::Machine;
use super::{Check, Question};
use super::{files, yes_or_no};

const PARAMETERS: &str = "/proc/driver/nvidia/params";
/// `CAP_SYS_ADMIN` (`linux/capability.h`).
pub(super) const SYS_ADMIN: u32 = 21;

pub(super) fn checks(machine: &Machine<'_>) -> Vec<Check> {
    let mut checks = vec![kernel_module(machine), cuda(machine)];
    if let Some(cuda) = machine.libraries.cuda.says() {
        for gpu in &cuda.gpus {
            checks.push(stream_operations(gpu));
            checks.push(consistency(gpu));
            checks.push(sharing(machine, gpu));
            checks.extend(instances(machine, gpu));
        }
    }
    checks.push(peer_mapping(machine));
    checks.push(stream_memops_parameter(machine));
    checks
}

fn kernel_module(machine: &Machine<'_>) -> Check {
    let question = Question::new(
        "NVIDIA driver",
        "CUDA streams need a driver for CUDA 12.0 or newer (R525); dma-bufs of GPU memory need the open kernel modules",
    );
    let on_bus = || {
        let addresses: Vec<&str> = machine.gpus_on_bus.iter().map(|gpu| gpu.address.as_str()).collect();
        addresses.join(", ")
    };
    match machine.tree.text("/proc/driver/nvidia/version") {
        Ok(text) => match files::driver_version(&text) {
            Some((version, true)) => question.pass(format!("{version}, open kernel modules")),
            Some((version, false)) => question.warn(
                format!("{version}, proprietary kernel modules"),
                "install the open kernel modules (nvidia-open in NVIDIA's repositories), or `modprobe nvidia-peermem`",
            ).fixed_by(["modprobe nvidia-peermem"]),
            None => question.skip("/proc/driver/nvidia/version names no version"),
        },
        Err(unread) if !unread.is_missing() => question.skip(unread),
        // A container may have CUDA without these files.
        Err(unread) if machine.libraries.cuda.says().is_some() => question.skip(unread),
        Err(_) if !machine.gpus_on_bus.is_empty() => question.fail(
            format!("not loaded, with a GPU at {}", on_bus()),
            "install the NVIDIA driver, then `modprobe nvidia`; `dmesg | grep NVRM` says why it does not load",
        ).fixed_by(["modprobe nvidia"]),
        Err(unread) if machine.pci_unread.is_some() => question.skip(unread),
        Err(_) => question.absent(
            "no GPU and no driver",
            "nothing to do without a GPU: streams are software ones (`gdsync pingpong`); with one, install the NVIDIA driver",
        ),
    }
}

fn cuda(machine: &Machine<'_>) -> Check {
    let question =
        Question::new("CUDA", "it enqueues the card's doorbells on streams, and GPU memory comes from it");
    match &machine.libraries.cuda {
        Answer::NotAsked => question.skip("not recorded with this tree"),
        Answer::Absent(reason) => {
            let remedy = "on a machine with a GPU, install the NVIDIA driver; in a container, let its runtime pass the GPU (`--gpus all`)";
            let seen = super::without_remedy(reason);
            match machine.gpus_on_bus.is_empty() {
                true => question.absent(seen, remedy),
                false => question.warn(seen, remedy),
            }
        }
        Answer::Broken(reason) => question.fail(
            super::without_remedy(reason),
            "install a newer NVIDIA driver, or see what `nvidia-smi` says",
        ),
        Answer::Says(cuda) => {
            let version = format!("{}.{}", cuda.version / 1000, cuda.version % 1000 / 10);
            if cuda.gpus.is_empty() {
                let remedy =
                    "unset CUDA_VISIBLE_DEVICES; in a container, let its runtime pass the GPU (`--gpus all`)";
                return question.warn(format!("{version}, but it sees no GPU"), remedy);
            }
            let gpus: Vec<String> = cuda
                .gpus
                .iter()
                .map(|gpu| format!("GPU {} {} at {}", gpu.ordinal, gpu.name, gpu.pci_address))
                .collect();
            question.pass(format!("{version}: {}", gpus.join("; ")))
        }
    }
}

fn stream_operations(gpu: &Gpu) -> Check {
    let question = Question::new(
        format!("GPU {} stream operations", gpu.ordinal),
        "a doorbell is one 64-bit write of a stream, and every other lap of a completion queue is waited for with NOR",
    );
    let seen = format!(
        "64 bits {}, wait for NOR {}, flush {}",
        yes_or_no(gpu.ops_64_bit),
        yes_or_no(gpu.wait_nor),
        yes_or_no(gpu.flush_remote_writes)
    );
    if gpu.ops_64_bit && gpu.wait_nor {
        question.pass(seen)
    } else {
        question
            .fail(seen, "use a GPU of Volta or newer, on Linux; this one cannot run gdsync's CUDA streams")
    }
}

fn consistency(gpu: &Gpu) -> Check {
    let question = Question::new(
        format!("GPU {} order of writes", gpu.ordinal),
        "a stream that has waited for a completion must see what the card wrote into GPU memory before it",
    );
    let seen = format!("kept for: {}", gpu.writes_ordering);
    match gpu.consistency.as_str() {
        "ordered" => question.pass(seen),
        "flushed" => question.pass(format!("{seen}; every wait is followed by a flush")),
        _ => question.warn(
            format!("{seen}, and there is no flush"),
            "let the card write into host memory and copy in stream order: GPU memory that a card may write is refused",
        ),
    }
}

/// The pipe directory of MPS without CUDA_MPS_PIPE_DIRECTORY.
const MPS_PIPES: &str = "/tmp/nvidia-mps";

fn sharing(machine: &Machine<'_>, gpu: &Gpu) -> Check {
    let question = Question::new(
        format!("GPU {} among processes", gpu.ordinal),
        "without MPS a GPU serves one process at a time, for a time slice: a stream that answers another process' stream waits for its slice, 100 µs and more",
    );
    match gpu.mps {
        Some(true) => question.pass("shared by MPS: streams of several processes run side by side"),
        Some(false) => {
            let environment = machine.tree.bytes("/proc/self/environ").unwrap_or_default();
            let pipes = files::variable(&environment, "CUDA_MPS_PIPE_DIRECTORY");
            let pipes = pipes.filter(|pipes| pipes.starts_with('/')).unwrap_or_else(|| MPS_PIPES.to_owned());
            if machine.tree.exists(&format!("{pipes}/control")).unwrap_or(false) {
                return question.warn(
                    format!("not shared by MPS, though its daemon has been started in {pipes}: it has ended, or serves another user or another GPU"),
                    "`echo quit | nvidia-cuda-mps-control`, then `nvidia-cuda-mps-control -d` as the user of the processes, with the same CUDA_VISIBLE_DEVICES",
                ).fixed_by(["echo quit | nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d"]);
            }
            question.warn(
                "not shared by MPS: processes take turns, in time slices",
                "nothing to do for one process to a GPU; for several, `nvidia-cuda-mps-control -d` before they start",
            ).fixed_by(["nvidia-cuda-mps-control -d"])
        }
        None => question.skip("the driver does not say whether MPS is on"),
    }
}

/// Returns the check of a GPU that is divided (Multi-Instance GPU); none for others. The driver has a folder `giN` for each instance.
fn instances(machine: &Machine<'_>, gpu: &Gpu) -> Option<Check> {
    let names =
        machine.tree.names(&format!("/proc/driver/nvidia/capabilities/gpu{}/mig", gpu.ordinal)).ok()?;
    let count = names.iter().filter(|name| name.starts_with("gi")).count();
    (count > 0).then(|| {
        Question::new(
            format!("GPU {} instances", gpu.ordinal),
            "an instance of a divided GPU (MIG) has no access to other GPUs or instances, and shares no memory with other processes",
        )
        .warn(
            format!("{count} by MIG: a process sees one"),
            format!("nothing to do for one process to an instance; for GPUs that exchange data, `nvidia-smi -i {} -mig 0`", gpu.ordinal),
        )
    })
}

const PEER_MAPPING: &str = "PeerMappingOverride";

/// Returns the driver's parameter, if it can be read.
pub(super) fn peer_mapping_override(machine: &Machine<'_>) -> Option<u32> {
    let text = machine.tree.text(PARAMETERS).ok()?;
    files::registry_dword(files::field(&text, "RegistryDwords", ':')?, PEER_MAPPING)
}

fn peer_mapping(machine: &Machine<'_>) -> Check {
    let question = Question::new(
        PEER_MAPPING,
        "without it only root may let a GPU store to a card's doorbell register; others' doorbells take the way over a CPU thread",
    );
    let text = match machine.tree.text(PARAMETERS) {
        Ok(text) => text,
        Err(unread) => return question.skip(unread),
    };
    let Some(dwords) = files::field(&text, "RegistryDwords", ':') else {
        return question.skip(format!("{PARAMETERS} has no RegistryDwords"));
    };
    let remedy = "/etc/modprobe.d/gdsync.conf: options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\"; then `update-initramfs -u` and reboot";
    match files::registry_dword(dwords, PEER_MAPPING) {
        Some(1) => question.pass("1"),
        found => {
            let seen = found.map_or_else(|| "not set".to_owned(), |value| format!("{value}"));
            let status = machine.tree.text("/proc/self/status").unwrap_or_default();
            match files::has_capability(&status, SYS_ADMIN) {
                Some(true) => question.pass(format!("{seen}, which this process, as root, does not need")),
                _ => question.warn(seen, remedy).fixed_by([
                    "echo 'options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\"' > /etc/modprobe.d/gdsync.conf",
                    "update-initramfs -u",
                    "reboot",
                ]),
            }
        }
    }
}

fn stream_memops_parameter(machine: &Machine<'_>) -> Check {
    let question = Question::new(
        "EnableStreamMemOPs",
        "it enables the first version of stream memory operations; gdsync uses the second, which every driver for CUDA 12 has",
    );
    let text = match machine.tree.text(PARAMETERS) {
        Ok(text) => text,
        Err(unread) => return question.skip(unread),
    };
    match files::field(&text, "EnableStreamMemOPs", ':') {
        Some(value) => question.pass(format!("{value}, not needed")),
        None => question.pass("not among the driver's parameters, not needed"),
    }
}
