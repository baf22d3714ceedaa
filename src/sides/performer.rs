//! Which driver performs a side's work.

use super::driver::{Driver, Work};
use super::findings::Findings;
use super::gpu::GpuDriver;
use super::host::HostDriver;
use crate::cli::{SideOptions, Trigger};
use crate::failure::Failure;
use gdsync::stream::Cpu;
use gdsync::{ProtectionDomain, SoftStream};

/// The driver that the options ask for, with everything allocated that it will need.
pub(crate) fn driver(
    options: &SideOptions,
    work: Work,
    (rank, gpu): (u64, Option<u32>),
    pd: &ProtectionDomain,
    findings: &Findings,
) -> Result<Box<dyn Driver>, Failure> {
    let findings = findings.clone();
    Ok(match (gpu, options.trigger) {
        (Some(ordinal), _) => Box::new(GpuDriver::new(ordinal, options, work, rank, pd, findings)?),
        (None, Trigger::Stream) => {
            Box::new(HostDriver::new(SoftStream::new()?, options, work, rank, pd, findings)?)
        }
        (None, Trigger::Cpu) => Box::new(HostDriver::new(Cpu::new(), options, work, rank, pd, findings)?),
    })
}
