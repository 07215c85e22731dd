//! The CPU time of all processes that a command has begun, dead or alive: a control group has it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Killed processes are gone within this time.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// A control group (cgroup v2) of our own. Its processes are killed when it is dropped.
pub(crate) struct Group {
    directory: PathBuf,
}

impl Group {
    pub(crate) fn new() -> Result<Group, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mounts =
            fs::read_to_string("/proc/self/mounts").map_err(|error| format!("/proc/self/mounts: {error}"))?;
        let mount = mount(&mounts).ok_or("no control groups of version 2 are mounted: CPU time cannot be told")?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = PathBuf::from(mount).join(format!("ring3-bench-{}-{number}", std::process::id()));
        fs::create_dir(&directory)
            .map_err(|error| format!("{}: {error} (making a control group needs root)", directory.display()))?;
        Ok(Group { directory })
    }

    /// A command that runs another one in this group, before others that want the CPUs, and on one CPU only if one is named.
    pub(crate) fn enter(&self, command: &Command, cpu: Option<usize>) -> Command {
        let mut entered = Command::new("sh");
        entered.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(self.directory.join("cgroup.procs"));
        entered.args(["nice", "-n", "-10"]);
        if let Some(cpu) = cpu {
            entered.args(["taskset", "-c", &cpu.to_string()]);
        }
        entered.arg(command.get_program()).args(command.get_args());
        command.get_current_dir().map(|directory| entered.current_dir(directory));
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => entered.env(name, value),
                None => entered.env_remove(name),
            };
        }
        entered
    }

    pub(crate) fn processes(&self) -> Result<Vec<u32>, String> {
        let path = self.directory.join("cgroup.procs");
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// CPU time of all its processes so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> Result<f64, String> {
        let path = self.directory.join("cpu.stat");
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        usage_us(&text).ok_or_else(|| format!("{}: {text:?}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.directory.join("cgroup.kill"), "1");
        let deadline = Instant::now() + GONE_WITHIN;
        while fs::remove_dir(&self.directory).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Where version 2 is mounted.
fn mount(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_, directory, kind) = (words.next()?, words.next()?, words.next()?);
        (kind == "cgroup2").then_some(directory)
    })
}

fn usage_us(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{mount, usage_us};

    #[test]
    fn the_mount_of_version_2_is_found_among_others() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount(mounts), Some("/sys/fs/cgroup/unified"));
        assert_eq!(mount("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn cpu_time_is_the_sum_of_user_and_system() {
        assert_eq!(usage_us("usage_usec 39112\nuser_usec 34766\nsystem_usec 4345\n"), Some(39112.0));
        assert_eq!(usage_us("user_usec 34766\n"), None);
    }
}
