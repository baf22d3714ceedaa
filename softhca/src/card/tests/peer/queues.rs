//! Rings, records and completion entries in peer memory.

use super::*;
use crate::card::config::CqConfig;
use gdsync_sys::prm::doorbell;
use std::sync::atomic::Ordering::SeqCst;

/// Offsets of the parts of a queue pair and its completion queue in one allocation.
const CQES: usize = 0;
const CQ_RECORD: usize = 1024;
const SEND_RING: usize = 2048;
const RECORD: usize = 3072;
const BYTES: usize = 4096;
const ENTRIES: u32 = 16;

struct GpuQp {
    gpu: Arc<Buffer>,
    qpn: u32,
    page: *mut u8,
    head: u32,
}

impl GpuQp {
    fn new(pair: &Pair, collapsed: bool) -> Self {
        let gpu = fake_gpu::allocate(BYTES);
        let mut bytes = gpu.get();
        (0..ENTRIES as usize).for_each(|i| bytes[CQES + i * CQE_SIZE + 63] = OP_OWN_INVALID);
        gpu.set(&bytes);
        let at = |offset: usize| (gpu.addr + offset as u64) as *mut u8;
        let (ring, dbrec) = (at(CQES), at(CQ_RECORD).cast());
        let config =
            CqConfig { ring, entries: ENTRIES, stride: 64, dbrec, ignore_overrun: collapsed, collapsed };
        // SAFETY: the client keeps its memory.
        let cqn = unsafe { pair.card.create_cq(&config) }.unwrap();
        let uar = pair.card.alloc_uar(&[0x800]).unwrap();
        let config = QpConfig {
            pdn: Some(pair.pdn),
            send_cq: Some(cqn),
            recv_cq: Some(cqn),
            uar: Some(uar.id),
            sq: at(SEND_RING),
            sq_blocks: ENTRIES,
            dbrec: at(RECORD).cast(),
            ..QpConfig::new(Transport::Rc)
        };
        // SAFETY: as above.
        let qpn = unsafe { pair.card.create_qp(&config) }.unwrap();
        GpuQp { gpu, qpn, page: uar.page, head: 0 }
    }

    fn store(&self, offset: usize, with: &[u8]) {
        let mut bytes = self.gpu.get();
        bytes[offset..][..with.len()].copy_from_slice(with);
        self.gpu.set(&bytes);
    }

    /// Writes 8 bytes of the source to the target.
    fn write(&mut self, pair: &Pair) {
        let (remote, data) = (pair.target.remote(0), pair.source.data(0..8));
        let ctrl =
            CtrlSeg::new(Opcode::RdmaWrite, self.head as u16, self.qpn, 3, CtrlFlags::CQ_UPDATE, [0; 4]);
        let wqe = [ctrl.as_bytes(), remote.as_bytes(), data.as_bytes()].concat();
        self.store(SEND_RING + (self.head % ENTRIES) as usize * BASIC_BLOCK, &wqe);
        self.head += 1;
        self.store(RECORD + 4, &doorbell::record(self.head).to_ne_bytes());
        // SAFETY: a register of our own page, which is mapped as long as the UAR exists.
        let register = unsafe { AtomicU64::from_ptr(self.page.add(0x800).cast()) };
        register.store(u64::from_ne_bytes(wqe[..8].try_into().unwrap()), Ordering::Release);
        pair.run();
    }

    fn entry(&self, index: usize) -> Cqe64 {
        Cqe64::read_from_bytes(&self.gpu.get()[CQES + index * CQE_SIZE..][..CQE_SIZE]).unwrap()
    }
}

/// Returns a connected queue pair in peer memory.
fn connected(collapsed: bool) -> (Pair, GpuQp) {
    let pair = Pair::new(64);
    pair.source.fill(3);
    let gpu = GpuQp::new(&pair, collapsed);
    let change = |state, more: QpChange| QpChange { state: Some(state), ..more };
    let address = Some(Address { dlid: pair.card.lid(), gid: None });
    let init =
        QpChange { port: Some(1), pkey_index: Some(0), access: Some(everything()), ..QpChange::default() };
    for (qpn, peer) in [(gpu.qpn, pair.right.qpn), (pair.right.qpn, gpu.qpn)] {
        let rtr = QpChange {
            address,
            path_mtu: Some(3),
            dest_qpn: Some(peer),
            rq_psn: Some(0),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(14),
            ..QpChange::default()
        };
        let rts = QpChange {
            sq_psn: Some(0),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..QpChange::default()
        };
        for step in [
            change(QpState::Reset, QpChange::default()),
            change(QpState::Init, init),
            change(QpState::Rtr, rtr),
            change(QpState::Rts, rts),
        ] {
            pair.card.modify_qp(qpn, &step).unwrap();
        }
    }
    (pair, gpu)
}

#[test]
fn queues_in_peer_memory_carry_requests() {
    for collapsed in [false, true] {
        let (pair, mut gpu) = connected(collapsed);
        for n in 0..40usize {
            gpu.write(&pair);
            assert_eq!(pair.target.bytes()[..8], pair.source.bytes()[..8]);
            pair.target.bytes().fill(0);
            let place = if collapsed { 0 } else { n % ENTRIES as usize };
            let (cqe, owner) = (gpu.entry(place), n / ENTRIES as usize % 2 == 1);
            assert_eq!((cqe.opcode(), cqe.wqe_counter()), (Ok(CqeOpcode::Requester), n as u16));
            assert_eq!(cqe.as_bytes()[63] & 1 == 1, owner);
            gpu.store(CQ_RECORD, &doorbell::ci_record(n as u32 + 1).to_ne_bytes());
        }
        assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
        pair.card.destroy_qp(gpu.qpn).unwrap();
    }
}

#[test]
fn queues_whose_client_fails_see_no_work() {
    let (pair, mut gpu) = connected(false);
    gpu.gpu.reads_left.store(0, SeqCst);
    gpu.write(&pair);
    assert!(pair.target.bytes().iter().all(|byte| *byte == 0));
    // Nor is the completion written.
    let (pair, mut gpu) = connected(false);
    gpu.gpu.writes_left.store(0, SeqCst);
    gpu.write(&pair);
    assert_eq!(pair.target.bytes()[..8], pair.source.bytes()[..8]);
    assert_eq!(gpu.entry(0).as_bytes()[63], OP_OWN_INVALID);
    // Rings that leave their allocation fail at each access.
    let small = fake_gpu::allocate(64);
    let (ring, dbrec) = (small.addr as *mut u8, memory(8).cast());
    let config =
        CqConfig { ring, entries: ENTRIES, stride: 64, dbrec, ignore_overrun: false, collapsed: false };
    // SAFETY: the client keeps its memory.
    assert!(unsafe { pair.card.create_cq(&config) }.is_ok());
}
