//! Commands in the device's own language: their errors, and what a device says that it can do.

use crate::verbs::{Device, DeviceInner, Error, call};
use gdsync_sys::prm::command::encode::{self, CAPABILITIES};
use gdsync_sys::prm::command::{cap, header};
use libc::c_int;
use std::{fmt, io};

/// Why queues could not be made, or changed, by commands of the device
/// ([`crate::verbs::QueueApi::Devx`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevxError {
    /// The device refused a command.
    #[error("the device refused {command} ({detail}): {status}, syndrome {syndrome:#010x}: {}", .status.remedy())]
    Refused {
        /// Name of the command, as in the device's manual.
        command: &'static str,
        /// What it was asked for.
        detail: String,
        /// What kind of refusal it is.
        status: DevxStatus,
        /// Where in the firmware it was refused: a number that means something to the vendor.
        syndrome: u32,
    },
    /// The device takes no commands from programs.
    #[error(
        "device {device} takes no commands from programs ({reason}): make its queues by verbs (QueueApi::Verbs)"
    )]
    Unavailable {
        /// Name of the device.
        device: String,
        /// Why not.
        reason: &'static str,
    },
    /// A queue pair of verbs cannot complete in a queue that verbs do not know.
    #[error(
        "completion queue {cqn:#x} was made by commands, where a queue pair of verbs cannot complete: make both by commands, or both by verbs"
    )]
    OtherMaker {
        /// Number of the completion queue.
        cqn: u32,
    },
    /// A completion queue that commands make has no completion channel.
    #[error(
        "a completion queue that is made by commands, or lies in a GPU's memory, has no completion channel: have verbs make it in the host's memory, where queue pairs that commands make complete, too"
    )]
    NoChannel,
    /// Commands make queue pairs with receive queues of their own.
    #[error(
        "a queue pair that is made by commands has a receive queue of its own: have verbs make one that takes from a shared receive queue"
    )]
    NoSharedReceives,
    /// Commands make queue pairs of RC, UC and UD.
    #[error(
        "commands make no DC queue pairs here: have verbs make it (QueueApi::Verbs), in the host's memory"
    )]
    NoDc,
}

/// Status of a command that the device has refused (`MLX5_CMD_STAT_*` of `mlx5_ifc.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DevxStatus(pub u8);

/// Status, name, remedy.
const KNOWN: &[(u8, &str, &str)] = &[
    (0x01, "internal error", "look into the kernel's log"),
    (0x02, "bad operation", "this firmware does not have the command: make the queues by verbs"),
    (0x03, "bad parameter", "ask for smaller queues, or other attributes"),
    (0x04, "bad system state", "look into the kernel's log"),
    (0x05, "bad resource", "an object that the command names is not there"),
    (0x06, "resource busy", "destroy what uses it first"),
    (0x08, "limit exceeded", "the device has no more of them: destroy some"),
    (0x09, "bad resource state", "the object is in another state than the command needs"),
    (0x0a, "bad index", "an object that the command names is not there"),
    (0x0f, "no resources", "the device has no more of them: destroy some"),
    (0x10, "bad queue pair state", "the queue pair is in another state than the command needs"),
    (0x50, "bad input length", "this firmware has another layout of the command: make the queues by verbs"),
    (0x51, "bad output length", "this firmware has another layout of the command: make the queues by verbs"),
];

impl DevxStatus {
    fn known(self) -> Option<&'static (u8, &'static str, &'static str)> {
        KNOWN.iter().find(|(code, ..)| *code == self.0)
    }

    fn remedy(self) -> &'static str {
        self.known().map_or("look into the kernel's log", |(.., remedy)| remedy)
    }
}

impl fmt::Display for DevxStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((code, name, _)) => write!(f, "{name} (status {code:#04x})"),
            None => write!(f, "status {:#04x}", self.0),
        }
    }
}

/// What a call that failed, with `errno` or its result, has said in its answer. An answer with a
/// status is the device's, whichever number the kernel makes of it.
pub(crate) fn failure(command: &'static str, detail: String, answer: &[u8], source: io::Error) -> Error {
    let status = header::STATUS.get8(answer);
    if status == 0 {
        return Error::Verbs { call: command, detail, source };
    }
    let syndrome = header::SYNDROME.get32(answer);
    DevxError::Refused { command, detail, status: DevxStatus(status), syndrome }.into()
}

/// The outcome of a call with the result `rc`. The device may have written its own answer.
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
        // EREMOTEIO of newer kernels, others of older ones.
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
