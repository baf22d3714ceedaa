//! Pictures of measurements, as SVG text that is legible on light and on dark ground.
//!
//! [`svg`] places charts under each other in one picture. Values that have no place on their axis (not finite, or not
//! above 0 on a logarithmic one) are left out, so that every coordinate is a number.

mod axis;
mod panel;
mod style;

use gdsync_cli::failure::Failure;
use gdsync_cli::plot::{Chart, Content, Series, Values};
use gdsync_cli::text;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};

/// Draws the charts of which standard input has the JSON, onto standard output.
///
/// # Errors
/// The input describes no charts; the drawing library's.
pub(crate) fn run() -> Result<(), Failure> {
    let mut input = Vec::new();
    io::stdin().lock().read_to_end(&mut input)?;
    let charts: Vec<Chart> = serde_json::from_slice(&input)?;
    Ok(io::stdout().lock().write_all(svg(&charts)?.as_bytes())?)
}

/// What the picture shows, in words, for readers that do not see it.
fn description(chart: &Chart) -> String {
    let mut words = format!("{}.", chart.title);
    // Writing to a string cannot fail.
    let _ = match &chart.content {
        Content::Lines { x, y, series } => {
            let one =
                |one: &Series| format!("{}: {}.", one.name, range(one.points.iter().map(|point| point.1)));
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
            let one =
                |one: &Values| format!("{}: {}.", one.name, range(one.values.iter().copied().flatten()));
            let all: Vec<_> = series.iter().map(one).collect();
            write!(words, " {} of {}. {}", x.name, names.join("; "), all.join(" "))
        }
    };
    words
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

/// The charts under each other, as one SVG document without an XML declaration, which HTML may also hold inside.
///
/// # Errors
/// The drawing library's.
pub(crate) fn svg(charts: &[Chart]) -> Result<String, Failure> {
    let drawn = panel::draw(charts)?;
    // XML has no place for other control characters.
    let drawn = drawn.replace(|c: char| c.is_control() && c != '\n', " ");
    let (_, content) = drawn.split_once('>').ok_or("the picture has no root element")?;
    let (width, height) = panel::size(charts);
    let title = charts.iter().map(|chart| chart.title.as_str()).collect::<Vec<_>>().join("; ");
    let description = charts.iter().map(description).collect::<Vec<_>>().join(" ");
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
