//! Address handles: destinations of datagrams, in the card's format.

use super::context::PORT;
use super::domain::Pd;
use super::errno::{self, Errno, Result};
use super::object::{self, CStruct, object};
use crate::card::{Address, Card};
use gdsync_sys::prm::wqe::{AddressFields, AddressVector, GrhFields};
use gdsync_sys::verbs::{ibv_ah, ibv_ah_attr, ibv_pd};
use libc::c_int;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes of an address vector.
pub(super) const VECTOR_SIZE: usize = size_of::<AddressVector>();

object! {
    Ah: ibv_ah {
        vector: CStruct<[u8; VECTOR_SIZE]>,
        _domain: Arc<Pd>,
    }
}

impl Ah {
    /// The address vector, valid while the handle lives.
    pub(super) fn vector(&self) -> *mut u8 {
        self.vector.get().cast()
    }
}

/// The card's rate codes, indexed by those of libibverbs (`enum ibv_rate`): the same rate, or the next higher
/// one of the card (libmlx5, `ah_attr_to_mlx5_rate`). A code beyond the table means unlimited, 0.
const RATES: [u8; 23] = [0, 0, 7, 8, 9, 10, 11, 12, 13, 14, 15, 11, 13, 15, 0, 9, 15, 0, 0, 9, 13, 0, 0];

/// `ibv_create_ah`. EINVAL: an unknown port or source GID, or a service level, path bits or flow label with
/// too many bits.
///
/// # Safety
/// `pd` is null or allocated; `attr` is null or valid.
pub(super) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let (through, attr) = unsafe { (object::share::<Pd>(pd)?, object::attributes(attr)?) };
        let domain = Pd::protection(through);
        address_of(domain.context.card(), attr)?;
        let ibv = ibv_ah { context: object::handle(&domain.context), pd, handle: 0 };
        let ah = Ah { ibv: CStruct::new(ibv), vector: CStruct::new(vector_of(attr)), _domain: domain };
        Ok(object::into_raw(Arc::new(ah)))
    })
}

/// Returns the address of an address handle or of a queue pair's path.
///
/// # Errors
/// EINVAL: a value that an address vector cannot have on this port.
pub(super) fn address_of(card: &Card, attr: &ibv_ah_attr) -> Result<Address> {
    let route = &attr.grh;
    let has_source = usize::from(route.sgid_index) < card.gids().len();
    let route_fits = attr.is_global == 0 || (has_source && route.flow_label < 1 << 20);
    let fits = attr.port_num == PORT && attr.sl < 1 << 4 && attr.src_path_bits < 1 << 7;
    if !fits || !route_fits {
        return Err(Errno::INVALID);
    }
    let gid = (attr.is_global != 0).then_some(route.dgid.raw);
    let address = Address { dlid: attr.dlid, gid };
    card.check_address(&address)?;
    Ok(address)
}

fn vector_of(attr: &ibv_ah_attr) -> [u8; VECTOR_SIZE] {
    let grh = (attr.is_global != 0).then_some(GrhFields {
        traffic_class: attr.grh.traffic_class,
        hop_limit: attr.grh.hop_limit,
        gid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label,
        gid: attr.grh.dgid.raw,
    });
    let vector = AddressVector::new(&AddressFields {
        static_rate: RATES.get(usize::from(attr.static_rate)).copied().unwrap_or(0),
        service_level: attr.sl,
        path_bits: attr.src_path_bits,
        dlid: attr.dlid,
        grh,
        ..AddressFields::default()
    });
    let mut bytes = [0; VECTOR_SIZE];
    bytes.copy_from_slice(vector.as_bytes());
    // As in libmlx5, the poster fills in the queue pair and its extension bit.
    bytes[8..12].fill(0);
    bytes
}

/// # Safety
/// `ah` is null or created.
pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy::<Ah>(ah, |_| Ok(())) })
}
