//! Protection domains.

use crate::attributes::Request;
use crate::card::OpenCard;
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::attr;

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) number: u32,
}

impl Pd {
    pub(crate) fn destroy(&self, card: &OpenCard) -> Result<()> {
        Ok(card.card.dealloc_pd(self.number)?)
    }
}

/// `ALLOC_PD`; answers the handle, and libmlx5 the number.
pub(crate) fn alloc(context: &Context, request: &Request) -> Result<()> {
    let number = context.card().alloc_pd()?;
    let handle = context.objects.lock().add(Object::Pd(Pd { number }));
    request.answer_with(attr::CORE_OUT, &handle)?;
    request.answer_with(attr::UHW_OUT, &number)
}

pub(crate) fn destroy(context: &Context, request: &Request) -> Result<()> {
    context.destroy(request.handle(attr::HANDLE)?, |objects, object, card| {
        let Object::Pd(pd) = object else { return Err(Errno::INVALID) };
        let is_used = |other: &Object| matches!(other, Object::Ah(ah) if ah.pdn == pd.number);
        if objects.iter().any(is_used) {
            return Err(Errno::BUSY);
        }
        pd.destroy(card)
    })
}

/// `MLX5_IB_METHOD_PD_QUERY`: the number of an imported domain.
pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    let number = context.objects.lock().pd(request.handle(attr::PD_QUERY_HANDLE)?)?.number;
    request.answer_with(attr::PD_QUERY_PDN, &number)
}
