"""The class of a kernel or an operation by its name."""

import re
from collections.abc import Iterable
from functools import lru_cache

CLASSES = (
    "contraction",
    "attention",
    "normalization",
    "elementwise",
    "copy",
    "communication",
    "optimizer",
    "softmax",
    "reduction",
    "indexing",
    "other",
)
CONTRACTION, ATTENTION, NORMALIZATION, ELEMENTWISE, COPY, COMMUNICATION, OPTIMIZER = CLASSES[:7]
SOFTMAX, REDUCTION, INDEXING, OTHER = CLASSES[7:]

RULES: tuple[tuple[str, str], ...] = (
    (
        COMMUNICATION,
        r"nccl|rccl|gloo|c10d::|mscclpp|cross_device_reduce|record_param_comms|all_?reduce|all_?gather|reduce_?scatter",
    ),
    (OPTIMIZER, r"^Optimizer\.step#|adam|lamb_kernel|aten::_foreach_|multi_tensor_apply|_fused_sgd"),
    (ELEMENTWISE, r"^triton_poi_"),
    (ATTENTION, r"fmha|flash|attention|attn|sdpa|mha_"),
    (
        NORMALIZATION,
        (
            r"layer_?norm|batch_?norm|group_?norm|instance_?norm|rms_?norm|rmsnorm|cudnn::bn_|bn_(fw|bw)_|BatchNorm"
            r"|RowwiseMoments|GammaBeta|InternalGradients|ComputeFusedParams"
        ),
    ),
    (
        CONTRACTION,
        (
            r"gemm|^bmm_|gemv|cublas|cutlass|xmma|nvjet|sm\d\d\d?_xmma|^Cijk_|hipblaslt|splitK"
            r"|^(cudnn_(infer|train)_)?(maxwell|volta|turing|ampere|hopper)_"
            r"|conv(?!ert)|wgrad|dgrad|winograd|cask|implicit|igemm|miopen|MIOpen|^triton_tem_|dot_kernel|matmul"
            r"|aten::(mm|bmm|addmm|baddbmm|addmv|mv|dot|linear|einsum|_scaled_mm|_grouped_mm|mkldnn_linear)\b"
            r"|\b(Mm|Bmm|Addmm|Linear)Backward|cudnn::(?!.*(pool|softmax))|nchwToNhwc|nhwcToNchw"
        ),
    ),
    (
        COPY,
        (
            r"copy|memcpy|memset|CatArray|SubTensorOpWith|store_kv_?cache|transpose|permute"
            r"|aten::(to|_to_copy|clone|contiguous|cat|fill_|zero_|as_strided|expand|resolve_conj|resolve_neg)\b"
        ),
    ),
    (
        ELEMENTWISE,
        (
            r"elementwise|fp8_quant|gelu|silu|relu|dropout|act_and_mul|rotary|rope_|_rope"
            r"|aten::(add|sub|mul|div|neg|exp|log|pow|sqrt|rsqrt|tanh|sigmoid|addcmul|addcdiv|lerp|where|masked_fill|clamp"
            r"|eq|ne|lt|le|gt|ge|abs|sin|cos|bitwise_\w+|logical_\w+|maximum|minimum|threshold_backward|threshold|fill"
            r"|tanh_backward|sigmoid_backward|native_dropout|native_dropout_backward|bernoulli_|normal_|uniform_)_?(\.\w+)?$"
        ),
    ),
    (SOFTMAX, r"softmax|cross_entropy"),
    (
        REDUCTION,
        (
            r"reduce_kernel|DeviceReduce|^triton_(red|per)_"
            r"|aten::(sum|mean|prod|(arg|a)?(max|min)|var|std|cumsum|\w*norm)\b"
        ),
    ),
    (INDEXING, r"index|gather|scatter|embedding|sort|topk|nonzero|routing"),
)
"""The first expression that matches a name decides its class. Case doesn't count."""

_PARTS = frozenset({SOFTMAX, REDUCTION, INDEXING})  # often part of a larger operation, as softmax is of attention

_COMPILED = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in RULES]


@lru_cache(maxsize=1 << 16)
def of_name(name: str) -> str | None:
    """Return None if no rule matches.

    >>> of_name("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"), of_name("ncclDevKernel_AllGather_RING")
    ('contraction', 'communication')
    """
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), None)


def of_kernel(name: str, operations: Iterable[str], *, in_optimizer: bool) -> str:
    """Return the class by the kernel's name, or else by the innermost operation that matches a rule.

    Softmax, reduction and indexing get the class of a larger operation around them, such as attention. All in an
    optimizer's step is "optimizer", except collectives.
    """
    kind = of_name(name)
    if in_optimizer and kind != COMMUNICATION:
        return OPTIMIZER
    groups = [group for group in (kind, *map(of_name, operations)) if group is not None]
    return next((group for group in groups if group not in _PARTS), groups[0] if groups else OTHER)
