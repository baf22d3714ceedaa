//! Queues, by verbs and by device commands.

use super::super::probe::Probe;
use super::Step;
use gdsync::advanced::QueueApi;
use gdsync::qp::SharedReceiveQueue;
use gdsync::verbs::Transport;
use gdsync::{CompletionQueue, CompletionQueueConfig, QueuePair, QueuePairConfig};
use gdsync_cli::failure::Failure;

const VERBS: &str = "check that `ibv_rc_pingpong` runs: the driver or libmlx5 makes no queues";
const DEVX: &str = "make queues by verbs (the default), or install a kernel and an rdma-core with DEVX";

pub(super) const STEPS: &[Step] = &[
    Step::new("queues.completion", "completion queues of several sizes", VERBS, completion_queues),
    Step::new("queues.verbs", "a queue pair by verbs, in each state", VERBS, by_verbs),
    Step::new("queues.devx", "a queue pair by device commands, in each state", DEVX, by_commands),
    Step::new("queues.sizes", "queue pairs of several sizes", VERBS, sizes),
    Step::new("queues.transports", "a queue pair of each transport", VERBS, transports),
    Step::new("queues.shared", "a shared receive queue", VERBS, shared),
    Step::new("queues.many", "200 queue pairs at a time", VERBS, many),
];

fn completion_queues(probe: &Probe) -> Result<(), Failure> {
    for (name, queues) in [("verbs", QueueApi::Verbs), ("devx", QueueApi::Devx)] {
        for entries in [1, 100, 4096] {
            let config = CompletionQueueConfig::from(entries).queues(queues);
            let made = CompletionQueue::new(&probe.device, config)?;
            probe.note(format!("{name}.{entries}"), made.entries())?;
        }
    }
    Ok(())
}

fn by_verbs(probe: &Probe) -> Result<(), Failure> {
    states(probe, probe.config())
}

fn by_commands(probe: &Probe) -> Result<(), Failure> {
    states(probe, probe.config().queues(QueueApi::Devx))
}

/// Notes the context of a queue pair that is made, connected, aborted and reset.
fn states(probe: &Probe, config: QueuePairConfig<'_>) -> Result<(), Failure> {
    let queue_pair = QueuePair::new(&probe.pd, config)?;
    probe.note("max_inline", queue_pair.max_inline())?;
    probe.note("max_message", queue_pair.max_message())?;
    probe.context("made", &queue_pair)?;
    queue_pair.connect(&queue_pair.endpoint()?, Default::default())?;
    probe.context("connected", &queue_pair)?;
    queue_pair.abort()?;
    probe.context("aborted", &queue_pair)?;
    queue_pair.reset()?;
    probe.context("reset", &queue_pair)
}

fn sizes(probe: &Probe) -> Result<(), Failure> {
    for (depth, segments, inline) in [(1, 1, 0), (64, 4, 44), (1024, 16, 128), (8192, 4, 44), (128, 30, 400)]
    {
        let config = probe
            .config()
            .send_depth(depth)
            .recv_depth(depth)
            .send_segments(segments)
            .recv_segments(segments)
            .inline(inline);
        let name = format!("{depth}x{segments}x{inline}");
        match QueuePair::new(&probe.pd, config) {
            Ok(made) => probe.note(format!("{name}.max_inline"), made.max_inline())?,
            Err(error) => probe.note(format!("{name}.refused"), error.to_string())?,
        }
    }
    Ok(())
}

fn transports(probe: &Probe) -> Result<(), Failure> {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Dc] {
        let made = QueuePair::new(&probe.pd, probe.config().transport(transport))?;
        probe.note(format!("{transport}.max_message"), made.max_message())?;
        probe.context(&transport.to_string(), &made)?;
    }
    Ok(())
}

fn shared(probe: &Probe) -> Result<(), Failure> {
    let receives = SharedReceiveQueue::new(&probe.pd, 64)?;
    probe.note("depth", receives.depth())?;
    let made = QueuePair::new(&probe.pd, probe.config().shared_receive_queue(&receives))?;
    probe.context("of_shared", &made)
}

fn many(probe: &Probe) -> Result<(), Failure> {
    let all: Vec<QueuePair> =
        (0..200).map(|_| QueuePair::new(&probe.pd, probe.config())).collect::<Result<_, _>>()?;
    let mut numbers: Vec<u32> = all.iter().map(QueuePair::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    probe.note("distinct", numbers.len() as u64)
}
