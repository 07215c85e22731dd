//! Pictures: SVG without scripts, that any browser shows.

use std::fmt::Write as _;

use ring3_event::is_unseen;

/// A picture in the making.
pub(crate) struct Svg {
    width: u32,
    body: String,
}

impl Svg {
    pub(crate) fn new(width: u32) -> Svg {
        Svg { width, body: String::new() }
    }

    /// A rectangle, with a text that appears when the pointer is on it.
    pub(crate) fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str, title: &str) {
        let title = escape(title);
        _ = writeln!(
            self.body,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\"><title>{title}</title></rect>",
            tenths(x),
            tenths(y),
            tenths(width),
            tenths(height)
        );
    }

    /// Text; `anchor` is `start`, `middle` or `end`.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), anchor: &str, text: &str) {
        _ = writeln!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(text));
    }

    /// The file.
    pub(crate) fn finish(self, height: u32) -> String {
        let Svg { width, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"monospace\" font-size=\"11\">\n<style>text {{ pointer-events: none }}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
        )
    }
}

/// To a tenth, and as short as it can be.
fn tenths(number: f64) -> f64 {
    (10.0 * number).round() / 10.0
}

/// XML has no way to write most control characters.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '"' => escaped += "&quot;",
            letter if is_unseen(letter) || matches!(letter, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}
