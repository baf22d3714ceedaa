use super::super::packet::MAX_PAYLOAD;
use super::*;
use crate::fabric::Node;
use crate::fabric::tests::StoppedChild;
use crate::testing::until;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

fn card() -> Shared {
    Shared::bind(Speed::default()).unwrap()
}

fn send(fabric: &mut Shared, number: u16, header: &[u8], payload: &[u8]) -> SendOutcome {
    // SAFETY: a slice that outlives the call.
    unsafe { fabric.try_send(number.into(), header, &[(payload.as_ptr(), payload.len())]) }
}

/// Polls once; returns source and header of each packet.
fn take(fabric: &mut Shared) -> Vec<(u16, Vec<u8>)> {
    let mut taken = Vec::new();
    fabric.poll(100, &mut |number: Node, header: &[u8], _: [PayloadPart; 2]| {
        taken.push((number as u16, header.to_vec()))
    });
    taken
}

#[test]
fn numbers_are_unique_and_free_again() {
    let fabrics: Vec<Shared> = (0..64).map(|_| card()).collect();
    let mut numbers: Vec<u16> = fabrics.iter().map(Shared::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 64);
    drop(fabrics);
    // Cards of other tests may have taken some of them since. They get no packet.
    let free = numbers.iter().filter(|number| names::connect(**number).is_err());
    assert!(free.count() > 32);
}

#[test]
fn packets_go_both_ways_in_order() {
    let (mut a, mut b) = (card(), card());
    for i in 0..1000u32 {
        assert_eq!(
            until("room", || Some(send(&mut a, b.number(), &i.to_ne_bytes(), &[7; 900]))
                .filter(|o| *o == SendOutcome::Sent)),
            SendOutcome::Sent
        );
        if i % 3 == 0 {
            assert_eq!(send(&mut b, a.number(), &i.to_ne_bytes(), &[]), SendOutcome::Sent);
        }
        if i % 500 == 499 {
            let mut count = i - 499;
            until("arrival", || {
                // Other tests may still send to a former owner of this LID.
                for (_, header) in take(&mut b).into_iter().filter(|(number, _)| *number == a.number()) {
                    assert_eq!(header, count.to_ne_bytes());
                    count += 1;
                }
                (count == i + 1).then_some(())
            });
        }
    }
    let mut back = 0;
    until("the way back", || {
        back += take(&mut a).iter().filter(|(number, _)| *number == b.number()).count();
        (back == 334).then_some(())
    });
}

#[test]
fn a_link_whose_peer_breaks_the_ring_stays_while_placed_packets_are_filled() {
    let (mut a, b) = (card(), card());
    let mut place = |holes: &mut Vec<Hole>| {
        // SAFETY: the hole is filled before anything is published.
        unsafe { a.place(b.number().into(), b"x", &[(std::ptr::null(), 5000)], holes) }
    };
    let mut holes = Vec::new();
    assert_eq!(place(&mut holes), SendOutcome::Sent);
    let (at, len) = holes[0][0];
    let range = crate::HostRange::of(at as usize, len).unwrap();
    let head = (range.address() + ring::AT_HEAD) as *mut u64;
    drop(range);
    // SAFETY: a word of the ring, which is mapped; no other code uses it now.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(head) }
        .store(1 << 40, std::sync::atomic::Ordering::Release);
    assert_eq!(place(&mut Vec::new()), SendOutcome::Unreachable);
    assert!(crate::HostRange::of(at as usize, len).is_some(), "the hole is still there");
    // SAFETY: in the ring, which is mapped, at an end that the peer does not read.
    unsafe { at.write_bytes(1, len) };
    a.publish(b.number().into());
    assert_eq!(send(&mut a, b.number(), b"x", b""), SendOutcome::Unreachable);
    assert!(crate::HostRange::of(at as usize, len).is_none() && a.outgoing.links.is_empty());
}

#[test]
fn no_link_starves_behind_busy_ones() {
    let mut to = card();
    let mut from: Vec<Shared> = (0..4).map(|_| card()).collect();
    let mut missing: Vec<u16> = from.iter().map(Shared::number).collect();
    // Every link always has more packets than one call takes in all.
    until("a packet of each", || {
        for fabric in &mut from {
            while send(fabric, to.number(), b"x", &[1; 5000]) == SendOutcome::Sent {}
        }
        to.poll(16, &mut |number: Node, _: &[u8], _: [PayloadPart; 2]| {
            missing.retain(|one| Node::from(*one) != number)
        });
        missing.is_empty().then_some(())
    });
}

