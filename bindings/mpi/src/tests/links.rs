//! Messages of links of two ranks in one process, without MPI.

use super::{buffer, content, memory, pair, queue, request, started};
use crate::device::domain;
use crate::error::{Class, Failure};
use crate::link::{Ended, Message};
use crate::link_progress::{enqueue, enqueue_wait, wait_on_cpu};
use crate::memory::register_message;
use crate::queue::{Queue, free_request};
use crate::request::Request;
use crate::request::RequestKind;
use gdsync::stream::Cpu;
use gdsync::{Access, PinnedMemory, Stream};
use std::sync::Arc;

/// One side: its link, its stream, and the thread's stream.
struct Side {
    link: Arc<Request>,
    sends: bool,
    queue: Arc<Queue>,
    cpu: Stream<Cpu>,
}

impl Side {
    fn new(sends: bool) -> Self {
        let link = request(RequestKind::Link { sends });
        Side { link, sends, queue: queue(), cpu: Stream::new(Cpu::new()).unwrap() }
    }

    fn message(&self, name: usize, memory: &PinnedMemory) -> Arc<Message> {
        let access = if self.sends { Access::empty() } else { Access::LOCAL_WRITE };
        // SAFETY: the tests keep the memory longer than the messages, and use it as they are ordered.
        let slices = unsafe { register_message(&domain().unwrap().cache, buffer(memory), access) }.unwrap();
        Arc::new(Message::new(name, slices))
    }

    fn enqueue(&self, message: &Arc<Message>) -> Result<bool, Failure> {
        enqueue(&self.link, &self.queue, message)
    }

    fn trigger(&self, message: &Message) {
        let triggered = self.link.with_link(|link, _| link.trigger(message));
        triggered.unwrap();
    }

    /// Does the thread's work once.
    fn progress(&self) -> (Vec<Ended>, usize) {
        self.link.with_link(|link, connection| link.progress(connection, &self.cpu)).unwrap()
    }

    /// Does the thread's work until that many watched messages have ended.
    fn ended(&self, number: usize) -> Vec<Ended> {
        let mut all = Vec::new();
        while all.len() < number {
            all.extend(self.progress().0);
        }
        all
    }

    fn is_idle(&self) -> bool {
        self.link.with_link(|link, _| link.is_idle()).unwrap()
    }
}

fn both() -> [Side; 2] {
    let sides = [Side::new(true), Side::new(false)];
    assert_eq!(pair(&sides[0].link, &sides[1].link).unwrap(), 0);
    sides
}

#[test]
fn messages_that_the_thread_posts_keep_the_order_of_their_calls() {
    let (out, target) = ([memory(&[1; 8]), memory(&[2; 8])], [memory(&[0; 8]), memory(&[0; 9])]);
    let (sending, receiving) = (Side::new(true), Side::new(false));
    let sends: Vec<_> = (0..2).map(|at| sending.message(at, &out[at])).collect();
    // The sides are not matched.
    assert!(sends.iter().all(|message| !sending.enqueue(message).unwrap()));
    pair(&sending.link, &receiving.link).unwrap();
    let receives: Vec<_> = (0..2).map(|at| receiving.message(at, &target[at])).collect();
    assert!(receives.iter().all(|message| receiving.enqueue(message).unwrap()));
    enqueue_wait(&receiving.queue, &receives).unwrap();
    // The stream with the second message is ahead.
    sending.trigger(&sends[1]);
    assert_eq!(sending.progress(), (vec![], 0), "the first one is not due");
    sending.trigger(&sends[0]);
    assert_eq!(sending.ended(2), [(0, Ok(0)), (1, Ok(0))]);
    receiving.queue.synchronize().unwrap();
    assert_eq!((content(&target[0]), content(&target[1])), (vec![1; 8], [vec![2; 8], vec![0]].concat()));
    assert_eq!(wait_on_cpu(&receiving.link, &receives[1]).unwrap(), 8);
    // From now on, the stream posts messages.
    let (send, receive) = (sending.message(2, &out[0]), receiving.message(2, &target[1]));
    assert!(sending.enqueue(&send).unwrap());
    let failure = started(&sending.queue, &[&sending.link]).unwrap_err();
    assert!(failure.text.contains("is a link"), "{failure}");
    assert!(receiving.enqueue(&receive).unwrap());
    assert_eq!(wait_on_cpu(&sending.link, &send).unwrap(), 0);
    assert_eq!(wait_on_cpu(&receiving.link, &receive).unwrap(), 8);
    assert_eq!(content(&target[1]), [vec![1; 8], vec![0]].concat());
    [sending, receiving].into_iter().for_each(|side| free_request(side.link));
}

