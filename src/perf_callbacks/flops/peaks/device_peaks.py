"""Dense peaks of known devices, as published by the makers.

Dense means without structured sparsity. Most data sheets print the doubled figure for sparse matrices, and some print
only that figure. Training accumulates in float32. On consumer cards this halves the advertised figures, and the table
has the halved figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeakRow:
    """A device, with all names that drivers report for it."""

    name: str
    """A regular expression for the whole name, in lower case, without its maker and its brand."""
    tflops: Mapping[str, float]
    """Dense peak by torch's dtype name. A missing dtype is not published, or not supported."""
    source: str
    processors: int | None
    """Multiprocessors of the whole device, as torch counts. A partition has fewer under the same name."""
    fma: int | None
    """Multiply-adds of one multiprocessor in one clock, in bfloat16 or else float16."""
    called: str
    """Example of a name that the driver reports."""


def _row(  # noqa: PLR0917 the columns of a table
    fp32: float | None,
    tf32: float | None,
    half: float,
    fp8: float | None,
    processors: int | None,
    fma: int | None,
    source: str,
    name: str,
    called: str,
    *,
    bf16: bool = True,
) -> PeakRow:
    published = {"float32": fp32, "tfloat32": tf32, "float16": half, "bfloat16": half if bf16 else None, "float8": fp8}
    tflops = {dtype: peak for dtype, peak in published.items() if peak is not None}
    return PeakRow(name, tflops, source, processors, fma, called)


_NV = "https://www.nvidia.com/en-us/data-center"
_AMD = "https://www.amd.com/en/products/accelerators/instinct"
_GB200 = f"{_NV}/gb200-nvl72/, one chip; multiprocessors as torch counts them"
_B200 = "NVIDIA DGX B200 and DGX B300 data sheets, one of eight; multiprocessors as torch counts them"
_H200 = f"{_NV}/h200/"
_GH200 = f"{_NV}/grace-hopper-superchip/"
_H100 = f"{_NV}/h100/"
_H800 = "like the H100 SXM, except for NVLink and FP64"
_H20 = "NVIDIA H20 data sheet; multiprocessors as torch counts them"
_A100 = f"{_NV}/a100/"
_A30 = f"{_NV}/products/a30-gpu/"
_L40S = f"{_NV}/l40s/"
_L40 = f"{_NV}/l40/"
_L4 = f"{_NV}/l4/, halved: it prints sparse figures"
_A40 = f"{_NV}/a40/"
_A10G = "80 multiprocessors x 1710 MHz x 256 multiply-adds, as AWS states for G5 instances"
_A10 = f"{_NV}/products/a10-gpu/"
_GA102 = "NVIDIA Ampere GA102 whitepaper 2.0"
_6000 = "https://www.nvidia.com/en-us/design-visualization/rtx-6000/, halved: sparse"
_GB202 = "NVIDIA RTX Blackwell GPU architecture whitepaper, FP32 accumulate"
_ADA = "NVIDIA Ada GPU architecture whitepaper 2.01, FP32 accumulate"
_3090 = f"{_GA102}, FP32 accumulate"
_V100 = f"{_NV}/v100/"
_T4 = f"{_NV}/tesla-t4/"
_MI355 = f"{_AMD}/mi350/mi355x.html"
_MI325 = f"{_AMD}/mi300/mi325x.html"
_MI300 = f"{_AMD}/mi300/mi300x.html"
_MI250X = f"{_AMD}/mi200/mi250x.html, one of two dies"
_MI250 = f"{_AMD}/mi200/mi250.html, one of two dies"
_GAUDI = "Intel Gaudi 2 whitepaper"
_TPU = "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm"

