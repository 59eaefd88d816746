"""Execution traces of PyTorch."""

from trace_figures.figures import Run, check


def execution_traces(run: Run) -> None:
    """Execution traces of torch 1.13 to 2.15: what the files say, and what a Kineto trace beside one says."""
    whose = "the file"
    theirs = {
        "linear_et.json.gz": (928, 710, 0),
        "resnet_2gpu_et.json.gz": (14389, 10818, 1),
    }
    for file, (nodes, operators, groups) in theirs.items():
        capture = f"capture = '{run.captures[file]['capture']}'"
        rows = run.query(
            f"SELECT COUNT(*) AS n, COUNT(*) FILTER (WHERE kind = 'operator') AS o, COUNT(depth) AS d FROM python.execution_trace WHERE {capture}"
        )[0]
        check(f"{file} nodes", rows["n"], nodes, whose)
        check(f"{file} operators", rows["o"], operators, whose)
        check(f"{file} nodes whose callers are all there", rows["d"], nodes, whose)
        found = run.query(f"SELECT group_name, description, group_size FROM python.process_groups WHERE {capture}")
        check(
            f"{file} process groups", [tuple(row.values()) for row in found], [("0", "default_pg", 2)][:groups], whose
        )


def execution_trace_beside(run: Run) -> None:
    """The execution trace and the Kineto trace of the same steps."""
    both = "FROM python.execution_trace e JOIN python.operators o ON o.record_function = e.record_function"
    # The other pair that lies there is of 2023, when Kineto did not write the number.
    for trace, kineto in [("execution_trace_1.1.1", "cpu_stacks_shapes")]:
        sql = f"SELECT COUNT(*) AS n, COUNT(*) FILTER (WHERE e.name = o.name) AS same {both} WHERE e.capture LIKE '{trace}%' AND o.capture LIKE '{kineto}%'"
        row = run.query(sql)[0]
        check(
            f"{trace} calls joined by record function have the same name in Kineto",
            row["same"],
            row["n"],
            "the two files",
        )
        check(f"{trace} calls are joined at all", row["n"] > 20, True, "the two files")
