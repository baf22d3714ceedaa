//! DEVX: commands in the device's own language, as a program writes them with `mlx5dv_devx_*`.
//!
//! The kernel passes them on and keeps account of what they make; this does both parts. The language is `gdsync_sys::prm::command`,
//! `status` is how the device refuses. `general` answers questions, `object` makes, changes and destroys; one module per kind
//! of object performs it on the card. What a command refuses is answered with a status and a syndrome, and EREMOTEIO.

pub(crate) mod abi;
mod capabilities;
mod cq;
mod general;
mod mkey;
mod modify;
mod object;
mod qp;
mod status;
mod umem;

pub(crate) use object::Object;

use crate::attributes::Request;
use crate::context::Context;
use crate::errno::{Errno, Result};
use abi::{attr, method, object as kind};
use gdsync_sys::prm::command::header;
use status::Failure;

/// The event queue that completion vectors name. The card has none; programs pass the number back in `c_eqn`.
const EVENT_QUEUE: u8 = 5;
/// Completion vectors, as the context says.
const VECTORS: u32 = 1;
/// What a failed command is to the program: it shall look into the answer.
const REMOTE: Errno = Errno(libc::EREMOTEIO);

/// Performs a method of DEVX.
pub(crate) fn perform(context: &Context, request: &Request) -> Result<()> {
    match (request.object, request.method) {
        (kind::DEVX, method::OTHER) => general::perform(context, request),
        (kind::DEVX, method::QUERY_EQN) => query_event_queue(request),
        (kind::DEVX_OBJ, method::OBJ_CREATE) => object::create(context, request),
        (kind::DEVX_OBJ, method::OBJ_DESTROY) => object::destroy(context, request),
        (kind::DEVX_OBJ, method::OBJ_MODIFY) => object::modify(context, request),
        (kind::DEVX_OBJ, method::OBJ_QUERY) => object::query(context, request),
        (kind::DEVX_UMEM, method::UMEM_REG) => umem::register(context, request),
        (kind::DEVX_UMEM, method::UMEM_DEREG) => umem::deregister(context, request),
        (object, method) => {
            tracing::info!(object, method, "a method of DEVX that the software card does not have");
            Err(Errno::NOT_SUPPORTED)
        }
    }
}

fn query_event_queue(request: &Request) -> Result<()> {
    let vector = request.number32(attr::EQN_VECTOR)?;
    if vector >= VECTORS {
        tracing::warn!(vector, VECTORS, "there is no such completion vector");
        return Err(Errno::INVALID);
    }
    request.answer_with(attr::EQN_NUMBER, &u32::from(EVENT_QUEUE))
}

/// The bytes of a command, and room for its answer: both have at least a header.
fn input(request: &Request, place: u16, answer: u16) -> Result<Vec<u8>> {
    let input = request.bytes(place)?;
    if input.len() < header::BYTES {
        return Err(Errno::INVALID);
    }
    if request.len(answer) < header::BYTES {
        return Err(Errno::NO_SPACE);
    }
    Ok(input)
}

fn opcode_of(input: &[u8]) -> u16 {
    header::OPCODE.get(input) as u16
}

/// An answer of a command that succeeded and says nothing more.
fn done() -> Vec<u8> {
    vec![0; header::BYTES]
}

/// An answer that names the object that was made.
fn made(number: u32) -> Vec<u8> {
    let mut output = done();
    header::NUMBER.put(&mut output, number);
    output
}

/// Answers a command.
fn answer(request: &Request, place: u16, outcome: std::result::Result<Vec<u8>, Failure>) -> Result<()> {
    match outcome {
        Ok(output) => request.answer(place, &output),
        Err(Failure::Errno(errno)) => Err(errno),
        Err(Failure::Refused(refusal)) => {
            request.answer(place, &refusal.output())?;
            Err(REMOTE)
        }
    }
}
