//! A running card: its port, its settings and its objects.

use super::config::{
    Checks, DataOrdering, InvalidValue, LIMITS, Limits, NUMBERS, PkeyTable, StoppedPeers, WaitRules,
};
use super::counters::Counters;
use super::delayed::Flow;
use super::engine::Engine;
use super::error::CardError;
use super::management::{MANAGEMENT_QPN, MAX_MANAGEMENT, ManagementDatagram};
use super::memory::clock::Clock;
use super::pollers::Pollers;
use super::port::{GidEntry, LinkLayer, Port};
use super::reports::Diagnostic;
use super::worker::{EventSink, Shared};
use super::{capabilities, listeners, touches};
use crate::fabric::{Fabric, Node, Sleeper};
use crate::faults::{FaultPlan, Faults, RuleCount};
use crate::liberties::{Decisions, Liberties, LibertyKinds, Schedule};
use crate::os::guard;
use crate::speed::Speed;
use crate::{faults, liberties, peer_memory, setting};
use gdsync_status::Published;
use gdsync_sys::thread;
use parking_lot::Mutex;
use std::fmt;
use std::hint::black_box;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};

/// The first object number: hardware gives small numbers special meanings.
const FIRST_NUMBER: u32 = 0x40;

/// Memory for a card's thread and its first tables.
const ROOM: usize = 8 << 20;

/// Checks that the process can have as much memory as a card needs: small allocations that fail later would end it.
fn check_room() -> io::Result<()> {
    let mut room = Vec::<u8>::new();
    room.try_reserve_exact(ROOM).map_err(|_| {
        let text = format!(
            "the process cannot have {} MiB more memory; raise the limit of its address space (ulimit -v)",
            ROOM >> 20
        );
        io::Error::new(io::ErrorKind::OutOfMemory, text)
    })?;
    // An allocation that nothing uses might be left out.
    black_box(&mut room);
    Ok(())
}

/// A UAR page of a card.
#[derive(Clone, Copy, Debug)]
pub struct UarHandle {
    /// Its number.
    pub id: u32,
    /// Its first byte. The page is valid until the UAR is freed.
    pub page: *mut u8,
    /// Its offset in the file of all pages ([`Card::uar_file`]).
    pub offset: u64,
}

/// A software card: one port on the fabric, and the thread that serves it. Its objects are numbers.
///
/// ```
/// use softhca::card::{Card, CardError, LinkLayer};
/// let card = Card::start(LinkLayer::Ethernet, Box::new(|event| println!("{event:?}")))?;
/// assert!(matches!(card.dealloc_pd(card.alloc_pd()? + 1), Err(CardError::NotFound { .. })));
/// # Ok::<(), CardError>(())
/// ```
pub struct Card {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    next_number: AtomicU32,
    pub(super) port: Port,
    /// Registration with the status server of this process, until the card ends.
    published: Option<Published>,
    gids: Vec<GidEntry>,
    faults: Faults,
    limits: Limits,
    pkeys: PkeyTable,
}

impl Card {
    /// Starts a card of this host's first device, whose port has the given link layer. On the fabric of several hosts
    /// ([`LISTEN_VARIABLE`](crate::fabric::LISTEN_VARIABLE)) it has an IPv4 address, and the port is Ethernet.
    ///
    /// # Errors
    /// [`CardError::Setting`] for a malformed setting in the environment, [`CardError::Fabric`] if the fabric cannot be
    /// set up, [`CardError::System`] without memory or a thread.
    pub fn start(link: LinkLayer, sink: EventSink) -> Result<Card, CardError> {
        Self::start_device(0, link, sink)
    }

