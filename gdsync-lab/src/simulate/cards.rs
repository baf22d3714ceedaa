//! The cards of an episode, with the objects that all links of a card share.

use super::bench::Bench;
use super::program::LONGEST;
use super::rings::{CompletionQueue, SharedQueue};
use gdsync::qp::SharedReceiveQueue;
use gdsync::stream::Simulation;
use gdsync::{MemoryRegion, PinnedMemory};
use gdsync_cli::failure::Failure;
use gdsync_sys::prm::wqe::DataSeg;
use softhca::card::simulation::{SimulatedCard, World};
use softhca::card::{Access, LinkLayer, RegionConfig, SrqConfig, WaitRules, XrcConfig};
use softhca::faults::FaultPlan;
use softhca::liberties::Schedule;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a place for a message, with bytes around it that nothing may touch.
pub(super) const SLOT: usize = (LONGEST + 2 * 64).next_multiple_of(64);
/// Receives of a shared queue.
const SHARED: u16 = 64;
/// Entries of a completion queue: more than all queue pairs of a card have outstanding.
const COMPLETIONS: u32 = 256;

thread_local! {
    /// Memory of former episodes: to map pages takes longer than to clear them.
    static SPARE: RefCell<Vec<PinnedMemory>> = const { RefCell::new(Vec::new()) };
}

/// Memory that a card may access, and its expected content.
pub(super) struct Region {
    pub(super) memory: PinnedMemory,
    pub(super) key: u32,
    pub(super) shadow: Vec<u8>,
}

impl Region {
    pub(super) fn new(len: usize) -> Result<Self, Failure> {
        let shadow = vec![0; len];
        let spare = SPARE.with_borrow_mut(|spare| {
            let position = spare.iter().position(|memory| memory.len() == len)?;
            Some(spare.swap_remove(position))
        });
        let memory = match spare {
            Some(memory) => memory,
            None => PinnedMemory::allocate(len)?,
        };
        memory.write(0, &shadow);
        Ok(Region { memory, key: 0, shadow })
    }

    /// Registers the memory with a card. The region of a former card is gone with it.
    pub(super) fn register(&mut self, card: &CardBed, relaxed: bool) -> Result<(), Failure> {
        let mut access =
            Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        access.set(Access::RELAXED_ORDERING, relaxed);
        let config = RegionConfig::new(card.pdn, self.address(0), self.memory.len() as u64, access);
        // SAFETY: the memory lives as long as the card: an episode drops its cards first.
        self.key = unsafe { card.card.register_memory(&config) }?;
        Ok(())
    }

    pub(super) fn address(&self, at: usize) -> u64 {
        self.memory.addr().get() + at as u64
    }

    pub(super) fn data(&self, at: usize, len: usize) -> DataSeg {
        DataSeg::new(len as u32, self.key, self.address(at))
    }

    pub(super) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes);
        bytes
    }

    /// Writes bytes, as the program.
    pub(super) fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
        self.expect(at, bytes);
    }

    /// Notes that the card has written these bytes.
    pub(super) fn expect(&mut self, at: usize, bytes: &[u8]) {
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Compares a range with its expected content.
    pub(super) fn check(&self, at: usize, len: usize, what: &str) -> Result<(), String> {
        // In pieces that stay in the cache.
        let mut piece = [0; 4096];
        for (start, expected) in (0..).step_by(piece.len()).zip(self.shadow[at..at + len].chunks(piece.len()))
        {
            let is = &mut piece[..expected.len()];
            self.memory.read(at + start, is);
            if is != expected {
                let byte = is.iter().zip(expected).take_while(|(is, expected)| is == expected).count();
                let (place, is, expected) = (start + byte, is[byte], expected[byte]);
                return Err(format!("{what}: byte {place} of {len} is {is:#04x} instead of {expected:#04x}"));
            }
        }
        Ok(())
    }

    /// Accepts a range in which the card may have written some of `bytes`, and nothing else.
    pub(super) fn adopt(&mut self, at: usize, bytes: &[u8], what: &str) -> Result<(), String> {
        let is = self.bytes(at, bytes.len());
        let allowed = self.shadow[at..].iter().zip(bytes);
        if let Some(byte) = is.iter().zip(allowed).position(|(is, (old, new))| is != old && is != new) {
            return Err(format!("{what}: byte {byte} of {} was never sent", bytes.len()));
        }
        self.expect(at, &is);
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.push(self.memory.clone()));
    }
}

/// A shared receive queue, and the places of its receives.
pub(super) struct Pool {
    pub(super) srqn: u32,
    queue: Receives,
    pub(super) region: Region,
    /// Receives that are posted and not completed, in the order in which the card takes them.
    posted: VecDeque<u16>,
    /// How many the card may have taken for queue pairs that are gone.
    pub(super) may_lose: usize,
}

enum Receives {
    Card(SharedQueue),
    /// The library's, with the places that are free.
    Library(SharedReceiveQueue, MemoryRegion, VecDeque<u16>),
}

impl Receives {
    fn release(&mut self, index: u16) {
        match self {
            Receives::Card(queue) => queue.release(index),
            Receives::Library(.., free) => free.push_back(index),
        }
    }
}

impl Pool {
    fn new(queue: Receives, srqn: u32, region: Region) -> Self {
        Pool { srqn, queue, region, posted: VecDeque::new(), may_lose: 0 }
    }

