//! Answers and clients, honest and otherwise.

use crate::ask::{AskError, ask};
use crate::publish::{Kept, Published, Source, own, publish};
use crate::status::{Card, Peer, QueuePair, Status, Stream, Traffic, Wait};
use crate::wire::{LONGEST, MAX_TEXT, WireError, decode, encode};
use crate::{MOST_CARDS, MOST_STREAMS, ask_all, name};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn wait() -> impl Strategy<Value = Wait> {
    ("[a-z µ]{0,40}", any::<u64>(), option::of(any::<u64>()), vec(any::<u32>(), 0..4)).prop_map(
        |(what, mark, time, queue_pairs)| Wait {
            what,
            mark,
            time: time.map(Duration::from_nanos),
            queue_pairs,
        },
    )
}

fn queue_pair() -> impl Strategy<Value = QueuePair> {
    let peer = option::of((any::<u64>(), any::<u32>(), any::<u32>()));
    (any::<[u32; 3]>(), any::<u64>(), "[A-Z][a-z]{0,8}", peer, option::of(wait())).prop_map(
        |([number, outstanding, blocks], resends, state, peer, wait)| QueuePair {
            number,
            transport: state.to_uppercase(),
            state,
            peer: peer.map(|(node, queue_pair, pid)| Peer { node, queue_pair, pid }),
            outstanding,
            blocks,
            resends,
            wait,
        },
    )
}

fn card() -> impl Strategy<Value = Card> {
    (any::<[u64; 7]>(), any::<[u32; 3]>(), any::<([u8; 16], bool, bool)>(), vec(queue_pair(), 0..5)).prop_map(
        |(counts, numbers, (gid, is_ethernet, is_busy), queue_pairs)| Card {
            lid: numbers[0] as u16,
            node: counts[5] ^ counts[6],
            is_ethernet,
            gid,
            is_busy,
            sent: Traffic { packets: counts[0], bytes: counts[1] },
            received: Traffic { packets: counts[2], bytes: counts[3] },
            not_ready: counts[4],
            out_of_sequence: counts[5],
            faults: counts[6],
            findings: numbers[2],
            queue_pair_count: numbers[2],
            queue_pairs,
        },
    )
}

fn stream() -> impl Strategy<Value = Stream> {
    (any::<u64>(), any::<u32>(), wait()).prop_map(|(number, waits, wait)| Stream { number, waits, wait })
}

fn status() -> impl Strategy<Value = Status> {
    let times = (any::<u64>(), option::of(any::<u32>()));
    (times, vec(card(), 0..4), vec(stream(), 0..4)).prop_map(|((at_ns, rank), cards, streams)| Status {
        at_ns,
        rank,
        card_count: cards.len() as u32,
        cards,
        stream_count: streams.len() as u32,
        streams,
    })
}

proptest! {
    #[test]
    fn an_answer_is_read_as_it_was_written(status in status()) {
        prop_assert_eq!(decode(&encode(&status)), Ok(status));
    }

    #[test]
    fn a_part_of_an_answer_is_none(status in status(), cut in any::<prop::sample::Index>()) {
        let bytes = encode(&status);
        prop_assert!(decode(&bytes[..cut.index(bytes.len())]).is_err());
        prop_assert_eq!(decode(&[&bytes[..], &[0]].concat()), Err(WireError::Broken { what: "more follows its end" }));
    }

    #[test]
    fn bytes_that_anyone_may_have_sent_are_read_or_refused(
        status in status(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        tail in vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = encode(&status);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        // Any decoded status is bounded, and no text of it controls a terminal.
        for bytes in [bytes.clone(), [&bytes[..bytes.len() / 2], &tail].concat(), [b"gdstatus\x01\0\0\0", &tail[..]].concat(), tail] {
            if let Ok(status) = decode(&bytes) {
                prop_assert!(status.cards.len() <= MOST_CARDS && status.streams.len() <= MOST_STREAMS);
                let waits = status.streams.iter().map(|stream| &stream.wait);
                prop_assert!(waits.flat_map(|wait| wait.what.chars()).all(|c| !c.is_control()));
            }
        }
    }
}

#[test]
fn what_is_over_a_limit_is_left_out_or_refused() {
    let wait = |what: &str| Wait { what: what.to_owned(), ..Wait::default() };
    let long = Stream { wait: wait(&"µ".repeat(MAX_TEXT)), ..Stream::default() };
    let streams = vec![long; MOST_STREAMS + 1];
    let read = decode(&encode(&Status { streams, stream_count: 7, ..Status::default() })).unwrap();
    assert_eq!((read.streams.len(), read.stream_count), (MOST_STREAMS, 7));
    assert_eq!(read.streams[0].wait.what, "µ".repeat(MAX_TEXT / 2));

    let stream = Stream { wait: wait("\x1b[2J\u{202e}"), ..Stream::default() };
    let read = decode(&encode(&Status { streams: vec![stream], ..Status::default() })).unwrap();
    assert_eq!(read.streams[0].wait.what, "\u{fffd}[2J\u{fffd}");

    let mut bytes = encode(&Status::default());
    // The number of cards, after magic, version, time and no rank.
    bytes[21..25].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode(&bytes), Err(WireError::Broken { what: "a list is longer than it may be" }));
    bytes[8] = 9;
    let refused = decode(&bytes).unwrap_err();
    assert_eq!(refused, WireError::Version { found: 9 });
    assert!(refused.to_string().contains("version 9, and this is version 3"), "{refused}");
    assert_eq!(decode(b"HTTP/1.1 200 OK"), Err(WireError::Other));
    assert!(decode(&vec![0; LONGEST + 1]).is_err());
}

