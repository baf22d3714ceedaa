//! One end of a link: a queue pair, what it has sent and received, and how it gets over failures.
//!
//! Messages are numbered for ever, through all failures. Each consumes a receive, and the receiver's count of them, written
//! into the sender's window, is the sender's credit. After a failure both ends take everything off their queues, tell each
//! other what they expect next, and go on from there with new queue pairs: what had arrived is not sent again, what had not
//! arrived is.

use super::mesh::Message;
use super::plan::{self, How, LONGEST, Planned, Random};
use super::tally::Tally;
use crate::Failure;
use gdsync::{
    Access, Batch, Completion, ConnectOptions, MemoryRegion, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, RemoteMemory, Slice, SoftStream, Stream, WorkKind, WorkRequest,
};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Receives that are posted.
const RECEIVES: u64 = 8;
/// Places of messages on their way. More than the receiver can have left unread.
const PLACES: u64 = 2 * RECEIVES;
/// Bytes of a place.
const PLACE: usize = LONGEST;
/// Bytes before the places of a window: the credit is the first word.
const HEADER: usize = 64;
/// Reads under way.
const READS: usize = 3;
/// Bytes of the memory that the other end reads.
const FIXED: usize = 64 << 10;
/// Send work requests; credit writes are among them.
const DEPTH: u32 = 64;
/// How long draining may take: retries that are under way must run out.
const DRAIN: Duration = Duration::from_secs(20);
/// Without any progress for so long, an end hangs.
const STUCK: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for the other end's queue pair.
    Connecting,
    /// Connected; waits until the other end is, too.
    Waiting,
    Running,
    /// Failed: takes everything off its queues.
    Draining,
    /// Drained; waits until the other end knows.
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Message(u64),
    Credit,
    Read { landing: usize, from: usize, length: usize },
}

struct Posted {
    serial: u64,
    work: Work,
    signaled: bool,
}

/// What an end is made of, and never changes.
pub(super) struct Role {
    pub(super) link: u32,
    /// Rank of the other end's process.
    pub(super) peer: usize,
    /// Number of this end, and of the other, through all links.
    pub(super) own: u64,
    pub(super) other: u64,
    pub(super) seed: u64,
    /// A stream posts, instead of the CPU.
    pub(super) by_stream: bool,
}

pub(super) struct End {
    role: Role,
    pd: ProtectionDomain,
    port: u8,
    random: Random,
    stream: Option<Stream<SoftStream>>,
    source: MemoryRegion,
    target: MemoryRegion,
    window: MemoryRegion,
    fixed: MemoryRegion,
    landing: MemoryRegion,
    free_landings: Vec<usize>,
    queue_pair: QueuePair,
    remote: Option<(RemoteMemory, RemoteMemory)>,
    epoch: u32,
    phase: Phase,
    /// The other end has said that it is down in this epoch, or up in the next.
    peer_is_down: bool,
    next_up: Option<Message>,
    /// The last epoch in which the other end was connected.
    peer_ready: Option<u32>,
    /// Next message to send; messages up to here have been acknowledged.
    next: u64,
    acknowledged: u64,
    /// Next message to come.
    expected: u64,
    /// The credit that was last written to the other end.
    told: u64,
    serial: u64,
    outstanding: VecDeque<Posted>,
    /// Receives posted, and how many of them have completed.
    posted_receives: u64,
    done_receives: u64,
    /// No message after this one is sent.
    last: Option<u64>,
    ended: bool,
    peer_sent: Option<u64>,
    progress: Instant,
    drain_until: Instant,
}

/// Content of the memory that others read.
fn fixed_content(seed: u64, end: u64) -> u64 {
    Random::new(seed ^ end.wrapping_mul(77)).next()
}

