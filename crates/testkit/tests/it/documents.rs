//! The documents stay true: what they name exists, and what exists is named.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use postrider_store::audit::Action;

/// Families of requirements, and how many each has: `ING-1` to `ING-10`, and so on.
const REQUIREMENTS: [(&str, usize); 9] = [
    ("ING", 10),
    ("CON", 3),
    ("PRV", 3),
    ("DEL", 14),
    ("SEC", 10),
    ("OPS", 14),
    ("POR", 3),
    ("RCV", 1),
    ("DOC", 2),
];

/// Directories of the repository that a quoted path can begin with.
const TOP: [&str; 7] = [".ci", ".config", ".sqlx", "cases", "crates", "docs", "scripts"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    })
}

/// The cells of a table's rows.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    prose(text).filter_map(|line| {
        Some(line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect())
    })
}

/// What stands between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Files below a directory with one of these endings.
fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

fn markdown() -> Vec<PathBuf> {
    let top = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let top = top.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    top.chain(files(&root().join("docs"), "md")).collect()
}

#[track_caller]
fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn requirements_name_tests_that_exist() {
    let text = read(&root().join("docs/requirements.md"));
    let expected: BTreeSet<String> = REQUIREMENTS
        .into_iter()
        .flat_map(|(family, count)| (1..=count).map(move |number| format!("{family}-{number}")))
        .collect();
    let mut problems = Vec::new();
    let mut found = BTreeSet::new();
    for row in rows(&text).filter(|row| row[0].split_once('-').is_some_and(|(family, _)| is_family(family))) {
        let [id, _, state, evidence] = row.as_slice() else {
            problems.push(format!("{}: a row has four cells", row[0]));
            continue;
        };
        if !found.insert((*id).to_owned()) {
            problems.push(format!("{id}: listed twice"));
        }
        let tests: Vec<&str> = quoted(evidence).filter(|name| name.contains("::")).collect();
        match *state {
            "built" | "partly" if tests.is_empty() => problems.push(format!("{id}: names no test")),
            "built" | "partly" | "later" => {}
            other => problems.push(format!("{id}: `{other}` is no state")),
        }
        problems
            .extend(tests.into_iter().filter(|test| !is_test(test)).map(|test| format!("{id}: no {test}")));
    }
    problems.extend(expected.difference(&found).map(|id| format!("{id}: missing")));
    problems.extend(found.difference(&expected).map(|id| format!("{id}: unknown")));
    assert_none(&problems);
}

#[test]
fn faults_name_tests_that_exist() {
    let text = read(&root().join("docs/faults.md"));
    let named: BTreeSet<&str> =
        rows(&text).flatten().flat_map(quoted).filter(|name| name.contains("::")).collect();
    assert!(named.len() > 40, "only {} tests were found in the tables", named.len());
    let missing = named.into_iter().filter(|name| !is_test(name)).map(|name| format!("no {name}"));
    assert_none(&missing.collect::<Vec<_>>());
}

fn is_family(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Whether `room::module::name` is a test function in that module's file.
fn is_test(full_name: &str) -> bool {
    let mut segments: Vec<&str> = full_name.split("::").collect();
    let Some(name) = segments.pop() else { return false };
    let Some(text) = module(&segments) else { return false };
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let declaration = |line: &&str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ")
            .and_then(|line| line.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with('('))
    };
    let Some(place) = lines.iter().position(declaration) else { return false };
    let is_above = |line: &&&str| line.starts_with("#[") || line.starts_with("//");
    let attributes = lines[..place].iter().rev().take_while(is_above);
    attributes.into_iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
        || is_case(&lines, name)
}

/// Whether a macro runs it once for every implementation.
fn is_case(lines: &[&str], name: &str) -> bool {
    let cases =
        lines.iter().skip_while(|line| !line.starts_with("for_every_")).take_while(|line| **line != ");");
    cases.into_iter().any(|line| line.strip_suffix(',') == Some(name))
}

/// The text of a module's file. A module `tests` may lie in its parent's.
fn module(segments: &[&str]) -> Option<String> {
    let [room, modules @ ..] = segments else { return None };
    let room = root().join("crates").join(room);
    let (base, modules) = match modules {
        ["it", modules @ ..] => (room.join("tests/it"), modules),
        modules => (room.join("src"), modules),
    };
    let path = modules.iter().fold(base, |path, module| path.join(module));
    let candidates = [path.with_extension("rs"), path.join("mod.rs")];
    match candidates.iter().find(|path| path.is_file()) {
        Some(file) => Some(read(file)),
        None if segments.ends_with(&["tests"]) => module(&segments[..segments.len() - 1]),
        None => None,
    }
}

