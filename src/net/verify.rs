//! What has arrived, compared with what was sent, once the time has been taken.

use super::lanes::WORD;
use super::side::{MEASURED, Net};
use crate::cli::NetOperation;
use crate::failure::Failure;
use crate::sides::Arrival;

impl Net {
    /// Every byte of every place that messages have filled; of atomic operations, the counters and what was found in them.
    pub(super) fn verify(&mut self) -> Result<(), Failure> {
        if !self.options.sides.check {
            return Ok(());
        }
        let operation = self.options.operation;
        if operation.is_atomic() {
            return self.counters().and_then(|()| self.found());
        }
        let has_data = if operation == NetOperation::Read { self.sends() } else { self.awaits() };
        if has_data {
            self.side.driver.arrived(MEASURED, Arrival { is_checked: true, is_timed: false })?;
            // What kernels have found is known when a chunk has passed.
            self.side.driver.mark(0)?;
            self.side.driver.pass()?;
        }
        self.side.findings.error.check()
    }

    /// The counters of this side have counted the other's operations.
    fn counters(&self) -> Result<(), Failure> {
        for (index, lane) in self.lanes.iter().enumerate() {
            let counted = self.side.connection.words.word64(index * WORD)?.load();
            if counted != lane.received {
                return Err(format!(
                    "the counter of queue pair {index} is {counted} after {} operations of the other side",
                    lane.received
                )
                .into());
            }
        }
        Ok(())
    }

    /// Each operation of this side has found what those before it had left.
    fn found(&self) -> Result<(), Failure> {
        for (index, lane) in self.lanes.iter().enumerate() {
            let first = index * self.places.slots as usize;
            for (slot, expected) in lane.found().enumerate() {
                let found = self.results.word64((first + slot) * WORD)?.load();
                if found != expected {
                    return Err(format!(
                        "operation {expected} of queue pair {index} has found {found} in the counter of the other side"
                    )
                    .into());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
