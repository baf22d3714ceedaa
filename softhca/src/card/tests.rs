//! Tests of the card without its thread: they write WQEs and step the engine.

use super::config::{
    Access, Address, CqConfig, InvalidValue, QpChange, QpConfig, QpState, RegionConfig, ScatterToCqe,
    Transport, WaitRules,
};
use super::device::Card;
use super::engine::Engine;
use super::engine::arrivals::deliver;
use super::error::CardError;
use super::memory::registered::RegionError;
use super::port::LinkLayer;
use super::reports::{Diagnostic, Event, Verdict};
use crate::Speed;
use crate::fabric::{Fabric, PayloadPart};
use crate::packet::Header;
use crate::testing::until;
use gdsync_sys::prm::cqe::{CQE_SIZE, Cqe64, CqeOpcode, OP_OWN_INVALID, Syndrome};
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wqe::{
    BASIC_BLOCK, CtrlFlags, CtrlSeg, DataSeg, InlineSeg, Opcode, RemoteAddrSeg, SEGMENT,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

mod arming;
mod atomics;
mod chaos;
mod checks;
mod connections;
mod datagrams;
mod dc;
mod dead_peers;
mod doorbells;
mod errors;
mod faults;
mod helpers;
mod hostile;
mod hosts;
mod interface;
mod keys;
mod liberties;
mod lost_answers;
mod management;
mod multicast;
mod partitions;
mod peer;
mod scatter;
mod shared_queues;
mod simulation;
mod speeds;
mod stopped_peers;
mod transfers;
mod unmapped;
mod waits;
mod xrc;

/// Returns page-aligned memory that is never freed.
pub(super) fn memory(len: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(len.max(1), 4096).unwrap();
    // SAFETY: the size is not zero.
    unsafe { std::alloc::alloc_zeroed(layout) }
}

pub(super) fn bytes<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: tests borrow memory from `memory`, once at a time, while no step runs.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

fn word<'a>(at: *mut u32, index: usize) -> &'a AtomicU32 {
    // SAFETY: a record of two words, never freed.
    unsafe { AtomicU32::from_ptr(at.add(index)) }
}

pub(super) struct TestCq {
    pub(super) cqn: u32,
    ring: *mut u8,
    entries: u32,
    dbrec: *mut u32,
    pub(super) consumed: u32,
}

impl TestCq {
    pub(super) fn new(card: &Card, entries: u32) -> Self {
        TestCq::with(card, entries, false)
    }

    pub(super) fn with(card: &Card, entries: u32, ignore_overrun: bool) -> Self {
        let (ring, dbrec) = (memory(entries as usize * CQE_SIZE), memory(8).cast::<u32>());
        for entry in bytes(ring, entries as usize * CQE_SIZE).chunks_mut(CQE_SIZE) {
            entry[63] = OP_OWN_INVALID;
        }
        let config = CqConfig { ring, entries, stride: 64, dbrec, ignore_overrun, collapsed: false };
        // SAFETY: the memory is never freed.
        let cqn = unsafe { card.create_cq(&config) }.unwrap();
        TestCq { cqn, ring, entries, dbrec, consumed: 0 }
    }

    /// Returns the next entry, without consuming it.
    pub(super) fn peek(&self) -> Option<Cqe64> {
        let offset = (self.consumed & (self.entries - 1)) as usize * CQE_SIZE;
        // The word with the owner bit is read first: an engine's thread may be writing the entry.
        let last = word(self.ring.cast(), (offset + 60) / 4).load(Ordering::Acquire).to_ne_bytes()[3];
        let owner = (self.consumed >> self.entries.trailing_zeros()) & 1 == 1;
        if (last & 1 == 1) != owner || last >> 4 == CqeOpcode::Invalid as u8 {
            return None;
        }
        Some(
            Cqe64::read_from_bytes(&bytes(self.ring, self.entries as usize * CQE_SIZE)[offset..][..64])
                .unwrap(),
        )
    }

    pub(super) fn poll(&mut self) -> Option<Cqe64> {
        let cqe = self.peek()?;
        self.consumed += 1;
        word(self.dbrec, 0).store(doorbell::ci_record(self.consumed), Ordering::Release);
        Some(cqe)
    }

    /// Returns the next entry, written by the thread of a card.
    pub(super) fn wait(&mut self) -> Cqe64 {
        until("a completion", || self.poll())
    }
}

pub(super) struct TestQp {
    pub(super) qpn: u32,
    pub(super) cq: TestCq,
    sq: *mut u8,
    blocks: u32,
    rq: *mut u8,
    entries: u32,
    stride: u32,
    pub(super) dbrec: *mut u32,
    pub(super) page: *mut u8,
    pub(super) head: u32,
    pub(super) received: u32,
}

pub(super) struct Sizes {
    pub(super) blocks: u32,
    pub(super) recv_segments: u32,
    pub(super) cqes: u32,
}

pub(super) const SIZES: Sizes = Sizes { blocks: 16, recv_segments: 4, cqes: 64 };

impl TestQp {
    pub(super) fn new(card: &Card, pdn: u32, sizes: &Sizes) -> Self {
        TestQp::with(card, pdn, sizes, |_| {})
    }

    /// Returns a queue pair whose configuration `change` has changed.
    pub(super) fn with(card: &Card, pdn: u32, sizes: &Sizes, change: impl FnOnce(&mut QpConfig)) -> Self {
        let cq = TestCq::new(card, sizes.cqes);
        let uar = card.alloc_uar(&[0x800]).unwrap();
        let (blocks, entries, stride) = (sizes.blocks, 16, recv_stride(sizes.recv_segments));
        let (sq, rq) = (memory(blocks as usize * BASIC_BLOCK), memory((entries * stride) as usize));
        let dbrec = memory(8).cast::<u32>();
        let mut config = QpConfig {
            pdn: Some(pdn),
            send_cq: Some(cq.cqn),
            recv_cq: Some(cq.cqn),
            uar: Some(uar.id),
            sq,
            sq_blocks: blocks,
            rq,
            rq_entries: entries,
            rq_stride: stride,
            dbrec,
            ..QpConfig::new(Transport::Rc)
        };
        change(&mut config);
        // SAFETY: the memory is never freed.
        let qpn = unsafe { card.create_qp(&config) }.unwrap();
        TestQp { qpn, cq, sq, blocks, rq, entries, stride, dbrec, page: uar.page, head: 0, received: 0 }
    }

    /// Connects it to a peer, and moves it to RTS.
    pub(super) fn connect(&self, card: &Card, peer: u32, dlid: u16, with: QpChange) {
        let init = QpChange {
            state: Some(QpState::Init),
            pkey_index: with.pkey_index.or(Some(0)),
            port: Some(1),
            access: Some(with.access.unwrap_or(Access::REMOTE_READ | Access::REMOTE_WRITE)),
            ..QpChange::default()
        };
        card.modify_qp(self.qpn, &init).unwrap();
        let rtr = QpChange {
            state: Some(QpState::Rtr),
            address: with.address.or(Some(Address { dlid, gid: None })),
            path_mtu: Some(5),
            dest_qpn: Some(peer),
            rq_psn: Some(with.rq_psn.unwrap_or(0)),
            max_dest_rd_atomic: Some(4),
            // 1.28 ms: longer than a step takes, under a sanitizer, too. A shorter timer never lets the card rest.
            min_rnr_timer: Some(with.min_rnr_timer.unwrap_or(14)),
            ordering: with.ordering,
            ..QpChange::default()
        };
        card.modify_qp(self.qpn, &rtr).unwrap();
        let rts = QpChange {
            state: Some(QpState::Rts),
            timeout: Some(with.timeout.unwrap_or(14)),
            retry_cnt: Some(with.retry_cnt.unwrap_or(7)),
            rnr_retry: Some(with.rnr_retry.unwrap_or(7)),
            sq_psn: Some(with.sq_psn.unwrap_or(0)),
            max_rd_atomic: Some(4),
            ..QpChange::default()
        };
        card.modify_qp(self.qpn, &rts).unwrap();
    }

    /// Writes bytes to the send ring from the head on, without moving the head. Returns the number of blocks.
    pub(super) fn write(&self, wqe: &[u8]) -> u32 {
        for (i, piece) in wqe.chunks(BASIC_BLOCK).enumerate() {
            let block = (self.head + i as u32) & (self.blocks - 1);
            bytes(self.sq, self.blocks as usize * BASIC_BLOCK)[block as usize * BASIC_BLOCK..][..piece.len()]
                .copy_from_slice(piece);
        }
        wqe.len().div_ceil(BASIC_BLOCK) as u32
    }

    /// Returns the bytes of the WQE at the head of the ring.
    pub(super) fn wqe(&self, opcode: Opcode, segments: &[&[u8]], flags: CtrlFlags, imm: [u8; 4]) -> Vec<u8> {
        let body = segments.concat();
        let ds = (SEGMENT + body.len()).div_ceil(SEGMENT) as u8;
        let mut wqe = CtrlSeg::new(opcode, self.head as u16, self.qpn, ds, flags, imm).as_bytes().to_vec();
        wqe.extend_from_slice(&body);
        wqe
    }

    /// Announces the entries up to the head, and rings.
    pub(super) fn ring(&self, first_of_last: u32) {
        word(self.dbrec, doorbell::DBR_SEND).store(doorbell::record(self.head), Ordering::Release);
        let block = (first_of_last & (self.blocks - 1)) as usize * BASIC_BLOCK;
        let start = &bytes(self.sq, self.blocks as usize * BASIC_BLOCK)[block..][..8];
        self.store_doorbell(u64::from_ne_bytes(start.try_into().unwrap()));
    }

    pub(super) fn store_doorbell(&self, value: u64) {
        // SAFETY: a register of our own page, which is mapped as long as the UAR exists.
        unsafe { AtomicU64::from_ptr(self.page.add(0x800).cast()) }.store(value, Ordering::Release);
    }

    pub(super) fn post_wqe(&mut self, wqe: &[u8]) {
        let first = self.head;
        self.head += self.write(wqe);
        self.ring(first);
    }

    pub(super) fn post(&mut self, opcode: Opcode, segments: &[&[u8]]) {
        let wqe = self.wqe(opcode, segments, CtrlFlags::CQ_UPDATE, [0; 4]);
        self.post_wqe(&wqe);
    }

    pub(super) fn post_recv(&mut self, segments: &[DataSeg]) {
        let offset = ((self.received & (self.entries - 1)) * self.stride) as usize;
        let mut entry = segments.as_bytes().to_vec();
        if entry.len() < self.stride as usize {
            entry.extend_from_slice(DataSeg::terminator().as_bytes());
        }
        bytes(self.rq, (self.entries * self.stride) as usize)[offset..][..entry.len()]
            .copy_from_slice(&entry);
        self.received += 1;
        word(self.dbrec, doorbell::DBR_RECV).store(doorbell::record(self.received), Ordering::Release);
    }
}

fn recv_stride(segments: u32) -> u32 {
    gdsync_sys::prm::recv::stride(segments)
}

/// Two queue pairs of one card, connected to each other, and two regions.
pub(super) struct Pair {
    pub(super) card: Card,
    pub(super) pdn: u32,
    pub(super) left: TestQp,
    pub(super) right: TestQp,
    pub(super) source: Region,
    pub(super) target: Region,
}

#[derive(Clone, Copy)]
pub(super) struct Region {
    pub(super) at: *mut u8,
    pub(super) len: usize,
    pub(super) key: u32,
}

impl Region {
    pub(super) fn new(card: &Card, pdn: u32, len: usize, access: Access) -> Self {
        let at = memory(len);
        let config = RegionConfig::new(pdn, at as u64, len as u64, access);
        // SAFETY: the memory is never freed.
        let key = unsafe { card.register_memory(&config) }.unwrap();
        Region { at, len, key }
    }

    pub(super) fn data(&self, range: std::ops::Range<usize>) -> DataSeg {
        DataSeg::new(range.len() as u32, self.key, self.at as u64 + range.start as u64)
    }

    pub(super) fn remote(&self, offset: usize) -> RemoteAddrSeg {
        RemoteAddrSeg::new(self.at as u64 + offset as u64, self.key)
    }

    pub(super) fn bytes<'a>(&self) -> &'a mut [u8] {
        bytes(self.at, self.len)
    }

    pub(super) fn fill(&self, seed: usize) {
        self.bytes().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + i / 251 + seed) as u8);
    }
}

