//! Postrider's domain, pure: no clock, socket, SQL or environment. `now` and jitter come in as values.
//!
//! | module | what it decides |
//! |---|---|
//! | [`id`], [`name`] | how things are called, and which names are refused |
//! | [`event`] | what a publisher may send: content type, size, JSON depth, fingerprint |
//! | [`plan`] | which endpoints get an event |
//! | [`bucket`], [`quota`] | how fast, how much in an hour and how much at a time a tenant may publish |
//! | [`overload`] | whom to refuse while too much waits to be sent |
//! | [`delivery`], [`retry`] | the states of a delivery, and what follows an attempt |
//! | [`limiter`] | the same, and how much is sent to an endpoint, over all processes: the port |
//! | [`signature`], [`seal`] | how requests are signed, and how secrets are kept |
//! | [`pepper`] | what tokens are hashed with, and how it is replaced |
//! | [`email`], [`password`], [`session`], [`token`], [`role`] | who somebody is, how that is proven, and what they may do |
//! | [`address`], [`destination`], [`header`] | where a request may go and what it may carry |
//! | [`credential`] | what a vendor wants to see in it, and how an access token is asked for |
//! | [`method`], [`success_codes`], [`pacing`] | how and how fast an endpoint is asked, and which answers are a success |
//! | [`port`] | nothing: what [`limiter`] and [`queue`] answer with |
//! | [`registry`] | the file that declares approved endpoints, and what it would change |
//! | [`problem`] | every error a caller can see |

pub mod address;
pub mod bucket;
pub mod credential;
pub mod delivery;
pub mod destination;
pub mod email;
pub mod event;
pub mod header;
pub mod id;
pub mod limiter;
pub mod method;
pub mod name;
pub mod overload;
pub mod pacing;
pub mod password;
pub mod pepper;
pub mod plan;
pub mod port;
pub mod problem;
pub mod queue;
pub mod quota;
pub mod registry;
pub mod retry;
pub mod role;
pub mod seal;
pub mod session;
pub mod signature;
pub mod success_codes;
pub mod token;
pub mod trace;
