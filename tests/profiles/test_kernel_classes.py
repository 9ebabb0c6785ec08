"""Classes of kernels as libraries name them. The names are from public traces of torch 1.9 to 2.9."""

from rows import each_row

from perf_callbacks.profiles.kernel_classes import CLASSES, RULES, of_kernel, of_name

KERNELS = {
    "contraction": [
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kern",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(Params)",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>(",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true>(...)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(...)",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN",
        "igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1_bt256x128x16_wt32x32x8_ws2x1",
        "miopenSp3AsmConv_v21_1_3_gfx9_fp32_stride1",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(...)",
        "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>(...)",
        "triton_tem_fused_mm_3",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
        "aten::addmm",
        "aten::convolution_backward",
        "aten::mkldnn_convolution",
    ],
    "attention": [
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Pa",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bflo",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
        "attn_fwd",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, 128, 256>(...)",
        "_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelINS_11FmhaFwdPipelineE",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ],
    "normalization": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)",
        "void at::native::(anonymous namespace)::cuComputeGradInput<float>(GammaBetaBackwardCUDAKernel)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>(cudnnTensorStruct)",
        "void at::native::batch_norm_collect_statistics_kernel<at::native::Var, float, float, float, int>(...)",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_",
        "_rms_norm_forward_kernel",
        "triton_red_fused_add_native_layer_norm_1",
        "void at::native::RowwiseMomentsCUDAKernel<float>(long, float, float const*, float*, float*)",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_ad",
        "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctorOnSelf_add<int>, std::array<char*, 2u",
        "triton_poi_fused_add_convolution_native_layer_norm_5",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        "aten::mul_",
        "aten::gelu_backward",
        "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*)",
    ],
    "copy": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIterato",
        "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u>, unsigned int, 3, 128, ",
        "SubTensorOpWithCastTensor1d",
        "void (anonymous namespace)::store_kvcache<2048l, 4, false, long>(StoreKVCacheParams)",
        "batched_transpose_16x64_pack_1x4_ediv_1x2_half",
        "aten::copy_",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "gloo:all_reduce",
        "c10d::allreduce_",
    ],
    "optimizer": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4> >(...)",
        "aten::_fused_adamw_",
    ],
    "softmax": [
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>(...)",
        "triton_per_fused__softmax_2",
        "void cudnn::ops::softmax_fw_kernel<2, float, float, 256, 1>(cudnnTensorStruct)",
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float> > >",
        "aten::linalg_vector_norm",
        "aten::argmax",
    ],
    "indexing": [
        "void moe::dev::routing::routingRenormalize::routingTopKKernel(moe::dev::routing::KernelParams)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2",
        "aten::embedding",
    ],
    None: ["void at::native::max_pool_forward_nchw<float, int>(int)", "my_kernel"],
}


@each_row(("kind", "name"), [(kind, name) for kind, names in KERNELS.items() for name in names])
def test_a_kernel_has_the_class_of_its_name(kind, name):
    assert of_name(name) == kind


def test_the_operation_decides_if_the_name_says_nothing():
    assert of_kernel("my_kernel", ["aten::my_op", "aten::addmm"], in_optimizer=False) == "contraction"
    assert of_kernel("my_kernel", ["aten::my_op"], in_optimizer=False) == "other"


def test_a_softmax_or_sum_belongs_to_the_larger_operation_around():
    softmax = "void cunn_SoftMaxForward<8, float>(float*)"
    assert of_kernel(softmax, ["aten::_softmax", "aten::softmax"], in_optimizer=False) == "softmax"
    attention = ["aten::_softmax", "aten::_scaled_dot_product_attention_math"]
    assert of_kernel(softmax, attention, in_optimizer=False) == "attention"
    sums = ["aten::sum", "aten::native_layer_norm_backward"]
    assert of_kernel("void at::native::reduce_kernel<512>()", sums, in_optimizer=False) == "normalization"


def test_the_optimizer_owns_all_its_kernels_except_collectives():
    assert of_kernel("ampere_sgemm_128x64_nn", ["aten::mm"], in_optimizer=True) == "optimizer"
    assert of_kernel("ncclDevKernel_AllGather_RING_LL", [], in_optimizer=True) == "communication"


def test_rules_name_known_classes():
    assert {kind for kind, _ in RULES} <= {*CLASSES}
