"""``report.html``: one file, made of ``result.json`` and nothing else."""
