//! Debian's unmodified tools (package libbpf-tools) see the same events under ring3 as on the kernel.

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use ring3_tests::{Bench, Terminal, is_root, lacks, ready, shapes};

/// The same under ring3 and on the kernel; both results must be equal.
fn same_as_native<T: PartialEq + std::fmt::Debug>(run: impl Fn(&Bench) -> T) -> T {
    let ours = run(&Bench::ring3());
    if is_root() {
        assert_eq!(ours, run(&Bench::native()), "left: under ring3, right: on the kernel");
    } else {
        println!("SKIPPED IN PART: the native half needs root");
    }
    ours
}

/// The sum of funclatency's histogram.
fn histogram_sum(lines: &[String]) -> u64 {
    let counts =
        lines.iter().filter_map(|line| line.split(" : ").nth(1)?.split('|').next()?.trim().parse::<u64>().ok());
    counts.sum()
}

#[test]
fn funclatency_of_one_process_counts_every_call() {
    let counted = same_as_native(|bench| {
        let mut victim = ready(Command::new(shapes()).args(["plain", "54321"]));
        let mut load = bench.load("funclatency");
        load.args(["-p", &victim.pid().to_string(), ":plain"]);
        let mut tool = Terminal::start(&load);
        tool.wait_for("Tracing");
        victim.say("go");
        assert_eq!(victim.line(), "54321");
        tool.interrupt_sleep();
        let (code, lines) = tool.finish();
        assert_eq!(code, Some(0), "{lines:?}");
        histogram_sum(&lines)
    });
    assert_eq!(counted, 54321);
}

#[test]
fn funclatency_of_a_library_function_in_a_threaded_program() {
    let counted = same_as_native(|bench| {
        let mut victim = ready(Command::new(ring3_tests::example("alloc")).args(["8", "20000"]));
        let mut load = bench.load("funclatency");
        load.args(["-p", &victim.pid().to_string(), "c:calloc"]);
        let mut tool = Terminal::start(&load);
        tool.wait_for("Tracing");
        victim.say("go");
        assert_eq!(victim.line(), "160000");
        tool.interrupt_sleep();
        histogram_sum(&tool.finish().1)
    });
    // glibc takes the TLS of each of the 8 threads from calloc; nothing else in this program does.
    assert!(counted >= 8, "{counted}");
}

#[test]
fn funclatency_of_every_target_finds_those_that_start_later() {
    let counted = same_as_native(|bench| {
        let mut load = bench.load("funclatency");
        let binary = bench.victim(shapes());
        load.args(["-u", &format!("{}:recursive", binary.display())]);
        let mut tool = Terminal::start(&load);
        tool.wait_for("Tracing");
        for n in ["10", "20"] {
            let mut victim = ready(bench.target(&binary).args(["recursive", n]));
            victim.say("go");
            victim.line();
        }
        tool.interrupt_sleep();
        histogram_sum(&tool.finish().1)
    });
    assert_eq!(counted, 30);
}

#[test]
fn gethostlatency_sees_the_same_lookups() {
    let seen = same_as_native(|bench| {
        let mut tool = Terminal::start(&bench.load("gethostlatency"));
        tool.wait_for("LATms");
        for lookup in
            [["hosts", "localhost"], ["ahosts", "127.0.0.1"], ["hosts", "ip6-localhost"], ["ahostsv4", "localhost"]]
        {
            let output = bench.target("getent").args(lookup).output().expect("getent runs");
            assert!(output.stderr.is_empty(), "{output:?}");
        }
        // `ahosts` asks twice; each is an event: TIME PID COMM LATms HOST.
        let mut seen = vec![];
        while seen.len() < 6 {
            let line = tool.line();
            let words: Vec<&str> = line.split_whitespace().collect();
            seen.push((words[2].to_owned(), words[4].to_owned()));
        }
        tool.press("\x03");
        assert_eq!(tool.finish().1.iter().filter(|line| line.contains("getent")).count(), 0);
        seen
    });
    let hosts: Vec<&str> = seen.iter().map(|(_, host)| host.as_str()).collect();
    for host in ["localhost", "127.0.0.1", "ip6-localhost"] {
        assert!(hosts.contains(&host), "{hosts:?}");
    }
}

