#![no_main]

#[path = "../targets/planes.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::planes(data));
