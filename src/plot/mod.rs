//! Pictures of measurements, as SVG text that is legible on light and on dark ground.
//!
//! A [`Chart`] says what is shown; [`svg`] places charts under each other in one picture. Values that have no place on
//! their axis (not finite, or not above 0 on a logarithmic one) are left out, so that every coordinate is a number.

mod axis;
mod categories;
mod draw;
mod style;

pub(crate) use axis::{Axis, Scale};

use crate::failure::Failure;
use crate::text;
use std::fmt::Write;

/// One panel of a picture.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) content: Content,
}

/// What a chart shows.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// One line for each series, a marker at each point.
    Lines { x: Axis, y: Axis, series: Vec<Series> },
    /// A histogram, and values that are marked in it.
    Histogram { x: Axis, bins: Vec<Bin>, marks: Vec<(String, f64)> },
    /// A value of each series for each category: bars, or dots where the values span decades.
    Categories { x: Axis, names: Vec<String>, series: Vec<Values> },
}

/// Points in order.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Series {
    pub(crate) fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Series { name: name.into(), points: points.into_iter().collect() }
    }
}

/// How many values are from one to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bin {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) count: u64,
}

/// A value for each category.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
}

impl Values {
    pub(crate) fn new(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        Values { name: name.into(), values: values.into_iter().collect() }
    }
}

impl Chart {
    /// What the picture shows, in words, for readers that do not see it.
    fn description(&self) -> String {
        let mut words = format!("{}.", self.title);
        // Writing to a string cannot fail.
        let _ = match &self.content {
            Content::Lines { x, y, series } => {
                let one = |one: &Series| {
                    format!("{}: {}.", one.name, range(one.points.iter().map(|point| point.1)))
                };
                let lines: Vec<_> = series.iter().map(one).collect();
                write!(words, " {} by {}. {}", y.name, x.name, lines.join(" "))
            }
            Content::Histogram { x, bins, marks } => {
                let marks: Vec<_> =
                    marks.iter().map(|(name, value)| format!("{name}: {}.", axis::number(*value))).collect();
                let values = bins.iter().flat_map(|bin| [bin.from, bin.to]);
                write!(words, " {}, {}. {}", x.name, range(values), marks.join(" "))
            }
            Content::Categories { x, names, series } => {
                let one = |one: &Values| format!("{}: {}.", one.name, range(one.values.iter().copied()));
                let all: Vec<_> = series.iter().map(one).collect();
                write!(words, " {} of {}. {}", x.name, names.join("; "), all.join(" "))
            }
        };
        words
    }
}

/// Where values lie, in words.
fn range(values: impl Iterator<Item = f64>) -> String {
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    values
        .filter(|value| value.is_finite())
        .for_each(|value| (least, most) = (least.min(value), most.max(value)));
    if least > most {
        return "no values".to_owned();
    }
    format!("from {} to {}", axis::number(least), axis::number(most))
}

/// A histogram's bins: `count` of them, each as wide as the others on a logarithmic axis, from the least to the largest
/// of `values`, which are above 0 and come with how often each was measured.
pub(crate) fn bins(values: &[(f64, u64)], count: usize) -> Vec<Bin> {
    let positive = || values.iter().filter(|(value, _)| value.is_finite() && *value > 0.0);
    let (mut least, mut most) = (f64::INFINITY, 0.0f64);
    positive().for_each(|(value, _)| (least, most) = (least.min(*value), most.max(*value)));
    if count == 0 || most == 0.0 {
        return Vec::new();
    }
    // Values that are nearly the same have bins around them.
    if most < least * 1.001 {
        (least, most) = (least / 1.01, most * 1.01);
    }
    let width = (most / least).ln() / count as f64;
    let edge = |index: usize| least * (width * index as f64).exp();
    let mut bins: Vec<Bin> =
        (0..count).map(|index| Bin { from: edge(index), to: edge(index + 1), count: 0 }).collect();
    for (value, times) in positive() {
        let index = ((value / least).ln() / width) as usize;
        bins[index.min(count - 1)].count += times;
    }
    bins
}

/// The charts under each other, as one SVG document without an XML declaration, which HTML may also hold inside.
///
/// # Errors
/// The drawing library's.
pub(crate) fn svg(charts: &[Chart]) -> Result<String, Failure> {
    let drawn = draw::draw(charts)?;
    // XML has no place for other control characters.
    let drawn = drawn.replace(|c: char| c.is_control() && c != '\n', " ");
    let (_, content) = drawn.split_once('>').ok_or("the picture has no root element")?;
    let (width, height) = draw::size(charts);
    let title = charts.iter().map(|chart| chart.title.as_str()).collect::<Vec<_>>().join("; ");
    let description = charts.iter().map(Chart::description).collect::<Vec<_>>().join(" ");
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n<style>{}</style>{content}",
        text::escape(&title),
        text::escape(&description),
        style::sheet(),
    ))
}

#[cfg(test)]
mod tests;
