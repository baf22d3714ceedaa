//! Checks of the objects that a command names by number: they must belong to its context, created by verbs or
//! by a command.

use super::status::{Refusal, Syndrome};
use crate::context::Objects;
use crate::resource::Resource;

/// The event queue of every completion vector. The card has none; programs pass the number back in `c_eqn`.
pub(super) const EVENT_QUEUE: u8 = 5;

pub(super) fn check_pd(objects: &Objects, number: u32) -> Result<(), Refusal> {
    let limit = "a protection domain of this context";
    check(objects, Resource::Pd(number), Syndrome::ProtectionDomain, limit)
}

pub(super) fn check_cq(objects: &Objects, number: u32) -> Result<(), Refusal> {
    let limit = "a completion queue of this context";
    check(objects, Resource::Cq(number), Syndrome::CqNumber, limit)
}

pub(super) fn check_srq(objects: &Objects, number: u32) -> Result<(), Refusal> {
    let limit = "a shared receive queue or a pool of this context";
    check(objects, Resource::Srq(number), Syndrome::SrqNumber, limit)
}

pub(super) fn check_uar(objects: &Objects, page: u32) -> Result<(), Refusal> {
    check(objects, Resource::Uar(page), Syndrome::UarPage, "a UAR page of this context")
}

fn check(
    objects: &Objects,
    resource: Resource,
    syndrome: Syndrome,
    limit: &'static str,
) -> Result<(), Refusal> {
    if objects.has(resource) { Ok(()) } else { Err(Refusal::resource(syndrome, resource.number(), limit)) }
}
