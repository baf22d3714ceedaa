//! Commands: making, changing and destroying a card's objects.

use super::config::{
    Access, Address, CqAttributes, CqConfig, LIMITS, QpAttributes, QpChange, QpConfig, QpState,
};
use super::cq::Cq;
use super::dma::{CqRing, Record};
use super::engine::{Engine, Uar};
use super::error::{CardError, Diagnostic};
use super::link::LinkLayer;
use super::region::Memory;
use super::{Card, UarHandle, modify, qp};
use gdsync_sys::prm::doorbell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Object numbers start here: small numbers are special to hardware.
pub(super) const FIRST_NUMBER: u32 = 0x40;
/// Queue pair numbers have 24 bits.
const NUMBERS: u32 = 0xff_ffff;

impl Card {
    /// A number that has not been used for a long time: a late packet or entry must not meet a new object.
    fn number(&self, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed) & NUMBERS;
            if number >= FIRST_NUMBER && !taken(number) {
                return number;
            }
        }
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`CardError::TooMany`].
    pub fn alloc_pd(&self) -> Result<u32, CardError> {
        self.command(|engine| {
            within("protection domains", engine.pds.len(), LIMITS.max_pd)?;
            let pdn = self.number(|number| engine.pds.contains_key(&number));
            engine.pds.insert(pdn, 0);
            Ok(pdn)
        })
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while regions or queue pairs are in it.
    pub fn dealloc_pd(&self, pdn: u32) -> Result<(), CardError> {
        self.command(|engine| match engine.pds.get(&pdn) {
            None => Err(CardError::NotFound { what: "protection domain", number: pdn }),
            Some(0) => {
                engine.pds.remove(&pdn);
                Ok(())
            }
            Some(&users) => Err(CardError::Busy { what: "protection domain", number: pdn, users }),
        })
    }

    /// Registers memory, of this process or of a peer-memory client. Returns its key, local and remote.
    ///
    /// # Errors
    /// As [`Card::register_memory_at`].
    ///
    /// # Safety
    /// As [`Card::register_memory_at`].
    pub unsafe fn register_memory(
        &self,
        pdn: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<u32, CardError> {
        // SAFETY: the caller's.
        unsafe { self.register_memory_at(pdn, addr, len, addr, access) }
    }

    /// Registers memory that requests know by addresses from `iova` on, whatever address it has. Returns its key, local and
    /// remote.
    ///
    /// # Errors
    /// [`CardError::Unmapped`], [`CardError::PeerMemory`], [`CardError::Invalid`], [`CardError::NotFound`],
    /// [`CardError::TooMany`].
    ///
    /// # Safety
    /// Until it is deregistered, the range stays mapped (a client's: allocated), and is accessed otherwise only in ways that
    /// tolerate a device's concurrent reads (and writes, where the access rights allow them).
    pub unsafe fn register_memory_at(
        &self,
        pdn: u32,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<u32, CardError> {
        self.register(pdn, Memory::acquire(addr, len, iova, access)?, None)
    }

    /// Registers memory as [`Card::register_memory_at`] does, with a key whose last 8 bits are `tag`.
    ///
    /// # Errors
    /// As [`Card::register_memory_at`].
    ///
    /// # Safety
    /// As [`Card::register_memory_at`].
    pub unsafe fn register_memory_tagged(
        &self,
        pdn: u32,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
        tag: u8,
    ) -> Result<u32, CardError> {
        self.register(pdn, Memory::acquire(addr, len, iova, access)?, Some(tag))
    }

    /// Memory was acquired without the lock: pinning takes time.
    fn register(&self, pdn: u32, memory: Memory, tag: Option<u8>) -> Result<u32, CardError> {
        self.command(|engine| {
            let users = engine
                .pds
                .get_mut(&pdn)
                .ok_or(CardError::NotFound { what: "protection domain", number: pdn })?;
            let key = engine.regions.register(pdn, memory, tag)?;
            *users += 1;
            Ok(key)
        })
    }

    /// Deregisters memory: after this returns, the card does not touch it.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn deregister_memory(&self, key: u32) -> Result<(), CardError> {
        let memory = self.command(|engine| {
            let (pdn, memory) = engine.regions.deregister(key)?;
            leave(engine, pdn);
            Ok::<_, CardError>(memory)
        })?;
        // Nor is this: a client gets it back.
        drop(memory);
        Ok(())
    }

    /// Allocates a page of doorbell registers, of which those at the offsets `registers` can be rung.
    ///
    /// # Errors
    /// [`CardError::TooMany`], [`CardError::System`].
    pub fn alloc_uar(&self, registers: &'static [usize]) -> Result<UarHandle, CardError> {
        self.command(|engine| {
            // A queue pair needs no more than one.
            within("UARs", engine.uars.len(), LIMITS.max_qp)?;
            let page = engine.uar_pages.take()?;
            let handle =
                UarHandle { id: self.number(|number| engine.uars.contains_key(&number)), page: page.base() };
            engine.uars.insert(handle.id, Uar { page, registers, qps: BTreeSet::new() });
            Ok(handle)
        })
    }

    /// A descriptor of the file that all of the card's pages of doorbell registers are in, and the place of this one: by them
    /// a program makes another mapping of the page (shared, of 4096 bytes). What is stored through either is seen.
    ///
    /// # Errors
    /// [`CardError::NotFound`], [`CardError::System`].
    pub fn uar_memory(&self, id: u32) -> Result<(OwnedFd, u64), CardError> {
        let engine = self.shared.engine.lock();
        let uar = engine.uars.get(&id).ok_or(CardError::NotFound { what: "UAR", number: id })?;
        Ok(engine.uar_pages.descriptor(&uar.page)?)
    }

    /// Frees a page of doorbell registers.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs use it.
    pub fn free_uar(&self, id: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let uar = engine.uars.get(&id).ok_or(CardError::NotFound { what: "UAR", number: id })?;
            if !uar.qps.is_empty() {
                return Err(CardError::Busy { what: "UAR", number: id, users: uar.qps.len() as u32 });
            }
            if let Some(uar) = engine.uars.remove(&id) {
                engine.uar_pages.give_back(uar.page);
            }
            Ok(())
        })
    }

    /// Creates a completion queue. Returns its number. The card writes to the second word of its record, to tell one arm from
    /// the next.
    ///
    /// # Errors
    /// [`CardError::Invalid`], [`CardError::TooMany`].
    ///
    /// # Safety
    /// The addresses stay valid, aligned as [`CqConfig`] says, until the queue is destroyed.
    pub unsafe fn create_cq(&self, config: &CqConfig) -> Result<u32, CardError> {
        let CqConfig { ring, entries, dbrec } = *config;
        if !entries.is_power_of_two() || entries > LIMITS.max_cqe {
            let limit = "a power of two, at most 2^22";
            return Err(CardError::Invalid {
                what: "completion queue entries",
                value: entries.into(),
                limit,
            });
        }
        // SAFETY: the caller's.
        let cq = unsafe {
            let consumer = Record::new(dbrec.add(doorbell::DBR_CQ_CI));
            let arm = Record::new(dbrec.add(doorbell::DBR_CQ_ARM));
            Cq::new(CqRing::new(ring, entries), consumer, arm)
        };
        self.command(|engine| {
            within("completion queues", engine.cqs.len(), LIMITS.max_cq)?;
            let cqn = self.number(|number| engine.cqs.contains_key(&number));
            engine.cqs.insert(cqn, cq);
            Ok(cqn)
        })
    }

    /// Where a completion queue is.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn query_cq(&self, cqn: u32) -> Result<CqAttributes, CardError> {
        self.command(|engine| {
            let missing = CardError::NotFound { what: "completion queue", number: cqn };
            engine.cqs.get(&cqn).map(|cq| cq.attributes()).ok_or(missing)
        })
    }

    /// Destroys a completion queue: after this returns, the card does not touch its memory.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs complete there.
    pub fn destroy_cq(&self, cqn: u32) -> Result<(), CardError> {
        self.command(|engine| match engine.cqs.get(&cqn).map(|cq| cq.users) {
            None => Err(CardError::NotFound { what: "completion queue", number: cqn }),
            Some(0) => {
                engine.cqs.remove(&cqn);
                engine.late.forget_queue(cqn);
                Ok(())
            }
            Some(users) => Err(CardError::Busy { what: "completion queue", number: cqn, users }),
        })
    }

    /// Creates a queue pair, in RESET. Returns its number.
    ///
    /// # Errors
    /// [`CardError::Invalid`], [`CardError::NotFound`], [`CardError::TooMany`].
    ///
    /// # Safety
    /// The addresses of queues that exist stay valid until the queue pair is destroyed.
    pub unsafe fn create_qp(&self, config: &QpConfig) -> Result<u32, CardError> {
        let power = |what, value: u32| {
            let fits = value == 0 || value.is_power_of_two() && value <= 1 << 16;
            let limit = "0 or a power of two, at most 2^16";
            if fits { Ok(()) } else { Err(CardError::Invalid { what, value: value.into(), limit }) }
        };
        power("send queue blocks", config.sq_blocks)?;
        power("receive queue entries", config.rq_entries)?;
        if config.rq_entries != 0 && (config.rq_stride == 0 || !config.rq_stride.is_multiple_of(16)) {
            let limit = "a multiple of 16";
            return Err(CardError::Invalid {
                what: "receive queue stride",
                value: config.rq_stride.into(),
                limit,
            });
        }
        if let Some(index) = config.user_index.filter(|index| *index > NUMBERS) {
            let limit = "at most 24 bits";
            return Err(CardError::Invalid { what: "user index", value: index.into(), limit });
        }
        self.command(|engine| {
            within("queue pairs", engine.qps.len(), LIMITS.max_qp)?;
            let missing = |what, number| CardError::NotFound { what, number };
            for cqn in [config.send_cq, config.recv_cq] {
                engine.cqs.get(&cqn).ok_or(missing("completion queue", cqn))?;
            }
            engine.pds.get(&config.pdn).ok_or(missing("protection domain", config.pdn))?;
            let qpn = self.number(|number| engine.qps.contains_key(&number));
            engine.uars.get_mut(&config.uar).ok_or(missing("UAR", config.uar))?.qps.insert(qpn);
            for cqn in [config.send_cq, config.recv_cq] {
                engine.cqs.entry(cqn).and_modify(|cq| cq.users += 1);
            }
            engine.pds.entry(config.pdn).and_modify(|users| *users += 1);
            // SAFETY: the caller's.
            engine.qps.insert(qpn, unsafe { qp::Qp::new(qpn, config) });
            Ok(qpn)
        })
    }

    /// Whether the port can send to an address: on Ethernet it needs a GID. What is wrong is among the diagnostics, too.
    ///
    /// # Errors
    /// [`CardError::Invalid`].
    pub fn check_address(&self, address: &Address) -> Result<(), CardError> {
        self.command(|engine| check_route(engine, address))
    }

    /// Changes a queue pair.
    ///
    /// # Errors
    /// [`CardError`]: a transition that is not there, a missing or superfluous attribute, a value out of range. Nothing has
    /// changed then.
    pub fn modify_qp(&self, qpn: u32, change: &QpChange) -> Result<(), CardError> {
        self.command(|engine| {
            let qp = engine.qps.get(&qpn).ok_or(CardError::NotFound { what: "queue pair", number: qpn })?;
            let to = modify::check(qp.transport, qp.attributes.state, change)?;
            if let Some(address) = &change.address {
                check_route(engine, address)?;
            }
            let now = Instant::now();
            if to == QpState::Reset {
                // Rung before this command, so it belongs to the life that ends.
                engine.take_doorbells(now);
                engine.settle_late(qpn, now);
                engine.held.forget(qpn);
            }
            engine.with_qp(qpn, now, |qp, context| match to {
                QpState::Reset => qp.reset(),
                QpState::Err => {
                    qp.ring(context);
                    qp.go_to_error(context);
                }
                to => qp.apply(change, to),
            });
            if to != QpState::Err {
                engine.recovered(qpn);
            }
            engine.schedule(qpn);
            Ok(())
        })
    }

    /// Attributes of a queue pair.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn query_qp(&self, qpn: u32) -> Result<QpAttributes, CardError> {
        self.command(|engine| {
            let qp = engine.qps.get(&qpn).ok_or(CardError::NotFound { what: "queue pair", number: qpn })?;
            let (sq_psn, rq_psn) = (qp.sender.next_psn, qp.receiver.expected_psn);
            Ok(QpAttributes { sq_psn, rq_psn, ..qp.attributes })
        })
    }

    /// Destroys a queue pair: after this returns, the card touches neither its memory nor what its work requests name.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn destroy_qp(&self, qpn: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let qp = engine.remove_qp(qpn).ok_or(CardError::NotFound { what: "queue pair", number: qpn })?;
            for cqn in [qp.send_cq, qp.recv_cq] {
                engine.cqs.entry(cqn).and_modify(|cq| cq.users -= 1);
            }
            leave(engine, qp.pdn);
            Ok(())
        })
    }
}

fn within(what: &'static str, count: usize, limit: u32) -> Result<(), CardError> {
    if count < limit as usize { Ok(()) } else { Err(CardError::TooMany { what, limit }) }
}

fn check_route(engine: &mut Engine, address: &Address) -> Result<(), CardError> {
    if engine.port.link == LinkLayer::InfiniBand || address.gid.is_some() {
        return Ok(());
    }
    let message = "the port is Ethernet: an address needs a global route (is_global, and a GID)".to_owned();
    engine.diagnostics.report(Diagnostic { qpn: None, index: None, field: "is_global", message });
    Err(CardError::Invalid {
        what: "is_global",
        value: 0,
        limit: "1 on an Ethernet port: it is addressed by GID",
    })
}

/// An object has left a protection domain.
fn leave(engine: &mut Engine, pdn: u32) {
    engine.pds.entry(pdn).and_modify(|users| *users -= 1);
}
