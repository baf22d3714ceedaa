//! Starting a list of requests by one memory operation of the stream.

use crate::batch::{Batch, Descriptor};
use crate::memop::MemOpStream;
use crate::qp::{PreparedTicket, QueuePairInner, Trigger};
use crate::queue::{QueueError, RequestError, StateError};
use crate::stream::persistent::start::{By, Prepared, start};
use crate::stream::persistent::{ListError, PersistentError, Request};
use crate::stream::{Posted, Stream};
use std::time::Duration;

/// Starts all requests of a list by one memory operation: the stream writes the trigger's next ticket. The CPU
/// rings the card for the sends at once, each behind a WAIT for the ticket, and **posts the receives at once**.
/// Waits on the CPU up to `timeout` while a queue or the stream has no room.
///
/// A receive takes messages from now on, not only from the stream's start on. So the remote side must know when its
/// buffer may be written: add a count of the start to the list
/// ([`PersistentSend::write_start_count`](super::PersistentSend::write_start_count)), which waits for the ticket like every
/// send, and hold the remote side's sends back until then ([`PersistentSend::card_wait`](super::PersistentSend::card_wait)).
/// The remote side must not release such a send by raising its word ([`CardWord::raise`](crate::qp::CardWord::raise)):
/// its message would be received at once.
///
/// The queue pairs may be any of the trigger's protection domain without their own trigger. Each send takes one
/// more block of its send queue. Lists of one trigger are started in the order in which streams write the tickets:
/// by one stream, or by another one once the first has written its ticket. A trigger with a master serves as well;
/// the master has no part in these sends.
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
///     sends.push(PersistentSend::send(left, &[region.slice(32..40)?])?.card_wait(&word)?);
///     sends.push(PersistentSend::write_start_count(right, word.remote())?);
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
/// [`OrderError::TriggerOnOtherStream`](crate::queue::OrderError::TriggerOnOtherStream). The CPU cannot ring for a
/// queue pair with work for a stream that the stream has not reached:
/// [`OrderError::OtherStream`](crate::queue::OrderError::OtherStream),
/// [`OrderError::OutOfOrder`](crate::queue::OrderError::OutOfOrder),
/// [`OrderError::ReceivesOnStream`](crate::queue::OrderError::ReceivesOnStream). If a queue pair fails meanwhile, or
/// another thread prepares a send on it, all is started, and the statuses of work without a doorbell report that.
pub fn start_all_by_trigger<B: MemOpStream>(
    requests: &mut [&mut dyn Request],
    stream: &Stream<B>,
    trigger: &Trigger,
    timeout: Duration,
) -> Result<Posted, ListError> {
    for (index, request) in requests.iter().enumerate() {
        check(&request.core().queue_pair, trigger).map_err(ListError::of(index))?;
    }
    start(requests, stream, timeout, |list, prepared, stream| start_now_by(list, prepared, stream, trigger))
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

fn start_now_by<B: MemOpStream>(
    requests: &[&mut dyn Request],
    prepared: &mut Prepared,
    stream: &Stream<B>,
    trigger: &Trigger,
) -> Result<Posted, ListError> {
    for (index, request) in requests.iter().enumerate() {
        let core = request.core();
        if core.sending.is_some() {
            core.queue_pair.send().check_turn_of_cpu().map_err(|error| ListError::of(index)(error.into()))?;
        }
    }
    let _turn = trigger.inner.turn.lock();
    let mut ticket = PreparedTicket::new(trigger);
    prepared.fill(requests, By::Cpu(&ticket.wait()))?;
    ticket.queue_pairs = requests.iter().map(|request| request.core().queue_pair.clone()).collect();
    let batch = Batch { descriptors: vec![Descriptor::Ticket(ticket)], unmerged: false };
    let mut done = Posted { operations: 0, submissions: 0 };
    // Before the doorbells: if the stream refuses, the card has seen nothing. Work released by then executes at once.
    let posted = stream.post_parts(batch, &mut done, true);
    posted.map_err(|error| ListError { index: None, source: error.source.into() })?;
    prepared.ring(requests);
    Ok(done)
}
