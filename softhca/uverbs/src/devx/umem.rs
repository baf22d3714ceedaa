//! User memory: ranges that a program lends to the device, for its queues and their records.

use super::abi::attr;
use super::object::Object;
use super::status::{Refusal, Syndrome};
use crate::attributes::Request;
use crate::context::{self, Context, Objects};
use crate::errno::{Errno, Result};
use crate::mr::{self, Mapping};
use softhca::card::{Access, is_mapped};
use std::os::fd::RawFd;

/// A range of memory.
#[derive(Debug)]
pub(crate) struct Umem {
    addr: u64,
    len: u64,
    writable: bool,
    /// Memory of a file instead of the program's own.
    _mapping: Option<Mapping>,
}

/// `MLX5_IB_METHOD_DEVX_UMEM_REG`. The number of the memory is that of its handle.
pub(super) fn register(context: &Context, request: &Request) -> Result<()> {
    request.knows(&[
        attr::HANDLE,
        attr::UMEM_ADDR,
        attr::UMEM_LEN,
        attr::UMEM_ACCESS,
        attr::UMEM_ID,
        attr::UMEM_PAGE_SIZES,
        attr::UMEM_DMABUF_FD,
    ])?;
    let (start, len) = (request.number(attr::UMEM_ADDR)?, request.number(attr::UMEM_LEN)?);
    let access = mr::access_of(request.number32(attr::UMEM_ACCESS)?)?;
    let writable = access.contains(Access::LOCAL_WRITE);
    if len == 0 || !writable && access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
        tracing::warn!(len, ?access, "user memory needs a length, and for remote writes local ones");
        return Err(Errno::INVALID);
    }
    // Any page size will do, as long as there is one.
    if request.optional_number(attr::UMEM_PAGE_SIZES)? == Some(0) {
        return Err(Errno::INVALID);
    }
    let (addr, mapping) = match request.has(attr::UMEM_DMABUF_FD) {
        false => (start, None),
        true => {
            let fd = RawFd::try_from(request.fd(attr::UMEM_DMABUF_FD)?).map_err(|_| Errno::BAD_FD)?;
            let (mapping, addr) = Mapping::new(fd, start, len, writable)?;
            (addr, Some(mapping))
        }
    };
    if !is_mapped(addr, len, writable) {
        tracing::warn!(addr, len, writable, "user memory is not mapped with the access asked for");
        return Err(Errno::FAULT);
    }
    let umem = Object::Umem(Umem { addr, len, writable, _mapping: mapping });
    let handle = context.objects.lock().add(context::Object::Devx(Box::new(umem)));
    request.answer_made(attr::HANDLE, handle)?;
    request.answer_with(attr::UMEM_ID, &handle)
}

/// `MLX5_IB_METHOD_DEVX_UMEM_DEREG`: EBUSY while objects of the device are in it.
pub(super) fn deregister(context: &Context, request: &Request) -> Result<()> {
    let handle = request.handle(attr::HANDLE)?;
    context.destroy(handle, |objects, object, _| {
        if !matches!(object, context::Object::Devx(devx) if matches!(**devx, Object::Umem(_))) {
            return Err(Errno::INVALID);
        }
        let users = objects.devx().filter(|object| object.umems().contains(&handle)).count();
        if users > 0 {
            tracing::warn!(handle, users, "user memory is in use: destroy what is in it first");
            return Err(Errno::BUSY);
        }
        Ok(())
    })
}

/// A part of a umem, as a command names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) id: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// What the address must be a multiple of.
    pub(super) alignment: u64,
    /// Whether the device writes there.
    pub(super) writes: bool,
}

impl Part {
    /// The address of a part, which is inside the memory and still mapped.
    pub(super) fn address(&self, objects: &Objects) -> std::result::Result<u64, Refusal> {
        let Part { id, offset, len, alignment, writes } = *self;
        let Some(umem) = find(objects, id) else {
            return Err(Refusal::resource(Syndrome::UmemId, id, "the number of registered user memory"));
        };
        if offset.checked_add(len).is_none_or(|end| end > umem.len) {
            tracing::warn!(id, offset, len, umem.len, "a command leaves its user memory");
            return Err(Refusal::parameter(Syndrome::UmemBounds, offset, "all of it inside the user memory"));
        }
        let addr = umem.addr + offset;
        if !addr.is_multiple_of(alignment) {
            return Err(Refusal::parameter(
                Syndrome::UmemAlignment,
                addr,
                "aligned: 64 bytes for rings, 8 for records",
            ));
        }
        if writes && !umem.writable || !is_mapped(addr, len, writes) {
            return Err(Refusal::parameter(Syndrome::UmemAccess, addr, "mapped, and writable by the device"));
        }
        Ok(addr)
    }
}

fn find(objects: &Objects, id: u32) -> Option<&Umem> {
    match objects.get(id).ok()? {
        context::Object::Devx(devx) => match &**devx {
            Object::Umem(umem) => Some(umem),
            _ => None,
        },
        _ => None,
    }
}
