//! Work requests of a reliable connection: what each leaves in memory and in the completion queues.

use super::super::probe::{Probe, REGION, SENT, UNTOUCHED, check, within_patience};
use super::Step;
use gdsync::WorkRequest;
use gdsync_cli::failure::Failure;

const PATH: &str = "check the port's link and, on RoCE, the GID that `open.gids` has chosen: packets of a port to itself are lost";
const ORDER: &str = "please send the file: the card's entries differ from what gdsync expects";

pub(super) const STEPS: &[Step] = &[
    Step::new("rc.send", "a send, and its receive", PATH, send),
    Step::new("rc.send-immediate", "a send with immediate data", PATH, send_immediate),
    Step::new("rc.send-inline", "a send whose data is in the work request", PATH, send_inline),
    Step::new("rc.send-empty", "a send of no bytes", PATH, send_empty),
    Step::new("rc.write", "an RDMA write", PATH, write),
    Step::new("rc.write-immediate", "an RDMA write with immediate data", PATH, write_immediate),
    Step::new("rc.write-inline", "an RDMA write whose data is in the work request", PATH, write_inline),
    Step::new("rc.write-long", "an RDMA write of many packets", PATH, write_long),
    Step::new("rc.write-unaligned", "RDMA writes to odd addresses", PATH, write_unaligned),
    Step::new("rc.read", "an RDMA read", PATH, read),
    Step::new("rc.read-long", "an RDMA read of many packets", PATH, read_long),
    Step::new("rc.fetch-add", "a fetch-and-add", PATH, fetch_add),
    Step::new("rc.compare-swap", "a compare-and-swap that swaps, and one that does not", PATH, compare_swap),
    Step::new("rc.nop", "a request that does nothing", PATH, nop),
    Step::new("rc.gather", "a write of four pieces", PATH, gather),
    Step::new("rc.scatter", "a receive of four pieces", PATH, scatter),
    Step::new("rc.unsignaled", "requests of which the last one completes", ORDER, unsignaled),
    Step::new("rc.fence", "a fenced write behind a read", ORDER, fence),
    Step::new("rc.order", "the order of 16 different requests' entries", ORDER, order),
    Step::new("rc.wrap", "three laps of every ring", ORDER, wrap),
];

fn send(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.receive(7)?;
    pair.post(WorkRequest::send(&[pair.source.slice(..100)?]).wr_id(1))?;
    pair.arrives(probe, "send", 100)
}

fn send_immediate(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.receive(7)?;
    pair.post(WorkRequest::send(&[pair.source.slice(..5000)?]).immediate(0x0102_0304).solicited().wr_id(1))?;
    pair.arrives(probe, "send", 5000)
}

fn send_inline(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    for len in [1, 32, 44] {
        pair.receive(len)?;
        let bytes = [SENT; 44];
        pair.post(WorkRequest::send_inline(&bytes[..len as usize]).wr_id(len))?;
        pair.succeeds(probe, "send")?;
        probe.success("receive", &pair.right.recv_cq())?;
    }
    pair.check_target(44)
}

fn send_empty(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.receive(7)?;
    pair.post(WorkRequest::send(&[]).wr_id(1))?;
    pair.arrives(probe, "send", 0)
}

fn write(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let to = pair.target.remote().slice(..256)?;
    pair.post(WorkRequest::write(&[pair.source.slice(..256)?], to).wr_id(1))?;
    pair.succeeds(probe, "write")?;
    probe.context("after", &pair.left)?;
    pair.check_target(256)
}

fn write_immediate(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.receive(7)?;
    let to = pair.target.remote().slice(..5000)?;
    pair.post(WorkRequest::write(&[pair.source.slice(..5000)?], to).immediate(0xa0b0_c0d0).wr_id(1))?;
    pair.arrives(probe, "write", 5000)
}

fn write_inline(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let to = pair.target.remote().slice(..16)?;
    pair.post(WorkRequest::write_inline(&[SENT; 16], to).wr_id(1))?;
    pair.succeeds(probe, "write")?;
    pair.check_target(16)
}

fn write_long(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.post(WorkRequest::write(&[pair.source.slice(..)?], pair.target.remote()).wr_id(1))?;
    pair.succeeds(probe, "write")?;
    pair.check_target(REGION)
}

fn write_unaligned(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    for (number, (at, len)) in [(1, 1), (4095, 2), (8191, 4098)].into_iter().enumerate() {
        let to = pair.target.remote().slice(at..at + len)?;
        pair.post(WorkRequest::write(&[pair.source.slice(3..3 + len)?], to).wr_id(number as u64))?;
        pair.succeeds(probe, "write")?;
    }
    let mut bytes = vec![0; REGION];
    pair.target.read(0, &mut bytes);
    let sent = bytes.iter().filter(|byte| **byte == SENT).count();
    probe.note("bytes_written", sent as u64)?;
    match bytes[0] == UNTOUCHED
        && bytes[2] == UNTOUCHED
        && bytes[4094] == UNTOUCHED
        && bytes[4097] == UNTOUCHED
    {
        true => Ok(()),
        false => Err("a byte beside a message was written".into()),
    }
}

fn read(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let from = pair.source.remote().slice(..300)?;
    pair.post(WorkRequest::read(&[pair.target.slice(..300)?], from).wr_id(1))?;
    pair.succeeds(probe, "read")?;
    pair.check_target(300)
}

