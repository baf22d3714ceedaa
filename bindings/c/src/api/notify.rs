//! `gdsync/team.h`: notified writes, by the CPU and on streams.

use crate::error::{self, list};
use crate::notify_types::gdsync_put_t;
use crate::streams;
use crate::teams::{self, TEAMS};
use crate::types::{CUstream, gdsync_segment, gdsync_team};
use gdsync::Batch;
use libc::{c_int, c_uint, size_t};

/// `gdsync_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_put(
    team: *mut gdsync_team,
    queue: c_uint,
    number: size_t,
    puts: *const gdsync_put_t,
) -> c_int {
    error::status("gdsync_put", || {
        // SAFETY: the caller keeps the objects alive, and passes an array of that length.
        let (queue, puts) = unsafe { (TEAMS.find(team)?.queue(queue)?, list("puts", number, puts)?) };
        // SAFETY: the caller passes valid pointers, and keeps the memory registered.
        puts.iter().try_for_each(|one| unsafe { teams::put(team, one, |operation| queue.post(operation)) })
    })
}

/// `gdsync_stream_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_put(
    stream: CUstream,
    team: *mut gdsync_team,
    queue: c_uint,
    number: size_t,
    puts: *const gdsync_put_t,
) -> c_int {
    error::status("gdsync_stream_put", || {
        // SAFETY: the caller keeps the stream and the object alive.
        let (stream, queue) = unsafe { (streams::find(stream)?, TEAMS.find(team)?.queue(queue)?) };
        // SAFETY: the caller keeps the objects alive, and passes an array of that length.
        unsafe { teams::exchange(&stream, team, Some((&queue, list("puts", number, puts)?)), None) }
    })
}

/// `gdsync_stream_wait_notifications`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_wait_notifications(
    stream: CUstream,
    team: *mut gdsync_team,
    segment: *mut gdsync_segment,
    number: size_t,
    ids: *const u32,
) -> c_int {
    error::status("gdsync_stream_wait_notifications", || {
        // SAFETY: the caller keeps the stream and the object alive.
        let (stream, segment) = unsafe { (streams::find(stream)?, teams::segment_of(team, segment)?) };
        // SAFETY: the caller keeps the objects alive, and passes an array of that length.
        unsafe { teams::exchange(&stream, team, None, Some((segment, list("ids", number, ids)?))) }
    })
}

/// `gdsync_stream_exchange`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_exchange(
    stream: CUstream,
    team: *mut gdsync_team,
    queue: c_uint,
    number: size_t,
    puts: *const gdsync_put_t,
    segment: *mut gdsync_segment,
    waits: size_t,
    ids: *const u32,
) -> c_int {
    error::status("gdsync_stream_exchange", || {
        // SAFETY: the caller passes valid pointers.
        unsafe {
            let (stream, queue) = (streams::find(stream)?, TEAMS.find(team)?.queue(queue)?);
            let segment = teams::segment_of(team, segment)?;
            let puts = (&queue, list("puts", number, puts)?);
            teams::exchange(&stream, team, Some(puts), Some((segment, list("ids", waits, ids)?)))
        }
    })
}

/// `gdsync_stream_quiet`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_stream_quiet(
    stream: CUstream,
    team: *mut gdsync_team,
    queue: c_uint,
    rank: u32,
) -> c_int {
    error::status("gdsync_stream_quiet", || {
        // SAFETY: the caller keeps the stream and the object alive.
        let (stream, team) = unsafe { (streams::find(stream)?, TEAMS.find(team)?) };
        let waits = team.queue(queue)?.prepare_waits(rank)?;
        stream.post(waits.into_iter().fold(Batch::new(), Batch::wait))
    })
}
