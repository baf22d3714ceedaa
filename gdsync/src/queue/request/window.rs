//! Work requests that bind a memory window, or invalidate it.

use super::{Rules, WorkRequest};
use crate::queue::{QueueError, RequestError};
use crate::verbs::mw::WindowChange;
use crate::verbs::{MemoryWindow, Slice, WindowAccess, WindowError};
use gdsync_sys::prm::window::{WindowBind, WindowClose};
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, Opcode, SEGMENT};
use zerocopy::IntoBytes;

/// The window, and what it is bound to; none to invalidate it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowRequest<'a> {
    window: &'a MemoryWindow,
    to: Option<(&'a Slice, WindowAccess)>,
}

/// A change of a window that has begun: it is performed, or taken back.
pub(crate) struct Begun {
    pub(crate) change: WindowChange,
    /// The window's key before it.
    key: u32,
    segments: WindowSegments,
}

/// What follows the control segment.
enum WindowSegments {
    Bind(WindowBind),
    Close(WindowClose),
}

impl<'a> WorkRequest<'a> {
    /// Binds a window: requests that arrive at this queue pair may use the slice by the window's new
    /// key, with these rights ([`MemoryWindow::remote`]). The slice's region has
    /// [`Access::MW_BIND`](crate::Access::MW_BIND), and its own rights for remote sides do not matter.
    ///
    /// Sends that are posted to the queue pair behind it begin when it is bound. Connected queue pairs
    /// have it, and persistent requests do not: each bind makes another key.
    ///
    /// Refused, with nothing changed: [`WindowError`], [`RequestError::WrongDomain`], and
    /// [`RequestError::NotWritable`] where the right to write or to change atomically is given for a
    /// region without [`Access::LOCAL_WRITE`](crate::Access::LOCAL_WRITE).
    pub fn bind(window: &'a MemoryWindow, memory: &'a Slice, access: WindowAccess) -> Self {
        Self::changing(WindowRequest { window, to: Some((memory, access)) })
    }

    /// Invalidates the key of a window that this queue pair has bound: from its completion on, no
    /// request of the peer reaches memory by it. A window that a stream or the CPU has still to bind by
    /// an earlier request of the queue pair counts as bound.
    ///
    /// Refused, with nothing changed: [`WindowError`].
    pub fn invalidate(window: &'a MemoryWindow) -> Self {
        Self::changing(WindowRequest { window, to: None })
    }

    fn changing(request: WindowRequest<'a>) -> Self {
        WorkRequest { opcode: Opcode::Umr, window: Some(request), ..Self::nop() }
    }

    /// The change of a window that it is, if it is one.
    #[inline(always)]
    pub(crate) fn window(&self) -> Option<WindowRequest<'a>> {
        self.window
    }

    /// Begins its change of a window by a queue pair.
    pub(crate) fn begin_change(
        &self,
        WindowRequest { window, to }: WindowRequest<'_>,
        rules: &impl Rules,
        qpn: u32,
    ) -> Result<Begun, QueueError> {
        let transport = rules.limits().transport;
        let refused = |operation| RequestError::NotOnTransport { operation, transport };
        transport.check(self.opcode).map_err(refused)?;
        if self.to.is_some() {
            return Err(refused("an address of its own").into());
        }
        rules.check_window(window)?;
        let Some((memory, access)) = to else {
            let (change, key) = window.inner.invalidate(qpn)?;
            return Ok(Begun { change, key, segments: WindowSegments::Close(WindowClose::new()) });
        };
        rules.check(memory, access.writes())?;
        if !memory.region().takes_windows() {
            return Err(WindowError::NoBindAccess { lkey: memory.lkey() }.into());
        }
        let (len, zero_based) = (memory.len() as u64, access.contains(WindowAccess::ZERO_BASED));
        let addr = if zero_based { 0 } else { memory.addr() };
        let (change, key, tag) = window.inner.bind(qpn, memory.region(), addr, len)?;
        // `bind` takes no more than 2^31 bytes.
        let place = DataSeg::new(len as u32, memory.lkey(), memory.addr());
        let bind = WindowBind::new(qpn, tag, access.of_key(), addr, place);
        Ok(Begun { change, key, segments: WindowSegments::Bind(bind) })
    }

    /// The control segment of a change of a window.
    pub(crate) fn change_control(&self, begun: &Begun, index: u16, qpn: u32) -> CtrlSeg {
        let units = 1 + begun.body().len() / SEGMENT;
        CtrlSeg::new(self.opcode, index, qpn, units as u8, self.flags, begun.key.to_be_bytes())
    }

    /// The same request, which begins when changes of windows before it are done.
    pub(crate) fn behind_change(&self) -> Self {
        let mut request = self.clone();
        // The other fence waits for more.
        if !request.flags.contains(CtrlFlags::FENCE) {
            request.flags.insert(CtrlFlags::FENCE_INITIATOR_SMALL);
        }
        request
    }
}

impl WindowRequest<'_> {
    /// Segments of the work request.
    pub(crate) fn units(&self) -> u32 {
        let body = if self.to.is_some() { size_of::<WindowBind>() } else { size_of::<WindowClose>() };
        (1 + body / SEGMENT) as u32
    }
}

impl Begun {
    /// What follows the control segment.
    pub(crate) fn body(&self) -> &[u8] {
        match &self.segments {
            WindowSegments::Bind(bind) => bind.as_bytes(),
            WindowSegments::Close(close) => close.as_bytes(),
        }
    }
}
