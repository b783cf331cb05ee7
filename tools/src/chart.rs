//! What the charts of several tools share. All charts are legible in light and in dark mode, on any page.

use std::fs;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The width of a chart: that of a README.
pub const WIDTH: u32 = 800;
/// The colour of text and axes. The style sheet that [`save`] adds overrides the colour of text, by the reader's colour
/// scheme.
pub const INK: RGBColor = RGBColor(0x80, 0x80, 0x80);
/// Colours of lines and bars, of medium lightness, so that they are visible on white and on black.
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0xe0, 0x5a, 0x2b),
    RGBColor(0x2f, 0x81, 0xd6),
    RGBColor(0x2c, 0xa0, 0x5a),
    RGBColor(0xb0, 0x6a, 0xd0),
    RGBColor(0xc0, 0x95, 0x10),
    RGBColor(0x8c, 0x6d, 0x5a),
    RGBColor(0x88, 0x8c, 0x94),
];

/// The style of text of this size. `at` says which part of the text is at its position: its left end, centre or right end.
pub fn text(size: u32, at: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK).pos(Pos::new(at, VPos::Center))
}

/// Writes a drawing to a file, with a style sheet and a background of its own: the colour of the page around it may not
/// match the reader's colour scheme.
pub fn save(svg: &str, path: &Path) {
    const STYLE: &str = "<style>.ground{fill:#ffffff}text{fill:#424a53;font-family:system-ui,sans-serif}\
        @media(prefers-color-scheme:dark){.ground{fill:#0d1117}text{fill:#b1bac4}}</style>\n\
        <rect class=\"ground\" width=\"100%\" height=\"100%\"/>";
    let head = svg.find("<svg").expect("a drawing");
    let body = head + svg[head..].find('>').expect("its head") + 1;
    write(path, &format!("{}\n{STYLE}{}", &svg[..body], &svg[body..]));
}

/// Writes a file, and prints its path.
pub fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    println!("{}", path.display());
}

/// Replaces the text between a mark and the next end mark of a page.
pub fn fill(page: &str, mark: &str, text: &str) -> String {
    let (from, to) = (format!("<!-- {mark} -->\n"), "<!-- end -->");
    let (before, rest) = page.split_once(&from).unwrap_or_else(|| panic!("the page has no {from}"));
    let (_, after) = rest.split_once(to).unwrap_or_else(|| panic!("the page has no {to} after {from}"));
    format!("{before}{from}{text}{to}{after}")
}

/// Formats a number with thin spaces between groups of three digits.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(" ")
}

/// Formats a power of ten with a prefix: `10 k`, `1 M`.
pub fn short(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{} M", n / 1e6),
        n if n >= 1e3 => format!("{} k", n / 1e3),
        n => format!("{n}"),
    }
}
