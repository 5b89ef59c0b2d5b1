//! Replays: what a preview sees, what its execution brings back, and what happens when two want the same letters.

mod announced;
mod execution;
mod listing;
mod plans;
mod preview;
mod races;
mod size;
mod stale;

use std::time::Duration;

use postrider_core::id::{DeliveryId, ReplayId};
use postrider_store::{
    deliveries::Status as DeliveryStatus,
    edit,
    lanes::{self, Lane},
    outbox::Audience,
    replay::{self, Advanced, Error, Filter, Load, MAX_LETTERS, NewReplay, Portion, Replay},
};
use sqlx::{PgConnection, postgres::PgConnectOptions};
use uuid::Uuid;

use crate::queries_history::History;

/// So that a turn can follow the one before at once.
const NO_REST: Duration = Duration::ZERO;

/// A tenant with so many dead letters, of each event one to `warehouse` and one to `archive`.
struct World {
    history: History,
    letters: Vec<DeliveryId>,
    lane: PgConnection,
}

impl World {
    /// Dead letters of `order.created`, two of each event.
    async fn with_letters(events: usize) -> Self {
        let mut world = Self::of(History::empty().await).await;
        for _ in 0..events {
            world.die("order.created").await;
        }
        world
    }

    async fn of(history: History) -> Self {
        let lane = lanes::connect(&options(&history), Lane::Work).await.expect("a connection");
        Self { history, letters: Vec::new(), lane }
    }

    /// An event whose deliveries all die.
    async fn die(&mut self, event_type: &str) -> Vec<DeliveryId> {
        let published = self.history.orders.publish(event_type, "{}").await;
        for id in &published.deliveries {
            self.history.bring(*id, DeliveryStatus::DeadLettered).await;
        }
        self.letters.extend(&published.deliveries);
        published.deliveries
    }

    async fn preview(&self, filter: &Filter) -> Replay {
        self.try_preview(filter, MAX_LETTERS).await.expect("a preview").0
    }

    async fn try_preview(&self, filter: &Filter, most: u32) -> Result<(Replay, Vec<DeliveryId>), Error> {
        let id = ReplayId::from_uuid(Uuid::now_v7());
        let new = NewReplay { id, filter, filter_text: "{}", most };
        let mut transaction = edit::begin(self.history.pool()).await.expect("a transaction begins");
        let found = replay::preview(&mut transaction, self.history.tenant.id, new, 10).await?;
        transaction.commit().await?;
        Ok(found)
    }

    async fn execute(&self, id: ReplayId) -> Result<(), Error> {
        let mut transaction = edit::begin(self.history.pool()).await.expect("a transaction begins");
        replay::execute(&mut transaction, self.history.tenant.id, id).await?;
        Ok(transaction.commit().await?)
    }

    async fn cancel(&self, id: ReplayId) -> Result<(), Error> {
        let mut transaction = edit::begin(self.history.pool()).await.expect("a transaction begins");
        replay::cancel(&mut transaction, self.history.tenant.id, id).await?;
        Ok(transaction.commit().await?)
    }

    /// All dead letters of the tenant, previewed and executed.
    async fn running(&self) -> Replay {
        let replay = self.preview(&Filter::default()).await;
        self.execute(replay.id).await.expect("executed");
        replay
    }

    async fn turn(&mut self, letters: u16) -> Option<Advanced> {
        turn(&mut self.lane, &self.history, letters).await
    }

    /// Takes turns until none is due, and ends what is done.
    async fn run(&mut self) {
        while self.turn(100).await.is_some() {}
        replay::finish(&mut self.lane, 100).await.expect("what is done ends");
    }

    async fn look(&self, id: ReplayId) -> Replay {
        let mut connection = self.history.pool().acquire().await.expect("a connection");
        let found = replay::get(&mut connection, self.history.tenant.id, id).await;
        found.expect("it can be read").expect("it exists")
    }

    async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(self.history.pool()).await.expect("a count")
    }

    /// Runs a statement about one delivery.
    async fn change(&self, statement: &'static str, id: DeliveryId) {
        let done = sqlx::query(statement).bind(id.as_uuid()).execute(self.history.pool()).await;
        assert_eq!(done.expect("the statement runs").rows_affected(), 1);
    }
}

fn options(history: &History) -> PgConnectOptions {
    history.pool().connect_options().as_ref().clone()
}

async fn turn(lane: &mut PgConnection, history: &History, letters: u16) -> Option<Advanced> {
    let step = replay::next(lane, history.tenant.id).await.expect("turns can be looked for")?;
    Some(
        step.advance(Audience::Nobody, |_: Load| Portion { letters, rest: NO_REST })
            .await
            .expect("the turn is taken"),
    )
}

const OPEN: &str = "SELECT count(*) FROM postrider.delivery_queue";
const ITEMS: &str = "SELECT count(*) FROM postrider.replay_items";
