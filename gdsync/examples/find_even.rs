//! Sparse results, sent by the threads that find them: a kernel scans a million numbers, and each thread sends the
//! even ones into the receiver's next free slot. The CPU does nothing meanwhile, and no thread collects.
//!
//! `cargo run --release --example find_even -p gdsync -- --gpu 0` compiles the kernel by NVRTC and runs it on a GPU. Without
//! `--gpu`, a C++ compiler compiles the same source for CPU threads. The card is the software card.

mod device;

use device::{Failure, Source};
use gdsync::cuda::{self, GpuMemory};
use gdsync::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use gdsync::device::{DeviceQp, DeviceQpData, DeviceQpOptions};
use gdsync::stream::Cpu;
use gdsync::{
    Access, ConnectOptions, CudaStream, Device, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePair,
    QueuePairConfig, Stream,
};
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const FIND_EVEN: Source = Source { name: "find_even.cu", text: include_str!("kernels/find_even.cu") };

/// Number of inputs, of which one in 64 is even.
const NUMBERS: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

/// The kernel's argument: `struct task` of find_even.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Task {
    numbers: u64,
    count: u64,
    shared: u64,
    slots: u64,
    signal: u64,
    rkey: u32,
    unused: u32,
}

// SAFETY: plain integers with the kernel's layout.
unsafe impl DeviceRepr for Task {}

/// Returns the numbers: pseudorandom, never 0.
fn numbers() -> Vec<u64> {
    let mixed = |i: u64| {
        let mixed = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    };
    (0..NUMBERS as u64).map(mixed).map(|x| if x >> 8 & 63 == 0 { (x & !1) | 2 } else { x | 1 }).collect()
}

/// Sender and receiver, and the receiver's memory: a slot for each number, then the word with the count.
struct Sides {
    sender: QueuePair,
    _receiver: QueuePair,
    received: MemoryRegion,
}

impl Sides {
    fn new() -> Result<Self, Failure> {
        let pd = ProtectionDomain::new(&Device::software()?)?;
        let config = QueuePairConfig::default().send_depth(512);
        let (sender, receiver) = (QueuePair::new(&pd, config)?, QueuePair::new(&pd, config)?);
        sender.connect(&receiver.endpoint()?, ConnectOptions::default())?;
        receiver.connect(&sender.endpoint()?, ConnectOptions::default())?;
        let received =
            MemoryRegion::allocate(&pd, (NUMBERS + 1) * 8, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Sides { sender, _receiver: receiver, received })
    }

    fn task(&self, numbers: u64, shared: u64) -> Task {
        let slots = self.received.remote().addr;
        let (signal, rkey) = (slots + NUMBERS as u64 * 8, self.received.rkey());
        Task { numbers, count: NUMBERS as u64, shared, slots, signal, rkey, unused: 0 }
    }