/// A name of this process that is in no list of names.
fn name(what: &str) -> String {
    let own = name::own(0).unwrap();
    let own = std::str::from_utf8(own.as_abstract_name().unwrap()).unwrap();
    let stated: Vec<&str> = own.split('/').skip(2).take(2).collect();
    format!("gdsync-status-test/of/{}/{what}", stated.join("/"))
}

/// Listens at a name of this user, and handles the first client.
fn other(name: &str, answer: impl FnOnce(UnixStream) + Send + 'static) -> std::thread::JoinHandle<()> {
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    std::thread::spawn(move || answer(listener.accept().unwrap().0))
}

#[test]
fn processes_that_answer_wrongly_are_said_to() {
    let asked = |what: &'static str, within, answer: Box<dyn FnOnce(UnixStream) + Send>| {
        let thread = other(&name(what), answer);
        let answer = ask(&[name(what)], within).pop();
        thread.join().unwrap();
        answer
    };
    let own_pid = std::process::id();

    let (pid, status) = asked("garbage", LONG, Box::new(|mut s| s.write_all(b"garbage").unwrap())).unwrap();
    assert_eq!(pid, own_pid);
    assert!(matches!(status, Err(AskError::Answer(WireError::Other))), "{status:?}");

    // The server ends in the middle.
    let half = encode(&Status { stream_count: 3, ..Status::default() });
    let half = half[..half.len() - 2].to_vec();
    let (_, status) = asked("half", LONG, Box::new(move |mut s| s.write_all(&half).unwrap())).unwrap();
    assert!(matches!(status, Err(AskError::Answer(WireError::Broken { .. }))), "{status:?}");

    // The server ends before it writes anything.
    assert!(asked("gone", LONG, Box::new(drop)).is_none());
    assert!(ask(&[name("nothing")], LONG).is_empty());

    // The server answers without end: the client stops at the limit.
    let endless = |mut socket: UnixStream| while socket.write_all(&[b'x'; 4096]).is_ok() {};
    let (_, status) = asked("endless", LONG, Box::new(endless)).unwrap();
    assert!(
        matches!(status, Err(AskError::Answer(WireError::Broken { .. } | WireError::Other))),
        "{status:?}"
    );
}

#[test]
fn those_that_say_nothing_hold_up_no_other_and_have_their_time_together() {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let silent = |what: &str| {
        let ended = ended.clone();
        other(&name(what), move |socket| {
            let _ = ended.lock().recv();
            drop(socket);
        })
    };
    let threads = [silent("silent 1"), silent("silent 2")];
    let says = encode(&Status { at_ns: 7, ..Status::default() });
    let says = other(&name("says"), move |mut socket| socket.write_all(&says).unwrap());
    let mut answers = ask(&["silent 1", "says", "silent 2"].map(name), SHORT);
    answers.retain(|(_, answer)| match answer {
        // On a machine that is busy for so long it is silent, too.
        Ok(status) => status.at_ns != 7,
        Err(error) => error.to_string() != "it did not answer within 50 ms: it is stopped, or busy",
    });
    assert!(answers.is_empty(), "{answers:?}");
    drop(end);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    says.join().unwrap();

    // A server that accepts no connection. Its owner cannot be determined, so its name must identify an existing
    // process.
    let full = |name: &str| {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        // SAFETY: a plain system call that makes the listener's backlog as short as possible.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let first = gdsync_sys::local::connect(name.as_bytes()).unwrap();
        (listener, first)
    };
    let _taken = full(&name("full"));
    let answers = ask(&[name("full")], SHORT);
    assert!(matches!(answers[..], [(pid, Err(AskError::Silent { .. }))] if pid == std::process::id()));
    let other = format!("gdsync-status-test/of/{}/1/full", std::process::id());
    let _taken = full(&other);
    assert!(ask(&[other], SHORT).is_empty());
}

