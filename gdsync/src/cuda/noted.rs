//! Copies that the regions of software cards have noted on a context, until one of them waits for its own: then
//! all are performed together.

use super::error::CudaError;
use super::rows::{Piece, Rows, rows_of};
use std::collections::BTreeMap;

/// The copies of a context, and those that have failed.
#[derive(Debug, Default)]
pub(super) struct Noted {
    pieces: Vec<Piece>,
    /// By the number of a region of which a copy has failed: why. It stays until the region asks.
    failed: BTreeMap<u64, CudaError>,
}

impl Noted {
    pub(super) fn note(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// Whether a region has copies here, or one of its own has failed.
    pub(super) fn concerns(&self, region: u64) -> bool {
        self.failed.contains_key(&region) || self.pieces.iter().any(|piece| piece.region == region)
    }

    /// Has all copies performed. If that fails, nothing says which of them: all regions that have copies here hear of
    /// it.
    pub(super) fn perform(&mut self, perform: impl FnOnce(&[Rows]) -> Result<(), CudaError>) {
        if self.pieces.is_empty() {
            return;
        }
        let outcome = perform(&rows_of(&self.pieces));
        for piece in self.pieces.drain(..) {
            if let Err(error) = &outcome {
                self.failed.entry(piece.region).or_insert_with(|| error.clone());
            }
        }
    }

    /// Forgets a region's copies, which are not performed any more.
    ///
    /// # Errors
    /// One that was performed has failed.
    pub(super) fn forget(&mut self, region: u64) -> Result<(), CudaError> {
        self.pieces.retain(|piece| piece.region != region);
        self.failed.remove(&region).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(region: u64) -> Piece {
        Piece { region, gpu: 1 << 30, range: 4096, host: 4096, len: 4096, is_read: true }
    }

    fn lost() -> CudaError {
        CudaError::NoHostMemory { len: 1, reason: "lost".to_owned() }
    }

    #[test]
    fn a_failure_is_told_to_every_region_that_it_may_concern_and_once() {
        let mut noted = Noted::default();
        [1, 2, 1].into_iter().for_each(|region| noted.note(piece(region)));
        noted.perform(|rows| {
            assert_eq!(rows.len(), 3);
            Err(lost())
        });
        // Others' copies are none of theirs.
        noted.note(piece(3));
        noted.perform(|rows| {
            assert_eq!(rows.len(), 1);
            Ok(())
        });
        assert!(noted.concerns(1) && noted.concerns(2) && !noted.concerns(3));
        for region in [1, 2] {
            assert!(matches!(noted.forget(region), Err(CudaError::NoHostMemory { .. })));
            assert!(noted.forget(region).is_ok() && !noted.concerns(region));
        }
        assert!(noted.forget(3).is_ok());
    }

    #[test]
    fn a_failure_stays_although_later_copies_succeed() {
        let mut noted = Noted::default();
        for outcome in [Err(lost()), Ok(())] {
            noted.note(piece(1));
            noted.perform(|_| outcome);
        }
        assert!(noted.forget(1).is_err());
    }

    #[test]
    fn what_a_region_has_forgotten_is_not_performed() {
        let mut noted = Noted::default();
        [1, 2].into_iter().for_each(|region| noted.note(piece(region)));
        assert!(noted.forget(1).is_ok() && !noted.concerns(1) && noted.concerns(2));
        noted.perform(|rows| {
            assert_eq!(rows.iter().map(|rows| rows.first.region).collect::<Vec<_>>(), [2]);
            Ok(())
        });
        noted.perform(|_| unreachable!("nothing is left"));
    }
}
