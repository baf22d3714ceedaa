//! New processes in the places of dropped ranks.

use crate::bootstrap::Bootstrap;
use crate::connect::Unconnected;
use crate::connections::Connections;
use crate::error::NotifyError;
use crate::life::RankSet;
use crate::offer::{Offer, Table};
use crate::parts::Parts;
use std::sync::Arc;

/// What a rank says of itself when new processes join a team: whether it is new, how many segments
/// it has, and its endpoints.
#[derive(Debug)]
pub(crate) struct Introduction {
    /// Agreements of the team so far; `None` of a new process.
    epoch: Option<u32>,
    segments: usize,
    table: Table,
}

impl Introduction {
    /// A line for each rank, to which a table is offered.
    fn texts(epoch: Option<u32>, segments: usize, tables: impl Iterator<Item = String>) -> Vec<String> {
        let epoch = epoch.map_or("new".to_owned(), |epoch| epoch.to_string());
        tables.map(|table| format!("{epoch} {segments} {table}")).collect()
    }

    /// Those of all ranks, where they fit together: the ranks that are new, and the epoch.
    pub(crate) fn parse_all(lines: &[String], own: u32, offer: &Offer) -> Result<All, NotifyError> {
        let all = (0..).zip(lines).map(|(rank, line)| Self::parse(line, rank, offer));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let ours = &all[own as usize];
        for (rank, one) in (0..).zip(&all) {
            if one.segments != ours.segments {
                let (theirs, ours) = (one.segments.to_string(), ours.segments.to_string());
                return Err(NotifyError::Mismatch { rank, what: "segments", theirs, ours });
            }
        }
        let mut epochs = (0..).zip(&all).filter_map(|(rank, one)| Some((rank, one.epoch?)));
        let Some((first, epoch)) = epochs.next() else {
            let reason = "no rank of the team is there: new processes join one that has dropped their ranks";
            return Err(NotifyError::Elsewhere { rank: own, reason: reason.to_owned() });
        };
        if let Some((rank, other)) = epochs.find(|(_, other)| *other != epoch) {
            let reason = format!("it has shrunk its team {other} times, and rank {first} {epoch} times");
            return Err(NotifyError::Elsewhere { rank, reason });
        }
        let new = (0..).zip(&all).filter(|(_, one)| one.epoch.is_none()).map(|(rank, _)| rank).collect();
        Ok(All { new, epoch, tables: all.into_iter().map(|one| one.table).collect() })
    }

    fn parse(line: &str, rank: u32, offer: &Offer) -> Result<Self, NotifyError> {
        let fields: Vec<&str> = line.splitn(3, ' ').collect();
        let bad = || NotifyError::Elsewhere { rank, reason: format!("{line:?} is no introduction") };
        let [epoch, segments, table] = fields[..] else { return Err(bad()) };
        let epoch = match epoch {
            "new" => None,
            number => Some(number.parse().map_err(|_| bad())?),
        };
        let segments = segments.parse().map_err(|_| bad())?;
        let table = Table::parse(table, rank)?;
        table.check(rank, offer)?;
        Ok(Introduction { epoch, segments, table })
    }
}

/// What all ranks have said.
#[derive(Debug)]
pub(crate) struct All {
    /// The ranks that are new.
    pub(crate) new: RankSet,
    pub(crate) epoch: u32,
    pub(crate) tables: Vec<Table>,
}

/// The descriptions of segments, as one line.
pub(crate) fn describe(segments: &[Arc<Parts>]) -> String {
    segments.iter().map(|one| one.description.as_str()).collect::<Vec<_>>().join(";")
}

/// The description of a segment in the line of a rank.
pub(crate) fn description(line: &str, segment: usize) -> Option<String> {
    line.split(';').nth(segment).map(str::to_owned)
}

