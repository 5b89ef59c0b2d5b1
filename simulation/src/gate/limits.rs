//! Time limits of a session, which the gate keeps by simulated time; the server knows none of them.

use std::time::Duration;

const NAMES: [&str; 3] = ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"];
/// Of sessions that set none.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a session may wait for a lock, and stay in a transaction without a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Limits {
    lock: Option<Duration>,
    pause: Option<Duration>,
}

impl Limits {
    /// Takes a setting as the product writes it: milliseconds as a bare number, or seconds with their unit. `false`: it is
    /// no limit. How long a statement runs nobody watches here.
    pub(super) fn set(&mut self, name: &str, value: &str) -> bool {
        let limit = match value.strip_suffix('s') {
            Some(seconds) => seconds.parse().map(Duration::from_secs),
            None => value.parse().map(Duration::from_millis),
        };
        match name {
            "lock_timeout" => self.lock = limit.ok(),
            "idle_in_transaction_session_timeout" => self.pause = limit.ok(),
            _ => {}
        }
        NAMES.contains(&name)
    }

    /// What a transaction sets for itself when it begins, and the statement without it.
    pub(super) fn take_out_of(sql: &str) -> (Self, String) {
        let (mut limits, mut kept) = (Self::default(), sql.to_owned());
        for name in NAMES {
            let setting = format!("SET LOCAL {name} = '");
            if let Some((_, after)) = sql.split_once(&setting) {
                limits.set(name, after.split('\'').next().unwrap_or_default());
                kept = kept.replace(&setting, &format!("SET LOCAL simulated.{name} = '"));
            }
        }
        (limits, kept)
    }

    pub(super) fn lock_over(self, session: Self) -> Duration {
        self.lock.or(session.lock).unwrap_or(LOCK_TIMEOUT)
    }

    pub(super) fn pause_over(self, session: Self) -> Duration {
        self.pause.or(session.pause).unwrap_or(PAUSE_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transactions_own_limits_go_before_the_sessions_and_do_not_reach_the_server() {
        let mut session = Limits::default();
        assert!(session.set("lock_timeout", "500"));
        assert!(session.set("statement_timeout", "15000"));
        assert!(!session.set("jit", "off"));
        let (local, sql) = Limits::take_out_of("BEGIN; SET LOCAL lock_timeout = '2s'; SET LOCAL other = '1'");
        assert_eq!(sql, "BEGIN; SET LOCAL simulated.lock_timeout = '2s'; SET LOCAL other = '1'");
        assert_eq!(local.lock_over(session), Duration::from_secs(2));
        assert_eq!(Limits::default().lock_over(session), Duration::from_millis(500));
        assert_eq!(local.pause_over(session), PAUSE_TIMEOUT);
        assert_eq!(Limits::take_out_of("BEGIN"), (Limits::default(), "BEGIN".to_owned()));
    }
}
