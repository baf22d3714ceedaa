//! Values of categories: each category has its name in a line of its own, and under it a bar or a dot of each series.

use super::axis::{Placed, number};
use super::panel::{Area, SMALL, axes};
use super::style::{self, FAINT, INK};
use gdsync_cli::failure::Failure;
use gdsync_cli::plot::{Axis, Scale, Values};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// Pixels of a category's name, of a bar, and between categories.
const NAME: i32 = 22;
const BAR: i32 = 16;
const BETWEEN: i32 = 8;
/// From where on the largest value is so many times the least that bars would hide the least.
const DECADES: f64 = 40.0;

/// Pixels of all categories from top to bottom.
pub(super) fn height(categories: usize, series: usize) -> i32 {
    let (categories, series) = (categories as i32, series as i32);
    categories * (NAME + series * BAR + BETWEEN) + BETWEEN
}

pub(super) fn draw(
    area: &Area<'_>,
    header: i32,
    x: &Axis,
    names: &[String],
    series: &[Values],
) -> Result<(), Failure> {
    let values = || series.iter().flat_map(|one| one.values.iter().copied().flatten());
    let scale = scale(values());
    // Room for the value that is written behind a bar.
    let room = |value: f64| if scale == Scale::Linear { value * 1.12 } else { value * 1.5 };
    let ticks = scale.ticks(values().flat_map(|value| [value, room(value)]));
    let axis = Axis { name: x.name.clone(), scale };
    let plot = axes(area, header, (&axis, &ticks), None)?;
    let origin = if scale == Scale::Linear { 0.0 } else { ticks.low };
    let top = f64::from(height(names.len(), series.len()));
    let plotted = plot.plotting_area();
    for (category, name) in names.iter().enumerate() {
        let mut y = top - f64::from(BETWEEN + category as i32 * (NAME + series.len() as i32 * BAR + BETWEEN));
        let at = (ticks.low, y - f64::from(NAME) / 2.0);
        let beside =
            EmptyElement::at(at) + Text::new(name.clone(), (6, 0), style::font(SMALL, &INK, HPos::Left));
        plotted.draw(&beside)?;
        y -= f64::from(NAME);
        for (index, one) in series.iter().enumerate() {
            let (above, under) = (y - 2.0, y - f64::from(BAR) + 2.0);
            let middle = (above + under) / 2.0;
            y -= f64::from(BAR);
            let value = one.values.get(category).copied().flatten();
            let Some((value, end)) = value.and_then(|value| Some((value, scale.place(value)?))) else {
                continue;
            };
            let color = style::series(index);
            if scale == Scale::Linear {
                plotted.draw(&Rectangle::new([(origin, above), (end, under)], color.filled()))?;
            } else {
                plotted.draw(&Circle::new((end, middle), 5, color.filled()))?;
            }
            let written = Text::new(number(value), (9, 0), style::font(SMALL - 1.0, &FAINT, HPos::Left));
            plotted.draw(&(EmptyElement::at((end.max(origin), middle)) + written))?;
        }
    }
    Ok(())
}

/// Bars from 0 where they show every value; else dots on a logarithmic axis.
fn scale(values: impl Iterator<Item = f64>) -> Scale {
    let (mut least, mut most) = (f64::INFINITY, 0.0f64);
    values
        .filter(|value| value.is_finite())
        .for_each(|value| (least, most) = (least.min(value), most.max(value)));
    if least > 0.0 && most > DECADES * least { Scale::Log } else { Scale::Linear }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_span_decades_are_dots_and_others_bars() {
        assert_eq!(scale([1.0, 39.0].into_iter()), Scale::Linear);
        assert_eq!(scale([1.0, f64::NAN, 41.0].into_iter()), Scale::Log);
        assert_eq!(scale([0.0, 41.0].into_iter()), Scale::Linear);
        assert_eq!(scale([-1.0, 41.0].into_iter()), Scale::Linear);
        assert_eq!(scale([].into_iter()), Scale::Linear);
    }
}
