//! Races between statements, in orders that are forced and not hoped for: one session is stopped in the middle of its
//! statement, another goes on, and each test fails if the answer to its race is taken out.

mod edits;
mod keys;
mod leases;
mod quotas;
mod rows;

use postrider_store::lanes::{self, Lane};
use postrider_testkit::stall::MARK;
use sqlx::{PgConnection, PgPool};

use crate::hot_path::World;

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
pub(crate) async fn wait_for_waiting(pool: &PgPool, expected: i64) {
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
