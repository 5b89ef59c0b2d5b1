//! `docs/guide.md` as a reader meets it: its commands, pasted one after the other, do what it says.
//!
//! Invariant: every block of commands is run as it stands there, in the order of the guide and in one shell; only the
//! two ports are others. What the guide shows after a block is what the block answered.

use std::{
    fmt::Write,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use serde_json::{Deserializer, Value};
use tokio::process::Command;

use crate::{
    dev::{address_of, arguments},
    program::{FOREIGN_VARIABLES, Program},
};

/// Sections that a reader must find commands in.
const SECTIONS: [&str; 11] = [
    "A tenant",
    "Limits of a tenant",
    "An application",
    "An endpoint",
    "Publish",
    "Read",
    "A dead letter, sent again",
    "Many dead letters, sent again",
    "Keys and users",
    "Credentials of vendors",
    "Approved vendors",
];

/// Stands in the guide for what is different each time.
const ANYTHING: &str = "…";
/// Precedes each block's output; no command writes it.
const SEPARATOR: char = '\u{1e}';
/// How long all commands may take together.
const LIMIT: Duration = Duration::from_secs(90);

/// What a failed request is to a reader, it is to the shell.
const CURL_SETTINGS: &str = "fail-with-body\nmax-time = 20\nnoproxy = *\n";

/// A reader who sees that a second was too short looks again, and reads on between the blocks. Here both are a wait for
/// the moment when nothing is under way.
const PRELUDE: &str = r#"
set -Eeuo pipefail
trap 'echo "this failed: $BASH_COMMAND; the last answer that was kept: ${ANSWER-none}" >&2' ERR
sleep() {
  if [ -z "${OWNER-}" ]; then return 0; fi
  local under_way='"state":"(running|pending|in_flight|scheduled)"' overview
  while true; do
    # In this order: what a replay has brought back is seen among the deliveries.
    overview=$(curl -sS "$ACME/replays" -H "Authorization: Bearer $OWNER")
    overview+=$(curl -sS "$ACME/deliveries?limit=100" -H "Authorization: Bearer $OWNER")
    [[ $overview =~ $under_way ]] || return 0
    command sleep 0.1
  done
}
"#;

/// A fenced block.
#[derive(Debug)]
struct Block<'a> {
    line: usize,
    section: &'a str,
    kind: Kind,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// ` ```sh `: is run.
    Commands,
    /// ` ```json `: the last answer of the commands before it.
    Answer,
    /// ` ``` `: all that the commands before it print.
    Output,
}

fn guide() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide.md")).unwrap()
}

fn blocks(guide: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let (mut section, mut is_open) = ("", false);
    for (line, text) in (1..).zip(guide.lines()) {
        if let Some(fence) = text.strip_prefix("```") {
            is_open = !is_open;
            if is_open {
                let kind = match fence {
                    "sh" => Kind::Commands,
                    "json" => Kind::Answer,
                    "" => Kind::Output,
                    other => panic!("line {line}: nothing runs or compares a block of {other:?}"),
                };
                blocks.push(Block { line, section, kind, text: String::new() });
            }
        } else if is_open {
            blocks.last_mut().unwrap().text.extend([text, "\n"]);
        } else if text.starts_with("##") {
            section = text.trim_start_matches('#').trim();
        }
    }
    assert!(!is_open, "the last block has no end");
    blocks
}

#[test]
fn every_section_has_commands_that_can_be_pasted() {
    let guide = guide();
    let blocks = blocks(&guide);
    for section in SECTIONS {
        assert!(commands(&blocks).any(|block| block.section == section), "nothing is run in {section:?}");
    }
    for block in commands(&blocks) {
        assert!(!block.text.contains(ANYTHING), "a reader cannot paste {block:#?}");
        // One that goes elsewhere would not run on the reader's machine alone.
        let elsewhere = block.text.split("://").skip(1).find(|rest| !rest.starts_with("127.0.0.1:"));
        assert_eq!(elsewhere, None, "line {}", block.line);
    }
}

