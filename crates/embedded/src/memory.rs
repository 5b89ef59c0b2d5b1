//! How much of the machine's memory PostgreSQL keeps pages in.
//!
//! Its default of 128 MiB is for the smallest of machines: the index of five million idempotency keys does not fit, and
//! since keys come in no order, each event would read a page of it from the file system and write one back.
//! PostgreSQL's manual suggests a quarter of the memory, on a machine that has a gigabyte or more.

use std::{fs, path::Path};

/// Where control groups of version 2 are found.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// No more than this: the server beside it, and whatever else runs on the machine, need memory too.
const MOST_BYTES: u64 = 1 << 30;
/// PostgreSQL's own.
const DEFAULT_BYTES: u64 = 128 << 20;

/// A parameter for [`crate::Settings`]: a quarter of what there is, 1 GiB at most. `None`, which leaves PostgreSQL its
/// default, where that is not known, or less than the default.
pub fn shared_buffers() -> Option<(String, String)> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_bytes(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok();
    let limit = group.and_then(|text| limit_bytes(&text, Path::new(CONTROL_GROUPS)));
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

/// The least limit from this process's control group up to the root: each of them counts. Version 1 is left out.
fn limit_bytes(own_groups: &str, root: &Path) -> Option<u64> {
    let group = root.join(own_groups.lines().find_map(|line| line.strip_prefix("0::/"))?);
    let path = group.ancestors().take_while(|group| group.starts_with(root));
    path.filter_map(|group| fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_from_the_own_control_group_up_counts() {
        let root = tempfile::tempdir().expect("a directory");
        for (group, limit) in
            [("", "4000\n"), ("a", "max\n"), ("a/tight", "2000\n"), ("b", "1000\n"), ("b/wide", "3000\n")]
        {
            let group = root.path().join(group);
            fs::create_dir_all(&group).expect("a group");
            fs::write(group.join("memory.max"), limit).expect("its limit");
        }
        for (own_groups, expected) in [
            ("0::/\n", Some(4_000)),
            ("0::/a\n", Some(4_000)),
            ("0::/a/tight\n", Some(2_000)),
            ("0::/b/wide\n", Some(1_000)),
            ("0::/b/gone\n", Some(1_000)),
            ("1:cpu:/b\n0::/a/tight\n", Some(2_000)),
            ("4:memory:/b\n", None),
            ("", None),
        ] {
            assert_eq!(limit_bytes(own_groups, root.path()), expected, "{own_groups:?}");
        }
    }

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
