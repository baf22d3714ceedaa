//! The kernel's checks of commands, each with its errno: a row has the function of the kernel, the bad value, and what
//! the stand-in answers. 0 is success. Sources: Linux, `drivers/infiniband/core` and `drivers/infiniband/hw/mlx5`.

use super::*;

mod attributes;
mod devices;
mod devx;
mod memory;
mod queue_pairs;
mod queues;
mod transitions;

/// Function of the kernel, what is wrong, errno of the kernel, answer here.
type Row<'a> = (&'a str, &'a str, i32, i32);

/// Fails with all rows whose answer is not the kernel's.
pub(super) fn compare(rows: &[Row<'_>]) {
    let differs: Vec<_> = rows.iter().filter(|(_, _, kernel, here)| kernel != here).collect();
    assert!(differs.is_empty(), "(function, check, kernel, here): {differs:#?}");
}

pub(super) fn errno_of<T>(answer: Result<T, i32>) -> i32 {
    answer.err().unwrap_or(0)
}
