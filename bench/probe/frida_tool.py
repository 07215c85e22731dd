# SPDX-License-Identifier: MIT OR Apache-2.0
"""What probe_tool does, with frida-gum's Interceptor and callbacks in C.

    frida_tool.py PID BINARY SYMBOL uprobe|uretprobe empty|counting

Prints "attached"; on a line of input (and at its end) "COUNT 0", then detaches and ends. The process has one counter,
not a map: the least that a counting callback can do.
"""
import sys

import frida

SCRIPT = """
const count = Memory.alloc(8);
const callbacks = new CModule(`
    #include <gum/guminterceptor.h>
    extern volatile gint count;
    void empty(GumInvocationContext *context) { }
    void counting(GumInvocationContext *context) { g_atomic_int_add(&count, 1); }
`, { count });

rpc.exports = {
    attach(symbol, kind, program) {
        const address = Process.mainModule.getSymbolByName(symbol);
        const before = address.readU64();
        const when = kind === 'uretprobe' ? 'onLeave' : 'onEnter';
        Interceptor.attach(address, { [when]: callbacks[program] });
        Interceptor.flush();
        return !address.readU64().equals(before);
    },
    count() {
        return count.readU32();
    },
};
"""

pid, _, symbol, kind, program = sys.argv[1:]
session = frida.attach(int(pid))
script = session.create_script(SCRIPT)
script.load()
if not script.exports_sync.attach(symbol, kind, program):
    sys.exit("frida_tool.py: the function was not changed")
print("attached", flush=True)
sys.stdin.readline()
print(script.exports_sync.count(), 0, flush=True)
session.detach()
