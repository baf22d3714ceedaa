//! The bytes of a command and of its answer, and checks of the objects that it names by number.

use super::status::{Failure, Refusal, Status, Syndrome};
use crate::attributes::Request;
use crate::context::Objects;
use crate::errno::{Errno, Result};
use crate::resource::Resource;
use gdsync_sys::prm::command::header;

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

/// The event queue of every completion vector. The card has none; programs pass the number back in `c_eqn`.
pub(super) const EVENT_QUEUE: u8 = 5;

/// Checks that an object named by number belongs to the command's context, created by verbs or by a command.
pub(super) fn check_pd(objects: &Objects, number: u32) -> std::result::Result<(), Refusal> {
    let limit = "a protection domain of this context";
    check_owned(objects, Resource::Pd(number), Syndrome::ProtectionDomain, limit)
}

pub(super) fn check_cq(objects: &Objects, number: u32) -> std::result::Result<(), Refusal> {
    let limit = "a completion queue of this context";
    check_owned(objects, Resource::Cq(number), Syndrome::CqNumber, limit)
}

pub(super) fn check_srq(objects: &Objects, number: u32) -> std::result::Result<(), Refusal> {
    let limit = "a shared receive queue or a pool of this context";
    check_owned(objects, Resource::Srq(number), Syndrome::SrqNumber, limit)
}

pub(super) fn check_uar(objects: &Objects, page: u32) -> std::result::Result<(), Refusal> {
    check_owned(objects, Resource::Uar(page), Syndrome::UarPage, "a UAR page of this context")
}

fn check_owned(
    objects: &Objects,
    resource: Resource,
    syndrome: Syndrome,
    limit: &'static str,
) -> std::result::Result<(), Refusal> {
    if objects.has(resource) { Ok(()) } else { Err(Refusal::resource(syndrome, resource.number(), limit)) }
}
