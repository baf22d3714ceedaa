//! Changes by the program to memory that an outstanding work request owns: a check that [`Checks::USE`] asks for.
//!
//! From the doorbell to the completion, the entry in the ring and the buffers that it names belong to the card (IB
//! specification, 10.8.3 and 11.4.1.1). The check knows them from the time at which the card could first have read
//! them: behind a WAIT or a fence the program, or the card, may still have to fill a buffer.

use super::owned::{Owned, describe};
use super::state::{Request, Requester};
use crate::card::config::{Access, Checks};
use crate::card::memory::copy::Location;
use crate::card::memory::fingerprint::Fingerprint;
use crate::card::memory::translation::Refusal;
use crate::card::queue::wqe::{self, Payload, Work, each_piece};
use crate::card::transport::endpoint::Step;
use crate::card::watch::Missing;
use gdsync_sys::prm::wqe::{CtrlSeg, DataSeg, Opcode, SEGMENT};
use std::ops::Range;

/// The field of the diagnostic for a buffer.
const BUFFER: &str = "use of a source buffer";
/// The field of the diagnostic for an entry of the ring.
const ENTRY: &str = "use of a work-queue entry";
/// The field of the diagnostic for an object that is destroyed.
pub(crate) const OBJECT: &str = "end of an object in use";

/// The segments with the data of a request that sends some.
fn source_of(work: &Work) -> &[DataSeg] {
    match &work.payload {
        Payload::Segments(segments) | Payload::Mixed(_, segments)
            if work.operands.is_none() && work.opcode != Opcode::RdmaRead =>
        {
            segments
        }
        _ => &[],
    }
}

/// Takes the fingerprints of the buffers of a work request.
fn fingerprints(work: &Work, step: &Step<'_, '_>) -> Vec<Fingerprint> {
    let (regions, segments) = (step.context.regions, source_of(work));
    let length: u64 = segments.iter().map(|segment| u64::from(segment.byte_count())).sum();
    let mut taken = Vec::new();
    // A key that is refused is reported when the request is sent.
    let _ = each_piece(segments, 0, length as u32, |range| {
        let pieces = regions.pieces(range, step.endpoint.pdn, Access::empty())?;
        // SAFETY: resolved just now to registered memory.
        taken.extend(pieces.filter_map(|(location, len)| unsafe { Fingerprint::of(location, len) }));
        Ok::<_, Refusal>(())
    });
    taken
}

impl Requester {
    /// Looks at the next work request, which the card could fetch now, and fetches later.
    pub(super) fn own_ahead(&mut self, step: &Step<'_, '_>) {
        if !step.context.checks.contains(Checks::USE) {
            return;
        }
        let Some(mut entry) = self.queue.next() else { return };
        let blocks = u32::from(entry.ctrl.ds()).div_ceil(4);
        if blocks == 0 || blocks > entry.announced {
            return;
        }
        self.queue.read_rest(&mut entry, blocks);
        let mut owned = Owned::new(&entry.bytes);
        let body = &entry.bytes[size_of::<CtrlSeg>()..usize::from(entry.ctrl.ds()) * SEGMENT];
        // A fence waits for reads, whose results may be the data of this request.
        if entry.ctrl.fence_mode() == 0
            && let Ok(work) = wqe::parse(&entry.ctrl, body, step.endpoint.config.transport)
        {
            owned.sources = Some(fingerprints(&work, step));
        }
        self.ahead = Some((entry.first, owned));
    }

    /// Returns what belongs to the card with a work request that it fetches, if that is checked.
    pub(super) fn own(&mut self, first: u32, entry: &[u8], step: &Step<'_, '_>) -> Option<Box<Owned>> {
        if !step.context.checks.contains(Checks::USE) {
            return None;
        }
        let ahead = self.ahead.take().filter(|(of, _)| *of == first).map(|(_, owned)| owned);
        Some(ahead.unwrap_or_else(|| Owned::new(entry)))
    }

