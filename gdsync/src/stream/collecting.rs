//! When a stream has a collector wait for its completions.

use crate::batch::{Collecting, Descriptor};
use crate::qp::{Collector, PreparedWait};
use crate::verbs::Device;
use std::sync::Arc;

/// A stream's collector. It is made when the first batch needs one, for the device of that batch's
/// waits; waits for completions of other devices stay the stream's.
#[derive(Debug)]
pub(super) struct StreamCollector {
    /// From how many queues on; none: never.
    from: Option<u32>,
    made: Made,
}

#[derive(Debug)]
enum Made {
    NotYet,
    Collector(Collector),
    /// It cannot be.
    Refused,
}

impl StreamCollector {
    pub(super) fn new(from: Option<u32>) -> Self {
        StreamCollector { from, made: Made::NotYet }
    }

    pub(super) fn collector(&self) -> Option<&Collector> {
        match &self.made {
            Made::Collector(collector) => Some(collector),
            Made::NotYet | Made::Refused => None,
        }
    }

    /// Whether the waits of a batch are to be collected. Not where the card waits for so many that
    /// there is no room for these.
    #[inline]
    pub(super) fn collecting(&mut self, descriptors: &[Descriptor]) -> Option<Collecting> {
        match self.from {
            None => None,
            Some(from) => self.decide(from.max(2), descriptors),
        }
    }

    #[cold]
    fn decide(&mut self, from: u32, descriptors: &[Descriptor]) -> Option<Collecting> {
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
            self.made = waits().next().map_or(Made::NotYet, make);
        }
        let collector = self.collector()?;
        let device = Arc::as_ptr(&collector.inner.device) as u64;
        collector.inner.has_room(count).then_some(Collecting { device, from })
    }
}

/// A collector for a wait's device, on the port of a queue pair that completes there.
fn make(wait: &PreparedWait) -> Made {
    let (queue, _, queue_pairs) = wait.entry();
    let device = Device { inner: queue.device.clone() };
    let port = queue_pairs.first().map_or(crate::verbs::DEFAULT_PORT, |queue_pair| queue_pair.config.port);
    match Collector::on_port(&device, port) {
        Ok(collector) => Made::Collector(collector),
        Err(error) => {
            tracing::warn!(%error, "no collector: the stream waits for each completion queue itself");
            Made::Refused
        }
    }
}
