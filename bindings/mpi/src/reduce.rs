//! Reductions by the CPU: two blocks of numbers become one.

use crate::error::{Class, Failure};
use gdsync::PinnedMemory;
use std::ops::Range;

/// Bytes that are reduced at a time: a multiple of every number's size.
const PIECE: usize = 16 * 1024;

/// Kinds of numbers: `enum gdsync_mpi_element` of `c/engine.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

/// What becomes of two numbers: `enum gdsync_mpi_operation` of `c/engine.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Sum,
    Product,
    Minimum,
    Maximum,
    LogicalAnd,
    LogicalOr,
    LogicalXor,
    BitAnd,
    BitOr,
    BitXor,
}

impl Element {
    const ALL: [Element; 10] = {
        use Element::*;
        [I8, U8, I16, U16, I32, U32, I64, U64, F32, F64]
    };

    pub(crate) fn of(number: u32) -> Result<Self, Failure> {
        let known = Self::ALL.into_iter().find(|each| *each as u32 == number);
        known.ok_or_else(|| Failure::new(Class::Argument, format!("there is no kind of number {number}")))
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Element::I8 | Element::U8 => 1,
            Element::I16 | Element::U16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Element::F32 | Element::F64)
    }
}

impl Operation {
    const ALL: [Operation; 10] = {
        use Operation::*;
        [Sum, Product, Minimum, Maximum, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor]
    };

    pub(crate) fn of(number: u32) -> Result<Self, Failure> {
        let known = Self::ALL.into_iter().find(|each| *each as u32 == number);
        known.ok_or_else(|| Failure::new(Class::Argument, format!("there is no reduction {number}")))
    }

    /// Floating-point numbers have neither bits nor truth, as MPI has it.
    pub(crate) fn check(self, element: Element) -> Result<(), Failure> {
        use Operation::*;
        if !element.is_float() || matches!(self, Sum | Product | Minimum | Maximum) {
            return Ok(());
        }
        let text = format!("{self:?} of {element:?}: MPI defines it for integers only");
        Err(Failure::new(Class::Argument, text))
    }
}

/// Reduces `other` into `into`; both have whole numbers. Integers wrap around; of a number and NaN, minimum and
/// maximum are the number.
fn combine(element: Element, operation: Operation, into: &mut [u8], other: &[u8]) {
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
                Minimum => each!($number, |one, other| one.min(other)),
                Maximum => each!($number, |one, other| one.max(other)),
                LogicalAnd => each!($number, |one, other| (one != 0 && other != 0).into()),
                LogicalOr => each!($number, |one, other| (one != 0 || other != 0).into()),
                LogicalXor => each!($number, |one, other| ((one != 0) != (other != 0)).into()),
                BitAnd => each!($number, |one, other| one & other),
                BitOr => each!($number, |one, other| one | other),
                BitXor => each!($number, |one, other| one ^ other),
            }
        };
    }
    macro_rules! float {
        ($number:ty) => {
            match operation {
                Sum => each!($number, |one, other| one + other),
                Product => each!($number, |one, other| one * other),
                Minimum => each!($number, |one, other| one.min(other)),
                // `Operation::check` refuses the others.
                _ => each!($number, |one, other| one.max(other)),
            }
        };
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
        Element::F32 => float!(f32),
        Element::F64 => float!(f64),
    }
}

/// Reduces the bytes of a range of one memory into those of another.
pub(crate) fn reduce(
    (element, operation): (Element, Operation),
    into: &PinnedMemory,
    other: &PinnedMemory,
    range: Range<usize>,
) {
    let (mut sum, mut piece) = (vec![0; PIECE.min(range.len())], vec![0; PIECE.min(range.len())]);
    for start in range.clone().step_by(PIECE) {
        let len = PIECE.min(range.end - start);
        into.read(start, &mut sum[..len]);
        other.read(start, &mut piece[..len]);
        combine(element, operation, &mut sum[..len], &piece[..len]);
        into.write(start, &sum[..len]);
    }
}

/// Copies one memory to another.
pub(crate) fn copy(into: &PinnedMemory, from: &PinnedMemory) {
    let mut piece = vec![0; PIECE];
    for start in (0..into.len()).step_by(PIECE) {
        let len = from.read(start, &mut piece);
        into.write(start, &piece[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_bytes(element: Element, operation: Operation, one: &[u8], other: &[u8]) -> Vec<u8> {
        let mut into = one.to_vec();
        combine(element, operation, &mut into, other);
        into
    }

    #[test]
    fn every_reduction_of_integers() {
        use Operation::*;
        let cases = [
            (Sum, 1u8, 255u8, 0u8),
            (Product, 3, 100, 44),
            (Minimum, 3, 100, 3),
            (Maximum, 3, 100, 100),
            (LogicalAnd, 4, 2, 1),
            (LogicalOr, 0, 2, 1),
            (LogicalXor, 4, 2, 0),
            (BitAnd, 6, 3, 2),
            (BitOr, 6, 3, 7),
            (BitXor, 6, 3, 5),
        ];
        for (operation, one, other, expected) in cases {
            assert_eq!(of_bytes(Element::U8, operation, &[one], &[other]), [expected], "{operation:?}");
        }
        let signed = of_bytes(Element::I8, Minimum, &[1], &[255]);
        assert_eq!(signed, [255], "-1 is less than 1");
    }

    #[test]
    fn numbers_of_every_size() {
        for element in Element::ALL {
            let mut one = vec![0; element.bytes()];
            one.extend(vec![0; element.bytes()]);
            assert_eq!(of_bytes(element, Operation::Sum, &one, &one).len(), 2 * element.bytes());
        }
        let (one, other) = (1.5f64.to_ne_bytes(), 2.25f64.to_ne_bytes());
        assert_eq!(of_bytes(Element::F64, Operation::Product, &one, &other), 3.375f64.to_ne_bytes());
    }

    #[test]
    fn bits_of_floating_point_numbers_are_refused() {
        assert!(Operation::BitXor.check(Element::U16).is_ok());
        let error = Operation::BitXor.check(Element::F32).unwrap_err();
        assert!(error.text.contains("BitXor of F32"), "{error}");
        assert!(Element::of(10).is_err() && Operation::of(10).is_err());
    }

    #[test]
    fn long_ranges_are_reduced_piece_by_piece() {
        let (into, other) =
            (PinnedMemory::allocate(3 * PIECE).unwrap(), PinnedMemory::allocate(3 * PIECE).unwrap());
        other.write(0, &vec![1; 3 * PIECE]);
        reduce((Element::U8, Operation::Sum), &into, &other, 5..2 * PIECE + 7);
        let mut bytes = vec![0; 3 * PIECE];
        into.read(0, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(at, byte)| (*byte == 1) == (5..2 * PIECE + 7).contains(&at)));
    }
}
