use super::*;
use crate::ProtectionDomain;
use crate::verbs::device::Device;
use crate::verbs::provider;
use gdsync_sys::prm::doorbell::{UAR_DOORBELLS, UAR_PAGE};

/// On the provider that GDSYNC_TEST_PROVIDER names, as the integration tests are.
#[test]
fn queue_pairs_have_doorbell_registers_and_rings_of_their_own() {
    let system = std::env::var_os("GDSYNC_TEST_PROVIDER").is_some_and(|name| name == "system");
    let api = if system { provider::system().unwrap() } else { provider::software() };
    let device = Device::open(api, None).unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    let made: Vec<QueuePair> =
        (0..8).map(|_| QueuePair::new(&pd, QueuePairConfig::default()).unwrap()).collect();
    // libmlx5 puts two registers on a page. No other queue pair rings either, and the page is announced once.
    let register = |qp: &QueuePair| qp.inner.send().register.get();
    let mut registers: Vec<u64> = made.iter().map(register).collect();
    registers.sort_unstable();
    registers.dedup();
    assert_eq!(registers.len(), made.len());
    let in_page = |register: &u64| UAR_DOORBELLS.contains(&(*register as usize % UAR_PAGE));
    assert!(registers.iter().all(in_page), "{registers:x?}");
    let raw = made[0].inner.object.verbs().unwrap();
    let layout = make::verbs::describe(raw, &made[0].inner.domain).unwrap();
    assert!(
        device.inner.arena.owns(layout.sq.buf.cast()),
        "the provider asks gdsync for the memory of rings"
    );
    assert!(device.inner.arena.owns(layout.dbrec.cast()), "and of records");
}
