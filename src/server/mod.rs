//! The services on one port, and who may reach them.

pub mod flight;
