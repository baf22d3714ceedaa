//! Memory keys: of user memory, and of ranges of other keys.

use super::message::{check_length, check_pd, created};
use super::status::{Refusal, Status, Syndrome};
use super::umem::{UmemRange, Usage};
use crate::context::{Context, Object, Objects};
use crate::resource::Resource;
use crate::uapi::devx::object;
use gdsync_sys::prm::command::mkey;
use gdsync_sys::prm::wqe::SEGMENT;
use softhca::card::{Access, KeyConfig, LIMITS, RegionConfig};

/// `CREATE_MKEY`. The answer has the key without its low 8 bits, which the program chooses.
pub(super) fn create(
    context: &Context,
    objects: &Objects,
    input: &[u8],
) -> Result<(Object, Vec<u8>), Refusal> {
    check_length(input, mkey::BYTES)?;
    check_pd(objects, mkey::PD.get32(input))?;
    for (field, limit) in [
        (mkey::BSF_EN, "no signatures (bsf_en 0)"),
        (mkey::CRYPTO_EN, "no encryption (crypto_en 0)"),
        (mkey::INPUT_MKEY_INDEX, "a key whose number the device chooses (input_mkey_index 0)"),
    ] {
        if field.is_set(input) {
            return Err(Refusal::parameter(Syndrome::MkeyContext, field.get(input), limit));
        }
    }
    match mkey::ACCESS_MODE_4_2.get8(input) << 2 | mkey::ACCESS_MODE_1_0.get8(input) {
        mkey::MODE_MTT => of_user_memory(context, objects, input),
        mkey::MODE_KLM => of_keys(context, input, None),
        mkey::MODE_KSM => of_keys(context, input, Some(mkey::LOG_ENTITY_SIZE.get32(input))),
        mode => {
            let limit = "access mode MTT (1), KLM (2) or KSM (3)";
            Err(Refusal::parameter(Syndrome::MkeyContext, mode, limit))
        }
    }
}

fn access_of(input: &[u8]) -> Access {
    let mut access = Access::empty();
    for (field, right) in [
        (mkey::LW, Access::LOCAL_WRITE),
        (mkey::RR, Access::REMOTE_READ),
        (mkey::RW, Access::REMOTE_WRITE),
        (mkey::A, Access::REMOTE_ATOMIC),
    ] {
        access.set(right, field.is_set(input));
    }
    access
}

/// Makes a key of ranges of other keys, which follow the fixed part of the command. `log_entity_size` is the
/// length of each, if they all have the same.
fn of_keys(
    context: &Context,
    input: &[u8],
    log_entity_size: Option<u32>,
) -> Result<(Object, Vec<u8>), Refusal> {
    let count = mkey::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.get32(input);
    let room = mkey::TRANSLATIONS_OCTWORD_SIZE.get32(input).max(count);
    if room > LIMITS.max_key_entries {
        let limit = "at most 2^16 entries (log_max_klm_list_size)";
        return Err(Refusal::parameter(Syndrome::MkeyContext, room, limit));
    }
    let entries = input.get(mkey::BYTES..).and_then(|rest| rest.get(..count as usize * SEGMENT));
    let Some(entries) = entries else {
        let limit = "the entries that translations_octword_actual_size says";
        return Err(Refusal::new(Status::BadInputLength, Syndrome::InputLength, input.len() as u64, limit));
    };
    let len = if mkey::LENGTH64.is_set(input) { u64::MAX } else { mkey::LEN.get(input) };
    let config = KeyConfig {
        pdn: mkey::PD.get32(input),
        tag: mkey::MKEY_7_0.get8(input),
        access: access_of(input),
        start: mkey::START_ADDR.get(input),
        len,
        closed: mkey::FREE.is_set(input),
        changeable: mkey::UMR_EN.is_set(input),
        remote_invalidate: mkey::EN_RINVAL.is_set(input),
        room,
        log_entity_size,
        entries,
    };
    let key = context.card().create_key(&config)?;
    Ok((Object::new(object::DEVX_OBJ, Resource::Mkey(key)), created(key >> 8)))
}

/// Makes a key of a range of user memory.
fn of_user_memory(context: &Context, objects: &Objects, input: &[u8]) -> Result<(Object, Vec<u8>), Refusal> {
    for (field, limit) in
        [(mkey::FREE, "no key to be set up later (free 0)"), (mkey::UMR_EN, "no changes by WQE (umr_en 0)")]
    {
        if field.is_set(input) {
            return Err(Refusal::parameter(Syndrome::MkeyContext, 1u8, limit));
        }
    }
    // The device has no right to bind windows.
    let access = access_of(input) | Access::MW_BIND;
    let writes = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let range = UmemRange {
        id: mkey::UMEM_ID.get32(input),
        offset: mkey::UMEM_OFFSET.get(input),
        len: mkey::LEN.get(input),
        alignment: 1,
        usage: if writes { Usage::Writes } else { Usage::Reads },
    };
    let addr = range.address(objects)?;
    let (pdn, iova) = (mkey::PD.get32(input), mkey::START_ADDR.get(input));
    let tag = Some(mkey::MKEY_7_0.get8(input));
    let config = RegionConfig { pdn, addr, len: range.len, iova, access, tag };
    // SAFETY: the addresses are from `UmemRange::address`, which documents why they stay valid.
    let key = unsafe { context.card().register_memory(&config) }?;
    let object = Object::new(object::DEVX_OBJ, Resource::Mkey(key)).using([range.id]);
    Ok((object, created(key >> 8)))
}
