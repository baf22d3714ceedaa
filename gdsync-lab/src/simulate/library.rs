//! Links that the library drives: their completions, and waits of streams.

use super::bench::Awaited;
use super::cards::CardBed;
use super::check::{Checked, Told, ensure};
use super::driven::Next;
use super::link::{End, Link};
use super::program::{Kind, LinkPlan};
use crate::soak::plan::Random;
use gdsync::memop::Condition;
use gdsync::queue::{WorkError, WorkKind};
use gdsync::verbs::Mtu;
use gdsync::{Batch, Completion, ConnectOptions};
use gdsync_cli::failure::Failure;
use gdsync_sys::prm::wqe::Opcode;

/// Compares a completion's kind with the opcode of a request, or of a message.
fn is_of(completion: &Completion, opcode: Opcode, is_receive: bool) -> bool {
    let kind = match (opcode, is_receive) {
        (Opcode::Send | Opcode::SendImm, false) => WorkKind::Send,
        (Opcode::RdmaWrite | Opcode::RdmaWriteImm, false) => WorkKind::RdmaWrite,
        (Opcode::RdmaRead, _) => WorkKind::RdmaRead,
        (Opcode::AtomicCs, _) => WorkKind::CompareSwap,
        (Opcode::AtomicFa, _) => WorkKind::FetchAdd,
        (Opcode::Send | Opcode::SendImm, true) => WorkKind::Receive,
        (Opcode::RdmaWriteImm, true) => WorkKind::ReceiveRdmaWithImmediate,
        _ => WorkKind::Nop,
    };
    let has_immediate = matches!(opcode, Opcode::SendImm | Opcode::RdmaWriteImm);
    completion.kind == kind && (!is_receive || completion.immediate.is_some() == has_immediate)
}

impl End {
    /// Returns whether starts of receives have no outcome.
    pub(super) fn has_open_receives(&self) -> bool {
        self.queues.library.as_ref().is_some_and(|driven| !driven.starts[1].is_empty())
    }

    /// Resets a queue pair of the library. Returns false if streams have not passed its work.
    pub(super) fn reset_library(&mut self) -> bool {
        self.life += 1;
        self.queues.library.as_mut().is_some_and(|driven| driven.reset(self.life))
    }
}

