//! Memory that the CPU cannot dereference, registered and used through the table of entry points, by one
//! process and by two.

use crate::verbs_bed::*;
use gdsync_sys::prm::cqe::{CqeOpcode, Syndrome};
use gdsync_sys::prm::doorbell::ci_record;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, Opcode, RemoteAddrSeg};
use gdsync_sys::verbs::*;
use gdsync_test_support::fake_gpu::{self, Buffer};
use gdsync_test_support::process::{again, role};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use zerocopy::IntoBytes;

const ALL_ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
/// The role of `child_process`.
const RESPONDER: &str = "responder";
/// Many packets, and a rest.
const SIZE: usize = (3 << 20) + 77;

fn reg_mr(bed: &Bed, addr: u64, len: usize, access: u32) -> *mut ibv_mr {
    clear_errno();
    // SAFETY: the fake GPU's allocations are never freed; refused memory is not accessed.
    unsafe { (api().reg_mr)(bed.pd, addr as *mut _, len, access as libc::c_int) }
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..SIZE).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

/// A queue pair, its completion queue, and registered memory of the fake GPU.
struct Side {
    bed: Bed,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    gpu: Arc<Buffer>,
    posted: u32,
    completed: u32,
}

impl Side {
    fn new() -> Self {
        let bed = Bed::new();
        let cq = bed.cq(15);
        let qp = bed.qp(cq);
        let gpu = fake_gpu::allocate(SIZE);
        let mr = reg_mr(&bed, gpu.addr, SIZE, ALL_ACCESS);
        assert!(!mr.is_null(), "errno {}", errno());
        Side { bed, cq, qp, mr, gpu, posted: 0, completed: 0 }
    }

    fn key(&self) -> u32 {
        // SAFETY: registered.
        unsafe { (*self.mr).rkey }
    }

    fn data(&self) -> DataSeg {
        DataSeg::new(SIZE as u32, self.key(), self.gpu.addr)
    }

    fn post(&mut self, opcode: Opcode, remote: Option<RemoteAddrSeg>) {
        let mut segments = remote.map(|remote| remote.as_bytes().to_vec()).unwrap_or_default();
        segments.extend(self.data().as_bytes());
        let ds = 1 + segments.len() as u8 / 16;
        let ctrl = CtrlSeg::new(opcode, self.posted as u16, qpn(self.qp), ds, CtrlFlags::CQ_UPDATE, [7; 4]);
        send(&describe_qp(self.qp), self.posted, ctrl, &segments);
        self.posted += 1;
    }

    fn post_receive(&self, index: u32) {
        let list = [self.data(), DataSeg::terminator()];
        receive(&describe_qp(self.qp), index, list.as_bytes());
    }

    fn wait(&mut self) -> gdsync_sys::prm::cqe::Cqe64 {
        let entries = describe_cq(self.cq);
        let cqe = completion(&entries, self.completed);
        self.completed += 1;
        // SAFETY: the queue's consumer index.
        unsafe { entries.dbrec.write_volatile(ci_record(self.completed)) };
        cqe
    }

    fn succeeds(&mut self, expected: CqeOpcode) {
        let cqe = self.wait();
        assert_eq!(cqe.opcode(), Ok(expected), "{cqe}");
    }

    fn close(self) {
        destroy_qp(self.qp);
        destroy_cq(self.cq);
        assert_eq!(self.gpu.regions.load(SeqCst), 1);
        deregister(self.mr);
        assert_eq!(self.gpu.regions.load(SeqCst), 0, "given back");
        self.bed.close();
    }
}

#[test]
fn registration_asks_the_client_first() {
    let bed = Bed::new();
    let gpu = fake_gpu::allocate(8192);
    for (addr, len) in [(gpu.addr, 8193), (gpu.addr - 1, 2), (gpu.addr + 8192, 1)] {
        assert!(reg_mr(&bed, addr, len, ALL_ACCESS).is_null());
        assert_eq!(errno(), libc::EFAULT);
    }
    assert!(reg_mr(&bed, gpu.addr, 0, ALL_ACCESS).is_null());
    assert_eq!((errno(), gpu.regions.load(SeqCst)), (libc::EINVAL, 0));
    let mr = reg_mr(&bed, gpu.addr + 5, 8000, IBV_ACCESS_REMOTE_READ);
    assert_eq!(gpu.regions.load(SeqCst), 1);
    deregister(mr);
    assert_eq!((gpu.regions.load(SeqCst), gpu.calls()), (0, 0));
    // The host's memory belongs to no client.
    let mut memory = vec![0; 64];
    deregister(bed.register(&mut memory, ALL_ACCESS));
    bed.close();
}

