/* ring3: eBPF extensions that an application hosts itself, without a server and without privileges.
 *
 * Link with `pkg-config --cflags --libs ring3` (or `--static` and libring3.a).
 *
 * A function that fails returns NULL or a negative RING3_E... number; ring3_error() then says why. No function of this header
 * aborts or throws. All may be called from any thread, also at the same time, except that ring3_vm_free() must be the last use of
 * its machine.
 *
 *     ring3_vm *vm = ring3_vm_new();
 *     ring3_set_memory(vm, sizeof(struct request), 0);
 *     if (ring3_load_file(vm, "filter.bpf.o") < 0) die(ring3_error());
 *     ring3_program *filter = ring3_program_find(vm, "filter");
 *     uint64_t verdict;
 *     if (ring3_call(filter, &request, sizeof request, &verdict) < 0) die(ring3_error());
 */
#ifndef RING3_H
#define RING3_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where programs, maps and functions are. */
typedef struct ring3_vm ring3_vm;
/* A program that was loaded. It belongs to its machine and is freed with it. */
typedef struct ring3_program ring3_program;
/* A map. The same. */
typedef struct ring3_map ring3_map;

enum {
    RING3_OK = 0,
    RING3_EINVAL = -1,    /* an argument is wrong, or the settings contradict each other */
    RING3_EREFUSED = -2,  /* the verifier refuses the program: ring3_log() has the path to the error */
    RING3_ESHORT = -3,    /* the context is shorter than the program was verified for */
    RING3_EUNLOADED = -4, /* the program was unloaded */
    RING3_EBUDGET = -5,   /* the run has used its budget and was ended */
    RING3_EBUSY = -6,     /* too many threads are in programs, or this thread in too many runs, or the program still runs */
    RING3_ERESULT = -7,   /* a function returned a number outside of its range */
    RING3_EMAP = -8,      /* the map cannot be made, or the operation on it failed */
    RING3_ENOTFOUND = -9, /* there is no program or map of this name */
    RING3_EMACHINE = -10, /* memory cannot be had, or the processor lacks what is needed */
    RING3_EDEFECT = -11   /* a defect of ring3 */
};

/* "0.1.0" */
const char *ring3_version(void);
/* Why the last function of this thread that failed did so. Valid until the thread's next call that fails. Never NULL. */
const char *ring3_error(void);
/* What the verifier logged when it refused a program in this thread, in the kernel's format. As ring3_error(). */
const char *ring3_log(void);

/* One takes some 230 MiB of address space, and memory only where it is used. */
ring3_vm *ring3_vm_new(void);
/* Frees the machine, its programs and maps. No thread may be in a program, or use any of them later. */
void ring3_vm_free(ring3_vm *vm);

/* ---- settings: for programs that are loaded afterwards ---- */

enum { RING3_JIT = 0, RING3_INTERPRETER = 1 };
/* RING3_JIT is the default. */
int ring3_set_engine(ring3_vm *vm, int engine);

/* r1 leads to so many bytes, r2 is their number. 0 bytes, the default: r1 is 0. */
int ring3_set_memory(ring3_vm *vm, uint32_t bytes, int writable);

enum {
    RING3_NUMBER = 0,   /* read in 1, 2, 4 or 8 bytes at multiples of that */
    RING3_WRITABLE = 1, /* the same; programs may write it, too */
    RING3_BUFFER = 2,   /* 8 bytes: the address of `target` bytes, which programs may read and write */
    RING3_PACKET = 3,   /* 8 bytes: the address of a packet */
    RING3_PACKET_END = 4 /* 8 bytes: the address of its end, with which programs compare before they access it */
};
struct ring3_field {
    const char *name; /* for messages */
    uint32_t at;      /* offset in the context, bytes */
    uint32_t bytes;
    uint32_t kind;
    uint32_t target;
};
/* r1 leads to a structure of these fields; what no field covers cannot be touched. */
int ring3_set_fields(ring3_vm *vm, const struct ring3_field *fields, size_t count, int packet_writable);