impl End {
    pub(super) fn new(role: Role, pd: &ProtectionDomain, port: u8) -> Result<Self, Failure> {
        let region = |len, access| MemoryRegion::allocate(pd, len, access);
        let window = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let fixed = region(FIXED, Access::REMOTE_READ)?;
        plan::fill(fixed.memory(), 0, FIXED, fixed_content(role.seed, role.own));
        let stream = role.by_stream.then(SoftStream::new).transpose()?.map(Stream::new).transpose()?;
        let now = Instant::now();
        Ok(End {
            random: Random::new(role.seed ^ role.own << 32),
            source: region(PLACES as usize * PLACE, Access::empty())?,
            target: region(RECEIVES as usize * PLACE, Access::LOCAL_WRITE)?,
            window: region(HEADER + PLACES as usize * PLACE, window)?,
            landing: region(READS * FIXED, Access::LOCAL_WRITE)?,
            free_landings: (0..READS).collect(),
            queue_pair: Self::queue_pair(pd, port)?,
            fixed,
            stream,
            role,
            pd: pd.clone(),
            port,
            remote: None,
            epoch: 0,
            phase: Phase::Connecting,
            peer_is_down: false,
            next_up: None,
            peer_ready: None,
            next: 0,
            acknowledged: 0,
            expected: 0,
            told: 0,
            serial: 0,
            outstanding: VecDeque::new(),
            posted_receives: 0,
            done_receives: 0,
            last: None,
            ended: false,
            peer_sent: None,
            progress: now,
            drain_until: now,
        })
    }

    fn queue_pair(pd: &ProtectionDomain, port: u8) -> Result<QueuePair, Failure> {
        let config = QueuePairConfig::default().port(port).send_depth(DEPTH).recv_depth(RECEIVES as u32);
        Ok(QueuePair::new(pd, config)?)
    }

    pub(super) fn peer(&self) -> usize {
        self.role.peer
    }

    /// Where its queue pair of this epoch is.
    pub(super) fn up(&self) -> Result<Message, Failure> {
        Ok(Message::Up {
            link: self.role.link,
            epoch: self.epoch,
            endpoint: self.queue_pair.endpoint()?.to_string(),
            window: self.window.remote().to_string(),
            fixed: self.fixed.remote().to_string(),
            expected: self.expected,
        })
    }

    /// Sends no more messages than it has begun with.
    pub(super) fn stop(&mut self) {
        self.last.get_or_insert(self.next);
    }

    /// Everything is sent and acknowledged, everything of the other end has come.
    pub(super) fn is_done(&self) -> bool {
        let sent = self.last == Some(self.acknowledged) && self.outstanding.is_empty();
        self.ended && sent && self.peer_sent == Some(self.expected)
    }

    /// What the other end says.
    pub(super) fn hear(&mut self, message: Message, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        self.progress = Instant::now();
        match message {
            Message::Up { epoch, .. } if epoch == self.epoch && self.phase == Phase::Connecting => {
                return self.connect(message, tally).map(Some);
            }
            Message::Up { .. } => {
                self.peer_is_down = true;
                self.next_up = Some(message);
            }
            Message::Ready { epoch, .. } => {
                // It may come before this end has looked at the other's address.
                self.peer_ready = Some(epoch);
                if self.phase == Phase::Waiting && epoch == self.epoch {
                    self.phase = Phase::Running;
                }
            }
            Message::Down { epoch, .. } if epoch == self.epoch => {
                self.peer_is_down = true;
                return self.fail();
            }
            Message::End { sent, .. } => self.peer_sent = Some(sent),
            _ => {}
        }
        Ok(None)
    }

    fn connect(&mut self, message: Message, tally: &mut Tally) -> Result<Message, Failure> {
        let Message::Up { endpoint, window, fixed, expected, .. } = message else {
            return Err("not an end's address".into());
        };
        // What was acknowledged must have come, and no more can have come than was sent.
        tally.lost += self.acknowledged.saturating_sub(expected);
        tally.duplicated += expected.saturating_sub(self.next);
        (self.next, self.acknowledged) = (expected, expected);
        self.window.memory().words64()[0].store(expected, Ordering::Relaxed);
        let options = ConnectOptions::default().timeout(15).retry_count(7).rnr_retry(7).min_rnr_timer(5);
        self.queue_pair.connect(&endpoint.parse()?, options)?;
        self.remote = Some((window.parse()?, fixed.parse()?));
        for _ in 0..RECEIVES {
            self.post_receive()?;
        }
        let ready = self.peer_ready == Some(self.epoch);
        self.phase = if ready { Phase::Running } else { Phase::Waiting };
        Ok(Message::Ready { link: self.role.link, epoch: self.epoch })
    }

