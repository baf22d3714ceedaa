//! The other transports, and receives that queue pairs share.

use super::super::probe::{Probe, UNTOUCHED, check, everything};
use super::Step;
use gdsync::qp::{DcTarget, DcTargetConfig, SharedReceiveQueue};
use gdsync::queue::GRH_BYTES;
use gdsync::verbs::{DcAddress, Transport};
use gdsync::{ConnectOptions, MemoryRegion, QueuePair, WorkRequest};
use gdsync_cli::failure::Failure;

const PATH: &str = "use RC, which all of gdsync needs: only programs of this transport are concerned";
const KEY: u64 = 0x1122_3344;
const QKEY: u32 = 0x1234;

pub(super) const STEPS: &[Step] = &[
    Step::new("uc.send", "a send of an unreliable connection", PATH, uc_send),
    Step::new("uc.write", "RDMA writes of an unreliable connection", PATH, uc_write),
    Step::new("ud.send", "a datagram, with the header that precedes it", PATH, ud_send),
    Step::new("ud.immediate", "a datagram with immediate data", PATH, ud_immediate),
    Step::new("dc.send", "a send to a DC target", PATH, dc_send),
    Step::new("dc.write", "an RDMA write and a read of a DC target's memory", PATH, dc_write),
    Step::new("dc.atomic", "a fetch-and-add on a DC target's memory", PATH, dc_atomic),
    Step::new("srq.two", "two queue pairs that take receives from one queue", PATH, shared_by_two),
];

fn uc_send(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config().transport(Transport::Uc))?;
    pair.receive(7)?;
    pair.post(WorkRequest::send(&[pair.source.slice(..5000)?]).wr_id(1))?;
    pair.arrives(probe, "send", 5000)
}

fn uc_write(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config().transport(Transport::Uc))?;
    pair.receive(7)?;
    let to = pair.target.remote().slice(..5000)?;
    pair.post(WorkRequest::write(&[pair.source.slice(..5000)?], to).immediate(9).wr_id(1))?;
    pair.arrives(probe, "write", 5000)
}

fn ud_send(probe: &Probe) -> Result<(), Failure> {
    datagram(probe, None)
}

fn ud_immediate(probe: &Probe) -> Result<(), Failure> {
    datagram(probe, Some(0x0908_0706))
}

fn datagram(probe: &Probe, immediate: Option<u32>) -> Result<(), Failure> {
    let config = probe.config().transport(Transport::Ud).qkey(QKEY);
    let (left, right) = (QueuePair::new(&probe.pd, config)?, QueuePair::new(&probe.pd, config)?);
    let (source, target) =
        (probe.region(everything(), super::super::probe::SENT)?, probe.region(everything(), UNTOUCHED)?);
    right.post_recv(&[target.slice(..4096)?], 7)?;
    let handle = left.address_handle(&right.endpoint()?, ConnectOptions::default())?;
    let slices = [source.slice(..200)?];
    let request = WorkRequest::send(&slices).to(&handle, right.number(), QKEY).wr_id(1);
    left.post_send(match immediate {
        Some(value) => request.immediate(value),
        None => request,
    })?;
    probe.success("send", &left.send_cq())?;
    let found = probe.success("receive", &right.recv_cq())?;
    probe.note("names_its_source", found.source.is_some_and(|source| source.qp_num == left.number()))?;
    // The header, if there is one, is the address of a host.
    target.write(0, &[UNTOUCHED; GRH_BYTES]);
    check(&target, GRH_BYTES, 200)
}

/// An initiator, a target, and the way there.
struct Dc {
    left: QueuePair,
    target: DcTarget,
    receives: SharedReceiveQueue,
    address: DcAddress,
    source: MemoryRegion,
    memory: MemoryRegion,
}

impl Dc {
    fn new(probe: &Probe) -> Result<Self, Failure> {
        let left = QueuePair::new(&probe.pd, probe.config().transport(Transport::Dc))?;
        let receives = SharedReceiveQueue::new(&probe.pd, 16)?;
        let config = DcTargetConfig::default().key(KEY).access(everything()).port(probe.port);
        let target = DcTarget::new(&probe.pd, &receives, config)?;
        let address = left.dc_address(&target.endpoint()?, KEY, ConnectOptions::default())?;
        let source = probe.region(everything(), super::super::probe::SENT)?;
        Ok(Dc { left, target, receives, address, source, memory: probe.region(everything(), UNTOUCHED)? })
    }
}

fn dc_send(probe: &Probe) -> Result<(), Failure> {
    let dc = Dc::new(probe)?;
    dc.receives.post_recv(&[dc.memory.slice(..)?], 7)?;
    dc.left.post_send(WorkRequest::send(&[dc.source.slice(..5000)?]).to_target(&dc.address).wr_id(1))?;
    probe.success("send", &dc.left.send_cq())?;
    probe.success("receive", &dc.target.recv_cq())?;
    check(&dc.memory, 0, 5000)
}

fn dc_write(probe: &Probe) -> Result<(), Failure> {
    let dc = Dc::new(probe)?;
    let to = dc.memory.remote().slice(..5000)?;
    let slices = [dc.source.slice(..5000)?];
    dc.left.post_send(WorkRequest::write(&slices, to).to_target(&dc.address).wr_id(1))?;
    probe.success("write", &dc.left.send_cq())?;
    dc.left.post_send(WorkRequest::read(&slices, to).to_target(&dc.address).wr_id(2))?;
    probe.success("read", &dc.left.send_cq())?;
    check(&dc.memory, 0, 5000)
}

fn dc_atomic(probe: &Probe) -> Result<(), Failure> {
    let dc = Dc::new(probe)?;
    dc.memory.write(0, &40u64.to_le_bytes());
    let (result, word) = (dc.source.slice(..8)?, dc.memory.remote().slice(..8)?);
    dc.left.post_send(WorkRequest::fetch_add(&result, word, 2).to_target(&dc.address).wr_id(1))?;
    probe.success("fetch_add", &dc.left.send_cq())?;
    let mut bytes = [0; 8];
    dc.memory.read(0, &mut bytes);
    probe.note("word", u64::from_le_bytes(bytes))
}

fn shared_by_two(probe: &Probe) -> Result<(), Failure> {
    let receives = SharedReceiveQueue::new(&probe.pd, 16)?;
    let config = probe.config().shared_receive_queue(&receives);
    let pairs = [probe.pair(config)?, probe.pair(config)?];
    for (number, pair) in pairs.iter().enumerate() {
        receives.post_recv(&[pairs[0].target.slice(number * 100..number * 100 + 100)?], number as u64)?;
        pair.post(WorkRequest::send(&[pair.source.slice(..100)?]).wr_id(1))?;
        pair.succeeds(probe, "send")?;
        probe.success("receive", &pair.right.recv_cq())?;
    }
    check(&pairs[0].target, 0, 200)
}
