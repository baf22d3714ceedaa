//! Types and operations of reductions, and reduction by the CPU.

use std::fmt;

/// Declares an enum with the names of its values.
macro_rules! named {
    ($(#[$about:meta])* $values:ident { $($(#[$doc:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $values { $($(#[$doc])* $value,)* }

        impl $values {
            /// All values.
            pub const ALL: [$values; [$($name),*].len()] = [$($values::$value),*];
        }

        impl fmt::Display for $values {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($values::$value => $name),* })
            }
        }
    };
}

named! {
    /// The type of a reduction's numbers, in the byte order of the host.
    Element {
        /// 32-bit floating point.
        F32 = "f32",
        /// 64-bit floating point.
        F64 = "f64",
        /// Signed, 8 bits.
        I8 = "i8",
        /// Unsigned, 8 bits.
        U8 = "u8",
        /// Signed, 16 bits.
        I16 = "i16",
        /// Unsigned, 16 bits.
        U16 = "u16",
        /// Signed, 32 bits.
        I32 = "i32",
        /// Unsigned, 32 bits.
        U32 = "u32",
        /// Signed, 64 bits.
        I64 = "i64",
        /// Unsigned, 64 bits.
        U64 = "u64",
    }
}

impl Element {
    /// The size of a number.
    pub fn bytes(self) -> usize {
        match self {
            Element::I8 | Element::U8 => 1,
            Element::I16 | Element::U16 => 2,
            Element::F32 | Element::I32 | Element::U32 => 4,
            Element::F64 | Element::I64 | Element::U64 => 8,
        }
    }

    /// Returns true for floating-point numbers.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Element::F32 | Element::F64)
    }
}

named! {
    /// The operation of a reduction. The result has the same bits in either order of the operands, on the CPU and on
    /// GPUs. Sums and products of integers wrap around. The minimum or maximum of a number and NaN is the number; -0 is
    /// less than +0. A NaN result has one form, without sign and payload: `0x7fc00000`, `0x7ff8000000000000`. Logical
    /// operations take any number but 0 as true, and return 1 or 0.
    Operation {
        /// The sum.
        Sum = "sum",
        /// The product.
        Product = "product",
        /// The lesser.
        Min = "min",
        /// The greater.
        Max = "max",
        /// True if both are.
        LogicalAnd = "logical_and",
        /// True if at least one is.
        LogicalOr = "logical_or",
        /// True if exactly one is.
        LogicalXor = "logical_xor",
        /// Bitwise and.
        BitAnd = "bit_and",
        /// Bitwise or.
        BitOr = "bit_or",
        /// Bitwise exclusive or.
        BitXor = "bit_xor",
    }
}

impl Operation {
    /// Returns true if the reduction exists: as in MPI, floating-point numbers have neither logical nor bitwise operations.
    pub fn is_defined_for(self, element: Element) -> bool {
        use Operation::*;
        !element.is_float() || matches!(self, Sum | Product | Min | Max)
    }
}

/// The NaN of 32-bit reductions.
pub(crate) const NAN_32: u32 = 0x7fc0_0000;
/// The NaN of 64-bit reductions.
pub(crate) const NAN_64: u64 = 0x7ff8_0000_0000_0000;

