//! Commands for completion queues, shared receive queues and XRC domains.

use crate::card::config::{
    CqAttributes, CqConfig, CqModeration, LIMITS, NUMBERS, SrqAttributes, SrqConfig, XrcConfig,
};
use crate::card::device::Card;
use crate::card::engine::XrcDomain;
use crate::card::error::{CQ, CardError, PD, SRQ, XRCD, invalid, missing, within};
use crate::card::memory::ring::{CqRing, Record};
use crate::card::queue::cq::Cq;
use crate::card::queue::shared::Srq;
use crate::card::reports::Event;
use gdsync_sys::prm::doorbell;
use std::time::Instant;

/// Bytes of the smallest entry: the linking segment and one data segment.
const SMALLEST_ENTRY: u32 = 32;

impl Card {
    /// Creates a completion queue. Returns its number. The card writes to the second word of its doorbell record, to
    /// distinguish one arm from the next.
    ///
    /// # Errors
    /// [`CardError::Invalid`] for a value out of range, [`CardError::TooMany`] at the card's limit.
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
        // SAFETY: the caller guarantees this.
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
            // SAFETY: the caller guarantees this.
            let ring = unsafe { CqRing::new(ring, entries, cq.ring.stride, cq.ring.collapsed) };
            let limit = "more than the entries that are not consumed, in the old and the new ring";
            cq.resize(ring).then_some(()).ok_or(invalid("completion queue entries", entries, limit))
        })
    }

    /// Changes the moderation of a queue's completion events.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if there is none of that number.
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
    /// [`CardError::NotFound`] if there is none of that number.
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

    /// Creates a shared receive queue. Returns its number.
    ///
    /// # Errors
    /// [`CardError::Invalid`] for a value out of range, [`CardError::NotFound`] for an object that it names,
    /// [`CardError::TooMany`] at the card's limit.
    ///
    /// # Safety
    /// The addresses stay valid until the queue is destroyed; the record is aligned.
    pub unsafe fn create_srq(&self, config: &SrqConfig) -> Result<u32, CardError> {
        let SrqConfig { pdn, entries, stride, xrc, .. } = *config;
        if !entries.is_power_of_two() || entries > LIMITS.max_srq_entries {
            return Err(invalid("shared receive queue entries", entries, "a power of two, at most 2^15"));
        }
        let largest = (LIMITS.max_srq_sge + 1) * 16;
        if !stride.is_power_of_two() || !(SMALLEST_ENTRY..=largest).contains(&stride) {
            return Err(invalid("shared receive queue stride", stride, "a power of two, 32 to 1024"));
        }
        if let Some(XrcConfig { user_index, .. }) = xrc.filter(|xrc| xrc.user_index > NUMBERS) {
            return Err(invalid("user index", user_index, "at most 24 bits"));
        }
        // SAFETY: the caller guarantees this.
        let srq = unsafe { Srq::new(config) };
        self.command(|engine| {
            within("shared receive queues", engine.resources.srqs.len(), self.limits().max_srq)?;
            let users = engine.pds.get_mut(&pdn).ok_or(missing(PD, pdn))?;
            if let Some(XrcConfig { xrcd, cqn, .. }) = xrc {
                let cq = engine.resources.cqs.get_mut(&cqn).ok_or(missing(CQ, cqn))?;
                let domain = engine.xrcds.get_mut(&xrcd).ok_or(missing(XRCD, xrcd))?;
                (cq.users, domain.users) = (cq.users + 1, domain.users + 1);
            }
            *users += 1;
            let srqn = self.number(|number| engine.resources.srqs.contains_key(&number));
            engine.resources.srqs.insert(srqn, srq);
            Ok(srqn)
        })
    }

    /// Arms the limit of a shared receive queue: the card raises [`Event::SrqLimit`] once, possibly at once, when fewer
    /// receives are posted. 0 disarms it.
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Invalid`] for a limit that the ring cannot reach.
    pub fn set_srq_limit(&self, srqn: u32, limit: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let srq = engine.resources.srqs.get_mut(&srqn).ok_or(missing(SRQ, srqn))?;
            if limit >= srq.attributes().entries {
                return Err(invalid("srq_limit", limit, "less than the queue's entries"));
            }
            if srq.set_limit(limit) {
                engine.resources.events.push(Event::SrqLimit { srqn });
            }
            Ok(())
        })
    }

    /// Returns the state of a shared receive queue.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if there is none of that number.
    pub fn query_srq(&self, srqn: u32) -> Result<SrqAttributes, CardError> {
        self.command(|engine| {
            engine.resources.srqs.get_mut(&srqn).map(Srq::attributes).ok_or(missing(SRQ, srqn))
        })
    }

    /// Destroys a shared receive queue. After this returns, the card does not touch its ring.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs take from it.
    pub fn destroy_srq(&self, srqn: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let users = engine.resources.srqs.get(&srqn).ok_or(missing(SRQ, srqn))?.users;
            if users > 0 {
                return Err(CardError::Busy { what: SRQ, number: srqn, users });
            }
            let Some(srq) = engine.resources.srqs.remove(&srqn) else { return Ok(()) };
            engine.leave_domain(srq.pdn);
            if let Some(XrcConfig { xrcd, cqn, .. }) = srq.xrc {
                engine.resources.cqs.entry(cqn).and_modify(|cq| cq.users -= 1);
                engine.xrcds.entry(xrcd).and_modify(|domain| domain.users -= 1);
            }
            Ok(())
        })
    }

    /// Opens the XRC domain of a file, identified by device and inode, or a new domain without a file. Returns its
    /// number, or `None` if it is not open yet and `create` is false.
    ///
    /// # Errors
    /// [`CardError::TooMany`] at the card's limit.
    pub fn open_xrcd(&self, file: Option<(u64, u64)>, create: bool) -> Result<Option<u32>, CardError> {
        self.command(|engine| {
            let mut open = engine.xrcds.iter_mut();
            let known = open.find(|(_, domain)| file.is_some() && domain.file == file);
            if let Some((&number, domain)) = known {
                domain.openers += 1;
                return Ok(Some(number));
            }
            if !create {
                return Ok(None);
            }
            within("XRC domains", engine.xrcds.len(), self.limits().max_xrcd)?;
            let number = self.number(|number| engine.xrcds.contains_key(&number));
            engine.xrcds.insert(number, XrcDomain { file, openers: 1, users: 0 });
            Ok(Some(number))
        })
    }

    /// Returns whether the XRC domain of a file is open.
    pub fn has_xrcd(&self, file: (u64, u64)) -> bool {
        self.command(|engine| engine.xrcds.values().any(|domain| domain.file == Some(file)))
    }

    /// Closes an XRC domain. The last close destroys it.
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Busy`] at the last close while queue pairs or shared receive queues are in
    /// it.
    pub fn close_xrcd(&self, xrcd: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let domain = engine.xrcds.get_mut(&xrcd).ok_or(missing(XRCD, xrcd))?;
            match *domain {
                XrcDomain { openers: 1, users: 0, .. } => drop(engine.xrcds.remove(&xrcd)),
                XrcDomain { openers: 1, users, .. } => {
                    return Err(CardError::Busy { what: XRCD, number: xrcd, users });
                }
                _ => domain.openers -= 1,
            }
            Ok(())
        })
    }
}
