//! Notified writes by kernels, here CPU threads: every rank to every rank, in turn with the CPU, and refusals.

use crate::notify_rig::{self, Job, Rank};
use crate::ranks::{Prepare, on_threads};
use gdsync::device::DeviceQpError;
use gdsync::memop::{MemOp, MemOpCaps, MemOpStream, StreamError};
use gdsync::memory::{HostAddr, StreamAddr};
use gdsync::queue::StateError;
use gdsync::stream::{Cpu, DoorbellPath};
use gdsync::{ConnectOptions, QueueError, QueuePairConfig};
use gdsync_notify::{DeviceQueueOptions, NotifyError, Operation, Segment, Team, TeamConfig};
use gdsync_test_support::device::{self, Ended, run_sanitized};
use gdsync_test_support::pair::LONG;
use gdsync_test_support::skipped;
use libloading::Library;
use std::sync::OnceLock;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(5);

/// The source of the kernels.
pub(crate) const SOURCE: &str = "kernels/notify.cu";
/// The environment variable with the kernels' library, set in the process of a test that has compiled them.
pub(crate) const LIBRARY: &str = "GDSYNC_TEST_KERNELS";

/// The kernels as functions for threads of this process.
pub(crate) struct Kernels(Library);

/// Returns `None` without a C++ compiler: the test is skipped.
pub(crate) fn kernels(test: &str) -> Option<&'static Kernels> {
    static KERNELS: OnceLock<Result<Kernels, String>> = OnceLock::new();
    let get = || match std::env::var_os(LIBRARY) {
        Some(path) => Ok(Kernels(device::open(path.as_ref()))),
        None => device::load(SOURCE).map(Kernels),
    };
    let kernels = KERNELS.get_or_init(get);
    kernels.as_ref().map_err(|why| skipped(test, why)).ok()
}

/// `struct request` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    from_offset: u64,
    to_offset: u64,
    bytes: u64,
    rank: u32,
    id: u32,
    value: u32,
    zero: u32,
}

type Run = unsafe extern "C" fn(*const Job) -> u32;
type Call = unsafe extern "C" fn(*const Job, *const Request) -> i32;

/// Every job belongs to a [`Rank`] that the caller holds.
impl Kernels {
    fn get<T>(&self, name: &str) -> libloading::Symbol<'_, T> {
        // SAFETY: each caller names the type that `notify.cu` has.
        unsafe { self.0.get(name.as_bytes()) }.unwrap()
    }

    fn run(&self, name: &str, job: &Job) -> u32 {
        let function = self.get::<Run>(name);
        // SAFETY: as the block's comment says.
        unsafe { function(job) }
    }

    fn call(&self, name: &str, job: &Job, request: Request) -> Ended {
        let function = self.get::<Call>(name);
        // SAFETY: as the block's comment says.
        Ended::new(unsafe { function(job, &request) })
    }

    pub(crate) fn waitsome(&self, job: &Job, ids: std::ops::Range<u32>, timeout: Duration) -> (Ended, u32) {
        type Function = unsafe extern "C" fn(*const Job, u32, u32, *mut u32, u64) -> i32;
        let (function, mut id) = (self.get::<Function>("call_waitsome"), u32::MAX);
        // SAFETY: as the block's comment says.
        let code = unsafe { function(job, ids.start, ids.end, &mut id, timeout.as_nanos() as u64) };
        (Ended::new(code), id)
    }

    pub(crate) fn reset(&self, job: &Job, id: u32) -> (Ended, u32) {
        type Function = unsafe extern "C" fn(*const Job, u32, *mut u32) -> i32;
        let (function, mut value) = (self.get::<Function>("call_reset"), u32::MAX);
        // SAFETY: as the block's comment says.
        let code = unsafe { function(job, id, &mut value) };
        (Ended::new(code), value)
    }

    pub(crate) fn quiet(&self, job: &Job, rank: u32, timeout: Duration) -> Ended {
        let function = self.get::<unsafe extern "C" fn(*const Job, u32, u64) -> i32>("call_quiet");
        // SAFETY: as the block's comment says.
        Ended::new(unsafe { function(job, rank, timeout.as_nanos() as u64) })
    }

    pub(crate) fn quiet_all(&self, job: &Job, timeout: Duration) -> Ended {
        let function = self.get::<unsafe extern "C" fn(*const Job, u64) -> i32>("call_quiet_all");
        // SAFETY: as the block's comment says.
        Ended::new(unsafe { function(job, timeout.as_nanos() as u64) })
    }

    fn error(&self, job: &Job, rank: u32) -> u64 {
        let function = self.get::<unsafe extern "C" fn(*const Job, u32) -> u64>("call_error");
        // SAFETY: as the block's comment says.
        unsafe { function(job, rank) }
    }
}

