//! What is reduced, and how.

use std::fmt;

/// The numbers of a reduction, in the byte order of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Element {
    /// 32-bit floating point.
    F32,
    /// 64-bit floating point.
    F64,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
}

impl Element {
    /// All of them.
    pub const ALL: [Element; 5] = [Element::F32, Element::F64, Element::I32, Element::I64, Element::U64];

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 | Element::I32 => 4,
            Element::F64 | Element::I64 | Element::U64 => 8,
        }
    }
}

/// What a reduction makes of two numbers. Sums of integers wrap around; of a number and NaN, minimum and maximum are the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Their sum.
    Sum,
    /// The lesser.
    Min,
    /// The greater.
    Max,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 3] = [Operation::Sum, Operation::Min, Operation::Max];
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Element::F32 => "f32",
            Element::F64 => "f64",
            Element::I32 => "i32",
            Element::I64 => "i64",
            Element::U64 => "u64",
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Sum => "sum",
            Operation::Min => "min",
            Operation::Max => "max",
        })
    }
}
