#![no_main]

#[path = "../targets/nccl_inspector.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::nccl_inspector(data));
