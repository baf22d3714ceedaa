//! What a stream that stands at a wait says about its cause.

use crate::fan::Fan;
use gdsync::memop::{Condition, WaitCause, Word32};
use gdsync::persistent::{PersistentSend, Request, start_all};
use gdsync::{Batch, ConnectOptions, PinnedMemory, ProtectionDomain, QueuePair, WorkRequest};
use gdsync_test_support::pair::{self, LONG, Pair, poll, soft};
use gdsync_test_support::process::{again, role};
use gdsync_test_support::{on_system, skipped};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Asks until the text ends so, or a minute has passed.
fn until(what: &str, mut ask: impl FnMut() -> Option<String>, is_so: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + 2 * LONG;
    loop {
        let said = ask();
        match said {
            Some(said) if is_so(&said) => return said,
            said => assert!(Instant::now() < deadline, "{what}: {said:?}"),
        }
    }
}

#[test]
fn a_missing_receive_is_the_cause_of_waits_of_all_kinds() {
    let pair = Pair::with(Default::default(), ConnectOptions::default().rnr_retry(7));
    let stream = soft();
    let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    let wait = pair.left.send_cq().prepare_wait().unwrap().checked().unwrap();
    let status = wait.status();
    stream.post(Batch::new().send(send).wait_checked(wait)).unwrap();
    assert!(!stream.synchronize_timeout(Duration::from_millis(50)).unwrap());
    let [left, right] = [&pair.left, &pair.right].map(QueuePair::number);
    let cause = format!("queue pair {left:#x} waits for a receive of the peer (RNR), resent ");
    let is_so = |said: &str| {
        said.contains(&cause)
            && said.contains(&format!(" times, peer queue pair {right:#x} (pid {}", std::process::id()))
    };
    let said = until("the stream", || stream.explain_wait(), is_so);
    assert!(said.starts_with("wait for completion 0 of queue 0x") && said.contains(", for "), "{said}");
    until("the status", || status.explain(), is_so);
    // A second stream that waits for the status.
    let other = soft();
    other.post(Batch::new().wait_value32(status.word(), Condition::And, 1)).unwrap();
    until("the other stream", || other.explain_wait(), is_so);

    pair.right.post_recv(&[], 1).unwrap();
    pair::synchronize(&stream);
    assert_eq!((stream.explain_wait(), status.explain()), (None, None));
    assert_eq!(status.get(), Some(Ok(())));
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
}

#[test]
fn a_persistent_request_says_why_it_has_not_completed() {
    let pair = Pair::with(Default::default(), ConnectOptions::default().rnr_retry(7));
    let (stream, mut send) = (soft(), PersistentSend::send(&pair.left, &[]).unwrap());
    start_all(&mut [&mut send as &mut dyn Request], &stream, LONG).unwrap();
    assert!(send.complete(Duration::ZERO).unwrap().is_none());
    let status = send.status().unwrap();
    until("the request", || status.explain(), |said| said.contains(" waits for a receive of the peer (RNR)"));
    pair.right.post_recv(&[], 1).unwrap();
    assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
}

#[test]
fn a_ticket_that_was_never_written_is_the_cause() {
    for fan in Fan::both(1) {
        let ticket = fan.send(0, 5).into_ticket().unwrap();
        let stream = soft();
        stream.post(Batch::new().wait(fan.left(0).send_cq().prepare_wait().unwrap())).unwrap();
        let said = stream.explain_wait().unwrap();
        let expected = "ticket 1 was never written to its trigger's word, which has ticket 0: the program has taken it to write it itself";
        assert!(said.contains(expected), "{said}");
        fan.trigger.release(ticket).unwrap();
        pair::synchronize(&stream);
        fan.completes(0, 5);
        // A send that was prepared, and forgotten.
        let forgotten = fan.send(0, 6);
        stream.post(Batch::new().wait(fan.left(0).send_cq().prepare_wait().unwrap())).unwrap();
        let said = stream.explain_wait().unwrap();
        let expected = "ticket 2 was never written to its trigger's word, which has ticket 1: its send is prepared and not posted";
        assert!(said.contains(expected), "{said}");
        soft().post_send(forgotten).unwrap();
        pair::synchronize(&stream);
        fan.completes(0, 6);
    }
}

/// The word that a stream of this process waits for, and the time, as `gdsync top` reads it.
fn shown_word(name: &str) -> Option<(String, Duration)> {
    let processes = gdsync_status::Survey::take(LONG).unwrap().processes;
    let own = processes.into_iter().find(|one| one.pid == std::process::id())?;
    let waits = own.status.ok()?.streams.into_iter().map(|stream| stream.wait);
    let mut named = waits.filter(|wait| wait.what.starts_with(name));
    named.next().and_then(|wait| Some((wait.what, wait.time?)))
}

