//! Jobs whose processes meet, and jobs whose processes do not.

use crate::ranks::{LONG, Ranks, ended_well};
use gdsync_notify::bootstrap::{Bootstrap, BootstrapError, Job, Key, Rendezvous};
use gdsync_test_support::networks::free_port;
use gdsync_test_support::process::role;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

/// The time-out of tests with a late rank.
const SHORT: Duration = Duration::from_millis(1500);

fn part(rank: u32, round: usize) -> Vec<u8> {
    (0..(rank as usize + 1) * round * 37 % 5000).map(|i| (i * 7 + round + rank as usize) as u8).collect()
}

/// Makes exchanges of varying lengths and checks them.
fn exchange(bootstrap: &mut Bootstrap, rounds: usize) {
    for round in 0..rounds {
        let all = bootstrap.all_gather(&part(bootstrap.rank(), round)).unwrap();
        let expected: Vec<_> = (0..bootstrap.size()).map(|rank| part(rank, round)).collect();
        assert!(all == expected, "round {round} of rank {}", bootstrap.rank());
        let (own, of) = (bootstrap.rank(), |from: u32, to: u32| part(from * 3 + to, round));
        let parts: Vec<_> = (0..bootstrap.size()).map(|to| of(own, to)).collect();
        let expected: Vec<_> = (0..bootstrap.size()).map(|from| of(from, own)).collect();
        assert!(bootstrap.all_to_all(&parts).unwrap() == expected, "round {round} of rank {own}");
        bootstrap.barrier().unwrap();
    }
}

fn join(timeout: Duration) -> Result<Bootstrap, BootstrapError> {
    Bootstrap::join(&Job::from_env().unwrap(), timeout)
}

#[test]
fn processes_meet_on_one_host_and_exchange() {
    if role().is_some() {
        return exchange(&mut join(LONG).unwrap(), 40);
    }
    Ranks::new(module_path!(), "processes_meet_on_one_host_and_exchange", 5).run("exchange");
}

/// Ranks as threads that exchange through a shared table.
fn by_a_table(size: u32) -> Vec<Bootstrap> {
    let table = Arc::new((Mutex::new(vec![Vec::new(); size as usize]), Barrier::new(size as usize)));
    let rank = |rank: u32| {
        let table = table.clone();
        Bootstrap::with_all_gather(rank, size, LONG, move |own, all| {
            let (blocks, barrier) = &*table;
            blocks.lock().unwrap()[rank as usize] = own.to_vec();
            barrier.wait();
            all.copy_from_slice(&blocks.lock().unwrap().concat());
            barrier.wait();
            Ok(())
        })
    };
    (0..size).map(|number| rank(number).unwrap()).collect()
}