fn read_long(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.post(WorkRequest::read(&[pair.target.slice(..)?], pair.source.remote()).wr_id(1))?;
    pair.succeeds(probe, "read")?;
    pair.check_target(REGION)
}

fn fetch_add(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.target.write(64, &40u64.to_le_bytes());
    let (result, word) = (pair.source.slice(..8)?, pair.target.remote().slice(64..72)?);
    pair.post(WorkRequest::fetch_add(&result, word, 2).wr_id(1))?;
    pair.succeeds(probe, "fetch_add")?;
    note_words(probe, &pair.source, 0, "fetched")?;
    note_words(probe, &pair.target, 64, "word")
}

fn compare_swap(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.target.write(64, &40u64.to_le_bytes());
    let (result, word) = (pair.source.slice(..8)?, pair.target.remote().slice(64..72)?);
    for (compare, swap) in [(40, 41), (40, 99)] {
        pair.post(WorkRequest::compare_swap(&result, word, compare, swap).wr_id(swap))?;
        pair.succeeds(probe, "compare_swap")?;
        note_words(probe, &pair.source, 0, "fetched")?;
        note_words(probe, &pair.target, 64, "word")?;
    }
    Ok(())
}

fn note_words(probe: &Probe, region: &gdsync::MemoryRegion, at: usize, name: &str) -> Result<(), Failure> {
    let mut word = [0; 8];
    region.read(at, &mut word);
    probe.note(name, u64::from_le_bytes(word))
}

fn nop(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.post(WorkRequest::nop().wr_id(1))?;
    pair.succeeds(probe, "nop")?;
    Ok(())
}

fn gather(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let pieces = [
        pair.source.slice(..1)?,
        pair.source.slice(100..103)?,
        pair.source.slice(4090..4100)?,
        pair.source.slice(..86)?,
    ];
    let to = pair.target.remote().slice(..100)?;
    pair.post(WorkRequest::write(&pieces, to).wr_id(1))?;
    pair.succeeds(probe, "write")?;
    pair.check_target(100)
}

fn scatter(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let pieces = [
        pair.target.slice(..10)?,
        pair.target.slice(10..11)?,
        pair.target.slice(11..50)?,
        pair.target.slice(50..300)?,
    ];
    pair.right.post_recv(&pieces, 7)?;
    pair.post(WorkRequest::send(&[pair.source.slice(..100)?]).wr_id(1))?;
    pair.arrives(probe, "send", 100)
}

fn unsignaled(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    for number in 0..8 {
        let to = pair.target.remote().slice(number * 8..number * 8 + 8)?;
        let slices = [pair.source.slice(..8)?];
        let request = WorkRequest::write(&slices, to).wr_id(number as u64);
        pair.post(if number == 7 { request } else { request.unsignaled() })?;
    }
    pair.succeeds(probe, "last")?;
    probe.note("more", pair.left.send_cq().poll()?.is_some())?;
    pair.check_target(64)
}

fn fence(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.source.write(0, &[UNTOUCHED; 64]);
    // The write sends what the read has fetched.
    let fetched = pair.target.slice(4096..4160)?;
    pair.target.write(4096, &[0; 64]);
    pair.post(WorkRequest::read(&[fetched], pair.source.remote().slice(64..128)?).wr_id(1))?;
    let to = pair.target.remote().slice(..64)?;
    pair.post(WorkRequest::write(&[pair.target.slice(4096..4160)?], to).fence().wr_id(2))?;
    pair.succeeds(probe, "read")?;
    pair.succeeds(probe, "write")?;
    pair.target.write(4096, &[UNTOUCHED; 64]);
    pair.check_target(64)
}

fn order(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let (result, word) = (pair.source.slice(..8)?, pair.target.remote().slice(..8)?);
    for turn in 0..4u64 {
        pair.receive(100 + turn)?;
        let long = [pair.source.slice(4096..)?];
        let to = pair.target.remote().slice(4096..)?;
        pair.post(WorkRequest::write(&long, to).wr_id(4 * turn))?;
        pair.post(WorkRequest::fetch_add(&result, word, 1).wr_id(4 * turn + 1))?;
        pair.post(WorkRequest::read(&long, to).wr_id(4 * turn + 2))?;
        pair.post(WorkRequest::send(&[pair.source.slice(..9)?]).wr_id(4 * turn + 3))?;
    }
    (0..16).try_for_each(|_| probe.success("sent", &pair.left.send_cq()).map(drop))?;
    (0..4).try_for_each(|_| probe.success("received", &pair.right.recv_cq()).map(drop))
}

fn wrap(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config().send_depth(8).recv_depth(8))?;
    let laps = 3 * pair.left.send_cq().entries();
    for number in 0..u64::from(laps) {
        pair.receive(number)?;
        pair.post(WorkRequest::send(&[pair.source.slice(..64)?]).wr_id(number))?;
        for (side, queue) in [("send", pair.left.send_cq()), ("receive", pair.right.recv_cq())] {
            let found = within_patience(side, || Ok(queue.poll()?))?;
            found.status?;
            if found.wr_id != number {
                return Err(format!("{side} {number} completes as {}", found.wr_id).into());
            }
        }
    }
    check(&pair.target, 0, 64)
}
