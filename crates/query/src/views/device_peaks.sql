-- gpu.device_peaks: One row per kind of device whose limits are known, as its maker states them: for gpu.roofline. Rates are without sparsity.
-- example: SELECT device, tflops_16, tflops_32, memory_gbps, source FROM gpu.device_peaks ORDER BY tflops_16 DESC
SELECT
    pattern,                                      -- text: What the name of the device is like, in python.captures.devices.
    device,                                       -- text: The device.
    tflops_16,                                    -- double, TFLOP/s: Matrix products of 16-bit floating point.
    tflops_32,                                    -- double, TFLOP/s: 32-bit floating point outside matrix units; NULL where the maker does not state it.
    memory_gbps,                                  -- double, GB/s: Memory of the device.
    source                                        -- text: Where the maker states it.
FROM (VALUES
    ('%V100-SXM%', 'V100 SXM2', 125.0, 15.7, 900.0, 'NVIDIA Tesla V100 data sheet'),
    ('%V100-PCIE%', 'V100 PCIe', 112.0, 14.0, 900.0, 'NVIDIA Tesla V100 data sheet'),
    ('%Tesla T4', 'T4', 65.0, 8.1, 300.0, 'NVIDIA T4 data sheet'),
    ('%A100-SXM4-40GB', 'A100 40GB SXM', 312.0, 19.5, 1555.0, 'NVIDIA A100 data sheet'),
    ('%A100-PCIE-40GB', 'A100 40GB PCIe', 312.0, 19.5, 1555.0, 'NVIDIA A100 data sheet'),
    ('%A100-SXM4-80GB', 'A100 80GB SXM', 312.0, 19.5, 2039.0, 'NVIDIA A100 80GB data sheet'),
    ('%A100 80GB PCIe', 'A100 80GB PCIe', 312.0, 19.5, 1935.0, 'NVIDIA A100 80GB data sheet'),
    ('%NVIDIA A10', 'A10', 125.0, 31.2, 600.0, 'NVIDIA A10 data sheet'),
    ('%NVIDIA L4', 'L4', 121.0, 30.3, 300.0, 'NVIDIA L4 data sheet'),
    ('%NVIDIA L40S', 'L40S', 362.0, 91.6, 864.0, 'NVIDIA L40S data sheet'),
    ('%H100 80GB HBM3', 'H100 SXM', 989.0, 67.0, 3350.0, 'NVIDIA H100 data sheet'),
    ('%H100 PCIe', 'H100 PCIe', 756.0, 51.0, 2000.0, 'NVIDIA H100 data sheet'),
    ('%H100 NVL', 'H100 NVL', 835.0, 60.0, 3900.0, 'NVIDIA H100 data sheet'),
    ('%NVIDIA H200', 'H200 SXM', 989.0, 67.0, 4800.0, 'NVIDIA H200 data sheet'),
    ('%NVIDIA B200', 'B200', 2250.0, NULL, 8000.0, 'NVIDIA DGX B200 data sheet'),
    ('%MI210', 'MI210', 181.0, 22.6, 1638.0, 'AMD Instinct MI210 data sheet'),
    ('%MI300X', 'MI300X', 1307.4, 163.4, 5300.0, 'AMD Instinct MI300X data sheet'),
    ('TPU v4', 'TPU v4', 275.0, NULL, 1228.0, 'Google Cloud, TPU v4'),
    ('TPU v5 Lite', 'TPU v5e', 197.0, NULL, 819.0, 'Google Cloud, TPU v5e'),
    ('TPU v5', 'TPU v5p', 459.0, NULL, 2765.0, 'Google Cloud, TPU v5p'),
    ('TPU v6 Lite', 'TPU v6e', 918.0, NULL, 1638.0, 'Google Cloud, TPU v6e')
) AS known (pattern, device, tflops_16, tflops_32, memory_gbps, source)