impl Link {
    /// Takes the completions of an end that the library drives, and checks them. Returns how many.
    pub(super) fn poll_library(
        &mut self,
        side: usize,
        cards: &mut [CardBed],
        mix: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, String> {
        let mut count = 0;
        for queue in 0..2 {
            while let Some(next) = self.next_ended(side, queue)? {
                count += 1;
                match next {
                    Next::Polled(completion) => self.polled((side, queue), &completion, cards, mix)?,
                    Next::Start { key, outcome } => {
                        self.start_ended((side, queue), (key, outcome), cards, mix)?
                    }
                }
            }
        }
        Ok(count)
    }

    fn next_ended(&mut self, side: usize, queue: usize) -> Result<Option<Next>, String> {
        let end = &mut self.ends[side];
        let oldest = end.posted.front().map(|(index, _)| *index);
        end.queues.library.as_mut().map_or(Ok(None), |driven| driven.next_ended(queue, oldest))
    }

    fn polled(
        &mut self,
        (side, queue): (usize, usize),
        completion: &Completion,
        cards: &mut [CardBed],
        mix: &mut dyn FnMut(&[u8]),
    ) -> Checked {
        let Some(driven) = &mut self.ends[side].queues.library else { return Ok(()) };
        if let Some(index) = completion.index {
            let next = driven.next[queue];
            ensure!(index >= next, "completion {next} is next, and another comes: {completion:?}");
            if queue == 0 {
                driven.hidden = driven.hidden.saturating_sub(index - next);
            }
            (driven.next[queue], driven.lags[queue]) = (index + 1, false);
            if completion.status.is_ok() {
                driven.good[queue] = index + 1;
            }
        }
        for number in [completion.wr_id, completion.byte_len.into(), completion.index.unwrap_or(9).into()] {
            mix(&number.to_le_bytes());
        }
        let told = Told {
            index: completion.wr_id,
            syndrome: completion.status.err().map(|error| error.syndrome),
            bytes: Some(completion.byte_len),
            immediate: Some(completion.immediate.unwrap_or_default().to_be_bytes()),
            is_of: &|opcode| is_of(completion, opcode, queue == 1),
            text: &format_args!("{completion:?}"),
        };
        self.ended((side, queue), &told, cards)
    }

    fn start_ended(
        &mut self,
        (side, queue): (usize, usize),
        (key, outcome): (u64, Result<(), WorkError>),
        cards: &mut [CardBed],
        mix: &mut dyn FnMut(&[u8]),
    ) -> Checked {
        mix(&[key, u64::from(outcome.is_ok())].map(u64::to_le_bytes).concat());
        if let Some(driven) = &mut self.ends[side].queues.library {
            match outcome {
                Ok(()) => {
                    driven.next[queue] += 1;
                    driven.good[queue] = driven.next[queue];
                }
                Err(_) => driven.lags[queue] = true,
            }
        }
        let told = Told {
            index: key,
            syndrome: outcome.err().map(|error| error.syndrome),
            bytes: None,
            immediate: None,
            is_of: &|_| true,
            text: &format_args!("start {key} of a persistent request: {outcome:?}"),
        };
        self.ended((side, queue), &told, cards)
    }

    fn ended(&mut self, (side, queue): (usize, usize), told: &Told<'_>, cards: &mut [CardBed]) -> Checked {
        if queue == 1 {
            return self.received(side, told, cards);
        }
        let driven = self.ends[side].queues.library.as_ref();
        let is_early = told.syndrome.is_none() && driven.is_some_and(|driven| !driven.has_begun(told.index));
        ensure!(!is_early, "a send has completed before its stream has reached it: {}", told.text);
        self.sent(side, told)
    }

    /// Connects the queue pairs that the library drives.
    pub(super) fn connect_library(&self) -> Result<(), Failure> {
        let LinkPlan { timeout, rnr_timer, .. } = self.plan;
        let options = ConnectOptions::default().timeout(timeout).retry_count(7).rnr_retry(7);
        let options = options.min_rnr_timer(rnr_timer).max_reads(4).mtu(Some(Mtu::Bytes1024));
        let [one, other] = &self.ends;
        for (end, peer) in [(one, other), (other, one)] {
            if let (Some(end), Some(peer)) = (&end.queues.library, &peer.queues.library) {
                end.queue_pair.connect(&peer.queue_pair.endpoint()?, options)?;
            }
        }
        Ok(())
    }
}

/// Makes a stream wait for up to four completions of its card's queue pairs; with `ahead`, also of sends that another stream
/// will be given later.
pub(super) fn await_some(
    (card, stream): (usize, usize),
    (ahead, lists): (bool, bool),
    links: &mut [Link],
    cards: &mut [CardBed],
    random: &mut Random,
) -> Checked {
    let Some(bench) = &mut cards[card].bench else { return Ok(()) };
    let places: Vec<(usize, usize)> = (0..links.len()).flat_map(|link| [(link, 0), (link, 1)]).collect();
    let is_here = |end: &End| end.card == card && end.queues.library.is_some();
    let here: Vec<_> = places.into_iter().filter(|(link, side)| is_here(&links[*link].ends[*side])).collect();
    let mut waits = Vec::new();
    let most = 1 + random.below(4) as usize;
    for _ in 0..4 * here.len() {
        if waits.len() == most {
            break;
        }
        let (link, side) = here[random.below(here.len() as u64) as usize];
        let queue = random.below(2) as usize;
        let ahead = ahead && queue == 0;
        if let Some(driven) = &mut links[link].ends[side].queues.library {
            driven.get_ready(ahead.then_some(stream), bench)?;
        }
        let ends = &links[link].ends;
        let Some(driven) = &ends[side].queues.library else { continue };
        // Lost messages of an unreliable link never come.
        if queue == 1 && links[link].plan.kind == Kind::Uc || ends[side].failed {
            continue;
        }
        let unrung = ends[1 - side].queues.library.as_ref().map_or(0, |peer| peer.messages);
        let coming = ends[side].coming.len().saturating_sub(unrung);
        // The library refuses to post a send behind its stream's own wait for one before that was dropped.
        if queue == 0 && driven.hidden > 0 && driven.stream() == Some(stream) {
            continue;
        }
        // Receives that a stream announces later cannot be posted by the CPU before.
        if queue == 0 && lists && !links[link].has_receives(1 - side) {
            continue;
        }
        let Some(wait) = driven.prepare_wait(queue, coming)? else { continue };
        let (life, index) = (driven.life, wait.index());
        waits.push((Awaited { link, side, queue, life, index, start: None, status: None }, wait));
    }
    let by_collector = random.below(4) == 0;
    let driving = &mut bench.streams[stream];
    let (mut batch, mut awaited) = (Batch::new(), Vec::new());
    match &bench.collector {
        collector if by_collector && !waits.is_empty() => {
            let (told, waits): (Vec<_>, Vec<_>) = waits.into_iter().unzip();
            let number = collector.collect(waits).map_err(|error| format!("a collector refuses: {error}"))?;
            batch = batch.wait_value64(collector.word(), Condition::Geq, number);
            awaited = told;
        }
        _ => {
            for (mut told, wait) in waits {
                batch = match random.below(3) {
                    0 => {
                        let checked = wait.checked().map_err(|error| error.to_string())?;
                        told.status = Some(checked.status());
                        batch.wait_checked(checked)
                    }
                    _ => batch.wait(wait),
                };
                awaited.push(told);
            }
        }
    }
    driving.mark(awaited, batch)
}

/// Checks that the completions have come for which streams have waited: `passed` are the words of all streams before the last polls. Returns for
/// how many completions.
pub(super) fn check_marks(links: &[Link], cards: &mut [CardBed], passed: &[u32]) -> Result<u64, String> {
    let mut count = 0;
    let streams = cards.iter_mut().filter_map(|bed| bed.bench.as_mut()).flat_map(|bench| &mut bench.streams);
    for (driving, passed) in streams.zip(passed) {
        while passed.wrapping_sub(driving.first) as i32 >= 0 {
            driving.first += 1;
            for awaited in driving.marks.pop_front().ok_or("a stream writes a mark that it was not given")? {
                let Awaited { link, side, queue, index, .. } = awaited;
                let end = &links[link].ends[side];
                let what = || {
                    let of = awaited
                        .start
                        .map_or("completion", |_| "the start of a persistent request, completion");
                    format!("{of} {index} of queue {queue} of link {link} end {side}")
                };
                let Some(driven) = end.queues.library.as_ref().filter(|driven| driven.life == awaited.life)
                else {
                    continue;
                };
                let hidden = if queue == 0 { driven.hidden } else { 0 };
                let is_hidden = awaited.start.is_none() && index.wrapping_sub(driven.next[queue]) < hidden;
                let is_done = match awaited.start {
                    None => driven.next[queue] > index || driven.lags[queue] || is_hidden,
                    Some(key) => driven.starts[queue].iter().all(|start| start.key != key),
                };
                let has_come = is_done || end.failed || driven.queue_pair.failure().is_some();
                count += 1;
                ensure!(has_come, "a stream passes its wait for {}, which has not come", what());
                if let Some(status) = awaited.status.as_ref().filter(|_| !driven.lags[queue] && !is_hidden) {
                    // Some errors have no completion: of WAITs, and of work that the card never gets.
                    let is_good = index < driven.good[queue];
                    let is = status.get();
                    // The CPU ends waits for shared receives of a failed queue pair, as flushed. The entry of a message that
                    // has come may be seen later.
                    let is_shared = links[link].plan.shared && queue == 1;
                    let may_be_ended = is_shared && driven.queue_pair.failure().is_some();
                    let is_ended = |error: WorkError| error.is_flush() && may_be_ended;
                    ensure!(
                        is.is_some_and(|is| is.is_ok() == is_good || is.is_err_and(is_ended)),
                        "the status of {} is {is:?}, and it is good: {is_good}",
                        what()
                    );
                }
            }
        }
    }
    Ok(count)
}

/// The words of all streams: how far they are.
pub(super) fn words(cards: &[CardBed]) -> Vec<u32> {
    let benches = cards.iter().filter_map(|bed| bed.bench.as_ref());
    benches.flat_map(|bench| bench.streams.iter().map(|driving| driving.word.load())).collect()
}