/// A slot of each rank in both segments.
fn segments(team: &Team, slot: usize) -> (Segment, Segment) {
    let len = slot * team.size() as usize;
    (team.allocate(len, 0).unwrap(), team.allocate(len, 3 * team.size()).unwrap())
}

fn described(team: &Team, slot: usize, path: DoorbellPath) -> Rank {
    Rank::new(team, segments(team, slot), &Cpu::new(), (path, None))
}

/// A device whose atomic operations are not atomic for the host, as with a GPU on PCIe.
struct OverBus(Cpu);

// SAFETY: it forwards to the stream inside and claims less.
unsafe impl MemOpStream for OverBus {
    fn caps(&self) -> MemOpCaps {
        MemOpCaps { host_atomics: false, ..self.0.caps() }
    }

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        self.0.translate(addr, len)
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.submit(ops) }
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        self.0.wait_idle(timeout)
    }
}

#[test]
fn the_layout_is_that_of_the_library() {
    let Some(kernels) = kernels("the_layout_is_that_of_the_library") else { return };
    let mut offsets = [0u64; 64];
    let layout = kernels.get::<unsafe extern "C" fn(*mut u64) -> i32>("layout");
    // SAFETY: room for more than the function writes.
    let count = unsafe { layout(offsets.as_mut_ptr()) };
    let expected = [0, 8, 12, 16, 24, 0, 8, 16, 24, 28, 0, 8, 16, 24, 32, 40, 44, 48, 52, 56, 60];
    assert_eq!(offsets[..count as usize], expected);
}

#[test]
fn every_rank_writes_to_every_rank() {
    let Some(kernels) = kernels("every_rank_writes_to_every_rank") else { return };
    for (size, path, rounds, is_atomic) in [
        (1, DoorbellPath::Direct, 20, true),
        (2, DoorbellPath::Proxy, 20, true),
        (3, DoorbellPath::Direct, 20, false),
        (4, DoorbellPath::Direct, 60, true),
    ] {
        // Few blocks, so that the ring wraps and posts wait for room.
        let shallow = QueuePairConfig::default().send_depth(4).recv_depth(1);
        on_threads(size, &TeamConfig::default().queue_pair(shallow), |team| {
            const SLOT: usize = 500;
            let rank = match is_atomic {
                true => described(team, SLOT, path),
                false => Rank::new(team, segments(team, SLOT), &OverBus(Cpu::new()), (path, None)),
            };
            let job = rank.job(rounds, SLOT, LONG);
            assert_eq!(job.inbox.flags, u32::from(!is_atomic));
            assert_eq!(kernels.run("run_all_to_all", &job), 0, "line of notify.cu; {size} ranks, {path:?}");
            // A rank that has finished would overwrite data that the others may still check.
            team.barrier().unwrap();
            assert_eq!(kernels.run("run_together", &job), 0, "line of notify.cu; {size} ranks, {path:?}");
            // All blocks of both kernels have completed, to each rank.
            for other in 0..size {
                let progress = rank.queue.queue_pair(other).unwrap().progress().unwrap();
                assert_eq!((progress.completed, progress.error), (progress.reserved, None));
                assert!(progress.completed >= 3 * rounds);
            }
            rank.queue.detach_device(LONG).unwrap();
            team.barrier().unwrap();
        });
    }
}

