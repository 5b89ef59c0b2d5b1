//! Stops sessions in the middle of a statement, so that the order of a race is forced and not hoped for: a trigger waits
//! for a lock that the test holds.
//!
//! Invariant: one stall per database; whoever stands waits for an advisory lock, whatever the limits of its session.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::postgres::Database;

/// The number of the lock; any that the product does not use.
const LOCK: i64 = 4_711;

/// What a session says so that [`Stall::at`] stops it.
pub const MARK: &str = "SET stall.marked = 'yes'";
/// The condition that a session has said so.
pub const MARKED: &str = "current_setting('stall.marked', true) = 'yes'";

/// Holds up sessions until it ends. Dropped, it ends too.
#[derive(Debug)]
pub struct Stall(PgConnection);

impl Stall {
    /// Marked sessions stop at `event` on a table, such as `BEFORE INSERT ON postrider.events FOR EACH ROW`.
    pub async fn at(database: &Database, event: &str) -> Self {
        Self::when(database, event, MARKED).await
    }

    /// Sessions stop at `event` where `condition` holds, which may speak of `NEW` and `OLD`.
    pub async fn when(database: &Database, event: &str, condition: &str) -> Self {
        let mut holder = PgConnection::connect(database.url()).await.expect("a connection");
        // The limit of the session's own waits must not end this one.
        let definition = format!(
            "SELECT pg_advisory_lock({LOCK});
             CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$ BEGIN
                 IF {condition} THEN
                     PERFORM pg_advisory_lock_shared({LOCK});
                     PERFORM pg_advisory_unlock_shared({LOCK});
                 END IF;
                 IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER stall {event} EXECUTE FUNCTION stall();"
        );
        sqlx::raw_sql(AssertSqlSafe(definition)).execute(&mut holder).await.expect("the trigger is made");
        Self(holder)
    }

    /// Lets every stopped session go on, and stops none any more.
    pub async fn end(mut self) {
        sqlx::query("SELECT pg_advisory_unlock($1)").bind(LOCK).execute(&mut self.0).await.expect("unlocked");
    }
}

/// The condition that a session comes to its row of this number, counted from 1.
pub fn row(number: u32) -> String {
    format!(
        "set_config('stall.rows', (coalesce(nullif(current_setting('stall.rows', true), ''), '0')::int + 1)::text,
                    false) = '{number}'"
    )
}
