//! What a receiver does, spelled in the path of its URL.
//!
//! Invariant: a path always means the same; only `/flap` counts, per path. Segments after a script's own are labels, so
//! `/ok/warehouse` and `/ok/billing` are two receivers that answer alike.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::{HeaderValue, StatusCode};

/// Longest pause `/slow` takes, in milliseconds.
pub const MAX_SLOW_MS: u64 = 120_000;
/// Most `/flap` paths counted at once; further ones answer as if they had failed through.
pub const MAX_FLAPS: usize = 1_024;

/// The scripts as a person reads them; answered at `/` and with every `404`.
pub const SCRIPTS: &str = "\
/ok                             200
/status/{code}                  that status (3xx with a Location)
/rate-limited?retryAfter={text} 429 with Retry-After (default 1)
/slow/{ms}                      200 after that many milliseconds
/hang                           never answers
/close                          closes the connection without an answer
/reset                          resets the connection without an answer
/flap/{failures}/{successes}    503 so many times, then 200 so many times, and again
/token/{seconds}                an OAuth 2.0 access token that lives so long
A label may follow: /ok/warehouse

GET    /_/requests?limit={n}    what arrived, newest first
DELETE /_/requests              forgets it
POST   /_/secrets               {\"secret\":\"whsec_...\"}: check signatures under it
";

/// A path read as a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    Status(StatusCode),
    RateLimited { retry_after: HeaderValue },
    Slow(Duration),
    Hang,
    Close,
    Reset,
    Flap { failures: u32, successes: u32 },
    Token { expires_in_s: u32 },
}

/// What one request gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Status { status: StatusCode, retry_after: Option<HeaderValue>, delay: Duration },
    Token { expires_in_s: u32 },
    Hang,
    Close,
    Reset,
}

/// How often each `/flap` path was asked.
#[derive(Debug, Default)]
pub(crate) struct Flaps(Mutex<HashMap<String, u64>>);

impl Script {
    /// Reads a path and query; `None` for a path that is no script.
    pub fn parse(path: &str, query: Option<&str>) -> Option<Self> {
        let mut segments = path.strip_prefix('/')?.split('/');
        match segments.next()? {
            "ok" => Some(Self::Status(StatusCode::OK)),
            "status" => {
                let code: u16 = segments.next()?.parse().ok()?;
                // 1xx are no final answers, so no receiver can end with one.
                (200..=999).contains(&code).then(|| StatusCode::from_u16(code).ok().map(Self::Status))?
            }
            "rate-limited" => {
                let text = parameter(query, "retryAfter").unwrap_or("1");
                HeaderValue::from_str(text).ok().map(|retry_after| Self::RateLimited { retry_after })
            }
            "slow" => {
                let pause_ms: u64 = segments.next()?.parse().ok()?;
                (pause_ms <= MAX_SLOW_MS).then(|| Self::Slow(Duration::from_millis(pause_ms)))
            }
            "hang" => Some(Self::Hang),
            "close" => Some(Self::Close),
            "reset" => Some(Self::Reset),
            "flap" => {
                let failures = segments.next()?.parse().ok()?;
                let successes = segments.next()?.parse().ok()?;
                Some(Self::Flap { failures, successes })
            }
            "token" => segments.next()?.parse().ok().map(|expires_in_s| Self::Token { expires_in_s }),
            _ => None,
        }
    }

    /// What the next request to this path gets.
    pub(crate) fn answer(&self, path: &str, flaps: &Flaps) -> Answer {
        match self {
            Self::Status(status) => status_answer(*status),
            Self::RateLimited { retry_after } => Answer::Status {
                status: StatusCode::TOO_MANY_REQUESTS,
                retry_after: Some(retry_after.clone()),
                delay: Duration::ZERO,
            },
            Self::Slow(delay) => Answer::Status { status: StatusCode::OK, retry_after: None, delay: *delay },
            Self::Token { expires_in_s } => Answer::Token { expires_in_s: *expires_in_s },
            Self::Hang => Answer::Hang,
            Self::Close => Answer::Close,
            Self::Reset => Answer::Reset,
            Self::Flap { failures, successes } => {
                let fails = is_failing(flaps.count(path), *failures, *successes);
                status_answer(if fails { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK })
            }
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { status, .. } => write!(formatter, "{}", status.as_u16()),
            Self::Token { .. } => formatter.write_str("200"),
            Self::Hang => formatter.write_str("hang"),
            Self::Close => formatter.write_str("close"),
            Self::Reset => formatter.write_str("reset"),
        }
    }
}

impl Flaps {
    /// Requests to this path before this one.
    fn count(&self, path: &str) -> u64 {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_FLAPS && !counts.contains_key(path) {
            return u64::MAX;
        }
        let count = counts.entry(path.to_owned()).or_default();
        let before = *count;
        *count = count.saturating_add(1);
        before
    }
}

fn status_answer(status: StatusCode) -> Answer {
    Answer::Status { status, retry_after: None, delay: Duration::ZERO }
}

fn is_failing(before: u64, failures: u32, successes: u32) -> bool {
    match u64::from(failures) + u64::from(successes) {
        0 => false,
        round => before % round < u64::from(failures),
    }
}

fn parameter<'q>(query: Option<&'q str>, name: &str) -> Option<&'q str> {
    query?
        .split('&')
        .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(target: &str, expected: Option<&Script>) {
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        assert_eq!(Script::parse(path, query).as_ref(), expected, "{target}");
    }

    fn rate_limited(text: &'static str) -> Script {
        Script::RateLimited { retry_after: HeaderValue::from_static(text) }
    }

    #[test]
    fn paths_are_scripts() {
        check("/ok", Some(&Script::Status(StatusCode::OK)));
        check("/ok/warehouse", Some(&Script::Status(StatusCode::OK)));
        check("/status/410", Some(&Script::Status(StatusCode::GONE)));
        check("/status/301/label", Some(&Script::Status(StatusCode::MOVED_PERMANENTLY)));
        check("/rate-limited", Some(&rate_limited("1")));
        check("/rate-limited?a=b&retryAfter=120", Some(&rate_limited("120")));
        check("/rate-limited?retryAfter=-5", Some(&rate_limited("-5")));
        check("/slow/250", Some(&Script::Slow(Duration::from_millis(250))));
        check("/hang", Some(&Script::Hang));
        check("/close", Some(&Script::Close));
        check("/reset", Some(&Script::Reset));
        check("/flap/2/1", Some(&Script::Flap { failures: 2, successes: 1 }));
        check("/token/3600/crm", Some(&Script::Token { expires_in_s: 3_600 }));
        for unknown in [
            "",
            "/",
            "/okay",
            "/status",
            "/status/100",
            "/status/abc",
            "/slow/-1",
            "/slow/120001",
            "/flap/1",
            "/token/-1",
        ] {
            check(unknown, None);
        }
    }

    #[test]
    fn flaps_fail_then_succeed_and_begin_again_per_path() {
        let flaps = Flaps::default();
        let script = Script::Flap { failures: 2, successes: 1 };
        let answers =
            |path: &str| (0..6).map(|_| script.answer(path, &flaps).to_string()).collect::<Vec<_>>();
        assert_eq!(answers("/flap/2/1"), ["503", "503", "200", "503", "503", "200"]);
        assert_eq!(answers("/flap/2/1/other"), ["503", "503", "200", "503", "503", "200"]);
        assert!(!is_failing(3, 0, 0));
    }
}