#[test]
fn the_walks_name_files_and_functions_that_exist() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let is_path = |text: &&str| {
        let top = text.split('/').next().unwrap_or_default();
        text.contains('/') && !text.contains(' ') && TOP.contains(&top)
    };
    let missing = prose(&text).flat_map(quoted).filter(is_path).filter(|path| !root().join(path).exists());
    let mut problems: Vec<String> = missing.map(|path| format!("no {path}")).collect();

    let mut checked = 0;
    for row in rows(&text) {
        for cells in row.windows(2) {
            let file = quoted(cells[0]).next().filter(is_path).filter(|path| is_rust(path));
            let Some(file) = file.filter(|file| cells[0].len() == file.len() + 2) else { continue };
            let source = fs::read_to_string(root().join(file)).unwrap_or_default();
            for function in quoted(cells[1]) {
                checked += 1;
                let is_there = ["(", "<"].iter().any(|end| source.contains(&format!("fn {function}{end}")));
                if !is_there {
                    problems.push(format!("no `{function}` in {file}"));
                }
            }
        }
    }
    assert_none(&problems);
    assert!(checked > 80, "only {checked} functions were found in the tables");
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "rs")
}

#[test]
fn relative_links_lead_somewhere() {
    let mut problems = Vec::new();
    for document in markdown() {
        let text = read(&document);
        for line in prose(&text) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if !link.contains("://") && !leads_somewhere(&document, link) {
                    problems.push(format!("{}: {link}", document.display()));
                }
            }
        }
    }
    assert_none(&problems);
}

fn leads_somewhere(document: &Path, link: &str) -> bool {
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    let target = if path.is_empty() { document.to_owned() } else { document.with_file_name(path) };
    match heading {
        None => target.exists(),
        Some(heading) => {
            target.is_file()
                && prose(&read(&target)).any(|line| line.starts_with('#') && anchor(line) == heading)
        }
    }
}

/// A heading as GitHub names it in links.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|character| character.is_alphanumeric() || " -_".contains(*character));
    kept.map(|character| if character == ' ' { '-' } else { character }).collect()
}

#[test]
fn settings_are_documented() {
    let settings = read(&root().join("crates/server/src/configuration/setting.rs"));
    let existing: BTreeSet<&str> = settings
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|text| is_variable(text) && *text != "POSTRIDER_")
        .collect();
    assert!(existing.len() >= 10, "the settings are read from somewhere else now");
    let operations = read(&root().join("docs/operations.md"));
    let documented: BTreeSet<&str> =
        rows(&operations).filter_map(|row| quoted(row[0]).next()).filter(|name| is_variable(name)).collect();
    assert_eq!(documented, existing, "settings in docs/operations.md, and those that exist");

    let mut problems = Vec::new();
    for document in markdown() {
        let text = read(&document);
        let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        for word in words.filter(|word| word.starts_with("POSTRIDER_") && *word != "POSTRIDER_") {
            let name = word.strip_suffix("_FILE").filter(|name| existing.contains(name)).unwrap_or(word);
            if !existing.contains(name) {
                problems.push(format!("{}: {word} is no setting", document.display()));
            }
        }
    }
    assert_none(&problems);
}

fn is_variable(text: &str) -> bool {
    (text == "DATABASE_URL" || text.starts_with("POSTRIDER_"))
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}

#[test]
fn metrics_are_documented() {
    let mut existing = BTreeMap::new();
    let rooms = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for file in rooms.flat_map(|room| files(&room.join("src"), "rs")) {
        let text = read(&file);
        for kind in ["counter", "gauge", "histogram"] {
            let recording = format!("metrics::{kind}!(");
            let name =
                |rest: &'_ str| Some(rest.trim_start().strip_prefix('"')?.split('"').next()?.to_owned());
            for name in text.split(&recording).skip(1).filter_map(name) {
                existing.insert(name, kind);
            }
        }
    }
    assert!(existing.len() >= 10, "metrics are recorded in another way now");
    let registered =
        ["engine/src/instruments.rs", "broker/src/rabbit/instruments.rs", "broker/src/redis/instruments.rs"]
            .map(|file| read(&root().join("crates").join(file)))
            .concat();
    for name in existing.keys().filter(|name| !name.starts_with("postrider_http_")) {
        assert!(registered.contains(&format!("\"{name}\"")), "{name} appears only when it is first recorded");
    }
    let operations = read(&root().join("docs/operations.md"));
    let documented: BTreeMap<String, &str> = rows(&operations)
        .filter_map(|row| Some((quoted(row[0]).next()?.to_owned(), *row.get(1)?)))
        .filter(|(name, _)| name.starts_with("postrider_"))
        .collect();
    let names = |metrics: &BTreeMap<String, &str>| metrics.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&documented), names(&existing), "metrics in docs/operations.md, and those that exist");
    for (name, kind) in &existing {
        assert_eq!(documented[name], *kind, "{name}");
        // Without buckets, which go by these endings, a histogram would be shown as a summary.
        let has_buckets = ["_seconds", "_batch_size"].iter().any(|ending| name.ends_with(ending));
        assert!(*kind != "histogram" || has_buckets, "{name} has no buckets");
    }
}

#[test]
fn actions_of_the_audit_log_are_documented() {
    let guide = read(&root().join("docs/api.md"));
    let documented: BTreeSet<&str> =
        rows(&guide).flat_map(|cells| quoted(cells[0]).collect::<Vec<_>>()).collect();
    let missing: Vec<&str> = Action::ALL
        .iter()
        .map(|action| action.as_str())
        .filter(|action| !documented.contains(action))
        .collect();
    assert!(missing.is_empty(), "docs/api.md does not name {missing:?}");
}
