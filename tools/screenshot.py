#!/usr/bin/env python3
"""Makes a picture of a page, such as one that `sidestep bench --html` wrote.

    tools/screenshot.py report.html docs/report.png [--theme dark] [--width 1280] [--height 900 | --whole]
                        [--at ANCHOR]

The size is the one asked for, in every run; --whole takes the page from its head to its end. Needs Chromium
(tools/setup.sh browser), and opens the page without a network.
"""

import argparse
import pathlib
import sys

import chromium


def picture(arguments):
    with chromium.Browser() as browser:
        browser.open(arguments.page, arguments.width, arguments.height, arguments.theme)
        if arguments.at:
            browser.evaluate(f"document.getElementById({arguments.at!r}).scrollIntoView()")
        return browser.screenshot(whole=arguments.whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("png", type=pathlib.Path)
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--at", metavar="ANCHOR", help="the part of the page to begin with: machine, case-2, figures")
    arguments = parser.parse_args()
    if chromium.find() is None:
        print("screenshot: no Chromium on PATH; tools/setup.sh browser installs one", file=sys.stderr)
        return 1
    try:
        arguments.png.write_bytes(picture(arguments))
    except (chromium.BrowserError, OSError) as error:
        print(f"screenshot: {error}", file=sys.stderr)
        return 1
    print(f"screenshot: {arguments.png}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
