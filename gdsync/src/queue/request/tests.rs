use super::*;
use crate::memory::OutOfBounds;
use crate::queue::error::RequestError;

pub(crate) const LIMITS: Limits =
    Limits { segments: 4, inline: 44, message: 1 << 30, transport: Transport::Rc, atomics: true };
const REMOTE: RemoteMemory = RemoteMemory { addr: 0x1000, len: 64, rkey: 9 };

impl Rules for Limits {
    fn limits(&self) -> Limits {
        *self
    }

    fn check(&self, _: &Slice, _: bool) -> Result<(), QueueError> {
        Ok(())
    }

    fn check_address(&self, _: &AddressHandle) -> Result<(), QueueError> {
        Ok(())
    }
}

/// Encodes the whole request as the card reads it.
fn encode(request: WorkRequest<'_>, limits: Limits) -> Result<(CtrlSeg, Vec<u8>), QueueError> {
    request.check(&limits)?;
    let units = request.most_units(limits)?;
    let mut body = Vec::new();
    request.encode(&limits, &mut body)?;
    assert_eq!(body.len(), (units as usize - 1) * SEGMENT, "as many segments as were announced");
    Ok((request.control(0, 0, units as u8), body))
}

#[test]
fn an_inline_write_has_address_length_and_bytes() {
    let (ctrl, body) = encode(WorkRequest::write_inline(b"abc", REMOTE), LIMITS).unwrap();
    let mut expected = Vec::new();
    expected.extend_from_slice(&0x1000u64.to_be_bytes());
    expected.extend_from_slice(&[0, 0, 0, 9, 0, 0, 0, 0]);
    expected.extend_from_slice(&[0x80, 0, 0, 3, b'a', b'b', b'c', 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((body, ctrl.opcode(), ctrl.ds()), (expected, Ok(Opcode::RdmaWrite), 3));
}

#[test]
fn inline_bytes_follow_their_count_at_every_length() {
    for len in 0..=44usize {
        let bytes: Vec<u8> = (1..=len as u8).collect();
        let (_, body) = encode(WorkRequest::send_inline(&bytes), LIMITS).unwrap();
        assert_eq!(body[..4], (0x8000_0000 | len as u32).to_be_bytes());
        assert_eq!((&body[4..4 + len], body.len()), (&bytes[..], (4 + len).div_ceil(16) * 16));
        assert!(body[4 + len..].iter().all(|byte| *byte == 0), "padding is zeroed");
    }
}

#[test]
fn an_immediate_changes_the_opcode_but_not_of_a_read() {
    let opcode = |request: WorkRequest<'_>| encode(request.immediate(1), LIMITS).unwrap().0.opcode();
    assert_eq!(opcode(WorkRequest::send(&[])), Ok(Opcode::SendImm));
    assert_eq!(opcode(WorkRequest::write(&[], REMOTE)), Ok(Opcode::RdmaWriteImm));
    assert_eq!(opcode(WorkRequest::read(&[], REMOTE)), Ok(Opcode::RdmaRead));
}

#[test]
fn limits_are_named() {
    let long = [0; 45];
    let error = encode(WorkRequest::send_inline(&long), LIMITS).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::InlineTooLong { given: 45, limit: 44 })));
    let cut = REMOTE.slice(..43).unwrap();
    let error = encode(WorkRequest::write_inline(&[0; 44], cut), LIMITS).unwrap_err();
    assert!(matches!(error, QueueError::Bounds(OutOfBounds { end: 44, len: 43, .. })));
    let error =
        encode(WorkRequest::send_inline(&long), Limits { message: 40, inline: 64, ..LIMITS }).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::MessageTooLong { given: 45, limit: 40 })));
    let huge = vec![0; 2000];
    let error = encode(WorkRequest::send_inline(&huge), Limits { inline: 4000, ..LIMITS }).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::InlineTooLong { limit: 992, .. })));
}

#[test]
fn flags_are_those_asked_for() {
    let flags = |request| encode(request, LIMITS).unwrap().0.flags();
    let request = WorkRequest::send(&[]).unsignaled().solicited().fence();
    assert_eq!(flags(request), CtrlFlags::SOLICITED | CtrlFlags::FENCE);
    assert_eq!(flags(WorkRequest::send(&[])), CtrlFlags::CQ_UPDATE);
}

#[test]
fn a_request_that_does_nothing_is_a_control_segment() {
    let (ctrl, body) = encode(WorkRequest::nop().fence(), LIMITS).unwrap();
    assert_eq!((ctrl.opcode(), ctrl.ds(), body.len()), (Ok(Opcode::Nop), 1, 0));
    assert_eq!(ctrl.flags(), CtrlFlags::CQ_UPDATE | CtrlFlags::FENCE);
}

#[test]
fn each_transport_takes_its_operations() {
    let on = |transport| Limits { transport, ..LIMITS };
    let requests = [
        (WorkRequest::nop(), true, true),
        (WorkRequest::send(&[]), true, false),
        (WorkRequest::send(&[]).immediate(1), true, false),
        (WorkRequest::write(&[], REMOTE), true, false),
        (WorkRequest::write(&[], REMOTE).immediate(1), true, false),
        (WorkRequest::read(&[], REMOTE), false, false),
    ];
    for (request, on_uc, on_ud) in requests {
        assert!(encode(request.clone(), LIMITS).is_ok(), "{request:?}");
        assert_eq!(encode(request.clone(), on(Transport::Uc)).is_ok(), on_uc, "{request:?}");
        assert_eq!(encode(request.clone(), on(Transport::Ud)).is_ok(), on_ud, "{request:?}");
    }
    let error = encode(WorkRequest::send(&[]), on(Transport::Ud)).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::NoDestination)), "{error}");
    let error = encode(WorkRequest::read(&[], REMOTE), on(Transport::Ud)).unwrap_err().to_string();
    assert!(error.contains("an RDMA read") && error.contains("UD"), "{error}");
}
