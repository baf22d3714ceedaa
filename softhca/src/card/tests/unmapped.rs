//! Memory that a program unmaps or protects while it is registered or used by a queue.

use super::dead_peers::{card, run_both};
use super::*;
use crate::card::change_mappings;
use gdsync_sys::prm::wqe::AtomicSeg;

const PAGE: usize = 4096;
const LEN: usize = 4 * PAGE;

fn atomic() -> Access {
    everything() | Access::REMOTE_ATOMIC
}

/// Registers pages of their own mapping.
fn region(card: &Card, pdn: u32) -> Region {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let config = RegionConfig::new(pdn, at as u64, LEN as u64, atomic());
    // SAFETY: the card alone uses the memory after it is unmapped.
    let key = unsafe { card.register_memory(&config) }.unwrap();
    Region { at: at.cast(), len: LEN, key }
}

/// Leaves inaccessible memory in place of a page, which no other mapping of the tests' threads takes.
fn unmap(region: &Region, page: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let at = region.at.wrapping_add(page * PAGE).cast();
    // SAFETY: a page of the test's own mapping, to which nothing refers.
    unsafe {
        assert_eq!(libc::mmap(at, PAGE, libc::PROT_NONE, flags, -1, 0), at);
        // Beyond the end of a file: the kernel cannot access it for the card either.
        let file = libc::memfd_create(c"empty".as_ptr(), 0);
        assert_eq!(libc::mmap(at, PAGE, libc::PROT_READ, libc::MAP_SHARED | libc::MAP_FIXED, file, 0), at);
        libc::close(file);
    }
}

fn protect(region: &Region, access: libc::c_int) {
    // SAFETY: the test's own mapping, to which nothing refers.
    assert_eq!(unsafe { libc::mprotect(region.at.cast(), LEN, access) }, 0);
}

fn pair() -> Pair {
    let change = QpChange { access: Some(atomic()), ..QpChange::default() };
    let mut pair = Pair::with(&SIZES, LEN, change);
    (pair.source, pair.target) = (region(&pair.card, pair.pdn), region(&pair.card, pair.pdn));
    pair.source.fill(3);
    pair
}

fn post(pair: &mut Pair, opcode: Opcode) {
    let (remote, data) = (pair.target.remote(0), pair.source.data(0..LEN));
    pair.left.post(opcode, &[remote.as_bytes(), data.as_bytes()]);
    pair.run();
}

fn messages(card: &Card) -> Vec<String> {
    card.diagnostics().into_iter().map(|diagnostic| diagnostic.message).collect()
}

#[test]
fn a_write_is_lost_where_memory_is_gone_and_arrives_elsewhere() {
    let mut pair = pair();
    unmap(&pair.target, 1);
    post(&mut pair, Opcode::RdmaWrite);
    success(pair.left.cq.poll());
    // SAFETY: two mapped pages, which nothing changes meanwhile.
    let written = unsafe { std::slice::from_raw_parts(pair.target.at.add(2 * PAGE), 2 * PAGE) };
    assert_eq!(written, &pair.source.bytes()[2 * PAGE..]);
    post(&mut pair, Opcode::RdmaWrite);
    success(pair.left.cq.poll());
    let messages = messages(&pair.card);
    let named =
        format!("They belong to key {:#x}: {LEN} bytes at {:#x}", pair.target.key, pair.target.at as u64);
    assert_eq!(messages.len(), 1, "once for a region: {messages:?}");
    assert!(messages[0].contains(&named) && messages[0].contains("r--s"), "{messages:?}");
}

