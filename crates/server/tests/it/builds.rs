//! How the Makefile builds: which commit a binary names, and what must be built anew for it.

use std::{path::Path, process::Command};

/// The commands that a target would run, a line each.
fn commands(target: &str) -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut make = Command::new("make");
    // The tests may themselves run under make, whose options are not meant for this one.
    for name in ["MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS"] {
        make.env_remove(name);
    }
    make.env("POSTRIDER_COMMIT", "c0ffee").args(["--dry-run", "--directory"]).arg(repository).arg(target);
    let output = make.output().unwrap();
    assert!(output.status.success(), "{target}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_release_names_its_commit_and_no_other_build_does() {
    for (target, releases) in
        [("run", 1), ("bench", 1), ("soak", 1), ("test", 0), ("simulate", 0), ("check", 0)]
    {
        let commands = commands(target);
        let builds = commands.lines().filter(|line| line.contains("cargo"));
        let (release, other): (Vec<&str>, Vec<&str>) = builds.partition(|line| line.contains("--release"));
        assert_eq!(release.len(), releases, "{target}: {commands}");
        let names_commit = |line: &&str| line.starts_with("POSTRIDER_COMMIT=c0ffee cargo build ");
        assert!(release.iter().all(names_commit), "{target}: {commands}");
        assert!(!other.iter().any(|line| line.contains("POSTRIDER_COMMIT")), "{target}: {commands}");
    }
}
