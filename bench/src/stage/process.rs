//! CPU time and memory of processes, from `/proc`.

use std::{fs, io};

use anyhow::Context as _;

use crate::rate;

/// Resident memory in MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// `VmRSS`: now.
    pub(crate) resident_mib: f64,
    /// `VmHWM`: the most since the process started.
    pub(crate) peak_mib: f64,
}

/// The time of all cores together, in ticks of the kernel since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    busy: u64,
    idle: u64,
}

/// The times of `/proc/PID/stat`, in ticks of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    parent: u32,
    /// User and system time of the process with all its threads.
    own: u64,
    /// The same of its children that have ended, and of theirs.
    ended_children: u64,
}

/// CPU seconds that a process has used, user and system, all threads.
pub(crate) fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let times = read_times(pid).with_context(|| format!("process {pid} has ended"))?;
    Ok(seconds(times.own))
}

/// CPU seconds that a process and its children have used, those included that have ended: PostgreSQL with all its
/// backends and its writers, vacuum too.
pub(crate) fn family_cpu_s(pid: u32) -> anyhow::Result<f64> {
    let parent = read_times(pid).with_context(|| format!("process {pid} has ended"))?;
    let mut ticks = parent.own + parent.ended_children;
    for entry in fs::read_dir("/proc")? {
        let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end while it is looked for.
        match read_times(child) {
            Ok(times) if times.parent == pid => ticks += times.own + times.ended_children,
            Ok(_) | Err(_) => {}
        }
    }
    Ok(seconds(ticks))
}

pub(crate) fn memory(pid: u32) -> anyhow::Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib =
            line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|text| text.trim().parse().ok());
        kib.map(|kib: u64| rate::real(kib) / 1024.0)
            .with_context(|| format!("/proc/{pid}/status has no {name}"))
    };
    Ok(Memory { resident_mib: mib("VmRSS:")?, peak_mib: mib("VmHWM:")? })
}

impl Machine {
    pub(crate) fn now() -> anyhow::Result<Self> {
        machine(&fs::read_to_string("/proc/stat")?).context("an unknown form of /proc/stat")
    }

    /// How busy all cores were since `before`, in per cent: 100 is every core all the time.
    pub(crate) fn busy_percent_since(self, before: Self) -> f64 {
        let (busy, idle) = (self.busy - before.busy, self.idle.saturating_sub(before.idle));
        100.0 * rate::real(busy) / rate::real((busy + idle).max(1))
    }
}

/// user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in these already.
fn machine(stat: &str) -> Option<Machine> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = line.split_ascii_whitespace().map_while(|time| time.parse().ok()).collect();
    let [user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen, ..] = times[..] else {
        return None;
    };
    let busy = user + nice + system + interrupts + soft_interrupts + stolen;
    Some(Machine { busy, idle: idle + waiting })
}

fn read_times(pid: u32) -> io::Result<Times> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    times(&stat)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an unknown form of /proc/PID/stat"))
}

/// The command's name stands in parentheses and may hold anything, so fields are counted from its end.
fn times(stat: &str) -> Option<Times> {
    let (_, after) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(Times {
        parent: u32::try_from(number(1)?).ok()?,
        own: number(11)? + number(12)?,
        ended_children: number(13)? + number(14)?,
    })
}

fn seconds(ticks: u64) -> f64 {
    rate::real(ticks) / rate::real(rustix::param::clock_ticks_per_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_whatever_the_command_is_called() {
        let stat = "17 (post) gres: (x) S 4 17 17 0 -1 4194560 9 8 7 6 100 20 3000 400 20 0 1 0 55";
        assert_eq!(times(stat), Some(Times { parent: 4, own: 120, ended_children: 3_400 }));
        assert_eq!(times("17 (short) S 4"), None);
    }

    #[test]
    fn the_machine_is_busy_unless_it_is_idle_or_waits_for_a_disk() {
        let before = machine("cpu  10 0 10 100 50 0 0 0 0 0\ncpu0 1").unwrap();
        let after = machine("cpu  20 1 20 110 60 3 4 2 9 9\ncpu0 1").unwrap();
        assert!((after.busy_percent_since(before) - 60.0).abs() < 1e-9);
        assert_eq!(machine("intr 1 2"), None);
    }

    #[test]
    fn this_process_has_used_something() {
        let pid = std::process::id();
        let memory = memory(pid).unwrap();
        assert!(memory.resident_mib > 0.1 && memory.peak_mib >= memory.resident_mib, "{memory:?}");
        assert!(family_cpu_s(pid).unwrap() >= cpu_s(pid).unwrap());
    }
}