    fn post_receive(&mut self) -> Result<(), QueueError> {
        let at = (self.posted_receives % RECEIVES) as usize * PLACE;
        self.queue_pair.post_recv(&[self.target.slice(at..at + PLACE)?], self.posted_receives)?;
        self.posted_receives += 1;
        Ok(())
    }

    /// The queue pair has failed, here or there. Says so, the first time.
    fn fail(&mut self) -> Result<Option<Message>, Failure> {
        if matches!(self.phase, Phase::Draining | Phase::Down) {
            return Ok(None);
        }
        self.queue_pair.abort()?;
        self.phase = Phase::Draining;
        self.drain_until = Instant::now() + DRAIN;
        Ok(Some(Message::Down { link: self.role.link, epoch: self.epoch }))
    }

    /// Does what can be done now. Returns what is to be told to the other end.
    pub(super) fn step(&mut self, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        let before = (tally.operations, tally.flushed);
        let failed = self.take_receives(tally)? | self.take_sends(tally)?;
        let told = match self.phase {
            _ if failed => {
                tally.failures += 1;
                self.fail()?
            }
            Phase::Running => self.post(tally)?,
            Phase::Draining => self.drain(tally)?,
            Phase::Down if self.peer_is_down => Some(self.rise()?),
            Phase::Connecting => match self.next_up.take() {
                Some(Message::Up { epoch, .. }) if epoch != self.epoch => None,
                Some(up) => self.hear(up, tally)?,
                None => None,
            },
            _ => None,
        };
        let now = Instant::now();
        if told.is_some() || before != (tally.operations, tally.flushed) || self.is_done() {
            self.progress = now;
        } else if now.duration_since(self.progress) > STUCK {
            tally.hung += 1;
            return Err(format!("{self}: nothing has happened for {STUCK:?}").into());
        }
        Ok(told)
    }

    /// The next epoch: a new queue pair, nothing outstanding.
    fn rise(&mut self) -> Result<Message, Failure> {
        self.queue_pair = Self::queue_pair(&self.pd, self.port)?;
        self.epoch += 1;
        self.phase = Phase::Connecting;
        self.peer_is_down = false;
        self.told = self.expected;
        (self.posted_receives, self.done_receives) = (0, 0);
        self.free_landings = (0..READS).collect();
        self.up()
    }

    /// Everything that was posted must complete, failed or not, and no stream may hang.
    fn drain(&mut self, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        let streams_are_idle = match &self.stream {
            Some(stream) => stream.synchronize_timeout(Duration::ZERO)?,
            None => true,
        };
        let left = self.outstanding.len() as u64 + self.posted_receives - self.done_receives;
        if left == 0 && streams_are_idle {
            self.phase = Phase::Down;
        } else if Instant::now() > self.drain_until {
            tally.hung += 1;
            return Err(format!("{self}: {left} work requests never completed").into());
        }
        Ok(None)
    }

    /// Takes completions of receives. True where one has failed.
    fn take_receives(&mut self, tally: &mut Tally) -> Result<bool, Failure> {
        while let Some(completion) = self.queue_pair.recv_cq().poll()? {
            if completion.wr_id != self.done_receives {
                tally.unaccounted += 1;
                return Err(format!(
                    "{self}: receive {} instead of {}",
                    completion.wr_id, self.done_receives
                )
                .into());
            }
            self.done_receives += 1;
            if completion.status.is_err() {
                tally.flushed += 1;
                if self.phase != Phase::Draining {
                    return Ok(true);
                }
                continue;
            }
            self.check_message(&completion, tally);
            self.expected += 1;
            tally.received += 1;
            tally.operations += 1;
            tally.bytes += u64::from(completion.byte_len);
            if self.phase != Phase::Draining {
                self.post_receive()?;
            }
        }
        Ok(false)
    }

