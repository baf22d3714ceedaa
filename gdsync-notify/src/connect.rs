//! How the connections of a team are made: what ranks tell each other of them, and connecting.

use crate::config::{ConnectionKind, TeamConfig};
use crate::control::{Control, Watch};
use crate::error::NotifyError;
use crate::initiator::Initiator;
use crate::life::Life;
use crate::offer::{Offer, Table};
use gdsync::verbs::{DcAddress, Transport};
use gdsync::{Access, ConnectOptions, ProtectionDomain, QueuePair, QueuePairConfig};
use std::sync::Arc;

/// The connections of one rank before they are made.
#[derive(Debug)]
pub(crate) struct Unconnected {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    ways: Ways,
    pub(crate) control: Control,
    pub(crate) options: ConnectOptions,
}

/// The queue pairs of the queues.
#[derive(Debug)]
enum Ways {
    /// Of each queue, the one to each rank.
    Each(Vec<Vec<QueuePair>>),
    Dynamic {
        /// Of each queue.
        initiators: Vec<Vec<QueuePair>>,
        /// Of the targets of all ranks that are known.
        addresses: Vec<(u32, DcAddress)>,
    },
}

/// What other ranks may do with a rank's parts of segments. Not every card has atomics.
pub(crate) fn access(pd: &ProtectionDomain) -> Result<Access, NotifyError> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    Ok(if pd.device().attributes()?.atomics { access | Access::REMOTE_ATOMIC } else { access })
}

impl Unconnected {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        (rank, size): (u32, u32),
        config: &TeamConfig,
    ) -> Result<Self, NotifyError> {
        let access = config.queue_pair.access | access(pd)?;
        let of_queues = config.queue_pair.access(access);
        let QueuePairConfig { port, gid_index, pkey_index, queues: api, .. } = config.queue_pair;
        let of_control =
            QueuePairConfig::default().port(port).gid_index(gid_index).pkey_index(pkey_index).queues(api);
        let (watch, place) = (Watch::of(config.connect), (rank, size));
        let make = |count: u32, of_queues: QueuePairConfig<'static>| {
            let queue = |_| (0..count).map(|_| QueuePair::new(pd, of_queues)).collect();
            (0..config.queues).map(queue).collect::<Result<Vec<Vec<_>>, _>>()
        };
        let dynamic = || {
            let of_queues = of_queues.transport(Transport::Dc).connections(config.connect);
            let initiators = make(config.initiators.clamp(1, size), of_queues)?;
            let control = Control::new(pd, of_control, Some(access), place, watch)?;
            Ok((Ways::Dynamic { initiators, addresses: Vec::new() }, control))
        };
        let each = || -> Result<_, NotifyError> {
            Ok((Ways::Each(make(size, of_queues)?), Control::new(pd, of_control, None, place, watch)?))
        };
        let (ways, control) = match config.kind_of(size) {
            ConnectionKind::Dynamic if config.connections == ConnectionKind::Dynamic => dynamic()?,
            ConnectionKind::Dynamic => dynamic().or_else(|error: NotifyError| {
                tracing::info!(%error, "the card makes no dynamic connections: a queue has a queue pair to each rank");
                each()
            })?,
            _ => each()?,
        };
        Ok(Unconnected { rank, size, ways, control, options: config.connect })
    }

    /// What its queues offer, whichever rank they offer it to.
    pub(crate) fn offer(&self) -> Result<Offer, NotifyError> {
        let (Ways::Each(queues) | Ways::Dynamic { initiators: queues, .. }) = &self.ways;
        Offer::of(queues.len(), &self.control)
    }

    /// The line for each rank.
    pub(crate) fn describe(&self) -> Result<Vec<String>, NotifyError> {
        (0..self.size).map(|rank| Ok(self.table(rank)?.to_string())).collect()
    }

    /// What it offers to a rank.
    fn table(&self, rank: u32) -> Result<Table, NotifyError> {
        let offer = match &self.ways {
            Ways::Each(queues) => {
                let endpoints = queues.iter().map(|to| Ok(Some(to[rank as usize].endpoint()?)));
                Offer::Each(endpoints.collect::<Result<_, NotifyError>>()?)
            }
            // None of these is connected to.
            Ways::Dynamic { .. } => self.offer()?,
        };
        Ok(Table { offer, control: self.control.endpoint(rank)? })
    }

    /// Connects to all ranks, by what each offers to this one.
    pub(crate) fn connect(&mut self, lines: &[String]) -> Result<(), NotifyError> {
        let tables = (0..).zip(lines).map(|(rank, line)| Table::parse(line, rank));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let own = self.offer()?;
        (0..).zip(&tables).try_for_each(|(rank, table)| table.check(rank, &own))?;
        self.connect_to(&tables)
    }

    /// Connects to the ranks of these tables.
    pub(crate) fn connect_to(&mut self, tables: &[Table]) -> Result<(), NotifyError> {
        for (other, table) in (0..).zip(tables) {
            match &mut self.ways {
                Ways::Each(queues) => {
                    for (queue, peers) in queues.iter().enumerate() {
                        if let Some(remote) = table.queue(queue) {
                            peers[other as usize].connect(remote, self.options)?;
                        }
                    }
                }
                Ways::Dynamic { addresses, .. } => {
                    if let Some(target) = table.target() {
                        let address = self.control.connect_to_target(other, target)?;
                        addresses.extend(address.map(|address| (other, address)));
                    }
                }
            }
            if let Some(remote) = &table.control {
                self.control.connect(other, remote)?;
            }
        }
        Ok(())
    }

    /// Once connected: what leads each queue to the ranks.
    pub(crate) fn into_queues(self, life: &Arc<Life>) -> (Vec<Vec<Initiator>>, Control) {
        let queues = match self.ways {
            Ways::Each(queues) => {
                let connected = |(rank, one)| Initiator::connected(rank, one, life.clone());
                queues.into_iter().map(|of_ranks| (0..).zip(of_ranks).map(connected).collect()).collect()
            }
            Ways::Dynamic { initiators, addresses } => {
                let queue = |queue_pairs: Vec<QueuePair>| {
                    let count = queue_pairs.len() as u32;
                    let initiator = |(at, one): (u32, QueuePair)| {
                        let own = addresses.iter().filter(|(rank, _)| rank % count == at).cloned();
                        Initiator::dynamic(one, own, life.clone())
                    };
                    (0..).zip(queue_pairs).map(initiator).collect()
                };
                initiators.into_iter().map(queue).collect()
            }
        };
        (queues, self.control)
    }
}
