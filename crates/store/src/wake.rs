//! Wake-ups between processes: where something became pending, or just "look". They carry no truth and may be lost or
//! repeated.
//!
//! `NOTIFY` takes a lock on the whole database while it commits, so it is sent by itself after the work has committed,
//! never inside an ingest transaction.

use std::{fmt, time::Duration};

use postrider_core::id::{EndpointId, TenantId};
use sqlx::{
    AssertSqlSafe, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use time::OffsetDateTime;
use uuid::Uuid;

const CHANNEL: &str = "postrider_pending";
/// Longest wait for the connection that listens.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Endpoints that a call names at most: PostgreSQL takes fewer than 8,000 bytes, and each has 66 here.
pub const MAX_NAMED: usize = 100;
/// Longest time that a listener on another machine takes nothing: PostgreSQL would wait for it in the middle of a
/// transaction of its own, and keep dead rows all the while.
const LISTENER_TIMEOUT_MS: &str = "30000";

/// A process that calls, so that it need not listen to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller(Uuid);

/// One like no other.
impl Default for Caller {
    fn default() -> Self {
        Self(Uuid::now_v7())
    }
}

/// What is called out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Something is pending somewhere.
    Look,
    /// Something is pending at these endpoints, [`MAX_NAMED`] at most, and it has been since then or later.
    At { caller: Caller, since: OffsetDateTime, endpoints: Vec<(TenantId, EndpointId)> },
}

/// The caller, microseconds, then a tenant and an endpoint after each space; nothing for "look".
impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::At { caller, since, endpoints } = self else { return Ok(()) };
        write!(formatter, "{} {}", caller.0.simple(), since.unix_timestamp_nanos() / 1_000)?;
        for (tenant_id, endpoint_id) in endpoints {
            write!(formatter, " {}:{}", tenant_id.as_uuid().simple(), endpoint_id.as_uuid().simple())?;
        }
        Ok(())
    }
}

/// What cannot be read, such as the call of a newer version, says "look".
impl From<&str> for Call {
    fn from(text: &str) -> Self {
        read(text).unwrap_or(Self::Look)
    }
}

fn read(text: &str) -> Option<Call> {
    let mut parts = text.split(' ');
    let caller = Caller(Uuid::try_parse(parts.next()?).ok()?);
    let nanoseconds = parts.next()?.parse::<i128>().ok()?.checked_mul(1_000)?;
    let since = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).ok()?;
    let endpoints = parts.map(|part| {
        let (tenant, endpoint) = part.split_once(':')?;
        let (tenant, endpoint) = (Uuid::try_parse(tenant).ok()?, Uuid::try_parse(endpoint).ok()?);
        Some((TenantId::from_uuid(tenant), EndpointId::from_uuid(endpoint)))
    });
    let endpoints: Vec<_> = endpoints.collect::<Option<_>>()?;
    (!endpoints.is_empty()).then_some(Call::At { caller, since, endpoints })
}

/// Calls out to every worker.
pub async fn notify(connection: &mut PgConnection, calls: &[Call]) -> Result<(), sqlx::Error> {
    // NOTIFY takes no parameters; a call is made of hexadecimal digits, signs, spaces and colons, so nothing needs to be
    // quoted.
    let statements: Vec<String> = calls.iter().map(|call| format!("NOTIFY {CHANNEL}, '{call}'")).collect();
    sqlx::raw_sql(AssertSqlSafe(statements.join(";"))).execute(connection).await?;
    Ok(())
}

/// The same from a pool, for callers that hold no connection of their own.
pub async fn notify_from(pool: &PgPool, call: Call) -> Result<(), sqlx::Error> {
    let mut transaction = pool.begin().await?;
    notify(&mut transaction, &[call]).await?;
    transaction.commit().await
}

/// Hears calls on a connection of its own.
#[derive(Debug)]
pub struct Listener(PgListener);

impl Listener {
    /// Registers before it returns: what is committed afterwards is heard.
    pub async fn connect(options: PgConnectOptions) -> Result<Self, sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECT_TIMEOUT)
            .connect_with(options.options([("tcp_user_timeout", LISTENER_TIMEOUT_MS)]))
            .await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Self(listener))
    }

    /// Waits for a call. A connection that was lost and is registered anew says "look": something may have been missed.
    pub async fn heard(&mut self) -> Result<Call, sqlx::Error> {
        let heard = self.0.try_recv().await?;
        Ok(heard.map_or(Call::Look, |notification| Call::from(notification.payload())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(count: usize) -> Call {
        let since = OffsetDateTime::from_unix_timestamp(1_800_000_000).expect("a time");
        let ids = (1..=count).map(|number| Uuid::from_u128(u128::MAX - number as u128));
        Call::At {
            caller: Caller::default(),
            since,
            endpoints: ids.map(|id| (id.into(), id.into())).collect(),
        }
    }

    #[test]
    fn calls_read_back_as_written_and_fit() {
        for call in [Call::Look, at(1), at(MAX_NAMED)] {
            let text = call.to_string();
            assert!(text.len() < 8_000, "{} bytes", text.len());
            assert_eq!(Call::from(text.as_str()), call);
        }
    }

    #[test]
    fn what_cannot_be_read_says_look() {
        let id = Uuid::from_u128(1).simple();
        let after_caller =
            ["", " ", " 1", " 1 ", " 1 2:3", &format!(" 1 {id}"), &format!(" {} {id}:{id}", i128::MAX)];
        let texts = after_caller.iter().map(|text| format!("{id}{text}"));
        for text in texts.chain(["x", " ", "1 1"].map(String::from)).chain([format!("1 {id}:{id}")]) {
            assert_eq!(Call::from(text.as_str()), Call::Look, "{text}");
        }
    }
}
