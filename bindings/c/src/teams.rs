//! Bootstraps, teams and segments of C programs.

use crate::error::{CallError, bad, bad_bits, stale};
use crate::handles::Named;
use crate::notify_types::{gdsync_put_t, gdsync_team_attr_t};
use crate::providers::{self, ObjectKind};
use crate::stream_object::StreamObject;
use crate::streams;
use crate::types::{gdsync_bootstrap, gdsync_segment, gdsync_team};
use crate::{notify_types, objects};
use gdsync::Batch;
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::{
    ConnectionKind, NotifyError, Operation, Queue, Segment, SegmentMemory, Team, TeamConfig, WaitNotification,
};
use gdsync_sys::verbs::{ibv_context, ibv_pd};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The object of a `gdsync_bootstrap_t *`.
pub(crate) struct BootstrapObject {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// None after a team has taken it.
    pub(crate) inner: Mutex<Option<Bootstrap>>,
}

/// The object of a `gdsync_segment_t *`.
pub(crate) struct SegmentObject {
    team: usize,
    pub(crate) segment: Segment,
    /// For memory of the program: true once the library no longer uses it.
    given: Option<Arc<AtomicBool>>,
}

pub(crate) static BOOTSTRAPS: Named<gdsync_bootstrap, BootstrapObject> = Named::new(
    "the bootstrap",
    "pass what gdsync_bootstrap_* returned, until gdsync_bootstrap_free or gdsync_team_create",
);

pub(crate) static TEAMS: Named<gdsync_team, Team> =
    Named::new("the team", "pass what gdsync_team_create returned, until gdsync_team_free");

pub(crate) static SEGMENTS: Named<gdsync_segment, SegmentObject> =
    Named::new("the segment", "pass what gdsync_segment_* returned, until gdsync_segment_free");

pub(crate) fn keep_bootstrap(inner: Bootstrap) -> Result<*mut gdsync_bootstrap, CallError> {
    let (rank, size) = (inner.rank(), inner.size());
    BOOTSTRAPS.keep(BootstrapObject { rank, size, inner: Mutex::new(Some(inner)) }, gdsync_bootstrap::at)
}

/// The error for a bootstrap that has become a team.
pub(crate) fn taken(bootstrap: *mut gdsync_bootstrap) -> CallError {
    let remedy = "make another bootstrap for what comes after the team";
    stale("the bootstrap", bootstrap.addr(), "has become a team", remedy)
}

fn config(attr: gdsync_team_attr_t) -> Result<TeamConfig, CallError> {
    let connections = match attr.connections {
        notify_types::GDSYNC_CONNECTIONS_BY_SIZE => ConnectionKind::Auto,
        notify_types::GDSYNC_CONNECTIONS_EACH => ConnectionKind::Each,
        notify_types::GDSYNC_CONNECTIONS_DYNAMIC => ConnectionKind::Dynamic,
        other => {
            return Err(bad(
                "attr->connections",
                other,
                "0 (by size), 1 (each) and 2 (dynamic) are possible",
            ));
        }
    };
    if attr.reserved != 0 {
        return Err(bad("attr->reserved", attr.reserved, "it must be 0"));
    }
    let config = TeamConfig::default().connections(connections).queues(attr.queues.max(1));
    Ok(match attr.post_timeout_ms {
        0 => config,
        timeout => config.timeout(Duration::from_millis(timeout.into())),
    })
}

/// Makes a team. This uses up the bootstrap, unless an argument is wrong.
///
/// # Safety
/// As [`objects::domain`].
pub(crate) unsafe fn create(
    bootstrap: *mut gdsync_bootstrap,
    pd: *mut ibv_pd,
    context: *mut ibv_context,
    attr: gdsync_team_attr_t,
) -> Result<*mut gdsync_team, CallError> {
    let config = config(attr)?;
    // SAFETY: the caller keeps the domain and the context alive.
    let (device, domain) = unsafe { objects::domain(context, pd) }?;
    let queue_pair = config.queue_pair.port(objects::first_active_port(&device)?);
    let object = BOOTSTRAPS.take(bootstrap)?;
    let inner = object.inner.lock().take();
    let inner = inner.ok_or_else(|| taken(bootstrap))?;
    let team = Team::new(&domain, inner, config.queue_pair(queue_pair))?;
    let made = TEAMS.keep(team, gdsync_team::at)?;
    providers::adopt(ObjectKind::Team, made, pd.addr());
    Ok(made)
}

/// Frees a team. Waits for the team's thread and releases what streams have passed, as the program may deallocate its domain next.
pub(crate) fn free_team(team: *mut gdsync_team) -> Result<(), CallError> {
    if let Some(team) = Arc::into_inner(TEAMS.take(team)?)
        && !team.close(PATIENCE)
    {
        tracing::warn!("another thread uses the team, whose domain stays in use until then");
    }
    providers::forget(team);
    streams::settle();
    Ok(())
}