    fn check_message(&self, completion: &Completion, tally: &mut Tally) {
        let number = self.expected;
        let planned = Planned::new(self.role.seed, self.role.other, number);
        let immediate = (planned.how != How::Send).then(|| Planned::immediate(number));
        let (kind, memory, at) = match planned.how {
            How::WriteImmediate => {
                let at = HEADER + (number % PLACES) as usize * PLACE;
                (WorkKind::ReceiveRdmaWithImmediate, self.window.memory(), at)
            }
            _ => {
                let at = (completion.wr_id % RECEIVES) as usize * PLACE;
                (WorkKind::Receive, self.target.memory(), at)
            }
        };
        let right = completion.kind == kind
            && completion.immediate == immediate
            && completion.byte_len as usize == planned.length
            && planned.is_in(memory, at);
        if !right {
            tally.wrong += 1;
            tally.problem(|| format!("{self}: message {number}: {completion:?}, planned {planned:?}"));
        }
    }

    /// Takes completions of sends. True where one has failed.
    fn take_sends(&mut self, tally: &mut Tally) -> Result<bool, Failure> {
        let mut failed = false;
        while let Some(completion) = self.queue_pair.send_cq().poll()? {
            // Those before it needed no completion of their own, unless it fails: then all fail one by one.
            loop {
                let Some(posted) = self.outstanding.pop_front() else {
                    return Err(self.unknown(&completion, tally));
                };
                let own = posted.serial == completion.wr_id;
                if completion.status.is_ok() {
                    self.finish(&posted, own.then_some(&completion), tally);
                } else {
                    tally.flushed += 1;
                }
                if own {
                    break;
                }
                if posted.signaled && completion.status.is_ok() {
                    return Err(self.unknown(&completion, tally));
                }
            }
            failed |= completion.status.is_err() && self.phase != Phase::Draining;
        }
        Ok(failed)
    }

    fn unknown(&self, completion: &Completion, tally: &mut Tally) -> Failure {
        tally.unaccounted += 1;
        format!("{self}: completion of work request {} is not expected", completion.wr_id).into()
    }

    fn finish(&mut self, posted: &Posted, completion: Option<&Completion>, tally: &mut Tally) {
        tally.operations += 1;
        match posted.work {
            Work::Message(number) => self.acknowledged = number + 1,
            Work::Credit => {}
            Work::Read { landing, from, length } => {
                self.free_landings.push(landing);
                let content = fixed_content(self.role.seed, self.role.other);
                let right = plan::holds(self.landing.memory(), landing * FIXED, from, length, content);
                if !right || completion.is_none_or(|completion| completion.byte_len as usize != length) {
                    tally.wrong += 1;
                    tally.problem(|| format!("{self}: a wrong read of {length} bytes from {from} on"));
                }
                tally.bytes += length as u64;
            }
        }
    }

    /// Posts something, if there is something to post.
    fn post(&mut self, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        if self.outstanding.len() as u32 >= DEPTH / 2 {
            return Ok(None);
        }
        if self.expected - self.told >= RECEIVES / 4 {
            self.post_credit()?;
        }
        let credit = self.window.memory().words64()[0].load(Ordering::Acquire) + RECEIVES;
        let unacknowledged = self.next - self.acknowledged;
        match self.last {
            Some(last) if self.next >= last => {
                if self.outstanding.back().is_some_and(|newest| !newest.signaled) {
                    // Nothing behind it would tell that it is through.
                    self.post_credit()?;
                }
                if !self.ended && self.acknowledged == last && self.outstanding.is_empty() {
                    self.ended = true;
                    return Ok(Some(Message::End { link: self.role.link, sent: last }));
                }
            }
            _ if self.next < credit && unacknowledged < PLACES - 1 => self.post_message(tally)?,
            _ => {}
        }
        if self.last.is_none() && !self.free_landings.is_empty() && self.random.below(4) == 0 {
            self.post_read()?;
        }
        Ok(None)
    }

