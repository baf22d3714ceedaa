//! A stream sends and waits for the arrival; the CPU only prepares. Needs no hardware, no GPU and no `unsafe`.
//!
//! `cargo run --example stream_send -p gdsync`; with a card, `cargo run --example stream_send -p gdsync mlx5_0`

use gdsync::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig,
    SoftStream, Stream, WorkRequest,
};
use std::error::Error;
use std::io::Write;

fn main() -> Result<(), Box<dyn Error>> {
    // Two connected queue pairs on the software card, or on the one that is named.
    let device = match std::env::args().nth(1) {
        Some(name) => Device::named(&name)?,
        None => Device::software()?,
    };
    let pd = ProtectionDomain::new(&device)?;
    let (left, right) =
        (QueuePair::new(&pd, QueuePairConfig::default())?, QueuePair::new(&pd, QueuePairConfig::default())?);
    left.connect(&right.endpoint()?, ConnectOptions::default())?;
    right.connect(&left.endpoint()?, ConnectOptions::default())?;

    // Memory that the card may access.
    let source = MemoryRegion::allocate(&pd, 5, Access::empty())?;
    let target = MemoryRegion::allocate(&pd, 5, Access::LOCAL_WRITE)?;
    source.write(0, b"hello");

    // The CPU prepares: nothing is sent yet.
    right.post_recv(&[target.slice(..)?], 0)?;
    let slices = [source.slice(..)?];
    let send = left.prepare(WorkRequest::send(&slices))?;
    let arrival = right.recv_cq().prepare_wait()?;

    // The stream rings the card and waits for the completion, between its other work.
    let stream = Stream::new(SoftStream::new()?)?;
    let posted = stream.post(Batch::new().send(send).wait(arrival))?;
    let arrived = target.clone();
    stream.launch(move || {
        let mut text = [0; 5];
        arrived.read(0, &mut text);
        // A kernel that runs after the wait finds the message there.
        assert_eq!(&text, b"hello");
    })?;
    stream.synchronize()?;
    writeln!(std::io::stdout(), "\"hello\" went by {} memory operations", posted.operations)?;
    Ok(())
}
