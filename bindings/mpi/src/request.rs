//! A request: what the program asks for, its peers, and, once it is matched, its work.

use crate::collective::{Collective, Reduction, barrier, sides};
use crate::connection::{ClearToSend, Connection, ConnectionInfo, INFO_BYTES, Peer, Side, read};
use crate::device::{Domain, domain};
use crate::error::{Class, Failure};
use crate::link::Link;
use crate::memory::{self, Buffer, Region};
use crate::partitions::{Layout, Partitions, Route};
use crate::persistent::{PersistentGroup, fragment_count};
use crate::stream::{PROBE_INTERVAL, progress_matches};
use gdsync::qp::CardWord;
use gdsync::{Access, MemoryRegion};
use gdsync_sys::pause::Pause;
use parking_lot::Mutex;
use std::ptr;
use std::sync::{Arc, Weak};

/// Starts for which a queue pair has room, at least.
const DEPTH: u64 = 32;
/// Outstanding messages of a link, at most; half the depth of its queue pair.
const LINK_DEPTH: u64 = 128;

/// The kind of a request, with its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestKind {
    Transfer { sends: bool, buffer: Buffer },
    Partitioned { sends: bool, buffer: Buffer, layout: Layout },
    Link { sends: bool },
    Barrier { rank: u32, size: u32 },
    Allreduce { reduction: Reduction, rank: u32, size: u32 },
}

impl RequestKind {
    /// This rank's side of each message.
    fn sides(&self) -> Vec<Side> {
        match *self {
            RequestKind::Transfer { sends, .. }
            | RequestKind::Partitioned { sends, .. }
            | RequestKind::Link { sends } => vec![Side { rank: 0, sends, has_queue_pair: true }],
            RequestKind::Barrier { rank, size } => sides(&barrier(rank, size)),
            RequestKind::Allreduce { reduction, rank, size } => reduction.sides(rank, size),
        }
    }

    fn shape(&self) -> String {
        match self {
            RequestKind::Transfer { .. } => "transfer".to_owned(),
            RequestKind::Link { .. } => "link".to_owned(),
            RequestKind::Partitioned { layout, .. } => {
                format!("partitions-{}-of-{}-bytes", layout.partitions, layout.bytes)
            }
            RequestKind::Barrier { size, .. } => format!("barrier-of-{size}"),
            RequestKind::Allreduce { reduction, size, .. } => {
                let Reduction { target, element, operation, .. } = reduction;
                format!("{operation}-of-{}-bytes-of-{element}-among-{size}", target.bytes)
            }
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            RequestKind::Transfer { buffer, .. } | RequestKind::Partitioned { buffer, .. } => {
                buffer.bytes as u64
            }
            RequestKind::Link { .. } | RequestKind::Barrier { .. } => 0,
            RequestKind::Allreduce { reduction, .. } => reduction.target.bytes as u64,
        }
    }

