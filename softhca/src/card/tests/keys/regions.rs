//! Regions: null, on-demand, re-registered and zero-based ones; and work requests that only read.

use super::*;

#[test]
fn the_null_region_gives_zeros_and_takes_everything() {
    let mut pair = pair();
    pair.right.post_recv(&[DataSeg::new(4, NULL_KEY, 0x1234), pair.target.data(4..8)]);
    let list = [pair.source.data(0..6), DataSeg::new(2, NULL_KEY, 0)];
    pair.left.post(Opcode::Send, &[list.as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    let source = pair.source.bytes();
    assert_eq!(pair.target.bytes()[..8], [0, 0, 0, 0, source[4], source[5], 0, 0]);
    // A peer cannot use it.
    write(&mut pair, NULL_KEY, 0);
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess);
}

#[test]
fn a_dump_reads_memory_that_it_may_read() {
    let mut pair = pair();
    let data = pair.source.data(0..8);
    pair.left.post(Opcode::Dump, &[data.as_bytes()]);
    pair.run();
    assert_eq!(pair.left.cq.poll().unwrap().wqe_opcode(), Opcode::Dump as u8);
    pair.left.post(Opcode::Dump, &[DataSeg::new(8, 0x4242, 0).as_bytes()]);
    pair.run();
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalProtection);
}

fn map(at: *mut libc::c_void, len: usize, rights: libc::c_int) -> *mut libc::c_void {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: at an address of the kernel's choice, or over a mapping of this test.
    let mapped = unsafe { libc::mmap(at, len, rights, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped
}

#[test]
fn on_demand_regions_need_their_memory_only_when_it_is_accessed() {
    const PAGE: usize = 4096;
    let readable = libc::PROT_READ | libc::PROT_WRITE;
    let mut pair = pair();
    let at = map(std::ptr::null_mut(), 2 * PAGE, libc::PROT_NONE);
    let access = everything() | Access::ON_DEMAND;
    let explicit = RegionConfig::new(pair.pdn, at as u64, 2 * PAGE as u64, access);
    // The whole address space of the process.
    let implicit = RegionConfig::new(pair.pdn, 0, u64::MAX, access);
    for (first, config) in [explicit, implicit].into_iter().enumerate() {
        // SAFETY: an on-demand region need not be mapped; the memory below is never unmapped.
        let key = unsafe { pair.card.register_memory(&config) }.unwrap();
        map(at, PAGE, readable);
        let offset = (at as u64 + 8 * first as u64).wrapping_sub(pair.target.at as u64);
        write(&mut pair, key, offset);
        success(pair.left.cq.poll());
    }
    let target = bytes(at.cast(), 16);
    assert_eq!((&target[..8], &target[8..16]), (&[0; 8][..], &pair.source.bytes()[..8]), "mapped anew");
    // SAFETY: as above.
    let key = unsafe { pair.card.register_memory(&implicit) }.unwrap();
    let offset = (at as u64 + PAGE as u64).wrapping_sub(pair.target.at as u64);
    write(&mut pair, key, offset);
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess, "not mapped");
}

#[test]
fn a_region_is_registered_again_under_its_key() {
    let mut pair = pair();
    let region = Region::new(&pair.card, pair.pdn, 64, everything());
    let other = pair.card.alloc_pd().unwrap();
    let to = |pdn, at: *mut u8, access| RegionConfig::new(pdn, at as u64, 64, access);
    // SAFETY: the memory is never freed.
    let again = |key, config: &RegionConfig| unsafe { pair.card.reregister_memory(key, config) };
    // Refused changes leave it unchanged.
    assert!(again(region.key, &to(pair.pdn, std::ptr::null_mut(), everything())).is_err());
    assert!(again(region.key, &to(0x4242, region.at, everything())).is_err());
    assert!(again(0x4242, &to(pair.pdn, region.at, everything())).is_err());
    let moved = memory(64);
    again(region.key, &to(pair.pdn, moved, everything())).unwrap();
    let offset = (moved as u64).wrapping_sub(pair.target.at as u64);
    write(&mut pair, region.key, offset);
    success(pair.left.cq.poll());
    assert_eq!(bytes(moved, 8), &pair.source.bytes()[..8]);
    // SAFETY: the memory is never freed.
    unsafe { pair.card.reregister_memory(region.key, &to(other, moved, everything())) }.unwrap();
    assert!(matches!(pair.card.dealloc_pd(other), Err(CardError::Busy { users: 1, .. })));
    write(&mut pair, region.key, offset);
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess, "another domain");
    pair.card.deregister_memory(region.key).unwrap();
    pair.card.dealloc_pd(other).unwrap();
}

#[test]
fn zero_based_regions_begin_at_0() {
    let mut pair = pair();
    let access = everything() | Access::ZERO_BASED;
    let config = RegionConfig::new(pair.pdn, pair.target.at as u64, 64, access);
    // SAFETY: the memory is never freed.
    let key = unsafe { pair.card.register_memory(&config) }.unwrap();
    let (remote, data) = (RemoteAddrSeg::new(56, key), pair.source.data(0..8));
    pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(pair.target.bytes()[56..64], pair.source.bytes()[..8]);
}
