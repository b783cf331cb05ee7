//! What the pictures of several tools share. A picture is an SVG that is legible at the width of a phone and of a desk, in light
//! and in dark mode, on any page.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The width of a picture in its own units. A phone shows a picture at about three quarters of this width.
pub const WIDTH: f64 = 480.0;
/// The width at which a page shows a picture if it has the room.
const SHOWN: f64 = 720.0;
/// The distance between the texts and the sides of a picture.
pub const MARGIN: f64 = 8.0;
/// Sizes of letters, which the style sheet repeats.
const TITLE: f64 = 19.0;
const LETTERS: f64 = 15.0;
/// The height of a line of text, and of a row of bars.
pub const LINE: f64 = 20.0;
/// See [`LINE`].
pub const ROW: f64 = 25.0;

/// The classes of what is drawn: each algorithm has one colour in all pictures. The colours are told apart by the colour-blind
/// (they follow the palette of Okabe and Ito), and the style sheet has a lighter shade of each for dark mode.
pub const FIXED: &str = "fixed";
/// See [`FIXED`].
pub const SLIDE: &str = "slide";
/// See [`FIXED`].
pub const GCRA: &str = "gcra";
/// See [`FIXED`].
pub const BUCKET: &str = "bucket";
/// See [`FIXED`].
pub const LEASE: &str = "lease";
/// All that is not part of the module.
pub const OTHER: &str = "other";
/// One of two callers.
pub const ONE: &str = "one";
/// The other one.
pub const TWO: &str = "two";