#[test]
fn bashreadline_sees_the_same_lines() {
    let typed = ["echo hello", "true", ": grüße", "ls / >/dev/null  # with blanks", "", &"x".repeat(150)];
    let seen = same_as_native(|bench| {
        let mut tool = Terminal::start(&bench.load("bashreadline"));
        tool.wait_for("COMMAND");
        let mut shell = bench.target("bash");
        shell.args(["--norc", "--noprofile", "-i"]).env("PROMPT_COMMAND", "echo ready").env("LC_ALL", "C.UTF-8");
        shell.env("INPUTRC", "/dev/null").env("TERM", "dumb");
        let mut shell = Terminal::start(&shell);
        for line in typed {
            shell.wait_for("ready");
            shell.press(&format!("{line}\r"));
        }
        shell.wait_for("ready");
        shell.press("exit\r");
        shell.finish();
        let mut seen = vec![];
        while seen.last().is_none_or(|line| line != "exit") {
            // TIME and PID take 18 columns.
            seen.push(tool.line().chars().skip(18).collect::<String>());
        }
        tool.press("\x03");
        tool.finish();
        seen
    });
    let cut = |line: &&str| line.chars().take(79).collect::<String>();
    assert_eq!(seen[..typed.len()], typed.iter().map(cut).collect::<Vec<_>>());
}