/// Makes a handle of a segment. `given` becomes true when memory of the program is free.
pub(crate) fn keep_segment(
    team: *mut gdsync_team,
    segment: Segment,
    given: Option<Arc<AtomicBool>>,
) -> Result<*mut gdsync_segment, CallError> {
    let made = SEGMENTS.keep(SegmentObject { team: team.addr(), segment, given }, gdsync_segment::at)?;
    providers::adopt(ObjectKind::Segment, made, providers::parent(team).unwrap_or(0));
    Ok(made)
}

/// The owner of a program's memory, which records that the library no longer uses it.
pub(crate) struct LetGo(pub(crate) Arc<AtomicBool>);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How long a team's thread may take to end, and streams to pass work with a segment's memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// Frees a segment, and waits until the library no longer uses memory of the program.
pub(crate) fn free_segment(segment: *mut gdsync_segment) -> Result<(), CallError> {
    let object = SEGMENTS.take(segment)?;
    providers::forget(segment);
    let given = object.given.clone();
    drop(object);
    streams::settle();
    let Some(given) = given else { return Ok(()) };
    let deadline = Instant::now() + PATIENCE;
    while !given.load(Ordering::Acquire) {
        if Instant::now() >= deadline {
            return Err(CallError::MemoryInUse);
        }
        std::thread::sleep(Duration::from_millis(1));
        streams::settle();
    }
    Ok(())
}

/// Returns a segment of a team.
///
/// # Safety
/// No other thread frees the segment while the reference is used.
pub(crate) unsafe fn segment_of<'a>(
    team: *mut gdsync_team,
    segment: *mut gdsync_segment,
) -> Result<&'a Segment, CallError> {
    // SAFETY: the caller lets no other thread free the object.
    let object = unsafe { SEGMENTS.find(segment) }?;
    if object.team != team.addr() {
        return Err(bad_bits("the segment", segment.addr() as i64, "it is of another team: pass that one's"));
    }
    Ok(&object.segment)
}

/// Returns the address of a segment's data, for the CPU or for kernels.
pub(crate) fn data_of(segment: &Segment) -> Result<usize, CallError> {
    match segment.memory() {
        SegmentMemory::Host(region) => Ok(region.memory().addr().get() as usize),
        SegmentMemory::Gpu(region) => Ok(region.memory().address() as usize),
        _ => Err(CallError::Unsupported { what: "the segment's memory", remedy: "allocate it" }),
    }
}

/// Gives a queue the operation of a put, and retries once if another stream was in the way.
///
/// # Safety
/// As [`segment_of`].
pub(crate) unsafe fn put<T>(
    team: *mut gdsync_team,
    put: &gdsync_put_t,
    take: impl Fn(Operation<'_>) -> Result<T, NotifyError>,
) -> Result<T, CallError> {
    let gdsync_put_t { from_offset, length, rank, to_offset: offset, notification: id, value, .. } = *put;
    if put.reserved != 0 {
        return Err(bad("reserved of a put", put.reserved, "it must be 0"));
    }
    // SAFETY: the caller lets no other thread free the object.
    let to = unsafe { segment_of(team, put.to) }?;
    let given = |operation| match take(operation) {
        Err(NotifyError::Post { source, .. }) if streams::waits_for_a_stream(&source) => {
            streams::settle();
            take(operation)
        }
        done => done,
    };
    if length == 0 {
        return match value {
            0 => Err(bad("length of a put", 0, "a put without a notification (value 0) has 1 byte or more")),
            _ => Ok(given(Operation::Notify { rank, to, id, value })?),
        };
    }
    // SAFETY: the caller lets no other thread free the object.
    let from = unsafe { segment_of(team, put.from) }?;
    let from = &from.slice(from_offset..from_offset.saturating_add(length))?;
    Ok(given(match value {
        0 => Operation::Write { from, rank, to, offset },
        _ => Operation::WriteNotify { from, rank, to, offset, id, value },
    })?)
}

/// Posts a batch on a stream: puts, and then waits for notifications, which it clears.
///
/// # Safety
/// As [`segment_of`], for each.
pub(crate) unsafe fn exchange(
    stream: &StreamObject,
    team: *mut gdsync_team,
    puts: Option<(&Queue, &[gdsync_put_t])>,
    waits: Option<(&Segment, &[u32])>,
) -> Result<(), CallError> {
    let arrivals = waits.map(|(segment, ids)| ids.iter().map(|id| segment.notification(*id)).collect());
    let arrivals: Vec<_> = arrivals.transpose().map_err(CallError::Notify)?.unwrap_or_default();
    let mut sends = Vec::new();
    if let Some((queue, puts)) = puts {
        for one in puts {
            // SAFETY: the caller passes valid pointers, and keeps the memory registered.
            sends.extend(unsafe { put(team, one, |operation| queue.prepare(operation)) }?);
        }
    }
    let batch = sends.into_iter().fold(Batch::new(), Batch::send);
    stream.post(arrivals.iter().fold(batch, |batch, word| batch.wait_notification(word)))
}
