//! Hashing of what is found by its address: objects of the library's own, so a program cannot
//! choose addresses that collide.

use std::hash::{BuildHasherDefault, Hasher};

/// For maps by address.
pub(crate) type Addresses = BuildHasherDefault<AddressHasher>;

/// Multiplies: the lowest bits of addresses are alike.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, value: usize) {
        self.0 = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}
