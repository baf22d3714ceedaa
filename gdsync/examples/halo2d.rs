//! A stencil on a grid shared by four ranks: in each iteration, every rank sends the edges of its subdomain to its
//! neighbours and computes, all enqueued on a stream. The grid is a torus of 2 by 2 ranks. It runs merged and
//! unmerged; the result is bitwise equal to that of a single rank.
//!
//! `cargo run --example halo2d -p gdsync` uses software streams; `-- --gpu 0` uses CUDA streams that ring and wait, while the
//! CPU computes; `-- --gpu 0,1` or `--gpu all` distributes the ranks over these GPUs.

use gdsync::cuda::{self, GpuList, Gpus};
use gdsync::memop::MemOpStream;
use gdsync::{
    Access, Batch, ConnectOptions, CudaStream, Device, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairConfig, SoftStream, Stream, WorkRequest,
};
use std::error::Error;
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::Ordering;

type Failure = Box<dyn Error + Send + Sync>;

/// Cells of a rank's subdomain per dimension, and ranks per dimension.
const SIDE: usize = 24;
const RANKS: usize = 2;
const ITERATIONS: usize = 60;

/// Neighbours. Data sent to the north arrives there from the south.
const NORTH: usize = 0;
const SOUTH: usize = 1;
const WEST: usize = 2;
const EAST: usize = 3;
const OPPOSITE: [usize; 4] = [SOUTH, NORTH, EAST, WEST];

/// Returns the next value of a cell. The additions have the same order everywhere, so results are bitwise equal.
fn next(cell: f64, around: [f64; 4]) -> f64 {
    let [north, south, west, east] = around;
    0.5 * cell + 0.125 * (north + south + west + east)
}

fn first(row: usize, column: usize) -> f64 {
    ((row * 31 + column * 17) % 101) as f64 / 7.0
}

/// Computes the whole grid by one rank.
fn reference() -> Vec<f64> {
    let side = SIDE * RANKS;
    let mut grid: Vec<f64> = (0..side * side).map(|i| first(i / side, i % side)).collect();
    for _ in 0..ITERATIONS {
        let old = grid.clone();
        let at = |row: usize, column: usize| old[row % side * side + column % side];
        for (i, cell) in grid.iter_mut().enumerate() {
            let (row, column) = (i / side + side, i % side + side);
            let around = [at(row - 1, column), at(row + 1, column), at(row, column - 1), at(row, column + 1)];
            *cell = next(*cell, around);
        }
    }
    grid
}

/// Memory of a rank: its subdomain of the grid, four edges to send, and four to receive.
#[derive(Clone)]
struct Subdomain {
    memory: MemoryRegion,
}

impl Subdomain {
    const CELLS: usize = SIDE * SIDE;
    const WORDS: usize = Self::CELLS + 8 * SIDE;

    fn get(&self, word: usize) -> f64 {
        f64::from_bits(self.memory.words64()[word].load(Ordering::Relaxed))
    }

    fn set(&self, word: usize, value: f64) {
        self.memory.words64()[word].store(value.to_bits(), Ordering::Relaxed);
    }

    /// Returns the bytes of an edge that is sent to a neighbour, or received from it.
    fn edge(side: usize, received: bool) -> Range<usize> {
        let start = Self::CELLS + (side + 4 * usize::from(received)) * SIDE;
        start * 8..(start + SIDE) * 8
    }

    /// Copies the edges to the send buffers.
    fn pack(&self) {
        for i in 0..SIDE {
            let cells = [i, (SIDE - 1) * SIDE + i, i * SIDE, i * SIDE + SIDE - 1];
            for (side, cell) in cells.into_iter().enumerate() {
                self.set(Self::edge(side, false).start / 8 + i, self.get(cell));
            }
        }
    }

    fn compute(&self) {
        let old: Vec<f64> = (0..Self::CELLS).map(|cell| self.get(cell)).collect();
        let halo = |side: usize, i: usize| self.get(Self::edge(side, true).start / 8 + i);
        for (i, cell) in old.iter().enumerate() {
            let (row, column) = (i / SIDE, i % SIDE);
            let north = if row == 0 { halo(NORTH, column) } else { old[i - SIDE] };
            let south = if row == SIDE - 1 { halo(SOUTH, column) } else { old[i + SIDE] };
            let west = if column == 0 { halo(WEST, row) } else { old[i - 1] };
            let east = if column == SIDE - 1 { halo(EAST, row) } else { old[i + 1] };
            self.set(i, next(*cell, [north, south, west, east]));
        }
    }
}

/// A rank: its subdomain, and a queue pair for each neighbour.
struct Rank {
    subdomain: Subdomain,
    neighbours: Vec<QueuePair>,
}

impl Rank {
    /// Builds an exchange: four sends, the waits until their buffers are reusable, and the waits for the neighbours'
    /// data.
    fn exchange(&self, merged: bool) -> Result<Batch, Failure> {
        let mut batch = Batch::with_capacity(12).merged(merged);
        for (side, neighbour) in self.neighbours.iter().enumerate() {
            let slices = [self.subdomain.memory.slice(Subdomain::edge(side, false))?];
            batch = batch.send(neighbour.prepare(WorkRequest::send(&slices))?);
        }
        for neighbour in &self.neighbours {
            batch = batch.wait(neighbour.send_cq().prepare_wait()?);
        }
        for neighbour in &self.neighbours {
            batch = batch.wait(neighbour.recv_cq().prepare_wait()?);
        }
        Ok(batch)
    }

