#!/usr/bin/env python3
"""A server that hosts an eBPF extension: `python3 embed.py filter.bpf.o [libring3.so]`."""

import ctypes
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p


class Request(Structure):
    _fields_ = [("port", c_uint32), ("refusals", c_uint32), ("user", c_char * 16), ("path", c_char * 40)]


class Parameter(Structure):
    _fields_ = [("kind", c_uint32), ("use", c_uint32), ("bytes", c_uint32), ("reserved", c_uint32),
                ("least", c_int64), ("greatest", c_int64)]


class Result(Structure):
    _fields_ = [("kind", c_uint32), ("bytes", c_uint32), ("writable", c_uint32), ("nullable", c_uint32),
                ("least", c_int64), ("greatest", c_int64)]


POINTER_TO, SIZE, READS, NO_NUMBER = 4, 5, 0, -1
Function = CFUNCTYPE(c_uint64, c_uint64, c_uint64, c_uint64, c_uint64, c_uint64, c_void_p)
Record = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)

ring3 = ctypes.CDLL(sys.argv[2] if len(sys.argv) > 2 else "libring3.so.0")
for name in ["ring3_vm_new", "ring3_program_find", "ring3_map_find"]:
    getattr(ring3, name).restype = c_void_p
for name in ["ring3_error", "ring3_log"]:
    getattr(ring3, name).restype = c_char_p
ring3.ring3_map_consume.restype = c_int64
ring3.ring3_register.argtypes = [c_void_p, c_char_p, c_int64, Function, c_void_p, POINTER(Parameter), c_size_t, POINTER(Result)]
ring3.ring3_call.argtypes = [c_void_p, c_void_p, c_size_t, POINTER(c_uint64)]
ring3.ring3_map_read.argtypes = [c_void_p, c_uint64, c_void_p, c_size_t]


def check(result):
    if result is None or result < 0:
        sys.exit(ring3.ring3_error().decode() + "\n" + ring3.ring3_log().decode())
    return result


@Function
def is_known(user, size, r3, r4, r5, data):
    return ctypes.string_at(user, size).rstrip(b"\0") == b"root"


@Record
def print_refused(data, record, size):
    request = Request.from_address(record)
    print(f"refused: {request.path.decode()} of {request.user.decode()}")
    return 0


vm = c_void_p(check(ring3.ring3_vm_new()))
check(ring3.ring3_set_memory(vm, c_uint32(ctypes.sizeof(Request)), 1))
parameters = (Parameter * 2)(Parameter(kind=POINTER_TO, use=READS), Parameter(kind=SIZE, bytes=16))
check(ring3.ring3_register(vm, b"is_known", NO_NUMBER, is_known, None, parameters, 2, byref(Result(least=0, greatest=1))))
check(ring3.ring3_load_file(vm, sys.argv[1].encode()))

program = check(ring3.ring3_program_find(vm, b"filter"))
for port, user, path in [(80, b"guest", b"/index.html"), (80, b"guest", b"/admin/users"), (443, b"root", b"/admin/users")]:
    request, verdict = Request(port, 0, user, path), c_uint64()
    check(ring3.ring3_call(program, byref(request), ctypes.sizeof(request), byref(verdict)))
    print(f"{path.decode()}: {'refuse' if verdict.value else 'pass'}")
check(ring3.ring3_map_consume(c_void_p(check(ring3.ring3_map_find(vm, b"refused"))), print_refused, None))

by_port = c_void_p(check(ring3.ring3_map_find(vm, b"requests_by_port")))
counts, key, last = {}, c_uint32(), None
while check(ring3.ring3_map_next_key(by_port, last, byref(key))):
    count, last = c_uint64(), byref(c_uint32(key.value))
    check(ring3.ring3_map_lookup(by_port, byref(key), byref(count)))
    counts[key.value] = count.value
for port in sorted(counts):
    print(f"port {port}: {counts[port]}")

seen = c_uint64()
check(ring3.ring3_map_read(check(ring3.ring3_map_find(vm, b".bss")), 0, byref(seen), 8))
print(f"seen: {seen.value}")
ring3.ring3_vm_free(vm)
