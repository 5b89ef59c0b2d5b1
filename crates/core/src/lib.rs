//! Postrider's domain, pure: no clock, socket, SQL or environment. `now` and jitter come in as values.
//!
//! | module | what it decides |
//! |---|---|
//! | [`id`], [`name`] | how things are called, and which names are refused |
//! | [`event`] | what a publisher may send: content type, size, JSON depth, fingerprint |
//! | [`plan`] | which endpoints get an event |
//! | [`delivery`], [`retry`] | the states of a delivery, and what follows an attempt |
//! | [`signature`], [`seal`] | how requests are signed, and how secrets are kept |
//! | [`address`], [`destination`], [`header`] | where a request may go and what it may carry |
//! | [`problem`] | every error a caller can see |

pub mod address;
pub mod delivery;
pub mod destination;
pub mod event;
pub mod header;
pub mod id;
pub mod name;
pub mod plan;
pub mod problem;
pub mod retry;
pub mod role;
pub mod seal;
pub mod signature;
pub mod token;
pub mod trace;
