//! The room for RabbitMQ and Redis, still empty: deliveries wait in PostgreSQL, and limits are kept per process.
//!
//! What will live here, behind the engine's ports:
//!
//! - a queue over RabbitMQ: an outbox publisher with confirms, a consumer, one retry queue per delay. A message will say
//!   "look at this row" and carry no truth, so that it may be lost, repeated or late without harm;
//! - a limiter over Redis: one token bucket and one concurrency lease per endpoint, shared by all instances.
//!
//! Invariant, from the first day: this crate knows `core` and `store` only. The engine does not know it; the server
//! joins the two.