#[test]
fn the_cpu_and_kernels_take_turns_and_talk_to_each_other() {
    let Some(kernels) = kernels("the_cpu_and_kernels_take_turns_and_talk_to_each_other") else { return };
    on_threads(2, &TeamConfig::default(), |team| {
        let (outbox, inbox) = segments(team, 64);
        let (own, other) = (team.rank(), 1 - team.rank());
        for round in 1..30u32 {
            let queue = team.queue(0).unwrap();
            // One side's kernel writes to the other's CPU, which answers; then they swap.
            if round % 2 == own {
                let rank =
                    Rank::new(team, (outbox.clone(), inbox.clone()), &Cpu::new(), (DoorbellPath::Auto, None));
                outbox.write(0, &round.to_le_bytes()).unwrap();
                let request = Request {
                    to_offset: 60,
                    bytes: 4,
                    rank: other,
                    id: 3,
                    value: round,
                    ..Request::default()
                };
                let job = rank.job(0, 0, LONG);
                assert_eq!(kernels.call("call_write_notify", &job, request), Ended::Ok);
                assert_eq!(kernels.waitsome(&job, 0..4, LONG), (Ended::Ok, 1));
                assert_eq!(kernels.reset(&job, 1), (Ended::Ok, u32::MAX));
                let error = queue.notify(other, &inbox, 0, 1).unwrap_err();
                let is_lent = matches!(
                    &error,
                    NotifyError::Post { source: QueueError::State(StateError::DeviceAttached { .. }), .. }
                );
                assert!(is_lent, "{error}");
                rank.queue.detach_device(LONG).unwrap().notify(other, &inbox, 0, round).unwrap();
                rank.queue.detach_device(LONG).unwrap();
                let status = kernels.call("call_notify", &job, request);
                assert_eq!(status, Ended::Failed, "the kernel's turn is over");
            } else {
                inbox.write(0, &vec![notify_rig::GUARD; inbox.len()]).unwrap();
                team.barrier().unwrap();
                assert_eq!(inbox.notify_waitsome(0..4, LONG).unwrap(), Some(3));
                assert_eq!(inbox.notify_reset(3).unwrap(), round);
                let mut bytes = [0; 4];
                inbox.read(60, &mut bytes).unwrap();
                assert_eq!(bytes, round.to_le_bytes());
                queue.notify(other, &inbox, 1, u32::MAX).unwrap();
                assert_eq!(inbox.notify_waitsome(0..1, LONG).unwrap(), Some(0));
                assert_eq!(inbox.notify_reset(0).unwrap(), round);
            }
            queue.flush(LONG).unwrap();
            team.barrier().unwrap();
        }
    });
}

