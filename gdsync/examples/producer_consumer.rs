//! A producer's kernel fills a buffer, the network transfers it, a consumer's kernel uses it, round after round, on
//! two streams without CPU synchronisation. Credits flow back the same way, so the producer never overwrites data
//! that the consumer still reads.
//!
//! `cargo run --example producer_consumer`

use gdsync::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig,
    SoftStream, Stream, WorkRequest,
};
use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ROUNDS: u64 = 32;
const WORDS: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::software()?;
    let pd = ProtectionDomain::new(&device)?;
    let (producer, consumer) =
        (QueuePair::new(&pd, QueuePairConfig::default())?, QueuePair::new(&pd, QueuePairConfig::default())?);
    producer.connect(&consumer.endpoint()?, ConnectOptions::default())?;
    consumer.connect(&producer.endpoint()?, ConnectOptions::default())?;
    let output = MemoryRegion::allocate(&pd, WORDS * 8, Access::empty())?;
    let input = MemoryRegion::allocate(&pd, WORDS * 8, Access::LOCAL_WRITE)?;
    let (producing, consuming) = (Stream::new(SoftStream::new()?)?, Stream::new(SoftStream::new()?)?);
    let sum = Arc::new(AtomicU64::new(0));

    // Everything is enqueued ahead; the CPU waits only at the end.
    for round in 0..ROUNDS {
        consumer.post_recv(&[input.slice(..)?], round)?;
        producer.post_recv(&[], round)?;

        let buffer = output.clone();
        producing.launch(move || {
            for (i, word) in buffer.words64().iter().enumerate() {
                word.store(round * i as u64, Ordering::Relaxed);
            }
        })?;
        let slices = [output.slice(..)?];
        let data = producer.prepare(WorkRequest::send(&slices).wr_id(round))?;
        let credit = producer.recv_cq().prepare_wait()?;
        producing.post(Batch::new().send(data).wait(credit))?;

        consuming.post(Batch::new().wait(consumer.recv_cq().prepare_wait()?))?;
        let (buffer, total) = (input.clone(), sum.clone());
        consuming.launch(move || {
            let words = buffer.words64().iter().map(|word| word.load(Ordering::Relaxed));
            total.fetch_add(words.sum(), Ordering::Relaxed);
        })?;
        let credit = consumer.prepare(WorkRequest::send(&[]).wr_id(round))?;
        consuming.post(Batch::new().send(credit))?;
    }
    producing.synchronize()?;
    consuming.synchronize()?;

    let expected: u64 = (0..ROUNDS).map(|round| round * (WORDS * (WORDS - 1) / 2) as u64).sum();
    if sum.load(Ordering::Relaxed) != expected {
        return Err(format!("the consumer saw {}, not {expected}", sum.load(Ordering::Relaxed)).into());
    }
    writeln!(std::io::stdout(), "{ROUNDS} rounds of {WORDS} words, sum {expected}, no CPU in between")?;
    Ok(())
}