#[test]
fn ranks_exchange_by_means_of_their_own() {
    std::thread::scope(|scope| {
        for mut one in by_a_table(3) {
            scope.spawn(move || exchange(&mut one, 20));
        }
    });
    // Ranks that call different exchanges get an error.
    let errors: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = by_a_table(2)
            .into_iter()
            .map(|mut one| {
                scope.spawn(move || match one.rank() {
                    0 => one.all_gather(b"a").map(drop),
                    _ => one.all_to_all(&[vec![1], vec![2]]).map(drop),
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap_err()).collect()
    });
    assert!(errors.iter().all(|error| error.to_string().contains("another exchange")), "{errors:?}");
}

#[test]
fn failures_of_a_programs_exchange_are_said() {
    let with = |gather: fn(&[u8], &mut [u8]) -> Result<(), String>| {
        Bootstrap::with_all_gather(0, 2, LONG, gather).unwrap()
    };
    let mut failing = with(|_, _| Err("the network is down".to_owned()));
    let error = failing.all_gather(b"abc").unwrap_err();
    assert!(matches!(error, BootstrapError::Program { .. }), "{error}");
    assert!(error.to_string().contains("the network is down"), "{error}");
    assert!(matches!(failing.barrier(), Err(BootstrapError::Broken)));
    let mut silly = with(|own, all| {
        all[..own.len()].copy_from_slice(own);
        all[own.len()..].copy_from_slice(own);
        all[own.len() + 8..].fill(0xff);
        Ok(())
    });
    let error = silly.all_gather(b"abc").unwrap_err();
    assert!(matches!(error, BootstrapError::Protocol { rank: 1, .. }), "{error}");
    let nothing = |_: &[u8], _: &mut [u8]| Ok(());
    for (rank, size) in [(2, 2), (0, 0), (0, 16385)] {
        let refused = Bootstrap::with_all_gather(rank, size, LONG, nothing);
        assert!(matches!(refused, Err(BootstrapError::Rank { .. })));
    }
}

#[test]
fn processes_meet_over_tcp_past_strangers_and_other_jobs() {
    if role().is_some() {
        return exchange(&mut join(LONG).unwrap(), 10);
    }
    let ranks = Ranks::new(module_path!(), "processes_meet_over_tcp_past_strangers_and_other_jobs", 3);
    let root = format!("127.0.0.1:{}", free_port());
    let spawn = |rank, job: Option<&str>| {
        let mut command = ranks.command(rank, "exchange");
        command.env("GDSYNC_ROOT", &root).env("GDSYNC_KEY", "the key of this test");
        job.into_iter().for_each(|job| _ = command.env("GDSYNC_JOB", job));
        command.spawn().unwrap()
    };
    let first = spawn(0, None);
    let connect = || connect(&root);
    // A silent connection, one that speaks HTTP, and one that announces a long payload.
    let silent = connect();
    let mut browser = connect();
    browser.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(browser.read(&mut [0; 16]).map_or(true, |count| count == 0), "it is hung up on");
    let mut long = connect();
    let mut hello = b"gdsboot\x02\x01\0\0\0\0\0\0\x01\0\0\0\x03".to_vec();
    hello.extend([0xff; 4]);
    long.write_all(&hello).unwrap();
    assert!(long.read(&mut [0; 16]).map_or(true, |count| count == 0), "it is hung up on");
    // A process of another job gets a refusal.
    let other = spawn(1, Some("another")).wait_with_output().unwrap();
    assert!(!other.status.success());
    assert!(String::from_utf8_lossy(&other.stderr).contains("of another job"), "{other:?}");
    let others: Vec<_> = (1..3).map(|rank| spawn(rank, None)).collect();
    ended_well(first);
    others.into_iter().for_each(|child| _ = ended_well(child));
    drop(silent);
}

/// Waits until rank 0 listens.
fn connect(root: &str) -> TcpStream {
    let end = Instant::now() + LONG;
    loop {
        match TcpStream::connect(root) {
            Ok(socket) => return socket,
            Err(error) => assert!(Instant::now() < end, "{root}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The bytes of a hello of a process that knows the job's name.
fn hello(job: &str, rank: u32, size: u32) -> Vec<u8> {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    let mut bytes = b"gdsboot\x02\x01\0\0\0".to_vec();
    [rank, size, 8].into_iter().for_each(|word| bytes.extend(word.to_be_bytes()));
    bytes.extend(hash.to_be_bytes());
    bytes
}

#[test]
fn a_stranger_that_knows_the_jobs_name_neither_ends_the_job_nor_takes_a_rank() {
    let test = "a_stranger_that_knows_the_jobs_name_neither_ends_the_job_nor_takes_a_rank";
    if role().is_some() {
        return exchange(&mut join(LONG).unwrap(), 3);
    }
    let ranks = Ranks::new(module_path!(), test, 3);
    let root = format!("127.0.0.1:{}", free_port());
    let spawn = |rank| ranks.command(rank, "exchange").env("GDSYNC_ROOT", &root).spawn().unwrap();
    let first = spawn(0);
    // Another size of the job, and another process's rank.
    for (rank, size) in [(1, 4), (1, 3), (2, 3)] {
        let mut stranger = connect(&root);
        stranger.write_all(&hello(&ranks.name(), rank, size)).unwrap();
        let heard = stranger.read(&mut [0; 16]);
        assert!(heard.as_ref().map_or(true, |count| *count == 0), "it is hung up on: {heard:?}");
    }
    let others: Vec<_> = (1..3).map(spawn).collect();
    ended_well(first);
    others.into_iter().for_each(|child| _ = ended_well(child));
    // Only this host reaches the address, so they had their user's key.
    let key = ranks.user_folder().join("key");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::remove_file(key).unwrap();
}

#[test]
fn silent_strangers_hold_few_files_and_keep_no_rank_out() {
    if role().is_some() {
        return exchange(&mut join(LONG).unwrap(), 3);
    }
    let ranks = Ranks::new(module_path!(), "silent_strangers_hold_few_files_and_keep_no_rank_out", 2);
    let root = format!("127.0.0.1:{}", free_port());
    let spawn = |rank| {
        let mut command = ranks.command(rank, "exchange");
        command.env("GDSYNC_ROOT", &root).env("GDSYNC_KEY", "the key of this test").spawn().unwrap()
    };
    let first = spawn(0);
    let strangers: Vec<_> = (0..1100).map(|_| connect(&root)).collect();
    let files = || std::fs::read_dir(format!("/proc/{}/fd", first.id())).unwrap().count();
    assert!(files() < 100, "{} files", files());
    let other = spawn(1);
    [first, other].into_iter().for_each(|child| _ = ended_well(child));
    drop(strangers);
}

#[test]
fn ranks_with_different_keys_do_not_meet() {
    if let Some(role) = role() {
        let error = join(SHORT).unwrap_err();
        match &role[..] {
            "0" => assert!(matches!(&error, BootstrapError::Late { ranks, .. } if ranks == &[1]), "{error}"),
            _ => {
                assert!(matches!(&error, BootstrapError::OtherKey { .. }), "{error}");
                assert!(error.to_string().contains("GDSYNC_KEY_FILE"), "{error}");
            }
        }
        return;
    }
    let ranks = Ranks::new(module_path!(), "ranks_with_different_keys_do_not_meet", 2);
    let root = format!("127.0.0.1:{}", free_port());
    let spawn = |rank, key| {
        let mut command = ranks.command(rank, &rank.to_string());
        command.env("GDSYNC_ROOT", &root).env("GDSYNC_KEY", key).spawn().unwrap()
    };
    // Rank 0 listens as long as it waits.
    let children = [spawn(0, "the key of rank 0"), spawn(1, "the key of rank 1")];
    children.into_iter().for_each(|child| _ = ended_well(child));
}

#[test]
fn an_address_that_other_hosts_reach_needs_a_key() {
    let root = format!("0.0.0.0:{}", free_port());
    let job = Job::new(0, 2, Rendezvous::Root(root.clone())).unwrap();
    let error = Bootstrap::join(&job, SHORT).unwrap_err();
    assert!(matches!(&error, BootstrapError::NoKey { address } if *address == root), "{error}");
    let text = error.to_string();
    assert!(text.contains("GDSYNC_KEY_FILE") && text.contains("/dev/urandom"), "{text}");
    let job = job.with_key(Key::new(b"a key that is given").unwrap());
    let error = Bootstrap::join(&job, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(&error, BootstrapError::Late { ranks, .. } if ranks == &[1]), "{error}");
}

#[test]
fn a_rank_that_never_comes_is_named_on_all_that_came() {
    if role().is_some() {
        let error = join(SHORT).unwrap_err();
        assert!(matches!(&error, BootstrapError::Late { ranks, .. } if ranks == &[2]), "{error}");
        assert!(error.to_string().starts_with("ranks [2] did not arrive within"), "{error}");
        return;
    }
    let ranks = Ranks::new(module_path!(), "a_rank_that_never_comes_is_named_on_all_that_came", 4);
    // The members first, so that they are not late.
    let children: Vec<_> = [1, 3, 0].into_iter().map(|rank| ranks.spawn(rank, "wait")).collect();
    children.into_iter().for_each(|child| _ = ended_well(child));
}

#[test]
fn a_rank_zero_that_never_comes_is_said_with_the_address() {
    if role().is_some() {
        let error = join(Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, BootstrapError::Connect { .. }), "{error}");
        return;
    }
    let ranks = Ranks::new(module_path!(), "a_rank_zero_that_never_comes_is_said_with_the_address", 2);
    ended_well(ranks.spawn(1, "wait"));
}

#[test]
fn a_rank_that_dies_is_named_on_all_others() {
    if let Some(role) = role() {
        let mut bootstrap = join(LONG).unwrap();
        exchange(&mut bootstrap, 3);
        if role == "die" {
            std::process::abort();
        }
        // Until the death is known: rank 0 may be faster.
        let error = loop {
            if let Err(error) = bootstrap.barrier() {
                break error;
            }
        };
        assert!(matches!(&error, BootstrapError::Gone { ranks } if ranks == &[2]), "{error}");
        assert!(matches!(bootstrap.all_gather(b"x"), Err(BootstrapError::Broken)));
        return;
    }
    let ranks = Ranks::new(module_path!(), "a_rank_that_dies_is_named_on_all_others", 4);
    let children: Vec<_> =
        [(0, ""), (1, ""), (2, "die"), (3, "")].map(|(rank, role)| ranks.spawn(rank, role)).into();
    for (rank, child) in children.into_iter().enumerate() {
        if rank == 2 {
            assert!(!child.wait_with_output().unwrap().status.success());
        } else {
            ended_well(child);
        }
    }
}

#[test]
fn a_dead_rank_zero_is_named() {
    if let Some(role) = role() {
        let mut bootstrap = join(LONG).unwrap();
        exchange(&mut bootstrap, 1);
        if role == "die" {
            std::process::abort();
        }
        let error = bootstrap.barrier().unwrap_err();
        assert!(matches!(&error, BootstrapError::Gone { ranks } if ranks == &[0]), "{error}");
        return;
    }
    let ranks = Ranks::new(module_path!(), "a_dead_rank_zero_is_named", 2);
    let (zero, one) = (ranks.spawn(0, "die"), ranks.spawn(1, ""));
    assert!(!zero.wait_with_output().unwrap().status.success());
    ended_well(one);
}

#[test]
fn a_rank_that_is_told_another_size_is_an_error_everywhere() {
    if let Some(role) = role() {
        let error = join(LONG).unwrap_err();
        match &role[..] {
            "0" => {
                assert!(matches!(error, BootstrapError::OtherSize { rank: 1, given: 4, size: 3 }), "{error}")
            }
            _ => assert!(error.to_string().contains("rank 1 says that the job has 4 processes"), "{error}"),
        }
        return;
    }
    let ranks = Ranks::new(module_path!(), "a_rank_that_is_told_another_size_is_an_error_everywhere", 3);
    let zero = ranks.spawn(0, "0");
    let one = ranks.command(1, "1").env("GDSYNC_SIZE", "4").spawn().unwrap();
    [zero, one].into_iter().for_each(|child| _ = ended_well(child));
}

#[test]
fn a_rank_that_is_there_twice_is_turned_away() {
    if let Some(role) = role() {
        match (&role[..], join(LONG)) {
            ("late", Err(error)) => {
                assert!(error.to_string().contains("rank 1 has already joined"), "{error}")
            }
            (_, joined) => exchange(&mut joined.unwrap(), 5),
        }
        return;
    }
    let ranks = Ranks::new(module_path!(), "a_rank_that_is_there_twice_is_turned_away", 3);
    let zero = ranks.spawn(0, "first");
    // Either may be first; exactly one joins.
    let (mut one, mut other) = (ranks.spawn(1, "late"), ranks.spawn(1, "late"));
    while one.try_wait().unwrap().is_none() && other.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let two = ranks.spawn(2, "first");
    [zero, one, other, two].into_iter().for_each(|child| _ = ended_well(child));
}

#[test]
fn threads_exchange_and_learn_who_left() {
    let mut ranks = Bootstrap::threads(4, LONG).unwrap();
    std::thread::scope(|scope| {
        for rank in &mut ranks {
            scope.spawn(move || exchange(rank, 30));
        }
    });
    drop(ranks.remove(3));
    std::thread::scope(|scope| {
        for rank in &mut ranks {
            scope.spawn(move || {
                let error = rank.barrier().unwrap_err();
                assert!(matches!(&error, BootstrapError::Gone { ranks } if ranks == &[3]), "{error}");
            });
        }
    });
    assert!(Bootstrap::threads(0, LONG).is_err());
}

#[test]
fn a_thread_that_comes_too_late_is_named() {
    let mut ranks = Bootstrap::threads(3, SHORT).unwrap();
    let silent = ranks.remove(1);
    std::thread::scope(|scope| {
        for rank in &mut ranks {
            scope.spawn(move || {
                let error = rank.barrier().unwrap_err();
                assert!(matches!(&error, BootstrapError::Late { ranks, .. } if ranks == &[1]), "{error}");
            });
        }
    });
    drop(silent);
}

#[test]
fn the_longest_time_out_is_no_limit() {
    let local = Rendezvous::Local(format!("no limit {}", std::process::id()));
    let root = Rendezvous::Root(format!("127.0.0.1:{}", free_port()));
    let met = |at: &Rendezvous, rank| Bootstrap::join(&Job::new(rank, 2, at.clone()).unwrap(), Duration::MAX);
    // Nothing else ends the wait for a rank that panics.
    let (done, all) = std::sync::mpsc::channel();
    let run = |rank: Box<dyn FnOnce() -> Bootstrap + Send>| {
        let done = done.clone();
        std::thread::spawn(move || {
            exchange(&mut rank(), 3);
            done.send(()).unwrap();
        });
    };
    Bootstrap::threads(2, Duration::MAX).unwrap().into_iter().for_each(|one| run(Box::new(|| one)));
    for (at, rank) in [(&local, 0), (&local, 1), (&root, 0), (&root, 1)] {
        let at = at.clone();
        run(Box::new(move || met(&at, rank).unwrap()));
    }
    (0..6).for_each(|_| all.recv_timeout(LONG).unwrap());
}

#[test]
fn ranks_that_are_at_different_exchanges_are_an_error_everywhere() {
    let ranks = Bootstrap::threads(3, LONG).unwrap();
    let errors = std::thread::scope(|scope| {
        let run = |mut one: Bootstrap| {
            let parts = vec![b"part".to_vec(); 3];
            if one.rank() == 2 { one.all_to_all(&parts) } else { one.all_gather(&parts[0]) }
        };
        let threads: Vec<_> = ranks.into_iter().map(|one| scope.spawn(move || run(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap_err().to_string()).collect::<Vec<_>>()
    });
    assert!(
        errors[0].starts_with("rank 2 sent") && errors[0].contains("Parts 0 instead of Part 0"),
        "{errors:?}"
    );
    assert!(errors[1..].iter().all(|error| error.contains("Parts 0 instead of Part 0")), "{errors:?}");
}

#[test]
fn one_process_is_a_job_and_long_parts_are_refused() {
    let alone = Job::new(0, 1, Rendezvous::Local(String::new())).unwrap();
    let mut alone = Bootstrap::join(&alone, LONG).unwrap();
    exchange(&mut alone, 3);
    let error = alone.all_gather(&vec![0; (1 << 20) + 1]).unwrap_err();
    assert!(matches!(error, BootstrapError::TooLong { given: 1_048_577, limit: 1_048_576, .. }), "{error}");
    exchange(&mut alone, 1);
    assert_eq!(alone.all_gather(&vec![3; 1 << 20]).unwrap(), [vec![3; 1 << 20]]);
    let error = alone.all_to_all(&[vec![], vec![]]).unwrap_err();
    assert_eq!(error.to_string(), "2 parts for 1 ranks: give one for each rank, this one included");
    // The part's header counts, too.
    let error = alone.all_to_all(&[vec![0; (1 << 20) - 3]]).unwrap_err();
    assert!(matches!(error, BootstrapError::TooLong { given: 1_048_577, limit: 1_048_576, .. }), "{error}");
    assert_eq!(alone.all_to_all(&[vec![5; (1 << 20) - 4]]).unwrap(), [vec![5; (1 << 20) - 4]]);
}

#[test]
fn an_address_that_is_taken_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = taken.local_addr().unwrap().to_string();
    let job = Job::new(0, 2, Rendezvous::Root(root.clone())).unwrap();
    let error = Bootstrap::join(&job, SHORT).unwrap_err();
    assert!(matches!(&error, BootstrapError::Listen { address, .. } if *address == root), "{error}");
}
