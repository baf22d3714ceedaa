//! Pictures of measurements, as SVG text that is legible on light and dark backgrounds.
//!
//! [`svg`] places charts below each other in one picture. Values that an axis cannot show (not finite, or not above 0
//! on a logarithmic one) are left out, so that every coordinate is a number.

mod axis;
mod panel;
mod style;

use gdsync_cli::failure::Failure;
use gdsync_cli::plot::{Chart, Content, Series, Values};
use gdsync_cli::{json, text};
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::time::SystemTime;

/// Draws the charts given as JSON on standard input, to standard output.
///
/// # Errors
/// The input describes no charts; the drawing library's.
pub(crate) fn run() -> Result<(), Failure> {
    let mut input = Vec::new();
    io::stdin().lock().read_to_end(&mut input)?;
    let charts: Vec<Chart> = serde_json::from_slice(&input)?;
    Ok(io::stdout().lock().write_all(svg(&charts)?.as_bytes())?)
}

/// Describes a chart in words, for readers who do not see it.
fn description(chart: &Chart) -> String {
    let mut words = format!("{}.", chart.title);
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

/// Height of the line below the charts.
const FOOT: u32 = 24;

/// Returns where and when a picture is drawn, in a line: numbers of another machine are others.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let cpus = gdsync_sys::host::cores();
    let cpu = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    let time = json::time(SystemTime::now());
    format!(
        "{}, {cpu}, {}, gdsync {}, {time}",
        json::host(),
        text::count(cpus as u64, "CPU"),
        env!("CARGO_PKG_VERSION")
    )
}

