//! Queue pairs with queues that the program wishes in a GPU's memory (`GDS_CREATE_QP_*_ON_GPU`).

use crate::error::CallError;
use crate::types::{
    GDS_CREATE_QP_RX_CQ_ON_GPU, GDS_CREATE_QP_TX_CQ_ON_GPU, GDS_CREATE_QP_WISHES,
    GDS_CREATE_QP_WQ_DBREC_ON_GPU,
};
use gdsync::cuda::{Placement, PlacementError, QueuePlacement};
use gdsync::{
    CompletionQueue, CompletionQueueConfig, Device, Error, ProtectionDomain, QueuePair, QueuePairConfig,
};
use gdsync_sys::VerbsApi;
use gdsync_sys::api::Provider;
use libc::c_int;

/// The arguments of `gds_create_qp` on memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// `GDS_CREATE_QP_*` flags.
    pub(crate) flags: c_int,
    /// Number of the GPU; negative for none.
    pub(crate) gpu: c_int,
}

impl Wishes {
    /// A GPU's memory for what has this flag, the host's for everything else.
    fn place(self, flag: c_int, gpu: u32) -> Placement {
        if self.flags & flag != 0 { Placement::Gpu(gpu) } else { Placement::Host }
    }
}

/// Makes a queue pair as the program wishes it, as far as that is possible.
pub(crate) fn make(
    api: &VerbsApi,
    device: &Device,
    domain: &ProtectionDomain,
    config: QueuePairConfig<'_>,
    wishes: Wishes,
) -> Result<QueuePair, CallError> {
    if wishes.flags & GDS_CREATE_QP_WISHES != 0 {
        let reason = match (api.provider, u32::try_from(wishes.gpu)) {
            // Such queues are made by commands of the device, without the ibv_qp that the C structs
            // have.
            (provider, _) if provider != Provider::Software => {
                "the system's provider takes queues of verbs in host memory only".to_owned()
            }
            (_, Err(_)) => "gpu_id names no GPU".to_owned(),
            (_, Ok(gpu)) => match placed(device, domain, config, wishes, gpu) {
                Err(Error::Placement(PlacementError { reason, .. })) => reason,
                done => return Ok(done?),
            },
        };
        tracing::info!(
            flags = wishes.flags,
            reason,
            "queues and records are put into host memory, not the GPU's"
        );
    }
    Ok(QueuePair::unmanaged(domain, config)?)
}

fn placed(
    device: &Device,
    domain: &ProtectionDomain,
    config: QueuePairConfig<'_>,
    wishes: Wishes,
    gpu: u32,
) -> Result<QueuePair, Error> {
    let queue = |flag, depth: u32| {
        let placement = QueuePlacement::HOST.completions(wishes.place(flag, gpu));
        // As many as a queue pair's own queues have: each request's, and those that a stream has
        // still to look at.
        CompletionQueue::new(
            device,
            CompletionQueueConfig::from(depth.max(1).saturating_mul(2)).placement(placement),
        )
    };
    let send_cq = queue(GDS_CREATE_QP_TX_CQ_ON_GPU, config.send_depth)?;
    let recv_cq = queue(GDS_CREATE_QP_RX_CQ_ON_GPU, config.recv_depth)?;
    let records = wishes.place(GDS_CREATE_QP_WQ_DBREC_ON_GPU, gpu);
    let config = config.placement(QueuePlacement::HOST.records(records));
    QueuePair::unmanaged(domain, config.completion_queues(&send_cq, &recv_cq))
}
