//! Refusals of the device: a status of the format, and a syndrome that names the check.

use crate::errno::Errno;
use gdsync_sys::prm::command::header;
use softhca::card::{CardError, ModifyError};

/// Status of a command (`MLX5_CMD_STAT_*` of `mlx5_ifc.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    InternalError = 0x1,
    BadOpcode = 0x2,
    BadParameter = 0x3,
    BadResource = 0x5,
    ResourceBusy = 0x6,
    LimitExceeded = 0x8,
    BadQpState = 0x10,
    BadInputLength = 0x50,
}

/// The check that refused a command. Syndromes are numbers of the firmware; these are this card's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Syndrome {
    Opcode = 0x0050_0001,
    InputLength = 0x0050_0002,
    /// The card refused; the log has its error.
    Card = 0x0050_0003,
    CapabilityType = 0x0050_0101,
    UmemId = 0x0050_0201,
    UmemBounds = 0x0050_0202,
    UmemAlignment = 0x0050_0203,
    UmemAccess = 0x0050_0204,
    UarPage = 0x0050_0301,
    EventQueue = 0x0050_0302,
    ProtectionDomain = 0x0050_0303,
    CqNumber = 0x0050_0304,
    SrqNumber = 0x0050_0305,
    CqContext = 0x0050_0401,
    QpContext = 0x0050_0501,
    QpTransport = 0x0050_0502,
    QpState = 0x0050_0503,
    QpParameterMask = 0x0050_0504,
    QpExtension = 0x0050_0505,
    AddressPath = 0x0050_0506,
    MkeyContext = 0x0050_0601,
    RmpContext = 0x0050_0701,
    DctContext = 0x0050_0702,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: Status,
    pub(super) syndrome: Syndrome,
}

impl Refusal {
    /// Refuses `value`; `limit` describes the accepted values.
    pub(super) fn new(status: Status, syndrome: Syndrome, value: u64, limit: &'static str) -> Self {
        tracing::warn!(?status, ?syndrome, value, limit, "a DEVX command is refused");
        Refusal { status, syndrome }
    }

    pub(super) fn parameter(syndrome: Syndrome, value: impl Into<u64>, limit: &'static str) -> Self {
        Refusal::new(Status::BadParameter, syndrome, value.into(), limit)
    }

    pub(super) fn resource(syndrome: Syndrome, number: u32, limit: &'static str) -> Self {
        Refusal::new(Status::BadResource, syndrome, number.into(), limit)
    }

    pub(super) fn output(self) -> Vec<u8> {
        let mut output = vec![0; header::BYTES];
        header::STATUS.put(&mut output, self.status as u8);
        header::SYNDROME.put(&mut output, self.syndrome as u32);
        output
    }
}

impl From<CardError> for Refusal {
    fn from(error: CardError) -> Self {
        tracing::warn!(%error, "the card refused a DEVX command");
        let status = match error {
            CardError::NotFound { .. } => Status::BadResource,
            CardError::Busy { .. } => Status::ResourceBusy,
            CardError::TooMany { .. } => Status::LimitExceeded,
            CardError::Modify(ModifyError::Transition { .. }) => Status::BadQpState,
            CardError::Invalid(_) | CardError::Modify(_) | CardError::Region(_) => Status::BadParameter,
            _ => Status::InternalError,
        };
        Refusal { status, syndrome: Syndrome::Card }
    }
}

/// The failure of a command: the device refuses it, or the kernel does not pass it to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Refused(Refusal),
    Errno(Errno),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::Refused(refusal)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Failure::Errno(errno)
    }
}

impl From<CardError> for Failure {
    fn from(error: CardError) -> Self {
        Failure::Refused(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softhca::card::RegionError;

    #[test]
    fn a_refusal_says_status_and_syndrome_where_programs_look() {
        let output = Refusal::parameter(Syndrome::UmemBounds, 7u8, "at most 6").output();
        assert_eq!(output[..8], [3, 0, 0, 0, 0, 0x50, 2, 2]);
        assert_eq!(output.len(), 16);
    }

    #[test]
    fn errors_of_the_card_have_the_statuses_of_the_device() {
        let status = |error: CardError| Refusal::from(error).status;
        assert_eq!(status(CardError::NotFound { what: "thing", number: 1 }), Status::BadResource);
        assert_eq!(status(CardError::Busy { what: "thing", number: 1, users: 1 }), Status::ResourceBusy);
        assert_eq!(status(CardError::TooMany { what: "things", limit: 1 }), Status::LimitExceeded);
        let unmapped = RegionError::Unmapped { addr: 0, len: 1 };
        assert_eq!(status(unmapped.into()), Status::BadParameter);
        assert_eq!(status(std::io::Error::from_raw_os_error(1).into()), Status::InternalError);
    }
}
