//! The mappings of this process.

use std::ops::Range;

/// Returns the mappings of `/proc/self/maps` (proc_pid_maps(5)), ordered by address, each with the rest of its line, which
/// begins with its rights.
pub(crate) fn mappings(maps: &str) -> impl Iterator<Item = (Range<u64>, &str)> {
    maps.lines().filter_map(|line| {
        let (place, rest) = line.split_once(' ')?;
        let (first, end) = place.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(first)?..number(end)?, rest))
    })
}
