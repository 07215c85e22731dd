// Victims by name: each waits for a line of input, does its work, prints what it knows, and waits again.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unwind.h>
#include <unistd.h>

extern char **environ;
static char line[64];
static bool wait_for_line() { return fgets(line, sizeof line, stdin) != nullptr; }

extern "C" {
__attribute__((noinline, noclone)) int plain(int x) { asm volatile(""); return x + 1; }
__attribute__((noinline, noclone)) int thrower(int x) { if (x % 3 == 0) throw std::runtime_error("x"); asm volatile(""); return x; }
__attribute__((noinline, noclone)) int through(int x) { int y = thrower(x); asm volatile(""); return y + 1; }
static jmp_buf where;
__attribute__((noinline, noclone)) int jumper(int x) { asm volatile(""); if (x % 2) longjmp(where, 1); return x; }
static bool waits;
__attribute__((noinline, noclone)) int bottom(int x) { if (waits) { puts("bottom"); wait_for_line(); } return x; }
__attribute__((noinline, noclone)) int recursive(int x) { int y = x < 2 ? bottom(x) : recursive(x - 1); asm volatile("" : "+r"(y)); return y + 1; }
void go_elsewhere();
__attribute__((noinline, noclone)) int wanderer(int x) { go_elsewhere(); asm volatile(""); return x + 1; }
__attribute__((noinline, noclone)) int carrier(int x) { int y = wanderer(x) + wanderer(x); asm volatile("" : "+r"(y)); return y + 1; }
__attribute__((noinline, noclone)) int interrupted(int x) { raise(SIGUSR1); asm volatile(""); return x + 1; }
int looping(int x);
asm(".text\n.globl looping\n.type looping,@function\n.p2align 4\nlooping: lea 1(%rdi),%eax\n sub $1,%edi\n jns looping\n ret\n.size looping,.-looping\n.p2align 4\n");
int tiny(int x);
asm(".globl tiny\n.type tiny,@function\ntiny: ret\n.size tiny,.-tiny\n.globl behind_tiny\n.type behind_tiny,@function\nbehind_tiny: ret\n.size behind_tiny,.-behind_tiny\n.p2align 4\n");
// These take their arguments off the stack, by `ret n` and by moving the return address.
long popping();
asm(".globl popping\n.type popping,@function\n.p2align 4\npopping: mov 8(%rsp),%rax\n add 16(%rsp),%rax\n ret $16\n.size popping,.-popping\n");
long moving();
asm(".globl moving\n.type moving,@function\n.p2align 4\nmoving: pop %rcx\n pop %rax\n pop %rdx\n add %rdx,%rax\n push %rcx\n ret\n.size moving,.-moving\n.p2align 4\n");
int packed(int x);
asm(".globl packed\n.type packed,@function\n.p2align 4\npacked: mov %edi,%eax\n ret\n.size packed,.-packed\n.p2align 4\n");
}

