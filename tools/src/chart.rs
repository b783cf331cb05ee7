//! What the charts share: they are legible in light and in dark mode, wherever they are shown.

use std::fs;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// As wide as a README.
pub const WIDTH: u32 = 800;
/// Text and axes. [`save`] has the reader's mode choose another.
pub const INK: RGBColor = RGBColor(0x80, 0x80, 0x80);
/// Lines and bars: of middling lightness, so that they stand out from white and from black.
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0xe0, 0x5a, 0x2b),
    RGBColor(0x2f, 0x81, 0xd6),
    RGBColor(0x2c, 0xa0, 0x5a),
    RGBColor(0xb0, 0x6a, 0xd0),
    RGBColor(0xc0, 0x95, 0x10),
    RGBColor(0x8c, 0x6d, 0x5a),
    RGBColor(0x88, 0x8c, 0x94),
];

/// Text of this size, anchored at its middle by its left, centre or right.
pub fn text(size: u32, at: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK).pos(Pos::new(at, VPos::Center))
}

/// Writes a drawing down, on a ground of its own: the page around it may be dark where the reader's mode is light, and the
/// other way round.
pub fn save(svg: &str, path: &Path) {
    const STYLE: &str = "<style>.ground{fill:#ffffff}text{fill:#424a53;font-family:system-ui,sans-serif}\
        @media(prefers-color-scheme:dark){.ground{fill:#0d1117}text{fill:#b1bac4}}</style>\n\
        <rect class=\"ground\" width=\"100%\" height=\"100%\"/>";
    let head = svg.find("<svg").expect("a drawing");
    let body = head + svg[head..].find('>').expect("its head") + 1;
    write(path, &format!("{}\n{STYLE}{}", &svg[..body], &svg[body..]));
}

/// Writes a file, and tells which.
pub fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    println!("{}", path.display());
}

/// The page with what stands between two marks replaced.
pub fn fill(page: &str, mark: &str, text: &str) -> String {
    let (from, to) = (format!("<!-- {mark} -->\n"), "<!-- end -->");
    let (before, rest) = page.split_once(&from).unwrap_or_else(|| panic!("the page has no {from}"));
    let (_, after) = rest.split_once(to).unwrap_or_else(|| panic!("the page has no {to} after {from}"));
    format!("{before}{from}{text}{to}{after}")
}

/// A number with a thin gap between thousands.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(" ")
}

/// A power of ten as people say it.
pub fn short(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{} M", n / 1e6),
        n if n >= 1e3 => format!("{} k", n / 1e3),
        n => format!("{n}"),
    }
}
