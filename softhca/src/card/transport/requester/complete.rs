//! Completion of work requests: in order, with an error, or flushed.

use super::state::{Request, Requester, Waits};
use crate::card::memory::ring::Entry;
use crate::card::transport::endpoint::Step;
use gdsync_sys::prm::cqe::{Cqe64, Syndrome};

impl Requester {
    /// Completes the requests that are done, in order.
    pub(super) fn complete_done(&mut self, step: &mut Step<'_, '_>) {
        while self.requests.front().is_some_and(|request| request.done) {
            let Some(request) = self.requests.pop_front() else { return };
            self.cursor = self.cursor.saturating_sub(1);
            self.queue.complete_until(request.end());
            if let Ok(work) = &request.work
                && request.signaled
            {
                let count = if request.awaits_result() { request.length() } else { 0 };
                let cqe = Cqe64::requester(work.opcode, step.endpoint.qpn, request.first as u16, count);
                step.complete_send(match &request.result {
                    Some((data, stride)) => Entry::with_data(cqe, data, *stride),
                    None => cqe.into(),
                });
            }
        }
    }

    /// Fails the request at `position`.
    pub(super) fn fail_at(&mut self, position: usize, syndrome: Syndrome, step: &mut Step<'_, '_>) {
        // Either the requests before it have arrived, or the transport is broken: both end them.
        for request in self.requests.iter_mut().take(position) {
            request.done = request.work.is_ok() && !request.awaits_result();
        }
        self.complete_done(step);
        self.fail_front(syndrome, step);
    }

    /// Fails the oldest request, and with it the queue pair.
    pub(super) fn fail_front(&mut self, syndrome: Syndrome, step: &mut Step<'_, '_>) {
        if let Some(request) = self.requests.pop_front() {
            // A malformed request has its own syndrome.
            let syndrome = request.work.as_ref().err().copied().unwrap_or(syndrome);
            self.complete_with_error(&request, syndrome, step);
        }
        step.endpoint.fail();
    }

    fn complete_with_error(&mut self, request: &Request, syndrome: Syndrome, step: &mut Step<'_, '_>) {
        self.queue.complete_until(request.end());
        step.send_error(request.first as u16, request.opcode_byte, syndrome);
    }

    /// Fails the request under the cursor, once it is the oldest. The rest of it is not sent.
    pub(crate) fn fail_current(&mut self, syndrome: Syndrome, step: &mut Step<'_, '_>) {
        step.context.payload.clear();
        let Some(request) = self.requests.get_mut(self.cursor) else { return };
        request.work = Err(syndrome);
        if self.cursor == 0 {
            self.fail_front(syndrome, step);
        }
    }

    /// Fails the request under the cursor because its local memory cannot be used.
    pub(crate) fn refuse_locally(&mut self, field: &'static str, message: String, step: &mut Step<'_, '_>) {
        let Some(request) = self.requests.get(self.cursor) else { return };
        step.report(Some(request.first as u16), field, message);
        self.fail_current(Syndrome::LocalProtection, step);
    }

    /// Completes all announced work requests as flushed, in ERR.
    pub(crate) fn flush(&mut self, step: &mut Step<'_, '_>) {
        self.set_timer(None);
        self.rnr_until = None;
        loop {
            let next = self.requests.pop_front();
            let Some(request) = next.or_else(|| self.fetch_to_flush()) else { break };
            self.complete_with_error(&request, Syndrome::WrFlush, step);
        }
        self.cursor = 0;
        self.waits = Waits::default();
    }
}