#[test]
fn what_cannot_be_is_refused_and_waits_end() {
    let Some(kernels) = kernels("what_cannot_be_is_refused_and_waits_end") else { return };
    on_threads(1, &TeamConfig::default(), |team| {
        let rank = described(team, 64, DoorbellPath::Direct);
        let job = rank.job(0, 0, LONG);
        let good = Request { bytes: 64, value: 7, ..Request::default() };
        let all = ["call_write", "call_notify", "call_write_notify"];
        let refused = |names: &[&str], job: &Job, request| {
            for name in names {
                assert_eq!(kernels.call(name, job, request), Ended::Invalid, "{name} {request:?}");
            }
        };
        let (writes, notifies) = (["call_write", "call_write_notify"], ["call_notify", "call_write_notify"]);
        refused(&all, &job, Request { rank: 1, ..good });
        refused(&all, &job, Request { rank: u32::MAX, ..good });
        refused(&writes, &job, Request { bytes: 65, ..good });
        refused(&writes, &job, Request { bytes: u64::MAX, ..good });
        refused(&writes, &job, Request { from_offset: 1, ..good });
        refused(&writes, &job, Request { to_offset: 1, ..good });
        refused(&writes, &job, Request { from_offset: u64::MAX, bytes: 1, ..good });
        refused(&writes, &job, Request { to_offset: u64::MAX, bytes: 1, ..good });
        refused(&writes, &job, Request { to_offset: 65, bytes: 0, ..good });
        refused(&notifies, &job, Request { id: 3, ..good });
        refused(&notifies, &job, Request { id: u32::MAX, ..good });
        refused(&notifies, &job, Request { value: 0, ..good });
        let mut other = job;
        other.queue.version += 1;
        refused(&all, &other, good);
        assert_eq!(kernels.quiet_all(&other, LONG), Ended::Invalid);
        assert_eq!(kernels.quiet(&other, 0, LONG), Ended::Invalid);
        other = job;
        other.inbox.version += 1;
        refused(&all, &other, good);
        assert_eq!(kernels.waitsome(&other, 0..1, LONG).0, Ended::Invalid);
        assert_eq!(kernels.reset(&other, 0).0, Ended::Invalid);
        other = job;
        other.outbox.version += 1;
        refused(&writes, &other, good);

        assert_eq!(kernels.waitsome(&job, 0..4, LONG).0, Ended::Invalid);
        let backwards = std::ops::Range { start: 2, end: 1 };
        assert_eq!(kernels.waitsome(&job, backwards, LONG).0, Ended::Invalid);
        assert_eq!(kernels.reset(&job, 3), (Ended::Invalid, u32::MAX));
        assert_eq!(kernels.quiet(&job, 1, LONG), Ended::Invalid);
        assert_eq!(kernels.error(&job, 1), u64::MAX);
        for (ids, timeout) in [(0..3, SHORT), (0..3, Duration::ZERO), (1..1, LONG), (3..3, LONG)] {
            assert_eq!(kernels.waitsome(&job, ids, timeout), (Ended::TimedOut, u32::MAX));
        }
        let progress = rank.queue.queue_pair(0).unwrap().progress().unwrap();
        assert_eq!((progress.reserved, progress.completed), (0, 0), "nothing was posted");

        // Allowed accesses work to the last byte. The lowest notification stays set until it is taken, and is taken once.
        assert_eq!(kernels.call("call_notify", &job, Request { id: 1, value: 9, ..good }), Ended::Ok);
        assert_eq!(kernels.call("call_write_notify", &job, good), Ended::Ok);
        assert_eq!(
            kernels.call("call_write", &job, Request { from_offset: 64, bytes: 0, ..good }),
            Ended::Ok
        );
        assert_eq!((kernels.quiet(&job, 0, LONG), kernels.quiet_all(&job, LONG)), (Ended::Ok, Ended::Ok));
        assert_eq!(kernels.waitsome(&job, 1..2, LONG), (Ended::Ok, 1));
        assert_eq!(kernels.waitsome(&job, 0..2, Duration::ZERO), (Ended::Ok, 0));
        assert_eq!(kernels.waitsome(&job, 0..2, Duration::ZERO), (Ended::Ok, 0));
        assert_eq!((kernels.reset(&job, 0), kernels.reset(&job, 0)), ((Ended::Ok, 7), (Ended::Ok, 0)));
        assert_eq!((kernels.reset(&job, 1), kernels.error(&job, 0)), ((Ended::Ok, 9), 0));
        rank.queue.detach_device(LONG).unwrap();
        assert!(matches!(rank.queue.queue_pair(1).unwrap_err(), NotifyError::Rank { rank: 1, size: 1 }));
    });
}

#[test]
fn a_queue_with_something_prepared_is_not_handed_over() {
    on_threads(2, &TeamConfig::default().timeout(SHORT), |team| {
        let (outbox, inbox) = segments(team, 8);
        let (queue, device) = (team.queue(0).unwrap(), Cpu::new());
        let prepared = queue
            .sends(Operation::Write { from: &outbox.slice(..).unwrap(), rank: 1, to: &inbox, offset: 0 })
            .unwrap();
        let error = queue.attach_device(&device, &DeviceQueueOptions::default()).unwrap_err();
        assert!(matches!(error, NotifyError::Post { rank: 1, .. }), "{error}");
        drop(prepared);
        // On a busy machine, the first flush takes longer than the team waits.
        let attach = || loop {
            match queue.attach_device(&device, &DeviceQueueOptions::default()) {
                Err(NotifyError::TimedOut { .. }) => {}
                attached => break attached,
            }
        };
        let first = attach().unwrap();
        let error = attach().unwrap_err();
        assert!(error.to_string().contains("kernels"), "{error}");
        // Dropped with nothing in flight, the queue is usable again.
        drop(first);
        queue.notify(1 - team.rank(), &inbox, 0, 1).unwrap();
        assert_eq!(inbox.notify_waitsome(0..1, LONG).unwrap(), Some(0));
        queue.flush(LONG).unwrap();
        // One queue pair is attached already: those attached before it are detached again.
        let lent = queue.queue_pair(1).unwrap().attach_device(&device, &Default::default()).unwrap();
        assert!(attach().is_err());
        drop(lent);
        let all = attach().unwrap();
        all.detach_device(LONG).unwrap().flush(LONG).unwrap();
        team.barrier().unwrap();
    });
}

