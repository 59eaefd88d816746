//! The message of a caught panic.

use std::any::Any;

/// The message with which the panic began.
#[must_use]
pub fn message_of(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("the reason is not known")
}