    /// As [`Self::start`], for one of this host's devices by its index. The addresses of all cards of a device are the
    /// same, in every process; the numbers of queue pairs tell them apart.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_device(device: usize, link: LinkLayer, sink: EventSink) -> Result<Card, CardError> {
        let mut card = Card::stopped_device(device, link, sink)?;
        let shared = card.shared.clone();
        let thread = thread::start(Builder::new().name("gdsync-softhca".to_owned()), move || shared.run())?;
        if card.shared.engine.lock().resources.checks.contains(Checks::WATCH) {
            touches::start(&card.shared)?;
        }
        card.thread = Some(thread);
        card.published = Some(gdsync_status::publish(card.shared.clone()));
        Ok(card)
    }

    /// Creates a card without a thread. The caller steps its engine.
    #[cfg(test)]
    pub(super) fn stopped(link: LinkLayer, sink: EventSink) -> Result<Card, CardError> {
        Self::stopped_device(0, link, sink)
    }

    fn stopped_device(device: usize, link: LinkLayer, sink: EventSink) -> Result<Card, CardError> {
        check_room()?;
        setting::check_names()?;
        faults::plan_from_environment()?;
        let (waits, decisions) = (WaitRules::from_environment()?, liberties::of_next_card()?);
        let (limits, checks) = (Limits::from_environment()?, Checks::from_environment()?);
        let stopped_peers = StoppedPeers::from_environment()?;
        let pkeys = PkeyTable::of_devices(&[LinkLayer::InfiniBand])?;
        let fabric = Fabric::bind(device, Speed::from_environment()?)?;
        let mut card = Card::on(fabric, device, link, sink, waits, decisions);
        card.limits = limits;
        card.set_checks(checks);
        card.set_stopped_peers(stopped_peers);
        card.set_pkeys(pkeys.of_port(card.link_layer()));
        Ok(card)
    }

    pub(super) fn on(
        fabric: Fabric,
        device: usize,
        link: LinkLayer,
        sink: EventSink,
        waits: WaitRules,
        decisions: Decisions,
    ) -> Card {
        let ipv4 = fabric.ipv4();
        // The fabric of several hosts has no LIDs.
        let link = if ipv4.is_some() { LinkLayer::Ethernet } else { link };
        let port = Port::new(device, link, fabric.number(), ipv4);
        let faults = faults::join();
        faults.follow(&decisions);
        let sleeper = fabric.sleeper();
        Card::of(Engine::new(fabric, port, faults, decisions, waits, Clock::default()), sleeper, sink)
    }

    /// Creates a card of an engine, without a thread.
    pub(super) fn of(engine: Engine, sleeper: Arc<Sleeper>, sink: EventSink) -> Card {
        guard::install();
        let (port, faults) = (engine.resources.port, engine.resources.faults.clone());
        let shared = Arc::new(Shared {
            port,
            announced: engine.doorbells.announced.clone(),
            used: engine.resources.regions.used.clone(),
            wants_all_rings: AtomicBool::new(false),
            pollers: Pollers::new(),
            engine: Mutex::new(engine),
            sleeper,
            sink,
            stop: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
        });
        let next_number = AtomicU32::new(FIRST_NUMBER);
        Card {
            shared,
            thread: None,
            next_number,
            port,
            published: None,
            gids: port.gids(),
            faults,
            limits: LIMITS,
            pkeys: PkeyTable::default(),
        }
    }

    /// Sets the port's table of partition keys, before there are queue pairs.
    pub(super) fn set_pkeys(&mut self, pkeys: PkeyTable) {
        self.shared.engine.lock().resources.pkeys = pkeys.clone();
        self.pkeys = pkeys;
    }

    /// Sets what it checks of its program.
    pub(super) fn set_checks(&self, checks: Checks) {
        self.shared.engine.lock().resources.checks = checks;
    }

    /// Sets how time-outs treat peers that are stopped. Without effect on the fabric of several hosts, which cannot see that.
    pub(super) fn set_stopped_peers(&self, stopped: StoppedPeers) {
        let mut engine = self.shared.engine.lock();
        if engine.fabric.is_of_one_host() {
            engine.resources.stopped_peers = stopped;
        }
    }

    /// Returns its LID, which every process of the host sees. A card with an Ethernet port has one, too: its GIDs end
    /// with it, and front ends report LID 0. 0 on the fabric of several hosts.
    pub fn lid(&self) -> u16 {
        self.port.lid
    }

    /// Returns the link layer of its port.
    pub fn link_layer(&self) -> LinkLayer {
        self.port.link
    }

    /// Returns its GUID: an EUI-64 of the locally administered range that ends with the LID.
    pub fn guid(&self) -> u64 {
        self.port.guid()
    }

    /// Returns its GID table. InfiniBand: the link-local prefix with the GUID. Ethernet: the same GID as RoCE v1 and as
    /// RoCE v2, then the IPv4-mapped address `::ffff:10.83.x.y` as both, where x.y is the LID. On the fabric of several
    /// hosts the IPv4 address is the device's, and the GUID ends with it, too.
    pub fn gids(&self) -> &[GidEntry] {
        &self.gids
    }

    /// Returns its table of partition keys. An Ethernet port has the default key alone.
    pub fn pkeys(&self) -> &PkeyTable {
        &self.pkeys
    }

    /// Returns the number of packets that the port has dropped for their partition keys: of all processes, if they share
    /// counters ([`Self::attach_counters`]). It ends at 65,535, as `P_KeyViolations` of hardware.
    pub fn bad_pkeys(&self) -> u32 {
        let count = self.shared.engine.lock().resources.counters.bad_pkeys();
        count.min(u16::MAX.into()) as u32
    }

    /// Returns its limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the speed of its timers.
    pub fn speed(&self) -> Speed {
        self.shared.engine.lock().resources.speed
    }

    /// Returns the answer to `QUERY_HCA_CAP` for a type of capabilities (`cap::TYPE_*`), the same for maximum and
    /// current values; `None` for an unknown type. Fields of the device as a whole, such as its `vhca_id`, are 0.
    pub fn capabilities(&self, kind: u64) -> Option<Vec<u8>> {
        capabilities::query(kind, self.link_layer(), self.gids.len(), &self.limits, || self.wait_rules())
    }

    /// Returns the order in which messages reach memory where a queue pair's program asks for none: out of order with the
    /// liberty [`UNORDERED`](crate::liberties::LibertyKinds::UNORDERED), which stands for a network that routes adaptively.
    pub fn network_ordering(&self) -> DataOrdering {
        let routes_adaptively = self.shared.engine.lock().resources.decisions.has(LibertyKinds::UNORDERED);
        if routes_adaptively { DataOrdering::WritesInAnyOrder } else { DataOrdering::InOrder }
    }

    /// Returns its rules for work requests that wait.
    pub fn wait_rules(&self) -> WaitRules {
        self.shared.engine.lock().resources.waits
    }

    /// Registers another mapping of the page of doorbell registers `id` ([`Self::uar_file`]): stores of this process
    /// there wake the card, if the storing thread announces them ([`gdsync_sys::wake::report_doorbell`]).
    pub fn register_uar_mapping(&self, id: u32, page: *mut u8) {
        listeners::register(page as usize, self.shared.as_listener(), Some(id));
    }

    /// Changes its rules for work requests that wait, including those that wait already.
    pub fn set_wait_rules(&self, rules: WaitRules) {
        self.command(|engine| engine.resources.waits = rules);
    }

    /// Returns the current time of the clock that WAIT for a time compares: nanoseconds of `CLOCK_MONOTONIC`. The card
    /// polls it like doorbells, so an idle card is up to 1 ms late.
    pub fn clock_nanoseconds(&self) -> u64 {
        self.shared.engine.lock().resources.clock.nanoseconds()
    }

    /// Counts the packets from now on in `counters`, too.
    pub fn attach_counters(&self, counters: Arc<Counters>) {
        self.command(|engine| engine.resources.counters.file = Some(counters));
    }

    /// Returns the last 256 findings of the strict checker, oldest first.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.shared.engine.lock().resources.diagnostics.all()
    }

    /// Applies a plan to this card only, instead of the process's plan, and restarts its counts. `None` ends the card's
    /// faults.
    pub fn set_faults(&self, plan: Option<&FaultPlan>) {
        self.faults.set(plan);
        self.shared.sleeper.wake();
    }

    /// Takes these liberties, or none, instead of the process's.
    pub fn set_liberties(&self, liberties: Option<Liberties>) {
        self.set_schedule(liberties.map(Schedule::from).as_ref());
    }

    /// Follows this schedule, or none, instead of the process's.
    pub fn set_schedule(&self, schedule: Option<&Schedule>) {
        self.follow(liberties::of_one_card(schedule, 0));
    }

    pub(super) fn follow(&self, decisions: Decisions) {
        self.faults.follow(&decisions);
        self.command(|engine| engine.resources.decisions = decisions);
    }

    /// Returns the fault rules of this card, with their counts.
    pub fn fault_counts(&self) -> Vec<RuleCount> {
        self.faults.counts()
    }

    /// Returns the card's node: its address in the fabric.
    pub fn node(&self) -> Node {
        self.port.node()
    }

    /// Returns whether an IP address, IPv4 as an IPv4-mapped one, is among its GIDs on Ethernet.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.port.has_address(address)
    }

    /// Returns the IPv4 address of the cards that have an IP address among their GIDs, on the fabric of several hosts.
    pub fn ipv4_of(&self, address: IpAddr) -> Option<Ipv4Addr> {
        self.port.ipv4_of(address)
    }

    /// Returns the GID by which connections reach the card at a node: on Ethernet the IPv4-mapped one.
    pub fn gid_of(&self, node: Node) -> Option<[u8; 16]> {
        self.port.gid_of(node)
    }

    /// Sends a management datagram with a partition key of the table to the card at a node, possibly this card. It may be
    /// lost, as it is without a partner of that key in the table there.
    ///
    /// # Errors
    /// [`CardError::Invalid`] if it has more than [`MAX_MANAGEMENT`] bytes.
    pub fn send_management(&self, to: Node, pkey_index: u16, bytes: &[u8]) -> Result<(), CardError> {
        let (what, length) = ("bytes of a management datagram", bytes.len());
        InvalidValue::unless(length <= MAX_MANAGEMENT, what, length as u32, "at most 1024")?;
        self.command(|engine| engine.send_management(to, pkey_index, bytes, engine.now()));
        Ok(())
    }

    /// Returns whether the management datagrams to a node have left. On the fabric of several hosts they may wait for its link,
    /// and are lost if the process ends meanwhile. Always true on the fabric of one host.
    pub fn has_sent_management(&self, to: Node) -> bool {
        let flow = Flow::outgoing(MANAGEMENT_QPN, to);
        self.port.ipv4.is_none() || self.command(|engine| !engine.delayed.holds(flow))
    }

    /// Takes the management datagrams that have arrived, in order.
    /// [`Event::Management`](super::reports::Event::Management) announces them.
    pub fn take_management(&self) -> Vec<ManagementDatagram> {
        self.command(|engine| engine.resources.inbox.take())
    }

    /// Returns whether the process of a node that this card has sent to is known to be alive. False if it has
    /// ended, or if this card has sent nothing there.
    pub fn is_linked(&self, node: Node) -> bool {
        node == self.port.node() || self.command(|engine| engine.fabric.is_linked(node))
    }

    /// Does a bounded amount of the card's work on the calling thread, which polls for completions, instead of waiting
    /// for a core to run the card's own thread. Does nothing if another thread works. Returns whether there was work.
    pub fn assist(&self) -> bool {
        self.shared.assist()
    }

    /// Ends [`Self::assist`] of a thread that has found completions: it leaves for other work. From then on, a packet wakes
    /// the card's thread.
    pub fn end_assist(&self) {
        self.shared.end_assist();
    }

    /// Runs a command, and wakes the engine for the resulting work.
    pub(super) fn command<R>(&self, command: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.shared.engine.lock();
        let result = command(&mut engine);
        engine.workers.own_thread_only |= peer_memory::take_claimed();
        self.shared.deliver_events(engine);
        self.shared.sleeper.wake();
        result
    }

    /// Does what it still owes. No thread serves it any more.
    pub(super) fn finish(&self) {
        let mut engine = self.shared.engine.lock();
        engine.workers.own_thread_only = true;
        let now = engine.now();
        engine.flush_delayed_packets(now);
        engine.write_deferred();
    }

    /// Returns a number that was not used for long: a late packet or completion must not reach a new object.
    pub(super) fn number(&self, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed) & NUMBERS;
            if number >= FIRST_NUMBER && !taken(number) {
                return number;
            }
        }
    }

    /// As [`Self::number`], for a queue pair: the number also tells whose it is.
    pub(super) fn qpn(&self, taken: impl Fn(u32) -> bool) -> u32 {
        self.port.qpn(self.number(|number| taken(self.port.qpn(number))))
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card").field("lid", &self.lid()).finish_non_exhaustive()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // From here on only `shared` keeps the engine alive.
        self.published = None;
        self.shared.stop.store(true, Ordering::Release);
        self.shared.sleeper.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the software card's thread panicked");
        }
        self.finish();
        self.shared.set_wants_all_rings(false);
        faults::leave(&self.faults);
    }
}
