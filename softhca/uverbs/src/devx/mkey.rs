//! Memory keys of user memory.

use super::message::{check_length, created};
use super::resources::check_pd;
use super::status::{Refusal, Syndrome};
use super::umem::Part;
use crate::context::{Context, Object, Objects};
use crate::resource::Resource;
use crate::uapi::devx::object;
use gdsync_sys::prm::command::mkey;
use softhca::card::{Access, RegionConfig};

/// `CREATE_MKEY`, of a range of user memory. The answer has the key without its low 8 bits, which
/// the program chooses.
pub(super) fn create(
    context: &Context,
    objects: &Objects,
    input: &[u8],
) -> Result<(Object, Vec<u8>), Refusal> {
    check_length(input, mkey::BYTES)?;
    let mode = mkey::ACCESS_MODE_4_2.get8(input) << 2 | mkey::ACCESS_MODE_1_0.get8(input);
    if mode != mkey::MODE_MTT {
        return Err(Refusal::parameter(Syndrome::MkeyContext, mode, "access mode MTT (1)"));
    }
    for (field, limit) in
        [(mkey::FREE, "no key to be set up later (free 0)"), (mkey::UMR_EN, "no changes by WQE (umr_en 0)")]
    {
        if field.is_set(input) {
            return Err(Refusal::parameter(Syndrome::MkeyContext, 1u8, limit));
        }
    }
    let mut access = Access::empty();
    for (field, right) in [
        (mkey::LW, Access::LOCAL_WRITE),
        (mkey::RR, Access::REMOTE_READ),
        (mkey::RW, Access::REMOTE_WRITE),
        (mkey::A, Access::REMOTE_ATOMIC),
    ] {
        access.set(right, field.is_set(input));
    }
    let part = Part {
        id: mkey::UMEM_ID.get32(input),
        offset: mkey::UMEM_OFFSET.get(input),
        len: mkey::LEN.get(input),
        alignment: 1,
        writes: access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC),
    };
    let addr = part.address(objects)?;
    let (pdn, iova) = (mkey::PD.get32(input), mkey::START_ADDR.get(input));
    check_pd(objects, pdn)?;
    let tag = Some(mkey::MKEY_7_0.get8(input));
    let config = RegionConfig { pdn, addr, len: part.len, iova, access, tag };
    // SAFETY: `Part::address` found the range inside registered user memory, which the program
    // keeps mapped while it is registered. The context keeps it registered while the key `uses` it.
    let key = unsafe { context.card().register_memory(&config) }?;
    let object = Object::new(object::DEVX_OBJ, Resource::Mkey(key)).using([part.id]);
    Ok((object, created(key >> 8)))
}
