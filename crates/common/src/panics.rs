//! What a panic said, for whoever goes on after it.

use std::any::Any;

/// Its words.
#[must_use]
pub fn words(panic: &(dyn Any + Send)) -> &str {
    let said = panic.downcast_ref::<&str>().copied();
    said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("the reason is not known")
}