#[test]
fn a_full_link_wakes_the_sender_when_there_is_room() {
    let (mut a, mut b) = (card(), card());
    let payload = vec![1; MAX_PAYLOAD];
    let mut sent = 0;
    while send(&mut a, b.number(), b"", &payload) == SendOutcome::Sent {
        sent += 1;
    }
    assert!(sent > 4);
    assert!(
        a.is_full(b.number().into(), 0, MAX_PAYLOAD)
            && !a.is_full(b.number().into(), 0, MAX_PAYLOAD + 1)
            && !a.is_full(0, 0, 1)
    );
    assert!(a.prepare_sleep());
    let (sleeper, number) = (a.sleeper(), a.number());
    let reader = std::thread::spawn(move || {
        let mut left = sent;
        until("arrival", || {
            left -= take(&mut b).len();
            (left == 0).then_some(())
        });
        b
    });
    let start = Instant::now();
    sleeper.sleep(Duration::from_secs(20));
    assert!(start.elapsed() < Duration::from_secs(20));
    a.finish_sleep();
    let b = reader.join().unwrap();
    assert_eq!(send(&mut a, b.number(), b"", &payload), SendOutcome::Sent);
    assert_ne!(number, b.number());
}

#[test]
fn sleepers_are_woken_by_packets_and_by_threads() {
    let (mut a, mut b) = (card(), card());
    let (target, sleeper) = (b.number(), b.sleeper());
    const ROUNDS: u32 = 2000;
    let back = a.number();
    let echo = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < ROUNDS {
            let count = take(&mut b).len() as u32;
            for _ in 0..count {
                assert_eq!(send(&mut b, back, b"echo", b""), SendOutcome::Sent);
            }
            seen += count;
            if count == 0 && b.prepare_sleep() {
                b.sleeper().sleep(Duration::from_secs(20));
                b.finish_sleep();
            }
        }
        b
    });
    let start = Instant::now();
    for _ in 0..ROUNDS {
        assert_eq!(send(&mut a, target, b"ping", b""), SendOutcome::Sent);
        until("the echo", || {
            if take(&mut a).len() == 1 {
                return Some(());
            }
            if a.prepare_sleep() {
                a.sleeper().sleep(Duration::from_secs(20));
                a.finish_sleep();
            }
            None
        });
    }
    // A lost wake-up would sleep for 20 seconds.
    assert!(start.elapsed() < Duration::from_secs(20), "a wake-up was lost");
    let mut b = echo.join().unwrap();
    assert!(b.prepare_sleep());
    sleeper.wake();
    let start = Instant::now();
    sleeper.sleep(Duration::from_secs(20));
    assert!(start.elapsed() < Duration::from_secs(20));
    b.finish_sleep();
}

/// Line that the child prints when it has sent everything.
const ALL_SENT: &str = "all packets are sent";

/// Set for a child that forks: the process that it makes inherits its sockets, and sleeps.
const FORKS: &str = "GDSYNC_TEST_FABRIC_FORKS";

/// Runs in the child process of the tests of killed processes: sends three packets, and waits to be killed.
#[test]
fn child_process() {
    let Ok(number) = std::env::var("GDSYNC_TEST_FABRIC_PARENT") else { return };
    let mut fabric = card();
    if std::env::var_os(FORKS).is_some() {
        // SAFETY: the forked process makes two system calls only, and never returns from the second: the
        // alarm's signal ends it.
        let forked = unsafe {
            let forked = libc::fork();
            if forked == 0 {
                libc::alarm(300);
                loop {
                    libc::pause();
                }
            }
            forked
        };
        println!("\n{FORKS} {forked}");
    }
    for i in 0..3u8 {
        assert_eq!(send(&mut fabric, number.parse().unwrap(), &[i], b""), SendOutcome::Sent);
    }
    println!("\n{ALL_SENT}");
    loop {
        take(&mut fabric);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_process_is_noticed_and_what_it_sent_still_arrives() {
    let mut fabric = card();
    let mut child = start_child(&fabric, false);
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line == ALL_SENT), "it is not killed before it has sent everything");
    let number = until("the first packet", || take_one(&mut fabric));
    assert_eq!(send(&mut fabric, number, b"hello", b""), SendOutcome::Sent);
    std::thread::sleep(Duration::from_millis(20));
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = 0;
    until("the rest", || {
        rest += take(&mut fabric).len();
        (rest == 2).then_some(())
    });
    until("its death", || {
        take(&mut fabric);
        (!fabric.is_alive(number.into())).then_some(())
    });
    assert_eq!(send(&mut fabric, number, b"anybody?", b""), SendOutcome::Unreachable);
}

