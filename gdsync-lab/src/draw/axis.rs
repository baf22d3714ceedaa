//! Axes: the coordinates of values, and the labels.

use gdsync_cli::plot::{Axis, Scale};
use gdsync_cli::size;

/// Values farther from 0, or nearer to it on a logarithmic axis, are not drawn: none is a measurement.
const MOST: f64 = 1e15;
const TICKS: usize = 9;
/// Padding at both ends of an axis of powers of two, in powers.
const PADDING: f64 = 0.25;

/// Returns the unit of an axis, the last word of its name.
pub(super) fn unit(axis: &Axis) -> Option<&str> {
    axis.name.rsplit_once(", ").map(|(_, unit)| unit)
}

/// The drawn part of an axis, in coordinates of [`Placed::place`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ticks {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) at: Vec<f64>,
}

/// Coordinates and labels of a scale.
pub(super) trait Placed {
    /// Returns the coordinate of a value; none if the axis cannot show it.
    fn place(self, value: f64) -> Option<f64>;
    fn label(self, at: f64) -> String;
    /// Returns the part of the axis that holds all values it can show.
    fn ticks(self, values: impl Iterator<Item = f64>) -> Ticks;
}

impl Placed for Scale {
    fn place(self, value: f64) -> Option<f64> {
        let inside = |value: f64| (1.0 / MOST..=MOST).contains(&value);
        match self {
            Scale::Linear => (value.abs() <= MOST).then_some(value),
            Scale::Log => inside(value).then(|| value.log10()),
            Scale::Sizes if value == 0.0 => Some(-1.0),
            Scale::Sizes | Scale::Counts => inside(value).then(|| value.log2()),
        }
    }

    fn label(self, at: f64) -> String {
        match self {
            Scale::Linear => number(at),
            Scale::Log => number(10f64.powf(at)),
            Scale::Sizes if at < 0.0 => size::text(0),
            Scale::Sizes => size::text(at.exp2().round() as u64),
            Scale::Counts => number(at.exp2()),
        }
    }

    fn ticks(self, values: impl Iterator<Item = f64>) -> Ticks {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        values.filter_map(|value| self.place(value)).for_each(|at| (low, high) = (low.min(at), high.max(at)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        match self {
            Scale::Linear => linear(low.min(0.0), high.max(0.0)),
            Scale::Log => decades(low, high),
            Scale::Sizes | Scale::Counts => powers(low, high),
        }
    }
}

/// Ticks at multiples of 1, 2 or 5 times a power of ten.
fn linear(low: f64, high: f64) -> Ticks {
    let span = if high > low { high - low } else { 1.0 };
    let power = 10f64.powf((span / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| span / step <= 5.0).unwrap_or(10.0 * power);
    let (first, last) = ((low / step).floor() as i64, ((low + span) / step).ceil() as i64);
    let at = (first..=last).map(|index| index as f64 * step).collect();
    Ticks { low: first as f64 * step, high: last as f64 * step, at }
}

/// Ticks at powers of ten, and between them if there are few.
fn decades(low: f64, high: f64) -> Ticks {
    let span = high - low;
    let digits: &[f64] = match span {
        _ if span <= 1.0 => &[1.0, 2.0, 3.0, 4.0, 5.0, 7.0],
        _ if span <= 2.5 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let powers = low.floor() as i32 - 1..=high.ceil() as i32 + 1;
    let all: Vec<f64> =
        powers.flat_map(|power| digits.iter().map(move |digit| f64::from(power) + digit.log10())).collect();
    // Rounding may move a value off its tick.
    let slack = 1e-9;
    let first = all.iter().rposition(|at| *at <= low + slack).unwrap_or(0);
    let last = all.iter().position(|at| *at >= high - slack).unwrap_or(all.len() - 1);
    let (first, last) = if first < last { (first, last) } else { (first.saturating_sub(1), last + 1) };
    let all = &all[first..=last.min(all.len() - 1)];
    Ticks { low: all[0], high: all[all.len() - 1], at: thinned(all.to_vec()) }
}

fn powers(low: f64, high: f64) -> Ticks {
    let (first, last) = (low.floor() as i32, high.ceil() as i32);
    let last = last.max(first + 1);
    let at = thinned((first..=last).map(f64::from).collect());
    Ticks { low: f64::from(first) - PADDING, high: f64::from(last) + PADDING, at }
}

/// Returns every tick, or every second, third and so on, so that their labels fit.
fn thinned(all: Vec<f64>) -> Vec<f64> {
    let step = all.len().div_ceil(TICKS).max(1);
    all.into_iter().step_by(step).collect()
}

/// Formats a number for a picture: with thousands separated, and no needless digits.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-3..1e9).contains(&magnitude) {
        return format!("{value:.1e}").replace(".0e", "e");
    }
    let decimals = match magnitude {
        _ if magnitude >= 100.0 => 0,
        _ if magnitude >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{magnitude:.decimals$}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let rest = rest.trim_end_matches('0');
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        // Four digits need no separator.
        if index > 0 && whole.len() > 4 && (whole.len() - index).is_multiple_of(3) {
            grouped.push('\u{a0}');
        }
        grouped.push(digit);
    }
    let sign = if value < 0.0 { "\u{2212}" } else { "" };
    let point = if rest.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_with_as_many_digits_as_they_have() {
        let written = [0.0, 0.5, 2.0, 12.345, 1000.0, 20_000.0, 1_234_567.0, -3.5, 1e12, 2e-7].map(number);
        let expected = [
            "0",
            "0.5",
            "2",
            "12.35",
            "1000",
            "20\u{a0}000",
            "1\u{a0}234\u{a0}567",
            "\u{2212}3.5",
            "1e12",
            "2e-7",
        ];
        assert_eq!(written, expected.map(str::to_owned));
    }

    #[test]
    fn ticks_of_each_scale_enclose_the_values() {
        let labels = |scale: Scale, values: &[f64]| -> Vec<String> {
            let ticks = scale.ticks(values.iter().copied());
            ticks.at.into_iter().map(|at| scale.label(at)).collect()
        };
        assert_eq!(labels(Scale::Linear, &[3.0, 41.0]), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(labels(Scale::Log, &[3.0, 4100.0]), ["1", "10", "100", "1000", "10\u{a0}000"]);
        assert_eq!(labels(Scale::Log, &[25.0, 90.0]), ["20", "30", "40", "50", "70", "100"]);
        assert_eq!(labels(Scale::Sizes, &[0.0, 4.0]), ["0 B", "1 B", "2 B", "4 B"]);
        assert_eq!(labels(Scale::Counts, &[2.0, 8.0]), ["2", "4", "8"]);
        assert_eq!(labels(Scale::Sizes, &[2.0, 8_388_608.0])[1], "16 B");
    }

    #[test]
    fn values_without_a_place_are_none() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX] {
            for scale in [Scale::Linear, Scale::Log, Scale::Sizes, Scale::Counts] {
                assert_eq!(scale.place(value), None, "{scale:?} {value}");
            }
        }
        assert_eq!((Scale::Log.place(0.0), Scale::Counts.place(-1.0)), (None, None));
        assert_eq!((Scale::Linear.place(-1.0), Scale::Sizes.place(0.0)), (Some(-1.0), Some(-1.0)));
    }
}
