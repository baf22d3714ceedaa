//! Commands that create, change and destroy a card's objects.

use super::bell;
use super::config::{
    Address, CqAttributes, CqConfig, CqModeration, LIMITS, NUMBERS, QpAttributes, QpChange, QpConfig, QpState,
};
use super::device::{Card, FIRST_NUMBER, UarHandle};
use super::diagnostic::{Diagnostic, Verdict};
use super::engine::{Engine, Uar};
use super::error::CardError;
use super::management::{MAX_MANAGEMENT, ManagementDatagram};
use super::memory::ring::{CqRing, Record};
use super::memory::uar::Register;
use super::multicast;
use super::port::LinkLayer;
use super::queue::cq::Cq;
use super::relations::{self, CQ, PD, QP, invalid, missing, within};
use super::transport::qp::Qp;
use super::transport::transition;
use crate::fabric::Node;
use gdsync_sys::prm::doorbell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Card {
    /// Returns a number that was not used for long: a late packet or completion must not reach a new object.
    pub(super) fn number(&self, taken: impl Fn(u32) -> bool) -> u32 {
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
            within("protection domains", engine.pds.len(), self.limits().max_pd)?;
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
            None => Err(missing(PD, pdn)),
            Some(0) => {
                engine.pds.remove(&pdn);
                Ok(())
            }
            Some(&users) => Err(CardError::Busy { what: PD, number: pdn, users }),
        })
    }

    /// Allocates a page of doorbell registers. The registers at the offsets `registers` can be rung: multiples of 8
    /// inside the page of 4096 bytes.
    ///
    /// # Errors
    /// [`CardError::Invalid`] for an offset that is no register's, [`CardError::TooMany`], [`CardError::System`].
    pub fn alloc_uar(&self, registers: &[usize]) -> Result<UarHandle, CardError> {
        let registers = registers.iter().copied().map(Register::new).collect::<Result<Vec<_>, _>>()?;
        self.command(|engine| {
            // A queue pair needs one at most.
            within("UARs", engine.uars.len(), self.limits().max_qp)?;
            let page = engine.uar_pages.take()?;
            let id = self.number(|number| engine.uars.contains_key(&number));
            let handle = UarHandle { id, page: page.base(), offset: page.offset() };
            bell::hang(handle.page as usize, self.shared.as_served(), Some(id));
            if registers.contains(&Register::new(doorbell::UAR_CQ_ARM)?) {
                engine.arming.insert(id);
            }
            engine.uars.insert(handle.id, Uar { page, registers, qps: BTreeSet::new() });
            self.shared.set_always_told(engine.has_many_pages());
            Ok(handle)
        })
    }

    /// Returns a descriptor of the file that holds the card's pages of doorbell registers, even before the first page
    /// exists. A program can map a page again with it (shared, 4096 bytes, at [`UarHandle::offset`]), and ring through
    /// either mapping.
    ///
    /// # Errors
    /// [`CardError::System`].
    pub fn uar_file(&self) -> Result<OwnedFd, CardError> {
        Ok(self.shared.engine.lock().uar_pages.descriptor()?)
    }

    /// Frees a page of doorbell registers.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs use it.
    pub fn free_uar(&self, id: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let uar = engine.uars.get(&id).ok_or(missing("UAR", id))?;
            if !uar.qps.is_empty() {
                return Err(CardError::Busy { what: "UAR", number: id, users: uar.qps.len() as u32 });
            }
            if let Some(uar) = engine.uars.remove(&id) {
                engine.uar_pages.give_back(uar.page);
                engine.arming.remove(&id);
                self.shared.set_always_told(engine.has_many_pages());
            }
            Ok(())
        })
    }

    /// Creates a completion queue. Returns its number. The card writes to the second word of its doorbell record, to
    /// distinguish one arm from the next.
    ///
    /// # Errors
    /// [`CardError::Invalid`], [`CardError::TooMany`].
    ///
    /// # Safety
    /// The addresses stay valid, aligned as [`CqConfig`] says, until the queue is destroyed.
    pub unsafe fn create_cq(&self, config: &CqConfig) -> Result<u32, CardError> {
        let CqConfig { ring, entries, stride, dbrec, ignore_overrun, collapsed } = *config;
        if !entries.is_power_of_two() || entries > LIMITS.max_cqe {
            let limit = "a power of two, at most 2^22";
            return Err(invalid("completion queue entries", entries, limit));
        }
        if ![64, 128].contains(&stride) {
            return Err(invalid("completion queue stride", stride, "64 or 128"));
        }
        // SAFETY: the caller's.
        let cq = unsafe {
            let consumer = Record::new(dbrec.add(doorbell::DBR_CQ_CI));
            let arm = Record::new(dbrec.add(doorbell::DBR_CQ_ARM));
            Cq::new(CqRing::new(ring, entries, stride, collapsed), consumer, arm, ignore_overrun)
        };
        self.command(|engine| {
            within("completion queues", engine.resources.cqs.len(), self.limits().max_cq)?;
            let cqn = self.number(|number| engine.resources.cqs.contains_key(&number));
            engine.resources.cqs.insert(cqn, cq);
            Ok(cqn)
        })
    }

    /// Moves a completion queue to another ring, with entries of the same size. The old ring belongs to the program
    /// again when this returns; its last entry is [`Cqe64::resize`](gdsync_sys::prm::cqe::Cqe64::resize).
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Invalid`] if one of the rings has no room for the unconsumed entries and
    /// that entry, or if the queue has overrun.
    ///
    /// # Safety
    /// The new ring is writable and aligned to 64 until the queue moves again or is destroyed.
    pub unsafe fn resize_cq(&self, cqn: u32, ring: *mut u8, entries: u32) -> Result<(), CardError> {
        if !entries.is_power_of_two() || entries > LIMITS.max_cqe {
            return Err(invalid("completion queue entries", entries, "a power of two, at most 2^22"));
        }
        self.command(|engine| {
            let cq = engine.resources.cqs.get_mut(&cqn).ok_or(missing(CQ, cqn))?;
            // SAFETY: the caller's.
            let ring = unsafe { CqRing::new(ring, entries, cq.ring.stride, cq.ring.collapsed) };
            let limit = "more than the entries that are not consumed, in the old and the new ring";
            cq.resize(ring).then_some(()).ok_or(invalid("completion queue entries", entries, limit))
        })
    }

    /// Changes the moderation of a queue's completion events.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn moderate_cq(&self, cqn: u32, moderation: CqModeration) -> Result<(), CardError> {
        self.command(|engine| {
            let cq = engine.resources.cqs.get_mut(&cqn).ok_or(missing(CQ, cqn))?;
            cq.set_moderation(moderation);
            Ok(())
        })
    }

    /// Returns the state of a completion queue.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn query_cq(&self, cqn: u32) -> Result<CqAttributes, CardError> {
        self.command(|engine| engine.resources.cqs.get(&cqn).map(Cq::attributes).ok_or(missing(CQ, cqn)))
    }

    /// Destroys a completion queue. After this returns, the card does not touch its memory.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs complete there.
    pub fn destroy_cq(&self, cqn: u32) -> Result<(), CardError> {
        self.command(|engine| match engine.resources.cqs.get(&cqn).map(|cq| cq.users) {
            None => Err(missing(CQ, cqn)),
            Some(0) => {
                // Earlier doorbells were for this queue.
                engine.take_arms(Instant::now());
                engine.resources.cqs.remove(&cqn);
                engine.resources.delayed.forget_queue(cqn);
                Ok(())
            }
            Some(users) => Err(CardError::Busy { what: CQ, number: cqn, users }),
        })
    }

    /// Creates a queue pair in RESET. Returns its number.
    ///
    /// # Errors
    /// [`CardError::Invalid`], [`CardError::NotFound`], [`CardError::TooMany`].
    ///
    /// # Safety
    /// The addresses of existing queues stay valid until the queue pair is destroyed.
    pub unsafe fn create_qp(&self, config: &QpConfig) -> Result<u32, CardError> {
        let power = |what, value: u32| {
            let fits = value == 0 || value.is_power_of_two() && value <= 1 << 16;
            let limit = "0 or a power of two, at most 2^16";
            if fits { Ok(()) } else { Err(invalid(what, value, limit)) }
        };
        power("send queue blocks", config.sq_blocks)?;
        power("receive queue entries", config.rq_entries)?;
        relations::check_shape(config)?;
        if config.rq_entries != 0 && (config.rq_stride == 0 || !config.rq_stride.is_multiple_of(16)) {
            return Err(invalid("receive queue stride", config.rq_stride, "a multiple of 16"));
        }
        if let Some(index) = config.user_index.filter(|index| *index > NUMBERS) {
            return Err(invalid("user index", index, "at most 24 bits"));
        }
        self.command(|engine| {
            within("queue pairs", engine.qps.len(), self.limits().max_qp)?;
            if config.no_send_record {
                let recordless = engine.qps.values().filter(|qp| qp.endpoint.config.no_send_record).count();
                let what = "queue pairs without a doorbell record of sends";
                within(what, recordless, LIMITS.max_recordless_qp)?;
            }
            relations::check(engine, config)?;
            let qpn = self.number(|number| engine.qps.contains_key(&number));
            if let Some(uar) = config.uar.and_then(|uar| engine.uars.get_mut(&uar)) {
                uar.qps.insert(qpn);
                if config.no_send_record {
                    uar.poll_also(Register::new(doorbell::UAR_NO_RECORD)?);
                }
            }
            if config.slave_send {
                engine.resources.slaves.insert(qpn);
            }
            relations::join(engine, config);
            // SAFETY: the caller's.
            engine.qps.insert(qpn, unsafe { Qp::new(qpn, config) });
            Ok(qpn)
        })
    }

    /// Checks that the port can send to an address: on Ethernet it needs a GID. An error is also reported as a
    /// diagnostic.
    ///
    /// # Errors
    /// [`CardError::Invalid`].
    pub(crate) fn check_address(&self, address: &Address) -> Result<(), CardError> {
        self.command(|engine| check_route(engine, address))
    }

    /// Changes a queue pair.
    ///
    /// # Errors
    /// [`CardError::Modify`], [`CardError::Invalid`], [`CardError::NotFound`]. Nothing has changed then.
    pub fn modify_qp(&self, qpn: u32, change: &QpChange) -> Result<(), CardError> {
        self.command(|engine| {
            let endpoint = &engine.qps.get(&qpn).ok_or(missing(QP, qpn))?.endpoint;
            let to = transition::check(endpoint.config.transport, endpoint.state(), change)?;
            if let Some(address) = &change.address {
                check_route(engine, address)?;
            }
            let now = Instant::now();
            if to == QpState::Reset {
                // Doorbells that rang before this command must not reach the queue pair after its reset.
                engine.take_doorbells_of(qpn, now);
                engine.flush_delayed_completions(qpn, now);
                engine.delayed.forget(qpn);
            }
            engine.with_qp(qpn, now, |qp, context| match to {
                QpState::Reset => qp.reset(),
                QpState::Err => {
                    qp.ring(true, context);
                    qp.fail(context);
                }
                to => qp.apply(change, to),
            });
            if to != QpState::Err {
                engine.recovered(qpn);
            }
            engine.activate(qpn);
            Ok(())
        })
    }

    /// Returns the card's node: its address in the fabric.
    pub fn node(&self) -> Node {
        self.port.node()
    }

    /// Returns the node whose card has an IP address, IPv4 as an IPv4-mapped one, among its GIDs.
    pub fn node_at(&self, address: IpAddr) -> Option<Node> {
        self.port.node_at(address)
    }

    /// Returns the GID by which connections reach the card at a node: on Ethernet the IPv4-mapped one.
    pub fn gid_of(&self, node: Node) -> Option<[u8; 16]> {
        self.port.gid_of(node)
    }

    /// Sends a management datagram to the card at a node, possibly this card. It may be lost.
    ///
    /// # Errors
    /// [`CardError::Invalid`] if it has more than [`MAX_MANAGEMENT`] bytes.
    pub fn send_management(&self, to: Node, bytes: &[u8]) -> Result<(), CardError> {
        if bytes.len() > MAX_MANAGEMENT {
            let limit = "at most 1024";
            return Err(invalid("bytes of a management datagram", bytes.len() as u32, limit));
        }
        self.command(|engine| engine.send_management(to, bytes, Instant::now()));
        Ok(())
    }

    /// Takes the management datagrams that have arrived, in order.
    /// [`Event::Management`](super::event::Event::Management) announces them.
    pub fn take_management(&self) -> Vec<ManagementDatagram> {
        self.command(|engine| engine.resources.inbox.take())
    }

    /// Returns whether the process of a node that this card has sent to is known to be alive. False if it has ended, or
    /// if this card has sent nothing there.
    pub fn is_linked(&self, node: Node) -> bool {
        node == self.port.node() || self.command(|engine| engine.fabric.is_linked(node))
    }

    /// Returns the attributes of a queue pair.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn query_qp(&self, qpn: u32) -> Result<QpAttributes, CardError> {
        self.command(|engine| engine.qps.get(&qpn).map(Qp::attributes).ok_or(missing(QP, qpn)))
    }

    /// Destroys a queue pair, unless it was opened more often ([`Card::open_qp`]). After this returns, the card touches
    /// neither its rings nor the memory that its work requests name.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn destroy_qp(&self, qpn: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let qp = engine.qps.get_mut(&qpn).ok_or(missing(QP, qpn))?;
            if qp.openers > 1 {
                qp.openers -= 1;
                return Ok(());
            }
            engine.send_the_last(qpn);
            engine.flush_delayed_packets_of(qpn, Instant::now());
            let endpoint = engine.remove_qp(qpn).ok_or(missing(QP, qpn))?.endpoint;
            relations::part(engine, &endpoint.config);
            multicast::leave_all(engine, qpn);
            Ok(())
        })
    }
}

fn check_route(engine: &mut Engine, address: &Address) -> Result<(), CardError> {
    if engine.resources.port.link == LinkLayer::InfiniBand || address.gid.is_some() {
        return Ok(());
    }
    let message = "the port is Ethernet: an address needs a global route (is_global, and a GID)".to_owned();
    let (verdict, field) = (Verdict::Refused, "is_global");
    engine.resources.diagnostics.report(Diagnostic { verdict, qpn: None, index: None, field, message });
    Err(invalid("is_global", 0, "1 on an Ethernet port: it is addressed by GID"))
}
