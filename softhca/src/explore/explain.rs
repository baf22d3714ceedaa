//! The sentence for a decision: what the card did, why it may, what would order it, and where programs meet it.

use super::census::Journal;
use crate::liberties::journal::Entry;
use crate::liberties::{Decision, LibertyKinds, Rule, Schedule, Subject, Work, reads_ahead};
use std::fmt;

/// The effect of one decision of a shrunk schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The rule that names it.
    pub rule: Rule,
    /// The card's deed, as in "the job fails where the card ...".
    pub what: String,
    /// Why a card may do that.
    pub why: &'static str,
    /// Orders that would have prevented it.
    pub orders: &'static str,
    /// Cards, platforms and networks that do it.
    pub breaks_on: &'static str,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause { what, why, orders, breaks_on, .. } = self;
        write!(f, "the card {what}: {why}.\n  Orders that would: {orders}.\n  Breaks on: {breaks_on}.")
    }
}

/// Explains the decisions of a schedule by the journals of a run that has failed under it. Work that the run has not
/// come to is described from an orderly run.
pub(super) fn causes(schedule: &Schedule, failed: &[Journal], orderly: &[Journal]) -> Vec<Cause> {
    let cause = |rule: &Rule| {
        let what = match rule.decision() {
            Some(decision) => Told { rule, decision, seed: schedule.seed, failed, orderly }.what(),
            None => format!("takes the liberties of the rule `{rule}`"),
        };
        let (why, orders, breaks_on) = reasons(rule.kind);
        Cause { rule: rule.clone(), what, why, orders, breaks_on }
    };
    schedule.rules.iter().map(cause).collect()
}

/// A decision, and the journals that tell of it.
struct Told<'a> {
    rule: &'a Rule,
    decision: Decision,
    seed: u64,
    failed: &'a [Journal],
    orderly: &'a [Journal],
}

