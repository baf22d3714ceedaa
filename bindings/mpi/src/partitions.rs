//! Partitioned transfers: the card writes each partition into the other side's buffer as soon as it is ready.
//!
//! A round begins with a *gate*, a send of no bytes, which the card repeats until the receiving side has started the round. Writes
//! follow in the queue pair's order, so none reaches a buffer that the other side still uses, without a wait of the CPU. The last
//! write of a partition carries its index as immediate data.

use crate::connection::Connection;
use crate::error::{Class, Failure};
use crate::memory::{self, Region};
use crate::persistent::{fragment_count, fragment_offsets};
use crate::statistics;
use gdsync::cuda;
use gdsync::cudarc::driver::sys;
use gdsync::memop::Word32;
use gdsync::{Completion, PinnedMemory, RemoteMemory, WorkRequest};

/// The layout on which both sides agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) partitions: u32,
    pub(crate) bytes: u64,
}

impl Layout {
    /// Work requests of a round, including the gate.
    pub(crate) fn work_requests(self, fragment_bytes: u64) -> u64 {
        fragment_count(self.bytes, fragment_bytes).saturating_mul(self.partitions.into()).saturating_add(1)
    }
}

/// Where the partitions go.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) region: &'a Region,
    /// The other side's buffer; of length 0 at the receiving side.
    pub(crate) remote: RemoteMemory,
    pub(crate) fragment_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Partitions {
    layout: Layout,
    sends: bool,
    is_active: bool,
    /// True if the round's gate or receives are posted.
    is_open: bool,
    /// For each partition, true if it is ready or has arrived.
    done: Vec<bool>,
    /// Completions that posted work requests still owe.
    outstanding: u64,
    failed: Option<Failure>,
    /// True if matching has failed.
    is_given_up: bool,
    /// Flags for kernels, if the program has asked for them.
    flags: Option<PartitionFlags>,
}

impl Partitions {
    pub(crate) fn new(sends: bool, layout: Layout) -> Self {
        let done = vec![false; layout.partitions as usize];
        Partitions {
            layout,
            sends,
            is_active: false,
            is_open: false,
            done,
            outstanding: 0,
            failed: None,
            is_given_up: false,
            flags: None,
        }
    }

    /// Starts a round. Without a route, [`Self::open`] has to follow.
    pub(crate) fn start(&mut self, route: Option<Route<'_>>) -> Result<(), Failure> {
        if self.is_active {
            return Err(Failure::new(Class::Request, "the request is started already: wait for it before"));
        }
        self.done.fill(false);
        if let Some(flags) = &self.flags {
            flags.next_round();
        }
        (self.is_active, self.is_open) = (true, false);
        let opened = route.map_or(Ok(()), |route| self.open(route));
        opened.inspect_err(|_| self.is_active = false)
    }

