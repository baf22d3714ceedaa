//! The liberties of the cards of this process.

use super::dice::Dice;
use super::plan::Liberties;
use crate::setting::{self, SettingError};
use parking_lot::Mutex;

/// Environment variable with the [`Liberties`] of every card of this process, in their text form. With
/// malformed ones no card starts.
pub const LIBERTIES_VARIABLE: &str = "SOFTHCA_LIBERTIES";

static PROCESS: Mutex<Process> = Mutex::new(Process { given: None, started: 0 });

struct Process {
    /// What stands in place of the environment.
    given: Option<Option<Liberties>>,
    /// Cards started so far.
    started: u64,
}

/// The liberties that the environment gives.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn from_environment() -> Result<Option<Liberties>, SettingError> {
    setting::parsed(LIBERTIES_VARIABLE, str::parse)
}

/// Decides which liberties the cards of this process take that start from now on, whatever the
/// environment says. `None`: none.
pub fn set_liberties(liberties: Option<Liberties>) {
    PROCESS.lock().given = Some(liberties);
}

/// What decides for a card that starts.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn of_next_card() -> Result<Dice, SettingError> {
    let mut process = PROCESS.lock();
    let liberties = match process.given {
        Some(given) => given,
        None => from_environment()?,
    };
    let card = process.started;
    process.started += 1;
    Ok(liberties.map_or_else(Dice::default, |liberties| Dice::new(liberties, card)))
}

/// What decides for a card alone, whatever the process's liberties are.
pub(crate) fn of_one_card(liberties: Option<Liberties>) -> Dice {
    liberties.map_or_else(Dice::default, |liberties| Dice::new(liberties, 0))
}
