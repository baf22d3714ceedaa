//! Colours and fonts of pictures.
//!
//! Shapes have the colours for light backgrounds as attributes, for programs without style sheets. The picture's style
//! sheet replaces each colour if the reader prefers dark backgrounds.

use gdsync_cli::text::escape;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Write;

/// A colour on light, and on dark background.
type Shade = (RGBColor, RGBColor);

const fn shade(light: [u8; 3], dark: [u8; 3]) -> Shade {
    let ([r, g, b], [dark_r, dark_g, dark_b]) = (light, dark);
    (RGBColor(r, g, b), RGBColor(dark_r, dark_g, dark_b))
}

const GROUND_SHADE: Shade = shade([255, 255, 255], [20, 23, 28]);
const INK_SHADE: Shade = shade([27, 31, 36], [230, 232, 236]);
const FAINT_SHADE: Shade = shade([90, 98, 108], [160, 168, 178]);
const GRID_SHADE: Shade = shade([224, 227, 232], [52, 58, 66]);
/// The contrast with the background is at least 4.5 to 1 on both.
const SERIES: [Shade; 8] = [
    shade([11, 95, 165], [110, 182, 255]),
    shade([176, 74, 0], [255, 170, 90]),
    shade([12, 118, 96], [82, 214, 180]),
    shade([137, 55, 176], [205, 150, 255]),
    shade([188, 28, 44], [255, 130, 135]),
    shade([112, 100, 0], [224, 204, 80]),
    shade([160, 32, 110], [255, 140, 200]),
    shade([84, 92, 102], [190, 196, 204]),
];

pub(super) const GROUND: RGBColor = GROUND_SHADE.0;
pub(super) const INK: RGBColor = INK_SHADE.0;
pub(super) const FAINT: RGBColor = FAINT_SHADE.0;
pub(super) const GRID: RGBColor = GRID_SHADE.0;

pub(super) fn series(index: usize) -> RGBColor {
    SERIES[index % SERIES.len()].0
}

/// A font of a size in pixels, anchored at a side and in the vertical middle.
pub(super) fn font(pixels: f64, color: &RGBColor, side: HPos) -> TextStyle<'static> {
    text(("sans-serif", pixels * DRAWN).into_font(), color, side)
}

pub(super) fn bold(pixels: f64, color: &RGBColor, side: HPos) -> TextStyle<'static> {
    text(("sans-serif", pixels * DRAWN, FontStyle::Bold).into_font(), color, side)
}

/// The library divides font sizes by this.
const DRAWN: f64 = 1.24;

fn text(font: FontDesc<'static>, color: &RGBColor, side: HPos) -> TextStyle<'static> {
    font.color(color).pos(Pos::new(side, VPos::Center))
}

/// Returns an upper bound of a text's width in pixels, in common sans-serif fonts.
pub(super) fn width(text: &str, pixels: f64) -> i32 {
    (text.chars().count() as f64 * pixels * 0.62).ceil() as i32
}

fn hex(RGBColor(r, g, b): RGBColor) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

/// Returns the elements of a line of small text at the bottom, `height` high from `top` on.
pub(super) fn foot(width: u32, top: u32, height: u32, line: &str) -> String {
    format!(
        "<rect x=\"0\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"{}\" stroke=\"none\"/>\n\
         <text x=\"10\" y=\"{}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"{}\">{}</text>\n",
        hex(GROUND),
        top + height / 2,
        hex(FAINT),
        escape(line),
    )
}

pub(super) fn sheet() -> String {
    let mut rules = "@media (prefers-color-scheme:dark){".to_owned();
    for (light, dark) in [GROUND_SHADE, INK_SHADE, FAINT_SHADE, GRID_SHADE].into_iter().chain(SERIES) {
        let (light, dark) = (hex(light), hex(dark));
        // Writing to a string cannot fail.
        let _ = write!(rules, "[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}");
    }
    rules + "}"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the contrast of two colours, by the formula of WCAG 2.
    fn contrast(one: RGBColor, other: RGBColor) -> f64 {
        let part = |value: u8| match f64::from(value) / 255.0 {
            value if value <= 0.04045 => value / 12.92,
            value => ((value + 0.055) / 1.055).powf(2.4),
        };
        let luminance = |RGBColor(r, g, b): RGBColor| 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn every_colour_of_text_and_series_is_legible_on_both_grounds() {
        for shade in SERIES.into_iter().chain([INK_SHADE, FAINT_SHADE]) {
            assert!(contrast(shade.0, GROUND_SHADE.0) >= 4.5, "{shade:?} on light ground");
            assert!(contrast(shade.1, GROUND_SHADE.1) >= 4.5, "{shade:?} on dark ground");
        }
    }
}
