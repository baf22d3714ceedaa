//! User memory: ranges of the program's memory that the device may access, for queues and records. It may be
//! a GPU's, by address or as a dma-buf.

use super::status::{Refusal, Syndrome};
use crate::attributes::Request;
use crate::context::{Context, Object, Objects};
use crate::errno::{Errno, Result};
use crate::uapi::devx::{attr, object};
use crate::verbs::cq::RECORD;
use crate::verbs::mr::{self, Mapping, file_memory};
use softhca::card::{Access, is_reachable};

/// The rights that the kernel lets programs ask for.
const ALLOWED: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::RELAXED_ORDERING);

/// The state of a registered range of memory.
struct Umem {
    addr: u64,
    len: u64,
    writable: bool,
    /// The mapping of a file that was registered instead of an address.
    _mapping: Option<Mapping>,
}

/// `MLX5_IB_METHOD_DEVX_UMEM_REG`. Commands name user memory by its handle.
pub(super) fn register(context: &Context, request: &Request) -> Result<()> {
    super::check_user(context)?;
    let (start, len) = (request.number(attr::UMEM_ADDR)?, request.number(attr::UMEM_LEN)?);
    let flags = request.flags32(attr::UMEM_ACCESS)?;
    let access = mr::access_of(flags)?;
    let writable = access.contains(Access::LOCAL_WRITE);
    if len == 0 || flags & !ALLOWED.bits() != 0 {
        tracing::warn!(len, ?access, "user memory needs a nonzero length, and has no other access rights");
        return Err(Errno::INVALID);
    }
    // The card accepts every page size; the program must allow at least one.
    if request.optional_number(attr::UMEM_PAGE_SIZES)? == Some(0) {
        return Err(Errno::INVALID);
    }
    let (addr, mapping) = match request.has(attr::UMEM_DMABUF_FD) {
        false => (start, None),
        true => file_memory(request.fd(attr::UMEM_DMABUF_FD)?, start, len, writable)?,
    };
    if !is_reachable(addr, len, writable) {
        tracing::warn!(
            addr,
            len,
            writable,
            "user memory is neither mapped with the access asked for nor a GPU's"
        );
        return Err(Errno::FAULT);
    }
    let umem = Umem { addr, len, writable, _mapping: mapping };
    let handle = context.objects.lock().add(Object::new(object::DEVX_UMEM, None).with(umem));
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::UMEM_ID, &handle)
}

/// Returns the page offset of a queue's context, in bytes. The context counts it in 64ths of its page size,
/// which is 4096 << `log_page_size`.
pub(super) fn page_offset(log_page_size: u64, offset: u64) -> u64 {
    offset << (12 + log_page_size) >> 6
}

/// A range of user memory, as a command names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct UmemRange {
    pub(super) id: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Required alignment of the address.
    pub(super) alignment: u64,
    pub(super) usage: Usage,
}

/// The device's accesses to a range of user memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    Reads,
    /// It reads what the program writes.
    Record,
    Writes,
}

impl UmemRange {
    /// A doorbell record, which a device only reads: Linux, too, maps those of verbs for reads
    /// (`mlx5_ib_db_map_user`), and UCX registers them with no access. This card writes them, as the program could: it
    /// marks arms as taken, and clears the record of a queue pair at a reset.
    pub(super) fn record(id: u32, offset: u64) -> Self {
        UmemRange { id, offset, len: RECORD, alignment: RECORD, usage: Usage::Record }
    }

    /// Returns the address of the range, checked to be inside the user memory, aligned and mapped. The program keeps
    /// registered memory mapped, and the context keeps it registered while an object `uses` it.
    pub(super) fn address(&self, objects: &Objects) -> std::result::Result<u64, Refusal> {
        let UmemRange { id, offset, len, alignment, usage } = *self;
        let Ok(umem) = objects.state::<Umem>(id) else {
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
        let is_refused = usage == Usage::Writes && !umem.writable;
        if is_refused || !is_reachable(addr, len, usage != Usage::Reads) {
            return Err(Refusal::parameter(Syndrome::UmemAccess, addr, "mapped, and writable by the device"));
        }
        Ok(addr)
    }
}
