//! What a look at the control connections has found.

use super::message::Message;
use crate::error::DeathCause;

#[derive(Debug, Default)]
pub(super) struct News {
    /// Of each rank in the order in which it sent them.
    pub(super) arrived: Vec<(u32, Message)>,
    pub(super) dead: Vec<(u32, DeathCause)>,
    /// Messages have arrived elsewhere, or never will.
    pub(super) has_sent: bool,
}
