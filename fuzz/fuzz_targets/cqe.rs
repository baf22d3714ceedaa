//! Polling of a completion queue, for arbitrary entries from a card.
#![no_main]

use gdsync::{Access, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest, fuzzing};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use std::sync::LazyLock;

/// Most entries of a case: within one lap of the queue.
const MOST: u32 = 16;

static DOMAIN: LazyLock<ProtectionDomain> =
    LazyLock::new(|| ProtectionDomain::new(&Device::software().unwrap()).unwrap());

fn case(bytes: &[u8]) -> Result<()> {
    let mut input = Unstructured::new(bytes);
    let config = QueuePairConfig::default().send_depth(MOST).recv_depth(MOST);
    let queue_pair = QueuePair::new(&DOMAIN, config).unwrap();
    queue_pair.connect(&queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let memory = MemoryRegion::allocate(&DOMAIN, 64, Access::LOCAL_WRITE).unwrap();
    let mut sends = Vec::new();
    for i in 0..input.int_in_range(0..=4u64)? {
        let slices = [memory.slice(..).unwrap()];
        queue_pair.post_recv(&slices, i).unwrap();
        // Prepared but never rung: only this case writes completions.
        sends.push(queue_pair.prepare(WorkRequest::send(&slices)).unwrap());
    }
    let queue = if input.arbitrary()? { queue_pair.send_cq() } else { queue_pair.recv_cq() };
    for index in 0..input.int_in_range(0..=MOST)? {
        let mut entry: [u8; 64] = input.arbitrary()?;
        if input.arbitrary()? {
            // For a queue pair that completes here.
            entry[57..60].copy_from_slice(&queue_pair.number().to_be_bytes()[1..]);
        }
        if input.arbitrary()? {
            // For existing work, in the queue's first lap.
            (entry[60], entry[61]) = (0, entry[61] % 8);
            entry[63] &= 0xfe;
        }
        fuzzing::write_entry(&queue, index, &entry);
        match queue.poll() {
            Ok(Some(completion)) => {
                let _ = format!("{completion:?}");
            }
            Ok(None) => {}
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    Ok(())
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // Too short an input is ignored.
    let _ = case(bytes);
});
