//! What a trace has, in numbers.

/// What a trace has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Events, without names.
    pub events: u64,
    /// Messages with an arrow.
    pub messages: u64,
    /// Processes.
    pub processes: u64,
    /// Records that processes have dropped: their parts were full, or could not be written; and records of no kind that
    /// this version knows.
    pub dropped: u64,
    /// Parts without their end: of processes that a signal has ended, or whose file was cut.
    pub cut_off: u64,
}
