//! Objects of the device: making, changing, asking and destroying them by handle. A handle may also be one of verbs: they
//! have one space.

use super::abi::attr;
use super::status::{Failure, Refusal, Status, Syndrome};
use super::{answer, cq, input, made, mkey, modify, opcode_of, qp, umem};
use crate::attributes::Request;
use crate::card::OpenCard;
use crate::context::{self, Context, Objects};
use crate::errno::{Errno, Result};
use gdsync_sys::prm::command::{header, opcode};
use softhca::card::QpConfig;

/// Something that a command of the device made.
#[derive(Debug)]
pub(crate) enum Object {
    Umem(umem::Umem),
    Cq(cq::Cq),
    Qp(qp::Qp),
    Mkey(mkey::Mkey),
    /// Protection domain, by number.
    Pd(u32),
}

impl Object {
    /// Where it stands in the order of destruction at the context's end, among the objects of verbs.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Object::Qp(_) => 0,
            Object::Cq(_) => 2,
            Object::Mkey(_) => 3,
            Object::Umem(_) => 4,
            Object::Pd(_) => 5,
        }
    }

    /// Takes it from the card.
    pub(crate) fn destroy(&self, open: &OpenCard) -> Result<()> {
        match self {
            Object::Umem(_) => Ok(()),
            Object::Cq(cq) => Ok(open.card.destroy_cq(cq.number)?),
            Object::Qp(qp) => Ok(open.card.destroy_qp(qp.number)?),
            Object::Mkey(mkey) => Ok(open.card.deregister_memory(mkey.key)?),
            Object::Pd(number) => Ok(open.card.dealloc_pd(*number)?),
        }
    }

    /// The user memory that it is in.
    pub(super) fn umems(&self) -> &[u32] {
        match self {
            Object::Cq(cq) => &cq.umems,
            Object::Qp(qp) => &qp.umems,
            Object::Mkey(mkey) => std::slice::from_ref(&mkey.umem),
            Object::Umem(_) | Object::Pd(_) => &[],
        }
    }
}

impl Objects {
    /// A protection domain of this context, made by verbs or by a command.
    pub(super) fn check_pd(&self, number: u32) -> std::result::Result<(), Refusal> {
        let verbs =
            |object: &context::Object| matches!(object, context::Object::Pd(pd) if pd.number == number);
        let devx = |object: &Object| matches!(object, Object::Pd(pd) if *pd == number);
        if self.iter().any(verbs) || self.devx().any(devx) {
            return Ok(());
        }
        Err(Refusal::resource(Syndrome::ProtectionDomain, number, "a protection domain of this context"))
    }

    /// A completion queue of this context, made by verbs or by a command.
    pub(super) fn check_cq(&self, number: u32) -> std::result::Result<(), Refusal> {
        let verbs =
            |object: &context::Object| matches!(object, context::Object::Cq(cq) if cq.number == number);
        let devx = |object: &Object| matches!(object, Object::Cq(cq) if cq.number == number);
        if self.iter().any(verbs) || self.devx().any(devx) {
            return Ok(());
        }
        Err(Refusal::resource(Syndrome::CqNumber, number, "a completion queue of this context"))
    }
}

/// `MLX5_IB_METHOD_DEVX_OBJ_CREATE`.
pub(super) fn create(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[attr::HANDLE, attr::OBJ_IN, attr::OBJ_OUT])?;
    let input = input(request, attr::OBJ_IN, attr::OBJ_OUT)?;
    let mut objects = context.objects.lock();
    let outcome = make(context, &objects, &input).map(|(object, output)| {
        let handle = objects.add(context::Object::Devx(Box::new(object)));
        (handle, output)
    });
    drop(objects);
    match outcome {
        Ok((handle, output)) => {
            request.answer_made(attr::HANDLE, handle)?;
            answer(request, attr::OBJ_OUT, Ok(output))
        }
        Err(failure) => answer(request, attr::OBJ_OUT, Err(failure)),
    }
}

fn make(
    context: &Context,
    objects: &Objects,
    input: &[u8],
) -> std::result::Result<(Object, Vec<u8>), Failure> {
    match opcode_of(input) {
        opcode::CREATE_CQ => {
            let (cq, output) = cq::create(context, objects, input)?;
            Ok((Object::Cq(cq), output))
        }
        opcode::CREATE_QP => {
            let (qp, output) = qp::create(context, objects, input)?;
            Ok((Object::Qp(qp), output))
        }
        opcode::CREATE_MKEY => {
            let (mkey, output) = mkey::create(context, objects, input)?;
            Ok((Object::Mkey(mkey), output))
        }
        opcode::ALLOC_PD => {
            let number = context.card().alloc_pd()?;
            Ok((Object::Pd(number), made(number)))
        }
        opcode if opcode::CREATE_OTHERS.contains(&opcode) => Err(unknown(opcode)),
        opcode => Err(misplaced(opcode)),
    }
}

