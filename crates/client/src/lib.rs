//! How commands reach rows: a live collector over Flight SQL and its control service, or a run's directory through an
//! engine in this process. Both take the same requests and give the same answers.
//!
//! The crate knows endpoints, credentials and the two ways to ask. It knows no argument of the command line, and prints nothing.

mod answer;
mod client;
mod declared;
pub mod discover;
pub mod endpoint;
mod live;
mod remote;

pub use self::answer::{AnswerBounds, BatchStream, QueryAnswer, collect};
pub use self::client::Client;
pub use probe_query::Parameters;
