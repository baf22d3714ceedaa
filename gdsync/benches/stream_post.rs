//! The library's part of a send's post on a stream: `cargo bench -p gdsync`. The backend under the streams performs
//! nothing, so that a post consists of checks, the order of sends, translations and the list of work in flight.
//! `scripts/bench/stream-instructions` counts the instructions of the four functions that are not inlined.
//!
//! Sends are posted in bursts. After each burst the backend performs the last doorbell, which gives all of them to
//! the card.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use gdsync::memop::{MemOp, MemOpCaps, MemOpStream, StreamError};
use gdsync::memory::{HostAddr, StreamAddr};
use gdsync::stream::Cpu;
use gdsync::{
    Access, Device, MemoryRegion, PreparedSend, ProtectionDomain, QueuePair, RemoteMemory, Stream,
    WorkRequest,
};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Sends between two looks at the completions: the queues never fill.
const BURST: usize = 16;
const BURSTS: usize = 20_000;

/// Keeps the newest doorbell: the addresses and values of a record and a register.
#[derive(Default)]
struct Later([AtomicU64; 4]);

// SAFETY: it performs its operations never, or once and in order (`Later::perform`, before anything else is
// submitted); addresses are the host's.
unsafe impl MemOpStream for Later {
    fn caps(&self) -> MemOpCaps {
        MemOpCaps::FULL
    }

    fn translate(&self, addr: HostAddr, _len: usize) -> Result<StreamAddr, StreamError> {
        Ok(StreamAddr::new(addr.get()))
    }

    #[inline]
    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        for op in ops {
            let (at, addr, value) = match *op {
                MemOp::Write32 { addr, value } => (0, addr, value.into()),
                MemOp::Write64 { addr, value } => (2, addr, value),
                _ => continue,
            };
            self.0[at].store(addr.get(), Ordering::Relaxed);
            self.0[at + 1].store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn wait_idle(&self, _timeout: Duration) -> Result<bool, StreamError> {
        Ok(true)
    }
}

impl Later {
    fn perform(&self) {
        let [record, to_record, register, to_register] =
            self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let ops = [
            MemOp::Write32 { addr: StreamAddr::new(record), value: to_record as u32 },
            MemOp::Write64 { addr: StreamAddr::new(register), value: to_register },
        ];
        // SAFETY: record and register of the bench's queue pair, which is alive, as `submit` received them.
        unsafe { Cpu::new().submit(&ops) }.unwrap();
    }
}

struct Bench {
    stream: Stream<Later>,
    left: QueuePair,
    _right: QueuePair,
    target: MemoryRegion,
    sends: Vec<PreparedSend>,
}

impl Bench {
    fn new() -> Self {
        let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
        let [left, right] = [(); 2].map(|()| QueuePair::new(&pd, Default::default()).unwrap());
        left.connect(&right.endpoint().unwrap(), Default::default()).unwrap();
        right.connect(&left.endpoint().unwrap(), Default::default()).unwrap();
        let target = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
        let stream = Stream::new(Later::default()).unwrap();
        Bench { stream, left, _right: right, target, sends: Vec::with_capacity(BURST) }
    }

    /// Nanoseconds per post: the median over the bursts.
    fn measure(&mut self, bursts: usize, prepared: bool, burst: impl Fn(&mut Self, RemoteMemory)) -> f64 {
        let remote = self.target.remote();
        let mut times: Vec<f64> = (0..bursts)
            .map(|_| {
                for _ in 0..if prepared { BURST } else { 0 } {
                    self.sends
                        .push(self.left.prepare(WorkRequest::write_inline(b"whatever", remote)).unwrap());
                }
                let start = Instant::now();
                burst(self, remote);
                let time = start.elapsed().as_secs_f64() * 1e9 / BURST as f64;
                self.stream.perform();
                self.stream.synchronize().unwrap();
                self.collect();
                time
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }

    fn collect(&self) {
        let mut left = BURST;
        while left > 0 {
            match self.left.send_cq().poll().unwrap() {
                Some(completion) => {
                    completion.status.unwrap();
                    left -= 1;
                }
                None => std::thread::yield_now(),
            }
        }
    }
}

#[inline(never)]
fn post_send(bench: &mut Bench, _remote: RemoteMemory) {
    for send in bench.sends.drain(..) {
        bench.stream.post_send(send).unwrap();
    }
}

#[inline(never)]
fn post_send_mut(bench: &mut Bench, _remote: RemoteMemory) {
    for send in bench.sends.drain(..) {
        bench.stream.post_send_mut(send).unwrap();
    }
}

#[inline(never)]
fn queue_send(bench: &mut Bench, remote: RemoteMemory) {
    for _ in 0..BURST {
        bench.stream.queue_send(&bench.left, WorkRequest::write_inline(b"whatever", remote)).unwrap();
    }
}

fn main() {
    // A numeric argument is the number of bursts; cargo passes `--bench`.
    let bursts = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(BURSTS);
    let mut bench = Bench::new();
    let mut out = std::io::stdout();
    let rows: [(&str, f64); 3] = [
        ("post_send", bench.measure(bursts, true, post_send)),
        ("post_send_mut", bench.measure(bursts, true, post_send_mut)),
        ("queue_send", bench.measure(bursts, false, queue_send)),
    ];
    for (what, ns) in rows {
        writeln!(out, "{what:<15} {ns:6.1} ns").unwrap();
    }
}