impl Told<'_> {
    fn what(&self) -> String {
        let Decision { kind, work } = self.decision;
        let named = self.named(work);
        match kind {
            LibertyKinds::RELAXED | LibertyKinds::UNORDERED => match self.passed_by() {
                Some(later) => format!("places bytes of {named} after {}", self.named(later)),
                None => format!("places bytes of {named} later than they came"),
            },
            LibertyKinds::PIECES => {
                let late = match self.next_of_others() {
                    Some(other) => format!(", when {} has come", self.named(other)),
                    None => String::new(),
                };
                format!(
                    "places the bytes of {named} in another order than that of their addresses, some of them late{late}"
                )
            }
            LibertyKinds::FETCH if self.reads_ahead() => {
                format!("reads what follows {named} in the send queue before that has executed")
            }
            LibertyKinds::FETCH => format!("fetches {named} late"),
            LibertyKinds::TRANSMIT => format!("reads and sends packet {} of {named} late", work.packet),
            LibertyKinds::COMPLETIONS => format!("writes {named} late"),
            LibertyKinds::ATOMICS => format!("answers {named} late"),
            LibertyKinds::ACKNOWLEDGEMENTS => format!("acknowledges {named} late"),
            LibertyKinds::DROP => format!("drops {}", self.packet()),
            LibertyKinds::DUPLICATE => format!("sends {} twice", self.packet()),
            LibertyKinds::DELAY => format!("sends {} late, and what follows it", self.packet()),
            LibertyKinds::RNR => format!("is not ready for {named} when it first comes"),
            _ => format!("looks late at the doorbell of {named}"),
        }
    }

    fn reads_ahead(&self) -> bool {
        let card = self.rule.process.as_deref().unwrap_or_default();
        reads_ahead(self.decision, self.seed, card)
    }

    /// Returns the entries of the decision's card in some journals.
    fn entries_of<'b>(&self, journals: &'b [Journal]) -> impl Iterator<Item = &'b Entry> {
        let card = self.rule.process.clone();
        let own = journals.iter().filter(move |journal| Some(journal.card.as_str()) == card.as_deref());
        own.flat_map(|journal| &journal.entries)
    }

    /// Returns the entries of the run that has failed, and then those of an orderly one.
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries_of(self.failed).chain(self.entries_of(self.orderly))
    }

    /// Returns the next message that another queue pair placed, before this one's next.
    fn next_of_others(&self) -> Option<Work> {
        let Work { qp, subject, .. } = self.decision.work;
        let placed = self.entries_of(self.failed).filter_map(|entry| match entry {
            Entry::Placed { work, .. } => Some(*work),
            _ => None,
        });
        let next = placed.skip_while(|work| (work.qp, work.subject) != (qp, subject)).nth(1)?;
        (next.qp != qp).then_some(next)
    }

    /// Returns the first later message that was placed while bytes of this one were held back.
    fn passed_by(&self) -> Option<Work> {
        let Work { qp, subject, .. } = self.decision.work;
        self.entries_of(self.failed).find_map(|entry| match entry {
            Entry::Placed { work, passed, .. } if work.qp == qp && passed.contains(&subject.number()) => {
                Some(*work)
            }
            _ => None,
        })
    }

    /// Names the decision's packet.
    fn packet(&self) -> String {
        let Work { subject, packet, .. } = self.decision.work;
        let named = self.named(self.decision.work);
        if matches!(subject, Subject::Answer(_)) { named } else { format!("packet {packet} of {named}") }
    }

    /// Names some work, and tells what it was.
    fn named(&self, work: Work) -> String {
        let text = self.entries().find_map(|entry| match entry {
            Entry::Placed { work: of, text, .. } | Entry::Fetched { work: of, text }
                if (of.qp, of.subject) == (work.qp, work.subject) =>
            {
                Some(text.as_str())
            }
            _ => None,
        });
        let qpn = self.entries().find_map(|entry| match entry {
            Entry::Made { qp, qpn } if *qp == work.qp => Some(*qpn),
            _ => None,
        });
        let queue_pair = qpn.map_or_else(
            || format!("queue pair {} of its card", work.qp),
            |qpn| format!("queue pair {qpn:#x}"),
        );
        let what = match work.subject {
            Subject::Request(number) => format!("request {number}"),
            Subject::Message(number) => format!("message {number}"),
            Subject::Completion(number) => format!("completion entry {number}"),
            Subject::Answer(number) => format!("the answer to packet {number} of the peer"),
        };
        let card = self.rule.process.as_deref().unwrap_or("any process");
        let text = text.map(|text| format!("{text}, ")).unwrap_or_default();
        format!("{what} ({text}{queue_pair} of {card})")
    }
}

