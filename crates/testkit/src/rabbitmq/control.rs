//! Asks a node anything, in Erlang.
//!
//! `erl_call` is a small C program: an answer takes two milliseconds, and `rabbitmqctl` starts an Erlang of its own
//! first. Expressions give text, which comes back as a list of numbers: of a binary it would show the first thirty bytes, and
//! of a string not tell its quotes from the text's.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use postrider_embedded::account::Account;

use super::Address;
use crate::program;

/// Seconds that the node may take for an answer.
const LIMIT_SECONDS: &str = "30";

/// Times that a node is asked which cannot be reached, and the pause between two.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Evaluates expressions that give text; panics where the node cannot.
pub(super) async fn evaluate(address: &Address, expressions: &str) -> String {
    let (asked, of) = (expressions.to_owned(), address.clone());
    let evaluating = tokio::task::spawn_blocking(move || evaluate_blocking(&of, &asked));
    let evaluated = evaluating.await.expect("it does not panic");
    evaluated.unwrap_or_else(|said| panic!("{expressions}: {said}"))
}

/// The same for where nobody can wait; an error is what was said instead of an answer.
pub(super) fn evaluate_blocking(address: &Address, expressions: &str) -> Result<String, String> {
    let (body, end) = expressions.rsplit_once('.').expect("it ends with a full stop");
    assert!(end.is_empty(), "nothing follows the full stop");
    // No byte is as large, so that the list is never taken for a string.
    let asked = format!("[1000 + B || <<B>> <= iolist_to_binary(begin {body} end)].\n");
    let mut said = String::new();
    for _ in 0..TRIES {
        said = call(address, &asked).map_err(|error| error.to_string())?;
        // The name that it takes for itself may be that of another one at the same moment.
        if !said.contains("failed to connect") {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    answer(&said).ok_or(said)
}

fn call(address: &Address, asked: &str) -> io::Result<String> {
    let mut command = Account::Own.command(Path::new(&program::find("erl_call")));
    command.args(["-r", "-e", "-timeout", LIMIT_SECONDS, "-address"]);
    command.arg(format!("127.0.0.1:{}", address.distribution_port)).env("HOME", &address.home);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // It reads everything before it writes anything; or nothing, where it cannot connect, and says so.
    let written = input.write_all(asked.as_bytes());
    drop(input);
    let output = child.wait_with_output()?;
    if output.status.success() {
        written?;
    }
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// The text in `{ok, [1104, 1105]}`.
fn answer(said: &str) -> Option<String> {
    let numbers = said.trim().strip_prefix("{ok, [")?.strip_suffix("]}")?;
    let bytes = numbers.split(',').map(str::trim).filter(|number| !number.is_empty());
    let bytes = bytes.map(|number| u8::try_from(number.parse::<u16>().ok()?.checked_sub(1_000)?).ok());
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

#[cfg(test)]
mod tests {
    use super::answer;

    #[test]
    fn answers_are_read() {
        let check = |said, expected: Option<&str>| assert_eq!(answer(said).as_deref(), expected, "{said}");
        check("{ok, [1104, 1105]}", Some("hi"));
        check("{ok, []}\n", Some(""));
        check("{ok, [104, 105]}", None);
        check("{ok, true}", None);
        check("{error, \"*** eval: {'EXIT',badarg}\"}", None);
        check("erl_call: failed to connect to node", None);
    }
}
