"""Classes of kernels as libraries name them. The names are from public traces of torch 1.9 to 2.9:
each is the only one that notices a missing part of a rule, or rules in another order."""

from rows import each_row

from perf_callbacks.profiles.kernel_classes import CLASSES, RULES, of_kernel, of_name

KERNELS = {
    "contraction": [
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(...)",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN",
        "triton_tem_fused_mm_3",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
        "aten::addmm",
        "aten::mkldnn_convolution",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bflo",
        "attn_fwd",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, 128, 256>(...)",
        "_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelINS_11FmhaFwdPipelineE",
    ],
    "normalization": [
        "void at::native::(anonymous namespace)::cuComputeGradInput<float>(GammaBetaBackwardCUDAKernel)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>(cudnnTensorStruct)",
        "void at::native::batch_norm_collect_statistics_kernel<at::native::Var, float, float, float, int>(...)",
        "_rms_norm_forward_kernel",
        "triton_red_fused_add_native_layer_norm_1",
        "void at::native::RowwiseMomentsCUDAKernel<float>(long, float, float const*, float*, float*)",
    ],
    "elementwise": [
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_ad",
        "triton_poi_fused_add_convolution_native_layer_norm_5",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        "aten::mul_",
        "aten::gelu_backward",
        "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*)",
    ],
    "copy": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIterato",
        "SubTensorOpWithCastTensor1d",
        "void (anonymous namespace)::store_kvcache<2048l, 4, false, long>(StoreKVCacheParams)",
        "batched_transpose_16x64_pack_1x4_ediv_1x2_half",
    ],
    "communication": [
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    ],
    "optimizer": ["aten::_fused_adamw_"],
    "softmax": ["triton_per_fused__softmax_2"],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float> > >",
        "aten::argmax",
    ],
    "indexing": [
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


def test_a_softmax_or_sum_belongs_to_the_operation_around():
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
