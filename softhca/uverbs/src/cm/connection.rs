//! The protocol of one connection: its states, messages and time-outs (IB specification, 12.9).
//!
//! A [`Connection`] knows neither identifiers nor cards: its inputs are messages and the program's requests,
//! its outputs the messages to send and the events for the program. Its times are those of hardware, and run
//! at the speed of the card's timers.

use super::message::{End, Gids, Message, MessageKind, reason, status};
use crate::errno::{Errno, Result};
use softhca::Speed;
use std::time::{Duration, Instant};

/// Time until an unanswered message is sent again: 4.096 µs * 2^17. (The kernel's code is 20. The fabric is
/// faster than a subnet, and an agent answers before its program does.)
const RESPONSE_TIMEOUT: Duration = Duration::from_nanos(4096 << 17);
/// Maximum number of repetitions of a message (`CMA_MAX_CM_RETRIES`).
const MAX_RETRIES: u8 = 15;
/// Time for a program's answer after its agent has acknowledged the request: 4.096 µs * 2^24 (`CMA_CM_MRA_SETTING`).
const SERVICE_TIMEOUT: Duration = Duration::from_nanos(4096 << 24);
/// Time-out code of the connection's packets: 4.096 µs * 2^17.
pub(crate) const ACK_TIMEOUT: u8 = 17;
/// Time for which an ended connection waits for packets in flight: as long as its queue pair.
const TIME_WAIT: Duration = Duration::from_nanos(4096 << ACK_TIMEOUT);

/// State of a connection (`enum ib_cm_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The connection is over, or was never made.
    Idle,
    ReqSent,
    /// The peer's agent has the request, and its program has not answered.
    MraReqRcvd,
    ReqRcvd,
    RepSent,
    RepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    TimeWait,
    SidrReqSent,
    SidrReqRcvd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEvent {
    /// The peer has accepted: the program must confirm that it is ready.
    Replied {
        private: Vec<u8>,
    },
    Established,
    Rejected {
        reason: u16,
        private: Vec<u8>,
    },
    Unreachable,
    Disconnected {
        timed_out: bool,
    },
    TimeWaitOver,
    /// A service ID was resolved.
    Resolved {
        private: Vec<u8>,
    },
    /// A service ID was not resolved.
    Refused {
        status: u16,
        private: Vec<u8>,
    },
}

/// The effects of a step: a message to send, and an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reaction {
    pub(crate) send: Option<Message>,
    pub(crate) event: Option<ConnectionEvent>,
}

impl Reaction {
    fn send(message: Message) -> Reaction {
        Reaction { send: Some(message), event: None }
    }

    fn event(event: ConnectionEvent) -> Reaction {
        Reaction { send: None, event: Some(event) }
    }
}

/// A message that waits for its answer.
#[derive(Debug)]
struct Waiting {
    message: Message,
    retries_left: u8,
    again: Instant,
}

/// One end of a connection, or of the resolution of a service ID.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) phase: Phase,
    /// Communication IDs of both ends.
    pub(crate) local_id: u32,
    pub(crate) remote_id: u32,
    pub(crate) peer: End,
    /// This end's depths and retries: those requested, until the peer has answered.
    pub(crate) own: End,
    pub(crate) gids: Gids,
    waiting: Option<Waiting>,
    /// The last answer to the peer, which may not have received it.
    answered: Option<Message>,
    time_wait_ends: Option<Instant>,
    speed: Speed,
}

impl Connection {
    fn new(phase: Phase, local_id: u32, remote_id: u32, own: End, gids: Gids, speed: Speed) -> Connection {
        let peer = End::default();
        let (waiting, answered, time_wait_ends) = (None, None, None);
        Connection { phase, local_id, remote_id, peer, own, gids, waiting, answered, time_wait_ends, speed }
    }

