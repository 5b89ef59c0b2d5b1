//! The alert rules are what Prometheus takes, fire when they should, and watch metrics that exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn alert_rules_fire_when_they_should() {
    let mut promtool = Command::new("promtool");
    let test = promtool.args(["test", "rules", "deploy/alerts.test.yaml"]).current_dir(root()).output();
    let test = test.unwrap_or_else(|error| panic!("promtool: {error}; `make setup` installs it"));
    let (said, complained) = (String::from_utf8_lossy(&test.stdout), String::from_utf8_lossy(&test.stderr));
    assert!(test.status.success(), "{said}\n{complained}");
}

/// Words that begin like a metric of ours.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    words.filter(|word| word.starts_with("postrider_")).collect()
}

#[test]
fn every_rule_watches_a_documented_metric_and_is_tried() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (rules, tests) = (read("deploy/alerts.yaml"), read("deploy/alerts.test.yaml"));
    let documented = read("docs/operations.md");
    let documented = metrics(&documented);
    let watched = metrics(&rules);
    assert!(watched.len() >= 9, "{watched:?}");
    let unknown: Vec<_> = watched.difference(&documented).collect();
    assert!(unknown.is_empty(), "not in docs/operations.md: {unknown:?}");
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for name in names {
        let tried = format!("alertname: {name}\n        exp_alerts:");
        assert!(tests.contains(&tried), "nothing tries whether {name} fires");
    }
}