    /// Fails started rounds, as the sides cannot match.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// Posts what a started round deferred until its sides were matched.
    pub(crate) fn open(&mut self, route: Route<'_>) -> Result<(), Failure> {
        if !self.is_active || self.is_open {
            return Ok(());
        }
        let queue_pair = &route.connection.queue_pair;
        if !self.sends {
            for _ in 0..=self.layout.partitions {
                queue_pair.post_recv(&[], 0)?;
                self.outstanding += 1;
            }
            self.is_open = true;
            return Ok(());
        }
        queue_pair.post_send(WorkRequest::send(&[]))?;
        self.outstanding += 1;
        self.is_open = true;
        (0..self.layout.partitions)
            .filter(|index| self.done[*index as usize])
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|index| self.post(route, index))
    }

    /// Sends a partition, which is ready.
    pub(crate) fn ready(&mut self, index: i32, route: Option<Route<'_>>) -> Result<(), Failure> {
        let index = self.check(index)?;
        if !self.sends || !self.is_active {
            let why = if self.sends { "is not started" } else { "receives" };
            let text = format!("partition {index} cannot be ready: the request {why}");
            return Err(Failure::new(Class::Request, text));
        }
        let place = &mut self.done[index as usize];
        if std::mem::replace(place, true) {
            let text = format!("partition {index} is ready already: mark it once in a round");
            return Err(Failure::new(Class::Request, text));
        }
        route.filter(|_| self.is_open).map_or(Ok(()), |route| self.post(route, index))
    }

    /// The flags for kernels, which the first call allocates.
    pub(crate) fn flags(&mut self) -> Result<&PartitionFlags, Failure> {
        if self.flags.is_none() && self.is_active {
            let text =
                "the request is started: make what kernels mark before its first start, or wait for it";
            return Err(Failure::new(Class::Request, text));
        }
        match &mut self.flags {
            Some(flags) => Ok(flags),
            none => Ok(none.insert(PartitionFlags::new(self.layout.partitions)?)),
        }
    }

    /// Sends the partitions that kernels have flagged, and flags those that have arrived. Returns whether a round is incomplete.
    pub(crate) fn progress(&mut self, route: Option<Route<'_>>) -> bool {
        if !self.is_active || self.is_given_up || self.failed.is_some() {
            return false;
        }
        if !self.sends {
            if let Some(route) = route {
                self.poll(route.connection);
            }
            return !self.done.iter().all(|arrived| *arrived);
        }
        for index in 0..self.layout.partitions {
            let is_new = |flags: &PartitionFlags| !self.done[index as usize] && flags.is_set(index as usize);
            if self.flags.as_ref().is_some_and(is_new) {
                self.done[index as usize] = true;
                if let Some(route) = route.filter(|_| self.is_open)
                    && let Err(failure) = self.post(route, index)
                {
                    self.failed.get_or_insert(failure);
                }
            }
        }
        !self.done.iter().all(|ready| *ready)
    }

    pub(crate) fn arrived(&mut self, index: i32, route: Option<Route<'_>>) -> Result<bool, Failure> {
        let index = self.check(index)?;
        if self.sends {
            return Err(Failure::new(Class::Request, "the request sends: no partition arrives"));
        }
        // MPI calls an inactive request complete: it has its whole last round, or had none.
        if !self.is_active {
            return Ok(true);
        }
        if let Some(route) = route {
            self.poll(route.connection);
        }
        match &self.failed {
            Some(failure) => Err(failure.clone()),
            None if self.is_given_up => Err(not_matched()),
            None => Ok(self.done[index as usize]),
        }
    }

    /// If the round has ended, or none was started, returns the bytes received or the first failure.
    pub(crate) fn outcome(&mut self, connection: Option<&Connection>) -> Option<Result<u64, Failure>> {
        if !self.is_active {
            return Some(Ok(0));
        }
        if self.is_given_up {
            self.is_active = false;
            return Some(Err(not_matched()));
        }
        if let Some(connection) = connection.filter(|_| self.is_open) {
            self.poll(connection);
        }
        let is_posted =
            self.failed.is_some() || (self.is_open && (!self.sends || self.done.iter().all(|ready| *ready)));
        if !is_posted || self.outstanding > 0 {
            return None;
        }
        self.is_active = false;
        let bytes = self.layout.bytes * u64::from(self.layout.partitions);
        Some(self.failed.take().map_or(Ok(if self.sends { 0 } else { bytes }), Err))
    }

    fn check(&self, index: i32) -> Result<u32, Failure> {
        let partitions = self.layout.partitions;
        u32::try_from(index).ok().filter(|index| *index < partitions).ok_or_else(|| {
            let text = format!("the partition is {index}, and the request has {partitions}: count from 0 on");
            Failure::new(Class::Argument, text)
        })
    }

    fn post(&mut self, route: Route<'_>, index: u32) -> Result<(), Failure> {
        let (bytes, fragment_bytes) = (self.layout.bytes, route.fragment_bytes);
        let first = u64::from(index) * bytes;
        let last = fragment_count(bytes, fragment_bytes) - 1;
        for (at, start) in (0..).zip(fragment_offsets(bytes, fragment_bytes)) {
            let (start, end) = (first + start, first + bytes.min(start + fragment_bytes));
            let (start, end) = (start as usize, end as usize);
            let slices = route.region.slices(start..end)?;
            let request = WorkRequest::write(&slices, route.remote.slice(start..end)?);
            let request = if at == last { request.immediate(index) } else { request.unsignaled() };
            route.connection.queue_pair.post_send(request)?;
        }
        self.outstanding += 1;
        statistics::wrote_partition();
        Ok(())
    }

    fn poll(&mut self, connection: &Connection) {
        let queue_pair = &connection.queue_pair;
        let completions = if self.sends { queue_pair.send_cq() } else { queue_pair.recv_cq() };
        loop {
            match completions.poll() {
                Ok(None) => return,
                Ok(Some(completion)) => self.take(&completion),
                Err(error) => {
                    self.failed.get_or_insert(Failure::new(Class::Other, error));
                    return;
                }
            }
        }
    }

    fn take(&mut self, completion: &Completion) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if let Err(error) = completion.status {
            let text = format!("the transfer failed, and the peer may have: {error}");
            self.failed.get_or_insert(Failure::new(Class::Peer, text));
        }
        if self.sends {
            return;
        }
        // The gate has no immediate data.
        let Some(index) = completion.immediate else { return };
        match self.done.get_mut(index as usize) {
            Some(arrived) if !*arrived => {
                *arrived = true;
                if let Some(flags) = &self.flags {
                    flags.set(index as usize);
                }
            }
            _ => {
                let text = format!("partition {index} has arrived: there is none, or it arrived twice");
                self.failed.get_or_insert(Failure::new(Class::Other, text));
            }
        }
    }
}

