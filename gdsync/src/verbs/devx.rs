//! DEVX: device commands from programs, and the waits that a card supports.

use crate::verbs::{Device, DeviceInner, DevxError, DevxStatus, Error, call};
use gdsync_sys::prm::command::encode::{self, CAPABILITIES};
use gdsync_sys::prm::command::{cap, header};
use libc::c_int;
use std::io;

/// The error of a call that failed with `source`. A status in the answer is the device's, whatever the errno.
pub(crate) fn failure(command: &'static str, detail: String, answer: &[u8], source: io::Error) -> Error {
    let status = header::STATUS.get8(answer);
    if status == 0 {
        return Error::Verbs { call: command, detail, source };
    }
    let syndrome = header::SYNDROME.get32(answer);
    DevxError::Refused { command, detail, status: DevxStatus(status), syndrome }.into()
}

/// The result of a call that returned `rc`. The device may have written an answer.
pub(crate) fn check(
    command: &'static str,
    rc: c_int,
    answer: &[u8],
    detail: impl Fn() -> String,
) -> Result<(), Error> {
    match call::status(command, rc, &detail) {
        Err(Error::Verbs { source, .. }) => Err(failure(command, detail(), answer, source)),
        other => other,
    }
}

/// The waits that a card performs, and how its queues release each other ([`gdsync_sys::prm::wait`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardWaits {
    /// WAIT for a word of memory, on any queue pair (`wait_on_data`; ConnectX-7).
    pub data: bool,
    /// WAIT for a time of the card's clock (`wait_on_time`).
    pub time: bool,
    /// WAIT for a completion queue, and SEND_EN for queue pairs that DEVX commands make (`cd`).
    pub queues: bool,
    /// Completion queues that ignore overruns (`cq_oi`).
    pub ignore_overrun: bool,
    /// Most queue pairs without a doorbell record of sends, which one store rings (`send_dbr_mode_no_dbr_ext`;
    /// ConnectX-8); 0 if there are none.
    pub recordless: u32,
}

impl Device {
    /// Returns the device's answer to QUERY_HCA_CAP for a type of capabilities, 0x1010 bytes: its current settings. For
    /// tools that compare cards.
    ///
    /// # Errors
    /// [`Error::Devx`] or [`Error::Verbs`], if the device or the kernel refuses.
    #[doc(hidden)]
    pub fn capabilities(&self, kind: u16) -> Result<Vec<u8>, Error> {
        self.inner.capabilities(kind.into())
    }

    /// Returns the waits that the card performs: none if the provider cannot be asked (libmlx5 before rdma-core 21).
    ///
    /// ```
    /// use gdsync::Device;
    /// let waits = Device::software()?.card_waits()?;
    /// assert!(waits.data && waits.queues);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Devx`] or [`Error::Verbs`], if the device or the kernel does not answer.
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
            // Firmware that does not know the second part supports none of it.
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

    /// The answer to QUERY_HCA_CAP for a type of capabilities (`cap::TYPE_*`): the current settings of the device.
    pub(crate) fn capabilities(&self, kind: u64) -> Result<Vec<u8>, Error> {
        let input = encode::query_capabilities(kind);
        let mut answer = vec![0u8; CAPABILITIES];
        let general_cmd = self.api.devx_general_cmd.ok_or_else(|| DevxError::Unavailable {
            device: self.name.to_owned(),
            reason: "its libmlx5 is older than rdma-core 21",
        })?;
        let (asked, told) = (input.as_ptr().cast(), answer.as_mut_ptr().cast());
        // SAFETY: the context is open; both buffers have the given lengths.
        let rc = unsafe { general_cmd(self.context(), asked, input.len(), told, answer.len()) };
        check("QUERY_HCA_CAP", rc, &answer, || format!("capabilities of type {kind:#x}"))?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::provider;
    use gdsync_sys::prm::command::encode::ANSWER;

    #[test]
    fn a_refusal_names_command_status_syndrome_and_remedy() {
        let error = DevxError::Refused {
            command: "CREATE_QP",
            detail: "512 blocks".to_owned(),
            status: DevxStatus(0x08),
            syndrome: 0x50_0003,
        };
        let text = error.to_string();
        let expected =
            "the device refused CREATE_QP (512 blocks): limit exceeded (status 0x08), syndrome 0x00500003: ";
        assert!(text.starts_with(expected) && text.ends_with("destroy some"), "{text}");
        assert_eq!(DevxStatus(0x77).to_string(), "status 0x77");
        assert!(!DevxStatus(0x77).remedy().is_empty());
    }

    fn refused(answer: &[u8], errno: i32) -> Error {
        failure("CREATE_CQ", "8 entries".to_owned(), answer, io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn an_answer_with_a_status_is_the_devices_whatever_the_kernel_says() {
        let mut answer = [0; ANSWER];
        header::STATUS.put(&mut answer, 3u8);
        header::SYNDROME.put(&mut answer, 0x1234_5678u32);
        // EREMOTEIO of newer kernels, other codes of older ones.
        for errno in [libc::EREMOTEIO, libc::EINVAL] {
            let Error::Devx(DevxError::Refused { command: "CREATE_CQ", detail, status, syndrome }) =
                refused(&answer, errno)
            else {
                panic!("{errno}")
            };
            assert_eq!((detail.as_str(), status, syndrome), ("8 entries", DevxStatus(3), 0x1234_5678));
        }
    }

    #[test]
    fn a_call_that_does_not_come_to_the_device_has_the_errno() {
        let error = refused(&[0; ANSWER], libc::ENOMEM);
        let Error::Verbs { call: "CREATE_CQ", source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.raw_os_error(), Some(libc::ENOMEM));
        assert!(error.to_string().starts_with("CREATE_CQ failed (8 entries): "), "{error}");
    }

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