#[test]
fn a_link_without_room_leaves_messages_to_the_thread_and_gets_over_it() {
    const MANY: usize = 3000;
    let source: Vec<_> = (0..MANY).map(|at| memory(&(at as u32).to_le_bytes())).collect();
    let target: Vec<_> = (0..MANY).map(|_| memory(&[0xff; 4])).collect();
    let [sending, receiving] = both();
    let sends: Vec<_> = source.iter().enumerate().map(|(at, memory)| sending.message(at, memory)).collect();
    let receives: Vec<_> =
        target.iter().enumerate().map(|(at, memory)| receiving.message(at, memory)).collect();
    let of_thread = |side: &Side, messages: &[Arc<Message>]| {
        let given = messages.iter().filter(|message| !side.enqueue(message).unwrap());
        given.inspect(|message| side.trigger(message)).count()
    };
    let late = of_thread(&sending, &sends);
    assert!((1..=MANY - 128).contains(&late), "{late} are the thread's");
    let other = of_thread(&receiving, &receives);
    let mut ended = (0, 0);
    while ended != (late, other) {
        ended.0 += sending.progress().0.len();
        ended.1 += receiving.progress().0.len();
    }
    assert_eq!(wait_on_cpu(&receiving.link, &receives[MANY - 1]).unwrap(), 4);
    assert!(target.iter().enumerate().all(|(at, memory)| content(memory) == (at as u32).to_le_bytes()));
    assert!(sending.is_idle() && receiving.is_idle());
    // The streams post further messages.
    let (send, receive) = (sending.message(MANY, &source[0]), receiving.message(MANY, &target[1]));
    assert!(sending.enqueue(&send).unwrap() && receiving.enqueue(&receive).unwrap());
    assert_eq!(wait_on_cpu(&receiving.link, &receive).unwrap(), 4);
    assert_eq!(content(&target[1]), [0; 4]);
}

#[test]
fn a_message_that_is_too_long_ends_its_link() {
    let (source, target) = (memory(&[1; 8]), memory(&[0; 4]));
    let [sending, receiving] = both();
    let (send, receive) = (sending.message(0, &source), receiving.message(0, &target));
    assert!(receiving.enqueue(&receive).unwrap() && sending.enqueue(&send).unwrap());
    for (side, message) in [(&sending, &send), (&receiving, &receive)] {
        assert_eq!(wait_on_cpu(&side.link, message).unwrap_err().class, Class::Truncate);
        let failure = side.enqueue(&side.message(1, &source)).unwrap_err();
        assert_eq!(failure.class, Class::Truncate);
        assert!(failure.text.contains("an earlier message"), "{failure}");
    }
}

#[test]
fn messages_end_with_their_link() {
    let (source, target) = (memory(&[1; 8]), memory(&[0; 8]));
    // Sides that do not match.
    let alone = Side::new(true);
    let waiting = [alone.message(3, &source), alone.message(4, &source), alone.message(5, &source)];
    assert!(waiting.iter().all(|message| !alone.enqueue(message).unwrap()));
    alone.trigger(&waiting[1]);
    alone.link.abandon_match();
    assert_eq!(alone.ended(1)[0].1.as_ref().unwrap_err().class, Class::Request);
    assert!(!alone.is_idle());
    for message in [&waiting[0], &waiting[2]] {
        let taken = alone.link.with_link(|link, _| link.withdraw(message));
        taken.unwrap();
    }
    assert!(alone.is_idle());
    assert_eq!(alone.enqueue(&waiting[0]).unwrap_err().class, Class::Request);

    // A dead peer, and the end of the library.
    for (is_end, class) in [(false, Class::Peer), (true, Class::Other)] {
        let [_sending, receiving] = both();
        let receive = receiving.message(0, &target);
        assert!(receiving.enqueue(&receive).unwrap());
        let ending = receiving.link.with_link(|link, _| {
            link.watch(&receive);
            if is_end {
                link.finish();
            }
        });
        ending.unwrap();
        receiving.link.abort();
        assert_eq!(receiving.ended(1)[0].1.as_ref().unwrap_err().class, class);
        // The end is not reported again, but a later call returns the failure.
        assert_eq!(receiving.progress(), (vec![], 0));
        assert_eq!(wait_on_cpu(&receiving.link, &receive).unwrap_err().class, class);
    }
}

#[test]
fn messages_whose_outcome_is_wanted_late_are_reported() {
    let (source, target) = (memory(&[1; 8]), memory(&[0; 16]));
    let [sending, receiving] = both();
    let (send, receive) = (sending.message(0, &source), receiving.message(7, &target));
    assert!(sending.enqueue(&send).unwrap() && receiving.enqueue(&receive).unwrap());
    assert_eq!(wait_on_cpu(&receiving.link, &receive).unwrap(), 8);
    assert_eq!(receiving.progress(), (vec![], 0));
    let watched = receiving.link.with_link(|link, _| {
        link.watch(&receive);
        link.watch(&receive);
    });
    watched.unwrap();
    assert_eq!(receiving.progress(), (vec![(7, Ok(8))], 0));
    // A stream does not wait for a message that has ended.
    enqueue_wait(&receiving.queue, &[receive]).unwrap();
    let failure = super::transfer(true, &source).with_link(|_, _| ()).unwrap_err();
    assert_eq!(failure.class, Class::Request);
}
