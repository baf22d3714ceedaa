//! Partitioned transfers: each partition is a write of the card into the other side's buffer, as soon as it is ready.
//!
//! A round begins with a *gate*, a send of no bytes, which the card repeats until the receiving side has started, too.
//! Writes follow in the queue's order: so none reaches a buffer that the other side still uses, and no CPU waits for that.
//! The last write of a partition carries the partition's index.

use crate::channel::Channel;
use crate::error::{Class, Failure};
use crate::marks::Marks;
use crate::memory::Region;
use crate::parts::{number_of, ranges};
use crate::statistics;
use gdsync::{Completion, RemoteMemory, WorkRequest};

/// What both sides agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) partitions: u32,
    /// Bytes of each partition.
    pub(crate) bytes: u64,
}

impl Layout {
    /// Work requests of a round, with the gate.
    pub(crate) fn work_requests(self, part: u64) -> u64 {
        number_of(self.bytes, part).saturating_mul(self.partitions.into()).saturating_add(1)
    }
}

/// The other side, as a round needs it.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) channel: &'a Channel,
    /// This side's buffer.
    pub(crate) region: &'a Region,
    /// The other side's buffer; of no length at the receiving side.
    pub(crate) remote: RemoteMemory,
    /// Bytes of one work request, at most.
    pub(crate) part: u64,
}

/// The rounds of a request.
#[derive(Debug)]
pub(crate) struct Partitions {
    layout: Layout,
    sends: bool,
    is_active: bool,
    /// The round's gate, or its receives, are posted.
    is_open: bool,
    /// Ready, or arrived.
    done: Vec<bool>,
    /// Completions that are to come of what is posted.
    outstanding: u64,
    /// The round's first failure.
    failed: Option<Failure>,
    is_given_up: bool,
    /// For kernels, where the program has asked for that.
    marks: Option<Marks>,
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
            marks: None,
        }
    }

    /// Starts a round; without a route, [`Self::open`] has to follow.
    pub(crate) fn start(&mut self, route: Option<Route<'_>>) -> Result<(), Failure> {
        if self.is_active {
            return Err(Failure::new(Class::Request, "the request is started already: wait for it before"));
        }
        self.done.fill(false);
        if let Some(marks) = &self.marks {
            marks.next_round();
        }
        (self.is_active, self.is_open) = (true, false);
        let opened = route.map_or(Ok(()), |route| self.open(route));
        opened.inspect_err(|_| self.is_active = false)
    }

    /// The sides cannot meet: rounds that are started end with that.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// Posts what a started round has had to leave until its sides have met.
    pub(crate) fn open(&mut self, route: Route<'_>) -> Result<(), Failure> {
        if !self.is_active || self.is_open {
            return Ok(());
        }
        let queue_pair = &route.channel.queue_pair;
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

    /// A partition is ready to be sent.
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

    /// The marks for kernels: they are there from then on.
    pub(crate) fn marks(&mut self) -> Result<&Marks, Failure> {
        if self.marks.is_none() && self.is_active {
            let text =
                "the request is started: make what kernels mark before its first start, or wait for it";
            return Err(Failure::new(Class::Request, text));
        }
        match &mut self.marks {
            Some(marks) => Ok(marks),
            none => Ok(none.insert(Marks::new(self.layout.partitions)?)),
        }
    }

    /// Sends what kernels have marked, and marks what has arrived. Returns whether a round is active and incomplete.
    pub(crate) fn look(&mut self, route: Option<Route<'_>>) -> bool {
        if !self.is_active || self.is_given_up || self.failed.is_some() {
            return false;
        }
        if !self.sends {
            if let Some(route) = route {
                self.poll(route.channel);
            }
            return !self.done.iter().all(|arrived| *arrived);
        }
        for index in 0..self.layout.partitions {
            let is_new = |marks: &Marks| !self.done[index as usize] && marks.is_marked(index as usize);
            if self.marks.as_ref().is_some_and(is_new) {
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

    /// Whether a partition has arrived.
    pub(crate) fn arrived(&mut self, index: i32, route: Option<Route<'_>>) -> Result<bool, Failure> {
        let index = self.check(index)?;
        if self.sends {
            return Err(Failure::new(Class::Request, "the request sends: no partition arrives"));
        }
        // A request that is not active has all of its last round, or had none: MPI calls both complete.
        if !self.is_active {
            return Ok(true);
        }
        if let Some(route) = route {
            self.poll(route.channel);
        }
        match &self.failed {
            Some(failure) => Err(failure.clone()),
            None if self.is_given_up => Err(not_matched()),
            None => Ok(self.done[index as usize]),
        }
    }

    /// Where the round has ended, or none was started: the bytes received, or the first failure.
    pub(crate) fn outcome(&mut self, channel: Option<&Channel>) -> Option<Result<u64, Failure>> {
        if !self.is_active {
            return Some(Ok(0));
        }
        if self.is_given_up {
            self.is_active = false;
            return Some(Err(not_matched()));
        }
        if let Some(channel) = channel.filter(|_| self.is_open) {
            self.poll(channel);
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

    /// Has the card write a partition.
    fn post(&mut self, route: Route<'_>, index: u32) -> Result<(), Failure> {
        let (bytes, part) = (self.layout.bytes, route.part);
        let first = u64::from(index) * bytes;
        let last = number_of(bytes, part) - 1;
        for (at, start) in (0..).zip(ranges(bytes, part)) {
            let (start, end) = (first + start, first + bytes.min(start + part));
            let (start, end) = (start as usize, end as usize);
            let slices = route.region.slices(start..end)?;
            let request = WorkRequest::write(&slices, route.remote.slice(start..end)?);
            let request = if at == last { request.immediate(index) } else { request.unsignaled() };
            route.channel.queue_pair.post_send(request)?;
        }
        self.outstanding += 1;
        statistics::wrote_partition();
        Ok(())
    }

    fn poll(&mut self, channel: &Channel) {
        let queue_pair = &channel.queue_pair;
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
        // The gate has none.
        let Some(index) = completion.immediate else { return };
        match self.done.get_mut(index as usize) {
            Some(arrived) if !*arrived => {
                *arrived = true;
                if let Some(marks) = &self.marks {
                    marks.mark(index as usize);
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
