//! The rooms of the workspace, and which of them may use which. A new edge here is a decision, not an accident.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Every room, and the rooms it may depend on.
const ROOMS: [(&str, &[&str]); 12] = [
    ("postrider-bench", &["postrider-embedded", "postrider-testkit"]),
    ("postrider-core", &[]),
    ("postrider-store", &["postrider-core"]),
    ("postrider-engine", &["postrider-core", "postrider-store"]),
    ("postrider-broker", &["postrider-core", "postrider-store"]),
    ("postrider-api", &["postrider-core", "postrider-store"]),
    ("postrider-embedded", &[]),
    ("postrider-simulator", &["postrider-core"]),
    (
        "postrider-server",
        &[
            "postrider-api",
            "postrider-broker",
            "postrider-core",
            "postrider-embedded",
            "postrider-engine",
            "postrider-simulator",
            "postrider-store",
        ],
    ),
    (
        "postrider-testkit",
        &[
            "postrider-api",
            "postrider-broker",
            "postrider-core",
            "postrider-embedded",
            "postrider-engine",
            "postrider-simulator",
            "postrider-store",
        ],
    ),
    (
        "postrider-simulation",
        &["postrider-core", "postrider-embedded", "postrider-engine", "postrider-store", "postrider-testkit"],
    ),
    ("postrider-soak", &["postrider-core", "postrider-embedded", "postrider-engine", "postrider-testkit"]),
];

/// What any room's tests may use besides: the fixtures, and the soak, which needs the program that only `server` builds.
const FOR_TESTS: [&str; 3] = ["postrider-simulator", "postrider-soak", "postrider-testkit"];

/// What the pure room must never reach: it has no clock, socket, SQL or runtime.
const NOT_IN_CORE: [&str; 6] = ["tokio", "sqlx", "hyper", "axum", "getrandom", "rand"];

fn workspace() -> Metadata {
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .unwrap()
}

#[test]
fn rooms_use_only_the_rooms_they_may() {
    let allowed: BTreeMap<&str, &[&str]> = ROOMS.into_iter().collect();
    let workspace = workspace();
    let rooms: BTreeSet<&str> = workspace.packages.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(rooms, allowed.keys().copied().collect(), "a room was added or removed");

    let mut new_edges = Vec::new();
    for package in &workspace.packages {
        let room = package.name.as_str();
        for dependency in
            package.dependencies.iter().filter(|dependency| rooms.contains(dependency.name.as_str()))
        {
            let used = dependency.name.as_str();
            let for_tests = dependency.kind == DependencyKind::Development && FOR_TESTS.contains(&used);
            if !allowed[room].contains(&used) && !for_tests {
                new_edges.push(format!("{room} -> {used}"));
            }
        }
    }
    assert!(new_edges.is_empty(), "{new_edges:?}");
}

#[test]
fn the_core_stays_pure() {
    let workspace = workspace();
    let core = workspace.packages.iter().find(|package| package.name.as_str() == "postrider-core").unwrap();
    let used: Vec<&str> = core
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .map(|dependency| dependency.name.as_str())
        .filter(|name| NOT_IN_CORE.contains(name))
        .collect();
    assert!(used.is_empty(), "{used:?}");
}

/// Ways to begin a transaction that knows nobody.
const NAMELESS: [&str; 3] = ["edit::begin(", "pool.begin(", "begin_with("];

/// Files of Rust below a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

#[test]
fn whoever_asks_for_a_change_is_known() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut nameless = Vec::new();
    let files: Vec<PathBuf> =
        ["api/src", "server/src"].iter().flat_map(|room| sources(&crates.join(room))).collect();
    assert!(files.len() > 100, "{}", files.len());
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        if NAMELESS.iter().any(|way| text.contains(way)) {
            nameless.push(path);
        }
    }
    assert!(nameless.is_empty(), "these change something without an entry in the audit log: {nameless:?}");
}