#[test]
fn a_receive_into_memory_that_is_gone_completes() {
    let mut pair = pair();
    (0..4).for_each(|page| unmap(&pair.target, page));
    pair.right.post_recv(&[pair.target.data(0..LEN)]);
    let data = pair.source.data(0..LEN);
    pair.left.post(Opcode::Send, &[data.as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(pair.right.cq.poll().unwrap().byte_count() as usize, LEN);
}

#[test]
fn a_send_from_memory_that_is_gone_is_a_local_protection_error() {
    let mut pair = pair();
    unmap(&pair.source, 3);
    post(&mut pair, Opcode::RdmaWrite);
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalProtection);
    let messages = messages(&pair.card);
    assert!(
        messages.iter().any(|text| text.contains(&format!("key {:#x}", pair.source.key))),
        "{messages:?}"
    );
}

#[test]
fn a_read_or_an_atomic_of_memory_that_is_gone_is_a_remote_access_error() {
    let mut reads = pair();
    unmap(&reads.target, 2);
    post(&mut reads, Opcode::RdmaRead);
    assert_eq!(error(reads.left.cq.poll()).1, Syndrome::RemoteAccess);
    let mut pair = pair();
    unmap(&pair.target, 0);
    let (remote, result) = (pair.target.remote(8), pair.source.data(0..8));
    pair.left
        .post(Opcode::AtomicFa, &[remote.as_bytes(), AtomicSeg::new(1, 0).as_bytes(), result.as_bytes()]);
    pair.run();
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess);
}

#[test]
fn protection_does_not_stop_the_card() {
    for access in [libc::PROT_READ, libc::PROT_NONE] {
        let mut pair = pair();
        pair.target.fill(9);
        protect(&pair.target, access);
        protect(&pair.source, access);
        post(&mut pair, Opcode::RdmaWrite);
        success(pair.left.cq.poll());
        let (remote, result) = (pair.target.remote(8), pair.source.data(0..8));
        let add = AtomicSeg::new(1, 0);
        pair.left.post(Opcode::AtomicFa, &[remote.as_bytes(), add.as_bytes(), result.as_bytes()]);
        pair.run();
        success(pair.left.cq.poll());
        for region in [&pair.target, &pair.source] {
            protect(region, libc::PROT_READ | libc::PROT_WRITE);
        }
        let word =
            |region: &Region, at: usize| u64::from_ne_bytes(region.bytes()[at..at + 8].try_into().unwrap());
        assert_eq!(word(&pair.target, 8), word(&pair.source, 8) + 1);
        assert_eq!(word(&pair.source, 0), word(&pair.source, 8));
        assert_eq!(pair.target.bytes()[16..], pair.source.bytes()[16..]);
        assert!(messages(&pair.card).is_empty());
    }
}

/// The addresses of pages of a region.
fn range(region: &Region, pages: std::ops::Range<usize>) -> std::ops::Range<u64> {
    let at = |page| region.at as u64 + (page * PAGE) as u64;
    at(pages.start)..at(pages.end)
}

/// Unmaps a range, as a front end does that sees the call.
fn unmap_by_call(card: &Card, range: &std::ops::Range<u64>) {
    // SAFETY: the test's own mapping, to which nothing refers.
    unsafe {
        change_mappings(std::iter::once(card), std::slice::from_ref(range), &(0..0), || {
            let len = (range.end - range.start) as usize;
            (libc::munmap(range.start as *mut libc::c_void, len) == 0).then_some(0)
        });
    }
}

