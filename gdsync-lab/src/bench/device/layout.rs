//! Where queues, and the indices that threads share, lie.

use gdsync::cuda::{Placement, QueuePlacement};

#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) name: &'static str,
    pub(super) queues: QueuePlacement,
    pub(super) indices_in_gpu: bool,
}

impl Layout {
    /// Everything in host memory; then, with the indices in the GPU's, each way to place the send
    /// queue and its completion queue.
    pub(super) fn all(gpu: u32) -> [Layout; 5] {
        let place = |in_gpu| if in_gpu { Placement::Gpu(gpu) } else { Placement::Host };
        [
            ("ALL HOST", false, false, false),
            ("INDICES GPU", true, false, false),
            ("+ QP GPU", true, true, false),
            ("+ CQ GPU", true, false, true),
            ("+ QP, CQ GPU", true, true, true),
        ]
        .map(|(name, indices_in_gpu, queue_pair, completions)| {
            // A send queue's record is written whenever its ring is.
            let queues = QueuePlacement {
                work: place(queue_pair),
                completions: place(completions),
                records: place(queue_pair),
            };
            Layout { name, queues, indices_in_gpu }
        })
    }

    pub(super) fn queues_in_gpu(&self) -> bool {
        self.queues != QueuePlacement::HOST
    }
}
