#![no_main]

#[path = "../targets/flight_recorder.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::flight_recorder(data));