    /// Makes the active end, which sends this request.
    pub(crate) fn ask(request: &Message, speed: Speed, now: Instant) -> Connection {
        let phase = if request.kind == MessageKind::SidrReq { Phase::SidrReqSent } else { Phase::ReqSent };
        let mut connection = Connection::new(phase, request.local_id, 0, request.end, request.gids, speed);
        connection.wait_for_answer(request, now);
        connection
    }

    /// Makes the passive end. It acknowledges a request for a connection, as the program may take its time.
    pub(crate) fn answer(local_id: u32, request: &Message, speed: Speed) -> Connection {
        let phase = if request.kind == MessageKind::SidrReq { Phase::SidrReqRcvd } else { Phase::ReqRcvd };
        let gids = Gids { source: request.gids.destination, destination: request.gids.source };
        let End { responder_resources, initiator_depth, retry_count, rnr_retry_count, .. } = request.end;
        // The peer's initiator role is this end's responder role.
        let own = End {
            responder_resources: initiator_depth,
            initiator_depth: responder_resources,
            retry_count,
            rnr_retry_count,
            ..End::default()
        };
        let mut connection = Connection::new(phase, local_id, request.local_id, own, gids, speed);
        connection.peer = request.end;
        connection
    }

    fn message(&self, kind: MessageKind) -> Message {
        Message { gids: self.gids, ..Message::new(kind, self.local_id, self.remote_id) }
    }

    /// Returns the answer to a request, also to a repeated one: MRA until the program has answered.
    pub(crate) fn acknowledgement(&self) -> Option<Message> {
        match self.phase {
            Phase::ReqRcvd => Some(self.message(MessageKind::Mra)),
            _ => self.answered.clone(),
        }
    }

    fn wait_for_answer(&mut self, message: &Message, now: Instant) {
        let again = now + self.speed.of(RESPONSE_TIMEOUT);
        self.waiting = Some(Waiting { message: message.clone(), retries_left: MAX_RETRIES, again });
    }

    fn send_and_wait(&mut self, message: Message, phase: Phase, now: Instant) -> Message {
        self.phase = phase;
        self.wait_for_answer(&message, now);
        message
    }

    fn end(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.waiting = None;
        self.time_wait_ends = (phase == Phase::TimeWait).then(|| now + self.speed.of(TIME_WAIT));
    }

    /// Accepts a request for the program: REP, or the positive SIDR REP.
    ///
    /// # Errors
    /// EINVAL if there is no request to answer.
    pub(crate) fn accept(&mut self, end: End, private: Vec<u8>, now: Instant) -> Result<Message> {
        match self.phase {
            Phase::ReqRcvd => {
                let message = Message { end, private, ..self.message(MessageKind::Rep) };
                let End { responder_resources, initiator_depth, .. } = end;
                self.own = End { responder_resources, initiator_depth, ..self.own };
                Ok(self.send_and_wait(message, Phase::RepSent, now))
            }
            Phase::SidrReqRcvd => {
                self.phase = Phase::Idle;
                let reply = self.message(MessageKind::SidrRep);
                let message = Message { end, private, code: status::SUCCESS, ..reply };
                self.answered = Some(message.clone());
                Ok(message)
            }
            _ => Err(Errno::INVALID),
        }
    }

    /// Confirms that the active program is ready: RTU.
    ///
    /// # Errors
    /// EINVAL if the peer has not accepted.
    pub(crate) fn ready(&mut self) -> Result<Message> {
        if self.phase != Phase::RepRcvd {
            return Err(Errno::INVALID);
        }
        self.phase = Phase::Established;
        Ok(self.message(MessageKind::Rtu))
    }

    /// Records that the program has received a message before the peer's RTU.
    ///
    /// # Errors
    /// EISCONN if the connection is established already, EINVAL if it has not been accepted.
    pub(crate) fn communication_established(&mut self) -> Result<Reaction> {
        match self.phase {
            Phase::RepSent => {
                self.end(Phase::Established, Instant::now());
                Ok(Reaction::event(ConnectionEvent::Established))
            }
            Phase::Established => Err(Errno(libc::EISCONN)),
            _ => Err(Errno::INVALID),
        }
    }