/* A run has so many instructions at most; 0, the default: as many as it wants, but every program ends. What functions do is not
 * counted. Nothing is counted at run time where the verifier proves the limit. */
int ring3_set_budget(ring3_vm *vm, uint64_t instructions);
/* Programs whose result may be another one are refused. */
int ring3_set_results(ring3_vm *vm, int64_t least, int64_t greatest);
/* Hides the programs' constants in their code with this secret number, so that who writes a program does not choose what bytes can be
 * executed; 0, the default: they are not hidden. */
int ring3_set_blinding(ring3_vm *vm, uint64_t secret);
/* The application's types (BTF), by which objects are relocated (CO-RE). */
int ring3_set_types(ring3_vm *vm, const void *btf, size_t length);
/* What ring3_program_log() has: 0 nothing, 1 and 2 as for BPF_PROG_LOAD. */
int ring3_set_log_level(ring3_vm *vm, unsigned level);
/* Helpers that touch nothing but maps, clocks and the program's own memory are allowed; this allows another one ("probe_read_user"). */
int ring3_allow_helper(ring3_vm *vm, const char *name);
/* Takes a helper away; NULL: all. */
int ring3_deny_helper(ring3_vm *vm, const char *name);

/* ---- functions of the application ---- */

/* A function gets r1 to r5 and the pointer that it was registered with. It runs on the thread that calls the program, and may call
 * programs. It must not throw; longjmp() over a program is allowed. */
typedef uint64_t (*ring3_function)(uint64_t r1, uint64_t r2, uint64_t r3, uint64_t r4, uint64_t r5, void *data);

enum {
    RING3_ANYTHING = 0, /* any value; pointers as they are */
    RING3_IN_RANGE = 1, /* a number from `least` to `greatest` */
    RING3_CONTEXT = 2,  /* the context, if it has fields */
    RING3_MEMORY = 3,   /* a pointer to `bytes` bytes */
    RING3_POINTER = 4,  /* a pointer to memory; the next parameter is RING3_SIZE */
    RING3_SIZE = 5      /* how many bytes there are: 0 to `bytes` */
};
enum { RING3_READS = 0, RING3_FILLS = 1, RING3_CHANGES = 2 };
struct ring3_parameter {
    uint32_t kind;
    uint32_t use;   /* RING3_MEMORY, RING3_POINTER: the function reads all of it, writes all of it, or reads it and may write it */
    uint32_t bytes; /* RING3_MEMORY, RING3_SIZE */
    uint32_t reserved;
    int64_t least, greatest; /* RING3_IN_RANGE */
};
enum {
    RING3_RETURNS_NUMBER = 0,  /* from `least` to `greatest`; both 0: any */
    RING3_RETURNS_NOTHING = 1, /* programs cannot read r0 */
    RING3_RETURNS_MEMORY = 2   /* the address of `bytes` bytes, which stay while the program runs, or NULL if `nullable` */
};
struct ring3_result {
    uint32_t kind;
    uint32_t bytes;
    uint32_t writable;
    uint32_t nullable;
    int64_t least, greatest;
};

/* Lets programs call a function: objects by its name (`extern int name(...) __ksym;`), instructions by its number (`call 7`), which
 * hides the helper of that number; RING3_NO_NUMBER: by name only. A result outside of its range ends as RING3_ERESULT. */
#define RING3_NO_NUMBER (-1)
int ring3_register(ring3_vm *vm, const char *name, int64_t number, ring3_function function, void *data,
                   const struct ring3_parameter *parameters, size_t count, const struct ring3_result *result);

/* ---- programs ---- */

/* Loads an object file (`clang -target bpf -g -O2 -c`): makes its maps, verifies and compiles its programs. */
int ring3_load_file(ring3_vm *vm, const char *path);
int ring3_load_object(ring3_vm *vm, const void *bytes, size_t length);
/* Loads instructions, 8 bytes each. */
int ring3_load_insns(ring3_vm *vm, const char *name, const void *insns, size_t bytes);
/* Assembles and loads text: the kernel's notation (`r0 = 1`) or mnemonics (`mov64 r0, 1`). */
int ring3_load_text(ring3_vm *vm, const char *name, const char *text);

