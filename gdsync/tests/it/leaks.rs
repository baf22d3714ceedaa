//! No leaks: objects are made, used, failed and dropped in any order, thousands of times, with work in flight; then
//! the process has the files, mappings, threads and memory that it had after the first few hundred cycles.
//!
//! `GDSYNC_LEAK_CYCLES` is the number of cycles (default 10,000). With fewer than 500, for slow tools that keep
//! memory themselves, only files and threads are compared.

#![cfg(feature = "software-card")]

use gdsync::memop::{Condition, Word32};
use gdsync::persistent::{PersistentRecv, PersistentSend};
use gdsync::queue::Status;
use gdsync::verbs::{AddressHandle, Transport};
use gdsync::{
    Access, Batch, CompletionQueue, ConnectOptions, Device, MemoryRegion, PinnedMemory, ProtectionDomain,
    QueuePair, QueuePairConfig, RemoteMemory, SoftStream, Stream, WorkRequest,
};
use gdsync_test_support::lives::{Random, threads};
use gdsync_test_support::pair::{self, LONG, soft, synchronize};
use gdsync_test_support::process::alone;
use gdsync_test_support::{on_system, skipped};
use std::any::Any;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CYCLES: usize = 10_000;
/// After this many cycles, everything that the library and the allocator keep permanently is there.
const WARM_UP: usize = 500;
/// The device, and with it the software card, is closed and opened again after this many cycles.
const DEVICE_LIVES: usize = 50;
/// Allowed difference in mappings: the kernel joins neighbours, and the C library keeps the stacks of threads that
/// ended last.
const MAPPINGS: usize = 16;
/// Allowed growth of resident memory: the allocator's fragmentation, and pages of the library's arenas that were not
/// touched before. In 10,000 cycles that is a hundred bytes each: an occasional lost handle is found, a lost queue at
/// once.
const RESIDENT_KIB: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Figures {
    files: usize,
    mappings: usize,
    threads: usize,
    resident_kib: usize,
}

impl Figures {
    fn now() -> Figures {
        let count = |path| std::fs::read_dir(path).unwrap().count();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
        Figures {
            files: count("/proc/self/fd"),
            mappings: std::fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
            threads: count("/proc/self/task"),
            resident_kib: pages * 4,
        }
    }
}

/// Waits until the library's threads have finished everything that was dropped in flight. No stream and no card lives
/// after that.
fn settle(own_threads: usize) {
    let deadline = Instant::now() + LONG;
    loop {
        // Any stream reaps the work of dropped streams.
        assert_eq!(soft().outstanding(), 0);
        std::thread::sleep(Duration::from_millis(2));
        if threads() == own_threads {
            return;
        }
        assert!(Instant::now() < deadline, "something that was dropped lives on: {:?}", Figures::now());
    }
}

/// Counts of events, to detect a test that does nothing.
#[derive(Debug, Default)]
struct Tally {
    good: usize,
    aborted: usize,
    injected: usize,
    refused: usize,
    persistent: usize,
    in_flight: usize,
}

/// Two queue pairs, whatever their transport.
struct Two {
    left: QueuePair,
    right: QueuePair,
    address: Option<AddressHandle>,
}

impl Two {
    fn new(pd: &ProtectionDomain, transport: Transport, shared: Option<&CompletionQueue>) -> Two {
        let config = QueuePairConfig::default().transport(transport).send_depth(8).recv_depth(8);
        let new = || match shared {
            Some(queue) => pair::sharing(pd, config, queue, queue),
            None => pair::queue_pair(pd, config),
        };
        let (left, right) = (new().unwrap(), new().unwrap());
        let (here, there) = (left.endpoint().unwrap(), right.endpoint().unwrap());
        let options = ConnectOptions::default();
        let address = if transport == Transport::Ud {
            Some(left.address_handle(&there, options).unwrap())
        } else {
            left.connect(&there, options).unwrap();
            right.connect(&here, options).unwrap();
            None
        };
        Two { left, right, address }
    }

    fn request<'a>(&'a self, request: WorkRequest<'a>) -> WorkRequest<'a> {
        match &self.address {
            Some(address) => request.to(address, self.right.number(), 0x1111_1111),
            None => request,
        }
    }
}