    /// Rejects, from either end.
    ///
    /// # Errors
    /// EINVAL if nothing is under way that can be rejected.
    pub(crate) fn reject(&mut self, code: u16, private: Vec<u8>, now: Instant) -> Result<Message> {
        use Phase::*;
        let (kind, code, next) = match self.phase {
            SidrReqRcvd => (MessageKind::SidrRep, status::REJECT, Idle),
            ReqSent | MraReqRcvd | ReqRcvd | RepRcvd => (MessageKind::Rej, code, Idle),
            RepSent => (MessageKind::Rej, code, TimeWait),
            _ => return Err(Errno::INVALID),
        };
        let message = Message { code, private, ..self.message(kind) };
        self.end(next, now);
        self.answered = Some(message.clone());
        Ok(message)
    }

    /// Asks the peer to disconnect, or answers its request; `None` in any other state.
    pub(crate) fn disconnect(&mut self, now: Instant) -> Option<Message> {
        match self.phase {
            Phase::Established => {
                let message = self.message(MessageKind::Dreq);
                Some(self.send_and_wait(message, Phase::DreqSent, now))
            }
            Phase::DreqRcvd => {
                self.end(Phase::TimeWait, now);
                Some(self.message(MessageKind::Drep))
            }
            _ => None,
        }
    }

    /// Abandons the connection for the program (`ib_destroy_cm_id`). It continues until [`Self::is_over`], so
    /// that the peer learns of its end.
    pub(crate) fn abandon(&mut self, now: Instant) -> Option<Message> {
        use Phase::*;
        match self.phase {
            ReqSent | MraReqRcvd => self.reject(reason::TIMEOUT, Vec::new(), now).ok(),
            ReqRcvd | RepSent | RepRcvd | SidrReqRcvd => {
                self.reject(reason::CONSUMER_DEFINED, Vec::new(), now).ok()
            }
            Established | DreqRcvd => self.disconnect(now),
            SidrReqSent => {
                self.end(Idle, now);
                None
            }
            Idle | DreqSent | TimeWait => None,
        }
    }

