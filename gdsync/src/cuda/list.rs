//! Lists of GPUs on command lines, and the assignment of GPUs to ranks.

use crate::cuda::{CudaError, DriverError, Gpu, device_count};
use std::fmt;
use std::str::FromStr;

/// GPUs by number, as text: `all`, `0`, or `0,1`. A list may repeat a GPU: `0,0` gives it to two ranks of a program.
///
/// # Example
/// ```
/// use gdsync::cuda::GpuList;
///
/// let list: GpuList = "0,1".parse()?;
/// assert_eq!(list.to_string(), "0,1");
/// // As on a machine with 4 GPUs; `GpuList::resolve` asks this machine.
/// let gpus = list.among(4)?;
/// assert_eq!([0, 1, 2, 3].map(|rank| gpus.of_rank(rank)), [0, 1, 0, 1]);
/// assert!("0,two".parse::<GpuList>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GpuList {
    /// At least one; `None` stands for all GPUs of the machine.
    numbers: Option<Vec<u32>>,
}

/// A text that is not a [`GpuList`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is not the number of a GPU, counted from 0: give a number, several with commas between such as 0,1, or all",
    if .item.is_empty() { "an empty text" } else { .item }
)]
pub struct GpuListError {
    /// The item that is not a number.
    pub item: String,
}

impl FromStr for GpuList {
    type Err = GpuListError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(GpuList { numbers: None });
        }
        let number = |item: &str| item.parse().map_err(|_| GpuListError { item: item.to_owned() });
        Ok(GpuList { numbers: Some(text.split(',').map(number).collect::<Result<_, _>>()?) })
    }
}

impl From<u32> for GpuList {
    fn from(number: u32) -> Self {
        GpuList { numbers: Some(vec![number]) }
    }
}

impl fmt::Display for GpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.numbers {
            None => f.write_str("all"),
            Some(numbers) => {
                let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
                f.write_str(&texts.join(","))
            }
        }
    }
}

impl GpuList {
    /// The number, if the list is a single one.
    pub fn single(&self) -> Option<u32> {
        match self.numbers.as_deref() {
            Some([number]) => Some(*number),
            _ => None,
        }
    }

    /// The GPUs of this machine that the list names. Creates no context.
    ///
    /// # Errors
    /// As [`device_count`], and [`DriverError::NoDevice`] for a number that this machine does
    /// not have, or for `all` on a machine without GPUs.
    pub fn resolve(&self) -> Result<Gpus, CudaError> {
        self.among(device_count()?)
    }

    /// The GPUs that the list names on a machine with `count` of them.
    ///
    /// # Errors
    /// [`DriverError::NoDevice`].
    pub fn among(&self, count: u32) -> Result<Gpus, CudaError> {
        let numbers = self.numbers.clone().unwrap_or_else(|| (0..count.max(1)).collect());
        match numbers.iter().find(|number| **number >= count) {
            Some(ordinal) => Err(DriverError::NoDevice { ordinal: *ordinal, count }.into()),
            None => Ok(Gpus { numbers }),
        }
    }
}

/// GPUs of a machine, in the order of a [`GpuList`]: at least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gpus {
    numbers: Vec<u32>,
}

impl Gpus {
    /// Their numbers, in the order of the list.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The GPU of a rank: ranks take the list in turn.
    pub fn of_rank(&self, rank: u32) -> u32 {
        self.numbers[rank as usize % self.numbers.len()]
    }

    /// All pairs of GPUs, in the order of the list; a single GPU is paired with itself.
    pub fn pairs(&self) -> Vec<[u32; 2]> {
        let [first, rest @ ..] = &self.numbers[..] else { return Vec::new() };
        if rest.is_empty() {
            return vec![[*first; 2]];
        }
        let from = |(at, one): (usize, &u32)| {
            let one = *one;
            self.numbers[at + 1..].iter().map(move |other| [one, *other]).collect::<Vec<_>>()
        };
        self.numbers.iter().enumerate().flat_map(from).collect()
    }

