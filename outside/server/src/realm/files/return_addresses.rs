//! Functions whose return addresses must not be replaced (docs/design/return-probes.md).

use ring3_elf::File as Elf;
use ring3_inject as inject;

use super::code::CodeFile;

/// Functions that return more than once, underscores before their names aside (gcc's `special_function_p` knows
/// the same ones). The second return would come to a replaced return address that nobody awaits any more; the
/// kernel kills the process with SIGILL then (`kernel/events/uprobes.c:uprobe_handle_trampoline`), or, for `vfork`,
/// keeps a copy for the child, which shares all memory with its parent here.
const RETURNS_TWICE: [&str; 5] = ["setjmp", "sigsetjmp", "savectx", "vfork", "getcontext"];

/// A collector of garbage that looks return addresses up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Walker {
    Java,
    V8,
}

impl CodeFile {
    /// Whether it is Python's interpreter, or a module of it: they call each other.
    pub(in crate::realm) fn is_of_python(&self) -> bool {
        let is_one = |name: &str| name == "_PyEval_EvalFrameDefault" || name.starts_with("PyInit_");
        *self.of_python.get_or_init(|| self.elf().symbols().iter().any(|symbol| is_one(symbol.name)))
    }

    /// In whose code a function is that compiled code of Java or JavaScript may call: collectors of garbage walk the stack from there by
    /// return addresses, which they look up. `None`: return addresses can be replaced.
    pub(in crate::realm) fn reads_return_addresses(&self, vaddr: u64) -> Option<&'static str> {
        /// Parts of names in V8 that compiled code calls: its own functions, and those of programs that JavaScript calls.
        const CALLED: [&str; 3] = ["2v88internal", "20FunctionCallbackInfo", "20PropertyCallbackInfo"];
        let walker = *self.walker.get_or_init(|| {
            let has = |name: &str| self.elf().find(name).is_some();
            let is_java = has("JNI_CreateJavaVM").then_some(Walker::Java);
            is_java.or_else(|| has("_ZN2v87Isolate10GetCurrentEv").then_some(Walker::V8))
        });
        let is_called = || {
            let mut names = self.elf().symbols_at(vaddr).iter().map(|symbol| symbol.name);
            names.any(|name| CALLED.iter().any(|part| name.contains(part)))
        };
        match walker? {
            Walker::Java => Some("in a Java virtual machine"),
            Walker::V8 => is_called().then_some("in V8, or called by it"),
        }
    }
}

/// Whether a process copies parts of its stacks away and back: it has the module `greenlet` of Python, on which gevent and eventlet are
/// built. A return address that was replaced is copied, too, and comes back when its frame is forgotten.
pub(in crate::realm) fn copies_stacks(mappings: &[inject::Mapping]) -> bool {
    let is_greenlet = |name: &str| name.starts_with("_greenlet.") || name.starts_with("greenlet.");
    let of_code = mappings.iter().filter(|mapping| mapping.is_executable() && mapping.inode != 0);
    of_code.filter_map(|mapping| mapping.path.rsplit('/').next()).any(is_greenlet)
}

/// Whether the function at `vaddr` is one that returns more than once.
pub(super) fn returns_twice(elf: &Elf<'_>, vaddr: u64) -> bool {
    let mut names = elf.symbols_at(vaddr).iter().map(|symbol| symbol.name);
    names.any(|name| RETURNS_TWICE.contains(&name.trim_start_matches('_')))
}
