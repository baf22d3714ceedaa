//! Validation of the whole environment.

use crate::card::{Checks, Limits, LinkLayer, PkeyTable, StoppedPeers, WaitRules};
use crate::devices;
use crate::fabric::check_key;
use crate::setting::{self, SettingError};
use crate::speed::Speed;
use crate::{faults, liberties};

/// Checks every setting of the card in the environment. Neither front lists or opens devices if this fails; a
/// program may call it first, for example to report the error in its own words.
///
/// # Errors
/// The first setting that is unknown or malformed.
pub fn check() -> Result<(), SettingError> {
    check_of(&devices::devices_from_environment()?)
}

/// As [`check`], for a process with other devices than those that the environment says.
///
/// # Errors
/// As [`check`].
pub fn check_of(devices: &[LinkLayer]) -> Result<(), SettingError> {
    setting::check_names()?;
    devices::devices_from_environment()?;
    PkeyTable::of_devices(devices)?;
    check_key()?;
    Speed::from_environment()?;
    Limits::from_environment()?;
    Checks::from_environment()?;
    WaitRules::from_environment()?;
    StoppedPeers::from_environment()?;
    liberties::from_environment()?;
    faults::plan_from_environment()?;
    Ok(())
}
