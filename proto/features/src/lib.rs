//! Nothing: what is here is in Cargo.toml.
