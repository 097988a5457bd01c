"""What is made of results that lie on a disk: pages, traces, comparisons.

Takes result folders (docs/metrics.md), as `tllm bench --output` writes them; a folder of such
folders is a sweep. All but `stored` and `views` is pure.

    stored                what a result folder holds; refuses what is none
    scales, charts        axes and SVG, for any data
    figures, page         which charts a benchmark has, and the HTML page around them
    perfetto              the same as a trace to look at, request by request
    views                 both, in the folder itself
    compare               which differences are larger than the noise
"""
