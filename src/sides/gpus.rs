//! Where the other side is, and the GPUs of both.

use crate::cli::SideOptions;
use crate::failure::Failure;
use gdsync::cuda::{self, Gpus};
use serde::{Deserialize, Serialize};

/// The GPU of each side, where there are any: both on the one that is named, or on one each.
pub(crate) fn gpus_of_sides(sides: &SideOptions) -> Result<Option<[u32; 2]>, Failure> {
    sides.gpu.as_ref().map(|list| of_sides(&list.resolve()?)).transpose()
}

fn of_sides(gpus: &Gpus) -> Result<[u32; 2], Failure> {
    match gpus.numbers().len() {
        1 | 2 => Ok([0, 1].map(|side| gpus.of_rank(side))),
        count => Err(format!(
            "--gpu names {count} GPUs, and there are two sides: name one for both, or two such as --gpu 0,1"
        )
        .into()),
    }
}

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

/// The GPU of a side that was started by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RemoteGpu {
    pub(crate) number: u32,
    pub(crate) name: String,
}

impl RemoteGpu {
    pub(crate) fn of(number: u32) -> Result<Self, Failure> {
        Ok(RemoteGpu { number, name: cuda::describe(number)?.name })
    }
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
    fn describe(sides: [u32; 2]) -> Result<Self, Failure> {
        let [first, second] = [cuda::describe(sides[0])?, cuda::describe(sides[1])?];
        let is_shared = sides[0] == sides[1];
        let mps = first.capabilities.mps.filter(|_| is_shared);
        Ok(GpusOfSides { sides, names: [first.name, second.name], is_shared, mps })
    }

    /// The GPU of this side, and that of one which was started by itself.
    fn apart(own: u32, other: &RemoteGpu) -> Result<Self, Failure> {
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
    use gdsync::cuda::GpuList;

    #[test]
    fn two_sides_have_a_gpu_each_or_share_one() {
        let sides = |text: &str| of_sides(&text.parse::<GpuList>().unwrap().among(4).unwrap());
        assert_eq!(sides("2").unwrap(), [2, 2]);
        assert_eq!(sides("0,0").unwrap(), [0, 0]);
        assert_eq!(sides("1,0").unwrap(), [1, 0]);
        let refused = sides("all").unwrap_err().to_string();
        assert!(refused.contains("names 4 GPUs") && refused.contains("--gpu 0,1"), "{refused}");
    }

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
