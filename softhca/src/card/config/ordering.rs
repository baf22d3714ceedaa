//! The order in which the messages of a queue pair reach memory.

use gdsync_sys::prm::command::data_ordering;

/// The order in which the messages of a queue pair reach memory.
///
/// Bytes of a message that may overtake others are in memory before its completion, before an atomic operation or a read
/// that comes later executes, and before its acknowledgement; entries of completions keep their order
/// (`MLX5DV_QP_CREATE_OOO_DP` in mlx5dv_create_qp(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataOrdering {
    /// That of the messages, but for regions with relaxed ordering.
    #[default]
    InOrder = data_ordering::IBTA,
    /// Writes and results of reads in any order. The software card makes no difference to [`Self::AnyOrder`].
    WritesInAnyOrder = data_ordering::OOO_RW,
    /// Sends, too.
    AnyOrder = data_ordering::OOO_ALL,
}

impl DataOrdering {
    /// Returns the order of `dp_ordering_1` and `dp_ordering_0`. `None` for a code without a meaning.
    pub fn of_code(code: u8) -> Option<Self> {
        [DataOrdering::InOrder, DataOrdering::WritesInAnyOrder, DataOrdering::AnyOrder]
            .into_iter()
            .find(|ordering| *ordering as u8 == code)
    }
}