/// Draws the charts below each other, as one SVG document without an XML declaration, which can be embedded in HTML.
///
/// # Errors
/// The drawing library's.
pub(crate) fn svg(charts: &[Chart]) -> Result<String, Failure> {
    let drawn = panel::draw(charts)?;
    // XML forbids other control characters.
    let drawn = drawn.replace(|c: char| c.is_control() && c != '\n', " ");
    let (_, content) = drawn.split_once('>').ok_or("the picture has no root element")?;
    let content = content.trim_end().strip_suffix("</svg>").ok_or("the picture has no end")?;
    let (width, below) = panel::size(charts);
    let height = below + FOOT;
    let foot = style::foot(width, below, FOOT, &machine());
    let title = charts.iter().map(|chart| chart.title.as_str()).collect::<Vec<_>>().join("; ");
    let description = charts.iter().map(description).collect::<Vec<_>>().join(" ");
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n<style>{}</style>{content}{foot}</svg>\n",
        text::escape(&title),
        text::escape(&description),
        style::sheet(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_cli::plot::{Axis, Scale, bins};
    use proptest::prelude::*;
    use roxmltree::{Document, Node};

    /// Attributes with coordinates of shapes, text and paths.
    const COORDINATES: [&str; 13] =
        ["x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "width", "height", "points", "stroke-width"];

    /// Checks that every coordinate of a picture is a finite number inside it.
    fn check(picture: &str) {
        let document = Document::parse(picture).unwrap_or_else(|error| panic!("{error}: {picture}"));
        let root = document.root_element();
        let side = |name: &str| root.attribute(name).unwrap().parse::<f64>().unwrap();
        let most = side("width").max(side("height"));
        for node in root.descendants().filter(Node::is_element) {
            for attribute in node.attributes().filter(|one| COORDINATES.contains(&one.name())) {
                for text in attribute.value().split([',', ' ']).filter(|text| !text.is_empty()) {
                    let number: f64 = text.parse().unwrap_or_else(|_| panic!("{text} in {node:?}"));
                    assert!((-1.0..=most).contains(&number), "{}={text} in {picture}", attribute.name());
                }
            }
        }
    }

    fn texts(picture: &str) -> Vec<String> {
        let document = Document::parse(picture).unwrap();
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        texts.filter_map(|node| Some(node.text()?.trim().to_owned())).collect()
    }

    fn lines(points: Vec<Vec<(f64, f64)>>, scales: [Scale; 2]) -> Chart {
        let series = points
            .into_iter()
            .enumerate()
            .map(|(index, points)| Series::new(format!("series {index}"), points));
        let [x, y] = scales.map(|scale| Axis::new("what, µs", scale));
        Chart { title: "lines".to_owned(), content: Content::Lines { x, y, series: series.collect() } }
    }

    fn categories(values: Vec<Vec<f64>>) -> Chart {
        let names =
            (0..values.iter().map(Vec::len).max().unwrap_or(0)).map(|index| format!("row {index}")).collect();
        let series =
            values.into_iter().enumerate().map(|(index, values)| Values::new(format!("way {index}"), values));
        let content =
            Content::Categories { x: Axis::new("what, µs", Scale::Linear), names, series: series.collect() };
        Chart { title: "categories".to_owned(), content }
    }

    fn histogram(values: &[(f64, u64)]) -> Chart {
        let marks = vec![("P50".to_owned(), values.first().map_or(f64::NAN, |value| value.0))];
        let content =
            Content::Histogram { x: Axis::new("what, µs", Scale::Log), bins: bins(values, 20), marks };
        Chart { title: "histogram".to_owned(), content }
    }

    /// Values of every magnitude, and those that are no measurements.
    fn values() -> impl Strategy<Value = f64> {
        prop_oneof![
            4 => -20.0..20.0f64,
            4 => 0.0..1e6f64,
            1 => any::<f64>(),
            1 => prop::sample::select(vec![0.0, -0.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, f64::MAX, 1e15, 1e-15]),
        ]
    }

    const SCALES: [Scale; 4] = [Scale::Linear, Scale::Log, Scale::Sizes, Scale::Counts];

    proptest! {
        #[test]
        fn no_values_make_a_coordinate_that_is_no_number(
            points in prop::collection::vec(prop::collection::vec((values(), values()), 0..6), 0..10),
            rows in prop::collection::vec(prop::collection::vec(values(), 0..6), 0..4),
            counts in prop::collection::vec((values(), 0..u64::from(u32::MAX)), 0..9),
            x in prop::sample::select(SCALES.to_vec()),
            y in prop::sample::select(SCALES.to_vec()),
        ) {
            check(&svg(&[lines(points, [x, y]), categories(rows), histogram(&counts)]).unwrap());
        }

        #[test]
        fn every_value_is_counted_in_one_bin(values in prop::collection::vec((1e-3..1e6f64, 1..9u64), 1..50), count in 1..90usize) {
            let bins = bins(&values, count);
            prop_assert_eq!(bins.len(), count);
            prop_assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), values.iter().map(|value| value.1).sum::<u64>());
            prop_assert!(bins.iter().all(|bin| bin.from < bin.to));
        }
    }

    #[test]
    fn pictures_of_nothing_and_of_a_single_point_are_drawn() {
        check(&svg(&[]).unwrap());
        for scale in SCALES {
            check(&svg(&[lines(Vec::new(), [scale; 2])]).unwrap());
            check(&svg(&[lines(vec![vec![(8.0, 25.0)]], [scale; 2])]).unwrap());
            check(&svg(&[lines(vec![vec![(0.0, 0.0); 3]], [scale; 2])]).unwrap());
        }
        check(
            &svg(&[
                categories(Vec::new()),
                categories(vec![vec![0.0]]),
                histogram(&[]),
                histogram(&[(7.0, 3)]),
            ])
            .unwrap(),
        );
        assert_eq!(bins(&[(f64::NAN, 1), (-1.0, 2), (0.0, 3)], 10), []);
        assert_eq!(bins(&[(1.0, 1)], 0), []);
    }

    #[test]
    fn a_picture_has_its_titles_its_axes_a_legend_and_a_line_for_each_series() {
        let points =
            |factor: f64| (3..10).map(|power| (f64::from(1 << power), factor * f64::from(power))).collect();
        let picture =
            svg(&[lines(vec![points(1.0), points(9.0), points(50.0)], [Scale::Sizes, Scale::Log])]).unwrap();
        check(&picture);
        let texts = texts(&picture);
        for expected in ["lines", "what, µs", "series 0", "series 1", "series 2", "8 B", "512 B", "10", "100"]
        {
            assert!(texts.iter().any(|text| text == expected), "{expected}: {texts:?}");
        }
        let document = Document::parse(&picture).unwrap();
        // Lines of the legend have two points.
        let is_series = |node: &Node<'_, '_>| {
            node.has_tag_name("polyline")
                && node.attribute("points").is_some_and(|points| points.split_whitespace().count() == 7)
        };
        assert_eq!(document.descendants().filter(is_series).count(), 3);
        let described =
            document.descendants().find(|node| node.has_tag_name("desc")).and_then(|node| node.text());
        assert_eq!(document.root_element().attribute("role"), Some("img"));
        assert!(described.unwrap().contains("series 1: from 27 to 81."), "{described:?}");
    }

    #[test]
    fn names_are_text_whatever_they_hold() {
        let mut chart = categories(vec![vec![1.0], vec![2.0]]);
        chart.title = "a < b & \"c\" \u{1}".to_owned();
        let picture = svg(&[chart]).unwrap();
        check(&picture);
        assert!(texts(&picture).contains(&"a < b & \"c\"".to_owned()), "{:?}", texts(&picture));
    }
}
