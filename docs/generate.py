"""Writes the generated pages, docs/CONFIGURATION.md, docs/CLI.md and docs/API.md: `python -m docs.generate`."""

from __future__ import annotations

from docs import api_page, cli_page, configuration_page


def main() -> None:
    for page in (configuration_page, cli_page, api_page):
        page.PAGE.write_text(page.render(), encoding="utf-8")
        print(f"wrote {page.PAGE}")


if __name__ == "__main__":
    main()
