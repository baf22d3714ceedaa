//! One side: its objects by each interface, and its rounds.

use super::ours::{CHUNK, Hand, Interface, Rust, Shape};
use crate::bench::{median, micros_since};
use gdsync::{CudaStream, SoftStream, cuda};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use gdsync_cli::interrupt;
use gdsync_notify::bootstrap::Bootstrap;
use softhca::card::late_wakeups;
use std::time::Instant;

/// Runs; each measures every shape by every variant once.
pub(super) const RUNS: usize = 10;

pub(super) const BY_RUST: usize = 0;
pub(super) const BY_HAND: usize = 1;
pub(super) const VARIANTS: usize = 2;

/// Times of a chunk or a run: µs in total and until the CPU had handed everything over; sleeps of this process's cards
/// after which there was work, and their µs.
type Times = [f64; 4];
pub(super) const WHOLE: usize = 0;
pub(super) const POSTING: usize = 1;
pub(super) const NAPS: usize = 2;
pub(super) const NAPPED: usize = 3;

/// Results of one variant for one shape, for one exchange.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) times: Vec<Times>,
    pub(super) operations: f64,
}

impl Measured {
    pub(super) fn median(&self, what: usize) -> f64 {
        median(self.times.iter().map(|times| times[what]))
    }
}

/// By shape, and by variant.
pub(super) type Figures = [[Measured; VARIANTS]; Shape::ALL.len()];

pub(super) struct Side {
    variants: [Box<dyn Interface>; VARIANTS],
    bootstrap: Bootstrap,
    /// Exchanges so far: no two messages are equal.
    sequence: u64,
}

impl Side {
    pub(super) fn new(
        hca: Option<&Hca>,
        gpu: Option<u32>,
        mut bootstrap: Bootstrap,
    ) -> Result<Self, Failure> {
        let place = hca::open(hca)?;
        let mut variants: [Box<dyn Interface>; VARIANTS] = match gpu {
            None => [
                Box::new(Rust::new(&place, SoftStream::new()?)?),
                Box::new(Hand::new(&place, SoftStream::new()?)?),
            ],
            Some(ordinal) => {
                let context = cuda::context(ordinal)?;
                let stream = || Ok::<_, Failure>(CudaStream::new(context.new_stream()?)?);
                [Box::new(Rust::new(&place, stream()?)?), Box::new(Hand::new(&place, stream()?)?)]
            }
        };
        let addresses =
            variants.iter().map(|variant| variant.ends().address()).collect::<Result<Vec<_>, _>>()?;
        let all = bootstrap.all_gather(addresses.join("\n").as_bytes())?;
        let others = &all[1 - bootstrap.rank() as usize];
        let mut others = std::str::from_utf8(others)?.lines();
        for variant in &mut variants {
            variant.ends().connect(others.next().ok_or("the other side has sent too few addresses")?)?;
        }
        Ok(Side { variants, bootstrap, sequence: 0 })
    }

    /// Performs all runs, each of `rounds` rounds.
    pub(super) fn play(mut self, rounds: u64) -> Result<Figures, Failure> {
        let mut figures = Figures::default();
        // Performs lazy initialization in advance, beginning with the shapes that prepare while no stream waits.
        for shape in Shape::ALL.into_iter().rev() {
            for variant in 0..self.variants.len() {
                self.chunk(variant, shape, CHUNK)?;
            }
        }
        for run in 0..RUNS {
            if run > 0 && self.is_interrupted()? {
                break;
            }
            for (shape, of_shape) in Shape::ALL.into_iter().zip(&mut figures) {
                for turn in 0..self.variants.len() {
                    // The variants take turns in being first.
                    let variant = (turn + run) % self.variants.len();
                    self.run(variant, shape, rounds, &mut of_shape[variant])?;
                }
            }
        }
        // A side that ends takes its queue pairs along.
        self.bootstrap.barrier()?;
        Ok(figures)
    }

    /// Returns whether the user has interrupted either side: both end at the same run.
    fn is_interrupted(&mut self) -> Result<bool, Failure> {
        let all = self.bootstrap.all_gather(&[interrupt::requested().into()])?;
        Ok(all.iter().any(|one| one.first() == Some(&1)))
    }

    fn run(&mut self, variant: usize, shape: Shape, rounds: u64, to: &mut Measured) -> Result<(), Failure> {
        let before = self.variants[variant].ends().operations;
        let (mut all, mut done, mut is_interrupted) = (Times::default(), 0, false);
        while done < rounds && !is_interrupted {
            let count = (rounds - done).min(CHUNK as u64);
            let times;
            (times, is_interrupted) = self.chunk(variant, shape, count as usize)?;
            all.iter_mut().zip(times).for_each(|(all, time)| *all += time);
            done += count;
        }
        let each = |all: f64| all / done as f64;
        to.times.push(all.map(each));
        to.operations = each((self.variants[variant].ends().operations - before) as f64);
        Ok(())
    }

    /// Performs some exchanges, whose messages are checked. Returns their times, and whether they are to be the last.
    fn chunk(&mut self, variant: usize, shape: Shape, count: usize) -> Result<(Times, bool), Failure> {
        let rank = u64::from(self.bootstrap.rank());
        let first = self.sequence;
        self.sequence += count as u64;
        let number = |place: usize, rank: u64| (first + place as u64) << 1 | rank;
        let ready = &mut self.variants[variant];
        ready.ends().receive(count)?;
        (0..count).for_each(|place| ready.ends().write(place, number(place, rank)));
        ready.prepare(shape, count)?;
        // Both sides are ready, too, once they have heard this of each other.
        let is_last = self.is_interrupted()?;
        let variant = &mut self.variants[variant];
        let (before, start) = (late_wakeups(), Instant::now());
        variant.post(shape, count)?;
        let posting = micros_since(start);
        variant.synchronize()?;
        let (whole, after) = (micros_since(start), late_wakeups());
        variant.collect(count)?;
        for place in 0..count {
            let (found, sent) = (variant.ends().read(place), number(place, 1 - rank));
            if found != sent {
                return Err(format!("message {sent} came as {found}").into());
            }
        }
        let napped = (after.time - before.time).as_secs_f64() * 1e6;
        Ok(([whole, posting, (after.count - before.count) as f64, napped], is_last))
    }
}
