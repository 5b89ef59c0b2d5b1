//! What follows an attempt: the retry policy, and the verdict on an outcome.
//!
//! | outcome | verdict |
//! |---|---|
//! | one of the endpoint's success codes, by default any 2xx | delivered |
//! | no usable answer, 408, 425, 429, 5xx | try again, if attempts and time are left |
//! | a refused access token that can be renewed | the same |
//! | 410 | dead letter, and the endpoint is disabled |
//! | any other status, redirects included | dead letter |

use std::{str::FromStr, time::Duration};

use time::OffsetDateTime;

use crate::success_codes::SuccessCodes;

/// Longest wait that a receiver's `Retry-After` may ask for, however long the policy's own delays are.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(6 * 60 * 60);
/// By how much of itself a wait that was asked for is made longer at most, by chance: whoever refuses many at once names
/// one time to all of them.
const SPREAD: f64 = 0.1;

/// When to try again, and when to give up. Bounds are checked where a policy is made, see [`Policy::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    max_attempts: u16,
    max_age: Duration,
    initial_delay: Duration,
    max_delay: Duration,
}

/// Which bound a policy breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("maxAttempts must be between 1 and {}", Policy::ATTEMPTS_BOUND)]
    Attempts,
    #[error("maxAgeSeconds must be between 1 and {}", Policy::AGE_BOUND.as_secs())]
    Age,
    #[error("initialDelayMs must be between 1 and maxDelayMs")]
    InitialDelay,
    #[error("maxDelayMs must be at most {}", Policy::DELAY_BOUND.as_millis())]
    MaxDelay,
}

impl Policy {
    /// Most attempts a policy may allow in one run.
    pub const ATTEMPTS_BOUND: u16 = 100;
    /// Longest time from acceptance to the last attempt (7 days).
    pub const AGE_BOUND: Duration = Duration::from_secs(7 * 24 * 60 * 60);
    /// Longest delay between two attempts (24 hours).
    pub const DELAY_BOUND: Duration = Duration::from_secs(24 * 60 * 60);
    /// 25 attempts or 24 hours, whichever comes first; 5 s doubling up to 2 h.
    pub const DEFAULT: Self = Self {
        max_attempts: 25,
        max_age: Duration::from_secs(24 * 60 * 60),
        initial_delay: Duration::from_secs(5),
        max_delay: Duration::from_secs(2 * 60 * 60),
    };

    pub fn new(
        max_attempts: u16,
        max_age: Duration,
        initial_delay: Duration,
        max_delay: Duration,
    ) -> Result<Self, Error> {
        if !(1..=Self::ATTEMPTS_BOUND).contains(&max_attempts) {
            return Err(Error::Attempts);
        }
        if !(Duration::from_secs(1)..=Self::AGE_BOUND).contains(&max_age) {
            return Err(Error::Age);
        }
        if max_delay > Self::DELAY_BOUND {
            return Err(Error::MaxDelay);
        }
        if !(Duration::from_millis(1)..=max_delay).contains(&initial_delay) {
            return Err(Error::InitialDelay);
        }
        Ok(Self { max_attempts, max_age, initial_delay, max_delay })
    }

    pub const fn max_attempts(&self) -> u16 {
        self.max_attempts
    }

    /// Time from acceptance after which no attempt starts.
    pub const fn max_age(&self) -> Duration {
        self.max_age
    }

    pub const fn initial_delay(&self) -> Duration {
        self.initial_delay
    }

    pub const fn max_delay(&self) -> Duration {
        self.max_delay
    }

    /// Exponential backoff with equal jitter: half of the doubled delay is certain, half is chance, so that
    /// deliveries that failed together do not come back together, and none comes back at once.
    ///
    /// `tries` counts the attempts made in this run, from 1; `jitter` lies in `0.0..=1.0`.
    pub fn backoff(&self, tries: u16, jitter: f64) -> Duration {
        let doublings = u32::from(tries.saturating_sub(1)).min(63);
        let ceiling = self.initial_delay.saturating_mul(2_u32.saturating_pow(doublings)).min(self.max_delay);
        let half = ceiling / 2;
        half + half.mul_f64(jitter.clamp(0.0, 1.0))
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What an endpoint's answers are judged by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    pub policy: Policy,
    pub success_codes: SuccessCodes,
}

impl From<Policy> for Rules {
    fn from(policy: Policy) -> Self {
        Self { policy, success_codes: SuccessCodes::DEFAULT }
    }
}

/// What a receiver asked for in `Retry-After` (RFC 9110, section 10.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfter {
    Seconds(u64),
    At(OffsetDateTime),
}

impl RetryAfter {
    /// Reads delay-seconds or an HTTP date; anything else counts as absent.
    pub fn parse(value: &str) -> Option<Self> {
        let value = value.trim();
        if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            // Too many digits to count is still "very long"; the cap decides.
            return Some(Self::Seconds(value.parse().unwrap_or(u64::MAX)));
        }
        httpdate::parse_http_date(value).ok().map(|date| Self::At(OffsetDateTime::from(date)))
    }

    /// The wait from `now`, capped at [`MAX_RETRY_AFTER`]; a date in the past is no wait.
    pub fn wait(self, now: OffsetDateTime) -> Duration {
        let asked = match self {
            Self::Seconds(seconds) => Duration::from_secs(seconds),
            Self::At(date) => Duration::try_from(date - now).unwrap_or(Duration::ZERO),
        };
        asked.min(MAX_RETRY_AFTER)
    }
}

