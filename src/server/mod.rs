//! The services on the collector's one port.

pub mod flight;
