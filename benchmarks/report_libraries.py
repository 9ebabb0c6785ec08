"""The same three charts by plotly and bokeh, to compare the size and the opening time of their pages with a report's.

pip install plotly bokeh
python benchmarks/report.py --keep out
python benchmarks/report_libraries.py out/perf_callbacks/report.html out
node benchmarks/report_page.mjs --open out/perf_callbacks/report.html out/plotly.html out/bokeh.html
"""

import argparse
import json
import re
from math import nan
from pathlib import Path


def content(page: Path) -> dict:
    """The data of a report."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def by_plotly(data: dict, path: Path) -> None:
    from plotly.subplots import make_subplots

    steps, rate, stages = data["steps"], data["rate"], data["stages"]
    drawn = make_subplots(rows=3, cols=1, shared_xaxes=True)
    drawn.add_scatter(x=steps["x"], y=steps["most"], line_width=0, row=1, col=1)
    drawn.add_scatter(x=steps["x"], y=steps["least"], line_width=0, fill="tonexty", row=1, col=1)
    drawn.add_scatter(x=steps["x"], y=steps["mean"], row=1, col=1)
    slow = [*zip(*steps["outliers"], strict=True)]
    drawn.add_scatter(x=slow[0], y=slow[1], mode="markers", row=1, col=1)
    drawn.add_scatter(x=steps["x"], y=rate["mean"], row=2, col=1)
    for name, shares in zip(stages["names"], stages["shares"], strict=True):
        drawn.add_scatter(x=steps["x"], y=shares, name=name, stackgroup="stages", row=3, col=1)
    drawn.write_html(path, include_plotlyjs=True)


def by_bokeh(data: dict, path: Path) -> None:
    from bokeh.embed import file_html
    from bokeh.layouts import column
    from bokeh.palettes import Category10
    from bokeh.plotting import figure
    from bokeh.resources import INLINE

    def known(values: list) -> list:
        return [nan if value is None else value for value in values]

    steps, rate, stages = data["steps"], data["rate"], data["stages"]
    times = figure(width=1100, height=250)
    times.varea(x=steps["x"], y1=known(steps["least"]), y2=known(steps["most"]), alpha=0.2)
    times.line(steps["x"], known(steps["mean"]))
    slow = [*zip(*steps["outliers"], strict=True)]
    times.scatter([*slow[0]], [*slow[1]])
    rates = figure(width=1100, height=200, x_range=times.x_range)
    rates.line(steps["x"], known(rate["mean"]))
    shares = figure(width=1100, height=200, x_range=times.x_range)
    names = stages["names"]
    columns = {"x": steps["x"], **dict(zip(names, map(known, stages["shares"]), strict=True))}
    shares.varea_stack(names, x="x", source=columns, color=Category10[10][: len(names)])
    path.write_text(file_html(column(times, rates, shares), INLINE, "steps"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    data = content(arguments.page)
    by_plotly(data, arguments.directory / "plotly.html")
    by_bokeh(data, arguments.directory / "bokeh.html")


if __name__ == "__main__":
    main()
