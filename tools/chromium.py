"""Drives a headless Chromium through its DevTools pipe, with nothing but the standard library.

The browser gets a profile of its own, no network, and a limit on every wait; it is killed at the end, with
whatever it started.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
ANSWER_SECONDS = 60
# A host that is not the file's is never found, and what asks a proxy finds none either.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--metrics-recording-only",
    "--force-color-profile=srgb", "--font-render-hinting=none", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9", "--remote-debugging-pipe",
)


class BrowserError(Exception):
    """The browser did not do what it was asked for, in words."""


def find():
    """The first browser on PATH, or None. SIDESTEP_CHROMIUM names another one."""
    return os.environ.get("SIDESTEP_CHROMIUM") or next((path for path in map(shutil.which, NAMES) if path), None)


def without_network():
    """A prefix of a command line that takes the network away from it, empty where the kernel refuses that."""
    unshare = shutil.which("unshare")
    prefix = [unshare, "--user", "--map-root-user", "--net"]
    if unshare and subprocess.run(prefix + ["true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, timeout=ANSWER_SECONDS).returncode == 0:
        return prefix
    return []


class Browser:
    """One browser with one page, as a context: with Browser() as browser."""

    def __init__(self, command=None):
        self.events = []  # of the page, in the order they came
        self._number = 0
        self._buffer = b""
        self._session = None
        self._profile = tempfile.mkdtemp(prefix="sidestep-chromium-")
        self._log = open(os.path.join(self._profile, "log"), "w+b")
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        line = without_network() + [command or find(), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        # The pipe is on descriptors 3 and 4, by DevTools' own rule.
        self._process = subprocess.Popen(
            ["sh", "-c", f'exec 3<&{from_us} 4>&{to_us}; exec "$@"', "sh", *line], pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True,
            env={**os.environ, "HOME": self._profile})
        os.close(from_us)
        os.close(to_us)

    def __enter__(self):
        try:
            self.version = self.call("Browser.getVersion")["product"]
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(domain + ".enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(timeout=ANSWER_SECONDS)
        for descriptor in (self._to, self._from):
            os.close(descriptor)
        self._log.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _said(self):
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace")

    def _message(self, until):
        """The next message of the browser."""
        while b"\0" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise BrowserError(f"no answer in {ANSWER_SECONDS} s; it said: {self._said()}")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise BrowserError(f"the browser ended; it said: {self._said()}")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, **parameters):
        """One call of the DevTools protocol; events that come meanwhile are kept."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        try:
            os.write(self._to, json.dumps(request).encode() + b"\0")
        except BrokenPipeError:
            raise BrowserError(f"the browser ended; it said: {self._said()}") from None
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            message = self._message(until)
            if message.get("id") == self._number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error'].get('message')}")
                return message.get("result", {})
            if "method" in message:
                self.events.append(message)

    def open(self, path, width=1280, height=800, theme="light", scripting=True):
        """Loads a file, and forgets the events of the page before."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripting)
        answer = self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        if answer.get("errorText"):
            raise BrowserError(f"{path}: {answer['errorText']}")
        self.wait_for("Page.loadEventFired")

    def wait_for(self, method, fits=lambda parameters: True):
        """Waits for an event, which may have come already."""
        until = time.monotonic() + ANSWER_SECONDS
        while not any(event["method"] == method and fits(event["params"]) for event in self.events):
            message = self._message(until)
            if "method" in message:
                self.events.append(message)

    def evaluate(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def move_to(self, x, y):
        """Moves the pointer, in pixels of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode={"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key])

    def click(self, selector):
        """Presses and releases the button over the middle of an element, scrolled into view."""
        x, y = self.middle_of(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def middle_of(self, selector):
        """Where the first element that a selector names is in the window, scrolled into view."""
        return self.evaluate(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({json.dumps(selector)}))")

    def screenshot(self, whole=False):
        """The window as PNG, or the whole page."""
        area = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            area = {"captureBeyondViewport": True,
                    "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", **area)["data"])

    def complaints(self):
        """What the console and the policy of the page said, and what scripts threw."""
        said = []
        for event in self.events:
            details = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                said.append(json.dumps(details["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                said.append(details["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                said.append(json.dumps(details["args"]))
        return said

    def requests(self):
        """The addresses that the page asked for."""
        return [event["params"]["request"]["url"] for event in self.events
                if event["method"] == "Network.requestWillBeSent"]
