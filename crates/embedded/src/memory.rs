//! How much of the machine's memory PostgreSQL keeps pages in.
//!
//! Its default of 128 MiB is for the smallest of machines: the index of five million idempotency keys does not fit, and
//! since keys come in no order, each event would read a page of it from the file system and write one back. PostgreSQL's
//! manual suggests a quarter of the memory, on a machine that has a gigabyte or more.

use std::fs;

/// No more than this: the server beside it, and whatever else runs on the machine, need memory too.
const MOST_BYTES: u64 = 1 << 30;
/// PostgreSQL's own.
const DEFAULT_BYTES: u64 = 128 << 20;

/// A parameter for [`crate::Settings`]: a quarter of what there is, 1 GiB at most. `None`, which leaves PostgreSQL its
/// default, where that is not known, or less than the default.
pub fn shared_buffers() -> Option<(String, String)> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_bytes(&text));
    // In a container, where the limit is on its own control group.
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = group.and_then(|text| text.trim().parse().ok());
    of(machine.into_iter().chain(limit).min()?).map(|value| ("shared_buffers".to_owned(), value))
}

fn of(memory_bytes: u64) -> Option<String> {
    let bytes = (memory_bytes / 4).min(MOST_BYTES);
    (bytes > DEFAULT_BYTES).then(|| format!("{}MB", bytes >> 20))
}

fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_memory_within_bounds() {
        for (memory_mib, expected) in [
            (256, None),
            (512, None),
            (1_024, Some("256MB")),
            (4_096, Some("1024MB")),
            (262_144, Some("1024MB")),
        ] {
            assert_eq!(of(memory_mib << 20).as_deref(), expected, "{memory_mib} MiB");
        }
    }

    #[test]
    fn the_total_is_read_as_the_kernel_writes_it() {
        for (text, expected) in [
            ("MemTotal:       24683652 kB\nMemFree:        20000000 kB\n", Some(24_683_652 * 1024)),
            ("MemFree: 1 kB\nMemTotal: 2 kB\n", Some(2 * 1024)),
            ("MemTotal: 2\n", None),
            ("", None),
        ] {
            assert_eq!(total_bytes(text), expected, "{text:?}");
        }
    }
}
