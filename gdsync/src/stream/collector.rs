//! A stream's collector, which waits for completions instead of the stream.

use crate::batch::{Collecting, Descriptor};
use crate::cuda::Placement;
use crate::memop::{MemOpStream, Named, StreamError};
use crate::qp::{Collector, CollectorConfig, PreparedWait};
use crate::verbs::{DEFAULT_PORT, Device, Error};
use std::sync::Arc;

/// A stream's collector. It is made when the first batch needs one, for the device of that batch's waits, which is not
/// known before; making its queue pair delays that batch. The stream waits itself for completions of other devices.
#[derive(Debug)]
pub(super) struct StreamCollector {
    /// The fewest queues that are collected; none for never.
    from: Option<u32>,
    /// Memory of its word.
    word: Placement,
    made: Made,
}

#[derive(Debug)]
enum Made {
    NotYet,
    Collector(Collector),
    /// It cannot be made.
    Refused,
}

impl StreamCollector {
    pub(super) fn new(from: Option<u32>, word: Placement) -> Self {
        StreamCollector { from, word, made: Made::NotYet }
    }

    pub(super) fn collector(&self) -> Option<&Collector> {
        match &self.made {
            Made::Collector(collector) => Some(collector),
            Made::NotYet | Made::Refused => None,
        }
    }

    /// Decides whether the waits of a batch are collected. They are not if the card has no room for them.
    #[inline]
    pub(super) fn collecting(
        &mut self,
        descriptors: &[Descriptor],
        stream: &impl MemOpStream,
    ) -> Option<Collecting> {
        match self.from {
            None => None,
            Some(from) => self.decide(from.max(1), descriptors, stream),
        }
    }

    #[cold]
    fn decide(
        &mut self,
        from: u32,
        descriptors: &[Descriptor],
        stream: &impl MemOpStream,
    ) -> Option<Collecting> {
        let waits = || {
            descriptors.iter().filter_map(|descriptor| match descriptor {
                Descriptor::WaitCq(wait) => Some(wait),
                _ => None,
            })
        };
        let count = waits().count();
        if count < from as usize {
            return None;
        }
        if let Made::NotYet = self.made {
            self.made = waits().next().map_or(Made::NotYet, |wait| make(wait, self.word, stream));
        }
        let collector = self.collector()?;
        let device = Arc::as_ptr(&collector.inner.device) as u64;
        collector.inner.has_room(count).then_some(Collecting { device, from })
    }
}

/// Makes a collector for a wait's device, on the port of a queue pair that completes there.
fn make(wait: &PreparedWait, word: Placement, stream: &impl MemOpStream) -> Made {
    let (queue, _, queue_pairs) = wait.entry();
    let device = Device { inner: queue.device.clone() };
    let port = queue_pairs.first().map_or(DEFAULT_PORT, |queue_pair| queue_pair.config.port);
    let made = Collector::with_config(&device, CollectorConfig { port, word }).map_err(Refusal::Card);
    match made.and_then(|collector| reached(collector, stream)) {
        Ok(collector) => Made::Collector(collector),
        Err(error) => {
            tracing::warn!(%error, "no collector: the stream waits for each completion queue itself");
            Made::Refused
        }
    }
}

fn reached(collector: Collector, stream: &impl MemOpStream) -> Result<Collector, Refusal> {
    if let Some(memory) = collector.word().location().gpu_memory() {
        stream.reaches(memory).map_err(Refusal::Stream)?;
    }
    Ok(collector)
}

/// Why a stream has no collector.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Card(Error),
    #[error("the stream does not reach its word: {0}")]
    Stream(StreamError),
}
