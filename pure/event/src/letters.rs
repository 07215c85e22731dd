//! Letters of texts that are others' choice: names of files, programs and threads.

/// Whether a letter is none that is seen: control characters, and those of Unicode that say how other letters are shown (category Cf of
/// Unicode 16, and the separators of lines and paragraphs). U+202E, say, turns the rest of a line around, so that it shows something
/// else than what is there.
pub fn is_unseen(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::is_unseen;

    #[test]
    fn what_changes_how_a_line_is_shown_is_unseen() {
        for letter in
            ['\n', '\u{1b}', '\u{85}', '\u{200b}', '\u{202e}', '\u{2066}', '\u{2069}', '\u{feff}', '\u{e0041}']
        {
            assert!(is_unseen(letter), "{letter:?}");
        }
        for letter in ['a', ' ', '\u{a0}', 'é', 'ש', '漢', '\u{301}', '😀', '\u{fe0f}'] {
            assert!(!is_unseen(letter), "{letter:?}");
        }
    }
}
