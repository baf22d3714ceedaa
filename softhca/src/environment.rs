//! The environment as a whole.

use crate::card::{check_objects, check_wait_rules};
use crate::devices;
use crate::fabric::{check_addresses, check_key};
use crate::faults::check_plan;
use crate::liberties::check_liberties;
use crate::setting::{self, SettingError};
use crate::speed::Speed;

/// Checks every setting of the card in the environment. Both fronts refuse to list or open devices
/// where this fails; a program may ask before, for example to say so in its own words.
///
/// # Errors
/// The first setting that is unknown or malformed.
pub fn check() -> Result<(), SettingError> {
    setting::check_names()?;
    devices::devices_from_environment()?;
    check_addresses()?;
    check_key()?;
    Speed::from_environment()?;
    check_objects()?;
    check_wait_rules()?;
    check_liberties()?;
    check_plan()
}
