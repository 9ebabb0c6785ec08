"""The registry of the report's figures: what each figure means, which records it reads, and what it leaves out.

`make tables` writes the registry into `docs/report.md`. The page shows the same texts with the values of the run.
A figure that is also a metric takes its texts from the registry of metrics.
"""

from perf_callbacks.kernel.records.metric_table import BY_NAME
from perf_callbacks.report.page_figure import PageFigure
from perf_callbacks.report.profile_figures import PROFILE_FIGURES


def _metric(name: str, title: str, source: str, addition: str = "") -> PageFigure:
    metric = BY_NAME[name]
    left_out = BY_NAME["tflops"].left_out if name == "mfu" else metric.left_out
    meaning = metric.meaning.replace("](#", "](metrics.md#")
    return PageFigure(name=name, title=title, meaning=f"{meaning}{addition}", source=source, left_out=left_out)


_ALL_RANKS = "; on the page over the steps of all ranks"
_FLOPS_SOURCE = "`steps`: `model_flops`, `step_time`; `flops`; `summary.flops`"

FIGURES = (
    _metric("step_time", "step time", "`steps`: `step_time`", f"{_ALL_RANKS}, their sum divided by their number"),
    _metric("mfu", "MFU", f"{_FLOPS_SOURCE}: the peak and its source", _ALL_RANKS),
    _metric("tflops", "TFLOPS", _FLOPS_SOURCE, _ALL_RANKS),
    _metric("tokens_per_second", "tokens/s", "`window` of rank 0, or else `summary`"),
    _metric("samples_per_second", "samples/s", "`window` of rank 0, or else `summary`"),
    PageFigure(
        name="gc",
        title="garbage collection",
        meaning="the sum of all garbage collections of rank 0 in its last attempt, in and outside of steps",
        source="`summary.gc`",
        left_out="the checklist's first full collection, other ranks and earlier attempts",
    ),
    PageFigure(
        name="run_time",
        title="run time",
        meaning="the time from the first record to the last, summed over the attempts of rank 0",
        source="the time `t` of each record; `run`",
        left_out="the time before measuring began, and between attempts",
    ),
    PageFigure(
        name="findings",
        title="What limits the run",
        meaning="each cause with the largest share of the wall time after startup that its remedy could save. "
        "[docs/verdict.md](verdict.md) has the rule of each cause",
        source="`finding`, or `summary.findings`; of rank 0, or of the rank that hangs",
        left_out="causes that could save less than 1 %. Shares overlap, so they don't add up",
        columns={
            "cause": "the rule that found this",
            "could save": "seconds that the remedy could save, divided by the wall time after startup: an estimate",
            "evidence": "the figures that the rule saw, over the whole run",
            "try": "a line to write, or an action to take",
        },
    ),
    PageFigure(
        name="stragglers",
        title="Stragglers",
        meaning="for each slow rank and cause, the time by which the compared steps would have been shorter without it",
        source="`summary.stragglers` of rank 0",
        left_out="uneven batches, uneven stages of a pipeline and chance, which the note gives. Steps that were not "
        "compared",
        columns={
            "rank": "the slow rank, or a set of ranks of which each delays the job",
            "cause": "the part of the step in which the rank exceeds the others",
            "cost": "seconds that the job lost",
            "steps": "number of steps with this cause",
            "try": "change that helps",
        },
    ),
    PageFigure(
        name="stalls",
        title="Stalls",
        meaning="each time in which no step ended for longer than the setting `stall_after`",
        source="`stall` of all ranks; a stall that two ranks recorded counts once",
        columns={
            "after step": "last step that ended before the stall",
            "rank": "rank that stalled",
            "stage": "stage in which its training thread was",
            "duration": "time of the step, evaluation or checkpoint that stalled; if it never ended, until the "
            "rank's last record",
            "at": "innermost line of the Python stack",
        },
    ),
    PageFigure(
        name="steps",
        title="Step time over the steps",
        meaning="the line is the mean time of a step, over the steps of a point and all ranks; the band goes from the "
        "shortest to the longest of them. A dot is a step that took 1.5 times the median of its rank",
        source="`steps`: `step_time`",
        left_out="excluded steps, which are dots if they are slow. Steps that a later attempt repeated. Of more than "
        "300 slow steps, all but the slowest 300",
    ),
    PageFigure(
        name="marks",
        title="Events",
        meaning="each event at its step: evaluations, checkpoints, restarts and FLOP counts of rank 0, collections "
        "and stalls of all ranks, stragglers",
        source="`span`, `run`, `steps`: `excluded`, `gc`, `straggler`, `stall`",
        left_out="of more than 300 events of a kind, all but the longest 300",
    ),
    PageFigure(
        name="rate",
        title="MFU over the steps",
        meaning="model FLOPs of the steps of a point, divided by their time and the peak; the band goes from the "
        "lowest to the highest step. Without a peak: TFLOPS",
        source=_FLOPS_SOURCE,
        left_out=BY_NAME["tflops"].left_out + ". Steps with unknown FLOPs",
    ),
    PageFigure(
        name="stages",
        title="Stages of a step",
        meaning="time in each stage, divided by the time of the steps, over the steps of a point and all ranks",
        source="`steps`: `data_time` and the other stages",
        left_out="excluded steps, and stages that were never entered",
    ),
    PageFigure(
        name="account",
        title="Wall time",
        meaning="the parts of the wall time of rank 0. They sum to the whole",
        source="`summary.wall_seconds`",
        left_out="the time before measuring began, and earlier attempts",
    ),
    PageFigure(
        name="goodput",
        title="Time since the first start",
        meaning="the time of all attempts by kind, with the downtime between attempts. Steps that a later attempt did "
        "again are rolled back. ETTR is the time of surviving steps, with their waits, as a share of all time "
        "([goodput.md](goodput.md))",
        source="`run`, `steps`, `span`, `stall` and `straggler` of rank 0, of all attempts",
        left_out="time after the last record of an attempt counts as downtime",
    ),
    PageFigure(
        name="peak",
        title="Peak",
        meaning="MFU; recomputation and the optimizer's products: MFU x (executed FLOPs / model FLOPs - 1), of the "
        "last counted step; and the rest of the peak. The first two are HFU",
        source=f"{_FLOPS_SOURCE}; `flops`: `hardware_flops`",
        left_out=BY_NAME["hardware_tflops"].left_out,
    ),
    PageFigure(
        name="heat",
        title="Ranks over the steps",
        meaning="a cell is the median time of a rank in some steps, minus that of the median rank. The colour is its "
        "square root, full at half a step",
        source="`steps` of all ranks",
        left_out="excluded steps, and all but the 64 ranks that exceed the median rank most",
    ),
    PageFigure(
        name="worst",
        title="Slowest steps",
        meaning="the slowest steps of all ranks, also excluded ones. A step that is slow on several ranks is listed "
        "once",
        source="`steps`, `gc` of all ranks",
        left_out="all but the slowest twelve. A backward that only waits for a late rank is not named as the cause",
        columns={
            "step": "number of the step",
            "time": "its duration on the slowest rank",
            "of median": "that duration divided by the median step of the rank",
            "rank": "rank with the longest stage",
            "where": "the stage that exceeded the rank's median most, and by how much",
            "remarks": "collections in the step, and the reason if the step is excluded",
        },
    ),
    PageFigure(
        name="ranks",
        title="Median times by rank",
        meaning="the median time of each rank in a step and in each stage",
        source="`steps` of all ranks",
        left_out="excluded steps. In runs of more than 10,000 steps, some thousand steps spread over the run stand "
        "for all",
        columns={
            **{
                name.removesuffix("_time"): metric.meaning for name, metric in BY_NAME.items() if name.endswith("_time")
            },
            "rank": "number of the rank",
            "step": "median of the rank's steps",
        },
    ),
    *PROFILE_FIGURES,
    PageFigure(
        name="products",
        title="Heaviest products",
        meaning="the matrix products with most FLOPs in one counted step of rank 0, equal ones added up",
        source="`flops`: `products`",
        left_out="lighter products",
        columns={
            "operation": "torch's operation",
            "shapes": "sizes of its operands",
            "format": "number format of its operands",
            "FLOPs": "executed FLOPs of the step, 2 per multiplication and addition",
            "share": "of all executed FLOPs of the step",
            "shape advice": "sizes that fit tensor cores better",
        },
    ),
    PageFigure(
        name="phases",
        title="FLOPs of a step",
        meaning="executed FLOPs of one counted step of rank 0, by the phase in which they ran",
        source="`flops`: `by_phase`",
        left_out=BY_NAME["hardware_tflops"].left_out,
        columns={
            "phase": "part of the step. `recompute`: again in the backward, by checkpointing; `attention recompute`: "
            "by fused attention",
            "FLOPs": "executed FLOPs",
            "share": "of all executed FLOPs of the step",
        },
    ),
    PageFigure(
        name="uncounted",
        title="Uncounted work",
        meaning="work of the counted step that has no formula, large copies, and reads for which the host waits or "
        "that Python makes",
        source="`flops`: `uncounted`, `errors`, `copies`, `reads`, `values_read`, `coverage`; `summary.flops`",
        left_out="small copies. Rows beyond the fiftieth",
        columns={
            "what": "kind of work",
            "where": "operation, or line of the program",
            "how much": "number of calls, reads or values in the counted step, or bytes of a copy",
        },
    ),
    PageFigure(
        name="modules",
        title="FLOPs by module",
        meaning="each product belongs to the innermost module whose forward ran it, and its gradients to the same "
        "module. Layers of a list share a row",
        source="`flops.modules` of rank 0",
        left_out="work of later steps. Rows beyond the tenth: `perf-callbacks profile DIR` shows up to 40",
        columns={
            "module": "path in the model; a star stands for the layers of a list",
            "modules": "number of modules of the row",
            "FLOPs": "executed FLOPs of the counted step",
            "share": "of all executed FLOPs",
            "parameters": "own parameters, without submodules",
            "activations": "tensors that the forward made and that were alive when the backward began",
        },
    ),
    PageFigure(
        name="memory",
        title="Memory of a step",
        meaning="each part of the memory of one step at its largest. The parts are largest at different moments, so "
        "their sum may exceed the peak",
        source="`memory` of rank 0",
        left_out="tensors on other devices, such as offloaded ones; on a CPU also loaded batches and buckets of DDP",
    ),
    PageFigure(
        name="Load",
        title="Load over the steps",
        meaning="CPU time of rank 0 and the processes that it started, divided by the time of the CPUs that it may "
        "use; and the share of time in which a kernel ran on its GPU",
        source="`use` of rank 0: `cpu_load`, `gpu_utilization`, every ten seconds",
        left_out="how much of the GPU a kernel used",
    ),
    PageFigure(
        name="Memory",
        title="Memory over the steps",
        meaning="host memory of rank 0 and the processes that it started, and memory in use on its GPU by all "
        "processes",
        source="`use` of rank 0: `resident_gb`, `gpu_memory_gb`, every ten seconds",
        left_out="peaks between two records. Memory that processes share counts once per process",
    ),
    PageFigure(
        name="checklist",
        title="Startup checklist",
        meaning="each item as its last record says",
        source="`checklist` of rank 0",
        left_out="the gain of an item, which `perf-callbacks try` measures",
        columns={
            "item": "a change that the callback makes, or advises",
            "status": "applied, already so, advised, not applicable, skipped or failed",
            "state": "state before, and after",
            "why": "reason of the status",
        },
    ),
    PageFigure(
        name="comparison",
        title="Comparison",
        meaning="each metric over the last attempt of both runs, all ranks: of a step, the slowest rank counts. The "
        "interval holds the true change with 99 % probability. [docs/compare.md](compare.md) explains the verdict",
        source="`steps`, `summary.flops`, `memory` and `use` of both runs",
        left_out="excluded steps and earlier attempts. The tiles above are means over all ranks, so they may differ",
        columns={
            "metric": "a rate is per rank",
            "A": "this run: mean over the steps",
            "B": "the second run: mean over the steps",
            "change": "of B, relative to A",
            "99 % interval": "chance alone leaves the change in this range; empty for amounts of memory",
            "verdict": "worse, better or same by at least 5 % more time, or undecided",
        },
    ),
    PageFigure(
        name="differences",
        title="Differences",
        meaning="facts and settings that differ between the two runs, as their last attempts recorded them",
        source="`run` and `checklist` of both runs",
        left_out="what no record holds: data, code, other programs on the machine",
        columns={"what": "name of the fact", "A": "its value in this run", "B": "its value in the second run"},
    ),
    PageFigure(
        name="environment",
        title="Run, versions and settings",
        meaning="facts about the run, versions, and the settings of the callback",
        source="`run` of the last attempt of rank 0",
        left_out="values that look like secrets, which are stars in the command line",
        columns={"name": "name of the fact", "value": "its value", "set by": "the environment or the file that set it"},
    ),
)

BY_FIGURE = {figure.name: figure for figure in FIGURES}