fn not_matched() -> Failure {
    Failure::new(Class::Request, "the request has not matched: its sides differ, or one could not be made")
}

/// The words before the flags: the number of partitions, and the number of the round.
const HEAD: usize = 2;
const ROUND: usize = 1;

/// The partition flags of a request, in pinned memory that kernels write and read: `struct gdsync_mpix_marks` of `mpi-acx.h`. A
/// partition's flag is set if its word has the number of the round: kernels flag ready partitions, the library arrived ones.
#[derive(Debug)]
pub(crate) struct PartitionFlags {
    memory: PinnedMemory,
    words: Vec<Word32>,
}

impl PartitionFlags {
    /// The flags before the first round.
    ///
    /// # Errors
    /// [`Class::Memory`].
    pub(crate) fn new(partitions: u32) -> Result<Self, Failure> {
        let number = HEAD + partitions as usize;
        let failed = |error: String| Failure::new(Class::Memory, format!("{number} words of marks: {error}"));
        let memory =
            PinnedMemory::allocate(number * size_of::<u32>()).map_err(|error| failed(error.to_string()))?;
        let word = |index| Word32::new(&memory, index * size_of::<u32>());
        let words: Vec<_> =
            (0..number).map(word).collect::<Result<_, _>>().map_err(|error| failed(error.to_string()))?;
        words[0].store(partitions);
        Ok(PartitionFlags { memory, words })
    }

    /// The address for kernels of the current context's GPU, or for the CPU if no context is current.
    ///
    /// # Errors
    /// [`Class::Memory`] if the GPU cannot reach the memory.
    pub(crate) fn address(&self) -> Result<u64, Failure> {
        let mut ordinal = 0;
        let has_context = cuda::device_count().is_ok_and(|count| count > 0) && {
            // SAFETY: the driver is initialised (`device_count`); `ordinal` is valid for a write.
            unsafe { sys::cuCtxGetDevice(&mut ordinal) == sys::CUresult::CUDA_SUCCESS }
        };
        if !has_context {
            return Ok(self.memory.addr().get());
        }
        let context = memory::context(u32::try_from(ordinal).unwrap_or(0))?;
        cuda::pin(&context, &self.memory).map_err(|error| Failure::new(Class::Memory, error))
    }

    /// Begins a round, in which no flag is set.
    pub(crate) fn next_round(&self) {
        let round = self.words[ROUND].load().wrapping_add(1);
        self.words[HEAD..].iter().for_each(|flag| flag.store(round.wrapping_sub(1)));
        self.words[ROUND].store(round);
    }

    /// Sets a partition's flag. Earlier writes are visible to a reader that sees it.
    pub(crate) fn set(&self, index: usize) {
        self.words[HEAD + index].store(self.words[ROUND].load());
    }

    pub(crate) fn is_set(&self, index: usize) -> bool {
        self.words[HEAD + index].load() == self.words[ROUND].load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_set_in_one_round() {
        let flags = PartitionFlags::new(3).unwrap();
        flags.next_round();
        flags.set(1);
        assert_eq!([0, 1, 2].map(|index| flags.is_set(index)), [false, true, false]);
        flags.words[ROUND].store(u32::MAX);
        flags.set(2);
        assert!(flags.is_set(2));
        flags.next_round();
        assert_eq!([0, 1, 2].map(|index| flags.is_set(index)), [false; 3], "the numbers wrap");
        assert_eq!(flags.words[0].load(), 3);
    }
}
