-- gpu.tensor_core_use: One row per capture with kernels: how much of their time used tensor cores, and how much was launched by operators that can use them, by the names that the TensorBoard plugin goes by, and those of newer kernels (nvjet, wgmma, tensorop, tensor16x8x8).
-- example: SELECT rank, percent, eligible_percent FROM gpu.tensor_core_use ORDER BY rank
WITH each AS (
    SELECT run, capture, rank, duration,
        regexp_like(name, 'h884|s884|h1688|s1688|hmma|i8816|16816|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1|direct_group|xmma_implicit_gemm|xmma_sparse_conv|xmma_warp_specialized_implicit_gemm|xmma_gemm|xmma_sparse_gemm|c1688|nvjet_|wgmma|tensorop|tensor[0-9]+x[0-9]+x[0-9]+') AS uses,
        COALESCE(regexp_like(operator, '^aten::(_convolution|conv1d|conv2d|conv3d|conv_tbc|conv_transpose[123]d|convolution|cudnn_convolution|cudnn_convolution_transpose|prelu|addmm|addmv|addr|matmul|mm|mv|linear|addbmm|baddbmm|bmm|chain_matmul|linalg_multi_dot)(_backward.*)?$'), false) AS eligible
    FROM gpu.kernels WHERE kind = 'kernel'
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    SUM(duration) AS kernel_time,                 -- double, s: Time of all kernels.
    SUM(CASE WHEN uses THEN duration ELSE 0 END) AS tensor_core_time, -- double, s: Time of those whose name is of a kernel that uses tensor cores.
    100 * SUM(CASE WHEN uses THEN duration ELSE 0 END) / NULLIF(SUM(duration), 0) AS percent, -- double, %: tensor_core_time, of kernel_time.
    SUM(CASE WHEN eligible THEN duration ELSE 0 END) AS eligible_time, -- double, s: Time of those that convolutions and matrix products launched, or their backward operators: autocast gives these lower precision.
    100 * SUM(CASE WHEN eligible THEN duration ELSE 0 END) / NULLIF(SUM(duration), 0) AS eligible_percent -- double, %: eligible_time, of kernel_time.
FROM each GROUP BY run, capture, rank