static int exceptions(int n) {
    int caught = 0;
    for (int i = 0; i < n; i++) try { through(i); } catch (const std::runtime_error &) { caught++; }
    return caught;
}
static long with_pushed(long (*function)(), long a, long b) {
    long result;
    asm volatile("sub $128,%%rsp\n push %2\n push %3\n call *%1\n add $128,%%rsp" : "=a"(result) : "b"(function), "S"(a), "D"(b) : "rcx", "rdx", "memory", "cc");
    return result;
}
static int pushed(int n) {
    int right = 0;
    for (int i = 0; i < n; i++) right += (with_pushed(popping, i, 7) == i + 7) + (with_pushed(moving, i, 9) == i + 9);
    return right;
}
// Its own code, mapped once more: calls a function there.
static int mapped_again(int n) {
    auto at = (unsigned long)&plain;
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long first, end, offset; char permissions[5]; char line[512];
    int (*other)(int) = nullptr;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s %lx", &first, &end, permissions, &offset) == 4 && first <= at && at < end) {
            int file = open("/proc/self/exe", O_RDONLY);
            void *again = mmap(nullptr, end - first, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, (off_t)offset);
            if (again != MAP_FAILED) other = (int (*)(int))((char *)again + (at - first));
            close(file);
        }
    int right = 0;
    for (int i = 0; other && i < n; i++) right += other(i) == i + 1;
    return right;
}
static int longjmps(int n) {
    static volatile int jumps; jumps = 0;
    for (volatile int i = 0; i < n; i = i + 1) { if (setjmp(where) == 0) jumper(i); else jumps = jumps + 1; }
    return jumps;
}
static volatile int handled;
static void on_signal(int) { handled = handled + 1; plain(1); }
static void on_segv(int, siginfo_t *info, void *) { if (info->si_addr == (void *)16) { handled = 1000; siglongjmp(*(sigjmp_buf *)&where, 1); } _exit(9); }
static int signals(int n) {
    signal(SIGUSR1, on_signal);
    for (int i = 0; i < n; i++) { raise(SIGUSR1); plain(i); }
    int counted = handled;
    struct sigaction a = {}; a.sa_sigaction = on_segv; a.sa_flags = SA_SIGINFO; sigaction(SIGSEGV, &a, nullptr);
    if (sigsetjmp(*(sigjmp_buf *)&where, 1) == 0) *(volatile int *)16 = 1;
    return handled == 1000 ? counted : -1;
}
// Processes and threads with their creator's memory and its thread pointer, that run beside it.
static volatile int ended;
static int borrow(void *n) {
    int right = 0;
    for (int i = 0; i < (int)(long)n; i++) right += plain(i) == i + 1;
    return right == (int)(long)n ? 7 : 1;
}
static int borrow_as_thread(void *n) {
    if (borrow(n) == 7) __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_exit, 0);
    return 0;
}
static int borrowers(int n) {
    const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    static char stacks[6][64 << 10] __attribute__((aligned(16)));
    int good = 0;
    for (int i = 0; i < 3; i++) {
        pid_t child = clone(borrow, stacks[i] + sizeof(stacks[i]), CLONE_VM | SIGCHLD, (void *)(long)n);
        good += borrow((void *)(long)n) == 7;
        int status; waitpid(child, &status, 0); good += WIFEXITED(status) && WEXITSTATUS(status) == 7;
    }
    for (int i = 3; i < 6; i++) clone(borrow_as_thread, stacks[i] + sizeof(stacks[i]), flags, (void *)(long)n);
    good += borrow((void *)(long)n) == 7;
    for (int i = 0; ended < 3 && i < 10000; i++) usleep(1000);
    return good + ended;
}
static int forks(int n) {
    int good = 0;
    for (int i = 0; i < n; i++) {
        pid_t child = fork();
        if (child == 0) { int sum = 0; for (int k = 0; k < 5; k++) sum += plain(k); _exit(sum == 15 ? 7 : 1); }
        int status; waitpid(child, &status, 0); good += WIFEXITED(status) && WEXITSTATUS(status) == 7;
    }
    return good;
}
static int spawns(int n) {
    int good = 0;
    for (int i = 0; i < n; i++) {
        pid_t child; char *argv[] = {(char *)"true", nullptr};
        if (posix_spawn(&child, "/bin/true", nullptr, nullptr, argv, environ) == 0) { int s; waitpid(child, &s, 0); good += s == 0; }
        good += system("true") == 0;
    }
    return good;
}
static void *thread_body(void *arg) { for (long i = 0; i < (long)arg; i++) plain(i); return nullptr; }
static int threads(int n) {
    for (int round = 0; round < 10; round++) {
        pthread_t t[8]; for (auto &h : t) pthread_create(&h, nullptr, thread_body, (void *)(long)n);
        for (auto &h : t) pthread_join(h, nullptr);
    }
    return 80 * n;
}
static int libraries(int n) {
    void *library = dlopen(getenv("VICTIM_LIBRARY"), RTLD_NOW);
    if (!library) return -1;
    auto function = (int (*)(int))dlsym(library, "in_library");
    int sum = 0; for (int i = 0; i < n; i++) sum += function(i) == i * 2; return sum;
}
// Fibers that are always taken up by another thread than they were left by, in the midst of probed functions.
struct Fiber {
    ucontext_t context;
    int rounds, right;
    pthread_t last;
    bool waits, ended;
    char stack[64 << 10];
};
static Fiber fibers[6];
static pthread_mutex_t fibers_lock = PTHREAD_MUTEX_INITIALIZER;
static thread_local ucontext_t worker;
static thread_local Fiber *own_fiber;
// A thread's variables, by a call: their addresses are others behind a change of threads.
__attribute__((noinline)) static ucontext_t *own_worker() { asm volatile(""); return &worker; }
__attribute__((noinline)) static Fiber *present() { asm volatile(""); return own_fiber; }
void go_elsewhere() { Fiber *fiber = present(); swapcontext(&fiber->context, own_worker()); }
static void fiber_body() {
    for (int i = 0; i < present()->rounds; i++) { int carried = carrier(i); present()->right += carried == 2 * i + 3; }
    present()->ended = true;
    setcontext(own_worker());
}
// One that waits here and was elsewhere; null if there is none now. `all_ended`: and there will be none.
static Fiber *next_fiber(bool *all_ended) {
    Fiber *found = nullptr;
    *all_ended = true;
    pthread_mutex_lock(&fibers_lock);
    for (Fiber &fiber : fibers) {
        *all_ended = *all_ended && fiber.ended;
        if (!found && fiber.waits && !pthread_equal(fiber.last, pthread_self())) found = &fiber;
    }
    if (found) found->waits = false;
    pthread_mutex_unlock(&fibers_lock);
    return found;
}
static void *worker_body(void *) {
    for (bool all_ended = false; !all_ended;) {
        Fiber *fiber = next_fiber(&all_ended);
        if (!fiber) { sched_yield(); continue; }
        own_fiber = fiber;
        swapcontext(&worker, &fiber->context);
        pthread_mutex_lock(&fibers_lock);
        fiber->last = pthread_self();
        fiber->waits = !fiber->ended;
        pthread_mutex_unlock(&fibers_lock);
    }
    return nullptr;
}
static int wander(int n) {
    for (Fiber &fiber : fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack = {.ss_sp = fiber.stack, .ss_flags = 0, .ss_size = sizeof fiber.stack};
        makecontext(&fiber.context, fiber_body, 0);
        fiber.rounds = n; fiber.last = pthread_self(); fiber.waits = true;
    }
    pthread_t t[3]; for (auto &h : t) pthread_create(&h, nullptr, worker_body, nullptr);
    for (auto &h : t) pthread_join(h, nullptr);
    int right = 0; for (Fiber &fiber : fibers) right += fiber.right;
    return right;
}
// Coroutines of one thread that are taken up in any order, each in the midst of a recursion of a probed function; and after that a
// jump out of one that is as deep as all of theirs together.
enum { COROUTINE_DEPTH = 11, COROUTINE_ROUNDS = 3, COROUTINE_STACK = 16 << 10 };
struct Coroutine { ucontext_t context; int right; bool ended; };
static std::vector<Coroutine> coroutines;
static size_t running;
static ucontext_t scheduler;
static int jumps_at;
extern "C" __attribute__((noinline, noclone)) int awaited(int x) {
    if (x == jumps_at) longjmp(where, 1);
    int y = x;
    if (x > 1) y = awaited(x - 1) + 1;
    else if (!jumps_at) swapcontext(&coroutines[running].context, &scheduler);
    asm volatile("" : "+r"(y));
    return y;
}
static void coroutine_body() {
    for (int i = 0; i < COROUTINE_ROUNDS; i++) { int x = awaited(COROUTINE_DEPTH); coroutines[running].right += x == COROUTINE_DEPTH; }
    coroutines[running].ended = true;
    setcontext(&scheduler);
}
static int coroutines_of(int n) {
    coroutines.resize(n);
    auto *stacks = (char *)mmap(nullptr, (size_t)n * COROUTINE_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < n; i++) {
        getcontext(&coroutines[i].context);
        coroutines[i].context.uc_stack = {.ss_sp = stacks + (size_t)i * COROUTINE_STACK, .ss_flags = 0, .ss_size = COROUTINE_STACK};
        makecontext(&coroutines[i].context, coroutine_body, 0);
    }
    unsigned random = 1;
    for (int left = n; left > 0;) {
        random = random * 1103515245 + 12345;
        running = (random >> 8) % n;
        while (coroutines[running].ended) running = (running + 1) % n;
        swapcontext(&scheduler, &coroutines[running].context);
        left -= coroutines[running].ended;
    }
    int right = 0;
    for (auto &coroutine : coroutines) right += coroutine.right;
    const int depth = n * COROUTINE_DEPTH;
    jumps_at = 1;
    for (volatile int i = 0; i < 2; i = i + 1) if (setjmp(where) == 0) awaited(depth);
    jumps_at = -1;
    return right + (awaited(depth) == depth);
}
// A handler on an alternate stack, which lies above the thread's own, throws and catches in the midst of a probed function.
static void on_alternate(int) { try { through(3); } catch (const std::runtime_error &) { handled = handled + 1; } }
static void *alternate_body(void *arg) {
    auto *calls = (long *)arg;
    stack_t stack = {.ss_sp = (void *)calls[1], .ss_flags = 0, .ss_size = 64 << 10};
    struct sigaction action = {}; action.sa_handler = on_alternate; action.sa_flags = SA_ONSTACK;
    sigaltstack(&stack, nullptr); sigaction(SIGUSR1, &action, nullptr);
    char here; if (&here > (char *)calls[1]) return nullptr;
    for (int i = 0; i < calls[0]; i++) calls[2] += interrupted(i) == i + 1;
    return nullptr;
}
static int alternate(int n) {
    // (Mappings are made downwards: the thread's stack lies below.)
    void *stack = mmap(nullptr, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long calls[] = {n, (long)stack, 0};
    pthread_t thread; pthread_create(&thread, nullptr, alternate_body, calls); pthread_join(thread, nullptr);
    return handled == n ? (int)calls[2] : -1;
}
// Exceptions that pass `passing`: each time its personality routine is asked, a handler throws and catches another one, in the
// midst of the unwinder.
extern "C" {
_Unwind_Reason_Code interrupting(int, _Unwind_Action, ...) { raise(SIGUSR1); return _URC_CONTINUE_UNWIND; }
int passing(int x);
asm(".text\n.globl passing\n.type passing,@function\n.p2align 4\npassing: .cfi_startproc\n .cfi_personality 0x9b,interrupting_address\n"
    " sub $24,%rsp\n .cfi_def_cfa_offset 32\n call thrower\n add $24,%rsp\n .cfi_def_cfa_offset 8\n ret\n .cfi_endproc\n"
    ".size passing,.-passing\n.p2align 4\n.section .data.rel.local,\"aw\"\n.p2align 3\ninterrupting_address: .quad interrupting\n.text\n");
__attribute__((noinline, noclone)) int carried(int x) { int y = passing(x); asm volatile("" : "+r"(y)); return y + 1; }
__attribute__((noinline, noclone)) int around(int x) { try { carried(x); return 0; } catch (const std::runtime_error &) { return 1; } }
}
static int nested(int n, void *signal_stack) {
    stack_t stack = {.ss_sp = signal_stack, .ss_flags = 0, .ss_size = 64 << 10};
    struct sigaction action = {}; action.sa_handler = on_alternate;
    if (signal_stack) { action.sa_flags = SA_ONSTACK; sigaltstack(&stack, nullptr); }
    sigaction(SIGUSR1, &action, nullptr);
    int caught = 0; for (int i = 0; i < n; i++) caught += around(i);
    return handled == 2 * caught ? caught : -1;
}
static void *deep_body(void *calls) { *(int *)calls = recursive(*(int *)calls); return nullptr; }
static int deep(int n) {
    pthread_attr_t large; pthread_attr_init(&large); pthread_attr_setstacksize(&large, (1 << 20) + n * 96ul);
    int result = n;
    waits = true;
    pthread_t thread; if (pthread_create(&thread, &large, deep_body, &result)) return -1;
    pthread_join(thread, nullptr);
    return result;
}
int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int n = argc > 2 ? atoi(argv[2]) : 100, result = 0;
    setvbuf(stdout, nullptr, _IONBF, 0); setvbuf(stdin, nullptr, _IONBF, 0);
    puts("ready");
    if (!wait_for_line()) return 1;
    if (!strcmp(what, "plain")) for (int i = 0; i < n; i++) result += plain(i) == i + 1;
    if (!strcmp(what, "parents")) for (int i = 0; i < n; i++) result += plain(getppid()) > 0;
    if (!strcmp(what, "family")) {
        for (int i = 0; i < n; i++) plain(getppid());
        puts("parent"); wait_for_line();
        pid_t child = fork();
        if (child == 0) { for (int i = 0; i < n; i++) plain(getppid()); _exit(7); }
        int status; waitpid(child, &status, 0); result = WEXITSTATUS(status);
    }
    if (!strcmp(what, "exceptions")) result = exceptions(n);
    if (!strcmp(what, "again")) result = mapped_again(n);
    if (!strcmp(what, "pushed")) result = pushed(n);
    if (!strcmp(what, "longjmps")) result = longjmps(n);
    if (!strcmp(what, "recursive")) result = recursive(n);
    if (!strcmp(what, "deep")) result = deep(n);
    if (!strcmp(what, "looping")) result = looping(n);
    if (!strcmp(what, "signals")) result = signals(n);
    if (!strcmp(what, "forks")) result = forks(n);
    if (!strcmp(what, "borrowers")) result = borrowers(n);
    if (!strcmp(what, "spawns")) result = spawns(n);
    if (!strcmp(what, "threads")) result = threads(n);
    if (!strcmp(what, "libraries")) result = libraries(n);
    if (!strcmp(what, "wander")) result = wander(n);
    if (!strcmp(what, "coroutines")) result = coroutines_of(n);
    if (!strcmp(what, "alternate")) result = alternate(n);
    static char signal_stack[64 << 10];
    if (!strcmp(what, "nested")) result = nested(n, nullptr);
    if (!strcmp(what, "nested_on_another_stack")) result = nested(n, signal_stack);
    if (!strcmp(what, "tiny")) for (int i = 0; i < n; i++) { tiny(i); result += packed(i) == i; }
    printf("%d\n", result);
    wait_for_line();
    return 0;
}