# fmt: off
DEVICES = (
    #    fp32,  tf32,  half,  fp8,  SMs,  fma,  source,  name, called
    _row(80,    1250,  2500,  5000, 152,  None, _GB200,  r"gb[23]00", "NVIDIA GB200"),
    _row(80,    1125,  2250,  4500, 148,  None, _B200,   r"b[23]00( sxm6( ac)?)?", "NVIDIA B200"),
    _row(60,    417.5, 835.5, 1671, 132,  2048, _H200,   r"h200 nvl", "NVIDIA H200 NVL"),
    _row(67,    494.5, 989.5, 1979, 132,  2048, _H200,   r"h200( sxm5?)?( 141gb)?( hbm3e)?", "NVIDIA H200"),
    _row(67,    494.5, 989.5, 1979, 132,  2048, _GH200,  r"gh200( (120gb|480gb|144g hbm3e))?", "NVIDIA GH200 480GB"),
    _row(60,    417.5, 835.5, 1671, 132,  2048, _H100,   r"h100 nvl", "NVIDIA H100 NVL"),
    _row(51,    378,   756.5, 1513, 114,  2048, _H100,   r"h100 pcie", "NVIDIA H100 PCIe"),
    _row(67,    494.5, 989.5, 1979, 132,  2048, _H100,   r"h100 (80gb hbm3|sxm5?( 80gb)?)", "NVIDIA H100 80GB HBM3"),
    _row(67,    494.5, 989.5, 1979, 132,  2048, _H800,   r"h800( sxm5?)?( 80gb)?( hbm3)?", "NVIDIA H800"),
    _row(44,    74,    148,   296,  78,   None, _H20,    r"h20", "NVIDIA H20"),
    _row(19.5,  156,   312,   None, 108,  1024, _A100,   r"a[18]00( (sxm4?|pcie|40gb|80gb))*", "NVIDIA A100-SXM4-80GB"),
    _row(10.3,  82,    165,   None, 56,   1024, _A30,    r"a30", "NVIDIA A30"),
    _row(91.6,  183,   362,   733,  142,  512,  _L40S,   r"l40s", "NVIDIA L40S"),
    _row(90.5,  90.5,  181,   362,  142,  256,  _L40,    r"l40", "NVIDIA L40"),
    _row(30.3,  60,    121,   242,  58,   512,  _L4,     r"l4", "NVIDIA L4"),
    _row(37.4,  74.8,  149.7, None, 84,   512,  _A40,    r"a40", "NVIDIA A40"),
    _row(None,  35,    70,    None, 80,   256,  _A10G,   r"a10g", "NVIDIA A10G"),
    _row(31.2,  62.5,  125,   None, 72,   512,  _A10,    r"a10", "NVIDIA A10"),
    _row(38.7,  77.4,  154.8, None, 84,   512,  _GA102,  r"rtx a6000", "NVIDIA RTX A6000"),
    _row(91.1,  182,   364,   728,  142,  512,  _6000,   r"rtx 6000 ada generation", "NVIDIA RTX 6000 Ada Generation"),
    _row(104.8, 104.8, 209.5, 419,  170,  256,  _GB202,  r"rtx 5090", "NVIDIA GeForce RTX 5090"),
    _row(82.6,  82.6,  165.2, 330,  128,  256,  _ADA,    r"rtx 4090", "NVIDIA GeForce RTX 4090"),
    _row(48.7,  48.7,  97.5,  195,  76,   256,  _ADA,    r"rtx 4080", "NVIDIA GeForce RTX 4080"),
    _row(35.6,  35.6,  71,    None, 82,   256,  _3090,   r"rtx 3090", "NVIDIA GeForce RTX 3090"),
    _row(15.7,  None,  125,   None, 80,   512,  _V100,   r"v100 sxm2( (16|32)gb)?", "Tesla V100-SXM2-32GB", bf16=False),
    _row(8.1,   None,  65,    None, 40,   512,  _T4,     r"t4", "Tesla T4", bf16=False),
    _row(157.3, None,  2500,  5000, 256,  None, _MI355,  r"mi355x( (vf|oam))?", "AMD Instinct MI355X"),
    _row(163.4, 653.7, 1307,  2610, 304,  1024, _MI325,  r"mi325x( (vf|oam))?", "AMD Instinct MI325X"),
    _row(163.4, 653.7, 1307,  2610, 304,  1024, _MI300,  r"mi300x( (vf|oam))?", "AMD Instinct MI300X"),
    _row(23.95, None,  191.5, None, 110,  512,  _MI250X, r"mi250x( mi250)?", "AMD Instinct MI250X"),
    _row(22.65, None,  181,   None, 104,  512,  _MI250,  r"(mi250x )?mi250", "AMD Instinct MI250"),
    _row(None,  None,  432,   865,  None, None, _GAUDI,  r"gaudi ?2", "HL-GAUDI2"),
    _row(None,  None,  918,   None, None, None, _TPU,    r"tpu v6e|tpu v6 lite", "TPU v6 lite"),
    _row(None,  None,  459,   None, None, None, _TPU,    r"tpu v5p", "TPU v5p"),
    _row(None,  None,  197,   None, None, None, _TPU,    r"tpu v5e|tpu v5 lite", "TPU v5 lite"),
    _row(None,  None,  275,   None, None, None, _TPU,    r"tpu v4", "TPU v4"),
)
# fmt: on
"""Devices with a published dense peak."""
