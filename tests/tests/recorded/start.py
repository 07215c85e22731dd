# Starts a tool of bcc's: `start.py PATH ARGUMENTS`.
import runpy
import sys

import bcc

# All its probes are of the kind that every kernel lets one load.
bcc.BPF.support_kfunc = staticmethod(lambda: False)

# `min` of newer headers is more than its translation from C to BPF understands.
PLAIN = """
#undef min
#undef max
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
"""
make = bcc.BPF.__init__


def make_with_plain(self, *arguments, text=None, **named):
    if isinstance(text, str) and "#include" in text:
        before, after = text.rsplit("#include", 1)
        included, rest = after.split("\n", 1)
        text = before + "#include" + included + PLAIN + rest
    make(self, *arguments, text=text, **named)


bcc.BPF.__init__ = make_with_plain
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