fn start_child(fabric: &Shared, forks: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "fabric::shared::tests::child_process", "--nocapture"]);
    command.env("GDSYNC_TEST_FABRIC_PARENT", fabric.number().to_string());
    if forks {
        command.env(FORKS, "1");
    }
    command.stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_killed_process_is_noticed_although_a_forked_one_keeps_its_sockets() {
    let mut fabric = card();
    let mut child = start_child(&fabric, true);
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let forked: libc::pid_t =
        said.find_map(|line| line.strip_prefix(FORKS)?.trim().parse().ok()).expect("it has forked");
    assert!(said.any(|line| line == ALL_SENT));
    let number = until("a packet", || take_one(&mut fabric));
    assert_eq!(send(&mut fabric, number, b"hello", b""), SendOutcome::Sent);
    assert!(fabric.is_alive(number.into()));
    child.kill().unwrap();
    child.wait().unwrap();
    until("its death", || {
        take(&mut fabric);
        (!fabric.is_alive(number.into())).then_some(())
    });
    // The forked process still listens under that name.
    assert_eq!(send(&mut fabric, number, b"anybody?", b""), SendOutcome::Unreachable);
    // SAFETY: only a signal is sent, to the process that the child has forked.
    assert_eq!(unsafe { libc::kill(forked, libc::SIGKILL) }, 0);
}

#[test]
fn a_link_that_has_ended_wakes_nothing_although_a_fork_has_copied_its_sockets() {
    let (mut a, mut b) = (card(), card());
    assert_eq!(send(&mut a, b.number(), b"to", b""), SendOutcome::Sent);
    until("the way there", || (take(&mut b).len() == 1).then_some(()));
    assert_eq!(send(&mut b, a.number(), b"back", b""), SendOutcome::Sent);
    until("the way back", || (take(&mut a).len() == 1).then_some(()));
    let child = StoppedChild::fork();
    let number = b.number().into();
    drop(b);
    until("its end", || {
        a.poll_sockets();
        (!a.is_alive(number) && a.rings().next().is_none()).then_some(())
    });
    let ready = a.sleeper.epoll.ready();
    drop(child);
    assert!(ready.is_empty(), "{ready:x?}");
}

#[test]
fn a_link_knows_how_far_its_peer_has_come() {
    let (mut a, mut b) = (card(), card());
    assert!(a.has_taken(b.number().into(), 0), "without a link, nothing waits");
    assert_eq!(send(&mut a, b.number(), b"one", b"1"), SendOutcome::Sent);
    let first = a.position();
    assert_eq!(send(&mut a, b.number(), b"two", b"2"), SendOutcome::Sent);
    let second = a.position();
    assert!(!a.has_taken(b.number().into(), first) && !a.has_taken(b.number().into(), second));
    until("the first packet", || {
        let mut numbers = Vec::new();
        b.poll(1, &mut |number: Node, _: &[u8], _: [PayloadPart; 2]| numbers.push(number as u16));
        (numbers == [a.number()]).then_some(())
    });
    assert!(a.has_taken(b.number().into(), first) && !a.has_taken(b.number().into(), second));
    until("the second", || (take(&mut b).iter().any(|(number, _)| *number == a.number())).then_some(()));
    assert!(
        a.has_taken(b.number().into(), second) && a.has_taken(b.number().into(), second + 64),
        "of another ring"
    );
}

