//! Pages of the card that programs map: doorbell registers, and device memory.

use super::mr::{Backing, Source, add};
use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::heritage::Registers;
use crate::privilege;
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use gdsync_sys::prm::doorbell::{UAR_CQ_ARM, UAR_DOORBELLS};
use softhca::card::{Access, DeviceMemory};

/// Bytes of a page.
const PAGE: u32 = 4096;
/// Registers that libmlx5 writes: two BlueFlame registers of two buffers each, and the register that arms
/// completion queues.
pub(crate) const REGISTERS: &[usize] =
    &[UAR_DOORBELLS[0], UAR_DOORBELLS[1], UAR_DOORBELLS[2], UAR_DOORBELLS[3], UAR_CQ_ARM];
/// Type 0 is BlueFlame, 1 is non-cached, 2 is non-cached and dedicated. The card does not distinguish them.
const LAST_TYPE: u64 = 2;
/// `MLX5_IB_UAPI_DM_TYPE_MEMIC`.
const TYPE_MEMIC: u64 = 0;
/// Types that only privileged programs may ask for (`check_dm_type_support` of the driver).
const TYPES_OF_STEERING: std::ops::RangeInclusive<u64> = 1..=2;
/// Device memory is given out in multiples of this (`MLX5_MEMIC_BASE_SIZE`).
const UNIT: u64 = 64;
/// Device memory begins at a page, so it always has this alignment.
const LOG_ALIGNMENT: u32 = 12;

struct Dm {
    memory: DeviceMemory,
    length: u64,
}

/// Checks that a program maps one page of registers, or device memory, of this context. The system itself would also
/// map other parts of the file. Returns the number of the page of registers.
///
/// # Errors
/// EINVAL, as in the kernel.
pub(crate) fn check_mapping(context: &Context, offset: u64, len: usize) -> Result<Option<u32>> {
    let own = context.heritage.registers_at(offset).filter(|_| len <= PAGE as usize);
    let objects = context.objects.lock();
    let is_it = |dm: &Dm| dm.memory.offset == offset && len as u64 <= dm.length.next_multiple_of(PAGE.into());
    let is_own = own.is_some() || objects.states::<Dm>().any(is_it);
    if is_own { Ok(own.map(|registers| registers.id)) } else { Err(Errno::INVALID) }
}

/// The state of registers: their offset.
struct Place(u64);

fn registers_object(id: u32, offset: u64) -> Object {
    Object::new(object::UAR, Resource::Uar(id)).with(Place(offset))
}

/// Makes objects of the registers that a new context has from its parent process.
pub(crate) fn inherit_registers(context: &Context) {
    let mut objects = context.objects.lock();
    for Registers { handle, id, offset } in context.heritage.all_registers() {
        objects.put(handle, registers_object(id, offset));
    }
}

pub(crate) fn alloc_registers(context: &Context, request: &Request) -> Result<()> {
    if request.number(attr::UAR_TYPE)? > LAST_TYPE {
        return Err(Errno::NOT_SUPPORTED);
    }
    let uar = context.card().alloc_uar(REGISTERS)?;
    let (id, offset) = (uar.id, uar.offset);
    let handle = context.objects.lock().add(registers_object(id, offset));
    context.heritage.add(&Registers { handle, id, offset });
    request.answer_created(attr::UAR_HANDLE, handle)?;
    request.answer_with(attr::UAR_MMAP_OFFSET, &uar.offset)?;
    request.answer_with(attr::UAR_MMAP_LENGTH, &PAGE)?;
    request.answer_with(attr::UAR_PAGE_ID, &uar.id)
}

pub(crate) fn destroy_registers(context: &Context, request: &Request) -> Result<()> {
    let handle = request.handle(attr::UAR_HANDLE)?;
    let offset = context.objects.lock().state::<Place>(handle)?.0;
    context.destroy(object::UAR, handle)?;
    context.heritage.remove(offset, handle);
    Ok(())
}

pub(crate) fn alloc_memory(context: &Context, request: &Request) -> Result<()> {
    let kind = request.optional_number(attr::DM_TYPE)?.unwrap_or(TYPE_MEMIC);
    if kind != TYPE_MEMIC {
        tracing::warn!(kind, "the software card has no device memory of steering");
        let may = privilege::has(privilege::NET_RAW) && privilege::has(privilege::SYS_RAWIO);
        let needs = TYPES_OF_STEERING.contains(&kind);
        return Err(if needs && !may { Errno(libc::EPERM) } else { Errno::NOT_SUPPORTED });
    }
    let length = request.number(attr::DM_LENGTH)?;
    let size = length.checked_next_multiple_of(UNIT).filter(|size| *size > 0).ok_or(Errno::INVALID)?;
    if request.number32(attr::DM_ALIGNMENT)? > LOG_ALIGNMENT {
        return Err(Errno::INVALID);
    }
    let memory = context.card().alloc_device_memory(size)?;
    let (page, resource) = (memory.page, Resource::DeviceMemory(memory.page.into()));
    let handle = context.objects.lock().add(Object::new(object::DM, resource).with(Dm { memory, length }));
    request.answer_created(attr::HANDLE, handle)?;
    request.answer_with(attr::DM_START_OFFSET, &0u64)?;
    request.answer_with(attr::DM_PAGE_INDEX, &page)
}

/// `MLX5_IB_METHOD_DM_QUERY`, for a program that imports device memory.
pub(crate) fn query_memory(context: &Context, request: &Request) -> Result<()> {
    let objects = context.objects.lock();
    let dm = objects.state::<Dm>(request.handle(attr::DM_QUERY_HANDLE)?)?;
    request.answer_with(attr::DM_QUERY_START_OFFSET, &0u64)?;
    request.answer_with(attr::DM_QUERY_PAGE_INDEX, &dm.memory.page)?;
    request.answer_with(attr::DM_QUERY_LENGTH, &dm.length.next_multiple_of(UNIT))
}

/// `DM_MR_REG`: a region that begins at 0.
pub(crate) fn register_memory(context: &Context, request: &Request) -> Result<()> {
    let (offset, length) = (request.number(attr::DM_MR_OFFSET)?, request.number(attr::DM_MR_LENGTH)?);
    let flags = request.flags32(attr::DM_MR_ACCESS)?;
    let handle = request.handle(attr::DM_MR_DM)?;
    let objects = context.objects.lock();
    let dm = objects.state::<Dm>(handle)?;
    let is_inside = offset.checked_add(length).is_some_and(|end| end <= dm.length);
    if !is_inside || flags & Access::ZERO_BASED.bits() == 0 {
        return Err(Errno::INVALID);
    }
    let addr = dm.memory.base as u64 + offset;
    drop(objects);
    let source = Source { addr, length, iova: 0, backing: Backing::Device };
    let (mr, key) = add(context, source, request.handle(attr::DM_MR_PD)?, flags, &[handle])?;
    request.answer_created(attr::HANDLE, mr)?;
    request.answer_with(attr::DM_MR_LKEY, &key)?;
    request.answer_with(attr::DM_MR_RKEY, &key)
}
