//! Shrinking: the fewest rules under which a job still fails.

use std::ops::Range;

/// Returns a part of `all`, in the same order, for which `fails` holds, and of which no smaller part that delta debugging
/// (Zeller and Hildebrandt, 2002) tries does. `fails` holds for `all`. `goes_on` ends the search early: the result is then
/// the smallest part that was found.
///
/// # Errors
/// The first of `fails`.
pub fn shrink<T: Clone, E>(
    all: Vec<T>,
    mut fails: impl FnMut(&[T]) -> Result<bool, E>,
    mut goes_on: impl FnMut(usize) -> bool,
) -> Result<Vec<T>, E> {
    let (mut left, mut parts) = (all, 2);
    while left.len() > 1 && goes_on(left.len()) {
        let size = left.len().div_ceil(parts);
        let ranges = (0..left.len()).step_by(size).map(|start| start..left.len().min(start + size));
        // The parts, and then what remains without each, which of two parts is the other one.
        let rest = |range: Range<usize>| [&left[..range.start], &left[range.end..]].concat();
        let rests = ranges.clone().filter(|_| parts > 2).map(|range| (rest(range), (parts - 1).max(2)));
        let mut smaller = None;
        for (candidate, next) in ranges.map(|range| (left[range].to_vec(), 2)).chain(rests) {
            if fails(&candidate)? {
                smaller = Some((candidate, next));
                break;
            }
            if !goes_on(left.len()) {
                return Ok(left);
            }
        }
        match smaller {
            Some((fewer, next)) => (left, parts) = (fewer, next),
            None if parts >= left.len() => break,
            None => parts = (parts * 2).min(left.len()),
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    proptest! {
        #[test]
        fn what_is_needed_remains_and_nothing_else(
            count in 1usize..200,
            needed in proptest::collection::btree_set(0usize..200, 1..4),
        ) {
            let all: Vec<usize> = (0..count.max(needed.last().unwrap() + 1)).collect();
            let mut runs = 0;
            let fails = |part: &[usize]| {
                runs += 1;
                Ok::<_, Infallible>(needed.iter().all(|number| part.contains(number)))
            };
            let left = shrink(all, fails, |_| true).unwrap();
            prop_assert_eq!(left.into_iter().collect::<BTreeSet<_>>(), needed);
            prop_assert!(runs < 400, "{} runs", runs);
        }
    }

    #[test]
    fn it_ends_early_with_what_it_has() {
        let mut runs = 0;
        let fails = |part: &[u32]| Ok::<_, Infallible>(part.contains(&7));
        let left = shrink((0..64).collect(), fails, |_| {
            runs += 1;
            runs < 4
        });
        let left = left.unwrap();
        assert!(left.contains(&7) && left.len() > 1 && left.len() < 64, "{left:?}");
    }

    #[test]
    fn an_error_ends_it() {
        assert_eq!(shrink(vec![1, 2], |_| Err::<bool, _>("no"), |_| true), Err("no"));
    }
}
