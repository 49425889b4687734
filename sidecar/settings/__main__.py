"""`python -m sidecar.settings > docs/reference/settings.md` writes the reference page."""

import click

from sidecar.settings.show import reference_page

click.echo(reference_page(), nl=False)
