//! The slots of GPUs and cards: the PCI Express link, relaxed ordering, and the window to a GPU's memory.

use super::machine::{Function, Machine};
use super::{Check, Question, files};

/// The window of GPUs without a resizable one. GPU memory that a CPU maps, or a card registers by peer memory, is in it.
const SMALL_WINDOW: u64 = 256 << 20;

pub(super) fn checks(machine: &Machine<'_>) -> Vec<Check> {
    let gpus = machine.gpus.iter().filter_map(|gpu| Some((gpu.name.as_str(), gpu.function.as_ref()?)));
    let cards = machine.cards.iter().filter_map(|card| Some((card.name.as_str(), card.function.as_ref()?)));
    let mut checks: Vec<Check> = gpus.clone().map(|(name, gpu)| window(machine, name, gpu)).collect();
    // A GPU at rest has a slow link, so its speed says nothing.
    checks.extend(gpus.map(|(name, gpu)| link(machine, name, gpu, false)));
    for (name, card) in cards {
        checks.extend([link(machine, name, card, true), relaxed_ordering(machine, name, card)]);
    }
    checks
}

/// `/sys/bus/pci/devices/*/{current,max}_link_{speed,width}` (Linux' `Documentation/ABI/testing/sysfs-bus-pci`).
fn link(machine: &Machine<'_>, name: &str, function: &Function, has_speed: bool) -> Check {
    let question = Question::new(
        format!("{name} link"),
        "messages cross it: with half of the lanes, or half of the speed, they take twice the time",
    );
    let read = |file: &str| machine.tree.text(&Machine::pci_file(&function.address, file));
    let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    let both = |what: &str| -> Result<Option<[(f64, String); 2]>, files::Unread> {
        let [current, most] = [read(&format!("current_link_{what}"))?, read(&format!("max_link_{what}"))?];
        // Virtual machines have unknown ones.
        let known = number(&current).zip(number(&most)).filter(|(now, most)| *now > 0.0 && *most < 255.0);
        Ok(known.map(|(now, max)| [(now, current), (max, most)]))
    };
    let (width, speed) = match (both("width"), both("speed")) {
        (Ok(Some(width)), Ok(speed)) => (width, speed.filter(|_| has_speed)),
        (Ok(None), _) => return question.skip("the system does not know its width"),
        (Err(unread), _) | (_, Err(unread)) => return question.skip(unread),
    };
    let [(lanes, now), (most_lanes, most)] = &width;
    let mut seen = format!("{now} of {most} lanes");
    let mut is_less = lanes < most_lanes;
    if let Some([(rate, now), (most_rate, most)]) = &speed {
        seen += &format!(", {now} of {most}");
        is_less |= rate < most_rate;
    }
    if is_less {
        return question.warn(
            seen,
            "put it into a slot of its width and generation, seat it again, and see the slot's setting in the firmware; `lspci -vv` says LnkCap and LnkSta of it and of the bridge above",
        );
    }
    question.pass(seen)
}

fn relaxed_ordering(machine: &Machine<'_>, name: &str, function: &Function) -> Check {
    let question = Question::new(
        format!("{name} relaxed ordering"),
        "with it, a card writes at full speed past a processor that keeps the order of others; regions ask for it by IBV_ACCESS_RELAXED_ORDERING",
    );
    let config = match machine.tree.bytes(&Machine::pci_file(&function.address, "config")) {
        Ok(config) => config,
        Err(unread) => return question.skip(unread),
    };
    match files::relaxed_ordering(&config) {
        Some(true) => question.pass("allowed"),
        Some(false) => question.warn(
            "forbidden for this function: the platform, or its kernel, has turned it off",
            format!("if the processor allows it, `setpci -s {} CAP_EXP+8.w=0010:0010`, or the firmware's setting; regions that ask for it work without", function.address),
        ),
        None => question.unknown("its configuration space does not show it", "run the doctor as root"),
    }
}

/// The second line of `resource`, which has the first and the last address and the flags of each window.
fn window(machine: &Machine<'_>, name: &str, gpu: &Function) -> Check {
    let question = Question::new(
        format!("{name} BAR1"),
        "GPU memory that the CPU maps, or that a card registers, needs room in it",
    );
    let text = match machine.tree.text(&Machine::pci_file(&gpu.address, "resource")) {
        Ok(text) => text,
        Err(unread) => return question.skip(unread),
    };
    let Some(bytes) = files::window(&text, 1) else {
        return question.skip(format!("resource of {} has no second window", gpu.address));
    };
    let seen = crate::size::text(bytes);
    if bytes > SMALL_WINDOW {
        return question.pass(seen);
    }
    question.warn(
        format!("{seen}: at most so much GPU memory is mapped and registered at a time, less what the driver uses"),
        "turn on Above 4G Decoding and Resizable BAR in the machine's firmware, or register less; `nvidia-smi -q -d MEMORY` says how much of it is used",
    )
}
