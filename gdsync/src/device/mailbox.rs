//! Mailboxes for kernels that cannot reach the card's doorbell register: the kernel writes its posted index into a
//! word of pinned memory, and a thread of the process rings the card. Also detaches queue pairs from their devices.
//!
//! This is not the thread of the streams' proxy, which knows the number of doorbells to come, and sleeps once all of
//! them have rung. A kernel may ring at any time, so this thread polls as long as a queue pair with a mailbox is
//! attached.

use crate::device::layout::{ERROR_RETURNED, Progress};
use crate::device::{DeviceQp, DeviceQpError, ring_attached, work_error};
use crate::memory::{HostAddr, PinnedMemory};
use crate::qp::{QpState, QueuePairInner};
use crate::queue::outcome::outcome;
use crate::queue::{FailureCause, WorkError};
use crate::util::poller::{Polled, Poller, Task};
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

static FORWARDER: Poller = Poller::new("gdsync-mailboxes");

#[derive(Debug)]
pub(super) struct Mailbox {
    /// The first word is the index of the first block that the kernel has not posted.
    memory: PinnedMemory,
    queue_pair: Arc<QueuePairInner>,
    /// The index up to which the card was rung; `None` once the mailbox is closed. Locked before the send queue.
    forwarded: Mutex<Option<u64>>,
}

impl Mailbox {
    /// Opens a mailbox of a queue pair whose blocks before `head` are posted.
    pub(super) fn open(queue_pair: &Arc<QueuePairInner>, head: u64) -> Result<Arc<Self>, DeviceQpError> {
        FORWARDER.start().map_err(DeviceQpError::Thread)?;
        let memory = PinnedMemory::allocate(8).map_err(DeviceQpError::Memory)?;
        memory.words64()[0].store(head, Ordering::Relaxed);
        let forwarded = Mutex::new(Some(head));
        let mailbox = Arc::new(Mailbox { memory, queue_pair: queue_pair.clone(), forwarded });
        FORWARDER.add(mailbox.clone());
        Ok(mailbox)
    }

    pub(super) fn addr(&self) -> HostAddr {
        self.memory.addr()
    }

    /// Closes the mailbox: once this returns, it no longer rings the card.
    pub(super) fn close(&self) {
        *self.forwarded.lock() = None;
    }
}

impl Task for Mailbox {
    /// Rings the card if the kernel has posted more.
    fn poll(&self) -> Polled {
        let mut forwarded = self.forwarded.lock();
        // Acquire: the kernel wrote the blocks before.
        let posted = self.memory.words64()[0].load(Ordering::Acquire);
        match *forwarded {
            None => Polled::Done,
            Some(before) if before == posted => Polled::Nothing,
            Some(_) => {
                ring_attached(&self.queue_pair, posted as u32);
                *forwarded = Some(posted);
                Polled::Progress
            }
        }
    }
}

