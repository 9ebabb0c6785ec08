"""Dense peak FLOP/s of known devices, as their vendors publish them.

Most data sheets also print the peak for structured sparsity, twice as high, and some only that. Training accumulates in
float32: consumer GPUs then reach only half of their advertised peak, and the table has this lower number.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """Peaks in dense TFLOPS, and a pattern for the names that drivers report. None: not published, or not supported."""

    fp32: float | None
    tf32: float | None
    half: float  # of float16 and bfloat16
    fp8: float | None
    processors: int | None
    """Multiprocessors of the whole device as torch reports them, for Intel GPUs vector engines; None if it doesn't. A
    partition has the same name but fewer."""
    source: str
    name: str  # regular expression for the full name in lower case, without vendor and brand
    called: str
    """Example of a driver's name. If two devices have the same, it ends with an additional word, such as "10GB"."""
    bf16: bool = True
    fp4: float | None = None  # of NVFP4 and MXFP4
    arch: str | None = None
    """ROCm's architecture, which with the multiprocessors identifies an AMD Instinct without a device name."""

    @property
    def tflops(self) -> dict[str, float]:
        bf16 = self.half if self.bf16 else None
        names = ("float32", "tfloat32", "float16", "bfloat16", "float8", "float4")
        peaks = zip(names, (self.fp32, self.tf32, self.half, bf16, self.fp8, self.fp4), strict=True)
        return {dtype: peak for dtype, peak in peaks if peak is not None}


_NV = "https://www.nvidia.com/en-us/data-center"
_AMD = "https://www.amd.com/en/products/accelerators/instinct"
_AS_TORCH = "multiprocessors as torch counts them"
_KLOCKWOOD = "glennklockwood.com/garden/processors"
_GB200 = f"{_NV}/gb200-nvl72/, one chip; fp4: {_KLOCKWOOD}/B200 (secondary); {_AS_TORCH}"
_GB300 = f"{_NV}/gb200-nvl72/, one chip; fp4: 1.1 EFLOPS for 72 chips, {_KLOCKWOOD}/B300 (secondary); {_AS_TORCH}"
_DGX = "NVIDIA DGX B200 and DGX B300 data sheets, one of eight"
_B200 = f"{_DGX}; fp32: fibermall.com/blog/?p=17161, fp4: {_KLOCKWOOD}/B200 (both secondary); {_AS_TORCH}"
_B300 = f"{_DGX}; fp32, fp4: {_KLOCKWOOD}/B300 (secondary); {_AS_TORCH}"
_H200 = f"{_NV}/h200/"
_GH200 = f"{_NV}/grace-hopper-superchip/"
_H100 = f"{_NV}/h100/"
_H800 = "like the H100 SXM, except for NVLink and FP64"
_H20 = "NVIDIA H20 data sheet; multiprocessors as torch counts them"
_A100 = f"{_NV}/a100/"
_A100_64 = "124 multiprocessors (Top500: 1,824,768 cores of 13,824 GPUs and their CPUs) x 1410 MHz x 1024 multiply-adds"
_A30 = f"{_NV}/products/a30-gpu/"
_L40S = f"{_NV}/l40s/"
_L40 = f"{_NV}/l40/"
_L4 = f"{_NV}/l4/, halved: it prints sparse figures"
_A40 = f"{_NV}/a40/"
_A10G = "80 multiprocessors x 1710 MHz x 256 multiply-adds, as AWS states for G5 instances"
_A10 = f"{_NV}/products/a10-gpu/"
_GA102 = "NVIDIA Ampere GA102 whitepaper 2.0"
_6000 = "https://www.nvidia.com/en-us/design-visualization/rtx-6000/, halved: sparse"
_A5000 = "NVIDIA RTX A5000 data sheet, halved: it prints sparse figures"
_5000 = "NVIDIA RTX 5000 Ada Generation data sheet, divided: it prints 1044.4 for sparse float8"
_PRO = "188 multiprocessors x 2617 MHz x 512 multiply-adds, as hmc-tech.com prints"
_MAX_Q = "188 multiprocessors x 2288 MHz x 512 multiply-adds: the rates of the Workstation Edition"
_GB202 = "NVIDIA RTX Blackwell GPU architecture whitepaper, FP32 accumulate"
_ADA = "NVIDIA Ada GPU architecture whitepaper 2.01, FP32 accumulate"
_4080S = "80 multiprocessors x 2550 MHz x 256 multiply-adds: the rates of the RTX 4080"
_3080 = "68 or 70 multiprocessors x 1710 MHz x 256 multiply-adds: the rates of the RTX 3090"
_3090 = f"{_GA102}, FP32 accumulate"
_V100 = f"{_NV}/v100/"
_SXM3 = "NVIDIA DGX-2 data sheet, one of sixteen"
_P100 = "NVIDIA Tesla P100 data sheet. torch accumulates in float32, at the rate of float32"
_T4 = f"{_NV}/tesla-t4/"
_MI355 = f"{_AMD}/mi350/mi355x.html"
_MI350 = f"{_AMD}/mi350/mi350x.html"
_MI325 = f"{_AMD}/mi300/mi325x.html"
_MI300 = f"{_AMD}/mi300/mi300x.html"
_MI300A = f"{_AMD}/mi300/mi300a.html"
_MI250X = f"{_AMD}/mi200/mi250x.html, one of two dies, matrix cores"
_MI250 = f"{_AMD}/mi200/mi250.html, one of two dies, matrix cores"
_MI210 = f"{_AMD}/mi200/mi210.html, matrix cores"
_1550 = "Xe cores, of 8 vector engines each, x 1600 MHz x 2048 multiply-adds (Intel GPU Max Series Technical Overview)"
_1100 = "56 Xe cores x 1550 MHz x 2048 multiply-adds (Intel GPU Max Series Technical Overview)"
_ASCEND = "Huawei's torchtitan-npu: the peak of the cube units"
_910C = f"{_ASCEND}, one of two dies"
_MAX = "data center gpu max"
_GAUDI = "Intel Gaudi 2 whitepaper"
_TPU = "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm"

