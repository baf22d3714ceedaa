//! What is sent, decided by numbers alone, so that the receiver knows it, too.

use super::region::Region;
use gdsync_cli::failure::Failure;
use gdsync_cli::pattern::Pattern;

/// Longest message in bytes: more than a packet of the software card holds.
pub(super) const LONGEST: usize = 96 << 10;

/// A small generator (splitmix64, Steele, Lea and Flood 2014): one step for each number.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Send,
    SendImmediate,
    WriteImmediate,
}

/// A message: both sides make it of its number.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) how: How,
    pub(super) length: usize,
    content: Pattern,
}

impl Planned {
    /// Message `number` from the end `sender` of a link (ends are numbered over all links).
    pub(super) fn new(seed: u64, sender: u64, number: u64) -> Self {
        let mut random = Random::new(seed ^ sender.wrapping_mul(0xd129_0f53_2d1b_5d95) ^ number << 20);
        let how = [How::Send, How::SendImmediate, How::WriteImmediate][random.below(3) as usize];
        // Mostly short ones, some long, some empty.
        let longest = [0, 8, 64, 512, 4096, 4096, 20_000, LONGEST as u64][random.below(8) as usize];
        let length = random.below(longest + 1) as usize;
        Planned { how, length, content: Pattern { seed: random.next() } }
    }

    /// The immediate of a message that has one.
    pub(super) fn immediate(number: u64) -> u32 {
        number as u32 ^ 0x5a5a_0000
    }

    /// The number that an immediate was made of, as far as it fits.
    pub(super) fn number(immediate: u32) -> u32 {
        immediate ^ 0x5a5a_0000
    }

    /// The same, no longer than that.
    pub(super) fn at_most(self, longest: usize) -> Self {
        Planned { length: self.length.min(longest), ..self }
    }

    /// The same, as kernels send it.
    pub(super) fn by_kernels(self) -> Self {
        Planned { how: How::Send, ..self }
    }

    pub(super) fn fill(&self, region: &Region, at: usize) -> Result<(), Failure> {
        region.fill(self.content, at, self.length)
    }

    pub(super) fn is_in(&self, region: &Region, at: usize) -> Result<bool, Failure> {
        region.holds(self.content, (at, 0), self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::{Access, Device, MemoryRegion, ProtectionDomain};
    use std::sync::atomic::Ordering;

    #[test]
    fn both_sides_make_the_same_message_and_every_byte_counts() {
        let device = Device::software().unwrap();
        let pd = ProtectionDomain::new(&device).unwrap();
        let region = MemoryRegion::allocate(&pd, 2 * LONGEST, Access::LOCAL_WRITE).unwrap();
        let memory = region.memory().clone();
        let region = Region::Near(region);
        let mut kinds = [false; 3];
        for number in 0..300 {
            let planned = Planned::new(7, 3, number);
            kinds[planned.how as usize] = true;
            assert!(planned.length <= LONGEST);
            planned.fill(&region, 64).unwrap();
            let same = Planned::new(7, 3, number);
            assert!(same.is_in(&region, 64).unwrap());
            if planned.length > 0 {
                let at = 64 + planned.length - 1;
                let byte = &memory.bytes()[at];
                byte.store(byte.load(Ordering::Relaxed) ^ 1, Ordering::Relaxed);
                assert!(!same.is_in(&region, 64).unwrap(), "message {number} of {} bytes", planned.length);
            }
        }
        assert_eq!(kinds, [true; 3]);
        let content = Pattern { seed: 9 };
        content.fill(&memory, 0, 4096);
        assert!(
            content.check(&memory, 80, 80, 1001).is_ok() && content.check(&memory, 80, 88, 1001).is_err()
        );
    }
}