    /// Waits for the count as the receiver, and returns it with the elapsed time. `None` after a time-out.
    fn await_count(&self) -> Option<(usize, Duration)> {
        let start = Instant::now();
        loop {
            let signal = self.received.words64()[NUMBERS].load(Ordering::Acquire);
            if let Some(count) = signal.checked_sub(1) {
                return Some((count as usize, start.elapsed()));
            }
            if start.elapsed() > LONG {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Checks the first `count` slots, and that the rest is empty.
    fn check(&self, count: usize, numbers: &[u64]) -> Result<(), Failure> {
        let mut expected: Vec<u64> = numbers.iter().copied().filter(|number| number % 2 == 0).collect();
        let slots = &self.received.words64()[..NUMBERS];
        let mut found: Vec<u64> = slots.iter().map(|slot| slot.load(Ordering::Relaxed)).collect();
        let behind = found.split_off(count.min(NUMBERS));
        expected.sort_unstable();
        found.sort_unstable();
        if found != expected || behind.iter().any(|slot| *slot != 0) {
            return Err(format!("{count} results have come, not the {} even numbers", expected.len()).into());
        }
        Ok(())
    }
}

/// The result of a run.
struct Ran {
    how: String,
    threads: u32,
    doorbells: String,
    count: usize,
    took: Duration,
}

/// Checks the threads' words, once all are done.
fn check_threads(shared: &[u64; 4], threads: u32) -> Result<(), Failure> {
    match *shared {
        [_, done, 0, 0] if done == u64::from(threads) => Ok(()),
        [_, done, status, error] => {
            Err(format!("{done} of {threads} threads are done, status {status}, error {error:#x}").into())
        }
    }
}

fn on_gpu(ordinal: u32, sides: &Sides, numbers: &[u64]) -> Result<Ran, Failure> {
    let context = cuda::context(ordinal)?;
    let (module, how) = device::load(&context, &FIND_EVEN)?;
    let kernel = module.load_function("find_even")?;
    let stream = Stream::new(CudaStream::new(context.new_stream()?)?)?;
    let memory = |len| GpuMemory::allocate(&context, len);
    let (input, shared) = (memory(NUMBERS * 8)?, memory(32)?);
    input.write(0, &numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<_>>())?;
    // The threads' shared indices are in GPU memory, too.
    let device_qp = sides.sender.attach_device(&*stream, &DeviceQpOptions::default().state(&memory(320)?))?;
    let (data, task) = (device_qp.data(), sides.task(input.address(), shared.address()));
    let (blocks, threads) = (64, 256);
    let cudarc = stream.cudarc().ok_or("the stream is not cudarc's")?;
    let seen = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| sides.await_count());
        let mut launch = cudarc.launch_builder(&kernel);
        launch.arg(&data).arg(&task);
        let config =
            LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the arguments match the kernel's parameters; memory and queue pair live until the stream has passed
        // the launch.
        unsafe { launch.launch(config) }?;
        stream.synchronize()?;
        receiver.join().map_err(|_| Failure::from("the receiver panicked"))
    })?;
    let mut words = [0; 32];
    shared.read(0, &mut words)?;
    let word = |i: usize| words[i * 8..][..8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    finish(seen, [word(0), word(1), word(2), word(3)], how, blocks * threads, &device_qp)
}

fn on_threads(sides: &Sides, numbers: &[u64]) -> Result<Ran, Failure> {
    type Look = unsafe extern "C" fn(*const DeviceQpData, *const Task, u64, u64);
    let library = device::load_for_host(&FIND_EVEN)?;
    // SAFETY: find_even.cu defines the function with this type.
    let look = unsafe { library.get::<Look>(b"find_even") }?;
    let shared = PinnedMemory::allocate(32)?;
    let device_qp = sides.sender.attach_device(&Cpu::new(), &DeviceQpOptions::default())?;
    let (data, task) = (device_qp.data(), sides.task(numbers.as_ptr() as u64, shared.addr().get()));
    let threads = 8;
    let seen = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| sides.await_count());
        for thread in 0..u64::from(threads) {
            let (look, data, task) = (&look, &data, &task);
            // SAFETY: memory and queue pair outlive the scope and its threads.
            scope.spawn(move || unsafe { look(data, task, thread, u64::from(threads)) });
        }
        receiver.join().map_err(|_| Failure::from("the receiver panicked"))
    })?;
    let word = |i: usize| shared.words64()[i].load(Ordering::Acquire);
    let how = "compiled for the CPU".to_owned();
    finish(seen, [word(0), word(1), word(2), word(3)], how, threads, &device_qp)
}

/// Checks the result of a run, and takes the queue pair back.
fn finish(
    seen: Option<(usize, Duration)>,
    shared: [u64; 4],
    how: String,
    threads: u32,
    device_qp: &DeviceQp,
) -> Result<Ran, Failure> {
    check_threads(&shared, threads)?;
    let (count, took) = seen.ok_or("the count does not come")?;
    device_qp.detach_device(LONG)?;
    // Every result is one request, and the count is another.
    let posted = device_qp.progress()?.completed;
    if posted != count as u64 + 1 {
        return Err(format!("{posted} requests have completed for {count} results").into());
    }
    Ok(Ran { how, threads, doorbells: device_qp.doorbells().to_string(), count, took })
}

fn main() -> ExitCode {
    device::end(run())
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let gpu = match &arguments[..] {
        [] => None,
        [option, number] if option == "--gpu" => Some(number.parse()?),
        _ => return Err("usage: find_even [--gpu N]".into()),
    };
    let (sides, numbers) = (Sides::new()?, numbers());
    let Ran { how, threads, doorbells, count, took } = match gpu {
        Some(ordinal) => on_gpu(ordinal, &sides, &numbers)?,
        None => on_threads(&sides, &numbers)?,
    };
    sides.check(count, &numbers)?;
    let rate = count as f64 / took.as_secs_f64() / 1e6;
    let place = gpu.map_or("the CPU".to_owned(), |ordinal| format!("GPU {ordinal}"));
    writeln!(
        std::io::stdout(),
        "{NUMBERS} numbers, {threads} threads of {place}: {count} even ones, each sent by the thread that found it, all verified, in {took:.1?} ({rate:.2} million messages a second); doorbells {doorbells}; the kernel was {how}"
    )?;
    Ok(())
}
