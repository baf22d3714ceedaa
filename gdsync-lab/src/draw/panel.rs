//! Drawing of a chart by plotters: title, legend, axes and content. A chart of categories has each category's name in a
//! separate line, and below it a bar or a dot of each series.

use super::axis::{self, Placed, Ticks, number};
use super::style::{self, FAINT, GRID, GROUND, INK};
use gdsync_cli::failure::Failure;
use gdsync_cli::plot::{Axis, Bin, Chart, Content, Scale, Series, Values};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use std::ops::Range;

/// Width of a picture, and its margins, in pixels.
const WIDTH: u32 = 760;
const MARGIN: i32 = 16;
/// Height of the title, of a line of the legend, and of the line that names the vertical axis.
const TITLE: i32 = 40;
const LEGEND_LINE: i32 = 20;
const AXIS_NAME: i32 = 30;
const PLOT: i32 = 280;
/// Space left of and below the plot, for labels.
const LEFT: i32 = 56;
pub(super) const BOTTOM: i32 = 46;
/// Space right of the plot, for half of the last label.
const RIGHT: i32 = 34;
const LARGE: f64 = 16.0;
pub(super) const SMALL: f64 = 12.0;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Ticks, Ticks>>;

impl Ranged for Ticks {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let part = (value - self.low) / (self.high - self.low);
        first + (part * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.at.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

pub(super) fn size(charts: &[Chart]) -> (u32, u32) {
    let height: i32 = charts.iter().map(|chart| height(chart) + MARGIN).sum();
    (WIDTH, height.max(MARGIN).unsigned_abs())
}

fn height(chart: &Chart) -> i32 {
    let names = names(&chart.content);
    TITLE + legend(&names).1 + AXIS_NAME + BOTTOM + plot_height(&chart.content)
}

fn plot_height(content: &Content) -> i32 {
    match content {
        Content::Lines { .. } | Content::Histogram { .. } => PLOT,
        Content::Categories { names, series, .. } => categories_height(names.len(), series.len()),
    }
}

/// Returns the entries of the legend; a single series needs none.
fn names(content: &Content) -> Vec<String> {
    let names: Vec<String> = match content {
        Content::Lines { series, .. } => series.iter().map(|one| one.name.clone()).collect(),
        Content::Categories { series, .. } => series.iter().map(|one| one.name.clone()).collect(),
        Content::Histogram { x, marks, .. } => {
            let written = |(name, value): &(String, f64)| {
                format!("{name}: {} {}", axis::number(*value), axis::unit(x).unwrap_or_default())
            };
            return marks.iter().map(written).collect();
        }
    };
    if names.len() > 1 { names } else { Vec::new() }
}

/// Returns the place of each entry of the legend, and the legend's height in pixels.
fn legend(names: &[String]) -> (Vec<(i32, i32)>, i32) {
    let (mut x, mut y, mut places) = (0, 0, Vec::new());
    for name in names {
        let wide = 22 + style::width(name, SMALL) + 16;
        if x > 0 && x + wide > WIDTH as i32 - 2 * MARGIN {
            (x, y) = (0, y + LEGEND_LINE);
        }
        places.push((x, y));
        x += wide;
    }
    (places, if names.is_empty() { 0 } else { y + LEGEND_LINE })
}

/// Returns the picture as the library writes it.
pub(super) fn draw(charts: &[Chart]) -> Result<String, Failure> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size(charts)).into_drawing_area();
        root.fill(&GROUND)?;
        let mut top = 0;
        for chart in charts {
            let high = height(chart);
            panel(&root.clone().shrink((0, top), (WIDTH, high.unsigned_abs())), chart)?;
            top += high + MARGIN;
        }
        root.present()?;
    }
    Ok(text)
}

