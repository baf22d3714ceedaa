//! Translates completions to `struct ibv_wc`.

use crate::error::{CallError, bad, non_null_mut};
use gdsync::queue::{PollError, Syndrome, WorkKind};
use gdsync::{Completion, CompletionQueue, QueueError};
use gdsync_sys::verbs::ibv_wc;
use libc::{c_int, c_uint};

/// `enum ibv_wc_opcode`.
fn opcode(kind: WorkKind) -> c_int {
    match kind {
        WorkKind::RdmaWrite => 1,
        WorkKind::RdmaRead => 2,
        WorkKind::CompareSwap => 3,
        WorkKind::FetchAdd => 4,
        WorkKind::Receive => 1 << 7,
        WorkKind::ReceiveRdmaWithImmediate => (1 << 7) + 1,
        // Sends. A NOP is a cancelled send, which is not reported.
        _ => 0,
    }
}

/// Returns the `enum ibv_wc_status` of a syndrome, as libmlx5 does.
fn status(syndrome: u8) -> c_int {
    const PAIRS: [(Syndrome, c_int); 13] = [
        (Syndrome::LocalLength, 1),
        (Syndrome::LocalQpOperation, 2),
        (Syndrome::LocalProtection, 4),
        (Syndrome::WrFlush, 5),
        (Syndrome::MwBind, 6),
        (Syndrome::BadResponse, 7),
        (Syndrome::LocalAccess, 8),
        (Syndrome::RemoteInvalidRequest, 9),
        (Syndrome::RemoteAccess, 10),
        (Syndrome::RemoteOperation, 11),
        (Syndrome::RetryExceeded, 12),
        (Syndrome::RnrRetryExceeded, 13),
        (Syndrome::RemoteAborted, 16),
    ];
    const GENERAL: c_int = 21;
    PAIRS.iter().find(|(known, _)| *known as u8 == syndrome).map_or(GENERAL, |(_, status)| *status)
}

const WITH_GRH: c_uint = 1 << 0;
const WITH_IMM: c_uint = 1 << 1;
const WITH_INV: c_uint = 1 << 3;

pub(crate) fn translate(completion: &Completion) -> ibv_wc {
    let mut wc = ibv_wc {
        wr_id: completion.wr_id,
        opcode: opcode(completion.kind),
        byte_len: completion.byte_len,
        qp_num: completion.qp_num,
        ..Default::default()
    };
    if let Err(error) = completion.status {
        wc.status = status(error.syndrome);
        wc.vendor_err = error.vendor.into();
    }
    if let Some(immediate) = completion.immediate {
        wc.imm_data = immediate.to_be();
        wc.wc_flags |= WITH_IMM;
    }
    if let Some(key) = completion.invalidated {
        wc.imm_data = key;
        wc.wc_flags |= WITH_INV;
    }
    if let Some(source) = completion.source {
        (wc.src_qp, wc.slid, wc.sl) = (source.qp_num, source.lid, source.service_level);
        wc.wc_flags |= if source.header.is_some() { WITH_GRH } else { 0 };
    }
    wc
}

/// Polls into `out`. Returns the number of completions.
///
/// # Errors
/// The first entry is invalid.
fn poll(queue: &CompletionQueue, out: &mut dyn FnMut(ibv_wc), most: usize) -> Result<usize, CallError> {
    let mut polled = 0;
    while polled < most {
        match queue.poll_unawaited() {
            Ok(Some(completion)) => out(translate(&completion)),
            Ok(None) => break,
            // The invalid entry is skipped; the completions before it are returned first.
            Err(error @ PollError::BadCompletion { .. }) if polled > 0 => {
                tracing::error!(%error, "polling");
                break;
            }
            Err(error) => return Err(QueueError::from(error).into()),
        }
        polled += 1;
    }
    Ok(polled)
}

/// Polls into an array of C. Returns the number of completions.
///
/// # Safety
/// `wc` is null or has room for `num_entries` completions.
pub(crate) unsafe fn poll_into(
    queue: &CompletionQueue,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> Result<c_int, CallError> {
    let wc = non_null_mut("wc", wc)?;
    let most = usize::try_from(num_entries)
        .map_err(|_| bad("num_entries", num_entries, "it must not be negative"))?;
    let mut at = 0;
    let mut put = |completion| {
        // SAFETY: `poll` calls this at most `most` times, and the caller has room for as many.
        unsafe { wc.add(at).write(completion) };
        at += 1;
    };
    poll(queue, &mut put, most).map(|count| count as c_int)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_are_statuses_of_libibverbs() {
        // 0x05 flush, 0x13 remote access, 0x15 retries: providers/mlx5/mlx5dv.h and verbs.h of rdma-core.
        assert_eq!(
            [status(0x05), status(0x13), status(0x15), status(0x16), status(0xee)],
            [5, 10, 12, 13, 21]
        );
    }
}