    /// Each GPU once, in the order of the list, with its number of occurrences.
    fn counted(&self) -> Vec<(u32, usize)> {
        let mut counted: Vec<(u32, usize)> = Vec::new();
        for number in &self.numbers {
            match counted.iter_mut().find(|(known, _)| known == number) {
                Some((_, times)) => *times += 1,
                None => counted.push((*number, 1)),
            }
        }
        counted
    }
}

/// `GPU 0 (NVIDIA H200), GPU 1 (NVIDIA H200)`, with a note on a repeated GPU.
impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (number, times)) in self.counted().into_iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            // The driver's ordinals fit a handle's type.
            write!(f, "{comma}{}", Gpu::from_device(number.cast_signed()))?;
            if times > 1 {
                write!(f, ", which the list names {times} times")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(text: &str) -> GpuList {
        text.parse().unwrap()
    }

    #[test]
    fn a_list_is_all_or_numbers() {
        for (text, among_four) in
            [("all", &[0, 1, 2, 3][..]), ("0", &[0]), ("0,1", &[0, 1]), ("3,0,3", &[3, 0, 3])]
        {
            assert_eq!(list(text).among(4).unwrap().numbers(), among_four, "{text}");
            assert_eq!(list(text).to_string(), text);
        }
        assert_eq!(GpuList::from(2), list("2"));
        assert_eq!(["2", "0,0", "all"].map(|text| list(text).single()), [Some(2), None, None]);
        for (text, said) in [
            ("", "an empty text is not the number"),
            ("0,", "an empty text is not"),
            ("-1", "-1 is not the number of a GPU"),
            ("0,ALL", "ALL is not"),
            ("0 1", "0 1 is not"),
            ("4294967296", "4294967296 is not"),
        ] {
            let error = text.parse::<GpuList>().unwrap_err().to_string();
            assert!(error.starts_with(said) && error.contains("0,1, or all"), "{text}: {error}");
        }
    }

    #[test]
    fn gpus_that_a_machine_lacks_are_named_with_how_many_it_has() {
        for (text, count, ordinal) in
            [("2", 2, 2), ("0,1,7", 2, 7), ("all", 0, 0), ("4294967295", 1, u32::MAX)]
        {
            let error = list(text).among(count).unwrap_err();
            assert_eq!(error, CudaError::Driver(DriverError::NoDevice { ordinal, count }), "{text}");
            let (gpu, has) = (format!("GPU {ordinal}:"), format!("has {count}"));
            let said = error.to_string();
            assert!(said.contains(&gpu) && said.contains(&has), "{said}");
        }
    }

    #[test]
    fn pairs_are_every_two_of_a_list_and_one_gpu_with_itself() {
        let pairs = |text: &str| list(text).among(4).unwrap().pairs();
        assert_eq!(pairs("2"), [[2, 2]]);
        assert_eq!(pairs("0,0"), [[0, 0]]);
        assert_eq!(pairs("0,2,1"), [[0, 2], [0, 1], [2, 1]]);
        assert_eq!(pairs("all").len(), 6);
    }

    #[test]
    fn one_gpu_that_is_named_twice_is_told_as_one() {
        let counted = |text: &str| list(text).among(3).unwrap().counted();
        assert_eq!(counted("0,0"), [(0, 2)]);
        assert_eq!(counted("1,0,1,2"), [(1, 2), (0, 1), (2, 1)]);
        let said = list("1,0,1").among(3).unwrap().to_string();
        assert!(said.starts_with("GPU 1") && said.contains("names 2 times, GPU 0"), "{said}");
    }

    proptest! {
        #[test]
        fn ranks_take_the_list_in_turn(numbers in prop::collection::vec(0u32..16, 1..9), rank: u32) {
            let text: Vec<String> = numbers.iter().map(u32::to_string).collect();
            let gpus = list(&text.join(",")).among(16).unwrap();
            prop_assert_eq!(gpus.of_rank(rank), numbers[rank as usize % numbers.len()]);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            if let Ok(list) = text.parse::<GpuList>() {
                prop_assert_eq!(list.to_string().parse::<GpuList>(), Ok(list.clone()));
                let _ = list.among(3);
            }
        }
    }
}