/// Where there is room, letters need not be as large as on a phone.
const STYLE: &str = "\
.ground{fill:#ffffff}text{fill:#24292f;font-family:system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;font-size:15px}
.title{font-size:19px;font-weight:600}.name{font-weight:600}.muted{fill:#57606a}
.bar,.dot{fill:currentColor}.pale{fill:currentColor;opacity:.3}.line{fill:none;stroke:currentColor;stroke-width:2.5;stroke-linejoin:round}
.thin{fill:none;stroke:currentColor;stroke-width:1.5}.dashed{fill:none;stroke:currentColor;stroke-width:2.5;stroke-dasharray:7 4}
.axis{fill:none;stroke:#6e7781}.grid{fill:none;stroke:#d8dee4}.limit{fill:none;stroke:#24292f;stroke-width:1.5;stroke-dasharray:5 4}
.fixed{color:#d55e00}.slide{color:#0072b2}.gcra{color:#009e73}.bucket{color:#b0508a}.lease{color:#8f6b00}.other{color:#8c959f}
.one{color:#8250df}.two{color:#1b7c83}
@media(prefers-color-scheme:dark){.ground{fill:#0d1117}text{fill:#e6edf3}.muted{fill:#9198a1}
.axis{stroke:#9198a1}.grid{stroke:#30363d}.limit{stroke:#e6edf3}
.fixed{color:#f0793a}.slide{color:#4da6e8}.gcra{color:#1fbf8f}.bucket{color:#d98cba}.lease{color:#e6b422}.other{color:#767e88}
.one{color:#a98bf5}.two{color:#39b5bd}}
@media(min-width:600px){text{font-size:13px}.title{font-size:17px}}";

/// A position in a picture: from the left, and from the top.
pub type Point = (f64, f64);

/// Which part of a text is at its position.
#[derive(Clone, Copy, PartialEq)]
pub enum Side {
    /// Its left end.
    Left,
    /// Its middle.
    Middle,
    /// Its right end.
    Right,
}

/// Converts a coordinate to the units of a picture.
#[derive(Clone, Copy)]
pub struct Axis {
    /// The values at both ends.
    pub from: f64,
    /// See `from`.
    pub to: f64,
    /// The positions of both ends.
    pub start: f64,
    /// See `start`.
    pub end: f64,
}

impl Axis {
    /// The position of a value.
    pub fn at(&self, value: f64) -> f64 {
        self.start + (value - self.from) / (self.to - self.from) * (self.end - self.start)
    }
}

/// A bar of a bar chart: it begins at 0, and its figure is written beside it.
pub struct Bar {
    /// What is written at its left.
    pub name: String,
    /// The class of its colour.
    pub class: &'static str,
    /// Its length, in the units of the axis.
    pub value: f64,
    /// What is written at its right.
    pub figure: String,
}

/// A picture that is drawn from its top to its bottom.
pub struct Picture {
    style: String,
    body: String,
    /// How far the picture is drawn.
    pub y: f64,
}

impl Picture {
    /// Begins with a title, which is a sentence, and a line or two that say what the numbers are.
    pub fn new(title: &str, subtitle: &str) -> Self {
        let mut picture = Self { style: STYLE.into(), body: String::new(), y: 6.0 };
        for (words, class, size, height) in [(title, "title", TITLE, 24.0), (subtitle, "muted", LETTERS, LINE)] {
            for line in lines(words, size) {
                picture.text(&line, (MARGIN, picture.y + height / 2.0), Side::Left, class);
                picture.y += height;
            }
        }
        picture.y += 8.0;
        picture
    }

    /// Adds rules to the style sheet.
    pub fn rules(&mut self, rules: &str) {
        self.style.push('\n');
        self.style.push_str(rules);
    }

    /// Adds elements of SVG.
    pub fn raw(&mut self, elements: &str) {
        self.body.push_str(elements);
        self.body.push('\n');
    }

    /// The middle of the text's height is at the point.
    pub fn text(&mut self, words: &str, (x, y): Point, side: Side, class: &str) {
        let anchor = match side {
            Side::Left => "",
            Side::Middle => " text-anchor=\"middle\"",
            Side::Right => " text-anchor=\"end\"",
        };
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let words = words.replace('&', "&amp;").replace('<', "&lt;");
        self.raw(&format!("<text x=\"{}\" y=\"{}\" dy=\".35em\"{anchor}{class}>{words}</text>", round(x), round(y)));
    }

    /// A filled rectangle between two corners.
    pub fn bar(&mut self, class: &str, from: Point, to: Point) {
        let (x, y) = (from.0.min(to.0), from.1.min(to.1));
        let (width, height) = ((to.0 - from.0).abs(), (to.1 - from.1).abs());
        self.raw(&format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
            round(x),
            round(y),
            round(width),
            round(height)
        ));
    }

    /// A line through these points. Its class says if it is filled.
    pub fn line(&mut self, class: &str, points: &[Point]) {
        let mut path = String::new();
        for (at, &(x, y)) in points.iter().enumerate() {
            write!(path, "{}{} {}", if at == 0 { 'M' } else { 'L' }, round(x), round(y)).expect("a string");
        }
        self.raw(&format!("<path class=\"{class}\" d=\"{path}\"/>"));
    }

    /// A point of a line.
    pub fn dot(&mut self, class: &str, (x, y): Point) {
        self.raw(&format!("<circle class=\"dot {class}\" cx=\"{}\" cy=\"{}\" r=\"4\"/>", round(x), round(y)));
    }

    /// A line of text at the left, and the room below it.
    pub fn heading(&mut self, words: &str, class: &str) {
        self.text(words, (MARGIN, self.y + LINE / 2.0), Side::Left, class);
        self.y += LINE + 3.0;
    }

    /// Draws bars below each other, with their names at the left and their figures at the right. `x` begins at 0. A dashed line
    /// is at the value `mark`.
    pub fn bars(&mut self, x: Axis, bars: &[Bar], mark: Option<f64>) {
        let top = self.y;
        for bar in bars {
            let middle = self.y + ROW / 2.0;
            self.text(&bar.name, (x.start - 7.0, middle), Side::Right, "");
            let end = x.at(bar.value);
            self.bar(&format!("bar {}", bar.class), (x.start, self.y + 3.0), (end, self.y + ROW - 3.0));
            // The dashed line must not cross the figure.
            let width = bar.figure.chars().count() as f64 * LETTERS * 0.6 + 8.0;
            let at = mark.map(|mark| x.at(mark)).filter(|&mark| mark > end && mark < end + width).unwrap_or(end);
            self.text(&bar.figure, (at + 6.0, middle), Side::Left, "");
            self.y += ROW;
        }
        self.line("axis", &[(x.start, top), (x.start, self.y)]);
        if let Some(mark) = mark {
            self.line("limit", &[(x.at(mark), top), (x.at(mark), self.y)]);
        }
    }

    /// Draws the axes of a panel, with ticks. The labels of the vertical ones are at the left.
    pub fn axes(&mut self, x: Axis, y: Axis, across: &[(f64, String)], up: &[(f64, String)]) {
        for (value, label) in up {
            let at = y.at(*value);
            self.line(if *value == y.from { "axis" } else { "grid" }, &[(x.start, at), (x.end, at)]);
            self.text(label, (x.start - 6.0, at), Side::Right, "muted");
        }
        for (value, label) in across {
            let at = x.at(*value);
            self.line("axis", &[(at, y.start), (at, y.start + 4.0)]);
            self.text(label, (at, y.start + 14.0), Side::Middle, "muted");
        }
    }

    /// The whole picture.
    pub fn svg(&self) -> String {
        let height = self.y + 8.0;
        // The background is the picture's own: the colour of the page around it may not match the reader's colour scheme.
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{SHOWN}\" height=\"{}\" viewBox=\"0 0 {WIDTH} {}\">\n<style>{}</style>\n\
             <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
            round(height * SHOWN / WIDTH),
            round(height),
            self.style,
            self.body
        )
    }

    /// Writes the picture to a file.
    pub fn save(&self, path: &Path) {
        write(path, &self.svg());
    }
}

/// Breaks words into lines that fit into a picture, in any usual font.
fn lines(words: &str, size: f64) -> Vec<String> {
    // Titles are bold, which makes their letters wider.
    let wide = if size == TITLE { 0.6 } else { 0.57 };
    let most = ((WIDTH - 2.0 * MARGIN) / (size * wide)) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// A coordinate with at most one digit after the point.
pub fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Writes a file, and prints its path.
pub fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    println!("{}", path.display());
}

/// Writes a page again with these texts between its marks, and with the titles of its pictures, by their files. `by` is the target of
/// `make` that the marks name.
pub fn fill(from: &Path, to: &Path, by: &str, texts: &[(&str, String)], titles: &[(&str, String)]) {
    let page = fs::read_to_string(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    let page = texts.iter().fold(page, |page, (mark, text)| replace(&page, &format!("{by}: {mark}"), text));
    write(to, &titles.iter().fold(page, |page, (file, title)| describe(&page, file, title)));
}

/// Replaces the text between a mark and the next end mark of a page.
fn replace(page: &str, mark: &str, text: &str) -> String {
    let (from, to) = (format!("<!-- {mark} -->\n"), "<!-- end -->");
    let (before, rest) = page.split_once(&from).unwrap_or_else(|| panic!("the page has no {from}"));
    let (_, after) = rest.split_once(to).unwrap_or_else(|| panic!("the page has no {to} after {from}"));
    format!("{before}{from}{text}{to}{after}")
}

/// Sets the text of a page's picture, for those who can't see it, to its title.
fn describe(page: &str, file: &str, title: &str) -> String {
    let (before, after) = page.split_once(&format!("]({file})")).unwrap_or_else(|| panic!("the page has no {file}"));
    let (before, _) = before.rsplit_once("![").expect("the beginning of a picture");
    format!("{before}![{title}]({file}){after}")
}

/// A table of a page. The cells of its head are divided by ` | `. The first column is at the left, and the others at the right.
pub fn table(head: &str, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {head} |\n|---|{}\n", "---:|".repeat(head.matches(" | ").count()));
    rows.into_iter().for_each(|row| writeln!(text, "| {} |", row.join(" | ")).expect("a string"));
    text
}

/// A table of words, which are all at the left.
pub fn words(head: &str, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    table(head, rows).replacen("---:", "---", head.matches(" | ").count())
}

/// Formats a number with thin spaces between groups of three digits.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(" ")
}

/// Formats a number with a prefix: `10 k`, `1 M`.
pub fn short(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{} M", round(n / 1e6)),
        n if n >= 1e4 => format!("{:.0} k", n / 1e3),
        n if n >= 1e3 => format!("{} k", round(n / 1e3)),
        n => format!("{n:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_lose_no_word() {
        let words =
            "One message a picture, stated in a title that is a plain sentence, however long that sentence may become";
        let lines = lines(words, TITLE);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= 40), "{lines:?}");
        assert_eq!(lines.join(" "), words);
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let mut picture = Picture::new("Twice", "");
        let x = Axis { from: 0.0, to: 2.0, start: 100.0, end: 300.0 };
        let bar = |value: f64| Bar { name: "a < b".into(), class: GCRA, value, figure: value.to_string() };
        picture.bars(x, &[bar(0.5), bar(1.0)], None);
        let svg = picture.svg();
        assert!(svg.contains("x=\"100\"") && svg.contains("width=\"50\"") && svg.contains("width=\"100\""), "{svg}");
        assert!(svg.contains("a &lt; b"));
    }

    #[test]
    fn text_between_marks_is_replaced() {
        let page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n";
        assert_eq!(replace(page, "x", "new\n"), page.replace("old", "new"));
        assert_eq!(describe("![a](1.svg) ![b](2.svg)!", "2.svg", "c"), "![a](1.svg) ![c](2.svg)!");
    }
}
