//! Reductions by the CPU: two blocks of numbers become one.

use crate::error::{Class, Failure};
use gdsync::PinnedMemory;
use gdsync_notify::collective::{Element, Operation, combine};
use std::ops::Range;

/// Bytes that are reduced at a time: a multiple of every number's size.
const PIECE: usize = 16 * 1024;

/// The kind of numbers that `enum gdsync_mpi_element` of `c/engine.h` names.
pub(crate) fn element(number: u32) -> Result<Element, Failure> {
    use Element::*;
    let all = [I8, U8, I16, U16, I32, U32, I64, U64, F32, F64];
    let known = all.get(number as usize).copied();
    known.ok_or_else(|| Failure::new(Class::Argument, format!("there is no kind of number {number}")))
}

/// The reduction that `enum gdsync_mpi_operation` of `c/engine.h` names.
pub(crate) fn operation(number: u32) -> Result<Operation, Failure> {
    use Operation::*;
    let all = [Sum, Product, Min, Max, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor];
    let known = all.get(number as usize).copied();
    known.ok_or_else(|| Failure::new(Class::Argument, format!("there is no reduction {number}")))
}

/// Refuses what MPI does not define.
pub(crate) fn check(element: Element, operation: Operation) -> Result<(), Failure> {
    if operation.is_defined_for(element) {
        return Ok(());
    }
    let text = format!("{operation} of {element}: MPI defines it for integers only");
    Err(Failure::new(Class::Argument, text))
}

/// Reduces what one memory has from an offset on into the bytes of a range of another.
pub(crate) fn reduce(
    (element, operation): (Element, Operation),
    (into, range): (&PinnedMemory, Range<usize>),
    (other, from): (&PinnedMemory, usize),
) {
    let (mut sum, mut piece) = (vec![0; PIECE.min(range.len())], vec![0; PIECE.min(range.len())]);
    for done in (0..range.len()).step_by(PIECE) {
        let len = PIECE.min(range.len() - done);
        into.read(range.start + done, &mut sum[..len]);
        other.read(from + done, &mut piece[..len]);
        combine(element, operation, &mut sum[..len], &piece[..len]);
        into.write(range.start + done, &sum[..len]);
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

    #[test]
    fn bits_of_floating_point_numbers_are_refused() {
        assert!(check(Element::U16, Operation::BitXor).is_ok());
        let error = check(Element::F32, Operation::BitXor).unwrap_err();
        assert!(error.text.contains("bit_xor of f32"), "{error}");
        assert!(element(10).is_err() && operation(10).is_err());
        assert!(matches!((element(9), operation(9)), (Ok(Element::F64), Ok(Operation::BitXor))));
    }

    #[test]
    fn long_ranges_are_reduced_piece_by_piece() {
        let (into, other) =
            (PinnedMemory::allocate(3 * PIECE).unwrap(), PinnedMemory::allocate(3 * PIECE).unwrap());
        other.write(9, &vec![1; 2 * PIECE + 2]);
        reduce((Element::U8, Operation::Sum), (&into, 5..2 * PIECE + 7), (&other, 9));
        let mut bytes = vec![0; 3 * PIECE];
        into.read(0, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(at, byte)| (*byte == 1) == (5..2 * PIECE + 7).contains(&at)));
    }
}
