//! Descriptions of charts. `gdsync-lab` draws them, so that no other command carries a drawing library: [`write`]
//! passes it [`Chart`]s, plain data, which it draws below each other into a file.

use crate::destination::Destination;
use crate::failure::Failure;
use crate::tools::{self, LAB};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::process::Stdio;

/// The process of `gdsync-lab` that draws.
const DRAW: &str = "draw";

/// One panel of a picture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chart {
    pub title: String,
    pub content: Content,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Content {
    /// One line for each series, with a marker at each point.
    Lines { x: Axis, y: Axis, series: Vec<Series> },
    /// A histogram with marked values.
    Histogram { x: Axis, bins: Vec<Bin>, marks: Vec<(String, f64)> },
    /// A value of each series for each category: bars, or dots if the values span decades.
    Categories { x: Axis, names: Vec<String>, series: Vec<Values> },
}

/// Points in order. Values that are not finite are left out: JSON cannot hold them, and an axis cannot show them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let is_finite = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
        Series { name: name.into(), points: points.into_iter().filter(is_finite).collect() }
    }
}

/// The number of values in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    pub from: f64,
    pub to: f64,
    pub count: u64,
}

/// A value for each category; none if it is not finite.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Values {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

impl Values {
    pub fn new(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Self {
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        Values { name: name.into(), values: values.into_iter().map(finite).collect() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// Linear, from 0.
    Linear,
    /// By powers of ten.
    Log,
    /// By powers of two, labelled as sizes in bytes; size 0 is one step before 1.
    Sizes,
    /// By powers of two, labelled as numbers.
    Counts,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Axis {
    /// The quantity and its unit.
    pub name: String,
    pub scale: Scale,
}

impl Axis {
    pub fn new(name: impl Into<String>, scale: Scale) -> Self {
        Axis { name: name.into(), scale }
    }
}

/// Returns a histogram's bins: `count` bins of equal width on a logarithmic axis, from the smallest to the largest of
/// `values`, which are above 0 and come with their frequencies.
pub fn bins(values: &[(f64, u64)], count: usize) -> Vec<Bin> {
    let positive = || values.iter().filter(|(value, _)| value.is_finite() && *value > 0.0);
    let (mut least, mut most) = (f64::INFINITY, 0.0f64);
    positive().for_each(|(value, _)| (least, most) = (least.min(*value), most.max(*value)));
    if count == 0 || most == 0.0 {
        return Vec::new();
    }
    // Nearly equal values get bins around them.
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

/// Refuses a picture that could not be drawn, before anything is measured.
///
/// # Errors
/// `gdsync-lab` is not installed.
pub fn check() -> Result<(), Failure> {
    tools::find(LAB).map(drop)
}

/// Draws the charts below each other into a file, as SVG.
///
/// # Errors
/// `gdsync-lab` is not installed, or fails; the file cannot be written.
pub fn write(to: &Destination, charts: &[Chart]) -> Result<(), Failure> {
    let mut drawing = tools::command(LAB)?.arg(DRAW).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut input) = drawing.stdin.take() {
        input.write_all(&serde_json::to_vec(charts)?)?;
    }
    let drawn = drawing.wait_with_output()?;
    if !drawn.status.success() {
        return Err(format!("gdsync-lab has drawn no picture: {}", drawn.status).into());
    }
    to.write(&String::from_utf8(drawn.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_pass_as_json_without_numbers_that_json_lacks() {
        let charts = [
            Content::Lines {
                x: Axis::new("x", Scale::Sizes),
                y: Axis::new("y", Scale::Log),
                series: vec![Series::new("a", [(1.0, f64::NAN), (f64::INFINITY, 2.0), (3.0, 4.0)])],
            },
            Content::Histogram {
                x: Axis::new("x", Scale::Log),
                bins: vec![Bin { from: 1.0, to: 2.0, count: 3 }],
                marks: vec![("P50".to_owned(), 1.5)],
            },
            Content::Categories {
                x: Axis::new("x", Scale::Linear),
                names: vec!["one".to_owned()],
                series: vec![Values::new("a", [f64::NAN])],
            },
        ]
        .map(|content| Chart { title: "title".to_owned(), content });
        let json = serde_json::to_string(&charts).unwrap();
        let read: Vec<Chart> = serde_json::from_str(&json).unwrap();
        assert_eq!(format!("{read:?}"), format!("{charts:?}"));
        assert!(!json.contains("[1.0,") && json.contains("[[3.0,4.0]]") && json.contains("[null]"), "{json}");
    }
}
