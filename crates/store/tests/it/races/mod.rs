//! Races between statements, in orders that are forced and not hoped for: one session is stopped in the middle of its
//! statement, another goes on, and each test fails if the answer to its race is taken out.

mod edits;
mod keys;
mod leases;
mod rows;

use postrider_store::lanes::{self, Lane};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};

use crate::hot_path::World;

/// Stops sessions in the middle of a statement: a trigger waits for a lock that the test holds.
struct Stall(PgConnection);

/// The number of the lock; any that the product does not use.
const LOCK: i64 = 4_711;
/// Which sessions are stopped: those that said so with [`MARK`].
const MARKED: &str = "current_setting('race.marked', true) = 'yes'";
const MARK: &str = "SET race.marked = 'yes'";

impl Stall {
    /// Marked sessions stop at `event` on `table`, such as `BEFORE INSERT ON postrider.events FOR EACH ROW`.
    async fn at(world: &World, event: &str) -> Self {
        Self::when(world, event, MARKED).await
    }

    /// Sessions stop at `event` where `condition` holds, which may speak of `NEW` and `OLD`.
    async fn when(world: &World, event: &str, condition: &str) -> Self {
        let mut holder = PgConnection::connect(world.database.url()).await.expect("a connection");
        // The limit of the lane's own waits must not end this one.
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
    async fn end(mut self) {
        sqlx::query("SELECT pg_advisory_unlock($1)").bind(LOCK).execute(&mut self.0).await.expect("unlocked");
    }
}

/// A connection of a lane that stops where the test says.
async fn marked_lane(world: &World, lane: Lane) -> PgConnection {
    let mut connection = plain_lane(world, lane).await;
    sqlx::query(MARK).execute(&mut connection).await.expect("marked");
    connection
}

async fn plain_lane(world: &World, lane: Lane) -> PgConnection {
    let options = world.database.url().parse().expect("a database URL");
    lanes::connect(&options, lane).await.expect("a connection")
}

/// Asks until so many sessions of this database wait for a lock; the test runner's limit bounds it.
async fn wait_for_waiting(pool: &PgPool, expected: i64) {
    let query = "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock'";
    loop {
        let waiting: i64 = sqlx::query_scalar(query).fetch_one(pool).await.expect("the sessions are listed");
        if waiting == expected {
            return;
        }
        tokio::task::yield_now().await;
    }
}