fn cycle(device: &Device, random: &mut Random, tally: &mut Tally) {
    let pd = ProtectionDomain::new(device).unwrap();
    let transport = [Transport::Rc, Transport::Uc, Transport::Ud][random.below(3)];
    let shared = (random.below(3) == 0).then(|| pair::completion_queue(device, 64).unwrap());
    let two = Two::new(&pd, transport, shared.as_ref());
    let regions = [4096, 100].map(|len| MemoryRegion::allocate(&pd, len, Access::all()).unwrap());
    let (target, source) = (regions[0].slice(..).unwrap(), regions[1].slice(..).unwrap());
    let stream = Arc::new(soft());
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let gated = random.below(2) == 0;
    if gated {
        stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    } else {
        gate.store(1);
    }
    let mut left_over: Vec<Box<dyn Any>> = Vec::new();
    let slices = [source.clone()];
    match random.below(6) {
        0 => {
            let status = exchange(&two, &stream, &slices, &target);
            gate.store(1);
            synchronize(&stream);
            assert_eq!(status.get(), Some(Ok(())));
            tally.good += 1;
        }
        1 => {
            let status = exchange(&two, &stream, &slices, &target);
            two.left.abort().unwrap();
            two.right.abort().unwrap();
            gate.store(1);
            synchronize(&stream);
            assert!(status.get().is_some());
            tally.aborted += 1;
        }
        2 => {
            let plan = format!("fail=remote-operation nth=1 kind=send,datagram qp={}", two.left.number());
            softhca::set_faults(Some(plan.parse().unwrap()));
            let status = exchange(&two, &stream, &slices, &target);
            // The other side gets no message.
            two.right.abort().unwrap();
            gate.store(1);
            synchronize(&stream);
            assert_eq!(softhca::fault_counts()[0].injected, 1);
            softhca::set_faults(None);
            assert!(status.get().unwrap().is_err());
            // In a shared queue the first entry may be the other side's flush.
            assert!(shared.is_some() || two.left.failure().is_some());
            tally.injected += 1;
        }
        3 if transport == Transport::Rc => {
            let bad = RemoteMemory { addr: 0, len: 8, rkey: 1 };
            let send = two.left.prepare(WorkRequest::write_inline(&[1], bad)).unwrap();
            let wait = two.left.send_cq().prepare_wait().unwrap().checked().unwrap();
            let status = wait.status();
            stream.post(Batch::new().send(send).wait_checked(wait)).unwrap();
            gate.store(1);
            synchronize(&stream);
            assert!(status.get().unwrap().is_err());
            tally.refused += 1;
        }
        4 if transport != Transport::Ud => {
            let mut recv = PersistentRecv::new(&two.right, std::slice::from_ref(&target)).unwrap();
            let mut send = PersistentSend::send(&two.left, &slices).unwrap();
            for _ in 0..2 {
                recv.start(&stream).unwrap();
                send.start(&stream).unwrap();
                send.wait_on(&stream).unwrap();
                recv.wait_on(&stream).unwrap();
            }
            if random.below(2) == 0 && transport == Transport::Rc {
                gate.store(1);
                assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
                assert_eq!(recv.complete(LONG).unwrap().unwrap().status, Ok(()));
            }
            left_over.extend([Box::new(send) as Box<dyn Any>, Box::new(recv)]);
            tally.persistent += 1;
        }
        _ => {
            // Everything is dropped with this in progress: prepared, posted and awaited work. The test polls none of
            // its completions.
            left_over.push(Box::new(exchange(&two, &stream, &slices, &target)));
            let request = two.request(WorkRequest::send(&slices));
            left_over.push(Box::new(two.left.prepare(request).unwrap()));
            left_over.push(Box::new(two.left.send_cq().prepare_wait().unwrap().checked().unwrap()));
            left_over.push(Box::new(stream.watchdog(Duration::from_secs(1), |_, _| {}).unwrap()));
            tally.in_flight += 1;
        }
    }
    let Two { left, right, address } = two;
    left_over.extend([Box::new(left) as Box<dyn Any>, Box::new(right), Box::new(address), Box::new(shared)]);
    left_over.extend([Box::new(stream) as Box<dyn Any>, Box::new(pd), Box::new(regions)]);
    left_over.extend([Box::new(target) as Box<dyn Any>, Box::new(slices), Box::new(source)]);
    let opens_at = random.below(left_over.len());
    while !left_over.is_empty() {
        if left_over.len() == opens_at {
            gate.store(1);
        }
        drop(left_over.swap_remove(random.below(left_over.len())));
    }
    gate.store(1);
}

/// A message with a checked wait for its sending and a plain one for its arrival, and a receive that stays empty.
fn exchange(
    two: &Two,
    stream: &Stream<SoftStream>,
    slices: &[gdsync::Slice],
    target: &gdsync::Slice,
) -> Status {
    two.left.post_recv(std::slice::from_ref(target), 2).unwrap();
    two.right.post_recv(std::slice::from_ref(target), 1).unwrap();
    let send = two.left.prepare(two.request(WorkRequest::send(slices))).unwrap();
    let sent = two.left.send_cq().prepare_wait().unwrap().checked().unwrap();
    let arrived = two.right.recv_cq().prepare_wait().unwrap();
    let status = sent.status();
    stream.post(Batch::new().send(send).wait_checked(sent).wait(arrived)).unwrap();
    status
}

#[test]
fn nothing_is_left_behind() {
    let test = "nothing_is_left_behind";
    if on_system() {
        return skipped(test, "it injects faults into the software card of this process");
    }
    // The C library keeps as little freed memory as it can.
    let tunables = "glibc.pthread.stack_cache_size=0:glibc.malloc.arena_max=1";
    if !alone(module_path!(), test, &[("GLIBC_TUNABLES", tunables)]) {
        return;
    }
    let cycles = std::env::var("GDSYNC_LEAK_CYCLES").map_or(CYCLES, |text| text.parse().unwrap());
    let own_threads = threads();
    let (mut random, mut tally) = (Random(0x5eed), Tally::default());
    let mut run = |count: usize| {
        for first in (0..count).step_by(DEVICE_LIVES) {
            let device = Device::software().unwrap();
            (first..count.min(first + DEVICE_LIVES)).for_each(|_| cycle(&device, &mut random, &mut tally));
        }
        settle(own_threads);
        Figures::now()
    };
    let before = run(WARM_UP.min(cycles));
    let after = run(cycles);
    let text = format!("{cycles} cycles, {tally:?}\nbefore {before:?}\nafter  {after:?}\n");
    std::io::stderr().write_all(text.as_bytes()).unwrap();
    assert_eq!((after.files, after.threads), (before.files, before.threads));
    // Few cycles are for a tool which counts memory itself, and keeps some.
    if cycles >= WARM_UP {
        assert!(after.mappings <= before.mappings + MAPPINGS, "mappings are left");
        assert!(after.resident_kib <= before.resident_kib + RESIDENT_KIB, "memory is left");
    }
    let Tally { good, aborted, injected, refused, persistent, in_flight } = tally;
    let every_way = [good, aborted, injected, refused, persistent, in_flight];
    assert!(cycles < WARM_UP || every_way.iter().all(|count| *count > 0), "{every_way:?}");
}
