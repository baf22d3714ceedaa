//! Coming to rest: nothing is outstanding, failed links are made anew, and all memory is checked.

use super::check::Checked;
use super::driven::Driven;
use super::link::{End, Link};
use super::program::{DEPTH, What, Work};
use super::rings::SendQueue;
use super::stage::Stage;
use crate::soak::plan::Random;

/// Maximum number of rounds in which an episode comes to rest, without an end that this is taken for a hang.
const ROUNDS: usize = 50_000;
/// Rounds without a completion after which streams are taken to wait for each other, although cards work: they may send a message
/// again and again whose receive one of those streams is to announce.
const STANDSTILL: usize = 5_000;
/// Steps without work that the library may need until it acts, of a millisecond each.
const PATIENCE: u32 = 20;

impl Stage<'_> {
    /// Runs until nothing is outstanding, makes failed links anew, and checks all memory.
    pub(super) fn settle(&mut self, random: &mut Random) -> Checked {
        let (mut idle, mut still) = (0, 0);
        for round in 0.. {
            let ended = self.totals.completions;
            for link in 0..self.links.len() {
                for side in 0..2 {
                    self.links[link].post_receives(side, DEPTH, &mut self.cards);
                    self.end_row(link, side, random)?;
                }
                // Nothing else tells the other end, for whose messages streams may wait.
                let Link { is_dead, ends, .. } = &self.links[link];
                let is_over = *is_dead || ends.iter().any(End::has_failed);
                let others =
                    ends.iter().position(|end| end.queues.library.is_some() && !end.queues.has_failed());
                if let Some(side) = others.filter(|_| is_over) {
                    self.fail(link, side).map_err(|error| error.to_string())?;
                }
            }
            let worked = self.step_all(random);
            idle = if worked { 0 } else { idle + 1 };
            self.poll()?;
            still = if self.totals.completions == ended { still + 1 } else { 0 };
            if let Some(what) = self.unfinished() {
                let mut goes_on = worked || self.skip() || self.has_patience(idle);
                if (!goes_on || still == STANDSTILL) && self.end_circles()? {
                    (idle, still, goes_on) = (0, 0, true);
                }
                if !goes_on || round > ROUNDS {
                    let why = if goes_on { "does not come to its end" } else { "hangs" };
                    return Err(format!("{what} {why}"));
                }
            } else if !worked && !self.skip() {
                break;
            }
        }
        for link in 0..self.links.len() {
            if self.links[link].is_dead || self.links[link].ends.iter().any(End::has_failed) {
                self.remake(link, true, random)?;
            }
        }
        for (number, bed) in self.cards.iter_mut().enumerate() {
            for pool in &mut bed.pools {
                let left = bed.card.query_srq(pool.srqn).map_err(|error| error.to_string())?.posted;
                pool.take_back(left as usize).map_err(|error| format!("card {number}: {error}"))?;
            }
        }
        for link in 0..self.links.len() {
            self.links[link].check().map_err(|error| self.at(link, 0, &error))?;
            for side in 0..2 {
                self.totals.mix(&self.links[link].ends[side].region.shadow);
            }
        }
        Ok(())
    }

    /// Posts a request with a completion, if the last one has none.
    fn end_row(&mut self, link: usize, side: usize, random: &mut Random) -> Checked {
        let end = &self.links[link].ends[side];
        if end.ledger.ends_silently() && !end.failed {
            let seed = random.next();
            let nop = Work {
                what: What::Nop,
                length: 0,
                offset: 0,
                signaled: true,
                fenced: false,
                rung: true,
                seed,
            };
            self.links[link].post(side, &nop, &self.cards)?;
        }
        let End { queues, card, .. } = &mut self.links[link].ends[side];
        queues.send.iter_mut().for_each(SendQueue::ring);
        match (&mut queues.library, &self.cards[*card].bench) {
            (Some(driven), Some(bench)) => driven.ring(bench),
            _ => Ok(()),
        }
    }

    /// Lets time pass in which the library, which has no timer that shows, may act.
    fn has_patience(&self, idle: u32) -> bool {
        let is_patient = self.simulation.is_some() && idle < PATIENCE;
        if is_patient {
            self.pass(1_000_000);
            // A stream tells how far it is only now and then, unless it is asked: prepared work of a failed queue pair is
            // flushed behind what the stream has rung for (docs/failure-model.md, "Flush").
            let ends = self.links.iter().flat_map(|link| &link.ends);
            for end in ends.filter(|end| end.has_failed() && end.ledger.len() > 0) {
                let stream = end.queues.library.as_ref().and_then(Driven::stream);
                if let (Some(stream), Some(bench)) = (stream, &self.cards[end.card].bench) {
                    drop(bench.streams[stream].unfinished());
                }
            }
        }
        is_patient
    }

    /// Aborts the queue pairs for whose sends streams wait that others are given later: two streams may wait for each other.
    /// Returns false if there is none.
    fn end_circles(&mut self) -> Result<bool, String> {
        let mut has_some = false;
        for link in 0..self.links.len() {
            for side in 0..2 {
                let queues = &self.links[link].ends[side].queues;
                if queues.library.as_ref().is_some_and(|driven| driven.is_awaited_ahead)
                    && !queues.has_failed()
                {
                    self.fail(link, side).map_err(|error| error.to_string())?;
                    has_some = true;
                }
            }
        }
        Ok(has_some)
    }

    /// Describes an end with something outstanding, or a stream that waits.
    fn unfinished(&self) -> Option<String> {
        let is = |link: &Link, end: &End| match end.qpn != 0 && !end.has_failed() {
            true => end.ledger.len() > 0 || link.is_whole() && !end.coming.is_empty(),
            false => {
                !end.ledger.is_silent() || end.queues.library.as_ref().is_some_and(Driven::has_open_starts)
            }
        };
        let mut links = self.links.iter().enumerate();
        let end =
            links.find_map(|(number, link)| Some((number, link.ends.iter().position(|end| is(link, end))?)));
        if let Some((link, side)) = end {
            return Some(self.at(link, side, &format!("({}) it", self.state(link, side))));
        }
        let benches =
            self.cards.iter().enumerate().filter_map(|(card, bed)| Some((card, bed.bench.as_ref()?)));
        let mut streams = benches.flat_map(|(card, bench)| {
            bench.streams.iter().enumerate().map(move |(stream, driving)| (card, stream, driving))
        });
        streams.find_map(|(card, stream, driving)| {
            Some(format!("stream {stream} of card {card} ({}) it", driving.unfinished()?))
        })
    }

    fn state(&self, link: usize, side: usize) -> String {
        let end = &self.links[link].ends[side];
        let state = self.cards[end.card].card.query_qp(end.qpn).map(|attributes| attributes.state);
        let (sends, receives, coming) = (end.ledger.len(), end.posted.len(), end.coming.len());
        format!("{state:?}, {sends} sends outstanding, {receives} receives posted, {coming} messages to come")
    }
}

impl Link {
    /// Returns whether everything that is sent reliably must come.
    fn is_whole(&self) -> bool {
        self.plan.kind.is_reliable() && !self.is_dead && self.ends.iter().all(|end| !end.has_failed())
    }
}