#[test]
fn a_message_in_one_process() {
    let (mut left, mut right) = (Side::new(), Side::new());
    connect(left.qp, qpn(right.qp), right.bed.lid());
    connect(right.qp, qpn(left.qp), left.bed.lid());
    left.gpu.set(&pattern(1));
    right.post_receive(0);
    left.post(Opcode::Send, None);
    left.succeeds(CqeOpcode::Requester);
    right.succeeds(CqeOpcode::RespSend);
    assert!(right.gpu.get() == pattern(1));
    left.close();
    right.close();
}

/// Runs in the process that `messages_between_two_processes` starts: the responder, which follows the
/// commands on its input.
#[test]
fn child_process() {
    if role().is_none_or(|role| role != RESPONDER) {
        return;
    }
    let mut side = Side::new();
    side.gpu.set(&pattern(2));
    // The test harness prints as well: the prefix marks our lines.
    let say = |words: std::fmt::Arguments<'_>| println!("\nCHILD {words}");
    say(format_args!("{} {} {} {}", side.bed.lid(), qpn(side.qp), side.gpu.addr, side.key()));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["connect", lid, peer] => connect(side.qp, peer.parse().unwrap(), lid.parse().unwrap()),
            ["receive", index] => side.post_receive(index.parse().unwrap()),
            ["received", seed] => {
                side.succeeds(CqeOpcode::RespSend);
                assert!(side.gpu.get() == pattern(seed.parse().unwrap()));
            }
            ["holds", seed] => assert!(side.gpu.get() == pattern(seed.parse().unwrap())),
            ["break", left] => side.gpu.writes_left.store(left.parse().unwrap(), SeqCst),
            ["fails"] => {
                let cqe = side.wait();
                assert_eq!(cqe.syndrome(), Ok(Syndrome::LocalProtection), "{cqe}");
                assert_eq!(query(side.qp).0.qp_state, IBV_QPS_ERR);
            }
            _ => panic!("{line}"),
        }
        say(format_args!("done"));
    }
    side.close();
}

#[test]
fn messages_between_two_processes() {
    let mut child = again(module_path!(), "child_process", RESPONDER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut hear = || loop {
        let line = lines.next().expect("the child lives").unwrap();
        if let Some(words) = line.strip_prefix("CHILD ") {
            return words.to_owned();
        }
    };
    let words = hear();
    let numbers: Vec<u64> = words.split(' ').map(|word| word.parse().unwrap()).collect();
    let [lid, peer, addr, key] = numbers[..] else { panic!("{words}") };
    let mut tell = |words: &str| {
        writeln!(input, "{words}").unwrap();
        assert_eq!(hear(), "done");
    };
    let mut side = Side::new();
    let remote = RemoteAddrSeg::new(addr, key as u32);
    connect(side.qp, peer as u32, lid as u16);
    tell(&format!("connect {} {}", side.bed.lid(), qpn(side.qp)));

    side.post(Opcode::RdmaRead, Some(remote));
    side.succeeds(CqeOpcode::Requester);
    assert!(side.gpu.get() == pattern(2));

    side.gpu.set(&pattern(3));
    side.post(Opcode::RdmaWrite, Some(remote));
    side.succeeds(CqeOpcode::Requester);
    tell("holds 3");

    tell("receive 0");
    side.gpu.set(&pattern(4));
    side.post(Opcode::Send, None);
    side.succeeds(CqeOpcode::Requester);
    tell("received 4");

    // Ten packets arrive, then the child's client fails.
    tell("break 10");
    tell("receive 1");
    side.post(Opcode::Send, None);
    let cqe = side.wait();
    assert_eq!(cqe.syndrome(), Ok(Syndrome::RemoteOperation), "{cqe}");
    assert_eq!(query(side.qp).0.qp_state, IBV_QPS_ERR);
    tell("fails");

    drop(input);
    assert!(child.wait().unwrap().success());
    side.close();
}
