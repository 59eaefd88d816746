#![no_main]

#[path = "../targets/endpoint.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::endpoint(data));
