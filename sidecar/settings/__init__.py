"""The operator's settings: one table, read from command line, environment and YAML."""

from sidecar.settings.checks import advice_for_run
from sidecar.settings.groups import GROUPS
from sidecar.settings.load import load
from sidecar.settings.setting import Setting
from sidecar.settings.show import Row, reference_page, rows
from sidecar.settings.table import SETTINGS, Settings

__all__ = ["GROUPS", "SETTINGS", "Row", "Setting", "Settings", "advice_for_run", "load", "reference_page", "rows"]
