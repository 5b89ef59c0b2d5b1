//! Events and deliveries in every state, for the tests of the queries.

use std::{collections::HashMap, ops::RangeInclusive};

use postrider_core::id::DeliveryId;
use postrider_store::deliveries::Status;
use postrider_testkit::{
    postgres::Database,
    scenario::{Application, Endpoint, Scenario, Tenant},
};
use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

/// A tenant with an application `orders` that sends `order.*` to the endpoints `warehouse` and `archive`.
pub(crate) struct History {
    database: Database,
    pub(crate) tenant: Tenant,
    pub(crate) orders: Application,
    pub(crate) warehouse: Endpoint,
    /// When everything happened that has a time.
    pub(crate) at: OffsetDateTime,
    by_status: HashMap<Status, DeliveryId>,
}

impl History {
    pub(crate) async fn empty() -> Self {
        let database = Database::fresh().await;
        let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
        let orders = tenant.application("orders").await;
        tenant.application("billing").await;
        let warehouse = tenant.endpoint("warehouse", "https://example.com/hooks").create().await;
        let archive = tenant.endpoint("archive", "https://example.org/").create().await;
        for endpoint in [&warehouse, &archive] {
            orders.sends(&["order.*"], endpoint).await;
        }
        let at = sqlx::query_scalar("SELECT date_trunc('second', now())").fetch_one(database.pool()).await;
        let at = at.expect("the time");
        Self { database, tenant, orders, warehouse, at, by_status: HashMap::new() }
    }

    /// One event per state, both of whose deliveries are in it.
    pub(crate) async fn with_every_state() -> Self {
        let mut history = Self::empty().await;
        for status in Status::ALL {
            let published = history.orders.publish("order.created", "{}").await;
            for id in &published.deliveries {
                history.bring(*id, *status).await;
            }
            history.by_status.insert(*status, published.deliveries[0]);
        }
        history
    }

    pub(crate) fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    pub(crate) fn scenario(&self) -> Scenario {
        Scenario::new(self.pool().clone())
    }

    /// A delivery in this state.
    pub(crate) fn delivery(&self, status: Status) -> DeliveryId {
        self.by_status[&status]
    }

    /// Puts a pending delivery into a state as if attempts had led there.
    pub(crate) async fn bring(&self, id: DeliveryId, status: Status) {
        let statement = match status {
            Status::Pending => {
                "UPDATE postrider.delivery_queue SET pending_since = $2 WHERE delivery_id = $1"
            }
            Status::Held => {
                "UPDATE postrider.delivery_queue SET state = 'held', pending_since = NULL
                  WHERE delivery_id = $1 AND $2::timestamptz IS NOT NULL"
            }
            Status::Scheduled => {
                "UPDATE postrider.delivery_queue SET state = 'scheduled', pending_since = NULL, due_at = $2,
                        attempt_number = 2, tries = 2 WHERE delivery_id = $1"
            }
            Status::InFlight => {
                "UPDATE postrider.delivery_queue SET state = 'in_flight', pending_since = NULL, attempt_number = 3,
                        tries = 3, lease_owner = gen_random_uuid(), lease_token = gen_random_uuid(), leased_at = $2,
                        lease_until = $2 + interval '1 minute' WHERE delivery_id = $1"
            }
            Status::Delivered => {
                "WITH ended AS (DELETE FROM postrider.delivery_queue WHERE delivery_id = $1 RETURNING *)
                 INSERT INTO postrider.deliveries SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
                        signing_key_id, accepted_at, $2, 'delivered', NULL, 2 FROM ended"
            }
            Status::DeadLettered => {
                "WITH ended AS (DELETE FROM postrider.delivery_queue WHERE delivery_id = $1 RETURNING *)
                 INSERT INTO postrider.deliveries SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
                        signing_key_id, accepted_at, $2, 'dead_lettered', 'attempts_exhausted', 2 FROM ended"
            }
        };
        let moved = sqlx::query(statement).bind(id.as_uuid()).bind(self.at).execute(self.pool()).await;
        assert_eq!(moved.expect("moved").rows_affected(), 1, "{status}");
        match status {
            Status::Pending | Status::Held => {}
            Status::Scheduled | Status::InFlight | Status::Delivered | Status::DeadLettered => {
                self.add_attempts(id, 1..=2).await;
            }
        }
    }

    /// Failed attempts with these numbers.
    pub(crate) async fn add_attempts(&self, id: DeliveryId, numbers: RangeInclusive<i32>) {
        sqlx::query(
            "INSERT INTO postrider.attempts
                    (tenant_id, delivery_id, attempt_number, outcome, started_at, ended_at, latency_ms, status_code)
             SELECT $1, $2, number, 'scheduled', $3, $3, 12, 503 FROM generate_series($4, $5) AS number",
        )
        .bind(self.tenant.id.as_uuid())
        .bind(id.as_uuid())
        .bind(self.at)
        .bind(numbers.start())
        .bind(numbers.end())
        .execute(self.pool())
        .await
        .expect("attempts");
    }

