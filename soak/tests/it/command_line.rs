//! How the program ends when there is no verdict. Stand-ins take the place of `postrider`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Looks at what another process does, until the test runner gives up on it.
const PAUSE: Duration = Duration::from_millis(20);

/// A directory that the database's account can pass through.
fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(place.path().join("soaks")).unwrap();
    place
}

fn stand_in(place: &Path, script: &str) -> PathBuf {
    let path = place.join("stand-in");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn soak(place: &Path, postrider: &Path, more: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_soak"))
        .args(["--events", "10", "--kills", "1", "--seed", "7", "--postrider"])
        .arg(postrider)
        .args(more)
        .env("TMPDIR", place.join("soaks"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn soaks(place: &Path) -> Vec<PathBuf> {
    fs::read_dir(place.join("soaks")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_program_that_does_not_start_is_no_sound_soak_and_leaves_evidence() {
    let place = place();
    let program = stand_in(place.path(), "echo broken >&2; exit 1");
    let ended = soak(place.path(), &program, &[]).wait_with_output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.code(), Some(2), "{said}");
    let kept = soaks(place.path());
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(said.contains("seed 7") && said.contains(kept[0].to_str().unwrap()), "{said}");
    assert_eq!(fs::read_to_string(kept[0].join("logs/a-001.log")).unwrap(), "broken\n");
}

#[test]
fn an_interrupted_soak_ends_what_it_started_and_leaves_nothing() {
    check_that_nothing_is_left(&[]);
}

#[test]
fn an_interrupted_soak_of_a_fleet_ends_its_broker_and_its_redis_too() {
    check_that_nothing_is_left(&["--fleet"]);
}

#[track_caller]
fn check_that_nothing_is_left(arguments: &[&str]) {
    let place = place();
    let noted = place.path().join("process-id");
    let script = format!(
        "echo $$ > {0}.new; mv {0}.new {0}; echo '{{\"address\":\"127.0.0.1:9\"}}'; exec sleep 600",
        noted.display()
    );
    let program = stand_in(place.path(), &format!("PATH=/usr/bin:/bin; {script}"));
    let running = soak(place.path(), &program, arguments);
    while !noted.exists() {
        thread::sleep(PAUSE);
    }
    let id = Pid::from_raw(running.id().try_into().unwrap()).unwrap();
    kill_process(id, Signal::INT).unwrap();
    let ended = running.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_eq!(soaks(place.path()), Vec::<PathBuf>::new());
    let started = fs::read_to_string(&noted).unwrap();
    while is_running(started.trim()) {
        thread::sleep(PAUSE);
    }
}

/// One that has ended may stay in the list of processes until its new parent looks.
fn is_running(process_id: &str) -> bool {
    fs::read_to_string(format!("/proc/{process_id}/stat"))
        .is_ok_and(|status| status.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
}
