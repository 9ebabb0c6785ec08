"""Figures that the report shows for profiled steps."""

from perf_callbacks.report.page_figure import PageFigure

PROFILE_FIGURES = (
    PageFigure(
        name="profile_time",
        title="Time of the profiled steps",
        meaning="the time of the profiled steps: busy, and idle by its cause. Busy: a kernel, a copy or a collective "
        "ran on the device. Exposed communication: only collectives ran. "
        "[docs/profile.md](profile.md#why-does-a-device-idle) explains the causes",
        source="`profile` of all ranks: `span_seconds`, `busy_seconds`, `idle_seconds`, "
        "`exposed_communication_seconds`",
        left_out="all other steps. The profiler slows these steps down, mostly the host",
    ),
    PageFigure(
        name="profile_classes",
        title="Busy time by class",
        meaning="busy time of the profiled steps by the class of the kernel, or on a CPU of the operation. "
        "[docs/profile.md](profile.md#what-are-the-classes) lists the classes. They sum to the busy time",
        source="`profile`: `class_seconds`",
    ),
    PageFigure(
        name="profiled_modules",
        title="Time by module",
        meaning="busy time of what the module's forward launched, and of its gradients in the backward, by module path "
        "of at most three levels. A row does not include the time of longer paths that have a row",
        source="`profile`: `module_seconds`, `module_backward_seconds`; `flops.modules`; `steps`: `model_flops`; the "
        "peak",
        left_out="modules in compiled code, which count for the module around them. Sums of gradients over "
        "micro-batches, which belong to no module. Rows beyond the tenth: `perf-callbacks profile DIR` shows up to 100",
        columns={
            "module": "path in the model; a star stands for the layers of a list",
            "forward": "busy time in the forward; — for the optimizer, and for work outside of modules",
            "backward": "busy time in the backward, with recomputation",
            "share": "of the busy time",
            "MFU": "model FLOPs of the module in the profiled steps, divided by its busy time and the peak. The FLOPs "
            "of a step are divided among the modules as in the counted step",
        },
    ),
    PageFigure(
        name="operations",
        title="Heaviest operations",
        meaning="the ten operations with the most busy time in the profiled steps, by name and input shapes",
        source="`profile`: `operations`, `flops`",
        left_out="lighter operations. FLOPs of operations without a known formula, and of compiled code",
        columns={
            "operation": "torch's operation; without a link from kernel to operation, the kernel",
            "shapes": "sizes of its inputs",
            "class": "class of its kernels",
            "calls": "number of its kernels; on a CPU, of its calls",
            "time": "busy time of its kernels",
            "share": "of the busy time",
            "FLOPs": "of matrix products, convolutions and fused attention, 2 per multiplication and addition",
            "share of FLOPs": "of the FLOPs of all operations in the trace",
        },
    ),
    PageFigure(
        name="copies",
        title="Copies",
        meaning="the ten kinds of copies with the most busy time in the profiled steps",
        source="`profile`: `copies`",
        left_out="copies of less than 0.1 % of the busy time",
        columns={
            "copy": "operation that the program called",
            "kind": "layout, a change of number format, or a direction between host and device",
            "line": "innermost Python function outside of torch, if the trace has stacks",
            "calls": "number of copies",
            "time": "busy time of the copies",
            "share": "of the busy time",
        },
    ),
    PageFigure(
        name="waits",
        title="Idle time after waits for the device",
        meaning="idle time of the device because the host had waited for the device, by the place of the wait",
        source="`profile`: `sync_seconds`",
        left_out="waits that cost less than 0.1 % of the time",
        columns={
            "place": "innermost Python function outside of torch, or the operation that waits",
            "time": "idle time after the waits",
            "share": "of the time of the profiled steps",
        },
    ),
)