    /// Takes the fingerprints of the buffers of the request under the cursor, whose first packet is being made.
    pub(super) fn own_sources(&mut self, step: &Step<'_, '_>) {
        let Some(request) = self.requests.get_mut(self.cursor) else { return };
        if let (Some(owned), Ok(work)) = (&mut request.owned, &request.work)
            && owned.sources.is_none()
        {
            owned.sources = Some(fingerprints(work, step));
        }
    }

    /// Watches the memory for the result of the request under the cursor, until that completes.
    #[cold]
    pub(super) fn watch_result(&mut self, step: &mut Step<'_, '_>) {
        let Some(request) = self.requests.get_mut(self.cursor).filter(|request| request.watched.is_empty())
        else {
            return;
        };
        let Ok(Work { payload: Payload::Segments(segments), length, .. }) = &request.work else { return };
        let (qpn, what) = (step.endpoint.qpn, Missing::Result(request.number));
        let (regions, watches) = (step.context.regions, &mut *step.context.watches);
        // A key that is refused was reported.
        let _ = each_piece(segments, 0, *length, |range| {
            for (location, len) in regions.pieces(range, step.endpoint.pdn, Access::LOCAL_WRITE)? {
                if let Location::Host(at) = location {
                    request.watched.extend(watches.begin(qpn, what, at, len));
                }
            }
            Ok::<_, Refusal>(())
        });
    }

    /// Reports what the program has changed before the completion of a request.
    pub(super) fn check_owned(&self, request: &Request, step: &mut Step<'_, '_>) {
        let Some(owned) = &request.owned else { return };
        let (index, what) = (Some(request.first as u16), describe(&request.work));
        let mut now = Vec::with_capacity(owned.entry.len());
        (0..request.blocks)
            .for_each(|block| self.queue.read_again(request.first.wrapping_add(block), &mut now));
        if let Some(byte) = now.iter().zip(&owned.entry).position(|(new, old)| new != old) {
            let message = format!(
                "{what}: the program has changed byte {byte} of the entry before the completion of this request; \
                 reuse its place in the ring when its completion, or that of a later one, has been polled"
            );
            step.found(index, ENTRY, message);
        }
        for source in owned.sources.iter().flatten() {
            // SAFETY: it was registered memory when the request was executed. Memory that is gone since is no change.
            let Some(changed) = (unsafe { source.changed() }) else { continue };
            let (changed, all) = (hex(changed), hex(source.range()));
            let message = format!(
                "{what}: the program has changed bytes in {changed} of its buffer {all} before the completion of this \
                 request; change it when the completion, or that of a later request, has been polled"
            );
            step.found(index, BUFFER, message);
        }
    }

    /// Describes the requests that are neither completed nor flushed, oldest first, each with its index; those that only wait
    /// are left out. `key`: only those that name it.
    pub(crate) fn unfinished(&self, key: Option<u32>) -> impl Iterator<Item = (u16, String)> {
        let names = move |work: &Work| {
            let segments = match &work.payload {
                Payload::Segments(segments) | Payload::Mixed(_, segments) => segments.as_slice(),
                Payload::Inline(_) => &[],
            };
            work.wait.is_none() && key.is_none_or(|key| segments.iter().any(|segment| segment.lkey() == key))
        };
        let requests = self
            .requests
            .iter()
            .filter(move |request| !request.done && request.work.as_ref().is_ok_and(names));
        let fetched = requests.map(|request| (request.first as u16, describe(&request.work)));
        let next = self.queue.next().filter(|_| key.is_none());
        fetched.chain(next.and_then(|entry| {
            let opcode = entry
                .ctrl
                .opcode()
                .ok()
                .filter(|opcode| !matches!(opcode, Opcode::Wait | Opcode::SendEnable))?;
            Some((entry.first as u16, format!("{opcode:?}, which the card has not read yet,")))
        }))
    }
}

fn hex(range: Range<u64>) -> String {
    format!("{:#x}..{:#x}", range.start, range.end)
}
