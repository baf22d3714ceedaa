//! The batch compiler: any sequence of words and bytes, for any backend, becomes operations that the backend supports
//! and that change memory as the sequence states.
#![no_main]

use gdsync::{Batch, PinnedMemory, Stream};
use gdsync::batch::MemoryWrite;
use gdsync::memop::{Condition, MemOp, MemOpCaps, MemOpStream, MemoryKind, Staged, StreamError, Word32, Word64};
use gdsync::memory::{HostAddr, StreamAddr};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

const SIZE: usize = 2 * 4096;
/// Distance of stream addresses from host addresses, which detects confusion of the two.
const SHIFT: u64 = 1 << 60;

/// Executes writes on a model of the memory, and checks the operations.
struct Model {
    caps: MemOpCaps,
    base: u64,
    memory: Mutex<Vec<u8>>,
}

impl Model {
    /// Returns the part of the model at an address; `None` for the library's own words.
    fn range(&self, addr: StreamAddr, len: usize) -> Option<Range<usize>> {
        let host = addr.get().checked_sub(SHIFT).expect("an address that was not translated");
        let start = usize::try_from(host.checked_sub(self.base)?).ok()?;
        (start + len <= SIZE).then_some(start..start + len)
    }

    fn store(&self, addr: StreamAddr, bytes: &[u8]) {
        if let Some(range) = self.range(addr, bytes.len()) {
            self.memory.lock().unwrap()[range].copy_from_slice(bytes);
        }
    }

    fn load<const N: usize>(&self, addr: StreamAddr) -> [u8; N] {
        let range = self.range(addr, N).expect("a wait for the library's own word");
        self.memory.lock().unwrap()[range].try_into().unwrap()
    }
}

// SAFETY: executes operations in its own memory, before `submit` returns.
unsafe impl MemOpStream for Model {
    fn caps(&self) -> MemOpCaps {
        self.caps
    }

    fn translate(&self, addr: HostAddr, len: usize) -> std::result::Result<StreamAddr, StreamError> {
        assert_eq!(addr.get() / 4096, (addr.get() + len as u64 - 1) / 4096, "a range that leaves its page");
        Ok(StreamAddr::new(addr.get() + SHIFT))
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> std::result::Result<(), StreamError> {
        assert!(ops.len() <= self.caps.max_ops, "{} operations", ops.len());
        for op in ops {
            match *op {
                MemOp::Write32 { addr, value } => {
                    assert_eq!(addr.get() % 4, 0);
                    self.store(addr, &value.to_ne_bytes());
                }
                MemOp::Write64 { addr, value } => {
                    assert!(addr.get() % 8 == 0 && self.caps.ops_64_bit);
                    self.store(addr, &value.to_ne_bytes());
                }
                // The wait is `Geq` with the word's value at this point of the sequence.
                MemOp::Wait32 { addr, value, .. } => assert_eq!(u32::from_ne_bytes(self.load(addr)), value),
                MemOp::Wait64 { addr, value, .. } => {
                    assert!(self.caps.ops_64_bit);
                    assert_eq!(u64::from_ne_bytes(self.load(addr)), value);
                }
                MemOp::FlushRemote => assert!(self.caps.flush_remote || self.caps.flush_after_wait),
                _ => {}
            }
        }
        Ok(())
    }

    unsafe fn write_bytes(
        &self,
        to: StreamAddr,
        kind: MemoryKind,
        bytes: &[u8],
    ) -> std::result::Result<Staged, StreamError> {
        assert!(kind == MemoryKind::Host && !bytes.is_empty());
        self.store(to, bytes);
        Ok(None)
    }

    fn wait_idle(&self, _timeout: Duration) -> std::result::Result<bool, StreamError> {
        Ok(true)
    }
}

fn case(bytes: &[u8]) -> Result<()> {
    let mut input = Unstructured::new(bytes);
    let caps = MemOpCaps {
        max_ops: input.int_in_range(16..=255)?,
        ops_64_bit: input.ratio(7, 8)?,
        wait_nor: input.arbitrary()?,
        writes_are_fenced: input.arbitrary()?,
        flush_after_wait: input.arbitrary()?,
        flush_remote: input.arbitrary()?,
        ..MemOpCaps::FULL
    };
    let memory = PinnedMemory::allocate(SIZE).unwrap();
    let model = Model { caps, base: memory.addr().get(), memory: Mutex::new(vec![0; SIZE]) };
    let stream = Stream::new(model).unwrap();
    // The content of the memory after the descriptors so far.
    let mut expected = vec![0u8; SIZE];
    let mut batch = Batch::new();
    let mut refusable = false;
    while !input.is_empty() {
        batch = match input.int_in_range(0..=6)? {
            0 => {
                let (at, value) = (input.choose_index(SIZE / 4)? * 4, input.arbitrary::<u32>()?);
                expected[at..at + 4].copy_from_slice(&value.to_ne_bytes());
                batch.write_value32(&Word32::new(&memory, at).unwrap(), value)
            }
            1 => {
                let (at, value) = (input.choose_index(SIZE / 8)? * 8, input.arbitrary::<u64>()?);
                refusable |= !caps.ops_64_bit;
                expected[at..at + 8].copy_from_slice(&value.to_ne_bytes());
                batch.write_value64(&Word64::new(&memory, at).unwrap(), value)
            }
            2 => {
                let at = input.choose_index(SIZE / 4)? * 4;
                let value = u32::from_ne_bytes(expected[at..at + 4].try_into().unwrap());
                batch.wait_value32(&Word32::new(&memory, at).unwrap(), Condition::Geq, value)
            }
            3 => {
                let at = input.choose_index(SIZE / 8)? * 8;
                refusable |= !caps.ops_64_bit;
                let value = u64::from_ne_bytes(expected[at..at + 8].try_into().unwrap());
                batch.wait_value64(&Word64::new(&memory, at).unwrap(), Condition::Geq, value)
            }
            4 => batch.barrier(),
            5 => {
                refusable |= !caps.flush_remote;
                batch.flush()
            }
            _ => {
                let at = input.choose_index(SIZE)?;
                let len = input.int_in_range(0..=MemoryWrite::MAX.min(SIZE - at))?;
                let content = vec![input.arbitrary()?; len];
                expected[at..at + len].copy_from_slice(&content);
                batch.write_memory(MemoryWrite::new(&memory, at, &content).unwrap())
            }
        };
    }
    match stream.post(batch) {
        Ok(_) => {
            assert!(!refusable, "the backend lacks an operation of the batch");
            assert!(*stream.memory.lock().unwrap() == expected, "memory is not what the batch says");
        }
        Err(error) => assert!(refusable && !error.batch.is_empty(), "{error}"),
    }
    Ok(())
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // Too short an input is ignored.
    let _ = case(bytes);
});
