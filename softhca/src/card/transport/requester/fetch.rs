//! Fetching of work requests from the ring, and their strict check.

use super::owned::describe;
use super::state::{Request, Requester};
use crate::card::port::Port;
use crate::card::queue::wqe::{self, Work};
use crate::card::transport::endpoint::Step;
use crate::card::transport::route;
use crate::liberties::LibertyKinds;
use crate::liberties::journal::Entry;
use crate::packet::PSN_MASK;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, SEGMENT};

impl Requester {
    /// Takes a liberty before a work request is fetched: reads all announced ones at once, though they are executed
    /// later, or fetches it later. Returns whether it may be fetched now.
    pub(super) fn may_fetch(&mut self, step: &mut Step<'_, '_>) -> bool {
        let number = self.next_number;
        if !step.context.decisions.is_on() || self.queue.next().is_none() || self.decided.0 == Some(number) {
            return true;
        }
        self.decided.0 = Some(number);
        let work = step.endpoint.work.of_request(number, 0);
        let Some(mut draw) = step.context.decisions.take(LibertyKinds::FETCH, work) else { return true };
        if draw.reads_ahead() {
            self.queue.read_early();
            return true;
        }
        self.own_ahead(step);
        self.pause(draw.pause(), step)
    }

    /// Makes the request of a WQE, and moves past its blocks.
    fn take(
        &mut self,
        first: u32,
        ctrl: &CtrlSeg,
        blocks: u32,
        work: Result<Work, Syndrome>,
        port: Port,
    ) -> Request {
        let packets = match &work {
            Ok(work) if !work.is_local() && work.wait.is_none() => port.packets_of(work.length),
            _ => 0,
        };
        let first_psn = self.next_psn;
        self.next_psn = first_psn.wrapping_add(packets) & PSN_MASK;
        self.queue.advance(blocks);
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        Request {
            number,
            first,
            blocks,
            opcode_byte: ctrl.raw_opcode(),
            // `sq_sig_all` is libmlx5's: it asks for an entry of each request.
            signaled: ctrl.completion_mode() >= 2,
            fenced: ctrl.fence_mode() != 0,
            solicited: ctrl.flags().contains(CtrlFlags::SOLICITED),
            imm: ctrl.imm(),
            work,
            first_psn,
            packets,
            sent: 0,
            left: 0,
            acked: 0,
            done: false,
            result: None,
            owned: None,
            watched: Vec::new(),
        }
    }

    /// Reads the next announced work request, and checks it strictly. Returns `None` if there is none.
    pub(super) fn fetch(&mut self, step: &mut Step<'_, '_>) -> Option<Request> {
        let mut entry = self.queue.next()?;
        let (ctrl, announced) = (entry.ctrl, entry.announced);
        let index = entry.first as u16;
        let blocks = u32::from(ctrl.ds()).div_ceil(4);
        let qpn = step.endpoint.qpn;
        let mut broken = |field, message| {
            step.report(Some(index), field, message);
            Err(Syndrome::LocalQpOperation)
        };
        let size_is_right = blocks > 0 && blocks <= announced;
        let work = if !size_is_right {
            broken(
                "ds",
                format!(
                    "{} segments, but {announced} blocks are announced and a WQE has at least one",
                    ctrl.ds()
                ),
            )
        } else if ctrl.index() != index {
            broken(
                "index",
                format!("the control segment says {}, its place in the ring is {index}", ctrl.index()),
            )
        } else if ctrl.qpn() != qpn {
            broken("qpn", format!("the control segment says {:#x}", ctrl.qpn()))
        } else {
            self.queue.read_rest(&mut entry, blocks);
            let body = &entry.bytes[size_of::<CtrlSeg>()..usize::from(ctrl.ds()) * SEGMENT];
            let parsed = wqe::parse(&ctrl, body, step.endpoint.config.transport);
            let fits = parsed.and_then(|work| work.within(step.endpoint.attributes.log_msg_max));
            let had = fits.and_then(|work| match &work.wait {
                Some(wait) => wait.check(&ctrl, step.context.waits).map(|()| work),
                None => Ok(work),
            });
            had.and_then(|work| route::check(work, step.context.port)).map_err(|error| {
                step.report(Some(index), error.field, error.message);
                error.syndrome
            })
        };
        if let Some(journal) = step.context.decisions.journal() {
            let name = step.endpoint.work.of_request(self.next_number, 0);
            journal.write(&Entry::Fetched { work: name, text: describe(&work) });
        }
        let owned = self.own(entry.first, &entry.bytes, step);
        // An entry of wrong size is skipped block by block.
        let count = if size_is_right { blocks } else { 1 };
        let request = self.take(entry.first, &ctrl, count, work, step.context.port);
        Some(Request { owned, ..request })
    }

    /// Takes the next announced work request without checking it, to flush it: only its index and opcode matter.
    pub(super) fn fetch_to_flush(&mut self, port: Port) -> Option<Request> {
        let entry = self.queue.next()?;
        let blocks = u32::from(entry.ctrl.ds()).div_ceil(4).clamp(1, entry.announced);
        Some(self.take(entry.first, &entry.ctrl, blocks, Err(Syndrome::WrFlush), port))
    }
}
