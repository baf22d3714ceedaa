//! A segment and its team, as slices and segments hold them.

/// Cheap handles.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) segment: gdsync_notify::Segment,
    pub(crate) team: gdsync_notify::Team,
}
