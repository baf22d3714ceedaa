//! Lists of persistent requests: started and started again by a stream, which waits for them.

use super::bench::Awaited;
use super::cards::{CardBed, SLOT};
use super::check::Checked;
use super::driven::Driven;
use super::kept::{Held, Kept, Start};
use super::link::{Effect, End, KEPT, KEPT_WINDOW, Link, Message, Posted};
use super::post::content;
use super::program::{By, DEPTH, KEEP, Kind, LONGEST};
use crate::soak::plan::Random;
use gdsync::persistent::{PersistentRecv, PersistentSend, Request};
use gdsync::{Batch, RemoteMemory};
use gdsync_sys::prm::wqe::Opcode;

/// A request of a list: its link, end and place.
type Chosen = (usize, usize, usize);

/// Returns where the bytes of a place's request are in its end's memory.
fn slot(place: usize) -> usize {
    KEPT + place * SLOT
}

/// Makes the request of a place.
fn make(end: &mut End, peer: &End, place: usize, random: &mut Random) -> Result<Kept, String> {
    let words = |error: &dyn std::fmt::Display| format!("a persistent request is refused: {error}");
    let (mut opcode, mut bytes, mut at, immediate) = (Opcode::Nop, Vec::new(), 0, random.next() as u32);
    if place < KEEP {
        let all = [Opcode::Send, Opcode::SendImm, Opcode::RdmaWrite, Opcode::RdmaWriteImm];
        opcode = all[random.below(4) as usize];
        let longest = [0, 64, LONGEST as u64][random.below(3) as usize];
        bytes = content(random, random.clone().below(longest + 1) as usize);
        at = KEPT_WINDOW + place * SLOT + random.below(64) as usize;
        end.region.fill(slot(place), &bytes);
    }
    let Some(driven) = &end.queues.library else { return Err("there is no queue pair".to_owned()) };
    let len = if place < KEEP { bytes.len() } else { SLOT };
    let slices = [driven.region.slice(slot(place)..slot(place) + len).map_err(|error| words(&error))?];
    let slices = if len == 0 { &[][..] } else { &slices };
    let remote = RemoteMemory {
        addr: peer.region.address(0),
        len: peer.region.memory.len() as u64,
        rkey: peer.region.key,
    };
    let queue_pair = &driven.queue_pair;
    let request = match opcode {
        Opcode::Nop => PersistentRecv::new(queue_pair, slices).map(Held::Receive),
        Opcode::Send | Opcode::SendImm => PersistentSend::send(queue_pair, slices).map(Held::Send),
        _ => {
            let to = remote.slice(at..at + len).map_err(|error| words(&error))?;
            PersistentSend::write(queue_pair, slices, to).map(Held::Send)
        }
    };
    let request = match request.map_err(|error| words(&error))? {
        Held::Send(send) if matches!(opcode, Opcode::SendImm | Opcode::RdmaWriteImm) => {
            Held::Send(send.immediate(immediate))
        }
        request => request,
    };
    Ok(Kept {
        request,
        opcode,
        bytes,
        at,
        immediate: immediate.to_be_bytes(),
        open: 0,
        has_failed: false,
        was_started: false,
        awaited_on: None,
    })
}

/// Notes what the next start of a send is expected to do.
fn expect(kept: &Kept, peer: &mut End) -> Effect {
    let is_message = kept.opcode != Opcode::RdmaWrite;
    let message = is_message.then(|| {
        let number = peer.sent;
        peer.sent += 1;
        // A later start may write the same place before the message is polled.
        let writes = peer.writes.wrapping_sub(DEPTH * DEPTH);
        let at = (kept.opcode == Opcode::RdmaWriteImm).then_some(kept.at);
        let (opcode, bytes, immediate) = (kept.opcode, kept.bytes.clone(), kept.immediate);
        peer.coming.push_back(Message { number, opcode, bytes, immediate, at, writes });
        number
    });
    match (kept.opcode, message) {
        (Opcode::Send | Opcode::SendImm, Some(number)) => Effect::Message(number),
        _ => Effect::Write { at: kept.at, bytes: kept.bytes.clone(), message },
    }
}