#[test]
fn a_name_that_another_user_holds_is_not_believed() {
    const OTHER: libc::uid_t = 65_534;
    if gdsync_sys::local::own_user() != 0 {
        let line = "SKIPPED a_name_that_another_user_holds_is_not_believed: only root can be another user\n";
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    }
    let held = name("held");
    let address = SocketAddr::from_abstract_name(&held).unwrap();
    let (mut ready, mut is_ready) = std::io::pipe().unwrap();
    // SAFETY: the child uses only files, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no memory is involved.
        if unsafe { libc::setuid(OTHER) } == 0
            && let Ok(listener) = UnixListener::bind_addr(&address)
            && is_ready.write_all(&[1]).is_ok()
            && let Ok((mut socket, _)) = listener.accept()
        {
            let _ = socket.write_all(b"garbage");
        }
        // SAFETY: the call ends the child immediately.
        unsafe { libc::_exit(0) };
    }
    drop(is_ready);
    ready.read_exact(&mut [0]).unwrap();
    let answers = ask(&[held], LONG);
    // SAFETY: the id is that of the child, which has not been waited for; a null status is allowed.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    assert!(answers.is_empty(), "{answers:?}");
}

#[test]
fn of_the_waits_of_a_stream_the_oldest_is_shown() {
    let mut status = Status::default();
    let wait = |mark| Wait { mark, ..Wait::default() };
    for (stream, mark) in [(7, 20), (8, 1), (7, 10), (7, 30)] {
        status.add_wait(stream, wait(mark));
    }
    let expected =
        [Stream { number: 7, waits: 3, wait: wait(10) }, Stream { number: 8, waits: 1, wait: wait(1) }];
    assert_eq!(status.streams, expected);
}

struct Streams(Mutex<Vec<u64>>);

impl Source for Streams {
    fn add_to(&self, status: &mut Status, _: &mut Kept) {
        status
            .streams
            .extend(self.0.lock().iter().map(|number| Stream { number: *number, ..Stream::default() }));
    }
}

struct Panics;

impl Source for Panics {
    fn add_to(&self, _: &mut Status, _: &mut Kept) {
        panic!("a source that panics");
    }
}

/// A source that waits as long as it may.
struct Patient;

impl Source for Patient {
    fn add_to(&self, _: &mut Status, kept: &mut Kept) {
        assert_eq!(kept.patience(Duration::ZERO), Duration::ZERO);
        std::thread::sleep(kept.patience(Duration::from_secs(1 << 20)));
    }
}

/// A source that keeps its own registration, and passes it on when queried.
struct Last(Mutex<Option<Arc<Published>>>);

impl Source for Last {
    fn add_to(&self, _: &mut Status, kept: &mut Kept) {
        self.0.lock().take().into_iter().for_each(|published| kept.keep(published));
    }
}

fn numbers(status: &Status) -> Vec<u64> {
    status.streams.iter().map(|stream| stream.number).collect()
}

#[test]
fn what_is_published_is_seen_until_it_is_dropped() {
    let seen = || {
        let all = ask_all(LONG).unwrap();
        let own = all.into_iter().find(|process| process.pid == std::process::id());
        own.map(|process| numbers(&process.status.unwrap()))
    };
    assert_eq!(seen(), None);
    let source = Arc::new(Streams(Mutex::new(vec![5, 3])));
    let first = publish(source.clone());
    assert_eq!(seen(), Some(vec![3, 5]));
    let panics = publish(Arc::new(Panics));
    let second = publish(Arc::new(Streams(Mutex::new(vec![4]))));
    source.0.lock().push(6);
    assert_eq!(seen(), Some(vec![3, 4, 5, 6]));
    drop((first, panics));
    assert_eq!((seen(), numbers(&own())), (Some(vec![4]), vec![4]));
    assert_eq!(Arc::strong_count(&source), 1);
    drop(second);
    assert_eq!(seen(), None);
    // Again, after the thread has ended.
    let again = publish(source);
    assert_eq!(seen(), Some(vec![3, 5, 6]));
    drop(again);
    assert_eq!(seen(), None);
    // Sources that wait for long share a time limit.
    let patient = [(); 20].map(|()| publish(Arc::new(Patient)));
    assert_eq!(own().stream_count, 0);
    drop(patient);
    // The status thread drops the last reference, whether this process or another of the user's processes queries first.
    let last = Arc::new(Last(Mutex::new(None)));
    *last.0.lock() = Some(Arc::new(publish(last.clone())));
    assert!(seen().is_none_or(|streams| streams.is_empty()));
    assert_eq!(seen(), None);
}
