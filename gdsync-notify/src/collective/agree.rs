//! The ranks agree on a plan: each says what it makes, and where.

use crate::collective::error::CollectiveError;
use crate::collective::shape::{Collective, Layout};
use crate::error::NotifyError;
use crate::queue::Queue;
use crate::segment::Segment;
use crate::together::together;

/// Where a plan lies in a rank's part of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) layout: Layout,
    pub(crate) first_word: u32,
}

/// What all ranks know of a plan.
#[derive(Debug)]
pub(crate) struct Agreed {
    /// The ranks that take part.
    pub(crate) members: Vec<u32>,
    /// The place of this rank among them.
    pub(crate) own: u32,
    /// Of the members.
    pub(crate) places: Vec<Place>,
}

/// All members of the team call this together. The plan lies behind `at` bytes and notifications of this rank's part of the
/// segment. `prepare` is what else this rank needs for it. What fails on one rank is an error on all.
pub(crate) fn agree<T>(
    queue: &Queue,
    segment: &Segment,
    at: (usize, u32),
    collective: &Collective,
    prepare: impl FnOnce() -> Result<T, CollectiveError>,
) -> Result<(Agreed, T), CollectiveError> {
    let team = &queue.team;
    let members = team.life.members();
    let whole = team.life.check_all().map_err(CollectiveError::from);
    let prepared = whole.and_then(|()| check(segment, &members, at, collective)).and_then(|()| prepare());
    let described = prepared.map(|done| (done, format!("{} {} {collective}", at.0, at.1)));
    let (done, lines) = together(described, |line| team.exchange(line))?;
    let ranks = members.len() as u32;
    let place = |rank: u32| {
        let line = lines.get(rank as usize).and_then(Option::as_deref).unwrap_or_default();
        parse(line, collective, ranks).ok_or_else(|| NotifyError::Mismatch {
            rank,
            what: "as the next collective",
            theirs: line.splitn(3, ' ').last().unwrap_or_default().to_owned(),
            ours: collective.to_string(),
        })
    };
    let places = members.iter().map(|rank| place(*rank)).collect::<Result<Vec<_>, _>>()?;
    let own = members.iter().position(|rank| *rank == team.rank).unwrap_or(0) as u32;
    Ok((Agreed { members, own, places }, done))
}

/// What this rank alone can say.
fn check(
    segment: &Segment,
    members: &[u32],
    (from, first): (usize, u32),
    collective: &Collective,
) -> Result<(), CollectiveError> {
    collective.check(members)?;
    if let Collective::ReduceScatter { element, .. } = *collective {
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

/// Reads where another rank has the same plan; `None` where it is not the same.
fn parse(line: &str, collective: &Collective, ranks: u32) -> Option<Place> {
    let mut fields = line.splitn(3, ' ');
    let (bytes, words) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let layout = Layout::new(collective, ranks, bytes);
    (fields.next()? == collective.to_string()).then_some(Place { layout, first_word: words })
}
