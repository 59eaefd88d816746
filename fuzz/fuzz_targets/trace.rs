#![no_main]

#[path = "../targets/trace.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::trace(data));
