//! The same rounds twice, for their timeline: with and without the CPU between kernel and network (docs/trace.md).
//!
//! `cargo build --release --examples && gdsync trace -- target/release/examples/timeline`

use gdsync::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, Slice,
    SoftStream, Stream, WorkRequest,
};
use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 8;
const KERNEL: Duration = Duration::from_micros(20);

struct Bed {
    stream: Stream<SoftStream>,
    left: QueuePair,
    right: QueuePair,
    source: Slice,
    target: Slice,
}

fn kernel() {
    let start = Instant::now();
    while start.elapsed() < KERNEL {
        std::hint::spin_loop();
    }
}

/// Kernel, synchronize, the CPU rings, the CPU polls, next kernel.
fn with_the_cpu(bed: &Bed) -> Result<(), Box<dyn Error>> {
    let slices = [bed.source.clone()];
    for round in 0..ROUNDS {
        bed.stream.launch(kernel)?;
        bed.stream.synchronize()?;
        bed.left.post_send(WorkRequest::send(&slices).wr_id(round))?;
        while bed.right.recv_cq().poll()?.is_none() {}
        bed.stream.launch(kernel)?;
    }
    Ok(bed.stream.synchronize()?)
}

/// The CPU enqueues all rounds, and is done.
fn without_the_cpu(bed: &Bed) -> Result<(), Box<dyn Error>> {
    let slices = [bed.source.clone()];
    for round in 0..ROUNDS {
        let send = bed.left.prepare(WorkRequest::send(&slices).wr_id(round))?;
        let arrival = bed.right.recv_cq().prepare_wait()?;
        bed.stream.launch(kernel)?;
        bed.stream.post(Batch::new().send(send).wait(arrival))?;
        bed.stream.launch(kernel)?;
    }
    Ok(bed.stream.synchronize()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let pd = ProtectionDomain::new(&Device::software()?)?;
    let (left, right) =
        (QueuePair::new(&pd, QueuePairConfig::default())?, QueuePair::new(&pd, QueuePairConfig::default())?);
    left.connect(&right.endpoint()?, ConnectOptions::default())?;
    right.connect(&left.endpoint()?, ConnectOptions::default())?;
    let region = MemoryRegion::allocate(&pd, 128, Access::LOCAL_WRITE)?;
    let (source, target) = (region.slice(..64)?, region.slice(64..)?);
    let bed = Bed { stream: Stream::new(SoftStream::new()?)?, left, right, source, target };
    let mut out = std::io::stdout().lock();
    for (name, rounds) in [
        ("with the CPU in the way", with_the_cpu as fn(&Bed) -> Result<(), Box<dyn Error>>),
        ("with the CPU out of it", without_the_cpu),
    ] {
        for round in 0..ROUNDS {
            bed.right.post_recv(std::slice::from_ref(&bed.target), round)?;
        }
        let start = Instant::now();
        rounds(&bed)?;
        writeln!(out, "{ROUNDS} rounds {name}: {:?}", start.elapsed())?;
        // Polls the completions that the streams have waited for, which frees the entries of the queues.
        for queue in [bed.left.send_cq(), bed.right.recv_cq()] {
            while queue.poll()?.is_some() {}
        }
    }
    Ok(())
}
