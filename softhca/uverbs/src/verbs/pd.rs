//! Protection domains.

use crate::attributes::Request;
use crate::context::{Context, Object};
use crate::errno::Result;
use crate::resource::Resource;
use crate::uapi::ioctl::{attr, object};

/// `ALLOC_PD`: answers the handle, and the number for libmlx5.
pub(crate) fn alloc(context: &Context, request: &Request) -> Result<()> {
    let number = context.card().alloc_pd()?;
    let handle = context.objects.lock().add(Object::new(object::PD, Resource::Pd(number)));
    request.answer_with(attr::CORE_OUT, &handle)?;
    request.answer_with(attr::UHW_OUT, &number)
}

/// `MLX5_IB_METHOD_PD_QUERY`: the number of an imported domain.
pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let number = context.objects.lock().number(object::PD, request.handle(attr::PD_QUERY_HANDLE)?)?;
    request.answer_with(attr::PD_QUERY_PDN, &number)
}
