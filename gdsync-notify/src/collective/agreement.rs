//! The agreement of a team's ranks on a plan.

use super::error::CollectiveError;
use super::shape::{Collective, Layout};
use crate::error::NotifyError;
use crate::handshake::share_outcome;
use crate::queue::Queue;
use crate::segment::Segment;

/// A plan's location in a rank's part of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) layout: Layout,
    pub(crate) first_word: u32,
}

#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) members: Vec<u32>,
    /// This rank's index among them.
    pub(crate) own: u32,
    pub(crate) locations: Vec<Location>,
}

/// Agrees on a plan with all members of the team. The plan lies behind `at` bytes and notifications of this rank's part
/// of the segment; `prepare` creates what else this rank needs. A failure on one rank is an error on all.
pub(crate) fn agree<T>(
    queue: &Queue,
    segment: &Segment,
    at: (usize, u32),
    collective: &Collective,
    prepare: impl FnOnce() -> Result<T, CollectiveError>,
) -> Result<(Agreed, T), CollectiveError> {
    let team = &queue.team;
    let members = team.liveness.members();
    let whole = team.liveness.check_none_dead().map_err(CollectiveError::from);
    let prepared =
        whole.and_then(|()| check_local(segment, &members, at, collective)).and_then(|()| prepare());
    let described = prepared.map(|done| (done, format!("{} {} {collective}", at.0, at.1)));
    let (done, lines) = share_outcome(described, |line| team.exchange(line))?;
    let ranks = members.len() as u32;
    let locate = |rank: u32| {
        let line = lines.get(rank as usize).and_then(Option::as_deref).unwrap_or_default();
        parse_location(line, collective, ranks).ok_or_else(|| NotifyError::Mismatch {
            rank,
            what: "as the next collective",
            theirs: line.splitn(3, ' ').last().unwrap_or_default().to_owned(),
            ours: collective.to_string(),
        })
    };
    let locations = members.iter().map(|rank| locate(*rank)).collect::<Result<Vec<_>, _>>()?;
    let own = members.iter().position(|rank| *rank == team.rank).unwrap_or(0) as u32;
    Ok((Agreed { members, own, locations }, done))
}

/// Checks what concerns this rank alone.
fn check_local(
    segment: &Segment,
    members: &[u32],
    (from, first): (usize, u32),
    collective: &Collective,
) -> Result<(), CollectiveError> {
    collective.check(members)?;
    if let Some((element, _)) = collective.reduction() {
        let address = segment.remote(segment.rank())?.data.addr;
        if !address.is_multiple_of(element.bytes() as u64) {
            return Err(CollectiveError::Unaligned { address, element });
        }
    }
    let ranks = members.len() as u32;
    let (needed, size) = (collective.bytes(ranks), segment.len());
    if from.checked_add(needed).is_none_or(|end| end > size) {
        return Err(CollectiveError::Bytes { needed, from, size });
    }
    let (needed, count) = (collective.notifications(ranks), segment.notifications());
    if first.checked_add(needed).is_none_or(|end| end > count) {
        return Err(CollectiveError::Notifications { needed, from: first, count });
    }
    match (first..first + needed).find(|id| segment.is_expected_from_all(*id)) {
        Some(id) => Err(CollectiveError::Taken { id }),
        None => Ok(()),
    }
}

/// Parses another rank's location of the plan. Returns `None` if its plan differs.
fn parse_location(line: &str, collective: &Collective, ranks: u32) -> Option<Location> {
    let mut fields = line.splitn(3, ' ');
    let (bytes, words) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let layout = Layout::new(collective, ranks, bytes);
    (fields.next()? == collective.to_string()).then_some(Location { layout, first_word: words })
}
