//! Connecting a program's own queue pairs among the ranks of a bootstrap.

use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::error::{NotifyError, Result};
use gdsync::{ConnectOptions, Endpoint, QueuePair};

/// A queue pair to connect, and the rank to which it leads. The two sides' queue pairs with the same tag are connected,
/// in the order of their lists.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// The queue pair, new.
    pub queue_pair: &'a QueuePair,
    /// The rank with the other side, perhaps this one.
    pub rank: u32,
    /// Tells apart the queue pairs between two ranks.
    pub tag: u32,
}

impl Bootstrap {
    /// Connects queue pairs (RC or UC), and returns once all ranks have done so: no message is sent to an unconnected queue
    /// pair. All ranks call this, each with any number of queue pairs. A rank's queue pairs to itself are connected in
    /// twos.
    ///
    /// ```
    /// use gdsync::{ConnectOptions, Device, ProtectionDomain, QueuePair, QueuePairConfig};
    /// use gdsync_notify::Connection;
    /// use gdsync_notify::bootstrap::Bootstrap;
    ///
    /// /// Two neighbours in a ring: the queue pair to the next rank has this rank's number as its tag.
    /// fn ring(bootstrap: &mut Bootstrap) -> Result<[QueuePair; 2], Box<dyn std::error::Error>> {
    ///     let pd = ProtectionDomain::new(&Device::software()?)?;
    ///     let make = || QueuePair::new(&pd, QueuePairConfig::default());
    ///     let (next, previous) = (make()?, make()?);
    ///     let (rank, size) = (bootstrap.rank(), bootstrap.size());
    ///     let before = (rank + size - 1) % size;
    ///     let connections = [
    ///         Connection { queue_pair: &next, rank: (rank + 1) % size, tag: rank },
    ///         Connection { queue_pair: &previous, rank: before, tag: before },
    ///     ];
    ///     bootstrap.connect(&connections, ConnectOptions::default())?;
    ///     Ok([next, previous])
    /// }
    /// # let mut alone = Bootstrap::threads(1, std::time::Duration::from_secs(30))?.remove(0);
    /// # ring(&mut alone)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NotifyError::Unpaired`] if two ranks have different numbers of queue pairs for each other and a tag;
    /// [`BootstrapError::Rank`]; those of [`QueuePair::connect`]. If it fails on one rank, it fails on all
    /// ([`NotifyError::FailedOnRank`]).
    pub fn connect(&mut self, connections: &[Connection<'_>], options: ConnectOptions) -> Result<()> {
        let described = self.describe(connections).map(|lines| ((), lines));
        let ((), lines) = self.share_outcome_with_each(described)?;
        let done = connect(self.rank(), connections, &lines, options);
        self.share_step(done)
    }

    /// Returns a line for each rank: tags and endpoints.
    fn describe(&self, connections: &[Connection<'_>]) -> Result<Vec<String>> {
        let size = self.size();
        let mut lines = vec![String::new(); size as usize];
        for Connection { queue_pair, rank, tag } in connections {
            let Some(line) = lines.get_mut(*rank as usize) else {
                return Err(BootstrapError::Rank { rank: *rank, size, limit: size }.into());
            };
            *line += &format!("{tag} {} ", queue_pair.endpoint()?);
        }
        Ok(lines)
    }
}

/// Connects this rank's side, by the lines of all ranks for this one.
fn connect(
    own: u32,
    connections: &[Connection<'_>],
    lines: &[String],
    options: ConnectOptions,
) -> Result<()> {
    for (rank, line) in (0..).zip(lines) {
        let theirs = parse(line).map_err(|reason| NotifyError::FailedOnRank { rank, reason })?;
        let tags: Vec<u32> = connections.iter().filter(|one| one.rank == rank).map(|one| one.tag).collect();
        let other_tags: Vec<u32> = theirs.iter().map(|(tag, _)| *tag).collect();
        let places = partners(&tags, &other_tags, rank == own)
            .map_err(|(tag, ours, theirs)| NotifyError::Unpaired { rank, tag, theirs, ours })?;
        let to_it = connections.iter().filter(|one| one.rank == rank);
        for (connection, place) in to_it.zip(places) {
            connection.queue_pair.connect(&theirs[place].1, options)?;
        }
    }
    Ok(())
}

fn parse(line: &str) -> Result<Vec<(u32, Endpoint)>, String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let one = |pair: &[&str]| match pair {
        [tag, endpoint] => {
            let tag = tag.parse().map_err(|error| format!("{tag:?}: {error}"))?;
            Ok((tag, endpoint.parse::<Endpoint>().map_err(|error| error.to_string())?))
        }
        _ => Err(format!("{line:?} is no list of tags and endpoints")),
    };
    fields.chunks(2).map(one).collect()
}

/// Returns the place of each queue pair's other side in the other rank's list: the same place among those with its tag, or
/// the neighbour's if both sides are one rank. `Err`: a tag, and the numbers of this side and the other one.
fn partners(tags: &[u32], others: &[u32], is_own: bool) -> Result<Vec<usize>, (u32, usize, usize)> {
    let places = |tag: u32| (0..others.len()).filter(move |place| others[*place] == tag);
    for tag in tags.iter().chain(others) {
        let (ours, theirs) = (tags.iter().filter(|one| *one == tag).count(), places(*tag).count());
        match is_own {
            false if ours != theirs => return Err((*tag, ours, theirs)),
            true if ours % 2 != 0 => return Err((*tag, ours - ours / 2, ours / 2)),
            _ => {}
        }
    }
    let partner = |(at, tag): (usize, &u32)| {
        let nth = tags[..at].iter().filter(|one| *one == tag).count();
        places(*tag).nth(if is_own { nth ^ 1 } else { nth }).unwrap_or(at)
    };
    Ok(tags.iter().enumerate().map(partner).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_meet_by_tag_and_order() {
        assert_eq!(partners(&[0, 0, 0], &[0, 0, 0], false), Ok(vec![0, 1, 2]));
        assert_eq!(partners(&[7, 9, 7], &[9, 7, 7], false), Ok(vec![1, 0, 2]));
        assert_eq!(partners(&[1, 5, 1, 5], &[1, 5, 1, 5], true), Ok(vec![2, 3, 0, 1]));
        assert_eq!(partners(&[], &[], true), Ok(vec![]));
    }

    #[test]
    fn a_missing_side_is_named_with_its_tag() {
        assert_eq!(partners(&[0, 3], &[3], false), Err((0, 1, 0)));
        assert_eq!(partners(&[3], &[3, 4], false), Err((4, 0, 1)));
        assert_eq!(partners(&[2, 2, 2], &[2, 2, 2], true), Err((2, 2, 1)));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let endpoint = "ib:1:2:0:5:fe800000000000000000000000000001";
        assert_eq!(parse(&format!("4 {endpoint} 5 {endpoint} ")).unwrap().len(), 2);
        for line in ["4", "x y", &format!("-1 {endpoint}"), &format!("4 {endpoint} 5"), "4 ib:1"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
