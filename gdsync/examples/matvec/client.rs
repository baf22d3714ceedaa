//! The client: sends batches of vectors, waits for the results, and checks them.

use crate::device::Failure;
use crate::work::{Cut, SIDE, VECTOR, coefficient, input};
use gdsync::{Access, MemoryRegion, ProtectionDomain, QueuePair, RemoteMemory, WorkRequest};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time limit of a round.
const LONG: Duration = Duration::from_secs(15);

/// The server's addresses of inputs, and the words that announce them.
pub(crate) struct Targets {
    pub(crate) inputs: RemoteMemory,
    pub(crate) arrived: RemoteMemory,
}

/// Inputs, results, and expected results.
pub(crate) struct Client {
    inputs: [MemoryRegion; 2],
    expected: [Vec<u32>; 2],
    pub(crate) results: MemoryRegion,
    /// A word for each piece: the last round with results.
    pub(crate) arrived: MemoryRegion,
}

/// Marks missing results: not a number.
const NOTHING: u32 = u32::MAX;

impl Client {
    /// Creates a client for batches of up to `vectors`.
    pub(crate) fn new(pd: &ProtectionDomain, vectors: usize, pieces: usize) -> Result<Self, Failure> {
        let allocate = |len| MemoryRegion::allocate(pd, len, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let inputs = |set: usize| -> Result<MemoryRegion, Failure> {
            let region = allocate(vectors * VECTOR)?;
            for (at, word) in region.words32().iter().enumerate() {
                word.store(input(set, at / SIDE, at % SIDE).to_bits(), Ordering::Relaxed);
            }
            Ok(region)
        };
        let expected = |set: usize| -> Vec<u32> {
            let element = |vector: usize, row: usize| -> f32 {
                (0..SIDE).map(|column| coefficient(row, column) * input(set, vector, column)).sum()
            };
            (0..vectors * SIDE).map(|at| element(at / SIDE, at % SIDE).to_bits()).collect()
        };
        let (results, arrived) = (allocate(vectors * VECTOR)?, allocate(pieces * 8)?);
        results.words32().iter().for_each(|word| word.store(NOTHING, Ordering::Relaxed));
        Ok(Client {
            inputs: [inputs(0)?, inputs(1)?],
            expected: [expected(0), expected(1)],
            results,
            arrived,
        })
    }

    /// Sends one batch, whose results are correct if `computed`. Returns the time from the first post to the last
    /// result.
    pub(crate) fn round(
        &self,
        links: &[&QueuePair],
        targets: &Targets,
        cut: Cut,
        round: u64,
        computed: bool,
        stop: &AtomicBool,
    ) -> Result<Duration, Failure> {
        // An idle software card sleeps; wakes it before the measurement.
        for link in links {
            link.post_send(WorkRequest::write_inline(&[], targets.arrived))?;
        }
        collect(links, 1)?;
        let set = (round % 2) as usize;
        let start = Instant::now();
        for piece in 0..cut.pieces {
            let link = links[piece % links.len()];
            let slices = [self.inputs[set].slice(cut.bytes(piece))?];
            let inputs = targets.inputs.slice(cut.bytes(piece))?;
            link.post_send(WorkRequest::write(&slices, inputs).unsignaled())?;
            let word = targets.arrived.slice(Cut::word(piece))?;
            link.post_send(WorkRequest::write_inline(&round.to_ne_bytes(), word))?;
        }
        for word in &self.arrived.words64()[..cut.pieces] {
            while word.load(Ordering::Acquire) < round {
                if stop.load(Ordering::Relaxed) || start.elapsed() > LONG {
                    // If inputs have failed, their completions state the reason.
                    collect_all(links)?;
                    return Err(format!("the results of round {round} do not come").into());
                }
                pause();
            }
        }
        let took = start.elapsed();
        collect(links, cut.pieces / links.len())?;
        let checked = self.check(cut, set);
        if computed {
            checked?;
        }
        Ok(took)
    }

    /// Checks all results bitwise, and clears them.
    fn check(&self, cut: Cut, set: usize) -> Result<(), Failure> {
        let pairs = self.results.words32().iter().zip(&self.expected[set]).take(cut.vectors * SIDE);
        let wrong = pairs
            .enumerate()
            .filter(|(_, (word, expected))| word.swap(NOTHING, Ordering::Relaxed) != **expected);
        match wrong.map(|(at, _)| at).min() {
            None => Ok(()),
            Some(at) => Err(format!("element {} of vector {} is wrong", at % SIDE, at / SIDE).into()),
        }
    }
}

/// Yields, for machines with few cores.
pub(crate) fn pause() {
    static MANY: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 4));
    if *MANY { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Polls the available completions.
fn collect_all(links: &[&QueuePair]) -> Result<(), Failure> {
    for link in links {
        while let Some(completion) = link.send_cq().poll()? {
            completion.status?;
        }
    }
    Ok(())
}

/// Polls `count` completions of each queue pair.
pub(crate) fn collect(links: &[&QueuePair], count: usize) -> Result<(), Failure> {
    for link in links {
        let (queue, start) = (link.send_cq(), Instant::now());
        let mut left = count;
        while left > 0 {
            match queue.poll()? {
                Some(completion) => {
                    completion.status?;
                    left -= 1;
                }
                None if start.elapsed() > LONG => return Err("completions do not come".into()),
                None => pause(),
            }
        }
    }
    Ok(())
}
