//! `ring3 share-files`: manual pages and completions, from the definition of the command line.

use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::arguments::Arguments;

/// Where each shell looks for a command's completions, below a share directory.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/ring3"),
    (Shell::Zsh, "zsh/site-functions/_ring3"),
    (Shell::Fish, "fish/vendor_completions.d/ring3.fish"),
];

/// Writes all files below a share directory, such as `/usr/local/share`.
///
/// # Errors
/// A file or directory cannot be written.
pub(crate) fn write(directory: &Path) -> Result<(), String> {
    let mut ring3 = Arguments::command();
    for (shell, path) in COMPLETIONS {
        let mut text = vec![];
        clap_complete::generate(shell, &mut visible(&ring3), "ring3", &mut text);
        write_file(&directory.join(path), &text)?;
    }
    ring3 = ring3.disable_help_subcommand(true);
    ring3.build();
    let commands = ring3.get_subcommands().filter(|command| !command.is_hide_set());
    let all = commands.flat_map(|command| std::iter::once(command).chain(command.get_subcommands()));
    for command in std::iter::once(&ring3).chain(all) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        write_file(&directory.join(format!("man/man1/{name}.1")), &page(command))?;
    }
    Ok(())
}

/// The commands that users call: completions offer hidden ones otherwise.
fn visible(ring3: &Command) -> Command {
    let all = ring3.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let bare = Command::new("ring3").disable_help_subcommand(true);
    bare.version(env!("CARGO_PKG_VERSION")).args(ring3.get_arguments().cloned()).subcommands(all)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(path, bytes)).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// A manual page. The text behind the options is ours to render: each heading of it becomes a section.
fn page(command: &Command) -> Vec<u8> {
    // man-db drops an empty date, which `Man` would write.
    const VERSION: &str = concat!("ring3 ", env!("CARGO_PKG_VERSION"));
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_uppercase();
    let mut page = format!(".TH {name} 1 \"\" \"{VERSION}\" \"User Commands\"\n").into_bytes();
    let man = Man::new(command.clone());
    let written = man
        .render_name_section(&mut page)
        .and_then(|()| man.render_synopsis_section(&mut page))
        .and_then(|()| man.render_description_section(&mut page))
        .and_then(|()| man.render_options_section(&mut page));
    written.expect("a vector takes all that is written");
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page).expect("a vector takes all that is written");
    }
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut roff = sections(&text);
    let others = match command.get_name() {
        "ring3" => "ring3-load(1), ring3-start(1), ring3-attach(1), ring3-status(1), bpf(2), ptrace(2)",
        _ => "ring3(1)",
    };
    roff.control("SH", ["SEE ALSO"]).text([roman(others)]);
    page.extend(roff.to_roff().into_bytes());
    page
}

/// Lines that end with a colon and are not indented are headings; what stands between them is set as it is written.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    for paragraph in text.split("\n\n") {
        let is_heading = |line: &&str| line.ends_with(':') && !line.starts_with(' ');
        let (heading, lines) = match paragraph.split_once('\n') {
            Some((first, rest)) if is_heading(&first) => (first.trim_end_matches(':'), rest),
            _ => ("Notes", paragraph),
        };
        if lines.trim().is_empty() {
            continue;
        }
        roff.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
        for line in lines.trim_end().lines() {
            roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        }
        roff.control("fi", []);
    }
    roff
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{page, sections};
    use crate::arguments::Arguments;

    #[test]
    fn headings_become_sections() {
        let page = sections("Examples:\n  ring3 stop\n\nIt ends.\n").to_roff();
        assert!(page.contains(".SH EXAMPLES\n.nf\nring3 stop\n.fi\n.SH NOTES\n.nf\nIt ends."), "{page}");
    }

    #[test]
    fn a_page_names_every_option_of_its_command() {
        let mut ring3 = Arguments::command();
        ring3.build();
        for command in ring3.get_subcommands().filter(|command| !command.is_hide_set()) {
            let text = String::from_utf8(page(command)).expect("it is text").replace("\\-", "-");
            let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
            for option in shown.filter_map(|argument| argument.get_long()) {
                assert!(text.contains(&format!("--{option}")), "{}: --{option}", command.get_name());
            }
        }
    }
}
