//! What a queue pair checks of its requests, and how its completions are matched with them.

use crate::qp::QueuePairInner;
use crate::queue::completion::{CompletionState, RawCompletion};
use crate::queue::outcome::{bytes_of, requester_kind};
use crate::queue::request::{Limits, Rules};
use crate::queue::{Completion, DatagramSource, FailureCause, QueueError, RequestError, WorkError, WorkKind};
use crate::verbs::{AddressHandle, Slice, Transport};
use gdsync_sys::prm::cqe::CqeOpcode;
use std::sync::atomic::Ordering;

impl QueuePairInner {
    /// Matches an entry of a completion queue (whose state is locked) with its work request.
    ///
    /// `None` for the completion of a send that was dropped. An error is the reason why the entry
    /// makes no sense.
    pub(crate) fn complete(
        &self,
        state: &mut CompletionState,
        raw: &RawCompletion,
    ) -> Result<Option<Completion>, String> {
        let cqe = &raw.cqe;
        let opcode = cqe.opcode().map_err(|unknown| unknown.to_string())?;
        let status = match opcode {
            CqeOpcode::RequesterError | CqeOpcode::ResponderError => {
                let error = WorkError { syndrome: cqe.raw_syndrome(), vendor: cqe.vendor_syndrome() };
                // Of a target, the connection of one initiator has ended: it serves the others.
                if !self.is_target() {
                    self.fail(FailureCause::Work(error));
                    self.is_flushed.store(true, Ordering::Release);
                }
                Err(error)
            }
            _ => Ok(()),
        };
        let counter = cqe.wqe_counter();
        let unknown =
            || format!("work request {counter} of queue pair {:#x} is not outstanding", self.number);
        let is_send = matches!(opcode, CqeOpcode::Requester | CqeOpcode::RequesterError);
        let mut was_posted = true;
        let (wr_id, kind, claim) = if is_send {
            let retired = self.send().retire(counter).ok_or_else(unknown)?;
            (0..retired.entries).for_each(|i| state.unreserve(i < retired.signaled));
            if retired.hidden {
                return Ok(None);
            }
            was_posted = !retired.withheld;
            (retired.wr_id, requester_kind(cqe)?, retired.claim)
        } else {
            let write = opcode == CqeOpcode::RespWriteImm;
            let kind = if write { WorkKind::ReceiveRdmaWithImmediate } else { WorkKind::Receive };
            if let Some(shared) = &self.shared {
                (shared.receives.retire(counter).ok_or_else(unknown)?, kind, None)
            } else {
                let mut recv = self.recv();
                let (wr_id, retired) = recv.retire(counter).ok_or_else(unknown)?;
                (0..retired).for_each(|_| state.unreserve(true));
                (wr_id, kind, recv.take_claim())
            }
        };
        let has_immediate = matches!(opcode, CqeOpcode::RespWriteImm | CqeOpcode::RespSendImm);
        let is_datagram = !is_send && status.is_ok() && self.config.transport == Transport::Ud;
        let number = u32::from_be_bytes(cqe.imm());
        let completion = Completion {
            wr_id,
            index: Some(raw.index),
            qp_num: self.number,
            kind,
            byte_len: if status.is_ok() { bytes_of(kind, cqe) } else { 0 },
            immediate: has_immediate.then_some(number),
            invalidated: (opcode == CqeOpcode::RespSendInval).then_some(number),
            source: is_datagram.then(|| DatagramSource::new(cqe, self.gid.kind.link())),
            was_posted,
            status,
        };
        match claim {
            Some(claim) => {
                claim.finish(completion);
                Ok(None)
            }
            None => Ok(Some(completion)),
        }
    }
}

impl Rules for QueuePairInner {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn check(&self, slice: &Slice, card_writes: bool) -> Result<(), QueueError> {
        let region = slice.region();
        let lkey = slice.lkey();
        if !region.pd.is(&self.domain.pd) {
            return Err(QueueError::Request(RequestError::WrongDomain { lkey, qpn: self.number }));
        }
        if card_writes && !region.is_writable() {
            return Err(QueueError::Request(RequestError::NotWritable { lkey }));
        }
        Ok(())
    }

    fn check_address(&self, handle: &AddressHandle) -> Result<(), QueueError> {
        if handle.inner.pd.is(&self.domain.pd) && handle.inner.port == self.config.port {
            Ok(())
        } else {
            Err(QueueError::Request(RequestError::OtherAddress { qpn: self.number }))
        }
    }
}

/// The queue pair's rules for posts of the CPU, which do not hold their regions: those come to know the
/// queue. Under its lock.
pub(super) struct Keeping<'a>(pub(super) &'a QueuePairInner);

impl Rules for Keeping<'_> {
    const KEEPS: bool = true;

    #[inline(always)]
    fn limits(&self) -> Limits {
        self.0.limits()
    }

    #[inline(always)]
    fn check(&self, slice: &Slice, card_writes: bool) -> Result<(), QueueError> {
        if !self.0.known.is_newest(slice.region()) {
            self.0.check(slice, card_writes)?;
            self.0.known.admit(slice.region());
        } else if card_writes && !slice.region().is_writable() {
            return Err(QueueError::Request(RequestError::NotWritable { lkey: slice.lkey() }));
        }
        Ok(())
    }

    fn check_address(&self, handle: &AddressHandle) -> Result<(), QueueError> {
        self.0.check_address(handle)
    }
}

#[cfg(test)]
mod tests;