fn panel(area: &Area<'_>, chart: &Chart) -> Result<(), Failure> {
    area.draw_text(&chart.title, &style::bold(LARGE, &INK, HPos::Left), (MARGIN, 24))?;
    let names = names(&chart.content);
    let (places, legend_height) = legend(&names);
    for (index, (name, (x, y))) in names.iter().zip(places).enumerate() {
        let (x, y) = (MARGIN + x, TITLE + y + 8);
        // A mark of a histogram is a line, and its bars have the first colour.
        let is_mark = matches!(chart.content, Content::Histogram { .. });
        let color = style::series(index + usize::from(is_mark));
        match chart.content {
            Content::Lines { .. } => {
                area.draw(&PathElement::new(vec![(x, y), (x + 16, y)], color.stroke_width(2)))?;
                marker(area, index, (x + 8, y))?;
            }
            Content::Histogram { .. } => {
                area.draw(&PathElement::new(vec![(x + 8, y - 7), (x + 8, y + 7)], color.stroke_width(2)))?;
            }
            Content::Categories { .. } => {
                area.draw(&Rectangle::new([(x + 2, y - 6), (x + 14, y + 6)], color.filled()))?;
            }
        }
        area.draw_text(name, &style::font(SMALL, &INK, HPos::Left), (x + 22, y))?;
    }
    let header = TITLE + legend_height + AXIS_NAME;
    match &chart.content {
        Content::Lines { x, y, series } => {
            let points = || series.iter().flat_map(|one| &one.points);
            let drawn = (
                x.scale.ticks(points().filter(|point| y.scale.place(point.1).is_some()).map(|point| point.0)),
                y.scale.ticks(points().filter(|point| x.scale.place(point.0).is_some()).map(|point| point.1)),
            );
            let mut plot = axes(area, header, (x, &drawn.0), Some((y, &drawn.1)))?;
            lines(&mut plot, (x.scale, y.scale), series)
        }
        Content::Histogram { x, bins, marks } => {
            let y = Axis::new("Exchanges", Scale::Linear);
            let edges = bins.iter().flat_map(|bin| [bin.from, bin.to]);
            let drawn = (
                x.scale.ticks(edges.chain(marks.iter().map(|mark| mark.1))),
                y.scale.ticks(bins.iter().map(|bin| bin.count as f64)),
            );
            let mut plot = axes(area, header, (x, &drawn.0), Some((&y, &drawn.1)))?;
            histogram(&mut plot, x.scale, drawn.1.high, bins, marks)
        }
        Content::Categories { x, names, series } => categories(area, header, x, names, series),
    }
}

/// Draws the axes and a grid. Without a vertical axis, vertical coordinates are pixels.
pub(super) fn axes<'a, 'b>(
    area: &'a Area<'b>,
    header: i32,
    (x, across): (&Axis, &Ticks),
    vertical: Option<(&Axis, &Ticks)>,
) -> Result<Drawn<'a, 'b>, Failure> {
    let high = f64::from(area.dim_in_pixel().1.cast_signed() - header - BOTTOM);
    let (up, left) = match vertical {
        Some((_, ticks)) => (ticks.clone(), LEFT),
        None => (Ticks { low: 0.0, high, at: Vec::new() }, MARGIN),
    };
    let mut plot = ChartBuilder::on(area)
        .margin_top(header)
        .margin_left(MARGIN)
        .margin_right(RIGHT)
        .set_label_area_size(LabelAreaPosition::Left, left)
        .set_label_area_size(LabelAreaPosition::Bottom, BOTTOM)
        .build_cartesian_2d(across.clone(), up)?;
    let (label_x, label_y) = (
        |at: &f64| x.scale.label(*at),
        |at: &f64| vertical.map_or_else(String::new, |(y, _)| y.scale.label(*at)),
    );
    plot.configure_mesh()
        .bold_line_style(GRID.stroke_width(1))
        .light_line_style(TRANSPARENT)
        .axis_style(FAINT.stroke_width(1))
        .label_style(style::font(SMALL, &FAINT, HPos::Left))
        .axis_desc_style(style::font(SMALL, &INK, HPos::Left))
        .x_label_formatter(&label_x)
        .y_label_formatter(&label_y)
        .x_desc(x.name.as_str())
        .draw()?;
    if let Some((y, _)) = vertical {
        area.draw_text(&y.name, &style::font(SMALL, &INK, HPos::Left), (MARGIN, header - 18))?;
    }
    Ok(plot)
}