    fn post_message(&mut self, tally: &mut Tally) -> Result<(), Failure> {
        let number = self.next;
        let planned = Planned::new(self.role.seed, self.role.own, number);
        let at = (number % PLACES) as usize * PLACE;
        planned.fill(self.source.memory(), at);
        let Some((window, _)) = self.remote else { return Err("not connected".into()) };
        // Sometimes in two pieces.
        let cut = at + if planned.length > 16 && self.random.below(3) == 0 { 16 } else { planned.length };
        let slices = [self.source.slice(at..cut)?, self.source.slice(cut..at + planned.length)?];
        let there = HEADER + at;
        let immediate = Planned::immediate(number);
        let request = match planned.how {
            How::Send => WorkRequest::send(&slices),
            How::SendImmediate => WorkRequest::send(&slices).immediate(immediate),
            How::WriteImmediate => {
                WorkRequest::write(&slices, window.slice(there..there + planned.length)?).immediate(immediate)
            }
        };
        // The last one tells when all are through.
        let signaled =
            self.random.below(3) > 0 || self.next - self.acknowledged > RECEIVES / 2 || self.last.is_some();
        self.next += 1;
        tally.sent += 1;
        self.put(request, Work::Message(number), signaled)
    }

    fn post_credit(&mut self) -> Result<(), Failure> {
        let Some((window, _)) = self.remote else { return Err("not connected".into()) };
        self.told = self.expected;
        let bytes = self.expected.to_ne_bytes();
        self.put(WorkRequest::write_inline(&bytes, window.slice(..8)?), Work::Credit, true)
    }

    fn post_read(&mut self) -> Result<(), Failure> {
        let Some((_, fixed)) = self.remote else { return Err("not connected".into()) };
        let Some(landing) = self.free_landings.pop() else { return Ok(()) };
        let from = self.random.below(FIXED as u64 / 8) as usize * 8;
        let length = self.random.below((FIXED - from) as u64 + 1) as usize;
        let at = landing * FIXED;
        let slices: [Slice; 1] = [self.landing.slice(at..at + length)?];
        let request = WorkRequest::read(&slices, fixed.slice(from..from + length)?);
        let request = if self.random.below(2) == 0 { request.fence() } else { request };
        self.put(request, Work::Read { landing, from, length }, true)
    }

    fn put(&mut self, request: WorkRequest<'_>, work: Work, signaled: bool) -> Result<(), Failure> {
        let serial = self.serial;
        let request = request.wr_id(serial);
        let request = if signaled { request } else { request.unsignaled() };
        let result = match &self.stream {
            None => self.queue_pair.post_send(request).map_err(Failure::from),
            Some(stream) => match self.queue_pair.prepare(request) {
                Err(error) => Err(error.into()),
                Ok(send) if signaled && self.random.below(4) == 0 => {
                    let wait = self.queue_pair.send_cq().prepare_wait()?;
                    let batch = Batch::new().send(send).wait(wait);
                    stream.post(batch).map(drop).map_err(|error| error.to_string().into())
                }
                Ok(send) => stream.post_send(send).map(drop).map_err(|error| error.to_string().into()),
            },
        };
        match result {
            Ok(()) => {
                self.serial += 1;
                self.outstanding.push_back(Posted { serial, work, signaled });
                Ok(())
            }
            // A queue pair that has failed meanwhile takes nothing: completions tell of it.
            Err(_) if self.queue_pair.failure().is_some() => {
                self.take_back(work);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn take_back(&mut self, work: Work) {
        match work {
            Work::Message(number) => self.next = number,
            Work::Credit => {}
            Work::Read { landing, .. } => self.free_landings.push(landing),
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Role { link, own, by_stream, .. } = &self.role;
        write!(
            f,
            "link {link} end {own} epoch {} {:?}: next {} acknowledged {} expected {} outstanding {} receives {}/{} stream {by_stream} last {:?} ended {} peer sent {:?} failure {:?}",
            self.epoch,
            self.phase,
            self.next,
            self.acknowledged,
            self.expected,
            self.outstanding.len(),
            self.done_receives,
            self.posted_receives,
            self.last,
            self.ended,
            self.peer_sent,
            self.queue_pair.failure(),
        )
    }
}