/* The program of this name that was loaded last; NULL: there is none. */
ring3_program *ring3_program_find(ring3_vm *vm, const char *name);
/* Runs a program; `result` (may be NULL) gets r0. Addresses in a context of fields must be right: nothing can check them. */
int ring3_call(const ring3_program *program, void *context, size_t bytes, uint64_t *result);
/* The same on a packet of any length: its addresses are written into the context, which may be NULL if it has nothing else. */
int ring3_call_packet(const ring3_program *program, void *context, size_t context_bytes, void *packet, size_t packet_bytes,
                      uint64_t *result);
/* Takes a program away: calls that begin later fail with RING3_EUNLOADED, those under way end first (10 s at most). */
int ring3_program_unload(ring3_program *program);
/* How many instructions a run has at most; `proved` (may be NULL) becomes 0 if the limit is enforced at run time. */
uint64_t ring3_program_bound(const ring3_program *program, int *proved);
/* The program's instructions as text, what the verifier logged: as snprintf(), the length that it has, and as much as fits. */
size_t ring3_program_listing(const ring3_program *program, char *text, size_t room);
size_t ring3_program_log(const ring3_program *program, char *text, size_t room);
/* The program's machine code (not where it runs); the same. */
size_t ring3_program_code(const ring3_program *program, void *code, size_t room);

/* ---- maps ---- */

/* A map of an object that was loaded, or of ring3_map_create(); variables are ".bss", ".data", ".rodata". */
ring3_map *ring3_map_find(ring3_vm *vm, const char *name);
/* Makes a map (BPF_MAP_TYPE_* of linux/bpf.h) for instructions that are loaded without an object; they name it by ring3_map_id(). */
ring3_map *ring3_map_create(ring3_vm *vm, const char *name, uint32_t type, uint32_t key_size, uint32_t value_size,
                            uint32_t max_entries, uint32_t flags);
/* The next object's map of this name is in this file, which ring3_map_file() of any process gave. The descriptor stays the caller's. */
int ring3_map_reuse(ring3_vm *vm, const char *name, int file);

uint32_t ring3_map_id(const ring3_map *map);
size_t ring3_map_key_size(const ring3_map *map);
/* Of per-CPU types: all CPUs' values, each at a multiple of 8. */
size_t ring3_map_value_size(const ring3_map *map);
/* 1: `value` has the value of the key; 0: there is none. */
int ring3_map_lookup(const ring3_map *map, const void *key, void *value);
/* flags: BPF_ANY 0, BPF_NOEXIST 1, BPF_EXIST 2 */
int ring3_map_update(const ring3_map *map, const void *key, const void *value, uint64_t flags);
/* 1: it was there; 0: it was not. */
int ring3_map_delete(const ring3_map *map, const void *key);
/* 1: `next` has the key behind `key`, or the first one if that is NULL; 0: there is none. */
int ring3_map_next_key(const ring3_map *map, const void *key, void *next);
/* Queues, stacks, Bloom filters; ring3_map_pop(): 1, or 0 if it is empty. */
int ring3_map_push(const ring3_map *map, const void *value, uint64_t flags);
int ring3_map_pop(const ring3_map *map, void *value);
/* Variables, and values of arrays one behind the other. */
int ring3_map_read(const ring3_map *map, uint64_t offset, void *to, size_t bytes);
int ring3_map_write(const ring3_map *map, uint64_t offset, const void *from, size_t bytes);

/* Gives a ring buffer's records to a function until it returns nonzero or there is none; how many there were. One consumer at a time. */
typedef int (*ring3_record)(void *data, const void *record, size_t bytes);
int64_t ring3_map_consume(const ring3_map *map, ring3_record record, void *data);
/* Waits for a record at most so long: 1, or 0 if there is none. */
int ring3_map_wait(const ring3_map *map, uint32_t milliseconds);
/* A descriptor of the map's memory for another process (SCM_RIGHTS, fork); the caller closes it. */
int ring3_map_file(const ring3_map *map);

#ifdef __cplusplus
}
#endif
#endif
