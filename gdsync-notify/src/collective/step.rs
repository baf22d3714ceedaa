//! The steps of a rank in a round of a collective, as data.

/// An area of a plan's memory, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Input,
    Output,
    /// Blocks that are forwarded to another rank.
    Transit,
    /// Blocks to reduce, by source rank.
    Arrived,
}

impl Area {
    pub(crate) const COUNT: usize = Self::ALL.len();
    pub(crate) const ALL: [Area; 4] = [Area::Input, Area::Output, Area::Transit, Area::Arrived];
}

/// A copy of consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) from: (Area, u32),
    pub(crate) to: (Area, u32),
    pub(crate) blocks: u32,
}

/// A step of a rank. Ranks are indices among the members of the team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Writes to a rank, then sets its word.
    Send { to: u32, copies: Vec<Copy>, word: u32 },
    /// Waits until the word is set in this round.
    Wait { word: u32 },
    /// Waits until the word is set in the last round; skipped in the first.
    WaitForLast { word: u32 },
    /// Waits until all that was sent to a rank has been read here.
    WaitSent { to: u32 },
    /// Reduces blocks of the output with arrived ones.
    Reduce { into: u32, from: u32, count: u32 },
}

/// The steps of a rank, in the order of its stream.
pub(crate) type Program = Vec<Step>;