    /// Work requests of a start on each queue pair.
    fn work_requests(&self, fragment_bytes: u64) -> u64 {
        match self {
            RequestKind::Transfer { buffer, .. } => fragment_count(buffer.bytes as u64, fragment_bytes),
            RequestKind::Partitioned { layout, .. } => layout.work_requests(fragment_bytes),
            RequestKind::Link { .. } => LINK_DEPTH,
            // Each send is waited for before the next one, and receives are started one round ahead.
            RequestKind::Barrier { .. } | RequestKind::Allreduce { .. } => 2,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Work {
    Transfer(PersistentGroup),
    Collective(Box<Collective>),
    /// Present before the match, too: a round may start before its sides are matched.
    Partitioned(Partitions),
    /// Present before the match, too.
    Link(Link),
}

impl Work {
    fn outcome(&mut self, connection: Option<&Connection>) -> Option<Result<u64, Failure>> {
        match self {
            Work::Transfer(group) => group.outcome(),
            Work::Collective(collective) => collective.outcome(),
            Work::Partitioned(partitions) => partitions.outcome(connection),
            Work::Link(link) => link.is_idle().then_some(Ok(0)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct RequestState {
    pub(crate) peers: Vec<Peer>,
    region: Region,
    pub(crate) work: Option<Work>,
    /// The queue on which the request was started, until that waits for it or the CPU has completed it.
    pub(crate) started_on: Option<usize>,
}

impl RequestState {
    /// Returns whether a queue can start the request, or why not.
    pub(crate) fn check_startable(&self) -> Result<(), &'static str> {
        match self.work {
            None => Err("is not matched: match it before it is started"),
            Some(Work::Partitioned(_)) => Err("is partitioned, which the CPU starts"),
            Some(Work::Link(_)) => Err("is a link, whose messages are enqueued"),
            Some(Work::Transfer(_) | Work::Collective(_)) if self.started_on.is_some() => {
                Err("is started already: enqueue a wait for it, or wait for it, before")
            }
            Some(Work::Transfer(_) | Work::Collective(_)) => Ok(()),
        }
    }

    /// Ends the use of the program's memory, once the work has ended.
    pub(crate) fn release_memory(&mut self) {
        (self.work, self.region) = (None, Region::Empty);
    }

    fn peer(&mut self, index: usize) -> Result<&mut Peer, Failure> {
        let peers = self.peers.len();
        let text = || format!("the request has {peers} legs, and none with the index {index}");
        self.peers.get_mut(index).ok_or_else(|| Failure::new(Class::Argument, text()))
    }
}

#[derive(Debug)]
pub(crate) struct Request {
    kind: RequestKind,
    pub(crate) state: Mutex<RequestState>,
}

impl Request {
    /// A request for which nothing is registered or made yet.
    ///
    /// # Safety
    /// The memory of the buffers stays where it is until the request is freed and its work has ended. Between a start and its
    /// end the program uses it only as MPI allows.
    pub(crate) unsafe fn new(kind: RequestKind) -> Self {
        let peers = kind.sides().into_iter().map(Peer::new).collect();
        let work = match kind {
            RequestKind::Partitioned { sends, layout, .. } => {
                Some(Work::Partitioned(Partitions::new(sends, layout)))
            }
            RequestKind::Link { sends } => Some(Work::Link(Link::new(sends))),
            _ => None,
        };
        let state = RequestState { peers, region: Region::Empty, work, started_on: None };
        Request { kind, state: Mutex::new(state) }
    }

    /// Makes this side of the connection with a peer. Returns what the peer needs to connect.
    pub(crate) fn connection_info(&self, index: usize) -> Result<ConnectionInfo, Failure> {
        let domain = domain()?;
        let state = &mut *self.state.lock();
        if index == 0 {
            self.register(domain, state)?;
        }
        let depth = DEPTH.max(2 * self.kind.work_requests(domain.fragment_bytes));
        let peer = state.peer(index)?;
        let (mut endpoint, mut probe_endpoint) = (None, None);
        if peer.side.has_queue_pair {
            let card_waits = domain.starts_by_word && matches!(self.kind, RequestKind::Transfer { .. });
            let depth = u32::try_from(depth).unwrap_or(u32::MAX);
            let connection = Connection::new(domain, peer.side.sends, depth, card_waits)?;
            let most = connection.queue_pair.max_message();
            if domain.fragment_bytes > most {
                let text = format!(
                    "GDSYNC_MPI_PART_BYTES is {}, and the card's messages have at most {most}",
                    domain.fragment_bytes
                );
                return Err(Failure::new(Class::Argument, text));
            }
            let (own, probe) = connection.endpoints()?;
            (endpoint, probe_endpoint) = (Some(own), probe);
            peer.connection = Some(connection);
        }
        if matches!(self.kind, RequestKind::Transfer { sends: true, .. }) && domain.holds_sends {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let region = MemoryRegion::allocate(&domain.pd, size_of::<u64>(), access)?;
            peer.clear_to_send = Some(CardWord::in_region(&region, 0)?);
        }
        let word = peer.clear_to_send.as_ref().map(CardWord::remote);
        let writable = match self.kind {
            RequestKind::Partitioned { sends: false, .. } => state.region.remote(),
            _ => word.unwrap_or_else(|| Region::Empty.remote()),
        };
        Ok(ConnectionInfo {
            shape: self.kind.shape(),
            bytes: self.kind.bytes(),
            fragment_bytes: domain.fragment_bytes,
            provider: domain.provider().to_owned(),
            endpoint,
            writable,
            probe_endpoint,
        })
    }

    fn register(&self, domain: &Domain, state: &mut RequestState) -> Result<(), Failure> {
        let (buffer, access) = match self.kind {
            RequestKind::Transfer { sends: true, buffer }
            | RequestKind::Partitioned { sends: true, buffer, .. } => (buffer, Access::empty()),
            RequestKind::Transfer { buffer, .. } => (buffer, Access::LOCAL_WRITE),
            RequestKind::Partitioned { buffer, .. } => (buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            RequestKind::Link { .. } | RequestKind::Barrier { .. } => return Ok(()),
            RequestKind::Allreduce { reduction, .. } => {
                let mut buffers = reduction.source.into_iter().chain([reduction.target]);
                return buffers.try_for_each(|buffer| memory::gpu_of(buffer.address).map(drop));
            }
        };
        // SAFETY: the caller of `new` keeps the memory in place.
        state.region = unsafe { Region::register(&domain.pd, buffer, access) }?;
        Ok(())
    }

    /// Compares this side with a peer's, and connects them.
    pub(crate) fn connect(&self, index: usize, line: &[u8; INFO_BYTES]) -> Result<(), Failure> {
        let (domain, remote) = (domain()?, read(line)?);
        let state = &mut *self.state.lock();
        let peer = state.peer(index)?;
        let (shape, own) = (self.kind.shape(), self.kind.bytes());
        if remote.shape != shape {
            let text = format!("this rank has {shape}, and the peer {}: all ranks do the same", remote.shape);
            return Err(Failure::new(Class::Argument, text));
        }
        if remote.fragment_bytes != domain.fragment_bytes {
            let text = format!(
                "GDSYNC_MPI_PART_BYTES is {}, and the peer's {}: set it alike for all ranks",
                domain.fragment_bytes, remote.fragment_bytes
            );
            return Err(Failure::new(Class::Other, text));
        }
        let (message, capacity) = if peer.side.sends { (own, remote.bytes) } else { (remote.bytes, own) };
        if message > capacity {
            let text = format!("the message has {message} bytes, and the receive {capacity}");
            return Err(Failure::new(Class::Truncate, text));
        }
        if peer.side.has_queue_pair {
            peer.connection.as_ref().ok_or_else(not_matched)?.connect(domain, &remote)?;
        }
        peer.remote = Some(remote);
        Ok(())
    }

    /// Makes the work, once all peers are connected. Returns the length of a transfer's message.
    pub(crate) fn complete_match(&self) -> Result<u64, Failure> {
        let domain = domain()?;
        let state = &mut *self.state.lock();
        if !state.peers.iter().all(|peer| peer.remote.is_some()) {
            return Err(not_matched());
        }
        let connections = state.peers.iter().filter_map(|peer| Some((peer.side, peer.connection.as_ref()?)));
        let connections: Vec<_> = connections.collect();
        let mut message = 0;
        state.work = Some(match self.kind {
            RequestKind::Transfer { sends, buffer } => {
                let remote = state.peers.first().and_then(|peer| peer.remote.as_ref());
                let clear = state.peers.first().map_or(ClearToSend::Unused, Peer::clear_to_send);
                let (Some(remote), Some((_, connection))) = (remote, connections.first()) else {
                    return Err(not_matched());
                };
                let own = buffer.bytes as u64;
                message = if sends { own } else { remote.bytes };
                let (side, lengths) = ((sends, &clear), (message, own));
                let group = PersistentGroup::of_message(
                    connection,
                    side,
                    &state.region,
                    lengths,
                    domain.fragment_bytes,
                );
                Work::Transfer(group?)
            }
            RequestKind::Partitioned { buffer, .. } => {
                let route = route(&state.peers, &state.region, domain.fragment_bytes);
                let (Some(Work::Partitioned(partitions)), Some(route)) = (&mut state.work, route) else {
                    return Err(not_matched());
                };
                partitions.open(route)?;
                return Ok(buffer.bytes as u64);
            }
            RequestKind::Link { .. } => return Ok(0),
            RequestKind::Barrier { rank, size } => {
                Work::Collective(Box::new(Collective::barrier(&connections, (rank, size))?))
            }
            RequestKind::Allreduce { reduction, rank, size } => {
                // SAFETY: the caller of `new` keeps the memory in place.
                let made =
                    unsafe { Collective::allreduce(&domain.pd, reduction, &connections, (rank, size)) };
                Work::Collective(Box::new(made?))
            }
        });
        Ok(message)
    }

    /// Ends what is connected and what waits for the match, after matching has failed.
    pub(crate) fn abandon_match(&self) {
        let state = &mut *self.state.lock();
        abort(&state.peers);
        match &mut state.work {
            Some(Work::Partitioned(partitions)) => partitions.give_up(),
            Some(Work::Link(link)) => link.give_up(),
            _ => {}
        }
    }

    /// Calls a function with the link, and with its connection once its sides are matched.
    pub(crate) fn with_link<R>(
        &self,
        act: impl FnOnce(&mut Link, Option<&mut Connection>) -> R,
    ) -> Result<R, Failure> {
        let RequestState { peers, work, .. } = &mut *self.state.lock();
        let peer = peers.first_mut().filter(|peer| peer.remote.is_some());
        let connection = peer.and_then(|peer| peer.connection.as_mut());
        match work {
            Some(Work::Link(link)) => Ok(act(link, connection)),
            _ => Err(Failure::new(Class::Request, "the request is not a link")),
        }
    }

    /// Ends all work of the card for the request.
    pub(crate) fn abort(&self) {
        abort(&self.state.lock().peers);
    }

    /// Calls a function with the partitions, and with the other side once that is known.
    pub(crate) fn with_partitions<R>(
        &self,
        act: impl FnOnce(&mut Partitions, Option<Route<'_>>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let domain = domain()?;
        let state = &mut *self.state.lock();
        let route = route(&state.peers, &state.region, domain.fragment_bytes);
        match &mut state.work {
            Some(Work::Partitioned(partitions)) => act(partitions, route),
            _ => Err(Failure::new(Class::Request, "the request is not partitioned")),
        }
    }

    /// Returns the address of a partitioned request's flags, which the thread that calls MPI polls from then on.
    ///
    /// # Errors
    /// [`Class::Unsupported`] where a kernel that sees a flag might not see the partition.
    pub(crate) fn partition_flags(self: &Arc<Self>) -> Result<u64, Failure> {
        if let RequestKind::Partitioned { sends: false, buffer, .. } = self.kind {
            memory::check_order(buffer.address)?;
        }
        let address = self.with_partitions(|partitions, _| partitions.flags()?.address())?;
        let mut polled = POLLED.lock();
        polled.retain(|known| known.strong_count() > 0 && !ptr::eq(known.as_ptr(), Arc::as_ptr(self)));
        polled.push(Arc::downgrade(self));
        Ok(address)
    }

    /// Returns the bytes received, or the failure, if the request has completed.
    ///
    /// After a failure it ends the connections whose other side would not learn of it: a collective's, and those with a probe
    /// queue pair.
    pub(crate) fn outcome(&self) -> Option<Result<u64, Failure>> {
        let state = &mut *self.state.lock();
        let connection = state.peers.first().and_then(|peer| peer.connection.as_ref());
        let outcome = state.work.as_mut().map_or(Some(Ok(0)), |work| work.outcome(connection));
        if matches!(outcome, Some(Err(_))) {
            match state.work {
                Some(Work::Collective(_)) => abort(&state.peers),
                _ => connections(&state.peers).for_each(Connection::end_together),
            }
        }
        outcome
    }

    /// Waits on the CPU until the request has completed. Returns the bytes received.
    pub(crate) fn wait(&self) -> Result<u64, Failure> {
        let (mut pause, mut probe_at) = (Pause::new(), PROBE_INTERVAL);
        loop {
            if let Some(outcome) = self.outcome() {
                self.state.lock().started_on = None;
                return outcome;
            }
            progress_matches();
            if pause.elapsed() >= probe_at {
                probe_at += PROBE_INTERVAL;
                self.probe();
            }
            pause.pause();
        }
    }

    /// Probes the peers for which the request waits.
    pub(crate) fn probe(&self) {
        if let Some(mut state) = self.state.try_lock() {
            probe(&mut state.peers);
            if let Some(Work::Collective(collective)) = &state.work
                && let Err(error) = collective.is_idle()
            {
                tracing::debug!(%error, "the stream of a collective has failed");
            }
        }
    }
}

pub(crate) fn probe(peers: &mut [Peer]) {
    peers.iter_mut().for_each(Peer::probe);
}

fn connections(peers: &[Peer]) -> impl Iterator<Item = &Connection> {
    peers.iter().filter_map(|peer| peer.connection.as_ref())
}

/// Ends all work with the peers: what a stream waits for ends with an error, here and, after their retries, at the peers.
pub(crate) fn abort(peers: &[Peer]) {
    connections(peers).for_each(Connection::abort);
}

/// Partitioned requests whose flags are polled.
static POLLED: Mutex<Vec<Weak<Request>>> = Mutex::new(Vec::new());

/// Polls the flags of all partitioned requests. Returns the number of incomplete rounds.
pub(crate) fn poll_partition_flags() -> usize {
    let polled: Vec<_> = POLLED.lock().iter().filter_map(Weak::upgrade).collect();
    let is_incomplete = |request: &&Arc<Request>| {
        request.with_partitions(|partitions, route| Ok(partitions.progress(route))).unwrap_or(false)
    };
    polled.iter().filter(is_incomplete).count()
}

/// Returns the other side of a partitioned request, once that is known.
fn route<'a>(peers: &'a [Peer], region: &'a Region, fragment_bytes: u64) -> Option<Route<'a>> {
    let peer = peers.first()?;
    let (connection, remote) = (peer.connection.as_ref()?, peer.remote.as_ref()?.writable);
    Some(Route { connection, region, remote, fragment_bytes })
}

fn not_matched() -> Failure {
    Failure::new(Class::Request, "the request is not matched: match it first")
}
