//! What an asynchronous event of the card does to a queue pair.

use crate::qp::{CompletionQueueInner, QueuePairInner};
use crate::queue::failure::FailureCause;
use crate::verbs::events::{AsyncEventKind, Element, EventSink};
use std::sync::atomic::Ordering;

/// Whether an event names a completion queue. It never names one that verbs do not know.
fn is_named(queue: &CompletionQueueInner, raw: usize) -> bool {
    queue.verbs().is_some_and(|known| known.as_ptr() as usize == raw)
}

impl EventSink for QueuePairInner {
    fn number(&self) -> u32 {
        self.number
    }

    fn is_concerned(&self, element: Element) -> bool {
        match element {
            Element::Qp(raw) => self.object.verbs().is_some_and(|known| known.as_ptr() as usize == raw),
            Element::Cq(raw) => [&self.send_cq, &self.recv_cq].iter().any(|queue| is_named(queue, raw)),
            Element::Srq(raw) => {
                self.shared.as_ref().is_some_and(|shared| shared.receives.raw().as_ptr() as usize == raw)
            }
            Element::Port(port) => self.config.port == port,
            Element::Device => true,
        }
    }

    fn fail_by_event(&self, kind: AsyncEventKind, element: Element) {
        let cause = FailureCause::Event(kind);
        if self.is_target() && matches!(element, Element::Qp(_)) {
            self.fail(cause);
            // The card serves it no more. To destroy it would wait until this event is acknowledged, and
            // so would a thread that does, under the lock of its completion queue: who polls that next
            // ends the waits there.
            return self.is_flushed.store(true, Ordering::Release);
        }
        if let Err(error) = self.stop(cause) {
            tracing::warn!(%error, qpn = self.number(), "a queue pair that the card reported cannot be told to fail");
        }
        self.flush_unposted();
        for queue in [&self.send_cq, &self.recv_cq] {
            // A card that is lost writes nothing any more, either.
            let is_meant = matches!(element, Element::Cq(raw) if is_named(queue, raw));
            if is_meant || kind == AsyncEventKind::DeviceFatal {
                queue.lose();
            }
        }
    }
}