    /// Returns whether neither a message nor a time-out can change anything any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::TimeWait)
    }

    /// Returns whether a message names this connection's peer as its sender.
    pub(crate) fn is_from_peer(&self, message: &Message) -> bool {
        self.remote_id == 0 || message.local_id == 0 || self.remote_id == message.local_id
    }

    pub(crate) fn arrive(&mut self, message: &Message, now: Instant) -> Reaction {
        use Phase::*;
        match (message.kind, self.phase) {
            (MessageKind::Mra, ReqSent | MraReqRcvd) => {
                self.phase = MraReqRcvd;
                self.remote_id = message.local_id;
                self.extend_timeout(now);
                Reaction::default()
            }
            (MessageKind::Rep, ReqSent | MraReqRcvd) => {
                self.end(RepRcvd, now);
                self.remote_id = message.local_id;
                self.peer = message.end;
                let End { responder_resources, initiator_depth, rnr_retry_count, .. } = message.end;
                self.own = End {
                    responder_resources: initiator_depth,
                    initiator_depth: responder_resources,
                    rnr_retry_count,
                    ..self.own
                };
                Reaction::event(ConnectionEvent::Replied { private: message.private.clone() })
            }
            // The RTU was lost.
            (MessageKind::Rep, Established) => Reaction::send(self.message(MessageKind::Rtu)),
            (MessageKind::Rtu, RepSent) => {
                self.end(Established, now);
                Reaction::event(ConnectionEvent::Established)
            }
            (MessageKind::Rej, ReqSent | MraReqRcvd | ReqRcvd | RepSent | RepRcvd) => {
                self.end(Idle, now);
                Reaction::event(ConnectionEvent::Rejected {
                    reason: message.code,
                    private: message.private.clone(),
                })
            }
            (MessageKind::Rej, Established | DreqSent) => {
                self.end(TimeWait, now);
                Reaction::event(ConnectionEvent::Rejected {
                    reason: message.code,
                    private: message.private.clone(),
                })
            }
            (MessageKind::Dreq, RepSent | Established | DreqSent) => {
                self.end(DreqRcvd, now);
                Reaction::event(ConnectionEvent::Disconnected { timed_out: false })
            }
            // The DREP was lost.
            (MessageKind::Dreq, TimeWait) => Reaction::send(self.message(MessageKind::Drep)),
            (MessageKind::Drep, DreqSent | DreqRcvd) => {
                self.end(TimeWait, now);
                Reaction::event(ConnectionEvent::Disconnected { timed_out: false })
            }
            (MessageKind::SidrRep, SidrReqSent) => {
                self.end(Idle, now);
                self.peer = message.end;
                let private = message.private.clone();
                Reaction::event(match message.code {
                    status::SUCCESS => ConnectionEvent::Resolved { private },
                    status => ConnectionEvent::Refused { status, private },
                })
            }
            (kind, phase) => {
                tracing::debug!(?kind, ?phase, "a message that changes nothing");
                Reaction::default()
            }
        }
    }

    fn extend_timeout(&mut self, now: Instant) {
        if let Some(waiting) = &mut self.waiting {
            waiting.again = now + self.speed.of(SERVICE_TIMEOUT);
        }
    }

    /// Returns when [`Self::expire`] is due.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let again = self.waiting.as_ref().map(|waiting| waiting.again);
        [again, self.time_wait_ends].into_iter().flatten().min()
    }

    pub(crate) fn expire(&mut self, now: Instant) -> Reaction {
        if self.time_wait_ends.is_some_and(|end| end <= now) {
            self.end(Phase::Idle, now);
            return Reaction::event(ConnectionEvent::TimeWaitOver);
        }
        match &mut self.waiting {
            Some(waiting) if waiting.again > now => Reaction::default(),
            Some(Waiting { message, retries_left: retries_left @ 1.., again }) => {
                *retries_left -= 1;
                *again = now + self.speed.of(RESPONSE_TIMEOUT);
                Reaction::send(message.clone())
            }
            Some(_) => self.peer_is_silent(now),
            None => Reaction::default(),
        }
    }

    /// Handles a peer that does not answer, or whose process has ended.
    fn peer_is_silent(&mut self, now: Instant) -> Reaction {
        if matches!(self.phase, Phase::Established | Phase::DreqSent | Phase::DreqRcvd) {
            self.end(Phase::TimeWait, now);
            return Reaction::event(ConnectionEvent::Disconnected { timed_out: true });
        }
        self.end(Phase::Idle, now);
        Reaction::event(ConnectionEvent::Unreachable)
    }

    /// Handles the end of the peer's process, which a kernel would report instead of it.
    pub(crate) fn peer_ended(&mut self, now: Instant) -> Reaction {
        use Phase::*;
        match self.phase {
            Idle | TimeWait => Reaction::default(),
            Established | DreqSent | DreqRcvd => {
                self.end(TimeWait, now);
                Reaction::event(ConnectionEvent::Disconnected { timed_out: false })
            }
            _ => self.peer_is_silent(now),
        }
    }
}

/// Returns the answer to a message for a connection that does not exist; `None` if it needs none.
pub(crate) fn answer_unmatched(message: &Message) -> Option<Message> {
    let (kind, code) = match message.kind {
        MessageKind::Dreq => (MessageKind::Drep, 0),
        MessageKind::Rep => (MessageKind::Rej, reason::INVALID_COMM_ID),
        MessageKind::Req => (MessageKind::Rej, reason::INVALID_SERVICE_ID),
        MessageKind::SidrReq => (MessageKind::SidrRep, status::UNSUPPORTED),
        _ => return None,
    };
    Some(Message { code, ..Message::new(kind, message.remote_id, message.local_id) })
}

#[cfg(test)]
mod tests;
