//! What all benchmarks can be told, and where their figures go.

use std::path::PathBuf;

use serde_json::Value;

/// Where the figures go, besides standard output.
#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Output {
    /// Writes the figures to the file that was named, if one was.
    pub(crate) fn save(&self, figures: impl FnOnce() -> Value) -> Result<(), String> {
        let Some(file) = &self.json else { return Ok(()) };
        std::fs::write(file, format!("{:#}\n", figures())).map_err(|error| format!("{}: {error}", file.display()))
    }
}

/// A number of at least 1.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("not a number: {error}")),
    }
}
