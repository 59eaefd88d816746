#![no_main]

#[path = "../targets/execution_trace.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::execution_trace(data));