#[tokio::test]
async fn its_commands_succeed_and_answer_as_it_shows() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Program::start(&arguments(&directory.path().join(".postrider"), &[]), &[]);
    let api = address_of(&program.line(|line| line.starts_with("  API ")).await);
    let simulator = address_of(&program.line(|line| line.starts_with("  Simulator ")).await);
    program.line(|line| line.contains("Publish one yourself")).await;

    let guide = on_ports(&guide(), api, simulator);
    let blocks = blocks(&guide);
    let pasted = paste(directory.path(), &blocks).await;
    // Stopped in order before anything is judged: its PostgreSQL would outlive a server that is killed.
    program.terminate();
    assert_eq!(program.ended().await.code, Some(0));
    let mut outputs = outputs(&pasted.expect("the guide's commands come to an end"), &blocks).into_iter();
    let mut output = None;
    for block in &blocks {
        match block.kind {
            Kind::Commands => output = outputs.next(),
            Kind::Answer => check_answer(block, output.as_deref().unwrap()),
            Kind::Output => {
                assert_eq!(output.as_deref().unwrap().trim(), block.text.trim(), "line {}", block.line);
            }
        }
    }
}

/// The guide as somebody would read it whose ports were taken.
fn on_ports(guide: &str, api: SocketAddr, simulator: SocketAddr) -> String {
    let mut guide = guide.to_owned();
    for (usual, real) in [("127.0.0.1:8787", api), ("127.0.0.1:8788", simulator)] {
        assert!(guide.contains(usual), "the guide has another address than {usual}");
        guide = guide.replace(usual, &real.to_string());
    }
    guide
}

fn commands<'a>(blocks: &'a [Block<'a>]) -> impl Iterator<Item = &'a Block<'a>> {
    blocks.iter().filter(|block| block.kind == Kind::Commands)
}