#[test]
fn the_word_that_a_synchronized_stream_waits_for_is_shown_until_it_has_come() {
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let word = word.named("a shown word").written_by(Arc::new(Silent));
    let stream = soft();
    stream.post(Batch::new().wait_value32(&word, Condition::Geq, 7)).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| stream.synchronize());
        let deadline = Instant::now() + 2 * LONG;
        let (what, time) = loop {
            if let Some(found) = shown_word("a shown word") {
                break found;
            }
            assert!(Instant::now() < deadline, "it is not shown");
        };
        assert_eq!(what, "a shown word geq 0x7 (the program has not been asked to)");
        assert!(time >= Duration::from_millis(100), "{time:?}");
        word.store(7);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(shown_word("a shown word"), None);
}

#[derive(Debug)]
struct Silent;

impl WaitCause for Silent {
    fn cause(&self) -> Option<String> {
        Some("the program has not been asked to".to_owned())
    }

    fn queue_pairs(&self) -> Vec<u32> {
        Vec::new()
    }
}

#[test]
fn a_word_says_what_its_writer_says_and_the_time_counts_from_the_first_look() {
    let stream = soft();
    let word =
        Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap().named("go").written_by(Arc::new(Silent));
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    let said = stream.explain_wait().unwrap();
    let (begin, end) = ("wait until go eq 0x1, for ", ": the program has not been asked to");
    assert!(said.starts_with(begin) && said.ends_with(end), "{said}");
    assert!(!stream.synchronize_timeout(Duration::from_millis(1100)).unwrap());
    let said = stream.explain_wait().unwrap();
    assert!(said.contains(" s: ") || said.contains(" min: "), "{said}");
    word.store(1);
    pair::synchronize(&stream);
}

/// A queue pair of another process, which is killed at the end.
struct Peer {
    process: Child,
    input: ChildStdin,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn queue_pair() -> QueuePair {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    pair::queue_pair(&pd, Default::default()).unwrap()
}

/// Connects two queue pairs by their endpoints, which each side prints.
fn connect(own: &QueuePair, mut output: impl Write, input: impl BufRead) {
    writeln!(output, "endpoint {}", own.endpoint().unwrap()).unwrap();
    output.flush().unwrap();
    let mut lines = input.lines().map_while(Result::ok);
    let remote = lines.find_map(|line| line.strip_prefix("endpoint ").map(str::to_owned)).unwrap();
    own.connect(&remote.parse().unwrap(), Default::default()).unwrap();
}

#[test]
fn a_peer_that_is_stopped_or_has_ended_is_the_cause() {
    const NAME: &str = "a_peer_that_is_stopped_or_has_ended_is_the_cause";
    if on_system() {
        return skipped(NAME, "the peer's process is known to software cards of one host");
    }
    let own = queue_pair();
    if role().is_some() {
        own.post_recv(&[], 1).unwrap();
        connect(&own, std::io::stdout(), std::io::stdin().lock());
        // Until its parent kills it.
        std::thread::sleep(LONG * 10);
        return;
    }
    let mut command = again(module_path!(), NAME, "peer");
    command.env("GDSYNC_RANK", "3").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let (output, input) = (process.stdout.take().unwrap(), process.stdin.take().unwrap());
    let peer = Peer { process, input };
    connect(&own, &peer.input, BufReader::new(output));
    let pid = peer.process.id();

    let stream = soft();
    // The peer's receive takes this, once it is connected.
    own.post_send(WorkRequest::send(&[])).unwrap();
    stream.post(Batch::new().wait(own.send_cq().prepare_wait().unwrap())).unwrap();
    pair::synchronize(&stream);
    // Nothing comes.
    own.post_recv(&[], 1).unwrap();
    stream.post(Batch::new().wait(own.recv_cq().prepare_wait().unwrap())).unwrap();
    // On a busy machine it may have sent the message again.
    let own_said = format!(": queue pair {:#x}, ", own.number());
    let idle = format!(" (pid {pid}, rank 3), which has no send outstanding");
    let said = until("it has sent nothing", || stream.explain_wait(), |said| said.ends_with(&idle));
    assert!(said.contains(&own_said), "{said}");

    // SAFETY: a plain system call, for a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(pid as libc::pid_t, libc::SIGSTOP) }, 0);
    let stopped = format!(" (pid {pid}, stopped by a signal)");
    until("it is stopped", || stream.explain_wait(), |said| said.ends_with(&stopped));
    drop(peer);
    until(
        "it has ended",
        || stream.explain_wait(),
        |said| said.contains(&own_said) && said.ends_with("ended)"),
    );
    own.abort().unwrap();
    pair::synchronize(&stream);
}
