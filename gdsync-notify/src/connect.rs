//! Creates a team's queue pairs, exchanges their endpoints, and connects them.

use crate::bootstrap::Bootstrap;
use crate::config::{ConnectionKind, TeamConfig};
use crate::control::{Control, ControlOptions};
use crate::error::{NotifyError, Result};
use crate::handshake::{Endpoints, Introduction, QueueEndpoints};
use crate::initiator::Initiator;
use crate::liveness::Liveness;
use crate::memory::access;
use gdsync::verbs::{DcAddress, OutOfRange, Transport};
use gdsync::{ConnectOptions, ProtectionDomain, QueuePair, QueuePairConfig};
use std::sync::Arc;

/// One rank's queue pairs, not yet connected.
#[derive(Debug)]
pub(crate) struct Unconnected {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// For each queue, the queue pair to each rank, or its DC queue pairs.
    queues: Vec<Vec<QueuePair>>,
    /// With DC, the known targets.
    targets: Option<Vec<(u32, DcAddress)>>,
    pub(crate) control: Control,
    pub(crate) options: ConnectOptions,
}

impl Unconnected {
    pub(crate) fn new(pd: &ProtectionDomain, (rank, size): (u32, u32), config: &TeamConfig) -> Result<Self> {
        let access = config.queue_pair.access | access(pd)?;
        let of_queues = config.queue_pair.access(access);
        let QueuePairConfig { port, gid_index, pkey_index, queues: api, .. } = config.queue_pair;
        let of_control =
            QueuePairConfig::default().port(port).gid_index(gid_index).pkey_index(pkey_index).queues(api);
        let (options, position) = (ControlOptions::of(config.connect), (rank, size));
        let limit = pd.device().attributes()?.max_queue_pairs;
        let make = |count: u32, of_queues: QueuePairConfig<'static>| {
            if config.queues.saturating_mul(count) > limit {
                let limit = format!("each takes {count} queue pairs, and the card has {limit}");
                let (what, value, remedy) = ("queues", config.queues.into(), "ask for fewer");
                return Err(gdsync::Error::OutOfRange(OutOfRange { what, value, limit, remedy }));
            }
            let queue = |_| (0..count).map(|_| QueuePair::new(pd, of_queues)).collect();
            (0..config.queues).map(queue).collect::<Result<Vec<Vec<_>>, gdsync::Error>>()
        };
        let dynamic = || {
            let of_queues = of_queues.transport(Transport::Dc).connections(config.connect);
            let queues = make(config.initiators.clamp(1, size), of_queues)?;
            Ok((queues, Some(Vec::new()), Control::new(pd, of_control, Some(access), position, options)?))
        };
        let each = || -> Result<_> {
            Ok((make(size, of_queues)?, None, Control::new(pd, of_control, None, position, options)?))
        };
        let (queues, targets, control) = match config.kind_of(size) {
            ConnectionKind::Dynamic if config.connections == ConnectionKind::Dynamic => dynamic()?,
            ConnectionKind::Dynamic => dynamic().or_else(|error: NotifyError| {
                tracing::info!(%error, "the card makes no dynamic connections: a queue has a queue pair to each rank");
                each()
            })?,
            _ => each()?,
        };
        Ok(Unconnected { rank, size, queues, targets, control, options: config.connect })
    }

    /// Returns the queues' endpoints that are the same for every rank.
    pub(crate) fn queue_endpoints(&self) -> Result<QueueEndpoints> {
        QueueEndpoints::of(self.queues.len(), &self.control)
    }

    pub(crate) fn describe(&self) -> Result<Vec<String>> {
        (0..self.size).map(|rank| Ok(self.endpoints_for(rank)?.to_string())).collect()
    }

    fn endpoints_for(&self, rank: u32) -> Result<Endpoints> {
        let queues = match &self.targets {
            None => {
                let endpoints = self.queues.iter().map(|to| Ok(Some(to[rank as usize].endpoint()?)));
                QueueEndpoints::Each(endpoints.collect::<Result<_>>()?)
            }
            // DC initiators have no endpoint that others connect to.
            Some(_) => self.queue_endpoints()?,
        };
        Ok(Endpoints { queues, control: self.control.endpoint(rank)? })
    }

    /// Connects to all ranks by the lines received from them.
    pub(crate) fn connect(&mut self, lines: &[String]) -> Result<()> {
        let all_endpoints = (0..).zip(lines).map(|(rank, line)| Endpoints::parse(line, rank));
        let all_endpoints = all_endpoints.collect::<Result<Vec<_>, _>>()?;
        let own = self.queue_endpoints()?;
        (0..).zip(&all_endpoints).try_for_each(|(rank, endpoints)| endpoints.check(rank, &own))?;
        self.connect_to(&all_endpoints)
    }

    pub(crate) fn connect_to(&mut self, all_endpoints: &[Endpoints]) -> Result<()> {
        for (other, endpoints) in (0..).zip(all_endpoints) {
            for (queue, to) in self.queues.iter().enumerate() {
                if let Some(remote) = endpoints.queue(queue) {
                    to[other as usize].connect(remote, self.options)?;
                }
            }
            if let (Some(targets), Some(target)) = (&mut self.targets, endpoints.target()) {
                let address = self.control.connect_to_target(other, target)?;
                targets.extend(address.map(|address| (other, address)));
            }
            if let Some(remote) = &endpoints.control {
                self.control.connect(other, remote)?;
            }
        }
        Ok(())
    }

    pub(crate) fn into_queues(self, liveness: &Arc<Liveness>) -> (Vec<Vec<Initiator>>, Control) {
        let queue = |queue_pairs: Vec<QueuePair>| {
            let count = queue_pairs.len() as u32;
            let initiator = |(at, queue_pair): (u32, QueuePair)| match &self.targets {
                None => Initiator::new(queue_pair, Some(at), [(at, None)].into_iter(), liveness.clone()),
                Some(targets) => {
                    let own = targets.iter().filter(|(rank, _)| rank % count == at);
                    let own = own.map(|(rank, address)| (*rank, Some(address.clone())));
                    Initiator::new(queue_pair, None, own, liveness.clone())
                }
            };
            (0..).zip(queue_pairs).map(initiator).collect()
        };
        let queues = self.queues.into_iter().map(queue).collect();
        (queues, self.control)
    }
}

/// Connects a new process to all ranks. Returns its connections and the descriptions of all segments.
pub(crate) fn join(
    made: Result<Unconnected>,
    own: Result<String>,
    segments: usize,
    bootstrap: &mut Bootstrap,
) -> Result<(Unconnected, Vec<String>)> {
    let introduced = made.and_then(|made| {
        let lines = Introduction::texts(None, segments, made.describe()?.into_iter());
        Ok((made, lines))
    });
    let (mut made, lines) = bootstrap.share_outcome_with_each(introduced)?;
    let all = made.queue_endpoints().and_then(|queues| Introduction::parse_all(&lines, made.rank, &queues));
    let connected = all.and_then(|all| {
        made.connect_to(&all.all_endpoints)?;
        made.control.begin_epoch(all.epoch + 1);
        Ok(())
    });
    bootstrap.share_step(connected)?;
    let ((), lines) = bootstrap.share_outcome(own.map(|line| ((), line)))?;
    bootstrap.share_step(Ok(()))?;
    Ok((made, lines))
}