/// Starts a list of persistent requests on a stream, and makes it wait for those whose work is given to the cards. Returns
/// the number of requests.
pub(super) fn start_some(
    (card, stream): (usize, usize),
    links: &mut [Link],
    cards: &mut [CardBed],
    random: &mut Random,
) -> Result<u64, String> {
    let Some(bench) = &mut cards[card].bench else { return Ok(0) };
    let by_trigger = random.below(4) == 0;
    // What a refused list must not have changed.
    let before: Vec<[(u32, usize); 2]> = links
        .iter()
        .map(|link| [0, 1].map(|side| (link.ends[side].sent, link.ends[side].coming.len())))
        .collect();
    let (mut chosen, mut work): (Vec<Chosen>, Vec<Option<Posted>>) = (Vec::new(), Vec::new());
    let mut begun = Batch::new();
    for (number, link) in links.iter_mut().enumerate() {
        if link.plan.kind != Kind::Rc {
            continue;
        }
        for side in 0..2 {
            let [one, other] = &mut link.ends;
            let (end, peer) = if side == 0 { (one, other) } else { (other, one) };
            if end.card != card || end.has_failed() || peer.has_failed() || peer.qpn == 0 {
                continue;
            }
            let mut sends = 0;
            // A shared queue takes no persistent receives.
            let places = if link.plan.shared { KEEP } else { 2 * KEEP };
            for place in 0..places {
                let Some(driven) = &end.queues.library else { break };
                let full = if place < KEEP { end.ledger.len() + sends } else { end.posted.len() + KEEP };
                let is_ours = place >= KEEP || driven.stream() == Some(stream);
                let may = !by_trigger || matches!(driven.by, By::Cpu | By::Stream(_));
                if random.below(3) != 0 || !is_ours || !may || full >= DEPTH {
                    continue;
                }
                if !end.keep(peer, place, stream, random)? {
                    continue;
                }
                chosen.push((number, side, place));
                let Some(driven) = &mut end.queues.library else { break };
                let kept = driven.kept[place].as_ref().filter(|_| place < KEEP);
                work.push(kept.map(|kept| Posted {
                    opcode: kept.opcode,
                    result: None,
                    effect: expect(kept, peer),
                    out: (slot(place), 0),
                }));
                sends += usize::from(place < KEEP);
            }
            if let Some(driven) = end.queues.library.as_mut().filter(|_| sends > 0) {
                driven.ring(bench)?;
                begun = driven.begin(begun, end.ledger.next() as u32 + sends as u32);
            }
        }
    }
    bench.streams[stream].post(begun)?;
    if chosen.is_empty() || !bench.streams[stream].start(&mut list(links, &chosen), by_trigger)? {
        for (link, before) in links.iter_mut().zip(before) {
            for (end, (sent, coming)) in link.ends.iter_mut().zip(before) {
                end.sent = sent;
                end.coming.truncate(coming);
            }
        }
        for (number, side, _) in chosen.iter().filter(|(.., place)| *place < KEEP) {
            let driven = links[*number].ends[*side].queues.library.as_mut();
            driven.into_iter().for_each(|driven| driven.hidden += 1);
        }
        return Ok(0);
    }
    for ((number, side, place), posted) in chosen.iter().zip(work) {
        links[*number].ends[*side].started(*place, posted)?;
    }
    let count = chosen.len() as u64;
    if random.below(4) != 0 {
        chosen.retain(|chosen| may_wait(links, *chosen));
        if bench.streams[stream].wait_for(&mut list(links, &chosen))? {
            let awaited = chosen.iter().map(|chosen| awaited(links, *chosen, stream)).collect();
            bench.streams[stream].mark(awaited, Batch::new())?;
        }
    }
    Ok(count)
}