/// Reduces `other` into `into`, number by number, on the CPU. An [undefined](Operation::is_defined_for) reduction
/// changes nothing, and neither do bytes behind the last number that is whole in both.
///
/// ```
/// use gdsync_notify::collective::{Element, Operation, combine};
/// let mut bytes = [1, 255, 7];
/// combine(Element::U8, Operation::Sum, &mut bytes, &[2, 3, 1]);
/// assert_eq!(bytes, [3, 2, 8]);
/// ```
pub fn combine(element: Element, operation: Operation, into: &mut [u8], other: &[u8]) {
    use Operation::*;
    macro_rules! each {
        ($number:ty, $act:expr) => {{
            let act: fn($number, $number) -> $number = $act;
            let (numbers, others) = (into.as_chunks_mut().0, other.as_chunks().0);
            for (number, other) in numbers.iter_mut().zip(others) {
                *number =
                    act(<$number>::from_ne_bytes(*number), <$number>::from_ne_bytes(*other)).to_ne_bytes();
            }
        }};
    }
    macro_rules! integer {
        ($number:ty) => {
            match operation {
                Sum => each!($number, |one, other| one.wrapping_add(other)),
                Product => each!($number, |one, other| one.wrapping_mul(other)),
                Min => each!($number, |one, other| one.min(other)),
                Max => each!($number, |one, other| one.max(other)),
                LogicalAnd => each!($number, |one, other| (one != 0 && other != 0).into()),
                LogicalOr => each!($number, |one, other| (one != 0 || other != 0).into()),
                LogicalXor => each!($number, |one, other| ((one != 0) != (other != 0)).into()),
                BitAnd => each!($number, |one, other| one & other),
                BitOr => each!($number, |one, other| one | other),
                BitXor => each!($number, |one, other| one ^ other),
            }
        };
    }
    // The bits of an arithmetic NaN depend on the processor and the order of the operands, and so does the sign of `min` of
    // -0 and +0. Equal numbers differ in the sign of 0 at most.
    macro_rules! float {
        ($number:ty, $nan:expr) => {{
            const NAN: $number = <$number>::from_bits($nan);
            fn known(number: $number) -> $number {
                if number.is_nan() { NAN } else { number }
            }
            fn min(one: $number, other: $number) -> $number {
                let equal = <$number>::from_bits(one.to_bits() | other.to_bits());
                if one == other { equal } else { known(one.min(other)) }
            }
            fn max(one: $number, other: $number) -> $number {
                let equal = <$number>::from_bits(one.to_bits() & other.to_bits());
                if one == other { equal } else { known(one.max(other)) }
            }
            match operation {
                Sum => each!($number, |one, other| known(one + other)),
                Product => each!($number, |one, other| known(one * other)),
                Min => each!($number, min),
                Max => each!($number, max),
                LogicalAnd | LogicalOr | LogicalXor | BitAnd | BitOr | BitXor => {}
            }
        }};
    }
    match element {
        Element::I8 => integer!(i8),
        Element::U8 => integer!(u8),
        Element::I16 => integer!(i16),
        Element::U16 => integer!(u16),
        Element::I32 => integer!(i32),
        Element::U32 => integer!(u32),
        Element::I64 => integer!(i64),
        Element::U64 => integer!(u64),
        Element::F32 => float!(f32, NAN_32),
        Element::F64 => float!(f64, NAN_64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    macro_rules! matches_numbers {
        ($test:ident, $element:ident, $number:ty, $($operation:ident => $act:expr),*) => {
            proptest! {
                #[test]
                fn $test(pairs in prop::collection::vec(any::<($number, $number)>(), 0..20)) {
                    let bytes = |numbers: Vec<$number>| numbers.iter().flat_map(|one| one.to_ne_bytes()).collect::<Vec<u8>>();
                    $({
                        let act: fn($number, $number) -> $number = $act;
                        let mut found = bytes(pairs.iter().map(|pair| pair.0).collect());
                        let others = bytes(pairs.iter().map(|pair| pair.1).collect());
                        combine(Element::$element, Operation::$operation, &mut found, &others);
                        let expected = bytes(pairs.iter().map(|(one, other)| act(*one, *other)).collect());
                        prop_assert_eq!(found, expected, "{}", Operation::$operation);
                    })*
                    prop_assert_eq!(Element::$element.bytes(), size_of::<$number>());
                }
            }
        };
    }

    macro_rules! matches_integers {
        ($($test:ident, $element:ident, $number:ident;)*) => { $(
            matches_numbers!(
                $test, $element, $number,
                Sum => $number::wrapping_add, Product => $number::wrapping_mul, Min => Ord::min, Max => Ord::max,
                LogicalAnd => |one, other| <$number>::from(one != 0 && other != 0),
                LogicalOr => |one, other| <$number>::from(one != 0 || other != 0),
                LogicalXor => |one, other| <$number>::from((one == 0) != (other == 0)),
                BitAnd => |one, other| one & other, BitOr => |one, other| one | other, BitXor => |one, other| one ^ other
            );
        )* };
    }

    matches_integers! {
        i8_numbers, I8, i8; u8_numbers, U8, u8; i16_numbers, I16, i16; u16_numbers, U16, u16; i32_numbers, I32, i32;
        u32_numbers, U32, u32; i64_numbers, I64, i64; u64_numbers, U64, u64;
    }
    matches_numbers!(f32_numbers, F32, f32, Sum => |one, other| one + other, Product => |one, other| one * other,
        Min => |one, other| if one.total_cmp(&other).is_le() { one } else { other },
        Max => |one, other| if one.total_cmp(&other).is_ge() { one } else { other });
    matches_numbers!(f64_numbers, F64, f64, Sum => |one, other| one + other, Product => |one, other| one * other,
        Min => |one, other| if one.total_cmp(&other).is_le() { one } else { other },
        Max => |one, other| if one.total_cmp(&other).is_ge() { one } else { other });

    /// Zeros, infinities, and NaNs of both signs with payloads, quiet and signalling.
    const SPECIAL_32: [u32; 10] = [
        0,
        1 << 31,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc0_1234,
        0x7fc0_4321,
        0xff80_0001,
    ];
    const SPECIAL_64: [u64; 10] = [
        0,
        1 << 63,
        1,
        0x3ff0_0000_0000_0000,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0xfff8_0000_0000_1234,
        0x7ff8_0000_0000_4321,
        0xfff0_0000_0000_0001,
    ];

    fn special(element: Element) -> Vec<Vec<u8>> {
        match element {
            Element::F32 => SPECIAL_32.iter().map(|bits| bits.to_ne_bytes().to_vec()).collect(),
            _ => SPECIAL_64.iter().map(|bits| bits.to_ne_bytes().to_vec()).collect(),
        }
    }

    #[test]
    fn the_order_of_operands_changes_no_bit() {
        for element in [Element::F32, Element::F64] {
            for operation in [Operation::Sum, Operation::Product, Operation::Min, Operation::Max] {
                let all = special(element);
                // Long enough for a vectorized loop and its remainder.
                for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
                    let (mut found, mut turned) = (one.repeat(21), other.repeat(21));
                    combine(element, operation, &mut found, &turned.clone());
                    combine(element, operation, &mut turned, &one.repeat(21));
                    assert_eq!(found, turned, "{operation} of {one:?} and {other:?}");
                    assert_eq!(
                        found,
                        found[..element.bytes()].repeat(21),
                        "{operation} of {one:?} and {other:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn zeros_have_an_order_and_nan_has_one_form() {
        let of = |operation, one: u32, other: u32| {
            let mut found = one.to_ne_bytes();
            combine(Element::F32, operation, &mut found, &other.to_ne_bytes());
            u32::from_ne_bytes(found)
        };
        let (zero, negative, one, nan) = (0, 1 << 31, 1f32.to_bits(), 0xffc0_1234);
        assert_eq!(
            (of(Operation::Min, zero, negative), of(Operation::Max, negative, zero)),
            (negative, zero)
        );
        assert_eq!((of(Operation::Min, nan, one), of(Operation::Max, one, nan)), (one, one));
        assert_eq!((of(Operation::Min, nan, nan), of(Operation::Sum, one, nan)), (NAN_32, NAN_32));
        assert_eq!(of(Operation::Product, zero, f32::INFINITY.to_bits()), NAN_32);
    }

    #[test]
    fn floating_point_numbers_have_no_bits() {
        let mut number = 1.5f32.to_ne_bytes();
        assert!(
            !Operation::BitXor.is_defined_for(Element::F32) && Operation::BitXor.is_defined_for(Element::U16)
        );
        combine(Element::F32, Operation::BitXor, &mut number, &2f32.to_ne_bytes());
        assert_eq!(number, 1.5f32.to_ne_bytes());
    }
}