    fn of_library(bench: &Bench) -> Result<Self, Failure> {
        let region = Region::new(usize::from(SHARED) * SLOT)?;
        let memory = MemoryRegion::register(&bench.pd, region.memory.clone(), gdsync::Access::all())?;
        let queue = SharedReceiveQueue::new(&bench.pd, u32::from(SHARED))?;
        let srqn = queue.number();
        Ok(Pool::new(Receives::Library(queue, memory, (0..SHARED).collect()), srqn, region))
    }

    /// The queue, if it is the library's.
    pub(super) fn library(&self) -> Option<&SharedReceiveQueue> {
        match &self.queue {
            Receives::Card(_) => None,
            Receives::Library(queue, ..) => Some(queue),
        }
    }

    /// Posts a receive, if there is room.
    pub(super) fn post(&mut self) {
        let place = |index| self.region.data(usize::from(index) * SLOT, SLOT);
        let posted = match &mut self.queue {
            Receives::Card(queue) => queue.post(place),
            Receives::Library(queue, region, free) => {
                let index = free.pop_front();
                let at = index.map_or(0, usize::from) * SLOT;
                // There is room for all: links would wait for one that is refused.
                index.filter(|index| {
                    let slice = region.slice(at..at + SLOT);
                    slice.is_ok_and(|slice| queue.post_recv(&[slice], (*index).into()).is_ok())
                })
            }
        };
        self.posted.extend(posted);
    }

    /// Notes that a receive has completed. Returns its place.
    pub(super) fn take(&mut self, index: u16) -> Result<usize, String> {
        let Some(position) = self.posted.iter().position(|posted| *posted == index) else {
            return Err(format!("a completion of receive {index} of a shared queue, which is not posted"));
        };
        self.posted.remove(position);
        self.queue.release(index);
        Ok(usize::from(index) * SLOT)
    }

    /// Takes back the receives that no queue pair completes any more. Everything is at rest, and the card has not taken
    /// `left` receives.
    pub(super) fn take_back(&mut self, left: usize) -> Result<(), String> {
        let lost = self.posted.len().saturating_sub(left);
        if lost > self.may_lose || left > self.posted.len() {
            let (posted, may) = (self.posted.len(), self.may_lose);
            return Err(format!("of {posted} shared receives the card has {left}, and may have lost {may}"));
        }
        self.posted.drain(..lost).for_each(|index| {
            let place = usize::from(index) * SLOT;
            let is = self.region.bytes(place, SLOT);
            self.region.expect(place, &is);
            self.queue.release(index);
        });
        self.may_lose = 0;
        let known = self.library().map(SharedReceiveQueue::posted);
        match known.filter(|known| *known as usize != left) {
            Some(known) => {
                Err(format!("the card has {left} shared receives, and the library knows of {known}"))
            }
            None => Ok(()),
        }
    }
}

pub(super) struct CardBed {
    // Dropped first: the card uses the memory of the others.
    pub(super) card: Rc<SimulatedCard>,
    pub(super) pdn: u32,
    pub(super) xrcd: u32,
    pub(super) sends: CompletionQueue,
    pub(super) receives: CompletionQueue,
    /// The shared queue, that of the XRC domain, and the library's.
    pub(super) pools: Vec<Pool>,
    /// The library on the card.
    pub(super) bench: Option<Bench>,
    /// True if a master of it was moved to ERR. The library may learn of that much later.
    pub(super) fails_masters: bool,
}

impl CardBed {
    pub(super) fn new(
        world: &mut World,
        schedule: Option<&Schedule>,
        faults: Option<&FaultPlan>,
        (simulation, waits): (Option<&Simulation>, WaitRules),
    ) -> Result<Self, Failure> {
        let (card, bench) = match simulation {
            None => (Rc::new(world.start_card(LinkLayer::InfiniBand, schedule, Box::new(drop))?), None),
            Some(simulation) => {
                Bench::new(world, schedule, simulation).map(|(card, bench)| (card, Some(bench)))?
            }
        };
        card.set_faults(faults);
        card.set_wait_rules(waits);
        let pdn = card.alloc_pd()?;
        let xrcd = card.open_xrcd(None, true)?.ok_or("no XRC domain")?;
        let [sends, receives] = [(); 2].map(|()| CompletionQueue::new(&card, COMPLETIONS));
        let (sends, receives) = (sends?, receives?);
        let pool = |xrc: Option<XrcConfig>| {
            let (queue, config) = SharedQueue::new(SHARED, pdn)?;
            let region = Region::new(usize::from(SHARED) * SLOT)?;
            // SAFETY: the card is dropped before the pools.
            let srqn = unsafe { card.create_srq(&SrqConfig { xrc, ..config }) }?;
            Ok::<_, Failure>(Pool::new(Receives::Card(queue), srqn, region))
        };
        let pools = vec![pool(None)?, pool(Some(XrcConfig { xrcd, cqn: receives.cqn, user_index: 0 }))?];
        let mut bed = CardBed { card, pdn, xrcd, sends, receives, pools, bench, fails_masters: false };
        for index in 0..2 {
            let mut region = std::mem::replace(&mut bed.pools[index].region, Region::new(1)?);
            region.register(&bed, false)?;
            bed.pools[index].region = region;
        }
        let of_library = bed.bench.as_ref().map(Pool::of_library).transpose()?;
        bed.pools.extend(of_library);
        Ok(bed)
    }
}
