//! Objects of the device: creation, transitions and queries by handle. A command may also name an object of
//! verbs, because all objects share one space of handles.

use super::message::{answer, created, opcode_of};
use super::status::{Failure, Refusal, Status, Syndrome};
use super::{cq, dct, events, mkey, modify, qp, rmp};
use crate::attributes::Request;
use crate::context::{Context, Object, Objects};
use crate::errno::{Errno, Result};
use crate::resource::Resource;
use crate::uapi::devx::{attr, object as kind};
use crate::verbs;
use gdsync_sys::prm::command::{header, opcode};
use softhca::card::{QpConfig, Transport};

pub(super) fn create(context: &Context, request: &Request) -> Result<()> {
    let input = request.bytes(attr::OBJ_IN)?;
    super::check_command(context, &input)?;
    let mut objects = context.objects.lock();
    let outcome = make(context, &objects, &input).map(|(object, output)| (objects.add(object), output));
    drop(objects);
    if let Ok((handle, _)) = outcome {
        request.answer_created(attr::HANDLE, handle)?;
    }
    answer(request, attr::OBJ_OUT, outcome.map(|(_, output)| output))
}

/// Creates an object. Also returns its answer.
fn make(
    context: &Context,
    objects: &Objects,
    input: &[u8],
) -> std::result::Result<(Object, Vec<u8>), Failure> {
    match opcode_of(input) {
        opcode::CREATE_CQ => Ok(cq::create(context, objects, input)?),
        opcode::CREATE_QP => Ok(qp::create(context, objects, input)?),
        opcode::CREATE_RMP => Ok(rmp::create(context, objects, input)?),
        opcode::CREATE_DCT => Ok(dct::create(context, objects, input)?),
        opcode::CREATE_MKEY => Ok(mkey::create(context, objects, input)?),
        opcode::ALLOC_PD => {
            let number = context.card().alloc_pd()?;
            Ok((Object::new(kind::DEVX_OBJ, Resource::Pd(number)), created(number)))
        }
        // Of one signature, and of an entry that there is not yet.
        opcode @ opcode::CREATE_PSV if header::NUM_PSV.get(input) == 1 => Err(unknown(opcode)),
        opcode @ opcode::SET_FLOW_TABLE_ENTRY if header::OP_MOD.is_set(input) => Err(misplaced(opcode)),
        opcode if opcode::CREATE_OTHERS.contains(&opcode) => Err(unknown(opcode)),
        opcode => Err(misplaced(opcode)),
    }
}

/// Refuses an opcode that the kernel passes on and this card does not support.
fn unknown(opcode: u16) -> Failure {
    let limit = "protection domains, memory keys, completion queues, queue pairs, receive memory pools and DC targets";
    Refusal::new(Status::BadOpcode, Syndrome::Opcode, opcode.into(), limit).into()
}

/// Refuses an opcode that the kernel does not pass on for this method or object.
fn misplaced(opcode: u16) -> Failure {
    tracing::warn!(opcode, "not a command for this method, or not for this object");
    Errno::INVALID.into()
}

/// Kinds of objects, by the command that creates them. A number names an object together with its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cq,
    Qp,
    /// A target of dynamically connected transport.
    Target,
    Pool,
    XrcQueue,
    Key,
}

/// Returns the kind of object that a command modifies, of those that the card has (`devx_is_obj_modify_cmd`,
/// `devx_get_obj_id`).
fn modified_by(opcode: u16) -> Option<Kind> {
    match opcode {
        opcode::MODIFY_CQ => Some(Kind::Cq),
        opcode::MODIFY_RMP => Some(Kind::Pool),
        opcode::ARM_XRC_SRQ => Some(Kind::XrcQueue),
        opcode::ARM_DCT_FOR_KEY_VIOLATION => Some(Kind::Target),
        _ => modify::is_transition(opcode).then_some(Kind::Qp),
    }
}

/// As [`modified_by`], for queries (`devx_is_obj_query_cmd`).
fn queried_by(opcode: u16) -> Option<Kind> {
    match opcode {
        opcode::QUERY_MKEY => Some(Kind::Key),
        opcode::QUERY_CQ => Some(Kind::Cq),
        opcode::QUERY_QP => Some(Kind::Qp),
        opcode::QUERY_XRC_SRQ => Some(Kind::XrcQueue),
        opcode::QUERY_DCT => Some(Kind::Target),
        opcode::QUERY_RMP => Some(Kind::Pool),
        _ => None,
    }
}

