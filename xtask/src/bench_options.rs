//! What all benchmarks can be told, and where their figures go.

use serde_json::Value;

/// What comes behind `cargo xtask bench NAME`.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) quick: bool,
    /// Only what has this in its name is measured.
    pub(crate) only: String,
    /// The source tree of ubpf.
    pub(crate) ubpf: Option<String>,
    json: Option<String>,
}

impl Options {
    /// Reads the options of the benchmark `name`, which knows those of `known` (as its usage shows them).
    pub(crate) fn parse(name: &str, known: &[&str], rounds: usize, words: &[&str]) -> Result<Options, String> {
        let usage = || format!("usage: cargo xtask bench {name} [{}]", known.join("] ["));
        let knows = |word: &str| known.iter().any(|option| option.split(' ').next() == Some(word));
        let mut options = Options { rounds, quick: false, only: String::new(), ubpf: None, json: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(usage);
            match *word {
                unknown if !knows(unknown) => return Err(usage()),
                "--quick" => options.quick = true,
                "--only" => options.only = (*value()?).to_owned(),
                "--ubpf" => options.ubpf = Some((*value()?).to_owned()),
                "--json" => options.json = Some((*value()?).to_owned()),
                "--rounds" => options.rounds = value()?.parse().map_err(|_| usage())?,
                _ => return Err(usage()),
            }
        }
        if options.rounds == 0 { Err("--rounds must be at least 1".into()) } else { Ok(options) }
    }

    /// Writes the figures into the file that was named, if one was.
    pub(crate) fn save(&self, figures: impl FnOnce() -> Value) -> Result<(), String> {
        let Some(file) = &self.json else { return Ok(()) };
        std::fs::write(file, format!("{:#}\n", figures())).map_err(|error| format!("{file}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse("maps", &["--only TEXT", "--rounds N"], 9, words)
    }

    #[test]
    fn options_are_those_that_a_benchmark_knows() {
        let options = parse(&["--rounds", "3", "--only", "HASH lookup"]).expect("it knows them");
        assert_eq!((options.rounds, options.only.as_str(), options.quick), (3, "HASH lookup", false));
        assert_eq!(parse(&[]).expect("none are needed").rounds, 9);
        for wrong in [&["--quick"][..], &["--json", "file"], &["--rounds"], &["--rounds", "many"], &["more"]] {
            let usage = "usage: cargo xtask bench maps [--only TEXT] [--rounds N]";
            assert_eq!(parse(wrong).err().as_deref(), Some(usage), "{wrong:?}");
        }
        assert_eq!(parse(&["--rounds", "0"]).err().as_deref(), Some("--rounds must be at least 1"));
    }
}