# fmt: off
DEVICES = (
    #    fp32,  tf32,  half,  fp8,  SMs,  source,  name, called
    Chip(80,    1250,  2500,  5000, 152,  _GB300, r"gb300", "NVIDIA GB300", fp4=15000),
    Chip(80,    1250,  2500,  5000, 152,  _GB200, r"gb200", "NVIDIA GB200", fp4=10000),
    Chip(75,    1125,  2250,  4500, 148,  _B300,  r"b300( sxm6( ac)?)?", "NVIDIA B300", fp4=13125),
    Chip(75,    1125,  2250,  4500, 148,  _B200,  r"b200( sxm6( ac)?)?", "NVIDIA B200", fp4=9000),
    Chip(60,    417.5, 835.5, 1671, 132,  _H200,  r"h200 nvl", "NVIDIA H200 NVL"),
    Chip(67,    494.5, 989.5, 1979, 132,  _H200,  r"h200( sxm5?)?( 141gb)?( hbm3e)?", "NVIDIA H200"),
    Chip(67,    494.5, 989.5, 1979, 132,  _GH200, r"gh200( (120gb|480gb|144g hbm3e))?", "NVIDIA GH200 480GB"),
    Chip(60,    417.5, 835.5, 1671, 132,  _H100,  r"h100 nvl", "NVIDIA H100 NVL"),
    Chip(51,    378,   756.5, 1513, 114,  _H100,  r"h100 pcie", "NVIDIA H100 PCIe"),
    Chip(67,    494.5, 989.5, 1979, 132,  _H100,  r"h100 (80gb hbm3|sxm5?( 80gb)?)", "NVIDIA H100 80GB HBM3"),
    Chip(67,    494.5, 989.5, 1979, 132,  _H800,  r"h800( sxm5?)?( 80gb)?( hbm3)?", "NVIDIA H800"),
    Chip(44,    74,    148,   296,  78,   _H20,   r"h20", "NVIDIA H20"),
    Chip(19.5,  156,   312,   None, 108,  _A100,  r"a[18]00( (sxm4?|pcie|40gb|80gb))*", "NVIDIA A100-SXM4-80GB"),
    Chip(22.4,  179,   358,   None, 124,  _A100_64, r"a100 sxm4? 64gb", "NVIDIA A100-SXM-64GB"),
    Chip(10.3,  82,    165,   None, 56,   _A30,   r"a30", "NVIDIA A30"),
    Chip(91.6,  183,   362,   733,  142,  _L40S,  r"l40s", "NVIDIA L40S"),
    Chip(90.5,  90.5,  181,   362,  142,  _L40,   r"l40", "NVIDIA L40"),
    Chip(30.3,  60,    121,   242,  58,   _L4,    r"l4", "NVIDIA L4"),
    Chip(37.4,  74.8,  149.7, None, 84,   _A40,   r"a40", "NVIDIA A40"),
    Chip(None,  35,    70,    None, 80,   _A10G,  r"a10g", "NVIDIA A10G"),
    Chip(31.2,  62.5,  125,   None, 72,   _A10,   r"a10", "NVIDIA A10"),
    Chip(38.7,  77.4,  154.8, None, 84,   _GA102, r"rtx a6000", "NVIDIA RTX A6000"),
    Chip(27.8,  55.5,  111.1, None, 64,   _A5000, r"rtx a5000", "NVIDIA RTX A5000"),
    Chip(91.1,  182,   364,   728,  142,  _6000,  r"rtx 6000 ada generation", "NVIDIA RTX 6000 Ada Generation"),
    Chip(65.3,  130.6, 261,   522,  100,  _5000,  r"rtx 5000 ada generation", "NVIDIA RTX 5000 Ada Generation"),
    Chip(126,   251.9, 503.8, 1007, 188,  _PRO,
         r"rtx pro 6000 blackwell workstation edition",
         "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    Chip(110.1, 220.2, 440.5, 881,  188,  _MAX_Q,
         r"rtx pro 6000 blackwell max q workstation edition",
         "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"),
    Chip(104.8, 104.8, 209.5, 419,  170,  _GB202, r"rtx 5090", "NVIDIA GeForce RTX 5090"),
    Chip(56.3,  56.3,  112.6, 225,  84,   _GB202, r"rtx 5080", "NVIDIA GeForce RTX 5080"),
    Chip(82.6,  82.6,  165.2, 330,  128,  _ADA,   r"rtx 4090", "NVIDIA GeForce RTX 4090"),
    Chip(52.2,  52.2,  104.4, 209,  80,   _4080S, r"rtx 4080 super", "NVIDIA GeForce RTX 4080 SUPER"),
    Chip(48.7,  48.7,  97.5,  195,  76,   _ADA,   r"rtx 4080", "NVIDIA GeForce RTX 4080"),
    Chip(35.6,  35.6,  71,    None, 82,   _3090,  r"rtx 3090", "NVIDIA GeForce RTX 3090"),
    Chip(29.8,  29.8,  59.5,  None, 68,   _3080,  r"rtx 3080( 10gb)?", "NVIDIA GeForce RTX 3080 10GB"),
    Chip(30.6,  30.6,  61.3,  None, 70,   _3080,  r"rtx 3080( 12gb)?", "NVIDIA GeForce RTX 3080 12GB"),
    Chip(15.7,  None,  125,   None, 80,   _SXM3,  r"v100 sxm3 32gb", "Tesla V100-SXM3-32GB", bf16=False),
    Chip(15.7,  None,  125,   None, 80,   _V100,  r"v100 sxm2( (16|32)gb)?", "Tesla V100-SXM2-32GB", bf16=False),
    Chip(14,    None,  112,   None, 80,   _V100,  r"v100 pcie( (16|32)gb)?", "Tesla V100-PCIE-32GB", bf16=False),
    Chip(10.6,  None,  10.6,  None, 56,   _P100,  r"p100 sxm2( 16gb)?", "Tesla P100-SXM2-16GB", bf16=False),
    Chip(9.3,   None,  9.3,   None, 56,   _P100,  r"p100 pcie( (12|16)gb)?", "Tesla P100-PCIE-16GB", bf16=False),
    Chip(8.1,   None,  65,    None, 40,   _T4,    r"t4", "Tesla T4", bf16=False),
    Chip(157.3, None,  2500,  5000, 256,  _MI355, r"mi355x( (vf|oam))?", "AMD Instinct MI355X", arch="gfx950"),
    Chip(144.2, None,  2310,  4614, 256,  _MI350, r"mi350x( (vf|oam))?", "AMD Instinct MI350X", arch="gfx950"),
    Chip(163.4, 653.7, 1307,  2610, 304,  _MI325, r"mi325x( (vf|oam))?", "AMD Instinct MI325X", arch="gfx942"),
    Chip(163.4, 653.7, 1307,  2610, 304,  _MI300, r"mi300x( (vf|oam))?", "AMD Instinct MI300X", arch="gfx942"),
    Chip(122.6, 490.3, 980.6, 1961, 228,  _MI300A, r"mi300a", "AMD Instinct MI300A", arch="gfx942"),
    Chip(47.9,  None,  191.5, None, 110,  _MI250X, r"mi250x( mi250)?", "AMD Instinct MI250X", arch="gfx90a"),
    Chip(45.3,  None,  181,   None, 104,  _MI250, r"(mi250x )?mi250", "AMD Instinct MI250", arch="gfx90a"),
    Chip(45.3,  None,  181,   None, 104,  _MI210, r"mi210", "AMD Instinct MI210", arch="gfx90a"),
    Chip(52.4,  419.4, 838.9, None, 1024, _1550,  rf"{_MAX} 1550( 1024)?", "Intel Data Center GPU Max 1550 1024"),
    Chip(45.9,  367,   734,   None, 896,  _1550,  rf"{_MAX} 1550( 896)?", "Intel Data Center GPU Max 1550 896"),
    Chip(26.2,  209.7, 419.4, None, 512,  _1550,  rf"{_MAX} 1550( 512)?", "Intel Data Center GPU Max 1550 512"),
    Chip(22.9,  183.5, 367,   None, 448,  _1550,  rf"{_MAX} 1550( 448)?", "Intel Data Center GPU Max 1550 448"),
    Chip(22.2,  177.8, 355.5, None, 448,  _1100,  rf"{_MAX} 1100", "Intel(R) Data Center GPU Max 1100"),
    Chip(None,  None,  373.9, None, None, _ASCEND, r"ascend910b1", "Ascend910B1"),
    Chip(None,  None,  353.9, None, None, _ASCEND, r"ascend910b2c?", "Ascend910B2"),
    Chip(None,  None,  294.9, None, None, _ASCEND, r"ascend910b3", "Ascend910B3"),
    Chip(None,  None,  245.8, None, None, _ASCEND, r"ascend910b4( 1)?", "Ascend910B4"),
    Chip(None,  None,  353.9, None, None, _910C,  r"ascend910 93[69]2", "Ascend910_9392"),
    Chip(None,  None,  432,   865,  None, _GAUDI, r"gaudi ?2", "GAUDI2"),
    Chip(None,  None,  918,   None, None, _TPU,   r"tpu v6e|tpu v6 lite", "TPU v6 lite"),
    Chip(None,  None,  459,   None, None, _TPU,   r"tpu v5p?", "TPU v5p"),
    Chip(None,  None,  197,   None, None, _TPU,   r"tpu v5e|tpu v5 lite", "TPU v5 lite"),
    Chip(None,  None,  275,   None, None, _TPU,   r"tpu v4", "TPU v4"),
)
# fmt: on
