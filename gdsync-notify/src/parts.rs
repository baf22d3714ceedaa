//! What a team knows of one of its segments: where the parts of all ranks are, and the state of
//! this rank's notifications.

use crate::error::NotifyError;
use crate::layout::RemoteSegment;
use crate::life::Life;
use crate::release::Releases;
use crate::word::Words;
use parking_lot::RwLock;

/// The parts of a segment.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The line that describes this rank's part to the others.
    pub(crate) description: String,
    /// `None` of ranks that had been dropped when the segment was made.
    remotes: RwLock<Vec<Option<RemoteSegment>>>,
    pub(crate) releases: Releases,
}

impl Parts {
    /// From the descriptions of all parts.
    pub(crate) fn new(
        description: String,
        texts: &[Option<String>],
        words: Words,
        notifications: u32,
    ) -> Result<Self, NotifyError> {
        let remote = |text: &Option<String>| text.as_deref().map(RemoteSegment::parse).transpose();
        let remotes = RwLock::new(texts.iter().map(remote).collect::<Result<Vec<_>, _>>()?);
        Ok(Parts { description, remotes, releases: Releases::new(words, notifications)? })
    }

    pub(crate) fn remote(&self, rank: u32, life: &Life) -> Result<RemoteSegment, NotifyError> {
        let remotes = self.remotes.read();
        let size = remotes.len() as u32;
        match remotes.get(rank as usize) {
            Some(Some(remote)) => Ok(*remote),
            Some(None) => life.check(rank).and(Err(NotifyError::Rank { rank, size })),
            None => Err(NotifyError::Rank { rank, size }),
        }
    }

    pub(crate) fn remotes(&self) -> Vec<Option<RemoteSegment>> {
        self.remotes.read().clone()
    }

    /// Takes over the description of a new process' part.
    pub(crate) fn renew(&self, rank: u32, text: &str) -> Result<(), NotifyError> {
        self.remotes.write()[rank as usize] = Some(RemoteSegment::parse(text)?);
        Ok(())
    }
}