#[test]
fn bpftool_finds_a_map_by_its_name_in_the_file_system() {
    const SCRIPT: &str = "set -e; at=/sys/fs/bpf/ring3-tools; mkdir $at
        bpftool map create $at/map type hash key 4 value 8 entries 10 name tools
        bpftool map update pinned $at/map key 1 0 0 0 value 2 0 0 0 0 0 0 0
        bpftool map dump pinned $at/map
        bpftool map lookup pinned $at/map key 9 0 0 0 || echo not there
        bpftool map delete pinned $at/map key 1 0 0 0
        bpftool map dump pinned $at/map";
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").expect("a PATH"));
    let run = |mut command: Command| {
        let output = command.env("PATH", &path).output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let shell = |bench: &Bench| {
        let mut command = bench.load("sh");
        command.args(["-c", SCRIPT]);
        run(command)
    };
    let ours = shell(&Bench::ring3());
    assert!(ours.contains("02 00 00 00 00 00 00 00") && ours.contains("Found 0 elements"), "{ours}");
    if !is_root() {
        println!("SKIPPED: as another user, and on the kernel: needs root");
        return;
    }
    assert_eq!(ours, shell(&Bench::ring3_as(65534)));
    // In a file system that goes with the shell.
    let mut native = Command::new("unshare");
    native.args(["--mount", "sh", "-c", &format!("mount -t bpf bpf /sys/fs/bpf && {{ {SCRIPT}\n}}")]);
    assert_eq!(ours, run(native));
}

/// Reads what the programs below print for one victim, from the first one that all of them were attached for.
fn whole_block(tool: &mut Terminal) -> Vec<String> {
    loop {
        let lines: Vec<String> = std::iter::from_fn(|| Some(tool.line()).filter(|line| line != "end")).collect();
        let last_begin = lines.iter().rposition(|line| line == "begin").unwrap_or(0);
        let block: Vec<String> = lines[last_begin..].iter().map(|line| line.trim().to_owned()).collect();
        if ["begin", "middle", "outer", "deep"].iter().all(|word| block.iter().any(|line| line == word)) {
            return block;
        }
    }
}

/// How many sites of a process lead to programs.
fn probed_sites(bench: &Bench, pid: u32) -> usize {
    let status = bench.status();
    let targets = status["targets"].as_array().into_iter().flatten();
    let sites = targets.filter(|target| target["pid"] == pid).filter_map(|target| target["sites"].as_array());
    sites.flatten().filter(|site| site["kind"] == "probe").count()
}

#[test]
fn a_program_for_one_process_leaves_others_alone() {
    if lacks("bpftrace") {
        return;
    }
    let bench = Bench::ring3();
    let mut victims = [(); 2].map(|()| ready(bench.target(shapes()).args(["plain", "1000"])));
    let [wanted, other] = [victims[0].pid(), victims[1].pid()];
    let program = format!("uprobe:{}:plain /pid == {wanted}/ {{ @ = count(); }}", shapes().display());
    let mut tool = Terminal::start(bench.load("bpftrace").args(["-e", &program]));
    ring3_tests::wait_until("the one is probed", || probed_sites(&bench, wanted) == 1);
    assert_eq!(probed_sites(&bench, other), 0);
    for victim in &mut victims {
        victim.say("go");
        assert_eq!(victim.line(), "1000");
    }
    tool.press("\x03");
    let (code, lines) = tool.finish();
    assert_eq!(code, Some(0), "{lines:?}");
    assert!(lines.iter().any(|line| line == "@: 1000"), "{lines:?}");
}

#[test]
fn bpftrace_shows_the_same_stacks() {
    if lacks("bpftrace") {
        return;
    }
    let seen = same_as_native(|bench| {
        let binary = bench.victim(ring3_tests::victim("helped", "cc", "helped.c", &["-Wno-unused-result"]));
        let at =
            |kind: &str, function: &str, what: &str| format!("{kind}:{}:{function} {{ {what} }} ", binary.display());
        let program = [
            at("uprobe", "stacks", r#"printf("begin\n%s\n", ustack);"#),
            at("uretprobe", "chain_middle", r#"printf("middle\n%s\n", ustack);"#),
            at("uretprobe", "chain_outer", r#"printf("outer\n%s\n", ustack);"#),
            at("uprobe", "stacks_deep", r#"printf("deep\n%s\n", ustack(5));"#),
            at("uprobe", "stacks_broken", r#"printf("end\n");"#),
        ];
        let mut tool = Terminal::start(bench.load("bpftrace").args(["-e", &program.concat()]));
        tool.wait_for("Attaching");
        // It does not say when it has attached. Victims stay a while, so that it finds the names of their functions.
        let stop = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                const STAYING: usize = 500;
                let mut victims = VecDeque::new();
                while !stop.load(Ordering::Acquire) {
                    let mut victim = ready(&mut bench.target(&binary));
                    victim.say("go");
                    victim.line();
                    victims.push_back(victim);
                    if victims.len() > STAYING {
                        victims.pop_front();
                    }
                }
            });
            let seen = whole_block(&mut tool);
            stop.store(true, Ordering::Release);
            seen
        });
        tool.press("\x03");
        tool.finish();
        seen
    });
    let stack = ["begin", "", "stacks+0", "chain_middle+13", "chain_outer+13", "chained+8", "", "middle"];
    assert_eq!(seen[..stack.len()], stack, "{seen:?}");
}

#[test]
fn bpftrace_runs_for_an_ordinary_user() {
    if !is_root() {
        println!("SKIPPED IN PART: a second user needs root");
    }
    let bench = if is_root() { Bench::ring3_as(65_534) } else { Bench::ring3() }.seeing(None);
    let program = bench.copy(&shapes());
    let script = format!("uprobe:{}:plain {{ @[comm] = count(); }}", program.display());
    let mut load = bench.load("bpftrace");
    load.args(["-e", &script]);
    let mut tool = Terminal::start(&load);
    tool.wait_for("Attaching");
    let mut victim = ready(bench.command(&program).args(["plain", "1234"]));
    ring3_tests::wait_until("it is a target", || {
        bench.status()["targets"].as_array().is_some_and(|targets| !targets.is_empty())
    });
    victim.say("go");
    assert_eq!(victim.line(), "1234");
    tool.interrupt_waiting();
    let (code, lines) = tool.finish();
    assert_eq!(code, Some(0), "{lines:?}");
    assert!(lines.iter().any(|line| line.trim_end() == "@[shapes]: 1234"), "{lines:?}");
}

/// What an ordinary user's tool and what that executes say who they are.
#[test]
fn only_a_tool_itself_takes_its_user_for_root() {
    let bench = if is_root() { Bench::ring3_as(65_534) } else { Bench::ring3() };
    let said = |arguments: &[&str]| {
        let mut load = bench.load(arguments[0]);
        let output = load.args(&arguments[1..]).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let user = bench.command("id").arg("-u").output().expect("it runs");
    let user = String::from_utf8_lossy(&user.stdout).trim().to_owned();
    assert_ne!(user, "0");
    assert_eq!(said(&["id", "-u"]), "0", "a tool");
    assert_eq!(said(&["sh", "-c", "id -u; true"]), user, "what a shell executes");
    assert_eq!(said(&["bash", "-c", "echo $EUID"]), user, "a shell");
    assert_eq!(said(&["env", "sh", "-c", "id -ru; true"]), user);
}

#[test]
fn programs_inherit_signals_descriptors_and_the_environment_as_without_ring3() {
    let bench = Bench::ring3();
    let script = bench.made_directory().join("no-interpreter");
    std::fs::write(&script, "grep SigIgn /proc/self/status; env | grep -vE '^(_|SHLVL|OLDPWD)=' | sort; for fd in 0 1 2; do test -e /proc/$$/fd/$fd && echo $fd; done\n").expect("writable");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let ring3 = bench.ring3_command(&[]);
    let ring3 = ring3.get_program().display();
    for given in ["trap '' PIPE;", "exec <&-;", "exec <&- 2>&-;", "exec </dev/null;", "export Z=1 A=2;"] {
        let shown = |prefix: &str| {
            let mut shell = bench.command("bash");
            let shell = shell.args(["-c", &format!("{given} exec {prefix} {}", script.display())]);
            let output = shell.stdin(Stdio::null()).output().expect("it runs");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let natively = shown("");
        assert!(natively.contains("SigIgn"), "{natively}");
        for prefix in [format!("{ring3} load --"), format!("{ring3} start --")] {
            assert_eq!(shown(&prefix), natively, "{given} {prefix}");
        }
    }
}
