//! Messages in host memory, and the kernels that work on them there: closures.

use super::findings::Findings;
use super::pattern::Pattern;
use crate::cli::PingpongOptions;
use crate::failure::Failure;
use gdsync::{Access, MemoryRegion, ProtectionDomain};

/// The messages of a side.
pub(super) struct HostMessages {
    pub(super) source: MemoryRegion,
    pub(super) target: MemoryRegion,
    rank: u64,
    checked: bool,
    findings: Findings,
}

impl HostMessages {
    pub(super) fn new(
        options: &PingpongOptions,
        rank: u64,
        pd: &ProtectionDomain,
        findings: Findings,
    ) -> Result<Self, Failure> {
        let size = usize::try_from(options.size)?;
        Ok(HostMessages {
            source: MemoryRegion::allocate(pd, size, Access::empty())?,
            target: MemoryRegion::allocate(pd, size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            rank,
            checked: options.check,
            findings,
        })
    }

    /// Takes the time of the beginning.
    pub(super) fn begin(&self) -> impl FnOnce() + Send + 'static {
        let findings = self.findings.clone();
        move || findings.timing().begin()
    }

    /// Fills the message to send; nothing, where messages are not checked.
    pub(super) fn produce(&self, sequence: u64) -> Option<impl FnOnce() + Send + 'static> {
        let (source, pattern) = (self.source.clone(), Pattern::new(self.rank, sequence));
        self.checked.then_some(move || pattern.fill(&source))
    }

    /// Checks the message that arrived, and on the first side takes the time.
    pub(super) fn consume(&self, sequence: u64) -> impl FnOnce() + Send + 'static {
        let check = self.checked.then(|| Pattern::new(1 - self.rank, sequence));
        let (first, target, findings) = (self.rank == 0, self.target.clone(), self.findings.clone());
        move || {
            if let Some(Err(at)) = check.map(|pattern| pattern.check(&target)) {
                findings.wrong(sequence, at as u64);
            }
            if first {
                findings.timing().exchanged();
            }
        }
    }
}