/// Draws a point of a series. Series also differ in shape, for readers who cannot tell the colours apart.
fn marker<C: CoordTranslate>(
    area: &DrawingArea<SVGBackend<'_>, C>,
    index: usize,
    at: C::From,
) -> Result<(), Failure>
where
    C::From: Clone + 'static,
{
    let color = style::series(index);
    match index % 4 {
        0 => area.draw(&Circle::new(at, 4, color.filled())),
        1 => area.draw(&TriangleMarker::new(at, 6, color.filled())),
        2 => area.draw(&Cross::new(at, 4, color.stroke_width(2))),
        _ => area.draw(&Circle::new(at, 4, color.stroke_width(2))),
    }?;
    Ok(())
}

fn lines(plot: &mut Drawn<'_, '_>, (x, y): (Scale, Scale), series: &[Series]) -> Result<(), Failure> {
    for (index, one) in series.iter().enumerate() {
        let place = |point: &(f64, f64)| Some((x.place(point.0)?, y.place(point.1)?));
        let points: Vec<(f64, f64)> = one.points.iter().filter_map(place).collect();
        let line = PathElement::new(points.clone(), style::series(index).stroke_width(2));
        plot.draw_series([line])?;
        points.into_iter().try_for_each(|point| marker(plot.plotting_area(), index, point))?;
    }
    Ok(())
}

fn histogram(
    plot: &mut Drawn<'_, '_>,
    x: Scale,
    top: f64,
    bins: &[Bin],
    marks: &[(String, f64)],
) -> Result<(), Failure> {
    let bar = |bin: &Bin| {
        let (from, to) = (x.place(bin.from)?, x.place(bin.to)?);
        let mut bar = Rectangle::new([(from, 0.0), (to, bin.count as f64)], style::series(0).filled());
        bar.set_margin(0, 0, 0, 1);
        Some(bar)
    };
    plot.draw_series(bins.iter().filter(|bin| bin.count > 0).filter_map(bar))?;
    for (index, (_, value)) in marks.iter().enumerate() {
        let Some(at) = x.place(*value) else { continue };
        let color = style::series(index + 1);
        plot.draw_series([PathElement::new(vec![(at, 0.0), (at, top)], color.stroke_width(2))])?;
    }
    Ok(())
}

/// Height of a category's name, of a bar, and of the gap between categories, in pixels.
const NAME: i32 = 22;
const BAR: i32 = 16;
const BETWEEN: i32 = 8;
/// Ratio of the largest to the smallest value from which on bars would hide the smallest.
const DECADES: f64 = 40.0;

fn categories_height(categories: usize, series: usize) -> i32 {
    let (categories, series) = (categories as i32, series as i32);
    categories * (NAME + series * BAR + BETWEEN) + BETWEEN
}

fn categories(
    area: &Area<'_>,
    header: i32,
    x: &Axis,
    names: &[String],
    series: &[Values],
) -> Result<(), Failure> {
    let values = || series.iter().flat_map(|one| one.values.iter().copied().flatten());
    let scale = scale(values());
    // Leaves room for the value written after a bar.
    let room = |value: f64| if scale == Scale::Linear { value * 1.12 } else { value * 1.5 };
    let ticks = scale.ticks(values().flat_map(|value| [value, room(value)]));
    let axis = Axis { name: x.name.clone(), scale };
    let plot = axes(area, header, (&axis, &ticks), None)?;
    let origin = if scale == Scale::Linear { 0.0 } else { ticks.low };
    let top = f64::from(categories_height(names.len(), series.len()));
    let plotted = plot.plotting_area();
    for (category, name) in names.iter().enumerate() {
        let mut y = top - f64::from(BETWEEN + category as i32 * (NAME + series.len() as i32 * BAR + BETWEEN));
        let at = (ticks.low, y - f64::from(NAME) / 2.0);
        let label =
            EmptyElement::at(at) + Text::new(name.clone(), (6, 0), style::font(SMALL, &INK, HPos::Left));
        plotted.draw(&label)?;
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

/// Returns a linear scale, for bars from 0, if these show every value; else a logarithmic one, for dots.
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
