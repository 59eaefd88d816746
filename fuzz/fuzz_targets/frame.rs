#![no_main]

#[path = "../targets/frame.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::frame(data));