#[test]
fn reported_changes_leave_the_card_its_pages() {
    let mut pair = pair();
    let card = || std::iter::once(&pair.card);
    // The program moves its first two pages, and maps other memory in place of the last one.
    let flags = libc::PROT_READ | libc::PROT_WRITE;
    let own = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let (mut moved, last) = (std::ptr::null_mut(), range(&pair.target, 3..4));
    // SAFETY: the test's own mappings, to which nothing refers.
    unsafe {
        change_mappings(card(), &[], &range(&pair.target, 0..2), || {
            moved = libc::mremap(pair.target.at.cast(), 2 * PAGE, 3 * PAGE, libc::MREMAP_MAYMOVE);
            Some(moved as u64)
        });
        change_mappings(card(), std::slice::from_ref(&last), &(0..0), || {
            Some(libc::mmap(last.start as *mut libc::c_void, PAGE, flags, own, -1, 0) as u64)
        });
    }
    let last = last.start as *const libc::c_void;
    // The source is unmapped, in two steps.
    for pages in [1..4, 0..1] {
        unmap_by_call(&pair.card, &range(&pair.source, pages));
    }
    let expected: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251 + 3) as u8).collect();
    post(&mut pair, Opcode::RdmaWrite);
    success(pair.left.cq.poll());
    // SAFETY: mapped pages of the test, which nothing changes meanwhile.
    let (first, third, last) = unsafe {
        let bytes = |at: *const libc::c_void, len| std::slice::from_raw_parts(at.cast::<u8>(), len);
        (bytes(moved, 2 * PAGE), bytes(pair.target.at.add(2 * PAGE).cast(), PAGE), bytes(last, PAGE))
    };
    assert_eq!((first, third), (&expected[..2 * PAGE], &expected[2 * PAGE..3 * PAGE]));
    assert!(last.iter().all(|byte| *byte == 0), "other memory is not written");
    // The card still has all of the bytes.
    let back = region(&pair.card, pair.pdn);
    pair.left.post(Opcode::RdmaRead, &[pair.target.remote(0).as_bytes(), back.data(0..LEN).as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    assert!(back.bytes() == expected && messages(&pair.card).is_empty());
    // Moved memory is followed again.
    unmap_by_call(&pair.card, &(moved as u64..moved as u64 + 3 * PAGE as u64));
    pair.left.post(Opcode::RdmaRead, &[pair.target.remote(7).as_bytes(), back.data(0..LEN - 7).as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(back.bytes()[..LEN - 7], expected[7..]);
    pair.card.deregister_memory(pair.target.key).unwrap();
    assert_eq!(pair.card.shared.used.within(&(0..u64::MAX)).len(), 3, "two of the pair, and the last one");
}

#[test]
fn a_change_that_the_system_refuses_changes_nothing() {
    let mut pair = pair();
    let all = range(&pair.target, 0..4);
    pair.target.fill(8);
    let before = pair.target.bytes().to_vec();
    // SAFETY: nothing is changed.
    unsafe { change_mappings(std::iter::once(&pair.card), std::slice::from_ref(&all), &all, || None) };
    assert!(pair.target.bytes() == before, "the program still has its bytes");
    post(&mut pair, Opcode::RdmaWrite);
    success(pair.left.cq.poll());
    assert!(pair.target.bytes() == pair.source.bytes(), "and the card writes to them");
}

#[test]
fn between_two_cards_each_side_learns_of_its_own_memory() {
    let (here, there) = (card(), card());
    let [pdn, other_pdn] = [&here, &there].map(|card| card.alloc_pd().unwrap());
    let connect = || {
        let (left, right) = (TestQp::new(&here, pdn, &SIZES), TestQp::new(&there, other_pdn, &SIZES));
        left.connect(&here, right.qpn, there.lid(), QpChange::default());
        right.connect(&there, left.qpn, here.lid(), QpChange::default());
        (left, right)
    };
    let (source, target) = (region(&here, pdn), region(&there, other_pdn));
    unmap(&target, 1);
    for (opcode, ends) in [(Opcode::RdmaWrite, None), (Opcode::RdmaRead, Some(Syndrome::RemoteAccess))] {
        let (mut left, _right) = connect();
        let (remote, data) = (target.remote(0), source.data(0..LEN));
        left.post(opcode, &[remote.as_bytes(), data.as_bytes()]);
        run_both(&here, Some(&there), || left.cq.peek().is_some());
        match ends {
            None => _ = success(left.cq.poll()),
            Some(syndrome) => assert_eq!(error(left.cq.poll()).1, syndrome),
        }
    }
    unmap(&source, 0);
    let (mut left, _right) = connect();
    left.post(Opcode::RdmaWrite, &[target.remote(0).as_bytes(), source.data(0..LEN).as_bytes()]);
    run_both(&here, Some(&there), || left.cq.peek().is_some());
    assert_eq!(error(left.cq.poll()).1, Syndrome::LocalProtection);
}
