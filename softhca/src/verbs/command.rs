//! `mlx5dv_devx_general_cmd`, for the one command that this front has: QUERY_HCA_CAP. Programs that
//! make objects by commands use libmlx5 on `softhca-uverbs`.

use super::context::Context;
use super::errno::{self, Errno};
use super::object;
use gdsync_sys::prm::command::{header, opcode};
use gdsync_sys::verbs::ibv_context;
use libc::{c_int, c_void, size_t};

/// `MLX5_CMD_STAT_BAD_OP_ERR` and `MLX5_CMD_STAT_BAD_PARAM_ERR` of `mlx5_ifc.h`.
const BAD_OPCODE: u8 = 0x02;
const BAD_PARAMETER: u8 = 0x03;

/// `mlx5dv_devx_general_cmd`. EREMOTEIO with a status in the answer where the device refuses;
/// EINVAL without room for a header.
///
/// # Safety
/// `context` is null or open; `input` is readable and `output` writable for their lengths.
pub(super) unsafe extern "C" fn general_cmd(
    context: *mut ibv_context,
    input: *const c_void,
    input_len: size_t,
    output: *mut c_void,
    output_len: size_t,
) -> c_int {
    errno::status(|| {
        // SAFETY: the caller's.
        let context = unsafe { object::borrow::<Context>(context) }?;
        let (input, output) = (input.cast::<u8>(), output.cast::<u8>());
        if input.is_null() || output.is_null() || input_len.min(output_len) < header::BYTES {
            return Err(Errno::INVALID);
        }
        let mut command = [0; header::BYTES];
        // SAFETY: not null, and as long as checked; the caller's.
        unsafe { input.copy_to_nonoverlapping(command.as_mut_ptr(), command.len()) };
        let status = match header::OPCODE.get(&command) {
            opcode if opcode == u64::from(opcode::QUERY_HCA_CAP) => {
                // The last bit asks for current or greatest values, which are the same.
                match context.card().capabilities(header::OP_MOD.get(&command) >> 1) {
                    Some(answer) => {
                        let length = answer.len().min(output_len);
                        // SAFETY: not null, and writable for so many bytes: the caller's.
                        unsafe { answer.as_ptr().copy_to_nonoverlapping(output, length) };
                        return Ok(());
                    }
                    None => BAD_PARAMETER,
                }
            }
            _ => BAD_OPCODE,
        };
        let mut refusal = [0; header::BYTES];
        header::STATUS.put(&mut refusal, status);
        // SAFETY: not null, and as long as checked; the caller's.
        unsafe { refusal.as_ptr().copy_to_nonoverlapping(output, refusal.len()) };
        Err(Errno::REFUSED)
    })
}