/// The object of a command, and its DEVX state if a command has created it.
enum Target<'a> {
    Cq(u32, Option<&'a cq::Cq>),
    /// Also its UDP source port.
    Qp(u32, QpConfig, Option<&'a qp::Qp>, u16),
    /// One that the card creates and destroys only.
    Other,
}

impl Target<'_> {
    /// Returns the object of a handle. The command must name the same object by kind and number
    /// (`devx_is_valid_obj_id`).
    fn find<'a>(objects: &'a Objects, handle: u32, kind: Option<Kind>, input: &[u8]) -> Result<Target<'a>> {
        let object = objects.get(handle)?;
        let resource = object.resource.ok_or(Errno::INVALID)?;
        let number = resource.number();
        let (of, number, target) = match resource {
            Resource::Cq(_) => (Kind::Cq, number, Target::Cq(number, object.state())),
            Resource::Qp(_) => match (object.state::<qp::Qp>(), object.state::<verbs::qp::Qp>()) {
                (Some(qp), _) => (Kind::Qp, number, Target::Qp(number, qp.config, Some(qp), qp.source_port)),
                (None, Some(qp)) if qp.config.transport != Transport::DcTarget => {
                    (Kind::Qp, number, Target::Qp(number, qp.config, None, qp.source_port))
                }
                _ => (Kind::Target, number, Target::Other),
            },
            Resource::Srq(_) => match object.state::<verbs::srq::Srq>() {
                Some(srq) if srq.is_xrc => (Kind::XrcQueue, number, Target::Other),
                _ => (Kind::Pool, number, Target::Other),
            },
            // The number is without the bits that the program chooses. A kernel does not tell those of verbs.
            Resource::Mkey(key) if objects.check(Some(kind::DEVX_OBJ), handle).is_ok() => {
                (Kind::Key, key >> 8, Target::Other)
            }
            _ => return Err(Errno::INVALID),
        };
        if kind != Some(of) || header::NUMBER.get32(input) != number {
            let opcode = opcode_of(input);
            tracing::warn!(opcode, handle, number, "a command names another object than its handle");
            return Err(Errno::INVALID);
        }
        Ok(target)
    }
}

pub(super) fn modify(context: &Context, request: &Request) -> Result<()> {
    let input = request.bytes(attr::OBJ_IN)?;
    super::check_command(context, &input)?;
    let handle = request.handle(attr::HANDLE)?;
    let mut objects = context.objects.lock();
    let opcode = opcode_of(&input);
    let outcome = match Target::find(&objects, handle, modified_by(opcode), &input)? {
        Target::Qp(number, config, ..) => {
            modify::perform(context, number, config.transport, opcode, &input).map_err(Failure::from)
        }
        _ => Err(unknown(opcode)),
    };
    if let (Ok(_), Some(port)) = (&outcome, modify::source_port(opcode, &input)) {
        match objects.state_mut::<qp::Qp>(handle) {
            Ok(qp) => qp.source_port = port,
            Err(_) => objects.state_mut::<verbs::qp::Qp>(handle)?.source_port = port,
        }
    }
    if outcome.is_ok()
        && let Ok(qp) = objects.state_mut::<verbs::qp::Qp>(handle)
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

pub(super) fn query(context: &Context, request: &Request) -> Result<()> {
    let input = request.bytes(attr::OBJ_IN)?;
    super::check_command(context, &input)?;
    let outcome = ask(context, request.handle(attr::HANDLE)?, &input)?;
    answer(request, attr::OBJ_OUT, outcome)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY`: the answer, also that of a refused command, goes to a file before
/// the command returns.
pub(super) fn query_async(context: &Context, request: &Request) -> Result<()> {
    let input = request.bytes(attr::OBJ_IN)?;
    super::check_command(context, &input)?;
    let room = u16::try_from(request.number(attr::ASYNC_QUERY_OUT_LEN)?).map_err(|_| Errno::INVALID)?;
    let file = events::file(context, request, attr::ASYNC_QUERY_FD)?;
    let mut output = match ask(context, request.handle(attr::HANDLE)?, &input)? {
        Ok(output) => output,
        Err(Failure::Refused(refusal)) => refusal.output(),
        Err(Failure::Errno(errno)) => return Err(errno),
    };
    output.resize(room.into(), 0);
    // `struct mlx5_ib_uapi_devx_async_cmd_hdr`: the program's number, and the answer.
    let number = request.number(attr::ASYNC_QUERY_WR_ID)?;
    file.push([&number.to_ne_bytes(), output.as_slice()].concat(), 0)
}

fn ask(context: &Context, handle: u32, input: &[u8]) -> Result<std::result::Result<Vec<u8>, Failure>> {
    let objects = context.objects.lock();
    let opcode = opcode_of(input);
    Ok(match Target::find(&objects, handle, queried_by(opcode), input)? {
        Target::Cq(number, cq) => cq::query(context, number, cq).map_err(Failure::from),
        Target::Qp(number, config, qp, port) => {
            qp::query(context, number, &config, qp, port).map_err(Failure::from)
        }
        Target::Other => Err(unknown(opcode)),
    })
}
