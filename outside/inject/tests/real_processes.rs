//! Stopping, calling into and leaving real processes, which must not notice.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ring3_inject::{
    Announced, Error, Following, INT3, MapSource, Memory, OwnFiles, Pid, Region, RegionFiles, SiteChange,
    SiteRestoration, Stopped, inspect, map_files, map_region, map_stub_area, mappings, unmap_region, while_stopped,
    while_stopped_at_exec,
};
use ring3_layout::region::{CONTROL_BYTES, REALM_BYTES, TEXT_BYTES, UNWIND_BYTES};
use rustix::process::Signal;

const WITHIN: Duration = Duration::from_secs(5);

/// Threads that wait in interruptible calls while a timer interrupts them; each checks that its calls return
/// only what they may, and says so at the end (a line on standard input ends it).
const VICTIM: &str = r#"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int stop; static volatile long ticks; static volatile int bad; static pthread_barrier_t begun;
static void tick(int s) { ticks++; }
static void *sleeper(void *a) {
    sigset_t m; sigfillset(&m); pthread_sigmask(SIG_BLOCK, &m, 0); pthread_barrier_wait(&begun);
    while (!stop) { struct timespec t = {0, 3000000}; if (nanosleep(&t, 0) != 0) { bad = 1; } }
    return 0;
}
static void *poller(void *a) {
    sigset_t m; sigfillset(&m); pthread_sigmask(SIG_BLOCK, &m, 0);
    int e = epoll_create1(0); struct epoll_event v; pthread_barrier_wait(&begun);
    while (!stop) {
        if (epoll_wait(e, &v, 1, 3) != 0) { bad = 2; }
        if (poll(0, 0, 3) != 0) { bad = 3; }
    }
    return 0;
}
static void *spinner(void *a) {
    sigset_t m; sigfillset(&m); pthread_sigmask(SIG_BLOCK, &m, 0); pthread_barrier_wait(&begun);
    unsigned long x = 1, n = 0;
    while (!stop) { unsigned long y = x; for (int i = 0; i < 1000; i++) y = y * 6364136223846793005ul + 1; x = y; n++; }
    unsigned long z = 1; for (unsigned long k = 0; k < n; k++) for (int i = 0; i < 1000; i++) z = z * 6364136223846793005ul + 1;
    if (z != x) bad = 4;
    return 0;
}
int main(void) {
    signal(SIGTRAP, SIG_IGN); signal(SIGALRM, tick);
    struct itimerval t = {{0, 1000}, {0, 1000}}; 
    pthread_t h[6]; pthread_barrier_init(&begun, 0, 7);
    for (int i = 0; i < 6; i++) pthread_create(&h[i], 0, i % 3 == 0 ? sleeper : i % 3 == 1 ? poller : spinner, 0);
    pthread_barrier_wait(&begun); setitimer(ITIMER_REAL, &t, 0);
    puts("ready"); fflush(stdout);
    char c; ssize_t r; do { r = read(0, &c, 1); } while (r < 0 && errno == EINTR);
    stop = 1; for (int i = 0; i < 6; i++) pthread_join(h[i], 0);
    struct sigaction a; sigaction(SIGTRAP, 0, &a); if (a.sa_handler != SIG_IGN) bad = 5;
    printf("bad %d ticks %d\n", bad, ticks > 0); return bad;
}
"#;

fn build_victim() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    BUILT.get_or_init(|| compile(VICTIM, "victim")).clone()
}

fn compile(text: &str, name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = dir.join(format!("{name}-{}.c", std::process::id()));
    let binary = source.with_extension("bin");
    std::fs::write(&source, text).expect("target directory is writable");
    let status = Command::new("gcc").args(["-O1", "-pthread", "-o"]).arg(&binary).arg(&source).status();
    assert!(status.expect("gcc runs").success());
    binary
}