    /// Moves some deliveries between the tables: ends what is held, and brings a dead letter back.
    pub(crate) async fn shuffle(&self) {
        for statement in [
            "WITH moved AS (DELETE FROM postrider.deliveries WHERE outcome = 'dead_lettered' RETURNING *)
             INSERT INTO postrider.delivery_queue SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
                    signing_key_id, accepted_at, now(), 'pending', NULL, now(), 2, 0, NULL, NULL, NULL, NULL FROM moved",
            "WITH moved AS (DELETE FROM postrider.delivery_queue WHERE state = 'held' RETURNING *)
             INSERT INTO postrider.deliveries SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
                    signing_key_id, accepted_at, now(), 'delivered', NULL, 1 FROM moved",
        ] {
            sqlx::query(statement).execute(self.pool()).await.expect("moved");
        }
    }

    /// A long history: `count` delivered events, of which each hundredth is a dead letter and each tenth still waits.
    /// Tenant, application and endpoint are real; another tenant has as much.
    pub(crate) async fn fill(&self, count: i32) {
        for (tenant_id, prefix) in [(self.tenant.id.as_uuid(), "00"), (Uuid::now_v7(), "01")] {
            for statement in FILL {
                sqlx::query(statement)
                    .bind(tenant_id)
                    .bind(self.orders.id.as_uuid())
                    .bind(self.warehouse.id.as_uuid())
                    .bind(count)
                    .bind(prefix)
                    .execute(self.pool())
                    .await
                    .expect("filled");
            }
        }
        sqlx::query("ANALYZE").execute(self.pool()).await.expect("analysed");
    }

    /// The id of an event that has as many before it as after it.
    pub(crate) async fn id_in_the_middle(&self) -> Uuid {
        let ids = "SELECT event_id FROM postrider.events WHERE tenant_id = $1 ORDER BY event_id
                   OFFSET (SELECT count(*) / 2 FROM postrider.events WHERE tenant_id = $1) LIMIT 1";
        sqlx::query_scalar(ids).bind(self.tenant.id.as_uuid()).fetch_one(self.pool()).await.expect("an id")
    }
}

/// $1 tenant, $2 application, $3 endpoint, $4 how many, $5 two hexadecimal digits. An id holds the time of acceptance,
/// one event a second until now, in its first 48 bits, and then its number.
const FILL: [&str; 4] = [
    "INSERT INTO postrider.events
     SELECT $1, id, $2, 'order.created', 'application/json', '{}', decode(repeat('ab', 16), 'hex'), 1, accepted_at
       FROM (SELECT now() - make_interval(secs => $4 - n) AS accepted_at,
                    (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - ($4 - n) * 1000), 12, '0')
                     || '7' || $5 || '080' || lpad(to_hex(n), 10, '0') || '0000')::uuid AS id
               FROM generate_series(1, $4::int) AS n
              WHERE $3::uuid IS NOT NULL) AS made",
    "INSERT INTO postrider.deliveries
     SELECT tenant_id, (left(event_id::text, -4) || '0001')::uuid, event_id, $2, $3, $3, accepted_at, accepted_at,
            CASE WHEN number % 100 = 0 THEN 'dead_lettered' ELSE 'delivered' END,
            CASE WHEN number % 100 = 0 THEN 'attempts_exhausted' END, 1
       FROM (SELECT *, row_number() OVER (ORDER BY event_id) AS number FROM postrider.events WHERE tenant_id = $1) AS e
      WHERE number % 10 <> 5 AND $4::int > 0 AND $5::text <> ''",
    "INSERT INTO postrider.delivery_queue
     SELECT tenant_id, (left(event_id::text, -4) || '0001')::uuid, event_id, $2, $3, $3, accepted_at,
            accepted_at + interval '1 day', 'pending', NULL, accepted_at, 0, 0, NULL, NULL, NULL, NULL
       FROM (SELECT *, row_number() OVER (ORDER BY event_id) AS number FROM postrider.events WHERE tenant_id = $1) AS e
      WHERE number % 10 = 5 AND $4::int > 0 AND $5::text <> ''",
    "INSERT INTO postrider.attempts
     SELECT tenant_id, delivery_id, 1, outcome, ended_at, ended_at, 5, 200, NULL, NULL FROM postrider.deliveries
      WHERE tenant_id = $1 AND $2::uuid IS NOT NULL AND $3::uuid IS NOT NULL AND $4::int > 0 AND $5::text <> ''",
];
