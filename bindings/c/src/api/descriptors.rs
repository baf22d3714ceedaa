//! `gdsync/core.h`: words, bytes, and lists of descriptors.

use crate::batch::{Builder, Target, check_flags, check_word, condition};
use crate::error::{self, CallError, list, no_flags, non_null, non_null_mut};
use crate::streams;
use crate::types::{
    self, CUstream, gds_descriptor_t, gds_wait_value32_t, gds_write_memory_t, gds_write_value32_t,
};
use gdsync::Stream;
use gdsync::stream::Cpu;
use libc::{c_int, size_t};

/// `gds_prepare_wait_value32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_prepare_wait_value32(
    desc: *mut gds_wait_value32_t,
    ptr: *mut u32,
    value: u32,
    cond_flags: c_int,
    flags: c_int,
) -> c_int {
    error::status("gds_prepare_wait_value32", || {
        let desc = non_null_mut("the descriptor", desc)?;
        check_word(ptr)?;
        check_flags(flags, types::GDS_WAIT_POST_FLUSH_REMOTE)?;
        condition(cond_flags)?;
        // SAFETY: the place is valid for a write.
        unsafe { desc.write(gds_wait_value32_t { ptr, value, cond_flags, flags }) };
        Ok(())
    })
}

/// `gds_prepare_write_value32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_prepare_write_value32(
    desc: *mut gds_write_value32_t,
    ptr: *mut u32,
    value: u32,
    flags: c_int,
) -> c_int {
    error::status("gds_prepare_write_value32", || {
        let desc = non_null_mut("the descriptor", desc)?;
        check_word(ptr)?;
        check_flags(flags, types::GDS_WRITE_PRE_BARRIER_SYS)?;
        // SAFETY: the place is valid for a write.
        unsafe { desc.write(gds_write_value32_t { ptr, value, flags }) };
        Ok(())
    })
}

/// `gds_prepare_write_memory`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_prepare_write_memory(
    desc: *mut gds_write_memory_t,
    dest: *mut u8,
    src: *const u8,
    count: size_t,
    flags: c_int,
) -> c_int {
    error::status("gds_prepare_write_memory", || {
        let desc = non_null_mut("the descriptor", desc)?;
        non_null_mut("dest", dest)?;
        non_null("src", src)?;
        let barriers = types::GDS_WRITE_MEMORY_POST_BARRIER_SYS | types::GDS_WRITE_MEMORY_PRE_BARRIER_SYS;
        check_flags(flags, barriers)?;
        // SAFETY: the place is valid for a write.
        unsafe { desc.write(gds_write_memory_t { dest, src, count, flags }) };
        Ok(())
    })
}

/// Checks an array of descriptors.
unsafe fn read(target: Target, n_descs: size_t, descs: *mut gds_descriptor_t) -> Result<Builder, CallError> {
    let mut builder = Builder::new(target, n_descs.min(1024));
    // SAFETY: the caller passes an array of that length.
    for one in unsafe { list("the descriptors", n_descs, descs) }? {
        // SAFETY: the caller keeps the memory of the descriptors valid.
        unsafe { builder.descriptor(one) }?;
    }
    Ok(builder)
}

/// `gds_stream_post_descriptors`.
///
/// # Safety
/// `descs` is null or an array of `n_descs`; its memory stays valid until the stream, which is alive, has passed the descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_stream_post_descriptors(
    stream: CUstream,
    n_descs: size_t,
    descs: *mut gds_descriptor_t,
    flags: c_int,
) -> c_int {
    error::status("gds_stream_post_descriptors", || {
        no_flags(flags)?;
        // SAFETY: the caller passes a stream that is alive.
        let stream = unsafe { streams::find(stream) }?;
        // SAFETY: the caller keeps the memory of the descriptors valid.
        stream.post(unsafe { read(stream.target(), n_descs, descs)?.finish() }?)
    })
}

/// `gds_post_descriptors`.
///
/// # Safety
/// `descs` is null or an array of `n_descs`, with memory of the CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_post_descriptors(
    n_descs: size_t,
    descs: *mut gds_descriptor_t,
    flags: c_int,
) -> c_int {
    error::status("gds_post_descriptors", || {
        no_flags(flags)?;
        // SAFETY: the caller keeps the memory of the descriptors valid.
        let batch = unsafe { read(Target::CPU, n_descs, descs)?.finish() }?;
        // A stream for each call, as the stream of another thread may be waiting.
        let cpu = Stream::new(Cpu::new())?;
        match cpu.post(batch) {
            Ok(_) => Ok(()),
            Err(error) => {
                streams::settle();
                cpu.post(error.batch).map(drop).map_err(|again| again.source.into())
            }
        }
    })
}
