//! `mlx5dv_init_obj`: the addresses of rings, records, registers and vectors of verbs objects.

use super::ah::Ah;
use super::cq::Cq;
use super::domain::Pd;
use super::errno::{self, Errno};
use super::object;
use super::qp::Qp;
use super::srq::Srq;
use gdsync_sys::mlx5dv::{
    MLX5DV_OBJ_AH, MLX5DV_OBJ_CQ, MLX5DV_OBJ_PD, MLX5DV_OBJ_QP, MLX5DV_OBJ_SRQ, mlx5dv_obj,
};
use libc::c_int;

/// `mlx5dv_init_obj`, for one or several kinds of objects. EINVAL for a null pointer, EOPNOTSUPP for kinds
/// that the software card lacks; structs filled before that stay filled.
///
/// # Safety
/// `obj` is null or valid; the entries that `obj_type` selects are null, or name a live object and a valid
/// struct.
pub(super) unsafe extern "C" fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int {
    errno::status(|| {
        // SAFETY: guaranteed by the caller.
        let obj = unsafe { object::attributes(obj) }?;
        if obj_type & MLX5DV_OBJ_QP != 0 {
            // SAFETY: guaranteed by the caller.
            let (qp, out) = unsafe { (object::borrow::<Qp>(obj.qp.r#in)?, object::attributes(obj.qp.out)?) };
            qp.describe(out)?;
        }
        if obj_type & MLX5DV_OBJ_CQ != 0 {
            // SAFETY: guaranteed by the caller.
            let (cq, out) = unsafe { (object::borrow::<Cq>(obj.cq.r#in)?, object::attributes(obj.cq.out)?) };
            *out = cq.describe();
        }
        if obj_type & MLX5DV_OBJ_SRQ != 0 {
            // SAFETY: guaranteed by the caller.
            let (srq, out) =
                unsafe { (object::borrow::<Srq>(obj.srq.r#in)?, object::attributes(obj.srq.out)?) };
            srq.describe(out);
        }
        if obj_type & MLX5DV_OBJ_AH != 0 {
            // SAFETY: guaranteed by the caller.
            let (ah, out) = unsafe { (object::borrow::<Ah>(obj.ah.r#in)?, object::attributes(obj.ah.out)?) };
            out.av = ah.vector().cast();
            out.comp_mask = 0;
        }
        if obj_type & MLX5DV_OBJ_PD != 0 {
            // SAFETY: guaranteed by the caller.
            let (pd, out) = unsafe { (object::borrow::<Pd>(obj.pd.r#in)?, object::attributes(obj.pd.out)?) };
            out.pdn = pd.number();
            out.comp_mask = 0;
        }
        let known = MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ | MLX5DV_OBJ_AH | MLX5DV_OBJ_PD;
        if obj_type & !known != 0 {
            return Err(Errno::NOT_SUPPORTED);
        }
        Ok(())
    })
}