#[test]
fn a_link_counts_the_rounds_of_its_peer_and_knows_what_came_before_them() {
    let (mut a, mut b) = (card(), card());
    assert_eq!(a.rounds(b.number().into()), None, "there is no link");
    assert_eq!(send(&mut a, b.number(), b"one", b"1"), SendOutcome::Sent);
    b.end_round();
    assert_eq!(a.rounds(b.number().into()), Some(0), "the link is not accepted");
    until("the packet", || (take(&mut b).iter().any(|(number, _)| *number == a.number())).then_some(()));
    b.end_round();
    assert_eq!(a.rounds(b.number().into()), Some(1));
    assert_eq!(send(&mut b, a.number(), b"answer", b"1"), SendOutcome::Sent);
    b.end_round();
    assert_eq!(a.rounds(b.number().into()), Some(2));
    // The link has not been accepted before.
    let arrived = a.arrived(b.number().into());
    assert!(arrived > 0 && !a.has_received(b.number().into(), arrived));
    assert_eq!(take_one(&mut a), Some(b.number()));
    assert!(
        a.has_received(b.number().into(), arrived) && a.has_received(b.number().into(), arrived + 64),
        "of another ring"
    );
}

fn take_one(fabric: &mut Shared) -> Option<u16> {
    let mut source = None;
    fabric.poll(1, &mut |number: Node, _: &[u8], _: [PayloadPart; 2]| source = Some(number as u16));
    source
}

#[test]
fn strangers_are_refused() {
    let mut fabric = card();
    let stranger = gdsync_sys::local::connect(&names::plain(fabric.number())).unwrap();
    std::io::Write::write_all(&mut &stranger, b"GET / HTTP/1.1").unwrap();
    until("the refusal", || {
        take(&mut fabric);
        (!crate::os::wait::drain(stranger.as_fd())).then_some(())
    });
    assert!(fabric.incoming.iter().flatten().next().is_none());
}

#[test]
fn a_card_of_another_speed_is_refused_by_name() {
    let (mut slow, mut fast) = (card(), Shared::bind(Speed::new(20).unwrap()).unwrap());
    let told = |refused: Vec<OtherSpeed>, node: u16| {
        let [refused] = refused.try_into().expect("it is told once");
        let refused: String = OtherSpeed::to_string(&refused);
        assert!(refused.contains(&format!("{node:#x}")) && refused.contains("SOFTHCA_CLOCK"), "{refused}");
        refused
    };
    for attempt in 0..2 {
        assert_eq!(send(&mut slow, fast.number(), b"", b""), SendOutcome::Sent);
        until("the refusal", || {
            assert_eq!((take(&mut fast), take(&mut slow)), (vec![], vec![]));
            (!slow.is_alive(fast.number().into())).then_some(())
        });
        let refused = (slow.take_refused(), fast.take_refused());
        if attempt == 0 {
            let (by_slow, by_fast) = (told(refused.0, fast.number()), told(refused.1, slow.number()));
            assert!(
                by_slow.contains("timers 20 times") && by_slow.contains("this card 1 times"),
                "{by_slow}"
            );
            assert!(
                by_fast.contains("timers 1 times") && by_fast.contains("this card 20 times"),
                "{by_fast}"
            );
        } else {
            assert_eq!(refused, (vec![], vec![]), "each is told once");
        }
        until("the time after which it is tried again", || slow.is_alive(fast.number().into()).then_some(()));
    }
    let mut alike = Shared::bind(fast.speed()).unwrap();
    assert_eq!(send(&mut alike, fast.number(), b"hello", b""), SendOutcome::Sent);
    until("a packet", || take(&mut fast).contains(&(alike.number(), b"hello".to_vec())).then_some(()));
}

#[test]
fn a_card_that_accepts_no_links_is_waited_for_and_then_given_up() {
    let (mut fabric, busy) = (card(), names::claim(7).unwrap());
    let mut links = Vec::new();
    while let Ok(link) = names::connect(busy.number) {
        links.push(link);
    }
    assert_eq!(send(&mut fabric, busy.number, b"", b""), SendOutcome::Full);
    // Pretends that it has been busy for long.
    let long_ago = Instant::now().checked_sub(BUSY_TIME).unwrap();
    fabric.busy.insert(busy.number, long_ago);
    assert_eq!(send(&mut fabric, busy.number, b"", b""), SendOutcome::Unreachable);
    assert!(fabric.busy.is_empty() && !fabric.is_alive(busy.number.into()));
}

#[test]
fn no_card_is_at_impossible_addresses() {
    let mut fabric = card();
    for number in [0, 511, 0xffff, fabric.number()] {
        assert_eq!(send(&mut fabric, number, b"", b""), SendOutcome::Unreachable);
    }
}
