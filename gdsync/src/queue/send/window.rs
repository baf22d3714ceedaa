//! Changes of memory windows in a send queue.

use super::{Entry, SendState, State, blocks_of};
use crate::queue::regions::Regions;
use crate::queue::request::{Rules, WindowRequest};
use crate::queue::{QueueError, WorkRequest};
use crate::verbs::mw::WindowChange;
use gdsync_sys::prm::wqe::BASIC_BLOCK;
use zerocopy::IntoBytes;

/// Blocks of the longer change, a bind: 12 segments.
const MOST_BLOCKS: usize = 3;

impl Entry {
    /// The change of a window that it is, unless it was dropped.
    pub(super) fn change(&self) -> Option<&WindowChange> {
        match &self.regions {
            Regions::Window(change) if self.state != State::Hidden => Some(change),
            _ => None,
        }
    }
}

impl SendState {
    /// [`Self::place`] of a request that changes a window. All requests behind it begin after it, by the
    /// small fence of the first of them.
    #[cold]
    #[inline(never)]
    pub(super) fn place_change(
        &mut self,
        window: WindowRequest<'_>,
        request: &WorkRequest<'_>,
        rules: &impl Rules,
        book: impl FnOnce(bool) -> Result<(), QueueError>,
        state: State,
    ) -> Result<u64, QueueError> {
        let blocks = blocks_of(window.units());
        self.check_room(blocks)?;
        let fenced = self.has_changed_window.then(|| request.behind_change());
        let request = fenced.as_ref().unwrap_or(request);
        let begun = request.begin_change(window, rules, self.qpn)?;
        let signaled = request.is_signaled();
        if let Err(error) = book(signaled) {
            begun.change.cancel(true);
            return Err(error);
        }
        let first = self.head;
        let control = request.change_control(&begun, first as u16, self.qpn);
        let mut bytes = [0; MOST_BLOCKS * BASIC_BLOCK];
        let segments = control.as_bytes().iter().chain(begun.body());
        bytes.iter_mut().zip(segments).for_each(|(to, from)| *to = *from);
        self.ring.write(first, &bytes[..blocks as usize * BASIC_BLOCK]);
        self.ring.drain();
        let regions = Regions::Window(Box::new(begun.change));
        self.push(Entry { wr_id: request.wr_id, first, blocks: blocks as u16, signaled, state, regions });
        self.has_changed_window = true;
        Ok(control.doorbell())
    }

    /// Has the request that was written at the head begin after a change of a window, as libmlx5 does
    /// (`next_fence` in `qp.c`).
    #[cold]
    #[inline(never)]
    pub(super) fn fence_behind_change(&mut self, request: &WorkRequest<'_>, units: u32) {
        let control = request.behind_change().control(self.head as u16, self.qpn, units as u8);
        self.ring.write(self.head, control.as_bytes());
        self.has_changed_window = false;
    }

    /// The work request at that counter has failed, or was flushed. If it is a change of a window, that
    /// is not known any more.
    pub(crate) fn doubt(&self, wqe_counter: u16) {
        let entry = self.entries.iter().find(|entry| entry.first as u16 == wqe_counter);
        if let Some(change) = entry.and_then(Entry::change) {
            change.doubt();
        }
    }
}

#[cfg(test)]
mod tests;
