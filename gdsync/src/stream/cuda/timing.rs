//! Times of a GPU's submissions, by CUDA events around each, if a trace is recorded and [`GPU_VARIABLE`] asks for it.
//!
//! An event is a moment of the GPU's clock. An *anchor* relates that clock to the host's: an event on gdsync's own
//! stream, which the GPU performs at once, between two reads of the host's clock. Clocks drift, so an anchor is
//! replaced after a second.
//!
//! Nothing here waits for a stream of the program. Passed events are read when one of the context's streams gets
//! more work, is found idle, or is dropped.

// Lock order: the gate of submissions, the timers, the copier.

use crate::cuda::{CudaError, Event, GpuContext, RelaxedCapture};
use cudarc::driver::sys;
use gdsync_trace::{EventKind, GPU_VARIABLE, now, span_of};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Most submissions of a context whose events the GPU has not passed; further ones are not timed.
const MOST: usize = 4096;
/// Number of tries for an anchor, the best of which is used.
const TRIES: u32 = 8;
/// Longest try in nanoseconds. A GPU that takes longer has other work to do first, and there is no anchor now.
const TRY: u64 = 200_000;
const ANCHOR_LASTS: u64 = 1_000_000_000;
/// Nanoseconds until the next tries, if there was no anchor.
const NEXT_TRIES_AFTER: u64 = 100_000_000;

/// Timers by context number. A context leaves its timer, whose events are destroyed with the context.
static TIMERS: Mutex<BTreeMap<u64, Timer>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Timer {
    pending: BTreeMap<u64, VecDeque<Submission>>,
    number: usize,
    anchor: Option<Anchor>,
    /// When to try for the next anchor, by the host's clock.
    next_anchor: u64,
    spare: Vec<Event>,
}

struct Submission {
    operations: u64,
    number: u64,
    begin: Event,
    end: Event,
}

struct Anchor {
    event: Event,
    /// In nanoseconds of the host's clock.
    at: u64,
}

/// A submission that is being made.
pub(super) struct Timing<'a> {
    context: &'a Arc<GpuContext>,
    stream: sys::CUstream,
    begin: Event,
}

fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let value = std::env::var_os(GPU_VARIABLE).unwrap_or_default();
        let is_asked = value == "1";
        if !is_asked && !value.is_empty() && value != "0" {
            tracing::warn!(?value, "{GPU_VARIABLE} is neither 0 nor 1: the trace has no times of GPUs");
        }
        is_asked
    })
}

/// Times the next operations of the stream as a submission, while a trace is recorded. `None` if no times are asked for, or
/// the driver refuses.
///
/// # Safety
/// The stream is alive, of that context, and not being captured; for a default stream, the context is current.
pub(super) unsafe fn begin(context: &Arc<GpuContext>, stream: sys::CUstream) -> Option<Timing<'_>> {
    if !is_wanted() {
        return None;
    }
    let begun = with(context, |timer| {
        if timer.number >= MOST {
            tracing::debug!(pending = timer.number, "the GPU is far behind: submissions are not timed");
            return Ok(None);
        }
        let begin = timer.event()?;
        // SAFETY: the caller's.
        unsafe { begin.record(stream) }?;
        Ok(Some(begin))
    })?;
    begun.map(|begin| Timing { context, stream, begin })
}

impl Timing<'_> {
    /// Ends a submission after all its operations were given to the stream.
    ///
    /// # Safety
    /// As [`begin`].
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn end(self, operations: usize, number: u64) {
        let Timing { context, stream, begin } = self;
        with(context, |timer| {
            let end = timer.event()?;
            // SAFETY: the caller's.
            unsafe { end.record(stream) }?;
            let submission = Submission { operations: operations as u64, number, begin, end };
            timer.pending.entry(stream as u64).or_default().push_back(submission);
            timer.number += 1;
            timer.read(context)
        });
    }
}

/// Reads a context's events that its GPU has passed.
#[inline(always)]
pub(super) fn read(context: &Arc<GpuContext>) {
    if gdsync_trace::enabled() {
        read_recorded(context);
    }
}