impl DeviceQp {
    /// Detaches the queue pair from its device, whose kernels have all ended. Rings for blocks that they have written
    /// without ringing, waits until everything has completed, and returns the queues to the CPU and streams. A failure
    /// that kernels have seen becomes the queue pair's ([`crate::QueuePair::failure`]), and is no error of this call.
    ///
    /// A kernel that uses [`DeviceQp::data`] afterwards gets an error (`status::failed`), as long as this lives. A
    /// second call does nothing.
    ///
    /// # Errors
    /// [`DeviceQpError::KernelActive`] if a kernel still posts, [`DeviceQpError::Outstanding`] after `timeout`,
    /// [`DeviceQpError::Cuda`] if the indices cannot be read. Nothing is lost, and the call can be repeated.
    pub fn detach_device(&self, timeout: Duration) -> Result<(), DeviceQpError> {
        let mut detached = self.detached.lock();
        if *detached {
            return Ok(());
        }
        let mut progress = self.state.read()?;
        let (inner, qpn) = (&self.queue_pair, self.qp_num());
        if progress.error != 0 && work_error(progress.error).is_none() {
            // A kernel's thread stalled, or a CQE is invalid: the work in the queue may never complete.
            if let Err(error) = inner.abort() {
                tracing::error!(%error, qpn, "a queue pair that kernels have given up could not be aborted");
            }
        }
        if progress.reserved != progress.ready && inner.life.failure().is_none() && progress.error == 0 {
            let unpublished = progress.reserved.wrapping_sub(progress.ready);
            return Err(DeviceQpError::KernelActive { qpn, unpublished });
        }
        if let Some(mailbox) = &self.mailbox {
            // For blocks that were posted after the forwarding thread's last look.
            mailbox.poll();
        }
        if progress.posted != progress.ready {
            ring_attached(inner, progress.ready as u32);
            progress.posted = progress.ready;
        }
        let failure = self.drain(&mut progress, timeout)?;
        if let Some(mailbox) = &self.mailbox {
            mailbox.close();
        }
        let failure = work_error(progress.error).or(failure);
        self.state.write(&Progress { error: progress.error | ERROR_RETURNED, ..progress })?;
        *detached = true;
        self.detach_queues(&progress, failure);
        Ok(())
    }

    /// Reads completions until everything has completed. Returns the first failure among them.
    fn drain(&self, progress: &mut Progress, timeout: Duration) -> Result<Option<WorkError>, DeviceQpError> {
        let (inner, qpn) = (&self.queue_pair, self.qp_num());
        let mut failure = None;
        let mut pause = Pause::new();
        loop {
            let completions = inner.send_cq.lock();
            while let Some(raw) = completions.read_attached(progress.consumed as u32) {
                failure = failure.or(outcome(&raw.cqe).err());
                let retired = raw.cqe.wqe_counter().wrapping_add(1).wrapping_sub(progress.completed as u16);
                // An invalid CQE retires nothing. The queue pair was aborted above, or the time-out ends this.
                if u64::from(retired) <= progress.posted - progress.completed {
                    progress.completed += u64::from(retired);
                }
                progress.consumed += 1;
                completions.recycle_attached(progress.consumed as u32);
            }
            let is_lost = completions.is_lost();
            drop(completions);
            if progress.completed >= progress.posted || is_lost {
                return Ok(failure);
            }
            if pause.elapsed() > timeout {
                if progress.error == 0
                    && let Some(WorkError { syndrome, vendor, .. }) = failure
                {
                    progress.error = super::ERROR_WORK | u64::from(vendor) << 8 | u64::from(syndrome);
                }
                self.state.write(progress)?;
                let outstanding = progress.posted - progress.completed;
                return Err(DeviceQpError::Outstanding { qpn, outstanding, waited: pause.elapsed() });
            }
            pause.pause();
        }
    }

    fn detach_queues(&self, progress: &Progress, failure: Option<WorkError>) {
        let inner = &self.queue_pair;
        let mut completions = inner.send_cq.lock();
        let mut send = inner.send();
        completions.detach(progress.consumed as u32);
        send.detach(progress.posted as u32);
        let mut status = inner.life.lock();
        if let Some(error) = failure {
            inner.life.fail(&mut status, FailureCause::Work(error));
        }
        if matches!(*status, QpState::Connected) {
            inner.life.is_ready.store(true, Ordering::Release);
        }
    }
}

impl Drop for DeviceQp {
    fn drop(&mut self) {
        if self.detach_device(Duration::ZERO).is_ok() {
            return;
        }
        if let Some(mailbox) = &self.mailbox {
            mailbox.close();
        }
        tracing::warn!(
            qpn = self.qp_num(),
            "a queue pair was dropped while kernels had work in flight on it: it is aborted"
        );
        if let Err(error) = self.queue_pair.abort() {
            tracing::error!(%error, qpn = self.qp_num(), "it could not be aborted");
        }
    }
}
