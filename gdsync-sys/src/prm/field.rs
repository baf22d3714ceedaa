//! Bit fields of device commands: big endian, numbered from the most significant bit of the first byte.

/// A field of a structure: its first bit and its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    at: usize,
    width: usize,
}

impl Field {
    /// Creates a field, which is inside a 32-bit word or spans two whole words.
    pub const fn new(at: usize, width: usize) -> Self {
        assert!(width >= 1 && (at % 32 + width <= 32 || at.is_multiple_of(32) && width == 64));
        Field { at, width }
    }

    /// Returns the field's position in an outer structure that contains this one at bit `base`.
    pub const fn within(self, base: usize) -> Self {
        Field::new(base + self.at, self.width)
    }

    /// Returns the value. Bits beyond the end are zero: programs may omit the end of a command.
    pub fn get(self, bytes: &[u8]) -> u64 {
        (self.at..self.at + self.width).fold(0, |value, bit| {
            let byte = bytes.get(bit / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        })
    }

    /// Returns the value of a field of up to 32 bits.
    pub fn get32(self, bytes: &[u8]) -> u32 {
        debug_assert!(self.width <= 32);
        self.get(bytes) as u32
    }

    /// Returns the value of a field of up to 8 bits.
    pub fn get8(self, bytes: &[u8]) -> u8 {
        debug_assert!(self.width <= 8);
        self.get(bytes) as u8
    }

    /// Returns true if the value is not 0.
    pub fn is_set(self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Stores a value's low bits, as many as the field has. Bits beyond the end are dropped.
    pub fn put(self, bytes: &mut [u8], value: impl Into<u64>) {
        let value = value.into();
        for (i, bit) in (self.at..self.at + self.width).rev().enumerate() {
            let Some(byte) = bytes.get_mut(bit / 8) else { continue };
            let mask = 1 << (7 - bit % 8);
            *byte = if value >> i & 1 == 1 { *byte | mask } else { *byte & !mask };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_bit_is_the_most_significant() {
        let bytes = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0];
        assert_eq!(Field::new(0, 16).get(&bytes), 0x1234);
        assert_eq!(Field::new(8, 24).get(&bytes), 0x34_5678);
        assert_eq!(Field::new(0, 64).get(&bytes), 0x1234_5678_9abc_def0);
        assert_eq!(Field::new(3, 1).get(&bytes), 1);
        assert_eq!(Field::new(0, 8).within(32).get8(&bytes), 0x9a);
        let mut bytes = [0; 4];
        Field::new(4, 3).put(&mut bytes, 0xfu64);
        assert_eq!(bytes, [0x0e, 0, 0, 0], "no bit beside the field");
    }

    #[test]
    fn what_is_beyond_the_end_is_zero_and_stays_out() {
        let field = Field::new(32, 32);
        let mut bytes = [0xff; 6];
        assert_eq!(field.get(&bytes), 0xffff_0000);
        field.put(&mut bytes, 0x1122_3344u64);
        assert_eq!(bytes, [0xff, 0xff, 0xff, 0xff, 0x11, 0x22]);
        assert_eq!(field.get(&[]), 0);
    }

    /// Generates fields of a structure of 16 words.
    fn field() -> impl Strategy<Value = Field> {
        let narrow = (0usize..16, 0usize..32, 1usize..=32)
            .prop_map(|(word, at, width)| Field::new(word * 32 + at, width.min(32 - at)));
        prop_oneof![narrow, (0usize..15).prop_map(|word| Field::new(word * 32, 64))]
    }

    proptest! {
        #[test]
        fn what_is_put_is_got_and_nothing_else_changes(
            field in field(),
            value: u64,
            before in proptest::array::uniform32(any::<u8>()),
            after in proptest::array::uniform32(any::<u8>()),
        ) {
            let old = [before, after].concat();
            let mut new = old.clone();
            field.put(&mut new, value);
            let mask = if field.width == 64 { u64::MAX } else { (1 << field.width) - 1 };
            prop_assert_eq!(field.get(&new), value & mask);
            for bit in (0..512).filter(|bit| !(field.at..field.at + field.width).contains(bit)) {
                prop_assert_eq!(Field::new(bit, 1).get(&new), Field::new(bit, 1).get(&old));
            }
        }

        #[test]
        fn a_field_is_the_bits_of_the_words_it_lies_in(field in field(), words in proptest::array::uniform16(any::<u32>())) {
            let bytes = words.map(u32::to_be_bytes).concat();
            let word = words[field.at / 32];
            let expected = match field.width {
                64 => u64::from(word) << 32 | u64::from(words[field.at / 32 + 1]),
                width => u64::from(word << (field.at % 32) >> (32 - width)),
            };
            prop_assert_eq!(field.get(&bytes), expected);
        }
    }
}