struct Victim {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Victim {
    fn start(binary: &PathBuf) -> Victim {
        let mut child =
            Command::new(binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("victim starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut victim = Victim { child, out };
        assert_eq!(victim.line(), "ready");
        victim
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    fn finish(mut self) -> String {
        drop(self.child.stdin.take());
        let line = self.line();
        assert!(self.child.wait().expect("waited").success(), "{line}");
        line
    }
}

fn counts(pid: Pid) -> (usize, usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{}/{what}", pid.0)).expect("alive").count();
    (count("fd"), count("task"), mappings(pid).expect("alive").len())
}

fn memfd(bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("ring3-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("sized");
    fd
}

#[test]
fn calls_made_inside_a_busy_process_are_invisible_to_it() {
    let victim = Victim::start(&build_victim());
    let before = counts(victim.pid());
    for _ in 0..300 {
        let made = while_stopped(victim.pid(), WITHIN, |stopped| {
            assert_eq!(stopped.threads().len(), 7);
            stopped.syscall("getpid", libc::SYS_getpid, [0; 6])
        });
        assert_eq!(made.expect("stops").expect("getpid"), u64::from(victim.pid().0));
    }
    assert_eq!(counts(victim.pid()), before);
    assert_eq!(victim.finish(), "bad 0 ticks 1");
}

#[test]
fn regions_come_and_go_without_a_trace() {
    let victim = Victim::start(&build_victim());
    let before = counts(victim.pid());
    let files = [
        memfd(0x1000),
        memfd(CONTROL_BYTES),
        memfd(REALM_BYTES),
        memfd(TEXT_BYTES),
        memfd(0x3000),
        memfd(UNWIND_BYTES),
        memfd(0x1000),
    ];
    for _ in 0..100 {
        let work = |stopped: &mut Stopped| {
            let region = RegionFiles {
                agent: files[0].as_fd(),
                agent_bytes: 0x1000,
                own: OwnFiles { control: files[1].as_fd(), witness: files[6].as_fd() },
                realm: files[2].as_fd(),
                text: files[3].as_fd(),
                unwind: files[5].as_fd(),
            };
            let map = MapSource { file: files[4].as_fd(), bytes: 0x3000, writable: true, key: None };
            let mut announced = vec![];
            let announce = |region: &Region| announced = vec![region.base, region.maps[0]];
            let mapped = map_region(stopped, &region, &[map], 0, announce).expect("maps");
            assert_eq!(announced, [mapped.base, mapped.maps[0]]);
            let mut announced = vec![];
            let more = map_files(stopped, &[map, map], |addresses| announced = addresses.to_vec()).expect("maps");
            assert_eq!(announced, more);
            let now = mappings(victim.pid()).expect("alive");
            let is_there = |address: &u64| now.iter().any(|m| m.range.contains(address) && m.path.contains("memfd"));
            assert!(more.iter().chain(&mapped.maps).all(is_there), "{more:x?}, {mapped:x?}");
            more.iter().for_each(|map| stopped.unmap(*map, 0x3000).expect("unmapped"));
            let now = mappings(victim.pid()).expect("alive");
            let near = now.iter().find(|m| m.is_executable()).expect("code").range.clone();
            let taken: Vec<_> = now.into_iter().map(|mapping| mapping.range).collect();
            let area = map_stub_area(stopped, &taken, near, 0x1_0000).expect("room");
            stopped.write(area, b"code").expect("written");
            let mut back = [0u8; 4];
            stopped.read(area, &mut back).expect("read");
            assert_eq!(&back, b"code");
            stopped.unmap(area, 0x1_0000).expect("unmapped");
            stopped.unmap(mapped.maps[0], 0x3000).expect("unmapped");
            unmap_region(stopped, mapped.base).expect("unmapped");
        };
        while_stopped(victim.pid(), WITHIN, work).expect("stops");
    }
    assert_eq!(counts(victim.pid()), before);
    assert_eq!(victim.finish(), "bad 0 ticks 1");
}

#[test]
fn sites_that_are_written_together_are_judged_by_themselves() {
    const BYTES: u64 = 0x1_0000;
    const ORIGINAL: [u8; 5] = [0x90; 5];
    const JUMP: [u8; 5] = [0xe9, 1, 2, 3, 4];
    let victim = Victim::start(&build_victim());
    let change = |stopped: &mut Stopped| {
        let now = mappings(victim.pid()).expect("alive");
        let near = now.iter().find(|m| m.is_executable()).expect("code").range.clone();
        let taken: Vec<_> = now.into_iter().map(|mapping| mapping.range).collect();
        let area = map_stub_area(stopped, &taken, near, BYTES).expect("room");
        stopped.write(area, &[0x90; BYTES as usize]).expect("written");
        // Some in one page, one in two, one that is partly behind the mapping.
        let sites = [8, 40, 100, 0xffd, 0x1100, BYTES - 3].map(|offset| area + offset);
        stopped.write(sites[1], b"other").expect("written");
        stopped.write(area + 70, &[INT3]).expect("written");
        let changes = sites.map(|site| SiteChange { site, expected: &ORIGINAL, new: &JUMP, moved: &[] });
        let written = stopped.write_sites(&changes);
        let is_well: Vec<bool> = written.iter().map(Result::is_ok).collect();
        assert_eq!(is_well, [true, false, true, true, true, false], "{written:?}");
        assert!(matches!(&written[1], Err(Error::BytesDiffer { found, .. }) if found == b"other"), "{written:?}");
        let mut expected = vec![0x90; BYTES as usize];
        let mut put = |at: u64, bytes: &[u8]| expected[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        [8, 100, 0xffd, 0x1100].into_iter().for_each(|at| put(at, &JUMP));
        put(40, b"other");
        put(70, &[INT3]);
        let mut there = vec![0; BYTES as usize];
        Memory::open(victim.pid()).expect("alive").read(area, &mut there).expect("mapped");
        assert!(there == expected);

        // A breakpoint over one of them stays, and what is nobody's.
        stopped.write(sites[2], &[INT3]).expect("written");
        let restorations = sites.map(|site| SiteRestoration { site, written: &JUMP, original: &ORIGINAL });
        let is_well: Vec<bool> = stopped.restore_sites(&restorations).iter().map(Result::is_ok).collect();
        assert_eq!(is_well, [true, false, true, true, true, false]);
        let mut expected = vec![0x90; BYTES as usize];
        expected[40..45].copy_from_slice(b"other");
        (expected[70], expected[100]) = (INT3, INT3);
        stopped.read(area, &mut there).expect("mapped");
        assert!(there == expected);
        let nowhere = SiteRestoration { site: u64::MAX - 1, written: &JUMP, original: &ORIGINAL };
        assert!(stopped.restore_sites(&[nowhere])[0].is_err());
        stopped.unmap(area, BYTES).expect("unmapped");
    };
    while_stopped(victim.pid(), WITHIN, change).expect("stopped");
    assert_eq!(victim.finish(), "bad 0 ticks 1");
}

#[test]
fn a_process_is_caught_at_the_first_instruction_of_what_it_executes() {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "echo ready; read go; exec /bin/echo done"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh starts");
    let mut stdin = child.stdin.take();
    let mut ready = [0u8; 6];
    child.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("the shell runs");
    let go = || drop(stdin.take());
    let pid = child.id();
    let following = Following {
        call_within: WITHIN,
        exec_within: WITHIN,
        cancelled: &|| false,
        may_follow: &|_, _| true,
        in_call: false,
    };
    let look = |stopped: &mut Stopped| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("alive");
        assert!(exe.ends_with("echo"), "{exe:?}");
        assert_eq!(stopped.syscall("getpid", libc::SYS_getpid, [0; 6]).expect("getpid"), u64::from(pid));
    };
    // (The end of the thread lets the process go.)
    let follow = || while_stopped_at_exec(Pid(pid), pid, &following, go, look);
    let caught = std::thread::scope(|scope| scope.spawn(follow).join().expect("no panic"));
    assert_eq!(caught.expect("no error"), Announced::Executed(()));
    let output = child.wait_with_output().expect("waited");
    assert_eq!(output.stdout, b"done\n");
}

#[test]
fn a_thread_that_executes_nothing_is_no_longer_followed_when_the_caller_gives_up_or_it_calls_something_else() {
    for (script, signals, expected) in [
        ("echo ready; read forever", 0, Announced::Cancelled),
        ("trap : USR1; echo ready; while read forever; do :; done", 200, Announced::Cancelled),
        ("echo ready; while :; do : < /dev/null; done", 0, Announced::NotCalled),
    ] {
        let mut command = Command::new("/bin/sh");
        let mut child =
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh starts");
        let pid = child.id();
        // (Before its trap is set, the signal would end it.)
        let mut ready = [0u8; 6];
        child.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("the shell runs");
        let asked = AtomicU32::new(0);
        let cancelled = || {
            let is_over = asked.fetch_add(1, Relaxed) >= 2 * signals && expected == Announced::Cancelled;
            if signals != 0 {
                let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::USR1);
            }
            is_over && asked.load(Relaxed) > 3
        };
        let following = Following {
            call_within: WITHIN,
            exec_within: WITHIN,
            cancelled: &cancelled,
            may_follow: &|_, _| true,
            in_call: false,
        };
        let ended = while_stopped_at_exec(Pid(pid), pid, &following, || {}, |_| {});
        assert_eq!(ended.expect("no error"), expected, "{script}");
        child.kill().expect("killed");
        child.wait().expect("waited");
    }
}

#[test]
fn a_stopped_process_stays_stopped_afterwards() {
    let mut child = sleeper();
    let pid = Pid(child.id());
    let state = || std::fs::read_to_string(format!("/proc/{}/status", pid.0)).expect("alive");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::STOP)
        .expect("sent");
    wait_until(|| state().contains("T (stopped)"));
    let made = while_stopped(pid, WITHIN, |stopped| stopped.syscall("getpid", libc::SYS_getpid, [0; 6]));
    made.expect("stops").expect("getpid");
    wait_until(|| state().contains("T (stopped)"));
    child.kill().expect("killed");
    child.wait().expect("waited");
}

/// A program that becomes itself again and again, and is stopped all the while: what is done to it is done to the program that it
/// was when it was looked at, or not at all.
#[test]
fn a_program_that_executes_another_while_it_is_being_stopped_goes_on() {
    let again = "test $1 = 0 && exit 77; exec sh -c \"$0\" \"$0\" $(($1 - 1))";
    // (Its end is to be told by somebody else: who waits for what it traces takes that from itself as a parent.)
    let parent = "sh -c \"$0\" \"$0\" 2000 & echo $!; wait $!; echo $?";
    let mut parent =
        Command::new("/bin/sh").args(["-c", parent, again]).stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(parent.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    let (pid, mut stops, mut missed) = (lines.next().expect("a pid").parse().expect("a number"), 0, 0);
    while parent.try_wait().expect("waited").is_none() {
        match while_stopped(Pid(pid), WITHIN, |stopped| stopped.syscall("getpid", libc::SYS_getpid, [0; 6])) {
            Ok(made) => {
                assert_eq!(made.expect("getpid"), u64::from(pid));
                stops += 1;
            }
            Err(_) => missed += 1,
        }
    }
    println!("{stops} stops, {missed} missed");
    assert_eq!(lines.next().as_deref(), Some("77"), "after {stops} stops");
    assert!(stops > 0);
}

/// Its first thread waits for a `vfork` child until a line comes; others wait in calls that a stop interrupts.
const HELD: &str = r#"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static volatile int stop; static volatile int bad; static pthread_barrier_t begun;
static void *waiter(void *a) {
    sigset_t m; sigfillset(&m); pthread_sigmask(SIG_BLOCK, &m, 0);
    int e = epoll_create1(0); struct epoll_event v; struct timespec t = {0, 5000000}; pthread_barrier_wait(&begun);
    while (!stop) {
        if (epoll_wait(e, &v, 1, 5) != 0) bad = 1;
        if (sigtimedwait(&m, 0, &t) != -1 || errno != EAGAIN) bad = 2;
    }
    return 0;
}
int main(void) {
    pthread_t h[6]; pthread_barrier_init(&begun, 0, 7);
    for (int i = 0; i < 6; i++) pthread_create(&h[i], 0, waiter, 0);
    pthread_barrier_wait(&begun);
    pid_t child = vfork();
    if (!child) {
        char c; write(1, "ready\n", 6); while (read(0, &c, 1) > 0) {}
        _exit(0);
    }
    waitpid(child, 0, 0);
    stop = 1; for (int i = 0; i < 6; i++) pthread_join(h[i], 0);
    printf("bad %d\n", bad); return bad;
}
"#;

#[test]
fn a_stop_that_fails_interrupts_no_calls() {
    let victim = Victim::start(&compile(HELD, "held"));
    for _ in 0..50 {
        let stopped = while_stopped(victim.pid(), Duration::from_millis(20), |_| {});
        assert!(matches!(stopped, Err(Error::ThreadDoesNotStop { .. })), "{stopped:?}");
    }
    assert_eq!(victim.finish(), "bad 0");
}

#[test]
fn what_cannot_be_traced_is_refused_with_the_reason() {
    assert!(matches!(inspect(Pid(3_999_999)), Err(Error::NoSuchProcess { .. })));
    let mut child = sleeper();
    let pid = Pid(child.id());
    let twice = while_stopped(pid, WITHIN, |_| while_stopped(pid, WITHIN, |_| {}));
    assert!(matches!(twice, Ok(Err(Error::AlreadyTraced { .. }))), "{twice:?}");
    child.kill().expect("killed");
    child.wait().expect("waited");
    assert!(matches!(while_stopped(pid, WITHIN, |_| {}), Err(Error::NoSuchProcess { .. } | Error::Exited { .. })));
}

/// A process that has executed `sleep` and sleeps.
fn sleeper() -> Child {
    let child = Command::new("/bin/sleep").arg("100").spawn().expect("sleep starts");
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("alive");
    wait_until(|| stat().contains("(sleep) S"));
    child
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + WITHIN;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not come true");
        std::thread::yield_now();
    }
}

#[test]
fn a_stop_that_comes_during_remote_calls_holds_until_the_process_is_continued() {
    for is_continued in [false, true] {
        let mut child = sleeper();
        let send =
            |signal| rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).expect("sent");
        let pid = Pid(child.id());
        let state = || std::fs::read_to_string(format!("/proc/{}/status", pid.0)).expect("alive");
        let made = while_stopped(pid, WITHIN, |stopped| {
            let mut call = || stopped.syscall("getpid", libc::SYS_getpid, [0; 6]);
            call()?;
            send(Signal::STOP);
            for _ in 0..3 {
                assert_eq!(call()?, u64::from(pid.0));
            }
            if is_continued {
                send(Signal::CONT);
            }
            call()
        });
        made.expect("stops").expect("getpid");
        wait_until(|| state().contains(if is_continued { "S (sleeping)" } else { "T (stopped)" }));
        send(Signal::CONT);
        wait_until(|| state().contains("S (sleeping)"));
        child.kill().expect("killed");
        child.wait().expect("waited");
    }
}

/// A thread whose stack lies below its stack for signals, in one mapping. It waits within its handler first, and then outside.
const STACKS_TOGETHER: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
static char *area;
static void handler(int s) { char c; puts("within"); fflush(stdout); (void)!read(0, &c, 1); }
static void *work(void *a) {
    stack_t alternate = {.ss_sp = area + 0x80000, .ss_size = 0x80000}; char c;
    sigaltstack(&alternate, 0);
    pthread_kill(pthread_self(), SIGUSR1);
    puts("outside"); fflush(stdout); (void)!read(0, &c, 1);
    return 0;
}
int main(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK}; pthread_attr_t attributes; pthread_t thread;
    area = mmap(0, 0x100000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGUSR1, &action, 0);
    pthread_attr_init(&attributes); pthread_attr_setstack(&attributes, area, 0x80000);
    puts("ready"); fflush(stdout);
    pthread_create(&thread, &attributes, work, 0); pthread_join(thread, 0);
    return 0;
}
"#;

#[test]
fn a_frame_is_found_while_its_handler_runs_and_not_afterwards() {
    let binary = compile(STACKS_TOGETHER, "stacks");
    let mut victim = Victim::start(&binary);
    for (line, count) in [("within", 1), ("outside", 0)] {
        assert_eq!(victim.line(), line);
        let found = while_stopped(victim.pid(), WITHIN, |stopped| stopped.saved_contexts());
        assert_eq!(found.expect("stops").expect("found").len(), count, "{line}");
        victim.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it reads");
    }
    assert!(victim.child.wait().expect("waited").success());
}