pub(super) fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
}

impl Pair {
    pub(super) fn with(sizes: &Sizes, len: usize, change: QpChange) -> Self {
        Pair::on(
            Card::stopped(LinkLayer::InfiniBand, Box::new(|event| tracing::info!(?event))).unwrap(),
            sizes,
            len,
            change,
        )
    }

    pub(super) fn on(card: Card, sizes: &Sizes, len: usize, change: QpChange) -> Self {
        let pdn = card.alloc_pd().unwrap();
        let (left, right) = (TestQp::new(&card, pdn, sizes), TestQp::new(&card, pdn, sizes));
        left.connect(&card, right.qpn, card.lid(), change);
        let mirrored = QpChange { sq_psn: change.rq_psn, rq_psn: change.sq_psn, ..change };
        right.connect(&card, left.qpn, card.lid(), mirrored);
        let source = Region::new(&card, pdn, len, everything());
        let target = Region::new(&card, pdn, len, everything());
        Pair { card, pdn, left, right, source, target }
    }

    pub(super) fn new(len: usize) -> Self {
        Pair::with(&SIZES, len, QpChange::default())
    }

    /// Steps the card until it has nothing to do.
    pub(super) fn run(&self) {
        run(&self.card);
    }

    pub(super) fn diagnosed(&self, field: &str) -> bool {
        self.card.diagnostics().iter().any(|diagnostic| diagnostic.field == field)
    }

