//! Lines of assembly text, and labels.

use std::fmt::Write as _;

/// Who writes the text of a program, line by line.
pub(crate) trait Lines {
    /// The text so far, and how many labels [`Lines::new_label`] has made.
    fn written(&mut self) -> (&mut String, &mut usize);

    /// Writes an instruction.
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.written().0, "    {line}");
    }

    /// Writes a label.
    fn label(&mut self, label: &str) {
        let _ = writeln!(self.written().0, "{label}:");
    }

    /// A label that the text has not yet.
    fn new_label(&mut self, what: &str) -> String {
        let (_, labels) = self.written();
        *labels += 1;
        format!("{what}_{labels}")
    }

    /// Looks the key at `r10 + key_at` up in a map; r0 is where its value is.
    fn look_up(&mut self, map: usize, key_at: i32) {
        self.line(&format!("r1 = map[{map}]"));
        self.line("r2 = r10");
        self.line(&format!("r2 += {key_at}"));
        self.line("call bpf_map_lookup_elem");
    }
}
