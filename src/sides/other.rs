//! Where the other side is.

use super::gpus::{GpusOfSides, RemoteGpu};
use crate::failure::Failure;

#[derive(Clone)]
pub(crate) enum Other {
    /// Started by this one, or by the same process.
    Beside,
    /// Started by itself, at the host of this name, with this GPU if with one.
    Apart { name: String, gpu: Option<RemoteGpu> },
}

impl Other {
    /// The host of a side that was started by itself.
    pub(crate) fn host(&self) -> Option<&str> {
        match self {
            Other::Beside => None,
            Other::Apart { name, .. } => Some(name),
        }
    }

    /// The GPUs of both sides, where they have any. `sides`: as this process counts them.
    pub(crate) fn gpus(&self, sides: Option<[u32; 2]>) -> Result<Option<GpusOfSides>, Failure> {
        match (sides, self) {
            (Some(sides), Other::Beside) => GpusOfSides::describe(sides).map(Some),
            (Some([own, _]), Other::Apart { gpu: Some(gpu), .. }) => GpusOfSides::apart(own, gpu).map(Some),
            _ => Ok(None),
        }
    }
}
