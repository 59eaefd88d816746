//! Names of instances. An agent's is random hexadecimal; the collector has some for rows that it adds itself.

/// Prefix of the collector's instances.
pub(crate) const PREFIX: &str = "collector:";

/// Whether an instance is the collector's own.
pub(crate) fn is_local(instance: &str) -> bool {
    instance.starts_with(PREFIX)
}
