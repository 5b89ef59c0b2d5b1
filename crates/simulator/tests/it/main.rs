//! The simulator as a client sees it, over real connections.

mod control;
mod exchange;
mod scripts;