    fn receive(&self) -> Result<(), Failure> {
        for (side, neighbour) in self.neighbours.iter().enumerate() {
            neighbour.post_recv(&[self.subdomain.memory.slice(Subdomain::edge(side, true))?], 0)?;
        }
        Ok(())
    }

    /// Polls the completions of a finished exchange.
    fn collect(&self) -> Result<(), Failure> {
        for neighbour in &self.neighbours {
            for queue in [neighbour.send_cq(), neighbour.recv_cq()] {
                queue.poll()?.ok_or("a stream has passed a wait, and there is no completion")?.status?;
            }
        }
        Ok(())
    }

    /// Runs all iterations. `compute` enqueues a kernel. Returns the exchanges' number of memory operations.
    fn run<B: MemOpStream>(
        &self,
        stream: &Stream<B>,
        merged: bool,
        compute: impl Fn(&Stream<B>, &Subdomain, fn(&Subdomain)) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let mut operations = 0;
        for _ in 0..ITERATIONS {
            compute(stream, &self.subdomain, Subdomain::pack)?;
            operations += stream.post(self.exchange(merged)?)?.operations;
            compute(stream, &self.subdomain, |subdomain| subdomain.compute())?;
            stream.synchronize()?;
            self.collect()?;
            // Posted for memory that has been read: a neighbour may be ahead.
            self.receive()?;
        }
        Ok(operations)
    }
}

fn ranks() -> Result<Vec<Rank>, Failure> {
    let device = Device::software()?;
    let pd = ProtectionDomain::new(&device)?;
    let config = QueuePairConfig::default();
    let mut ranks = Vec::new();
    for _ in 0..RANKS * RANKS {
        let neighbours = (0..4).map(|_| QueuePair::new(&pd, config)).collect::<Result<_, _>>()?;
        let memory = MemoryRegion::allocate(&pd, Subdomain::WORDS * 8, Access::LOCAL_WRITE)?;
        ranks.push(Rank { subdomain: Subdomain { memory }, neighbours });
    }
    for (number, rank) in ranks.iter().enumerate() {
        let (row, column) = (number / RANKS + RANKS, number % RANKS + RANKS);
        let around = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)];
        for (side, (row, column)) in around.into_iter().enumerate() {
            let other = &ranks[row % RANKS * RANKS + column % RANKS].neighbours[OPPOSITE[side]];
            rank.neighbours[side].connect(&other.endpoint()?, ConnectOptions::default())?;
        }
    }
    for (number, rank) in ranks.iter().enumerate() {
        for cell in 0..Subdomain::CELLS {
            let (row, column) = (number / RANKS * SIDE + cell / SIDE, number % RANKS * SIDE + cell % SIDE);
            rank.subdomain.set(cell, first(row, column));
        }
        rank.receive()?;
    }
    Ok(ranks)
}

/// Runs all ranks, each on a thread with its own stream. Returns the grid, and the total number of memory operations.
fn run(gpus: Option<&Gpus>, merged: bool) -> Result<(Vec<f64>, usize), Failure> {
    let ranks = ranks()?;
    let on_software = |rank: &Rank| -> Result<usize, Failure> {
        let stream = Stream::new(SoftStream::new()?)?;
        rank.run(&stream, merged, |stream, subdomain, kernel| {
            let subdomain = subdomain.clone();
            Ok(stream.launch(move || kernel(&subdomain))?)
        })
    };
    let on_gpu = |rank: &Rank, gpu: u32| -> Result<usize, Failure> {
        let stream = Stream::new(CudaStream::new(cuda::context(gpu)?.new_stream()?)?)?;
        rank.run(&stream, merged, |stream, subdomain, kernel| {
            stream.synchronize()?;
            kernel(subdomain);
            Ok(())
        })
    };
    let operations = std::thread::scope(|scope| {
        let rank = |(rank, number)| {
            let gpu = gpus.map(|gpus| gpus.of_rank(number));
            scope.spawn(move || gpu.map_or_else(|| on_software(rank), |gpu| on_gpu(rank, gpu)))
        };
        let threads: Vec<_> = ranks.iter().zip(0..).map(rank).collect();
        let results = threads.into_iter().map(|thread| thread.join().map_err(|_| "a rank panicked")?);
        results.sum::<Result<usize, Failure>>()
    })?;
    let side = SIDE * RANKS;
    let cell = |i: usize| {
        let (row, column) = (i / side, i % side);
        ranks[row / SIDE * RANKS + column / SIDE].subdomain.get(row % SIDE * SIDE + column % SIDE)
    };
    Ok(((0..side * side).map(cell).collect(), operations))
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let gpus = match &arguments[..] {
        [] => None,
        [option, list] if option == "--gpu" => Some(list.parse::<GpuList>()?.resolve()?),
        _ => return Err("usage: halo2d [--gpu N,N...|all]".into()),
    };
    let bits = |grid: &[f64]| grid.iter().map(|cell| cell.to_bits()).collect::<Vec<_>>();
    let expected = bits(&reference());
    let mut operations = Vec::new();
    for merged in [true, false] {
        let (grid, taken) = run(gpus.as_ref(), merged)?;
        if bits(&grid) != expected {
            return Err(format!("the grid differs from that of one rank (merged: {merged})").into());
        }
        operations.push(taken / ITERATIONS / RANKS / RANKS);
    }
    writeln!(
        std::io::stdout(),
        "{ITERATIONS} iterations on {} ranks, {}, bit by bit as one rank alone: {} memory operations an exchange merged, {} plain",
        RANKS * RANKS,
        gpus.map_or("software streams".to_owned(), |gpus| format!("streams of {gpus}")),
        operations[0],
        operations[1]
    )?;
    Ok(())
}
