//! Failures of peer memory: completions as for a wrong key, and diagnostics that name the client.

use super::*;
use crate::card::port::MTU;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;

const LONG: usize = 5 * MTU as usize;

/// A pair, its events, and memory of the fake GPU on either side.
struct Setting {
    pair: Pair,
    events: mpsc::Receiver<Event>,
    source: Memory,
    target: Memory,
}

impl Setting {
    fn new() -> Self {
        let (sender, events) = mpsc::channel();
        let pair = Pair::on(
            Card::stopped(LinkLayer::InfiniBand, Box::new(move |event| sender.send(event).unwrap())).unwrap(),
            &SIZES,
            1,
            QpChange::default(),
        );
        let source = Memory::new(&pair.card, pair.pdn, LONG, true);
        let target = Memory::new(&pair.card, pair.pdn, LONG, true);
        Setting { pair, events, source, target }
    }

    fn post(&mut self, opcode: Opcode) {
        let (source, target) = (&self.source, &self.target);
        match opcode {
            Opcode::Send => post(&mut self.pair.left, opcode, None, &source.all(LONG)),
            _ => post(&mut self.pair.left, opcode, Some(target.region.remote(0)), &source.all(LONG)),
        }
    }

    fn requester(&mut self) -> (Syndrome, u16) {
        let (opcode, syndrome, index) = error(self.pair.left.cq.poll());
        assert_eq!(opcode, CqeOpcode::RequesterError);
        (syndrome, index)
    }

    fn responder(&mut self) -> Vec<(CqeOpcode, Syndrome, u16)> {
        std::iter::from_fn(|| self.pair.right.cq.poll()).map(|cqe| error(Some(cqe))).collect()
    }

    fn states(&self) -> (QpState, QpState) {
        (self.pair.state(&self.pair.left), self.pair.state(&self.pair.right))
    }

    /// Checks that the only diagnostic concerns that queue pair and names client and reason.
    fn diagnosed(&self, qp: &TestQp, reason: &str) {
        let all = self.pair.card.diagnostics();
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!((all[0].qpn, all[0].field), (Some(qp.qpn), "peer memory"));
        assert!(all[0].message.contains(fake_gpu::NAME) && all[0].message.contains(reason), "{:?}", all[0]);
    }
}

#[test]
fn a_source_that_cannot_be_read_fails_locally_at_any_packet() {
    for opcode in [Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaWriteImm] {
        for good in [0, 1, 4] {
            let mut setting = Setting::new();
            let receives = setting.target.all(LONG);
            setting.pair.right.post_recv(&receives);
            setting.source.gpu().reads_left.store(good, SeqCst);
            setting.post(opcode);
            setting.post(opcode);
            setting.pair.run();
            assert_eq!(setting.requester(), (Syndrome::LocalProtection, 0), "{opcode:?} after {good}");
            assert_eq!(setting.requester(), (Syndrome::WrFlush, 1));
            assert_eq!(setting.states(), (QpState::Err, QpState::Rts));
            assert_eq!(setting.responder(), [], "it has not received the last packet");
            assert_eq!(setting.source.gpu().reads.load(SeqCst) as i64, good + 1);
            setting.diagnosed(&setting.pair.left, "the read has failed");
        }
    }
}

#[test]
fn it_fails_when_its_turn_comes_and_not_before() {
    let mut setting = Setting::new();
    let place = Memory::new(&setting.pair.card, setting.pair.pdn, 64, true);
    // An earlier message is not acknowledged yet.
    let remote = setting.target.region.remote(0);
    for list in [&place.all(64), &setting.source.all(LONG)] {
        let wqe = setting.pair.left.wqe(
            Opcode::RdmaWrite,
            &[remote.as_bytes(), list.as_bytes()],
            CtrlFlags::CQ_UPDATE,
            [0; 4],
        );
        setting.pair.left.head += setting.pair.left.write(&wqe);
    }
    setting.source.gpu().reads_left.store(0, SeqCst);
    setting.pair.left.ring(1);
    setting.pair.run();
    assert_eq!(success(setting.pair.left.cq.poll()), (Opcode::RdmaWrite as u8, 0));
    assert_eq!(setting.requester(), (Syndrome::LocalProtection, 1));
    assert_eq!(setting.states(), (QpState::Err, QpState::Rts));
}

