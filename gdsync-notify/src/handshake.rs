//! The lines of text that ranks exchange to connect, or to share the outcome of a step.

use crate::bootstrap::Bootstrap;
use crate::control::Control;
use crate::error::{NotifyError, Result};
use crate::liveness::RankSet;
use crate::memory::SharedSegment;
use gdsync::Endpoint;
use std::fmt;
use std::sync::Arc;

/// The endpoints that one rank sends to another: of its queues, and of the control connection (`None` if it offers none).
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) queues: QueueEndpoints,
    pub(crate) control: Option<Endpoint>,
}

#[derive(Debug)]
pub(crate) enum QueueEndpoints {
    /// For each queue, the endpoint for that rank.
    Each(Vec<Option<Endpoint>>),
    /// The DC target of all `queues` queues, and its access key.
    Dynamic { queues: usize, target: Endpoint, key: u64 },
}

const DYNAMIC: &str = "dc ";

impl QueueEndpoints {
    /// Returns what every rank gets: the control connections' DC target, or no endpoint for each of so many queues.
    pub(crate) fn of(queues: usize, control: &Control) -> Result<Self> {
        Ok(match control.target() {
            Some(target) => QueueEndpoints::Dynamic { queues, target: target.endpoint()?, key: target.key() },
            None => QueueEndpoints::Each(vec![None; queues]),
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let endpoint = |text: &str| text.parse::<Endpoint>().map_err(|error| error.to_string());
        let Some(text) = text.strip_prefix(DYNAMIC) else {
            let one = |text: &str| (text != "-").then(|| endpoint(text)).transpose();
            return Ok(QueueEndpoints::Each(text.split_whitespace().map(one).collect::<Result<_, _>>()?));
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [queues, target, key] = fields[..] else {
            return Err(format!("{text:?} is not a number of queues, an endpoint and a key"));
        };
        let queues = queues.parse().map_err(|error| format!("{queues:?}: {error}"))?;
        let key = u64::from_str_radix(key, 16).map_err(|error| format!("its key: {error}"))?;
        Ok(QueueEndpoints::Dynamic { queues, target: endpoint(target)?, key })
    }

    /// Returns the number of queues and the kind of their connections.
    fn kind(&self) -> (usize, &'static str) {
        match self {
            QueueEndpoints::Each(endpoints) => (endpoints.len(), "separate"),
            QueueEndpoints::Dynamic { queues, .. } => (*queues, "dynamic"),
        }
    }
}

impl fmt::Display for QueueEndpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueEndpoints::Each(endpoints) => list(f, endpoints),
            QueueEndpoints::Dynamic { queues, target, key } => {
                write!(f, "{DYNAMIC}{queues} {target} {key:x}")
            }
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, endpoints: &[Option<Endpoint>]) -> fmt::Result {
    for (at, endpoint) in endpoints.iter().enumerate() {
        f.write_str(if at == 0 { "" } else { " " })?;
        match endpoint {
            Some(endpoint) => write!(f, "{endpoint}")?,
            None => f.write_str("-")?,
        }
    }
    Ok(())
}

impl Endpoints {
    pub(crate) fn parse(line: &str, rank: u32) -> Result<Self> {
        let bad = |reason: String| NotifyError::FailedOnRank { rank, reason };
        let (queues, control) = line.split_once('|').unwrap_or((line, ""));
        let queues = QueueEndpoints::parse(queues).map_err(bad)?;
        match QueueEndpoints::parse(control).map_err(bad)? {
            QueueEndpoints::Each(control) if control.len() == 1 => {
                Ok(Endpoints { queues, control: control.into_iter().next().flatten() })
            }
            _ => Err(bad(format!("{control:?} is no control connection, nor `-` in the place of one"))),
        }
    }

    pub(crate) fn set_queue(&mut self, queue: usize, endpoint: Endpoint) {
        if let QueueEndpoints::Each(queues) = &mut self.queues {
            queues[queue] = Some(endpoint);
        }
    }

    /// Refuses a rank whose number of queues or kind of connections differs from this one's.
    pub(crate) fn check(&self, rank: u32, ours: &QueueEndpoints) -> Result<()> {
        let ((theirs, their_kind), (ours, our_kind)) = (self.queues.kind(), ours.kind());
        let (what, theirs, ours) = if their_kind != our_kind {
            ("connections", their_kind.to_owned(), our_kind.to_owned())
        } else if theirs != ours {
            ("queues", theirs.to_string(), ours.to_string())
        } else {
            return Ok(());
        };
        Err(NotifyError::Mismatch { rank, what, theirs, ours })
    }

    pub(crate) fn queue(&self, queue: usize) -> Option<&Endpoint> {
        match &self.queues {
            QueueEndpoints::Each(queues) => queues.get(queue)?.as_ref(),
            QueueEndpoints::Dynamic { .. } => None,
        }
    }

    pub(crate) fn target(&self) -> Option<(&Endpoint, u64)> {
        match &self.queues {
            QueueEndpoints::Each(_) => None,
            QueueEndpoints::Dynamic { target, key, .. } => Some((target, *key)),
        }
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|", self.queues)?;
        list(f, std::slice::from_ref(&self.control))
    }
}

/// A rank's line when new processes join a team: its epoch, its number of segments and its endpoints.
#[derive(Debug)]
pub(crate) struct Introduction {
    /// The team's agreements so far; `None` for a new process.
    epoch: Option<u32>,
    segments: usize,
    endpoints: Endpoints,
}

impl Introduction {
    pub(crate) fn texts(
        epoch: Option<u32>,
        segments: usize,
        all_endpoints: impl Iterator<Item = String>,
    ) -> Vec<String> {
        let epoch = epoch.map_or("new".to_owned(), |epoch| epoch.to_string());
        all_endpoints.map(|endpoints| format!("{epoch} {segments} {endpoints}")).collect()
    }

    /// Parses the lines of all ranks and checks that they agree.
    pub(crate) fn parse_all(lines: &[String], own: u32, queues: &QueueEndpoints) -> Result<Introductions> {
        let all = (0..).zip(lines).map(|(rank, line)| Self::parse(line, rank, queues));
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
            return Err(NotifyError::FailedOnRank { rank: own, reason: reason.to_owned() });
        };
        if let Some((rank, other)) = epochs.find(|(_, other)| *other != epoch) {
            let reason = format!("it has shrunk its team {other} times, and rank {first} {epoch} times");
            return Err(NotifyError::FailedOnRank { rank, reason });
        }
        let new = (0..).zip(&all).filter(|(_, one)| one.epoch.is_none()).map(|(rank, _)| rank).collect();
        Ok(Introductions { new, epoch, all_endpoints: all.into_iter().map(|one| one.endpoints).collect() })
    }

    fn parse(line: &str, rank: u32, queues: &QueueEndpoints) -> Result<Self> {
        let fields: Vec<&str> = line.splitn(3, ' ').collect();
        let bad = || NotifyError::FailedOnRank { rank, reason: format!("{line:?} is no introduction") };
        let [epoch, segments, endpoints] = fields[..] else { return Err(bad()) };
        let epoch = match epoch {
            "new" => None,
            number => Some(number.parse().map_err(|_| bad())?),
        };
        let segments = segments.parse().map_err(|_| bad())?;
        let endpoints = Endpoints::parse(endpoints, rank)?;
        endpoints.check(rank, queues)?;
        Ok(Introduction { epoch, segments, endpoints })
    }
}

#[derive(Debug)]
pub(crate) struct Introductions {
    pub(crate) new: RankSet,
    pub(crate) epoch: u32,
    pub(crate) all_endpoints: Vec<Endpoints>,
}

/// Joins the descriptions of segments into one line.
pub(crate) fn describe_segments(segments: &[Arc<SharedSegment>]) -> String {
    segments.iter().map(|one| one.description.as_str()).collect::<Vec<_>>().join(";")
}

/// Returns the description of a segment from a rank's line.
pub(crate) fn segment_description(line: &str, segment: usize) -> Option<String> {
    line.split(';').nth(segment).map(str::to_owned)
}

/// Shares the outcome of a step that each rank takes alone: a line that describes it, or an error, which then every
/// rank gets. The lines of dropped ranks are `None`.
pub(crate) fn share_outcome<T, E: fmt::Display + From<NotifyError>>(
    done: Result<(T, String), E>,
    gather: impl FnOnce(&[u8]) -> Result<Vec<Option<Vec<u8>>>>,
) -> Result<(T, Vec<Option<String>>), E> {
    let line = match &done {
        Ok((_, text)) => success(text),
        Err(error) => failure(error),
    };
    let all = gather(&line);
    // This rank's own error is more specific than that of the exchange.
    let (value, _) = done?;
    let text = |(rank, bytes): (u32, Option<Vec<u8>>)| bytes.map(|bytes| read(rank, &bytes)).transpose();
    Ok((value, (0..).zip(all?).map(text).collect::<Result<Vec<_>>>()?))
}

fn success(text: &str) -> Vec<u8> {
    format!("+{text}").into_bytes()
}

fn failure(error: &impl fmt::Display) -> Vec<u8> {
    format!("-{error}").into_bytes()
}

fn read(rank: u32, bytes: &[u8]) -> Result<String> {
    let text = String::from_utf8_lossy(bytes);
    match text.split_at_checked(1) {
        Some(("+", text)) => Ok(text.to_owned()),
        Some((_, reason)) => Err(NotifyError::FailedOnRank { rank, reason: reason.to_owned() }),
        None => Err(NotifyError::FailedOnRank { rank, reason: "it sent an empty line".to_owned() }),
    }
}

impl Bootstrap {
    /// As [`share_outcome`], over a bootstrap, where no rank is missing.
    pub(crate) fn share_outcome<T>(&mut self, done: Result<(T, String)>) -> Result<(T, Vec<String>)> {
        let gather = |line: &[u8]| Ok(self.all_gather(line)?.into_iter().map(Some).collect());
        let (value, lines) = share_outcome(done, gather)?;
        Ok((value, lines.into_iter().flatten().collect()))
    }

