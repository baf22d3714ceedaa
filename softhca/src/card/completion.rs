//! How work requests end: completed in order, failed, or flushed.

use super::context::Context;
use super::fetch::Request;
use super::qp::Qp;
use super::sender::VENDOR_SYNDROME;
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, Syndrome};

impl Qp {
    /// Completes what is done, in order.
    pub(super) fn complete_done(&mut self, context: &mut Context<'_>) {
        while self.sender.requests.front().is_some_and(|request| request.done) {
            let Some(request) = self.sender.requests.pop_front() else { return };
            self.sender.cursor = self.sender.cursor.saturating_sub(1);
            self.sender.completed = request.first.wrapping_add(request.blocks);
            if let Ok(work) = &request.work
                && request.signaled
            {
                let count = if request.awaits_result() { request.length() } else { 0 };
                let cqe = Cqe64::requester(work.opcode, self.qpn, request.first as u16, count);
                self.complete(self.send_cq, cqe, context);
            }
        }
    }

    pub(super) fn fail_at(&mut self, position: usize, syndrome: Syndrome, context: &mut Context<'_>) {
        // What was sent before it has arrived, or the transport is broken: either way it is over.
        for request in self.sender.requests.iter_mut().take(position) {
            request.done = request.work.is_ok() && !request.awaits_result();
        }
        self.complete_done(context);
        self.fail_front(syndrome, context);
    }

    /// The oldest work request fails; the queue pair with it.
    pub(super) fn fail_front(&mut self, syndrome: Syndrome, context: &mut Context<'_>) {
        if let Some(request) = self.sender.requests.pop_front() {
            self.sender.completed = request.first.wrapping_add(request.blocks);
            // A malformed one has an error of its own.
            let syndrome = request.work.as_ref().err().copied().unwrap_or(syndrome);
            self.error_completion(&request, syndrome, context);
        }
        self.go_to_error(context);
    }

    fn error_completion(&mut self, request: &Request, syndrome: Syndrome, context: &mut Context<'_>) {
        let counter = request.first as u16;
        let error = CqeOpcode::RequesterError;
        let cqe = Cqe64::error(error, request.opcode_byte, self.qpn, counter, syndrome, VENDOR_SYNDROME);
        self.complete(self.send_cq, cqe, context);
    }

    /// In the error state: every work request that is announced completes as flushed.
    pub(super) fn flush_sends(&mut self, context: &mut Context<'_>) {
        self.sender.deadline = None;
        self.sender.rnr_until = None;
        loop {
            let next = self.sender.requests.pop_front();
            let Some(request) = next.or_else(|| self.fetch_to_flush()) else { break };
            self.sender.completed = request.first.wrapping_add(request.blocks);
            self.error_completion(&request, Syndrome::WrFlush, context);
        }
        self.sender.cursor = 0;
    }
}