#[test]
fn a_receive_that_cannot_be_written_fails_on_both_sides() {
    for good in [0, 3] {
        let mut setting = Setting::new();
        for _ in 0..2 {
            let receives = setting.target.all(LONG);
            setting.pair.right.post_recv(&receives);
        }
        setting.target.gpu().writes_left.store(good, SeqCst);
        setting.post(Opcode::Send);
        setting.pair.run();
        assert_eq!(setting.requester(), (Syndrome::RemoteOperation, 0));
        let responder = CqeOpcode::ResponderError;
        assert_eq!(
            setting.responder(),
            [(responder, Syndrome::LocalProtection, 0), (responder, Syndrome::WrFlush, 1)]
        );
        assert_eq!(setting.states(), (QpState::Err, QpState::Err));
        setting.diagnosed(&setting.pair.right, "the write has failed");
    }
}

#[test]
fn a_remote_write_that_cannot_be_done_is_refused_as_an_access() {
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaWriteImm] {
        // The last packet takes the receive, unless it fails.
        for good in [0, 4] {
            let mut setting = Setting::new();
            setting.pair.right.post_recv(&[]);
            setting.target.gpu().writes_left.store(good, SeqCst);
            setting.post(opcode);
            setting.pair.run();
            assert_eq!(setting.requester(), (Syndrome::RemoteAccess, 0));
            assert_eq!(setting.responder(), [(CqeOpcode::ResponderError, Syndrome::WrFlush, 0)]);
            assert_eq!(setting.states(), (QpState::Err, QpState::Err));
            let qpn = setting.pair.right.qpn;
            assert!(setting.events.try_iter().any(|event| event == Event::QpAccessError { qpn }));
            setting.diagnosed(&setting.pair.right, "the write has failed");
        }
    }
}

#[test]
fn a_remote_read_that_cannot_be_done_is_refused_as_an_access() {
    for good in [0, 2] {
        let mut setting = Setting::new();
        setting.pair.right.post_recv(&[]);
        // `left` reads the target.
        setting.target.gpu().reads_left.store(good, SeqCst);
        setting.post(Opcode::RdmaRead);
        setting.post(Opcode::RdmaRead);
        setting.pair.run();
        assert_eq!(setting.requester(), (Syndrome::RemoteAccess, 0));
        assert_eq!(setting.requester(), (Syndrome::WrFlush, 1));
        assert_eq!(setting.responder(), [(CqeOpcode::ResponderError, Syndrome::WrFlush, 0)]);
        assert_eq!(setting.states(), (QpState::Err, QpState::Err));
        let qpn = setting.pair.right.qpn;
        let told = setting.events.try_iter().filter(|event| *event == Event::QpAccessError { qpn }).count();
        assert_eq!(told, 1);
        setting.diagnosed(&setting.pair.right, "the read has failed");
    }
}

#[test]
fn what_was_read_but_cannot_be_written_fails_locally() {
    for good in [0, 2] {
        let mut setting = Setting::new();
        setting.source.gpu().writes_left.store(good, SeqCst);
        setting.post(Opcode::RdmaRead);
        setting.pair.run();
        assert_eq!(setting.requester(), (Syndrome::LocalProtection, 0));
        assert_eq!(setting.states().0, QpState::Err);
        setting.diagnosed(&setting.pair.left, "the write has failed");
    }
}

