//! How commands reach rows: a live collector over Flight SQL and its control service, or a run's directory through an
//! engine in this process. What is asked and what comes back is the same.

mod answer;
mod client;
mod declared;
pub mod discover;
pub mod endpoint;
mod live;
mod remote;

pub use self::answer::{Answer, Batches, Bounds, collect};
pub use self::client::Client;
pub use probe_query::Parameters;