    pub(super) fn state(&self, qp: &TestQp) -> QpState {
        self.card.query_qp(qp.qpn).unwrap().state
    }
}

/// Delivers a packet as if the card had sent it to itself. Returns the queue pairs that it was delivered to.
pub(super) fn inject(engine: &mut Engine, header: &Header, payload: &[PayloadPart]) -> Option<u32> {
    let node = engine.resources.port.node();
    let mut touched = Vec::new();
    engine.with_qps(|qps, context| deliver(qps, node, header, payload, context, &mut touched));
    touched.first().copied()
}

/// Steps a card until it has nothing to do.
pub(super) fn run(card: &Card) {
    let mut engine = card.shared.engine.lock();
    for _ in 0..1_000_000 {
        if !engine.step(Instant::now()) {
            card.shared.deliver_events(engine);
            return;
        }
    }
    panic!("the card does not come to rest");
}

/// Returns opcode and counter of a requester's successful completion.
pub(super) fn success(cqe: Option<Cqe64>) -> (u8, u16) {
    let cqe = cqe.expect("a completion");
    assert_eq!(cqe.opcode(), Ok(CqeOpcode::Requester), "{cqe}");
    (cqe.wqe_opcode(), cqe.wqe_counter())
}

/// The vendor syndromes that users of ConnectX cards have seen with a syndrome.
const VENDOR_SYNDROMES: [(Syndrome, u8); 9] = [
    (Syndrome::LocalLength, 0x8e),
    (Syndrome::LocalQpOperation, 0x68),
    (Syndrome::LocalProtection, 0x51),
    (Syndrome::WrFlush, 0xf9),
    (Syndrome::RemoteInvalidRequest, 0x8a),
    (Syndrome::RemoteAccess, 0x88),
    (Syndrome::RemoteOperation, 0x89),
    (Syndrome::RetryExceeded, 0x81),
    (Syndrome::RnrRetryExceeded, 0x87),
];

pub(super) fn error(cqe: Option<Cqe64>) -> (CqeOpcode, Syndrome, u16) {
    let cqe = cqe.expect("a completion");
    assert!(cqe.is_error(), "{cqe}");
    let vendor = VENDOR_SYNDROMES.iter().find(|(syndrome, _)| cqe.syndrome() == Ok(*syndrome));
    assert_eq!(cqe.vendor_syndrome(), vendor.map_or(0, |(_, vendor)| *vendor), "{cqe}");
    (cqe.opcode().unwrap(), cqe.syndrome().unwrap(), cqe.wqe_counter())
}

pub(super) fn inline(data: &[u8]) -> Vec<u8> {
    let mut segment = InlineSeg::new(data.len() as u32).as_bytes().to_vec();
    segment.extend_from_slice(data);
    segment
}
