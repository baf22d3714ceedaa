//! The GPUs of the two sides.

use crate::cli::SideOptions;
use crate::failure::Failure;
use gdsync::cuda;
use serde::{Deserialize, Serialize};

/// The GPU of each side, where there are any.
pub(crate) fn gpus_of_sides(sides: &SideOptions) -> Result<Option<[u32; 2]>, Failure> {
    let Some(list) = &sides.gpu else { return Ok(None) };
    crate::gpus::of_sides(&list.resolve()?).map(Some)
}

/// The GPU of a side that was started by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RemoteGpu {
    pub(crate) number: u32,
    pub(crate) name: String,
}

/// The GPUs of the two sides.
pub(crate) struct GpusOfSides {
    pub(crate) sides: [u32; 2],
    names: [String; 2],
    /// Both sides use one GPU.
    is_shared: bool,
    /// Processes share the GPU by MPS; none where each side has a GPU, or where its driver does not
    /// say.
    pub(crate) mps: Option<bool>,
}

impl GpusOfSides {
    pub(crate) fn describe(sides: [u32; 2]) -> Result<Self, Failure> {
        let [first, second] = [cuda::describe(sides[0])?, cuda::describe(sides[1])?];
        let is_shared = sides[0] == sides[1];
        let mps = first.capabilities.mps.filter(|_| is_shared);
        Ok(GpusOfSides { sides, names: [first.name, second.name], is_shared, mps })
    }

    /// The GPU of this side, and that of one which was started by itself.
    pub(crate) fn apart(own: u32, other: &RemoteGpu) -> Result<Self, Failure> {
        let names = [cuda::describe(own)?.name, other.name.clone()];
        Ok(GpusOfSides { sides: [own, other.number], names, is_shared: false, mps: None })
    }

    pub(crate) fn text(&self) -> String {
        let ([first, second], [name, other]) = (self.sides, &self.names);
        if self.is_shared {
            format!("{name} (GPU {first} for both sides)")
        } else {
            format!("GPU {first} ({name}) and GPU {second} ({other}), a side each")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_each_and_one_gpu_for_both_are_told_apart() {
        let text = |sides, is_shared| {
            let names = ["H200".to_owned(), "H100".to_owned()];
            GpusOfSides { sides, names, is_shared, mps: None }.text()
        };
        assert_eq!(text([0, 0], true), "H200 (GPU 0 for both sides)");
        assert_eq!(text([0, 1], false), "GPU 0 (H200) and GPU 1 (H100), a side each");
        assert_eq!(text([0, 0], false), "GPU 0 (H200) and GPU 0 (H100), a side each", "of two hosts");
    }
}
