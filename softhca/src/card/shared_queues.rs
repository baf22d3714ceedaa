//! Commands for shared receive queues.

use super::config::{LIMITS, NUMBERS, SrqAttributes, SrqConfig, XrcConfig};
use super::device::Card;
use super::error::CardError;
use super::event::Event;
use super::queue::shared::Srq;
use super::relations::{CQ, PD, SRQ, XRCD, invalid, leave, missing, within};

/// Bytes of the smallest entry: the linking segment and one data segment.
const SMALLEST_ENTRY: u32 = 32;

impl Card {
    /// Creates a shared receive queue. Returns its number.
    ///
    /// # Errors
    /// [`CardError::Invalid`], [`CardError::NotFound`], [`CardError::TooMany`].
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
        // SAFETY: the caller's.
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
    /// [`CardError::NotFound`].
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
            leave(engine, srq.pdn);
            if let Some(XrcConfig { xrcd, cqn, .. }) = srq.xrc {
                engine.resources.cqs.entry(cqn).and_modify(|cq| cq.users -= 1);
                engine.xrcds.entry(xrcd).and_modify(|domain| domain.users -= 1);
            }
            Ok(())
        })
    }
}
