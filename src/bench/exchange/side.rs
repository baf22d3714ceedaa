//! One side: its objects by each interface, and its rounds.

use super::c::{C, Named};
use super::library::Library;
use super::ours::{Hand, Rust};
use super::way::{CHUNK, Shape, Way};
use crate::bench::micros_since;
use crate::failure::Failure;
use crate::hca::{self, Hca};
use gdsync::cudarc::driver::CudaStream as Queue;
use gdsync::{CudaStream, SoftStream, cuda};
use gdsync_notify::bootstrap::Bootstrap;
use std::sync::Arc;
use std::time::Instant;

/// In each, every shape is measured by every way once.
pub(super) const RUNS: usize = 10;

/// Places of the ways among the results. By C is the last: the library may not be there.
pub(super) const BY_RUST: usize = 0;
pub(super) const BY_HAND: usize = 1;
pub(super) const BY_C: usize = 2;

/// What one way took for one shape, in µs an exchange, of each run.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) whole: Vec<f64>,
    /// Until the CPU had handed everything over.
    pub(super) posting: Vec<f64>,
    /// Memory operations of an exchange.
    pub(super) operations: Option<f64>,
}

/// By shape, and by way.
pub(super) type Figures = [[Measured; 3]; Shape::ALL.len()];

pub(super) struct Side {
    ways: Vec<Box<dyn Way>>,
    bootstrap: Bootstrap,
    /// Exchanges so far: no message is like another.
    sequence: u64,
    /// What the C library has the name of, after whatever uses it.
    _queue: Option<Arc<Queue>>,
}

impl Side {
    pub(super) fn new(
        hca: Option<&Hca>,
        gpu: Option<u32>,
        library: Option<Library>,
        mut bootstrap: Bootstrap,
    ) -> Result<Self, Failure> {
        let place = hca::open(hca)?;
        let mut ways: Vec<Box<dyn Way>> = Vec::new();
        let mut queue = None;
        match gpu {
            None => {
                ways.push(Box::new(Rust::new(&place, SoftStream::new()?)?));
                ways.push(Box::new(Hand::new(&place, SoftStream::new()?)?));
                ways.extend(library.map(|library| C::new(library, Named::Soft)).transpose()?.map(boxed));
            }
            Some(ordinal) => {
                let context = cuda::context(ordinal)?;
                let stream = || Ok::<_, Failure>(CudaStream::new(context.new_stream()?)?);
                ways.push(Box::new(Rust::new(&place, stream()?)?));
                ways.push(Box::new(Hand::new(&place, stream()?)?));
                if let Some(library) = library {
                    let named = queue.insert(context.new_stream()?).cu_stream();
                    ways.push(Box::new(C::new(library, Named::Cuda(named.cast()))?));
                }
            }
        }
        let addresses = ways.iter().map(|way| way.address()).collect::<Result<Vec<_>, _>>()?;
        let all = bootstrap.all_gather(addresses.join("\n").as_bytes())?;
        let others = &all[1 - bootstrap.rank() as usize];
        let mut others = std::str::from_utf8(others)?.lines();
        for way in &mut ways {
            way.connect(others.next().ok_or("the other side has not loaded the C library")?)?;
        }
        Ok(Side { ways, bootstrap, sequence: 0, _queue: queue })
    }

    /// All runs, each of so many rounds.
    pub(super) fn play(mut self, rounds: u64) -> Result<Figures, Failure> {
        let mut figures = Figures::default();
        // What is made lazily is made before.
        for shape in Shape::ALL {
            for way in 0..self.ways.len() {
                self.chunk(way, shape, CHUNK)?;
            }
        }
        for run in 0..RUNS {
            for (shape, of_shape) in Shape::ALL.into_iter().zip(&mut figures) {
                for turn in 0..self.ways.len() {
                    // The ways take turns in being the first.
                    let way = (turn + run) % self.ways.len();
                    self.run(way, shape, rounds, &mut of_shape[way])?;
                }
            }
        }
        // A side that leaves takes its queue pairs along.
        self.bootstrap.barrier()?;
        Ok(figures)
    }

    fn run(&mut self, way: usize, shape: Shape, rounds: u64, to: &mut Measured) -> Result<(), Failure> {
        let before = self.ways[way].operations();
        let (mut posting, mut whole, mut left) = (0.0, 0.0, rounds);
        while left > 0 {
            let count = left.min(CHUNK as u64);
            let times = self.chunk(way, shape, count as usize)?;
            (posting, whole, left) = (posting + times.0, whole + times.1, left - count);
        }
        let each = |all: f64| all / rounds as f64;
        to.posting.push(each(posting));
        to.whole.push(each(whole));
        let operations = self.ways[way].operations().zip(before);
        to.operations = operations.map(|(after, before)| each((after - before) as f64));
        Ok(())
    }

    /// Some exchanges, whose messages are checked. Returns µs until they were handed over, and until the
    /// stream had performed them.
    fn chunk(&mut self, way: usize, shape: Shape, count: usize) -> Result<(f64, f64), Failure> {
        let rank = u64::from(self.bootstrap.rank());
        let (way, first) = (&mut self.ways[way], self.sequence);
        self.sequence += count as u64;
        let number = |place: usize, rank: u64| (first + place as u64) << 1 | rank;
        way.receive(count)?;
        (0..count).for_each(|place| way.write(place, number(place, rank)));
        way.prepare(shape, count)?;
        self.bootstrap.barrier()?;
        let start = Instant::now();
        way.post(shape, count)?;
        let posting = micros_since(start);
        way.synchronize()?;
        let whole = micros_since(start);
        way.collect(count)?;
        for place in 0..count {
            let (found, sent) = (way.read(place), number(place, 1 - rank));
            if found != sent {
                return Err(format!("message {sent} came as {found}").into());
            }
        }
        Ok((posting, whole))
    }
}

fn boxed(way: C) -> Box<dyn Way> {
    Box::new(way)
}
