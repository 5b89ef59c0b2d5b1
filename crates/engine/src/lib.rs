//! Postrider's delivery engine: take under permits, deliver over HTTP, decide with `core`, settle in batches.
//!
//! Ingest, take and settle are joined only by rows: each can stop, crash or run elsewhere, and the others go on.
//!
//! | module | role |
//! |---|---|
//! | [`ingest`], [`waiting`], [`batch`] | stores events in batches, fair over applications; hands over straight to [`deliver`] where a permit is free |
//! | [`scout`], [`ready`], [`take`] | find endpoints with pending work, keep them in fair order, claim their rows |
//! | [`limits`] | permits: slots, concurrency and rate per endpoint |
//! | [`deliver`], [`request`], [`transport`] | one attempt: sign, send, judge |
//! | [`credentials`] | what a vendor wants to see in a request; access tokens, fetched and kept |
//! | [`settle`] | writes results in batches |
//! | [`heartbeat`], [`identity`] | who holds the leases, and how long |
//! | [`maintenance`] | due, held, interrupted and expired deliveries |
//! | [`backlog`] | how much waits, and who is refused for it |
//! | [`observe`] | what an operator should see of the database |
//! | [`instruments`] | the metrics, known from the start |
//! | [`engine`], [`supervisor`] | what a role starts, and how it ends |

pub mod arrive;
pub mod backlog;
pub mod batch;
pub mod clock;
pub mod credentials;
pub mod deliver;
pub mod directory;
pub mod engine;
pub mod heartbeat;
pub mod identity;
pub mod ingest;
pub mod instruments;
pub mod limits;
pub mod maintenance;
pub mod observe;
pub mod ready;
pub mod request;
pub mod scout;
pub mod settle;
pub mod supervisor;
pub mod take;
pub mod transport;
mod waiting;
pub mod wake;
pub mod worker;