#[test]
fn keys_bounds_and_rights_hold_and_the_client_is_not_asked() {
    let no_local_write = |pair: &Pair| Memory::peer(&pair.card, pair.pdn, 64, Access::REMOTE_READ);
    let no_remote = |pair: &Pair| Memory::peer(&pair.card, pair.pdn, 64, Access::LOCAL_WRITE);
    let (local, remote) = (Syndrome::LocalProtection, Syndrome::RemoteAccess);
    type Made = (Memory, Opcode, DataSeg, Option<RemoteAddrSeg>);
    type Make<'a> = &'a dyn Fn(&Pair) -> Made;
    let cases: [(Make<'_>, Syndrome); 6] = [
        (
            &|pair| {
                let memory = no_remote(pair);
                let data = DataSeg::new(65, memory.region.key, memory.region.at as u64);
                (memory, Opcode::RdmaWrite, data, Some(pair.target.remote(0)))
            },
            local,
        ),
        (
            &|pair| {
                let memory = no_remote(pair);
                let data = DataSeg::new(8, memory.region.key + 1, memory.region.at as u64);
                (memory, Opcode::RdmaWrite, data, Some(pair.target.remote(0)))
            },
            local,
        ),
        (
            &|pair| {
                let memory = no_local_write(pair);
                let data = memory.data(0..8);
                (memory, Opcode::RdmaRead, data, Some(pair.target.remote(0)))
            },
            local,
        ),
        (
            &|pair| {
                let memory = no_local_write(pair);
                let remote = memory.region.remote(0);
                (memory, Opcode::RdmaWrite, pair.source.data(0..8), Some(remote))
            },
            remote,
        ),
        (
            &|pair| {
                let memory = no_remote(pair);
                let remote = memory.region.remote(0);
                (memory, Opcode::RdmaRead, pair.source.data(0..8), Some(remote))
            },
            remote,
        ),
        (
            &|pair| {
                let memory = Memory::new(&pair.card, pair.pdn, 64, true);
                let remote = memory.region.remote(57);
                (memory, Opcode::RdmaWrite, pair.source.data(0..8), Some(remote))
            },
            remote,
        ),
    ];
    for (case, (make, syndrome)) in cases.into_iter().enumerate() {
        let mut pair = Pair::new(4096);
        let (memory, opcode, data, remote) = make(&pair);
        post(&mut pair.left, opcode, remote, &[data]);
        pair.run();
        assert_eq!(error(pair.left.cq.poll()).1, syndrome, "case {case}: {:?}", pair.card.diagnostics());
        assert_eq!(memory.gpu().calls(), 0, "case {case}");
    }
}

#[test]
fn what_a_client_does_not_give_is_not_registered() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let gpu = fake_gpu::allocate(4096);
    let register = |pdn, addr, len| {
        // SAFETY: the memory is never freed.
        unsafe { card.register_memory(&RegionConfig::new(pdn, addr, len, everything())) }
    };
    for (addr, len) in [(gpu.addr, 4097), (gpu.addr - 1, 10), (gpu.addr + 4096, 1), (gpu.addr, u64::MAX)] {
        let refused = register(pdn, addr, len);
        assert!(
            matches!(&refused, Err(CardError::Region(RegionError::Peer { client, error, .. }))
                if client == fake_gpu::NAME && error.reason.contains("leaves")),
            "{refused:?}"
        );
    }
    assert!(matches!(register(pdn, gpu.addr, 0), Err(CardError::Region(RegionError::Invalid(_)))));
    assert!(matches!(register(1, gpu.addr, 1), Err(CardError::NotFound { .. })));
    assert_eq!(gpu.regions.load(SeqCst), 0, "acquired regions are dropped");
    // A part of an allocation, twice.
    let keys = [0, 1].map(|_| register(pdn, gpu.addr + 1, 4095).unwrap());
    assert_eq!(gpu.regions.load(SeqCst), 2);
    card.deregister_memory(keys[0]).unwrap();
    assert_eq!(gpu.regions.load(SeqCst), 1);
    assert!(card.deregister_memory(keys[0]).is_err());
    drop(card);
    assert_eq!(gpu.regions.load(SeqCst), 0);
}

#[test]
fn atomics_on_peer_memory_fail_with_their_client() {
    use gdsync_sys::prm::wqe::AtomicSeg;
    let rights = everything() | Access::REMOTE_ATOMIC;
    for (fails, word) in [(false, 5u64), (true, 4)] {
        let mut pair = Pair::with(&SIZES, 64, QpChange { access: Some(rights), ..QpChange::default() });
        let gpu = Memory::peer(&pair.card, pair.pdn, 8, rights);
        gpu.set(&4u64.to_ne_bytes());
        if fails {
            gpu.gpu().writes_left.store(0, SeqCst);
        }
        let (remote, operands) = (gpu.region.remote(0), AtomicSeg::new(1, 0));
        let result = pair.source.data(0..8);
        pair.left.post(Opcode::AtomicFa, &[remote.as_bytes(), operands.as_bytes(), result.as_bytes()]);
        pair.run();
        if fails {
            assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess);
        } else {
            success(pair.left.cq.poll());
            assert_eq!(pair.source.bytes()[..8], 4u64.to_ne_bytes());
        }
        assert_eq!(pair.diagnosed("peer memory"), fails);
        assert_eq!(gpu.get(), word.to_ne_bytes());
    }
}