    /// As [`Self::share_outcome`], without a description.
    pub(crate) fn share_step<T>(&mut self, done: Result<T>) -> Result<T> {
        Ok(self.share_outcome(done.map(|value| (value, String::new())))?.0)
    }

    /// As [`Self::share_outcome`], with a line for each rank.
    pub(crate) fn share_outcome_with_each<T>(
        &mut self,
        done: Result<(T, Vec<String>)>,
    ) -> Result<(T, Vec<String>)> {
        let parts = match &done {
            Ok((_, texts)) => texts.iter().map(|text| success(text)).collect(),
            Err(error) => vec![failure(error); self.size() as usize],
        };
        let all = self.all_to_all(&parts);
        let (value, _) = done?;
        let lines = (0..).zip(all?).map(|(rank, bytes)| read(rank, &bytes));
        Ok((value, lines.collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "ib:1:2:0:5:fe800000000000000000000000000001";

    #[test]
    fn tables_round_trip() {
        for line in [
            format!("dc 2 {TARGET} 123456789abcdef0|-"),
            format!("{TARGET} - - {TARGET}|{TARGET}"),
            "|-".to_owned(),
        ] {
            assert_eq!(Endpoints::parse(&line, 0).unwrap().to_string(), line);
        }
    }

    #[test]
    fn what_is_no_table_is_refused_with_the_rank() {
        for line in [
            "dc 2|-".to_owned(),
            format!("dc x {TARGET} 1|-"),
            format!("dc 2 {TARGET} 1 1|-"),
            format!("dc 2 {TARGET} 1g|-"),
            "dc 2 ib 1|-".to_owned(),
            format!("{TARGET}|- -"),
            format!("{TARGET}|"),
            format!("|dc 2 {TARGET} 1"),
            "- -".to_owned(),
        ] {
            let error = Endpoints::parse(&line, 7).unwrap_err();
            assert!(matches!(error, NotifyError::FailedOnRank { rank: 7, .. }), "{line}: {error}");
        }
    }

    #[test]
    fn another_kind_or_number_is_a_mismatch() {
        let endpoints = |line: &str| Endpoints::parse(line, 1).unwrap();
        let dynamic = format!("dc 2 {TARGET} 1|-");
        let ours = |line: &str| endpoints(line).queues;
        let refused = |theirs: &str, own: &str| match endpoints(theirs).check(1, &ours(own)) {
            Err(NotifyError::Mismatch { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&dynamic, "- -|-"), "connections");
        assert_eq!(refused("- -|-", &dynamic), "connections");
        assert_eq!(refused("- -|-", "-|-"), "queues");
        assert_eq!(refused(&dynamic, &format!("dc 1 {TARGET} 1|-")), "queues");
        assert!(endpoints(&dynamic).check(1, &ours(&dynamic)).is_ok());
    }
}