/// Returns the requests of a list.
fn list<'a>(links: &'a mut [Link], chosen: &[Chosen]) -> Vec<&'a mut dyn Request> {
    let mut list = Vec::new();
    for (number, link) in links.iter_mut().enumerate() {
        for (side, end) in link.ends.iter_mut().enumerate() {
            let kept = end.queues.library.iter_mut().flat_map(|driven| driven.kept.iter_mut().enumerate());
            let here = kept.filter(|(place, _)| chosen.contains(&(number, side, *place)));
            list.extend(here.filter_map(|(_, kept)| kept.as_mut().map(|kept| kept.request.request())));
        }
    }
    list
}

/// Returns whether everything is given to cards and streams that ends a request's newest start.
fn may_wait(links: &[Link], (link, side, place): Chosen) -> bool {
    if place < KEEP {
        return links[link].has_receives(1 - side);
    }
    let (end, peer) = (&links[link].ends[side], &links[link].ends[1 - side]);
    let messages = |driven: &Driven| driven.messages;
    let unrung = peer.queues.library.as_ref().map_or(0, messages);
    // It is the newest receive of its end but for others of the list.
    end.posted.len() <= end.coming.len().saturating_sub(unrung)
}

/// Notes that a stream waits for a request. Returns what a mark of the stream tells.
fn awaited(links: &mut [Link], (link, side, place): Chosen, stream: usize) -> Awaited {
    let queue = usize::from(place >= KEEP);
    let driven = links[link].ends[side].queues.library.as_mut();
    let (mut life, mut start) = (0, None);
    if let Some(driven) = driven {
        life = driven.life;
        start = driven.starts[queue].iter().rfind(|start| start.place == place).map(|start| start.key);
        driven.kept[place].iter_mut().for_each(|kept| kept.awaited_on = Some(stream));
    }
    Awaited { link, side, queue, life, index: 0, start, status: None }
}

impl Link {
    /// Returns whether all messages to an end have receives.
    pub(super) fn has_receives(&self, side: usize) -> bool {
        let end = &self.ends[side];
        self.plan.shared || end.posted.len() >= end.coming.len()
    }
}

impl End {
    /// Sees to a request in a place that the stream may start. Returns false if there is none.
    fn keep(&mut self, peer: &End, place: usize, stream: usize, random: &mut Random) -> Result<bool, String> {
        let Some(driven) = &mut self.queues.library else { return Ok(false) };
        let mut renews = true;
        if let Some(kept) = &mut driven.kept[place] {
            if kept.open > 0 {
                return Ok(kept.awaited_on == Some(stream));
            }
            if kept.was_started {
                kept.complete()?;
            }
            renews = random.below(2) == 0;
        }
        if renews {
            let kept = make(self, peer, place, random)?;
            self.queues.library.iter_mut().for_each(|driven| driven.kept[place] = None);
            if let Some(driven) = &mut self.queues.library {
                driven.kept[place] = Some(kept);
            }
        }
        Ok(true)
    }

    /// Notes that a request has been started.
    fn started(&mut self, place: usize, work: Option<Posted>) -> Checked {
        let key = if work.is_some() { self.ledger.next() } else { (self.receives as u16).into() };
        match work {
            Some(posted) => self.ledger.post(posted, true),
            None => {
                self.posted.push_back((key as u16, slot(place)));
                self.receives += 1;
            }
        }
        let Some(driven) = &mut self.queues.library else { return Ok(()) };
        let Some(kept) = &mut driven.kept[place] else { return Ok(()) };
        (kept.open, kept.awaited_on, kept.was_started) = (kept.open + 1, None, true);
        let status = kept.request.status().ok_or("a persistent request that was started has no status")?;
        driven.starts[usize::from(place >= KEEP)].push_back(Start { key, place, status });
        Ok(())
    }
}