#[cold]
#[inline(never)]
fn read_recorded(context: &Arc<GpuContext>) {
    // A context without a timer gets none.
    if TIMERS.lock().contains_key(&context.id) {
        with(context, |timer| timer.read(context));
    }
}

/// Calls `act` with a context's timer, with the context current.
fn with<T>(context: &Arc<GpuContext>, act: impl FnOnce(&mut Timer) -> Result<T, CudaError>) -> Option<T> {
    let acted = context.enter().and_then(|_entered| {
        let _mode = RelaxedCapture::new();
        let mut timers = TIMERS.lock();
        let timer = timers.entry(context.id).or_default();
        act(timer)
    });
    acted.inspect_err(|error| tracing::debug!(%error, "a GPU's times are not recorded")).ok()
}

impl Timer {
    fn event(&mut self) -> Result<Event, CudaError> {
        self.spare.pop().map_or_else(|| Event::new(true), Ok)
    }

    fn read(&mut self, context: &Arc<GpuContext>) -> Result<(), CudaError> {
        if now() >= self.next_anchor {
            self.next_anchor = now() + NEXT_TRIES_AFTER;
            if let Some(anchor) = self.new_anchor(context)? {
                self.next_anchor = anchor.at + ANCHOR_LASTS;
                self.spare.extend(self.anchor.replace(anchor).map(|old| old.event));
            }
        }
        let Some(anchor) = &self.anchor else { return Ok(()) };
        for (stream, pending) in &mut self.pending {
            while let Some(first) = pending.front() {
                if !first.end.is_passed()? {
                    break;
                }
                let (at, until) = (anchor.time(&first.begin)?, anchor.time(&first.end)?);
                let words = [*stream, first.operations, first.number];
                span_of(at, until, EventKind::Performed, || words);
                self.number -= 1;
                self.spare.extend(pending.pop_front().into_iter().flat_map(|past| [past.begin, past.end]));
            }
        }
        self.pending.retain(|_, pending| !pending.is_empty());
        Ok(())
    }

    fn new_anchor(&mut self, context: &Arc<GpuContext>) -> Result<Option<Anchor>, CudaError> {
        let mut best: Option<(u64, Anchor)> = None;
        context.with_copier(|copier| {
            for _ in 0..TRIES {
                let event = self.event()?;
                let before = now();
                // SAFETY: the stream is gdsync's own.
                unsafe { event.record(copier.stream()) }?;
                while !event.is_passed()? {
                    if now() - before > TRY {
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
                let took = now() - before;
                let shortest = best.as_ref().map_or(u64::MAX, |(shortest, _)| *shortest);
                if took < shortest {
                    let anchor = Anchor { event, at: before + took / 2 };
                    self.spare.extend(best.replace((took, anchor)).map(|(_, old)| old.event));
                } else {
                    self.spare.push(event);
                }
            }
            Ok(())
        })?;
        if let Some((took, _)) = &best {
            tracing::debug!(within = ?Duration::from_nanos(*took), "the GPU's clock and the host's were compared");
        }
        Ok(best.map(|(_, anchor)| anchor))
    }
}

impl Anchor {
    /// Returns the host's time of an event that the GPU has passed.
    fn time(&self, event: &Event) -> Result<u64, CudaError> {
        Ok(moved(self.at, self.event.until(event)?))
    }
}

fn moved(at: u64, milliseconds: f32) -> u64 {
    at.saturating_add_signed((f64::from(milliseconds) * 1e6).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_gpu_are_before_and_after_the_anchor() {
        assert_eq!(moved(1_000_000, 0.5), 1_500_000);
        assert_eq!(moved(1_000_000, -0.25), 750_000);
        assert_eq!([moved(5, -1.0), moved(u64::MAX, 1.0), moved(7, f32::NAN)], [0, u64::MAX, 7]);
        // At the end of an anchor's life, the driver's floating-point number is exact to a tenth of a microsecond.
        let last = ANCHOR_LASTS as f32 / 1e6;
        assert!(moved(0, f32::from_bits(last.to_bits() + 1)) - moved(0, last) < 100);
    }
}