impl Connections {
    /// The first step of a survivor: connections that new processes can take over. A line for each rank.
    fn introduce(&self) -> Result<Vec<String>, NotifyError> {
        self.life.check_all()?;
        let dropped = self.life.dropped();
        let mut tables = Vec::with_capacity(self.size as usize);
        for rank in 0..self.size {
            let mut table = Table { offer: self.offer()?, control: None };
            if dropped.contains(&rank) {
                for (queue, initiator) in self.initiators(rank).enumerate() {
                    if let Some(endpoint) = initiator.vacate(rank, self.timeout)? {
                        table.set_queue(queue, endpoint);
                    }
                }
                table.control = self.control.lock().renew(&self.pd, rank)?;
            }
            tables.push(table.to_string());
        }
        let (epoch, segments) = (self.control.lock().epoch(), self.segments().len());
        Ok(Introduction::texts(Some(epoch), segments, tables.into_iter()))
    }

    /// What this rank offers to all, before connections with dropped ranks are made anew.
    fn offer(&self) -> Result<Offer, NotifyError> {
        Offer::of(self.queues.len(), &self.control.lock())
    }

    /// Takes new processes into the places of all dropped ranks, together with them and with all
    /// survivors.
    pub(crate) fn replace(&self, bootstrap: &mut Bootstrap) -> Result<Vec<u32>, NotifyError> {
        let _turn = self.turn.lock();
        let introduced = self.introduce().map(|lines| ((), lines));
        let ((), lines) = bootstrap.together_with_each(introduced)?;
        let connected = self.connect_new(&lines);
        let (all, _) = bootstrap.together(connected.map(|all| (all, String::new())))?;
        let segments = self.segments();
        let ((), lines) = bootstrap.together(Ok(((), describe(&segments))))?;
        let renewed = all.new.iter().try_for_each(|&rank| {
            let mut segments = segments.iter().enumerate();
            segments.try_for_each(|(at, one)| {
                one.renew(rank, &description(&lines[rank as usize], at).unwrap_or_default())
            })
        });
        bootstrap.together(renewed.map(|()| ((), String::new())))?;
        self.control.lock().begin_epoch(all.epoch + 1);
        self.life.revive(&all.new);
        self.settle();
        Ok(all.new.into_iter().collect())
    }

    fn connect_new(&self, lines: &[String]) -> Result<All, NotifyError> {
        let all = Introduction::parse_all(lines, self.rank, &self.offer()?)?;
        let dropped = self.life.dropped();
        if all.new != dropped {
            let list = |set: &RankSet| format!("{:?}", Vec::from_iter(set));
            let (theirs, ours) = (list(&all.new), list(&dropped));
            let rank = all.new.iter().chain(&dropped).next().copied().unwrap_or(self.rank);
            return Err(NotifyError::Mismatch {
                rank,
                what: "new processes, not those dropped:",
                theirs,
                ours,
            });
        }
        for &rank in &all.new {
            let table = &all.tables[rank as usize];
            let address = match table.target() {
                Some(target) => self.control.lock().connect_to_target(rank, target)?,
                None => None,
            };
            for (queue, initiator) in self.initiators(rank).enumerate() {
                match (&address, table.queue(queue)) {
                    (Some(address), _) => initiator.redirect(rank, address.clone())?,
                    (None, Some(remote)) => initiator.connect(remote, self.options)?,
                    (None, None) => {}
                }
            }
            if let Some(remote) = &table.control {
                self.control.lock().connect(rank, remote)?;
            }
        }
        Ok(all)
    }
}

/// The connections of a new process, to all ranks; and the descriptions of all segments.
pub(crate) fn join(
    made: Result<Unconnected, NotifyError>,
    own: Result<String, NotifyError>,
    segments: usize,
    bootstrap: &mut Bootstrap,
) -> Result<(Unconnected, Vec<String>), NotifyError> {
    let introduced = made.and_then(|made| {
        let lines = Introduction::texts(None, segments, made.describe()?.into_iter());
        Ok((made, lines))
    });
    let (mut made, lines) = bootstrap.together_with_each(introduced)?;
    let all = made.offer().and_then(|offer| Introduction::parse_all(&lines, made.rank, &offer));
    let connected = all.and_then(|all| {
        made.connect_to(&all.tables)?;
        made.control.begin_epoch(all.epoch + 1);
        Ok(((), String::new()))
    });
    bootstrap.together(connected)?;
    let ((), lines) = bootstrap.together(own.map(|line| ((), line)))?;
    bootstrap.together(Ok(((), String::new())))?;
    Ok((made, lines))
}
