//! Capabilities that only the device's own language tells of.

use crate::verbs::devx::check;
use crate::verbs::{Device, DeviceInner, DevxError, Error};
use gdsync_sys::prm::command::cap;
use gdsync_sys::prm::command::encode::{self, CAPABILITIES};

/// What a card can wait for by itself, and how its queues release each other
/// ([`gdsync_sys::prm::wait`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardWaits {
    /// WAIT for a word of memory, on any queue pair (`wait_on_data`; ConnectX-7).
    pub data: bool,
    /// WAIT for a time of the card's clock (`wait_on_time`).
    pub time: bool,
    /// WAIT for a completion queue, and SEND_EN for queue pairs that commands make (`cd`).
    pub queues: bool,
    /// Completion queues that ignore overruns (`cq_oi`).
    pub ignore_overrun: bool,
    /// Most queue pairs without a doorbell record of sends, which one store rings
    /// (`send_dbr_mode_no_dbr_ext`; ConnectX-8); 0 where there are none.
    pub recordless: u32,
}

impl Device {
    /// What the card can wait for by itself. A provider that cannot be asked, a libmlx5 before
    /// rdma-core 21, has nothing of it.
    ///
    /// ```
    /// use gdsync::Device;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let waits = Device::software()?.card_waits()?;
    /// assert!(waits.data && waits.queues);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Devx`] or [`Error::Verbs`], where the device or the kernel does not answer.
    pub fn card_waits(&self) -> Result<CardWaits, Error> {
        self.inner.card_waits()
    }
}

impl DeviceInner {
    pub(crate) fn card_waits(&self) -> Result<CardWaits, Error> {
        if self.api.devx_general_cmd.is_none() {
            return Ok(CardWaits::default());
        }
        let general = self.capabilities(cap::TYPE_GENERAL)?;
        let more = match self.capabilities(cap::TYPE_GENERAL_2) {
            // Firmware that does not know the second part has nothing of it.
            Err(Error::Devx(DevxError::Refused { .. })) => vec![0; CAPABILITIES],
            answer => answer?,
        };
        let recordless = cap::SEND_DBR_MODE_NO_DBR_EXT.is_set(&more);
        Ok(CardWaits {
            data: cap::WAIT_ON_DATA.is_set(&general),
            time: cap::WAIT_ON_TIME.is_set(&general),
            queues: cap::CD.is_set(&general),
            ignore_overrun: cap::CQ_OI.is_set(&general),
            recordless: if recordless { 1 << cap::LOG_MAX_SEND_DBR_LESS_QP_SQ.get32(&more) } else { 0 },
        })
    }

    /// The answer to QUERY_HCA_CAP: what the device is set to, of a type of capabilities
    /// (`cap::TYPE_*`).
    pub(crate) fn capabilities(&self, kind: u64) -> Result<Vec<u8>, Error> {
        let input = encode::query_capabilities(kind);
        let mut answer = vec![0u8; CAPABILITIES];
        let general_cmd = self.api.devx_general_cmd.ok_or_else(|| DevxError::Unavailable {
            device: self.name.to_owned(),
            reason: "its libmlx5 is older than rdma-core 21",
        })?;
        let (asked, told) = (input.as_ptr().cast(), answer.as_mut_ptr().cast());
        // SAFETY: the context is open; both buffers have the lengths that are given.
        let rc = unsafe { general_cmd(self.context(), asked, input.len(), told, answer.len()) };
        check("QUERY_HCA_CAP", rc, &answer, || format!("capabilities of type {kind:#x}"))?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{DevxStatus, provider};

    #[test]
    fn the_software_card_waits() {
        let waits = Device::open(provider::software(), None).unwrap().card_waits().unwrap();
        let all = CardWaits { data: true, time: true, queues: true, ignore_overrun: true, recordless: 256 };
        assert_eq!(waits, all);
    }

    #[test]
    fn a_type_that_the_device_does_not_know_is_refused() {
        let device = Device::open(provider::software(), None).unwrap();
        let error = device.inner.capabilities(0x3f).unwrap_err();
        let Error::Devx(DevxError::Refused { command, status, .. }) = error else { panic!("{error}") };
        assert_eq!((command, status), ("QUERY_HCA_CAP", DevxStatus(3)));
    }
}
