#![no_main]

#[path = "../targets/sql.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::sql(data));