#[test]
fn a_dead_rank_is_told_to_the_kernel_and_then_to_the_cpu() {
    let Some(kernels) = kernels("a_dead_rank_is_told_to_the_kernel_and_then_to_the_cpu") else { return };
    // 4.096 µs * 2^8 * 2.
    let quick = ConnectOptions::default().timeout(8).retry_count(1);
    on_threads(2, &TeamConfig::default().connect(quick), |team| {
        let rank = described(team, 64, DoorbellPath::Direct);
        let job = rank.job(0, 0, LONG);
        if team.rank() == 1 {
            team.queue(0).unwrap().queue_pair(0).unwrap().abort().unwrap();
            team.barrier().unwrap();
            // Waits until rank 0 has seen the failure.
            team.barrier().unwrap();
            return;
        }
        team.barrier().unwrap();
        let request = Request { bytes: 8, rank: 1, id: 0, value: 1, ..Request::default() };
        assert_eq!(kernels.call("call_write_notify", &job, request), Ended::Ok);
        assert_eq!(kernels.call("call_notify", &job, Request { rank: 0, ..request }), Ended::Ok);
        assert_eq!(kernels.quiet_all(&job, LONG), Ended::Failed);
        assert_eq!((kernels.quiet(&job, 0, LONG), kernels.quiet(&job, 1, LONG)), (Ended::Ok, Ended::Failed));
        assert_eq!(kernels.call("call_write_notify", &job, request), Ended::Failed);
        assert_ne!(kernels.error(&job, 1), 0);
        let queue = rank.queue.detach_device(LONG).unwrap();
        // Rank 1 says that it has aborted the connection. That may come before the card has given up.
        let is_lost = |error: &NotifyError| {
            matches!(error, NotifyError::PeerDead { rank: 1, .. } | NotifyError::Failed { rank: 1, .. })
        };
        let error = queue.flush(LONG).unwrap_err();
        assert!(is_lost(&error), "{error}");
        let error = queue.attach_device(&Cpu::new(), &DeviceQueueOptions::default()).unwrap_err();
        assert!(is_lost(&error), "{error}");
        queue.flush_rank(0, LONG).unwrap();
        team.barrier().unwrap();
    });
}

#[test]
fn what_kernels_left_outstanding_is_waited_for_again() {
    let Some(kernels) = kernels("what_kernels_left_outstanding_is_waited_for_again") else { return };
    // The card retries a request to a dead rank for longer than the first wait of the test.
    let patient = ConnectOptions::default().timeout(17).retry_count(1);
    on_threads(2, &TeamConfig::default().connect(patient), |team| {
        let rank = described(team, 64, DoorbellPath::Direct);
        if team.rank() == 1 {
            team.queue(0).unwrap().queue_pair(0).unwrap().abort().unwrap();
            team.barrier().unwrap();
            team.barrier().unwrap();
            return;
        }
        team.barrier().unwrap();
        let job = rank.job(0, 0, LONG);
        let request = Request { bytes: 8, rank: 1, id: 0, value: 1, ..Request::default() };
        assert_eq!(kernels.call("call_write_notify", &job, request), Ended::Ok);
        assert_eq!(kernels.quiet(&job, 1, SHORT), Ended::TimedOut);
        let error = rank.queue.detach_device(SHORT).unwrap_err();
        let NotifyError::AttachOrDetach { rank: 1, source } = error else { panic!("{error}") };
        assert!(matches!(source, DeviceQpError::Outstanding { .. }), "{source}");
        rank.queue.detach_device(LONG).unwrap();
        team.barrier().unwrap();
    });
}

#[test]
fn notified_writes_have_no_races() {
    run_sanitized("notified_writes_have_no_races", "gdsync/tests/device/notify_races.cpp", &["30"]);
}