/// Runs the blocks in one shell, in a directory like the one where `make run` was called; none if they do not end.
async fn paste(directory: &Path, blocks: &[Block<'_>]) -> Option<Output> {
    let mut script = PRELUDE.to_owned();
    for block in commands(blocks) {
        script += "sleep\n";
        writeln!(script, "printf '{SEPARATOR}'\n{}", block.text).unwrap();
    }
    let built = directory.join("target/release");
    std::fs::create_dir_all(&built).unwrap();
    symlink(env!("CARGO_BIN_EXE_postrider"), built.join("postrider")).unwrap();
    std::fs::write(directory.join(".curlrc"), CURL_SETTINGS).unwrap();
    std::fs::write(directory.join("pasted.sh"), script).unwrap();
    let mut shell = Command::new("bash");
    for name in FOREIGN_VARIABLES {
        shell.env_remove(name);
    }
    let pasted = shell
        .args(["--noprofile", "--norc", "pasted.sh"])
        .current_dir(directory)
        .env("HOME", directory)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    tokio::time::timeout(LIMIT, pasted).await.ok().map(Result::unwrap)
}

/// What each block printed; panics with the block that failed.
fn outputs(pasted: &Output, blocks: &[Block<'_>]) -> Vec<String> {
    let printed = str::from_utf8(&pasted.stdout).unwrap();
    let outputs: Vec<_> = printed.split(SEPARATOR).skip(1).map(ToOwned::to_owned).collect();
    let errors = String::from_utf8_lossy(&pasted.stderr);
    if !pasted.status.success() {
        let (last, printed) = commands(blocks).zip(&outputs).last().expect("the first block was begun");
        panic!("the block at line {}: {printed}\n{errors}", last.line);
    }
    assert_eq!(outputs.len(), commands(blocks).count(), "{errors}");
    outputs
}

#[track_caller]
fn check_answer(block: &Block<'_>, output: &str) {
    let answers = Deserializer::from_str(output).into_iter::<Value>().collect::<Result<Vec<_>, _>>();
    let answers = answers.unwrap_or_else(|error| panic!("before line {}: {error}: {output}", block.line));
    let answer = answers.last().unwrap_or_else(|| panic!("before line {}: no answer", block.line));
    if let Some(difference) = difference("", &shown(&block.text), answer) {
        panic!("line {}: {difference}\n{answer}", block.line);
    }
}

/// Reads JSON in which `…` stands for values, or for further members of an object.
fn shown(text: &str) -> Value {
    let (mut json, mut open, mut is_text) = (String::new(), Vec::new(), false);
    for character in text.chars() {
        match character {
            '"' => is_text = !is_text,
            '{' | '[' if !is_text => open.push(character),
            '}' | ']' if !is_text => drop(open.pop()),
            _ => {}
        }
        let is_member = open.last() == Some(&'{') && !json.trim_end().ends_with(':');
        match character {
            '…' if !is_text && is_member => json += r#""…":"…""#,
            '…' if !is_text => json += r#""…""#,
            _ => json.push(character),
        }
    }
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Where an answer is not as it is shown.
fn difference(path: &str, shown: &Value, answer: &Value) -> Option<String> {
    let is_alike = match (shown, answer) {
        (Value::Object(shown), Value::Object(answer)) => {
            let extra = answer.keys().find(|name| !shown.contains_key(*name));
            if let Some(extra) = extra.filter(|_| !shown.contains_key(ANYTHING)) {
                return Some(format!("the answer also has {path}/{extra}"));
            }
            let mut members = shown.iter().filter(|(name, _)| *name != ANYTHING);
            return members.find_map(|(name, shown)| {
                let path = format!("{path}/{name}");
                match answer.get(name) {
                    Some(answer) => difference(&path, shown, answer),
                    None => Some(format!("the answer has no {path}")),
                }
            });
        }
        (Value::Array(shown), Value::Array(answer)) if shown.len() == answer.len() => {
            let mut elements = shown.iter().zip(answer).enumerate();
            return elements
                .find_map(|(at, (shown, answer))| difference(&format!("{path}/{at}"), shown, answer));
        }
        (Value::Array(shown), Value::Array(_)) => shown.as_slice() == [ANYTHING],
        (Value::String(shown), answer) => match (shown.strip_suffix(ANYTHING), answer.as_str()) {
            (Some(""), _) => true,
            (Some(start), Some(answer)) => answer.starts_with(start),
            (None, Some(answer)) => answer == shown,
            (_, None) => false,
        },
        (Value::Number(shown), answer) => shown.as_f64() == answer.as_f64(),
        (shown, answer) => shown == answer,
    };
    (!is_alike).then(|| format!("{path} is not {shown} but {answer}"))
}

#[test]
fn an_answer_that_is_not_as_shown_is_noticed() {
    let check = |text: &str, answer: &str, expected: Option<&str>| {
        let difference = difference("", &shown(text), &serde_json::from_str(answer).unwrap());
        assert_eq!(difference.as_deref(), expected, "{text} {answer}");
    };
    check(r#"{"id":"evt_…","n":1}"#, r#"{"n":1.0,"id":"evt_1"}"#, None);
    check(r#"{"id":"evt_…"}"#, r#"{"id":"dlv_1"}"#, Some(r#"/id is not "evt_…" but "dlv_1""#));
    check(r#"{"at":"…"}"#, r"{}", Some("the answer has no /at"));
    check(r#"{"at":"…"}"#, r#"{"at":null,"by":1}"#, Some("the answer also has /by"));
    check(r#"{…,"n":2,…}"#, r#"{"by":1,"n":2,"at":0}"#, None);
    check(r#"{…,"n":2,…}"#, r#"{"by":1,"n":3}"#, Some("/n is not 2 but 3"));
    check(r#"{"in":{…},"of":[…],"n":…}"#, r#"{"in":{"a":1},"of":[1,2],"n":3}"#, None);
    check(r#"{"in":{…}}"#, r#"{"in":1}"#, Some(r#"/in is not {"…":"…"} but 1"#));
    check("[{…},{…}]", "[{}]", Some(r#" is not [{"…":"…"},{"…":"…"}] but [{}]"#));
    check(r#"[{"a":[1]}]"#, r#"[{"a":[2]}]"#, Some("/0/a/0 is not 1 but 2"));
    check(r#"{"a":null}"#, r#"{"a":false}"#, Some("/a is not null but false"));
}
