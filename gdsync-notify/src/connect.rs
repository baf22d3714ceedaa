//! How the connections of a team are made: what ranks tell each other of them, and connecting.

use crate::config::TeamConfig;
use crate::control::{Control, Watch};
use crate::error::NotifyError;

use gdsync::{Access, ConnectOptions, Endpoint, ProtectionDomain, QueuePair, QueuePairConfig};

/// The connections of one rank before they are made.
#[derive(Debug)]
pub(crate) struct Unconnected {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Of each queue, the queue pair to each rank.
    pub(crate) queues: Vec<Vec<QueuePair>>,
    pub(crate) control: Control,
    pub(crate) options: ConnectOptions,
}

/// The endpoints of a rank: of each queue, and of the control connections, one for each rank.
/// `None` where it offers no connection.
#[derive(Debug)]
pub(crate) struct Table {
    size: u32,
    queues: Vec<Option<Endpoint>>,
    control: Vec<Option<Endpoint>>,
}

impl Unconnected {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        (rank, size): (u32, u32),
        config: &TeamConfig,
    ) -> Result<Self, NotifyError> {
        let access = config.queue_pair.access | Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let of_queues = config.queue_pair.access(access);
        let queue = |_| (0..size).map(|_| QueuePair::new(pd, of_queues)).collect::<Result<Vec<_>, _>>();
        let queues = (0..config.queues).map(queue).collect::<Result<Vec<_>, _>>()?;
        let QueuePairConfig { port, gid_index, pkey_index, queues: api, .. } = config.queue_pair;
        let of_control =
            QueuePairConfig::default().port(port).gid_index(gid_index).pkey_index(pkey_index).queues(api);
        let control = Control::new(pd, of_control, (rank, size), Watch::of(config.connect))?;
        Ok(Unconnected { rank, size, queues, control, options: config.connect })
    }

    /// The line for the other ranks.
    pub(crate) fn describe(&self) -> Result<String, NotifyError> {
        let endpoints = self.queues.iter().flatten().map(QueuePair::endpoint);
        let queues = endpoints.map(|one| Ok(Some(one?))).collect::<Result<Vec<_>, NotifyError>>()?;
        Ok(Table { size: self.size, queues, control: self.control.endpoints()? }.to_string())
    }

    /// Connects to all ranks.
    pub(crate) fn connect(&mut self, lines: &[String]) -> Result<(), NotifyError> {
        let tables = (0..).zip(lines).map(|(rank, line)| Table::parse(line, rank, self.size));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        (0..).zip(&tables).try_for_each(|(rank, table)| table.check(rank, self.queues.len()))?;
        self.connect_to(&tables)
    }

    /// Connects to the ranks of these tables.
    pub(crate) fn connect_to(&mut self, tables: &[Table]) -> Result<(), NotifyError> {
        for (other, table) in (0..).zip(tables) {
            for (queue, peers) in self.queues.iter().enumerate() {
                if let Some(remote) = table.queue(queue, self.rank) {
                    peers[other as usize].connect(remote, self.options)?;
                }
            }
            if let Some(remote) = table.control(self.rank) {
                self.control.connect(other, remote)?;
            }
        }
        Ok(())
    }
}

impl Table {
    /// Without a connection.
    pub(crate) fn empty(queues: usize, size: u32) -> Self {
        Table { size, queues: vec![None; queues * size as usize], control: vec![None; size as usize] }
    }

    pub(crate) fn set_queue(&mut self, queue: usize, to: u32, endpoint: Endpoint) {
        self.queues[queue * self.size as usize + to as usize] = Some(endpoint);
    }

    pub(crate) fn set_control(&mut self, to: u32, endpoint: Endpoint) {
        self.control[to as usize] = Some(endpoint);
    }

    pub(crate) fn parse(line: &str, rank: u32, size: u32) -> Result<Self, NotifyError> {
        let endpoint = |text: &str| (text != "-").then(|| text.parse()).transpose();
        let parse = |text: &str| text.split_whitespace().map(endpoint).collect::<Result<Vec<_>, _>>();
        let (queues, control) = line.split_once('|').unwrap_or((line, ""));
        let table = Table { size, queues: parse(queues)?, control: parse(control)? };
        if table.control.len() != size as usize || !table.queues.len().is_multiple_of(size as usize) {
            let reason = format!("its endpoints are not those of {size} ranks: {line}");
            return Err(NotifyError::Elsewhere { rank, reason });
        }
        Ok(table)
    }

    /// Refuses a rank with another number of queues.
    pub(crate) fn check(&self, rank: u32, ours: usize) -> Result<(), NotifyError> {
        let theirs = self.queues.len() / self.size as usize;
        if theirs == ours {
            return Ok(());
        }
        let (theirs, ours) = (theirs.to_string(), ours.to_string());
        Err(NotifyError::Mismatch { rank, what: "queues", theirs, ours })
    }

    /// The endpoint of a queue's connection to a rank.
    pub(crate) fn queue(&self, queue: usize, to: u32) -> Option<&Endpoint> {
        self.queues.get(queue * self.size as usize + to as usize)?.as_ref()
    }

    /// The endpoint of the control connection to a rank.
    pub(crate) fn control(&self, to: u32) -> Option<&Endpoint> {
        self.control.get(to as usize)?.as_ref()
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |endpoints: &[Option<Endpoint>]| {
            let one = |one: &Option<Endpoint>| one.as_ref().map_or("-".to_owned(), Endpoint::to_string);
            endpoints.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        write!(f, "{}|{}", text(&self.queues), text(&self.control))
    }
}
