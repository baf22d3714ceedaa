//! The GPUs of `--gpu`: their text for another process, and one for each of two sides.

use crate::failure::Failure;
use gdsync::cuda::{GpuList, Gpus};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// For `#[serde(with = ...)]`.
pub(crate) fn serialize<S: Serializer>(list: &Option<GpuList>, to: S) -> Result<S::Ok, S::Error> {
    list.as_ref().map(GpuList::to_string).serialize(to)
}

/// As [`serialize`].
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<GpuList>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
}

/// The GPU of each of two sides: both on the one that is named, or on one each.
pub(crate) fn of_sides(gpus: &Gpus) -> Result<[u32; 2], Failure> {
    match gpus.numbers().len() {
        1 | 2 => Ok([0, 1].map(|side| gpus.of_rank(side))),
        count => Err(format!(
            "--gpu names {count} GPUs, and there are two sides: name one for both, or two such as --gpu 0,1"
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Options {
        #[serde(with = "crate::gpus")]
        gpu: Option<GpuList>,
    }

    #[test]
    fn a_list_is_the_same_in_another_process() {
        for gpu in [None, Some("all".parse().unwrap()), Some("0,1".parse().unwrap())] {
            let options = Options { gpu };
            let text = serde_json::to_string(&options).unwrap();
            assert_eq!(serde_json::from_str::<Options>(&text).unwrap(), options);
        }
        assert!(serde_json::from_str::<Options>(r#"{"gpu": "x"}"#).is_err());
    }

    #[test]
    fn two_sides_have_a_gpu_each_or_share_one() {
        let sides = |text: &str| of_sides(&text.parse::<GpuList>().unwrap().among(4).unwrap());
        assert_eq!(sides("2").unwrap(), [2, 2]);
        assert_eq!(sides("0,0").unwrap(), [0, 0]);
        assert_eq!(sides("1,0").unwrap(), [1, 0]);
        let refused = sides("all").unwrap_err().to_string();
        assert!(refused.contains("names 4 GPUs") && refused.contains("--gpu 0,1"), "{refused}");
    }
}