/// The head of an HTTP answer, as far as it decides anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<RetryAfter>,
}

/// Why no usable answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The host name has no address, or the resolver failed.
    Dns,
    /// The address is one that deliveries may not reach.
    AddressRefused,
    /// No TCP connection came about.
    Connect,
    /// The TLS handshake failed; nothing was sent.
    Tls,
    /// Time ran out before the head of the answer was there.
    Timeout,
    /// The connection ended before the head of the answer was there.
    ConnectionLost,
    /// What came back is not an HTTP answer, or is larger than its limit.
    BadResponse,
    /// The request could not be made: its secret or URL cannot be used.
    Unsendable,
    /// The access token that the receiver wants to see could not be fetched; nothing was sent.
    CredentialUnavailable,
}

impl FailureKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::AddressRefused => "address_refused",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::ConnectionLost => "connection_lost",
            Self::BadResponse => "bad_response",
            Self::Unsendable => "unsendable",
            Self::CredentialUnavailable => "credential_unavailable",
        }
    }
}

/// A failure and its reason in plain words, free of secrets and of anything the receiver sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub detail: String,
}

/// What came of one HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Answered(Answer),
    /// The receiver refused the access token, which the next attempt will not use again.
    TokenRefused(Answer),
    Failed(Failure),
}

/// Why a delivery ended without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// The receiver answered with a status that another try will not change.
    Rejected,
    AttemptsExhausted,
    DeadlinePassed,
    /// The receiver answered 410 Gone: its endpoint is disabled too.
    EndpointGone,
    EndpointDeleted,
    /// The event's body was erased while the delivery was open.
    BodyGone,
}

/// A text names no reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a dead letter's reason is `rejected`, `attempts_exhausted`, `deadline_passed`, `endpoint_gone`, `endpoint_deleted` or \
     `body_gone`"
)]
pub struct UnknownDeadReason;

impl FromStr for DeadReason {
    type Err = UnknownDeadReason;

    fn from_str(text: &str) -> Result<Self, UnknownDeadReason> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == text).ok_or(UnknownDeadReason)
    }
}

impl DeadReason {
    pub const ALL: &[Self] = &[
        Self::Rejected,
        Self::AttemptsExhausted,
        Self::DeadlinePassed,
        Self::EndpointGone,
        Self::EndpointDeleted,
        Self::BodyGone,
    ];

    /// Whether the delivery can be sent again: not where there is nothing to send, or nowhere.
    pub const fn is_replayable(self) -> bool {
        match self {
            Self::Rejected | Self::AttemptsExhausted | Self::DeadlinePassed | Self::EndpointGone => true,
            Self::EndpointDeleted | Self::BodyGone => false,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::DeadlinePassed => "deadline_passed",
            Self::EndpointGone => "endpoint_gone",
            Self::EndpointDeleted => "endpoint_deleted",
            Self::BodyGone => "body_gone",
        }
    }
}

/// What is to become of a delivery after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    Delivered,
    /// Try again after this delay.
    Retry {
        delay: Duration,
    },
    Dead {
        reason: DeadReason,
    },
}

/// Where a delivery stands in its run when an attempt ends.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Attempts made in this run, this one included.
    pub tries: u16,
    pub deadline: OffsetDateTime,
    pub now: OffsetDateTime,
}

/// Judges an outcome. A retry that could only start after the deadline is a dead letter now, not later.
pub fn decide(rules: &Rules, outcome: &Outcome, progress: Progress, jitter: f64) -> Verdict {
    let Rules { policy, success_codes } = rules;
    let asked = match outcome {
        Outcome::Answered(answer) => match judge_status(answer.status, *success_codes) {
            StatusClass::Success => return Verdict::Delivered,
            StatusClass::Gone => return Verdict::Dead { reason: DeadReason::EndpointGone },
            StatusClass::Final => return Verdict::Dead { reason: DeadReason::Rejected },
            StatusClass::Retryable => answer.retry_after.map(|after| after.wait(progress.now)),
        },
        Outcome::TokenRefused(answer) => answer.retry_after.map(|after| after.wait(progress.now)),
        Outcome::Failed(_) => None,
    };
    if progress.tries >= policy.max_attempts {
        return Verdict::Dead { reason: DeadReason::AttemptsExhausted };
    }
    let asked = asked.unwrap_or_default();
    let delay = policy.backoff(progress.tries, jitter).max(asked);
    let is_in_time = |delay| progress.now + delay < progress.deadline;
    if !is_in_time(delay) {
        return Verdict::Dead { reason: DeadReason::DeadlinePassed };
    }
    let spread = delay.max(asked + asked.mul_f64(SPREAD * jitter.clamp(0.0, 1.0)));
    Verdict::Retry { delay: if is_in_time(spread) { spread } else { delay } }
}

enum StatusClass {
    Success,
    Retryable,
    Gone,
    Final,
}

fn judge_status(status: u16, success_codes: SuccessCodes) -> StatusClass {
    match status {
        _ if success_codes.contains(status) => StatusClass::Success,
        408 | 425 | 429 | 500..=599 => StatusClass::Retryable,
        410 => StatusClass::Gone,
        _ => StatusClass::Final,
    }
}

#[cfg(test)]
mod tests;
