//! The computation and its memory.

use crate::device::Failure;
use gdsync::cudarc::driver::DeviceRepr;
use gdsync::memop::{Condition, GpuWord64};
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Batch, MemoryRegion, RemoteMemory, Slice};
use std::ops::Range;

/// Elements of a vector, and rows of the matrix.
pub(crate) const SIDE: usize = 32;
pub(crate) const VECTOR: usize = SIDE * size_of::<f32>();

/// Returns an element of the matrix. All numbers are small integers, so sums are exact in any order, and results are
/// compared bitwise.
pub(crate) fn coefficient(row: usize, column: usize) -> f32 {
    ((row * 5 + column * 3) % 13) as f32 - 6.0
}

pub(crate) fn matrix() -> Vec<u8> {
    (0..SIDE * SIDE).flat_map(|at| coefficient(at / SIDE, at % SIDE).to_ne_bytes()).collect()
}

/// Returns an element of an input vector. Two sets of vectors alternate, so that results of the previous round are
/// not mistaken for this one's.
pub(crate) fn input(set: usize, vector: usize, element: usize) -> f32 {
    ((vector * 31 + element * 17 + set * 7) % 23) as f32 - 11.0
}

/// The division of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) vectors: usize,
    /// Pieces of equal length, each of which is a message, in both directions.
    pub(crate) pieces: usize,
}

impl Cut {
    pub(crate) fn bytes(&self, piece: usize) -> Range<usize> {
        let len = self.vectors / self.pieces * VECTOR;
        piece * len..(piece + 1) * len
    }

    /// Returns the bytes of the word that announces a piece.
    pub(crate) fn word(piece: usize) -> Range<usize> {
        piece * 8..(piece + 1) * 8
    }
}

/// Registered memory with the same address for kernels and card.
#[derive(Clone)]
pub(crate) enum Memory {
    Host(MemoryRegion),
    Gpu(GpuMemoryRegion),
}

impl Memory {
    pub(crate) fn remote(&self) -> RemoteMemory {
        match self {
            Memory::Host(region) => region.remote(),
            Memory::Gpu(region) => region.remote(),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.remote().addr
    }

    pub(crate) fn lkey(&self) -> u32 {
        match self {
            Memory::Host(region) => region.lkey(),
            Memory::Gpu(region) => region.lkey(),
        }
    }

    pub(crate) fn slice(&self, range: Range<usize>) -> Result<Slice, Failure> {
        Ok(match self {
            Memory::Host(region) => region.slice(range)?,
            Memory::Gpu(region) => region.slice(range)?,
        })
    }

    /// Writes to it by the CPU.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Memory::Host(region) => _ = region.memory().write(offset, bytes),
            Memory::Gpu(region) => region.memory().write(offset, bytes)?,
        }
        Ok(())
    }

    /// Makes a stream wait until the word of a piece has reached `round`.
    pub(crate) fn await_piece(&self, batch: Batch, piece: usize, round: u64) -> Result<Batch, Failure> {
        let offset = Cut::word(piece).start;
        Ok(match self {
            Memory::Host(region) => batch.wait_value64(&region.word64(offset)?, Condition::Geq, round),
            Memory::Gpu(region) => {
                batch.wait_value64(&GpuWord64::new(region.memory(), offset)?, Condition::Geq, round)
            }
        })
    }
}

/// The persistent kernel's argument: `struct service` of matvec.cu.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Service {
    pub(crate) matrix: u64,
    pub(crate) inputs: u64,
    pub(crate) results: u64,
    pub(crate) arrived: u64,
    pub(crate) client_results: u64,
    pub(crate) client_arrived: u64,
    pub(crate) failure: u64,
    pub(crate) joined: u64,
    pub(crate) first_round: u64,
    pub(crate) rounds: u64,
    pub(crate) vectors: u32,
    pub(crate) lkey: u32,
    pub(crate) results_rkey: u32,
    pub(crate) arrived_rkey: u32,
    pub(crate) sharers: u32,
    pub(crate) unused: u32,
}

// SAFETY: plain integers with the kernel's layout.
unsafe impl DeviceRepr for Service {}
