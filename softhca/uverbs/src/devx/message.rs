//! The bytes of a command and of its answer.

use super::status::{Failure, Refusal, Status, Syndrome};
use crate::attributes::Request;
use crate::errno::{Errno, Result};
use gdsync_sys::prm::command::header;

/// Reads a command. Input and answer must both have room for a header.
pub(super) fn input(request: &Request, place: u16, answer: u16) -> Result<Vec<u8>> {
    let input = request.bytes(place)?;
    if input.len() < header::BYTES {
        return Err(Errno::INVALID);
    }
    if request.len(answer) < header::BYTES {
        return Err(Errno::NO_SPACE);
    }
    Ok(input)
}

pub(super) fn opcode_of(input: &[u8]) -> u16 {
    header::OPCODE.get(input) as u16
}

/// Checks that a command has at least its fixed part.
pub(super) fn check_length(input: &[u8], len: usize) -> std::result::Result<(), Refusal> {
    if input.len() >= len {
        return Ok(());
    }
    let limit = "at least the fixed part of the command";
    Err(Refusal::new(Status::BadInputLength, Syndrome::InputLength, input.len() as u64, limit))
}

/// The answer of a successful command without results.
pub(super) fn done() -> Vec<u8> {
    vec![0; header::BYTES]
}

/// The answer of a command that has created an object.
pub(super) fn created(number: u32) -> Vec<u8> {
    let mut output = done();
    header::NUMBER.put(&mut output, number);
    output
}

/// Answers a command. EREMOTEIO tells the program to read status and syndrome in the answer.
pub(super) fn answer(
    request: &Request,
    place: u16,
    outcome: std::result::Result<Vec<u8>, Failure>,
) -> Result<()> {
    match outcome {
        Ok(output) => request.answer(place, &output),
        Err(Failure::Errno(errno)) => Err(errno),
        Err(Failure::Refused(refusal)) => {
            request.answer(place, &refusal.output())?;
            Err(Errno(libc::EREMOTEIO))
        }
    }
}
