//! Memory windows. Work requests bind them.

use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};
use crate::uapi::verbs::{AllocMw, AllocMwResp};
use softhca::card::WindowKind;

/// `ALLOC_MW`.
pub(crate) fn alloc(context: &Context, request: &Request) -> Result<()> {
    let asked: AllocMw = request.structure(attr::CORE_IN)?;
    let kind = match asked.mw_type {
        1 => WindowKind::Type1,
        2 => WindowKind::Type2,
        _ => return Err(Errno::INVALID),
    };
    let mut objects = context.objects.lock();
    let pdn = objects.number(object::PD, asked.pd_handle)?;
    let rkey = context.card().alloc_window(pdn, kind)?;
    let mw_handle = objects.add(Object::new(object::MW, Resource::Mkey(rkey)));
    drop(objects);
    request.answer_with(attr::CORE_OUT, &AllocMwResp { mw_handle, rkey })?;
    request.answer(attr::UHW_OUT, &[])
}