/// Returns why a card may take a liberty, what orders its work, and where it is met.
fn reasons(kind: LibertyKinds) -> (&'static str, &'static str, &'static str) {
    match kind {
        LibertyKinds::RELAXED => (
            "nothing orders them, as the region has IBV_ACCESS_RELAXED_ORDERING, or the program has asked for out-of-order \
             placement of its queue pair's messages",
            "the completion of the first at its sender before the second is posted; a send, a write with immediate or an \
             atomic operation in the second one's place, and its completion; a region without relaxed ordering, and a queue pair without out-of-order placement",
            "platforms with PCI Express relaxed ordering, and cards with out-of-order placement",
        ),
        LibertyKinds::UNORDERED => (
            "nothing orders them on a network that routes adaptively",
            "the completion of the first at its sender before the second is posted; a send or a write with immediate in \
             the second one's place, and its completion; an atomic operation",
            "networks with adaptive routing, and cards with out-of-order placement",
        ),
        LibertyKinds::PIECES => (
            "nothing orders the bytes of a message among each other, and with messages of other queue pairs, before its \
             completion",
            "the completion of the message, at its receiver or its sender, before any of its bytes is used",
            "cards and platforms that do not write in ascending order",
        ),
        LibertyKinds::FETCH | LibertyKinds::TRANSMIT => (
            "from the doorbell to its completion a request, its list and its buffers belong to the card, and nothing orders \
             it with the work of other queue pairs",
            "the completion of that request before its buffers are changed or freed, its queue pair is destroyed, or what \
             it does is taken for done",
            "every card under load, and every network that repeats lost packets",
        ),
        LibertyKinds::COMPLETIONS => (
            "entries of different completion queues have no order, and an answer of the peer may be there before the entry",
            "that entry itself: poll its queue until it is there",
            "cards that moderate or batch their completions, and every card under load",
        ),
        LibertyKinds::ATOMICS => (
            "the result is in memory with the completion of that request, and not before",
            "the completion of the atomic operation before its result is read",
            "every card under load",
        ),
        LibertyKinds::ACKNOWLEDGEMENTS => (
            "a peer that has the data need not have acknowledged it",
            "the completion of the request at its sender before its place in the queue or its buffer is used again",
            "every card: acknowledgements are coalesced",
        ),
        LibertyKinds::DROP => (
            "networks lose packets: a reliable connection sends them again after a time-out, from its buffers as they are then; \
             another transport loses the message",
            "the completion of that request before its buffers are changed or what it does is taken for done; on unreliable \
             transports an answer of the peer, without which the program sends again",
            "every network that loses packets",
        ),
        LibertyKinds::DUPLICATE => (
            "a packet may come twice, and a reliable connection executes it once",
            "the completion of that request before what it does is taken for done",
            "every network that repeats lost packets",
        ),
        LibertyKinds::DELAY => (
            "nothing bounds the time of a packet in the network, or orders it with packets of other queue pairs",
            "the completion of that request before its buffers are changed or what it does is taken for done",
            "every network under load",
        ),
        LibertyKinds::RNR => (
            "a responder need not be ready for a request, which is repeated after the pause that it asks for, as often as \
             the requester's rnr_retry says",
            "the completion of that request before what it does is taken for done; an rnr_retry that is not 0",
            "every responder whose receives are posted late, or whose memory is not there yet",
        ),
        _ => (
            "a card may look at its doorbells late, and serve several rings by one look",
            "the completion of the request before its place in the ring is used again",
            "every card under load",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_both_messages_and_the_order_that_is_missing() {
        let work = |number| Work { qp: 3, subject: Subject::Message(number), packet: 0 };
        let placed = |number, text: &str, passed| Entry::Placed {
            work: work(number),
            from: 0x51,
            passed,
            text: text.to_owned(),
        };
        let entries = vec![
            Entry::Made { qp: 3, qpn: 0x47 },
            placed(12, "RDMA write of 65536 bytes to 0x7f00", vec![]),
            placed(13, "RDMA write of 8 bytes to 0x7e00", vec![12]),
            placed(14, "send of 4 bytes", vec![12]),
        ];
        let journals = [Journal { card: "rank1".to_owned(), entries }];
        let rule: Rule = "relaxed in rank1 qp 3 message 12 packet 0".parse().unwrap();
        let schedule = Schedule { rules: vec![rule], ..Schedule::default() };
        let cause = &causes(&schedule, &journals, &[])[0];
        assert_eq!(
            cause.what,
            "places bytes of message 12 (RDMA write of 65536 bytes to 0x7f00, queue pair 0x47 of rank1) after message 13 \
             (RDMA write of 8 bytes to 0x7e00, queue pair 0x47 of rank1)"
        );
        let text = cause.to_string();
        assert!(
            text.contains("IBV_ACCESS_RELAXED_ORDERING, or")
                && text.contains(".\n  Orders that would: the completion"),
            "{text}"
        );
    }

    #[test]
    fn every_kind_has_its_sentence() {
        for kind in LibertyKinds::all().iter() {
            let rule = Rule::single("p", Decision { kind, work: Work::of_qp(1) });
            let schedule = Schedule { rules: vec![rule, Rule::all(kind)], ..Schedule::default() };
            let text = causes(&schedule, &[], &[]).iter().map(Cause::to_string).collect::<String>();
            assert!(
                text.contains("queue pair 1 of its card of p")
                    && text.contains(&format!("`{}`", kind.words())),
                "{text}"
            );
        }
    }
}
