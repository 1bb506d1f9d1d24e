"""The Grafana dashboards of the chart, written from panels.py.

python -m tools.dashboards            write helm/ropeteam/files/dashboards
python -m tools.dashboards --check    say what differs from what would be written; exit status 1 if anything

Plain dictionaries: what Grafana wants of a panel fits on a page. Limit: made for Grafana 10 and newer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tools import generated
from tools.panels import DASHBOARDS, Dashboard, Panel

FOLDER = Path(__file__).resolve().parent.parent / "helm" / "ropeteam" / "files" / "dashboards"
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def to_json(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard in the form that Grafana imports."""
    return {
        "uid": f"ropeteam-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["ropeteam"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(*each) for each in dashboard.variables.items())]},
        "panels": _placed(dashboard.rows),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(name: str, query: str) -> dict[str, Any]:
    choice = {
        "includeAll": True,
        "multi": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }
    query_settings = {"query": {"query": query, "refId": name}, "refresh": 2, "sort": 1}
    return {"name": name, "type": "query", "datasource": SOURCE, **query_settings, **choice}


def _placed(rows: dict[str, tuple[Panel, ...]]) -> list[dict[str, Any]]:
    """Rows from top to bottom, panels from left to right."""
    made: list[dict[str, Any]] = []
    y = 0
    for title, panels in rows.items():
        place = {"x": 0, "y": y, "w": WIDTH * COLUMNS, "h": 1}
        made.append(
            {"id": len(made) + 1, "type": "row", "title": title, "gridPos": place, "collapsed": False}
        )
        y += 1
        for number, panel in enumerate(panels):
            row, column = divmod(number, COLUMNS)
            place = {"x": column * WIDTH, "y": y + row * HEIGHT, "w": WIDTH, "h": HEIGHT}
            made.append({"id": len(made) + 1, "gridPos": place, **_panel(panel)})
        y += -(-len(panels) // COLUMNS) * HEIGHT
    return made


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend, "datasource": SOURCE}
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        defaults["min"] = 0 if panel.title != "Loss" else None
        defaults["custom"] = {"fillOpacity": 0, "lineWidth": 1, "showPoints": "auto"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.why,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }


def files() -> dict[Path, str]:
    return {FOLDER / f"{each.name}.json": json.dumps(to_json(each), indent=1) + "\n" for each in DASHBOARDS}


if __name__ == "__main__":
    sys.exit(generated.main(files(), "tools/dashboards.py", sys.argv[1:]))