/// An opcode that a device may have, and this one has not.
fn unknown(opcode: u16) -> Failure {
    let limit = "protection domains, memory keys, completion queues and queue pairs";
    Refusal::new(Status::BadOpcode, Syndrome::Opcode, opcode.into(), limit).into()
}

/// An opcode that the kernel does not pass on here.
fn misplaced(opcode: u16) -> Failure {
    tracing::warn!(opcode, "not a command for this method, or not for this object");
    Errno::INVALID.into()
}

/// What a command is about, by its handle.
enum Target<'a> {
    Cq(u32, Option<&'a cq::Cq>),
    Qp(u32, QpConfig, Option<&'a qp::Qp>),
}

impl Target<'_> {
    /// The object of a handle. The command must name the same object, by number.
    fn find<'a>(objects: &'a Objects, handle: u32, input: &[u8]) -> Result<Target<'a>> {
        let target = match objects.get(handle)? {
            context::Object::Cq(cq) => Target::Cq(cq.number, None),
            context::Object::Qp(qp) => Target::Qp(qp.number, qp.config, None),
            context::Object::Devx(object) => match &**object {
                Object::Cq(cq) => Target::Cq(cq.number, Some(cq)),
                Object::Qp(qp) => Target::Qp(qp.number, qp.config, Some(qp)),
                _ => return Err(Errno::INVALID),
            },
            _ => return Err(Errno::INVALID),
        };
        let (Target::Cq(number, _) | Target::Qp(number, ..)) = target;
        if header::NUMBER.get32(input) != number {
            tracing::warn!(handle, number, "a command names another object than its handle");
            return Err(Errno::INVALID);
        }
        Ok(target)
    }
}

/// `MLX5_IB_METHOD_DEVX_OBJ_MODIFY`.
pub(super) fn modify(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[attr::HANDLE, attr::OBJ_IN, attr::OBJ_OUT])?;
    let input = input(request, attr::OBJ_IN, attr::OBJ_OUT)?;
    let handle = request.handle(attr::HANDLE)?;
    let mut objects = context.objects.lock();
    let opcode = opcode_of(&input);
    let outcome = match (Target::find(&objects, handle, &input)?, opcode) {
        (Target::Cq(..), opcode::MODIFY_CQ) => Err(unknown(opcode)),
        (Target::Qp(number, config, _), opcode) if modify::is_transition(opcode) => {
            modify::perform(context, number, config.transport, opcode, &input).map_err(Failure::from)
        }
        _ => Err(misplaced(opcode)),
    };
    if outcome.is_ok()
        && let context::Object::Qp(qp) = objects.get_mut(handle)?
    {
        let now = context.card().query_qp(qp.number)?;
        match opcode {
            opcode::INIT2RTR_QP => qp.set_path(Some(&now.address)),
            opcode::TO_RST_QP => qp.set_path(None),
            _ => {}
        }
    }
    drop(objects);
    answer(request, attr::OBJ_OUT, outcome)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_QUERY`.
pub(super) fn query(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[attr::HANDLE, attr::OBJ_IN, attr::OBJ_OUT])?;
    let input = input(request, attr::OBJ_IN, attr::OBJ_OUT)?;
    let handle = request.handle(attr::HANDLE)?;
    let objects = context.objects.lock();
    let outcome = match (Target::find(&objects, handle, &input)?, opcode_of(&input)) {
        (Target::Cq(number, cq), opcode::QUERY_CQ) => cq::query(context, number, cq).map_err(Failure::from),
        (Target::Qp(number, config, qp), opcode::QUERY_QP) => {
            qp::query(context, number, &config, qp).map_err(Failure::from)
        }
        (_, opcode) => Err(misplaced(opcode)),
    };
    drop(objects);
    answer(request, attr::OBJ_OUT, outcome)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_DESTROY`: EBUSY while others use it.
pub(super) fn destroy(context: &Context, request: &Request) -> Result<()> {
    context.destroy(request.handle(attr::HANDLE)?, |_, object, card| match object {
        context::Object::Devx(devx) if !matches!(**devx, Object::Umem(_)) => devx.destroy(card),
        _ => Err(Errno::INVALID),
    })
}
