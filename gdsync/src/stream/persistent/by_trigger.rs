//! Starting a list by one write of a trigger's word, whatever is in it.

use super::request::sealed::Work;
use super::start::{By, Prepared, Started, start};
use super::{ListError, PersistentError, Request};
use crate::batch::{Batch, Descriptor};
use crate::memop::MemOpStream;
use crate::qp::{PreparedTicket, QueuePairInner, Trigger};
use crate::queue::{QueueError, RequestError, StateError};
use crate::stream::{Posted, Stream};
use std::time::Duration;

/// Starts all requests of a list by one memory operation: the stream writes the trigger's next ticket. The CPU rings
/// the card for the sends at once, each behind a WAIT for the ticket, and **posts the receives at once**. Waits on the
/// CPU up to `timeout` while a queue or the stream has no room.
///
/// A receive takes what comes from now on, and not from the stream's start on. So the remote side has to know when its
/// buffer may be written: have the list count the start ([`PersistentSend::count`](super::PersistentSend::count)), which
/// waits for the ticket like every send, and hold the remote side's sends back until then
/// ([`PersistentSend::behind`](super::PersistentSend::behind)). The remote side must not let such a send go by raising its word
/// ([`CardWord::raise`](crate::qp::CardWord::raise)): its message would be taken at once.
///
/// The queue pairs are any of the trigger's protection domain that have no trigger of their own. Each send takes one
/// block more of its send queue. Lists of one trigger are started in the order in which streams write the tickets: by one
/// stream, or by another one once the first has written its ticket. A trigger with a master serves as well; the master
/// has no part in these sends.
///
/// ```
/// use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all_by_trigger, wait_all};
/// use gdsync::qp::CardWord;
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream, Trigger};
/// use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = ProtectionDomain::new(&Device::software()?)?;
/// # let pair = || -> Result<_, Box<dyn std::error::Error>> {
/// #     let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// #     left.connect(&right.endpoint()?, Default::default())?;
/// #     right.connect(&left.endpoint()?, Default::default())?;
/// #     Ok((left, right))
/// # };
/// # let pairs = [pair()?, pair()?, pair()?];
/// const LONG: Duration = Duration::from_secs(30);
/// let (trigger, stream) = (Trigger::new(&pd)?, Stream::new(SoftStream::new()?)?);
/// let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
/// let (mut sends, mut receives) = (Vec::new(), Vec::new());
/// for (number, (left, right)) in pairs.iter().enumerate() {
///     let word = CardWord::in_region(&region, 8 * number)?;
///     sends.push(PersistentSend::send(left, &[region.slice(32..40)?])?.behind(&word)?);
///     sends.push(PersistentSend::count(right, word.remote())?);
///     receives.push(PersistentRecv::new(right, &[region.slice(40 + 8 * number..48 + 8 * number)?])?);
/// }
/// for _round in 0..3 {
///     let all = receives.iter_mut().map(|receive| receive as &mut dyn Request);
///     let mut all: Vec<_> = all.chain(sends.iter_mut().map(|send| send as &mut dyn Request)).collect();
///     let posted = start_all_by_trigger(&mut all, &stream, &trigger, LONG)?;
///     assert_eq!(posted.operations, 1); // of three sends, three counts and three receives
///     wait_all(&mut all, &stream, LONG)?;
/// }
/// # for send in &mut sends { send.complete(LONG)?.ok_or("it takes too long")?.status?; }
/// # for receive in &mut receives { receive.complete(LONG)?.ok_or("it takes too long")?.status?; }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ListError`], which names the request; nothing was started then, and nothing is lost. It may be the trigger's:
/// [`OrderError::TicketOutOfOrder`](crate::queue::OrderError::TicketOutOfOrder),
/// [`OrderError::TriggerOnOtherStream`](crate::queue::OrderError::TriggerOnOtherStream). What a queue pair has for a stream,
/// this or another one, and the stream has not reached, is not to be rung for by the CPU:
/// [`OrderError::OtherStream`](crate::queue::OrderError::OtherStream), [`OrderError::OutOfOrder`](crate::queue::OrderError::OutOfOrder),
/// [`OrderError::ReceivesOnStream`](crate::queue::OrderError::ReceivesOnStream). Where a queue pair fails meanwhile, or another
/// thread prepares a send on it, all is started, and the statuses of what the card was not rung for say so.
pub fn start_all_by_trigger<B: MemOpStream>(
    requests: &mut [&mut dyn Request],
    stream: &Stream<B>,
    trigger: &Trigger,
    timeout: Duration,
) -> Result<Posted, ListError> {
    for (index, request) in requests.iter().enumerate() {
        check(&request.parts().0.queue_pair, trigger).map_err(ListError::of(index))?;
    }
    start(requests, stream, timeout, |requests, stream| start_now(requests, stream, trigger))
}

fn check(queue_pair: &QueuePairInner, trigger: &Trigger) -> Result<(), PersistentError> {
    let qpn = queue_pair.number;
    if !trigger.inner.pd.is(&queue_pair.domain.pd) {
        let lkey = trigger.inner.word().lkey();
        return Err(QueueError::Request(RequestError::WrongDomain { lkey, qpn }).into());
    }
    if queue_pair.trigger.is_some() {
        return Err(QueueError::State(StateError::OwnTrigger { qpn }).into());
    }
    Ok(())
}

fn start_now<B: MemOpStream>(
    requests: &[&mut dyn Request],
    stream: &Stream<B>,
    trigger: &Trigger,
) -> Result<Started, ListError> {
    for (index, request) in requests.iter().enumerate() {
        let (core, work, _) = request.parts();
        if let Work::Send(_) = work {
            core.queue_pair.send().check_turn_of_cpu().map_err(|error| ListError::of(index)(error.into()))?;
        }
    }
    let _turn = trigger.inner.turn.lock();
    let mut ticket = PreparedTicket::new(trigger);
    let mut prepared = Prepared::default();
    prepared.fill(requests, By::Cpu(&ticket.hold()))?;
    ticket.queue_pairs = requests.iter().map(|request| request.parts().0.queue_pair.clone()).collect();
    let batch = Batch { descriptors: vec![Descriptor::Ticket(ticket)], unmerged: false };
    let mut done = Posted { operations: 0, submissions: 0 };
    // In front of the doorbells: what the stream refuses, the card has not seen. What it has released by then goes at once.
    let posted = stream.post_whole(batch, &mut done);
    posted.map_err(|error| ListError { index: None, source: error.source.into() })?;
    prepared.ring(requests);
    Ok((std::mem::take(&mut prepared.claims), done))
}
