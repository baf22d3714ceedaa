//! Regions of posts that do not hold them.

use crate::qp::testing::{LONG, poll};
use crate::verbs::mr::Registration;
use crate::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
use std::sync::Weak;
use std::time::Instant;

struct Bed {
    pd: ProtectionDomain,
    left: QueuePair,
    right: QueuePair,
}

impl Bed {
    fn new(depth: u32) -> Bed {
        let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
        let config = QueuePairConfig::default().send_depth(depth).recv_depth(depth);
        let (left, right) = (QueuePair::new(&pd, config).unwrap(), QueuePair::new(&pd, config).unwrap());
        left.connect(&right.endpoint().unwrap(), Default::default()).unwrap();
        right.connect(&left.endpoint().unwrap(), Default::default()).unwrap();
        Bed { pd, left, right }
    }

    /// Posts a send of a region that is dropped at once. It executes when a receive is posted.
    fn send(&self) -> Weak<Registration> {
        let region = MemoryRegion::allocate(&self.pd, 8, Access::LOCAL_WRITE).unwrap();
        region.write(0, b"stays!!!");
        self.left.post_send(WorkRequest::send(&[region.slice(..).unwrap()])).unwrap();
        region.inner.registration()
    }

    fn receive(&self) {
        let target = MemoryRegion::allocate(&self.pd, 8, Access::LOCAL_WRITE).unwrap();
        self.right.post_recv(&[target.slice(..).unwrap()], 0).unwrap();
        assert_eq!(poll(&self.right.recv_cq()).status, Ok(()));
        let mut bytes = [0; 8];
        target.read(0, &mut bytes);
        assert_eq!(&bytes, b"stays!!!");
    }
}

#[test]
fn a_region_stays_registered_until_its_posts_have_completed_and_no_longer() {
    let bed = Bed::new(8);
    let [first, second, third] = [(); 3].map(|()| bed.send());
    assert!([&first, &second, &third].iter().all(|region| region.strong_count() == 1));
    for region in [first, second] {
        bed.receive();
        assert_eq!(region.strong_count(), 1, "its completion was not polled");
        assert_eq!(poll(&bed.left.send_cq()).status, Ok(()));
        assert_eq!(region.strong_count(), 0);
    }
    assert_eq!(third.strong_count(), 1);
    bed.receive();
    assert_eq!(poll(&bed.left.send_cq()).status, Ok(()));
    assert_eq!(third.strong_count(), 0);
    // With nothing in flight, the region is deregistered at once.
    let region = MemoryRegion::allocate(&bed.pd, 8, Access::LOCAL_WRITE).unwrap();
    bed.left.post_send(WorkRequest::write(&[region.slice(..0).unwrap()], region.remote())).unwrap();
    assert_eq!(poll(&bed.left.send_cq()).status, Ok(()));
    let registration = region.inner.registration();
    drop(region);
    assert_eq!(registration.strong_count(), 0);
}

#[test]
fn a_region_goes_with_its_own_posts_whatever_was_posted_after_them() {
    let bed = Bed::new(8);
    let other = MemoryRegion::allocate(&bed.pd, 8, Access::LOCAL_WRITE).unwrap();
    for _ in 0..2 {
        let region = MemoryRegion::allocate(&bed.pd, 8, Access::LOCAL_WRITE).unwrap();
        bed.left.post_send(WorkRequest::write(&[region.slice(..0).unwrap()], region.remote())).unwrap();
        assert_eq!(poll(&bed.left.send_cq()).status, Ok(()));
        bed.left.post_send(WorkRequest::nop().unsignaled()).unwrap();
        let slices = [other.slice(..0).unwrap()];
        bed.left.post_send(WorkRequest::write(&slices, other.remote()).unsignaled()).unwrap();
        let registration = region.inner.registration();
        drop(region);
        assert_eq!(registration.strong_count(), 0);
    }
    let registration = other.inner.registration();
    drop(other);
    assert_eq!(registration.strong_count(), 1, "its last post has no completion");
}

#[test]
fn regions_of_what_is_reset_or_dropped_go_with_it() {
    let bed = Bed::new(8);
    drop(bed.send());
    bed.receive();
    assert_eq!(poll(&bed.left.send_cq()).status, Ok(()));
    let region = MemoryRegion::allocate(&bed.pd, 8, Access::LOCAL_WRITE).unwrap();
    let slices = [region.slice(..).unwrap()];
    let silent = WorkRequest::send(&slices).unsignaled();
    // Unsignaled, and never polled: a reset forgets it.
    bed.right.post_recv(&slices, 0).unwrap();
    bed.left.post_send(silent).unwrap();
    assert_eq!(poll(&bed.right.recv_cq()).status, Ok(()));
    let registration = region.inner.registration();
    drop((region, slices));
    assert_eq!(registration.strong_count(), 1);
    bed.left.abort().unwrap();
    let deadline = Instant::now() + LONG;
    while bed.left.reset().is_err() {
        assert!(Instant::now() < deadline);
        bed.left.send_cq().poll().unwrap();
    }
    assert_eq!(registration.strong_count(), 0);

    let bed = Bed::new(8);
    drop(bed.send());
    let registration = bed.send();
    assert_eq!(registration.strong_count(), 1);
    drop(bed);
    assert_eq!(registration.strong_count(), 0);
}

#[test]
fn more_regions_than_a_queue_remembers_are_kept_all_the_same() {
    let bed = Bed::new(64);
    let regions: Vec<_> =
        (0..40).map(|_| MemoryRegion::allocate(&bed.pd, 8, Access::LOCAL_WRITE).unwrap()).collect();
    for region in regions.iter().chain(&regions) {
        bed.left.post_send(WorkRequest::send(&[region.slice(..).unwrap()]).wr_id(1)).unwrap();
        bed.right.post_recv(&[regions[0].slice(..).unwrap()], 0).unwrap();
        assert_eq!(poll(&bed.left.send_cq()).wr_id, 1);
        while bed.right.recv_cq().poll().unwrap().is_some() {}
    }
    let registrations: Vec<_> = regions.iter().map(|region| region.inner.registration()).collect();
    for pair in regions.chunks(2) {
        let slices = [pair[0].slice(..4).unwrap(), pair[1].slice(4..).unwrap()];
        bed.left.post_send(WorkRequest::send(&slices).wr_id(2)).unwrap();
    }
    drop(regions);
    assert!(registrations.iter().all(|registration| registration.strong_count() == 1));
    bed.left.abort().unwrap();
    for _ in 0..20 {
        assert_eq!(poll(&bed.left.send_cq()).wr_id, 2);
    }
    assert!(registrations.iter().all(|registration| registration.strong_count() == 0));
}
