/* A program with the shapes that servers in C have: what the tests of the model extend. */
/* (No headers: clang has none of the system's for BPF.) */
typedef __SIZE_TYPE__ size_t;
typedef unsigned int uint32_t;
#define NULL ((void *)0)

#ifdef WITH_NOTES
#include <ring3/eim.h>
Extension_Application(host);
State_Capability(uri, read request_t.uri; length text_t.data = text_t.length);
State_Capability(load, read global load; write global load);
State_Capability(tagged, read request_t.value.tag, request_t.value.number;
                 member request_t.value.number when request_t.value.tag = 1;
                 member request_t.value.connection when request_t.value.tag in 2..3);
Function_Capability(refuse, void request_refuse(request_t *r, long status), require status in 400..599; nonnull r);
Extension_Entry(request, request_begin, at entry; nonnull r; return 0 = continue; return 400..599 = skip);
#endif


typedef struct {
    size_t length;
    unsigned char *data;
} text_t;

typedef struct header_s header_t;
struct header_s {
    text_t key, value;
    header_t *next;
};

enum method { GET = 2, HEAD = 4, POST = 8 };

struct connection {
    int fd;
    unsigned short port;
    void *private_key;
};

typedef struct request_s request_t;
struct request_s {
    uint32_t signature;
    struct connection *connection;
    struct {
        header_t *host, *cookie;
        int count;
    } headers_in;
    text_t uri, args;
    enum method method;
    unsigned keepalive:1, chunked:1, version:12;
    union {
        long status;
        int parts[2];
    };
    union {
        void *pointer;
        long number;
    } tagged;
    const int kind;
    char digest[20];
    header_t inline_headers[3];
    unsigned short ports[4][2];
    double weight;
    char *name;
    long (*handler)(request_t *);
    struct {
        unsigned short tag;
        signed char level;
        unsigned small : 3;
        union {
            long number;
            struct connection *connection;
            text_t text;
            struct { int low, high; } pair;
            union { long deep; char *name; } inner;
        };
    } value;
    struct {
        int which;
        union { int first, second; };
    } items[2];
};

struct request_s *current;
long load;
static int hidden = 3;
__thread int depth;
const int version = 7;
struct connection listener = { .fd = 3 };

__attribute__((noinline)) void *request_alloc(struct request_s *r, size_t bytes)
{
    static char pool[4096];
    static size_t used;
    if (!r || used + bytes > sizeof pool)
        return NULL;
    used += bytes;
    return pool + used - bytes;
}

__attribute__((noinline)) void request_refuse(request_t *r, long status)
{
    r->status = status;
    load++;
}

__attribute__((noinline)) long request_begin(request_t *r, int flags, const char *why)
{
    current = r;
    r->name = request_alloc(r, why && *why ? 2 : 1);
    return r->signature + flags + hidden + depth;
}

__attribute__((noinline)) request_t *request_find(unsigned id)
{
    return current && current->signature == id ? current : NULL;
}

#ifndef __bpf__
__attribute__((noinline)) int request_log(request_t *r, const char *format, ...)
{
    load += format[0];
    return r != NULL;
}

__attribute__((noinline)) double request_weight(request_t *r, double by)
{
    return r->weight * by;
}
#endif

#ifndef __bpf__
/* Its parameters are in other registers than those of all others. */
__attribute__((noinline, ms_abi)) long request_foreign(request_t *r, long by)
{
    load += by;
    return r->status + by;
}
#endif

/* Inlined in every call. */
static inline __attribute__((always_inline)) long request_quick(request_t *r)
{
    return r->status * 3 + r->uri.length;
}

/* A copy of its code is in `main`, and another one is global. */
long request_often(request_t *r, long by)
{
    load += by;
    return r->status + by;
}

/* The compiler may take its second parameter away. */
static __attribute__((noinline)) long request_narrow(request_t *r, long unused, long by)
{
    load += by * r->signature;
    return load;
}

#ifdef __bpf__
long use(request_t *r)
{
    request_refuse(r, 400);
    return request_begin(r, 1, "") + request_quick(r) + request_narrow(r, 5, 1) + (request_find(1) != NULL);
}
#else
int main(int argc, char **argv)
{
    request_t r = { .signature = argc };
    long sum = request_begin(&r, argc, argv[0]) + request_quick(&r) + request_often(&r, argc);
    request_refuse(&r, 400 + argc);
    request_log(&r, "%d", argc);
    sum += request_find(argc) != NULL;
    sum += request_narrow(&r, 5, sum) + request_narrow(&r, 6, argc) + (long)request_weight(&r, sum);
    return sum + request_foreign(&r, argc) + version + listener.fd == 7;
}
#endif
