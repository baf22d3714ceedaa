//! The environment as a whole.

use crate::card::{Limits, WaitRules};
use crate::devices;
use crate::fabric::check_key;
use crate::setting::{self, SettingError};
use crate::speed::Speed;
use crate::{faults, liberties};

/// Checks every setting of the card in the environment. Both fronts refuse to list or open devices
/// where this fails; a program may ask before, for example to say so in its own words.
///
/// # Errors
/// The first setting that is unknown or malformed.
pub fn check() -> Result<(), SettingError> {
    setting::check_names()?;
    devices::devices_from_environment()?;
    check_key()?;
    Speed::from_environment()?;
    Limits::from_environment()?;
    WaitRules::from_environment()?;
    liberties::from_environment()?;
    faults::plan_from_environment()?;
    Ok(())
}
